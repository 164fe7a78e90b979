// The file with the algorithms of matrix products.
#include "common/engine/cuda/matmul_choices.h"

#include <gmock/gmock.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "bench/temporary_folder.h"

namespace outrider::cuda {
namespace {

using ::testing::HasSubstr;

class MatmulChoicesTest : public ::testing::Test {
 protected:
  void Write(const std::string& text) const { std::ofstream(path_) << text; }
  std::string ErrorOf(const std::string& text) const {
    Write(text);
    return std::string(ReadMatmulChoices(path_, choices_).status().message());
  }

  static inline const MatmulAlgorithm kFew = {{66, ~uint64_t{0}, 20, 0, 0, 0, 0, 1}, "id 66 tile 20"};
  static inline const MatmulAlgorithm kMany = {{66, 0, 24, 0, 0, 0, 0, 0}, "id 66 tile 24"};
  const TemporaryFolder folder_;
  const std::string path_ = folder_.path() + "/matmul-choices.json";
  const MatmulChoices choices_ = {.gpu = "NVIDIA H200",
                                  .cublas = 130100,
                                  .operand = "bfloat16",
                                  .products = {{3072, 8192, kFew, kMany, MatmulLaunches::kPair},
                                               {128256, 3072, kMany, kMany, MatmulLaunches::kPair},
                                               {64, 32, kFew, kFew, MatmulLaunches::kFewOnly},
                                               {32, 64, kFew, kFew, MatmulLaunches::kTiles}}};
};

TEST_F(MatmulChoicesTest, AreReadAsTheyWereWritten) {
  EXPECT_EQ(ReadMatmulChoices(path_, choices_).value(), std::nullopt);
  ASSERT_TRUE(WriteMatmulChoices(path_, choices_).ok());
  const std::optional<MatmulChoices> read = ReadMatmulChoices(path_, choices_).value();
  ASSERT_TRUE(read);
  EXPECT_EQ(read->products, choices_.products);
  EXPECT_EQ(*read->Find(128256, 3072), choices_.products[1]);
  EXPECT_EQ(read->Find(3072, 128256), nullptr);
}

// Another GPU or version may compute something else with the same algorithm.
TEST_F(MatmulChoicesTest, OfAnotherGpuVersionOrTypeAreRefused) {
  ASSERT_TRUE(WriteMatmulChoices(path_, choices_).ok());
  const auto refusal = [&](auto change) {
    MatmulChoices here = choices_;
    change(here);
    const absl::Status status = ReadMatmulChoices(path_, here).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(refusal([](MatmulChoices& here) { here.gpu = "NVIDIA H100"; }),
              HasSubstr("the GPU was NVIDIA H200 when it was written and is NVIDIA H100"));
  EXPECT_THAT(refusal([](MatmulChoices& here) { here.cublas = 130200; }),
              HasSubstr("cuBLASLt was 130100 when it was written and is 130200"));
  EXPECT_THAT(refusal([](MatmulChoices& here) { here.operand = "fp8"; }), HasSubstr("--dtype was bfloat16"));
}

TEST_F(MatmulChoicesTest, AFileOfAnotherKindIsRefusedByItsField) {
  const std::string head = R"({"gpu": "NVIDIA H200", "cublas": 130100, "operand": "bfloat16")";
  EXPECT_THAT(ErrorOf("[]"), HasSubstr("not a JSON object"));
  EXPECT_THAT(ErrorOf("{}"), HasSubstr("cublas is missing"));
  EXPECT_THAT(ErrorOf(head + "}"), HasSubstr("products is not a list"));
  EXPECT_THAT(ErrorOf(head + R"(, "products": [1]})"), HasSubstr("products"));
  EXPECT_THAT(ErrorOf(head + R"(, "products": [{"n": 1}]})"), HasSubstr("k is missing"));
  EXPECT_THAT(ErrorOf(head + R"(, "products": [{"n": 1, "k": 1, "few_rows": 1}]})"),
              HasSubstr("few_rows is not an object"));
  for (const char* words : {"1", "[1, 2]", R"(["1", "2", "3", "4", "5", "6", "7", "g"])"}) {
    EXPECT_THAT(ErrorOf(absl::StrCat(head, R"(, "products": [{"n": 1, "k": 1, "few_rows": {"words": )", words,
                                     "}}]}")),
                HasSubstr("few_rows.words is not a list of 8 hexadecimal numbers"));
  }
  const std::string algorithm = R"({"words": ["1", "2", "3", "4", "5", "6", "7", "8"]})";
  const std::string product =
      absl::StrCat(R"({"n": 1, "k": 1, "few_rows": )", algorithm, R"(, "many_rows": )", algorithm);
  for (const char* launches : {"", R"(, "launches": 1)", R"(, "launches": "one")"}) {
    EXPECT_THAT(ErrorOf(absl::StrCat(head, R"(, "products": [)", product, launches, "}]}")),
                HasSubstr("launches is "));
  }
}

TEST_F(MatmulChoicesTest, AFileThatCannotBeWrittenIsNamed) {
  const std::string path = path_ + "/of/no/folder";
  EXPECT_THAT(WriteMatmulChoices(path, choices_).message(), HasSubstr(path + ": cannot be written"));
}

TEST_F(MatmulChoicesTest, InWordsTheyAreOneLine) {
  EXPECT_EQ(InWords(choices_),
            "cuBLASLt 130100; 3072x8192: id 66 tile 20, of many rows id 66 tile 24; 128256x3072: id 66 tile "
            "24; 64x32: id 66 tile 20, of many rows too, as none for these has the same bits; 32x64: id 66 "
            "tile 20, 16 rows at a time, as none gives a row the same bits in larger launches");
}

}  // namespace
}  // namespace outrider::cuda
