#include "common/engine/decoder/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <string>
#include <utility>

#include "bench/temporary_folder.h"

namespace outrider {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class SafeTensorsTest : public ::testing::Test {
 protected:
  void Write(const std::string& name, const std::string& bytes) {
    std::ofstream(dir_ + "/" + name, std::ios::binary) << bytes;
  }

  // A file with this header, padded to eight bytes as the format's writers do, and the data bytes 0, 1, 2,
  // ...
  static std::string File(std::string header, size_t data_bytes) {
    while (header.size() % 8 != 0) header += ' ';
    const uint64_t length = header.size();
    std::string bytes(reinterpret_cast<const char*>(&length), sizeof(length));
    bytes += header;
    for (size_t i = 0; i < data_bytes; ++i) bytes += static_cast<char>(i);
    return bytes;
  }

  // The error for model.safetensors with these contents. It must be one line that names the file.
  std::string ErrorOf(const std::string& bytes) {
    Write("model.safetensors", bytes);
    const absl::StatusOr<SafeTensors> tensors = SafeTensors::Open(dir_);
    EXPECT_EQ(tensors.status().code(), absl::StatusCode::kDataLoss) << tensors.status();
    const std::string message(tensors.status().message());
    EXPECT_THAT(message, AllOf(HasSubstr(dir_ + "/model.safetensors: "), Not(HasSubstr("\n"))));
    return message;
  }

  const TemporaryFolder folder_;
  const std::string& dir_ = folder_.path();
};

constexpr char kTwoTensors[] =
    R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
    R"("b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]}})";

TEST_F(SafeTensorsTest, ReadsWhatIsNotAligned) {
  std::string bytes = File(kTwoTensors, 32);
  const uint64_t length = bytes.size() - 32 - sizeof(uint64_t) + 3;
  bytes.replace(0, sizeof(length), reinterpret_cast<const char*>(&length), sizeof(length));
  bytes.insert(bytes.size() - 32, "   ");
  Write("model.safetensors", bytes);
  const absl::StatusOr<SafeTensors> tensors = SafeTensors::Open(dir_);
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  for (const char* name : {"a", "b"}) {
    const absl::string_view data = tensors->Find(name)->data;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data.data()) % 4, 0u);
    EXPECT_EQ(data[1] - data[0], 1);
  }
}

TEST_F(SafeTensorsTest, FindsTensorsOfAModelWithoutItsHead) {
  Write("model.safetensors", File(kTwoTensors, 32));
  const absl::StatusOr<SafeTensors> tensors = SafeTensors::Open(dir_);
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  EXPECT_EQ(tensors->Find("model.a"), tensors->Find("a"));
  EXPECT_EQ(tensors->Find("other.a"), nullptr);
}

TEST_F(SafeTensorsTest, ReadsWhatIsThere) {
  Write("model.safetensors", File(kTwoTensors, 32));
  const absl::StatusOr<SafeTensors> tensors = SafeTensors::Open(dir_);
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  EXPECT_EQ(tensors->Find("__metadata__"), nullptr);
  const absl::StatusOr<TensorView> a = tensors->Get("a", {2, 3});
  ASSERT_TRUE(a.ok()) << a.status();
  EXPECT_EQ(a->type, ElementType::kFloat32);
  EXPECT_EQ(a->data[5], 5);
  const absl::StatusOr<TensorView> b = tensors->Get("b", {4});
  ASSERT_TRUE(b.ok()) << b.status();
  EXPECT_EQ(b->type, ElementType::kBFloat16);
  EXPECT_EQ(b->data[0], 24);
}

TEST_F(SafeTensorsTest, ViewsOutliveAMove) {
  Write("model.safetensors", File(kTwoTensors, 32));
  SafeTensors tensors = *SafeTensors::Open(dir_);
  const TensorView view = *tensors.Get("a", {2, 3});
  SafeTensors moved = std::move(tensors);
  EXPECT_EQ(view.data[7], 7);
  EXPECT_EQ(moved.Find("b")->type, "BF16");
}

TEST_F(SafeTensorsTest, RefusesAbsentTensorsOtherShapesAndOtherTypesByName) {
  Write("model.safetensors", File(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                                  R"("i":{"dtype":"I64","shape":[1],"data_offsets":[8,16]},)"
                                  R"("n":{"dtype":"F4","shape":[4],"data_offsets":[16,18]}})",
                                  18));
  const absl::StatusOr<SafeTensors> tensors = SafeTensors::Open(dir_);
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  EXPECT_THAT(tensors->Get("c", {2}).status().message(),
              AllOf(HasSubstr("model.safetensors"), HasSubstr("tensor c")));
  EXPECT_THAT(tensors->Get("a", {3}).status().message(), HasSubstr("tensor a: shape [2], expected [3]"));
  EXPECT_THAT(tensors->Get("a", {1, 2}).status().message(),
              HasSubstr("tensor a: shape [2], expected [1, 2]"));
  EXPECT_THAT(tensors->Get("i", {1}).status().message(), HasSubstr("tensor i: dtype I64"));
  EXPECT_THAT(tensors->Get("n", {4}).status().message(), HasSubstr("tensor n: dtype F4"));
  EXPECT_EQ(tensors->GetBytes("i", "I64", {1})->size(), 8u);
  EXPECT_THAT(tensors->GetBytes("a", "I32", {2}).status().message(),
              HasSubstr("tensor a: dtype F32, expected I32"));
  EXPECT_THAT(tensors->GetBytes("i", "I64", {2}).status().message(),
              HasSubstr("tensor i: shape [1], expected [2]"));
}

TEST_F(SafeTensorsTest, RefusesAnyTruncation) {
  const std::string whole = File(kTwoTensors, 32);
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    const std::string error = ErrorOf(whole.substr(0, bytes));
    if (bytes >= whole.size() - 8) {
      EXPECT_THAT(error, HasSubstr("tensor b: truncated"));
    }
  }
}

TEST_F(SafeTensorsTest, RefusesDamagedHeaders) {
  const auto error_of_header = [this](const std::string& header) { return ErrorOf(File(header, 32)); };
  EXPECT_THAT(error_of_header("[1]"), HasSubstr("the header is not a JSON object"));
  EXPECT_THAT(error_of_header("{\"a\":"), HasSubstr("the header is not JSON: byte 9"));
  EXPECT_THAT(error_of_header(R"({"a":{"dtype":"F32","shape":[1e999],"data_offsets":[0,32]}})"),
              HasSubstr("the header is JSON with a number that no double can hold"));
  const std::string deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  EXPECT_THAT(error_of_header(R"({"a":{"dtype":"F32","shape":)" + deep + R"(,"data_offsets":[0,32]}})"),
              HasSubstr("the header is JSON that nests more than 64 deep"));
  EXPECT_THAT(error_of_header(R"({"a":1})"), HasSubstr("tensor a: no dtype"));
  EXPECT_THAT(error_of_header(R"({"a":{"dtype":7,"shape":[8],"data_offsets":[0,32]}})"),
              HasSubstr("no dtype"));
  EXPECT_THAT(error_of_header(R"({"a":{"dtype":"F32","data_offsets":[0,32]}})"), HasSubstr("no shape"));
  EXPECT_THAT(error_of_header(R"({"a":{"dtype":"F32","shape":[-8],"data_offsets":[0,32]}})"),
              HasSubstr("no shape"));
  EXPECT_THAT(error_of_header(R"({"a":{"dtype":"F32","shape":[8]}})"), HasSubstr("no data_offsets"));
  EXPECT_THAT(error_of_header(R"({"a":{"dtype":"F32","shape":[8],"data_offsets":[32]}})"),
              HasSubstr("no data_offsets"));
  EXPECT_THAT(error_of_header(R"({"a":{"dtype":"F32","shape":[8],"data_offsets":[32,0]}})"),
              HasSubstr("descend"));
  EXPECT_THAT(error_of_header(R"({"a":{"dtype":"F32","shape":[9],"data_offsets":[0,36]}})"),
              HasSubstr("tensor a: truncated"));
  EXPECT_THAT(error_of_header(R"({"a":{"dtype":"F32","shape":[7],"data_offsets":[0,32]}})"),
              HasSubstr("shape [7] of F32 does not take its 32 bytes"));
  EXPECT_THAT(
      error_of_header(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})"),
      HasSubstr("does not take its 0 bytes"));
}

TEST_F(SafeTensorsTest, RefusesOverlapsGapsAndLeftovers) {
  const auto error_of = [this](const std::string& a, const std::string& b) {
    return ErrorOf(File(R"({"a":{"dtype":"F32","shape":[4],"data_offsets":)" + a +
                            R"(},"b":{"dtype":"F32","shape":[4],"data_offsets":)" + b + "}}",
                        32));
  };
  EXPECT_THAT(error_of("[0,16]", "[12,28]"), HasSubstr("tensor b: overlaps"));
  EXPECT_THAT(error_of("[0,16]", "[0,16]"), HasSubstr("overlaps"));
  EXPECT_THAT(error_of("[4,20]", "[16,32]"), HasSubstr("tensor a: a gap before it"));
  EXPECT_THAT(ErrorOf(File(kTwoTensors, 40)), HasSubstr("8 bytes after the last tensor"));
}

TEST_F(SafeTensorsTest, RefusesAHeaderLengthBeyondTheFile) {
  for (const uint64_t length : {uint64_t{10'000}, ~uint64_t{0}, uint64_t{1} << 63}) {
    std::string bytes = File(kTwoTensors, 32);
    std::memcpy(bytes.data(), &length, sizeof(length));
    EXPECT_THAT(ErrorOf(bytes), HasSubstr("truncated or not safetensors"));
  }
}

TEST_F(SafeTensorsTest, NamesTheMissingFile) {
  const absl::StatusOr<SafeTensors> tensors = SafeTensors::Open(dir_);
  EXPECT_EQ(tensors.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(tensors.status().message(), HasSubstr(dir_ + "/model.safetensors"));
}

TEST_F(SafeTensorsTest, FollowsAnIndex) {
  Write("one.safetensors", File(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8));
  Write("two.safetensors", File(R"({"b":{"dtype":"F16","shape":[2],"data_offsets":[0,4]}})", 4));
  Write("model.safetensors.index.json", R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})");
  const absl::StatusOr<SafeTensors> tensors = SafeTensors::Open(dir_);
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  EXPECT_TRUE(tensors->Get("a", {2}).ok());
  EXPECT_EQ(tensors->Get("b", {2})->type, ElementType::kFloat16);
}

TEST_F(SafeTensorsTest, TheHashIsThatOfTheTensorsHoweverTheyAreSpread) {
  const auto hash = [this] { return SafeTensors::Open(dir_)->Hash(); };
  Write("one.safetensors", File(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8));
  Write("two.safetensors", File(R"({"b":{"dtype":"F16","shape":[2],"data_offsets":[0,4]}})", 4));
  Write("model.safetensors.index.json", R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})");
  const uint64_t sharded = hash();
  // The file's bytes count from 0; so do those of b when it comes first.
  std::string bytes = File(
      R"({"b":{"dtype":"F16","shape":[2],"data_offsets":[8,12]},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
      12);
  for (size_t i = 0; i < 4; ++i) bytes[bytes.size() - 4 + i] = static_cast<char>(i);
  Write("model.safetensors", bytes);
  EXPECT_EQ(hash(), sharded);
  ++bytes.back();
  Write("model.safetensors", bytes);
  EXPECT_NE(hash(), sharded) << "one bit";
}

TEST_F(SafeTensorsTest, AShapeAndATypeAreInTheHashToo) {
  const auto hash = [this](const std::string& type, const std::string& shape) {
    Write("model.safetensors",
          File(R"({"a":{"dtype":")" + type + R"(","shape":)" + shape + R"(,"data_offsets":[0,8]}})", 8));
    return SafeTensors::Open(dir_)->Hash();
  };
  EXPECT_NE(hash("F16", "[2,2]"), hash("F16", "[4]"));
  EXPECT_NE(hash("F16", "[4]"), hash("BF16", "[4]"));
}

TEST_F(SafeTensorsTest, RefusesAnIndexThatDisagreesWithItsFiles) {
  Write("one.safetensors", File(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8));
  const auto error_of = [this](const std::string& index) {
    Write("model.safetensors.index.json", index);
    return std::string(SafeTensors::Open(dir_).status().message());
  };
  EXPECT_THAT(error_of("{"), HasSubstr("index.json: not JSON: byte 2"));
  EXPECT_THAT(error_of(std::string(1'000'000, '[')),
              HasSubstr("index.json: JSON that nests more than 64 deep"));
  EXPECT_THAT(error_of(R"({"weight_map":{"a":"one.safetensors","b":"one.safetensors"}})"),
              HasSubstr("no tensor b"));
  EXPECT_THAT(error_of(R"({"weight_map":{"a":"three.safetensors"}})"), HasSubstr("three.safetensors"));
  EXPECT_THAT(error_of(R"({"weight_map":{"a":"../one.safetensors"}})"), HasSubstr("not a file name"));
  EXPECT_THAT(error_of(R"({"weight_map":{"a":7}})"), HasSubstr("not a file name"));
  Write("two.safetensors", File(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8));
  EXPECT_THAT(error_of(R"({"weight_map":{"a":"one.safetensors","c":"two.safetensors"}})"),
              HasSubstr("tensor a: it is in another file, too"));
}

}  // namespace
}  // namespace outrider
