// GGUF files, valid and damaged. The error for a damaged file is one line with the file and, if there is one,
// the key or tensor.
#include "common/gguf/gguf_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/unit/gguf_testing.h"

namespace outrider {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class GgufFileTest : public ::testing::Test {
 protected:
  ~GgufFileTest() override { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name) const { return (folder_ / name).string(); }
  absl::StatusOr<GgufFile> Open(const std::string& bytes, const std::string& name = "m.gguf") {
    std::ofstream(Path(name), std::ios::binary) << bytes;
    return GgufFile::Open(Path(name));
  }
  // The error for a damaged file. It must be one line that begins with the path.
  std::string Damage(const std::string& bytes) {
    const absl::Status status = Open(bytes).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    const std::string message(status.message());
    EXPECT_THAT(message, AllOf(StartsWith(Path("m.gguf") + ": "), Not(HasSubstr("\n"))));
    return message;
  }

  const std::filesystem::path folder_ = [] {
    std::string name = (std::filesystem::temp_directory_path() / "gguf-XXXXXX").string();
    return std::filesystem::path(mkdtemp(name.data()));
  }();
  GgufContent content_ = GgufContent()
                             .Set("general.architecture", std::string("llama"))
                             .Set("some.number", uint32_t{7})
                             .Set("some.float", 0.5f)
                             .Set("some.truth", true)
                             .Set("some.words", std::vector<std::string>{"a", "", "ä"})
                             .Set("some.numbers", std::vector<int32_t>{-1, 2})
                             .AddTensor("matrix", {2, 3}, {1, 2, 3, 4, 5, 6})
                             .AddTensor("vector", {2}, {7, 8});
};

TEST_F(GgufFileTest, HasItsKeysAndTensors) {
  const auto file = Open(content_.Bytes());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->metadata(), nlohmann::json::parse(R"({
    "general.architecture": "llama", "some.number": 7, "some.float": 0.5, "some.truth": true,
    "some.words": ["a", "", "ä"], "some.numbers": [-1, 2]})"));
  EXPECT_EQ(file->FindString("some.words", "ä"), 2);
  EXPECT_EQ(file->FindString("some.words", "b"), -1);
  EXPECT_EQ(file->FindString("some.numbers", "2"), -1);
  EXPECT_EQ(file->FindString("no.words", "a"), -1);
  ASSERT_NE(file->Find("matrix"), nullptr);
  EXPECT_EQ(file->Find("nothing"), nullptr);
  const GgufFile::Tensor& matrix = *file->Find("matrix");
  EXPECT_THAT(matrix.shape, ElementsAre(2, 3));
  EXPECT_EQ(matrix.type, GgufFile::kFloat32);
  float row[3];
  GgufFile::ToFloat(matrix.type, matrix.data.data() + sizeof(row), 3, row);
  EXPECT_THAT(row, ElementsAre(4, 5, 6));
  EXPECT_THAT(file->Find("vector")->shape, ElementsAre(2));
}

TEST_F(GgufFileTest, LeavesLongArraysOutOfTheMetadataButHasThem) {
  content_.Set("long", std::vector<int32_t>(GgufFile::kMaxMetadataArray + 1, 3));
  const auto file = Open(content_.Bytes());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_FALSE(file->metadata().contains("long"));
  EXPECT_EQ(file->Value("long").size(), GgufFile::kMaxMetadataArray + 1);
  EXPECT_TRUE(file->Value("longer").is_null());
}

TEST_F(GgufFileTest, UnpacksWhatLiesInBlocks) {
  // Q8_0: a scale in float16, then 32 levels. 0x3800 is 0.5.
  std::string block("\x00\x38", 2);
  for (int i = 0; i < 32; ++i) block.push_back(static_cast<char>(i - 16));
  const auto file = Open(GgufContent().AddTensor("t", 8, {1, 32}, block).Bytes());
  ASSERT_TRUE(file.ok()) << file.status();
  const GgufFile::Tensor& tensor = *file->Find("t");
  EXPECT_EQ(GgufFile::TypeName(tensor.type), "q8_0");
  EXPECT_TRUE(GgufFile::IsPacked(tensor.type) && GgufFile::CanBeFloat(tensor.type));
  float values[32];
  GgufFile::ToFloat(tensor.type, tensor.data.data(), 32, values);
  EXPECT_EQ(values[0], -8);
  EXPECT_EQ(values[31], 7.5);
  EXPECT_FALSE(GgufFile::CanBeFloat(26)) << "GGML_TYPE_I32";
}

TEST_F(GgufFileTest, HashesItsTensorsAndNotItsKeys) {
  const uint64_t hash = Open(content_.Bytes())->Hash();
  GgufContent renamed = content_;
  EXPECT_EQ(Open(renamed.Set("some.number", uint32_t{8}).Bytes())->Hash(), hash);
  std::string bytes = content_.Bytes();
  bytes[bytes.size() - 32] ^= 1;  // a byte of the last tensor
  EXPECT_NE(Open(bytes)->Hash(), hash);
}

TEST_F(GgufFileTest, ReadsShards) {
  const auto shard = [](int number, const char* tensor, const std::vector<float>& data) {
    GgufContent content;
    content.Set("split.no", static_cast<uint16_t>(number)).Set("split.count", uint16_t{2});
    content.Set("split.tensors.count", int32_t{2});
    return content.AddTensor(tensor, {static_cast<int64_t>(data.size())}, data).Bytes();
  };
  const std::string first = shard(0, "a", {1, 2});
  EXPECT_EQ(Open(first, "m-00001-of-00002.gguf").status().code(), absl::StatusCode::kNotFound);
  std::ofstream(Path("m-00002-of-00002.gguf"), std::ios::binary) << shard(1, "b", {3});
  const auto file = Open(first, "m-00001-of-00002.gguf");
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE(file->Find("a") != nullptr && file->Find("b") != nullptr);
  EXPECT_EQ(file->PathOf(*file->Find("b")), Path("m-00002-of-00002.gguf"));
  EXPECT_EQ(file->path(), Path("m-00001-of-00002.gguf"));
  EXPECT_THAT(Damage(first), HasSubstr("split.count"));
  std::ofstream(Path("m-00002-of-00002.gguf"), std::ios::binary) << first;
  EXPECT_THAT(Open(first, "m-00001-of-00002.gguf").status().message(),
              HasSubstr("m-00002-of-00002.gguf: tensor a: it is in another file, too"));
  std::ofstream(Path("m-00002-of-00002.gguf"), std::ios::binary) << GgufContent().Bytes();
  EXPECT_THAT(Open(first, "m-00001-of-00002.gguf").status().message(), HasSubstr("split.tensors.count: 2"));
}

TEST_F(GgufFileTest, LayersReplaceThoseOfAnotherFile) {
  GgufContent whole = content_, layers;
  whole.Set("llama.block_count", uint32_t{2}).Set("tokens", std::vector<int32_t>(5000, 1));
  for (const char* name : {"blk.0.norm", "blk.1.norm", "output_norm"}) whole.AddTensor(name, {1}, {1});
  layers.Set("llama.block_count", uint32_t{1}).AddTensor("blk.0.norm", {1}, {2});
  layers.AddTensor("output_norm", {1}, {3});
  std::ofstream(Path("whole.gguf"), std::ios::binary) << whole.Bytes();
  std::ofstream(Path("layers.gguf"), std::ios::binary) << layers.Bytes();
  const auto file = GgufFile::Open(absl::StrCat(Path("layers.gguf"), "+", Path("whole.gguf")));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->metadata()["llama.block_count"], 1);
  EXPECT_EQ(file->Value("llama.block_count"), 1);
  EXPECT_EQ(file->metadata()["some.number"], 7);
  EXPECT_EQ(file->Value("tokens").size(), 5000u);
  EXPECT_EQ(file->tensors().size(), 4u);
  EXPECT_EQ(file->Find("blk.1.norm"), nullptr);
  const auto value = [&](const char* name) {
    float number = 0;
    std::memcpy(&number, file->Find(name)->data.data(), sizeof(number));
    return number;
  };
  EXPECT_EQ(value("blk.0.norm"), 2);
  EXPECT_EQ(value("output_norm"), 3);
  EXPECT_EQ(value("vector"), 7);
  EXPECT_EQ(file->PathOf(*file->Find("blk.0.norm")), Path("layers.gguf"));
  EXPECT_EQ(file->PathOf(*file->Find("vector")), Path("whole.gguf"));
  const auto missing = GgufFile::Open(absl::StrCat(Path("none.gguf"), "+", Path("whole.gguf")));
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
}

TEST_F(GgufFileTest, NamesAFileThatIsNotThereOrNone) {
  EXPECT_EQ(GgufFile::Open(Path("none.gguf")).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(GgufFile::Open(folder_.string()).status().code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_EQ(mkfifo(Path("fifo").c_str(), 0600), 0);
  EXPECT_EQ(GgufFile::Open(Path("fifo")).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Damage(""), HasSubstr("not a GGUF file, or truncated"));
  EXPECT_THAT(Damage("GGUX" + content_.Bytes().substr(4)), HasSubstr("not a GGUF file"));
}

// The bytes with `value` at `at`.
template <class T>
std::string With(std::string bytes, size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof(value));
  return bytes;
}

TEST_F(GgufFileTest, BoundsWhatItBelieves) {
  const std::string bytes = content_.Bytes();
  EXPECT_THAT(Damage(With(bytes, 4, uint32_t{1})), HasSubstr("version 1 of the format"));
  EXPECT_THAT(Damage(With(bytes, 4, uint32_t{0x03000000})), HasSubstr("version"));
  EXPECT_THAT(Damage(With(bytes, 8, int64_t{-1})), HasSubstr("tensors: -1"));
  EXPECT_THAT(Damage(With(bytes, 8, int64_t{1} << 40)), HasSubstr("tensors: 1099511627776"));
  EXPECT_THAT(Damage(With(bytes, 16, int64_t{1} << 40)), HasSubstr("keys: 1099511627776"));
  EXPECT_THAT(Damage(With(bytes, 24, uint64_t{1} << 60)), HasSubstr("key"));  // the first key's length
  EXPECT_THAT(Damage(GgufContent().SetBytes("bad", std::string("\x63\x00\x00\x00", 4)).Bytes()),
              HasSubstr("key 'bad' has invalid GGUF type 99"));
  EXPECT_THAT(Damage(GgufContent().Set("general.alignment", uint32_t{3}).Bytes()), HasSubstr("alignment"));
  EXPECT_THAT(Damage(GgufContent().AddTensor("t", {2}, {1, 2}).AddTensor("t", {2}, {1, 2}).Bytes()),
              HasSubstr("duplicate tensor name 't'"));
  EXPECT_THAT(Damage(GgufContent().AddTensor("t", 99, {2}, "12345678").Bytes()),
              HasSubstr("tensor 't' has invalid ggml type 99"));
  EXPECT_THAT(Damage(GgufContent().AddTensor("t", 8, {33}, "12345678").Bytes()), HasSubstr("block size"));
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{-1, 2},
                                            {1ll << 62, 8},
                                            {1ll << 40, 1ll << 40},
                                            {1ll << 32, 1ll << 32, 1ll << 32}}) {
    EXPECT_THAT(Damage(GgufContent().AddTensor("t", 0, shape, "12345678").Bytes()), HasSubstr("t"));
  }
  EXPECT_THAT(Damage(GgufContent().AddTensor("big", 0, {100}, "12345678").Bytes()),
              HasSubstr("tensor big: truncated: 400 bytes"));
}

TEST_F(GgufFileTest, EveryBeginningOfAFileIsRefusedOrRead) {
  const std::string bytes = content_.Bytes();
  for (size_t size = 0; size < bytes.size() - 24; ++size) Damage(bytes.substr(0, size));
}

TEST_F(GgufFileTest, WhatIsNotTextIsShownEscaped) {
  EXPECT_THAT(Damage(GgufContent().AddTensor("a\nb", 0, {100}, "12345678").Bytes()),
              HasSubstr("tensor a\\nb"));
  const auto file = Open(GgufContent().Set("k", std::string("\xff")).Bytes());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->metadata()["k"], "\xff");
}

}  // namespace
}  // namespace outrider
