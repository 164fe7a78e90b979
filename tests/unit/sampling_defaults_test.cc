// How a model's own sampling defaults are read, and which requests they apply to.
#include "coordinator/api/parse_request.h"

#include <gmock/gmock.h>

#include <fstream>

#include "bench/temporary_folder.h"
#include "tests/unit/test_tokenizer.h"

namespace outrider {
namespace {

using ::testing::HasSubstr;

class SamplingDefaultsTest : public ::testing::Test {
 protected:
  absl::StatusOr<v1::SamplingParams> Read(const std::string& content) const {
    std::ofstream(folder_.path() + "/generation_config.json") << content;
    return ReadSamplingDefaults(folder_.path());
  }
  // The sampling parameters of the request if the model has these defaults.
  v1::SamplingParams With(const v1::SamplingParams& defaults) const {
    v1::ServerInfo target;
    target.set_vocab_size(static_cast<uint32_t>(TestTokenizer().vocab_size()));
    target.set_max_context(64);
    target.set_kv_blocks(100);
    target.set_block_size(16);
    RequestDefaults all;
    all.sampling = defaults;
    all.max_samples = 2;
    return ParseRequest(request_, all, TestTokenizer(), target).value().params.sampling();
  }

  const TemporaryFolder folder_;
  v1::GenerateRequest request_;
};

TEST_F(SamplingDefaultsTest, AreReadIfTheyAreThere) {
  EXPECT_EQ(ReadSamplingDefaults(folder_.path())->ByteSizeLong(), 0u) << "no file";
  EXPECT_EQ(Read(R"({"eos_token_id": 5, "do_sample": true, "top_k": null})")->ByteSizeLong(), 0u);
  const v1::SamplingParams all =
      *Read(R"({"temperature": 0.5, "top_k": 20, "top_p": 0.75, "min_p": 0.25, "repetition_penalty": 1.5})");
  EXPECT_EQ(all.temperature(), 0.5f);
  EXPECT_EQ(all.top_k(), 20u);
  EXPECT_EQ(all.top_p(), 0.75f);
  EXPECT_EQ(all.min_p(), 0.25f);
  EXPECT_EQ(all.repetition_penalty(), 1.5f);
}

TEST_F(SamplingDefaultsTest, OutOfRangeAreRefusedWithTheirFile) {
  for (const char* content : {"{", "[]", R"({"temperature": -1})", R"({"top_p": 2})", R"({"top_k": -1})"}) {
    const absl::Status status = Read(content).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << content;
    EXPECT_THAT(std::string(status.message()), HasSubstr("/generation_config.json: "));
  }
}

TEST_F(SamplingDefaultsTest, HoldWhereARequestDoesNotSay) {
  request_.set_text("The little boy");
  const v1::SamplingParams defaults = *Read(R"({"temperature": 0.5, "top_k": 20, "min_p": 0.25})");
  EXPECT_EQ(With(defaults).temperature(), 0.5f);
  EXPECT_EQ(With(defaults).top_k(), 20u);
  request_.mutable_sampling()->set_temperature(0);
  request_.mutable_sampling()->set_top_k(0);
  EXPECT_EQ(With(defaults).temperature(), 0);
  EXPECT_EQ(With(defaults).top_k(), 0u) << "0 is a value: it keeps all";
  EXPECT_EQ(With(defaults).min_p(), 0.25f);
  EXPECT_EQ(With({}).min_p(), 0);
}

// A beam search uses the model's own probabilities.
TEST_F(SamplingDefaultsTest, DoNotHoldForASearch) {
  request_.set_text("The little boy");
  request_.mutable_beam()->set_width(2);
  EXPECT_EQ(With(*Read(R"({"temperature": 0.5, "top_k": 20})")).top_k(), 0u);
}

}  // namespace
}  // namespace outrider
