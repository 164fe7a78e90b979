// Quantised weights in small files: what they unpack to, and the damage that is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "bench/temporary_folder.h"
#include "common/engine/decoder/tensor_source.h"
#include "common/engine/decoder/unpacked_tensors.h"

namespace outrider {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

struct Tensor {
  std::string type;
  std::vector<int64_t> shape;
  std::string bytes;
};
using Tensors = std::map<std::string, Tensor>;

template <class T>
Tensor Of(const std::string& type, std::vector<int64_t> shape, const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return {type, std::move(shape), bytes};
}
Tensor Floats(std::vector<int64_t> shape, const std::vector<float>& values) {
  return Of("F32", std::move(shape), values);
}
Tensor Bytes(const std::string& type, std::vector<int64_t> shape, const std::vector<uint8_t>& values) {
  return Of(type, std::move(shape), values);
}
Tensor Words(std::vector<int64_t> shape, const std::vector<uint32_t>& values) {
  return Of("I32", std::move(shape), values);
}

class Unpack : public ::testing::Test {
 protected:
  // Reads the weight m.weight.
  absl::StatusOr<std::vector<float>> Read(const Quantization& quantization, const Tensors& tensors,
                                          const std::vector<int64_t>& shape) {
    nlohmann::json header;
    std::string data;
    for (const auto& [name, tensor] : tensors) {
      header[name] = {{"dtype", tensor.type},
                      {"shape", tensor.shape},
                      {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
      data += tensor.bytes;
      // Pads, since the next tensor may need to be aligned.
      if (const size_t pad = (8 - data.size() % 8) % 8; pad > 0) {
        header["~" + name] = {
            {"dtype", "U8"}, {"shape", {pad}}, {"data_offsets", {data.size(), data.size() + pad}}};
        data.append(pad, '\0');
      }
    }
    std::string text = header.dump();
    text.append((8 - text.size() % 8) % 8, ' ');
    const uint64_t length = text.size();
    std::ofstream(folder_.path() + "/model.safetensors", std::ios::binary)
        << std::string(reinterpret_cast<const char*>(&length), sizeof(length)) << text << data;
    const absl::StatusOr<SafeTensors> stored = SafeTensors::Open(folder_.path());
    if (!stored.ok()) return stored.status();
    const UnpackedTensors unpacked(*stored, quantization);
    const absl::StatusOr<TensorView> view = unpacked.Get("m.weight", shape);
    if (!view.ok()) return view.status();
    blocks_ = unpacked.BlocksOf("m.weight", shape);
    if (blocks_) ExpectBlocks(*unpacked.GetBlocks("m.weight", shape), *view);
    return AllElements(*view);
  }

  static void ExpectBlocks(const BlockReader& read, const TensorView& view) {
    const std::vector<float> values = AllElements(view);
    for (size_t i = 0; i < values.size(); ++i) {
      const int64_t columns = view.shape[1], at = static_cast<int64_t>(i);
      Block block;
      read(at / columns, at % columns / kBlock, block);
      const float level = block.levels[at % columns % kBlock];
      EXPECT_NEAR(block.scale * level + block.minimum, values[i], 1e-4 * std::abs(block.scale)) << i;
    }
  }

  void ExpectRefused(const Quantization& quantization, const Tensors& tensors,
                     const std::vector<int64_t>& shape, const std::string& error) {
    EXPECT_EQ(Read(quantization, tensors, shape).status(),
              absl::InvalidArgumentError(folder_.path() + "/model.safetensors: " + error));
  }

  const TemporaryFolder folder_;
  std::optional<BlockFormat> blocks_;  // the block format of the last weight read; none if it has none
};

// `tensors` with one of them changed, or removed if it has no type.
Tensors With(Tensors tensors, const std::string& name, const Tensor& tensor) {
  tensors.erase(name);
  if (!tensor.type.empty()) tensors[name] = tensor;
  return tensors;
}

TEST(Float8, HasAllNumbersOfTheFormat) {
  for (int i = 0; i < 256; ++i) {
    const int exponent = i >> 3 & 15, mantissa = i & 7;
    const double magnitude =
        exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
    const float value = FromFloat8(static_cast<uint8_t>(i));
    EXPECT_EQ(std::signbit(value), i >= 128);
    if ((i & 127) == 127) {
      EXPECT_TRUE(std::isnan(value));
    } else {
      EXPECT_EQ(std::abs(value), magnitude) << i;
    }
  }
}

// --- compressed-tensors ---

const CompressedTensors kFp8 = {.floats = true};
const CompressedTensors kInt8 = {};
const CompressedTensors kInt8Groups = {.group_size = 2, .zero_points = true};

const Tensors& Int8() {
  static const Tensors& tensors =
      *new Tensors{{"m.weight", Bytes("I8", {2, 4}, {1, 2, 0xff, 4, 5, 0x80, 7, 8})},
                   {"m.weight_scale", Floats({2, 1}, {0.5f, 2})}};
  return tensors;
}

TEST_F(Unpack, BytesTimesTheScaleOfTheirRow) {
  EXPECT_THAT(*Read(kInt8, Int8(), {2, 4}), ElementsAre(0.5, 1, -0.5, 2, 10, -256, 14, 16));
  EXPECT_THAT(*Read(kInt8, With(Int8(), "m.weight_scale", Floats({2}, {1, 0})), {2, 4}),
              ElementsAre(1, 2, -1, 4, 0, 0, 0, 0));
  const Tensors fp8 =
      With(Int8(), "m.weight", Bytes("F8_E4M3", {2, 4}, {0x38, 0xb8, 0x7e, 0, 1, 0x40, 0x39, 0x80}));
  EXPECT_THAT(*Read(kFp8, fp8, {2, 4}), ElementsAre(0.5, -0.5, 224, 0, 0x1p-8, 4, 2.25, -0.0f));
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{}, std::vector<int64_t>{1}}) {
    EXPECT_THAT(*Read(CompressedTensors{.one_scale = true},
                      With(Int8(), "m.weight_scale", Floats(shape, {3})), {2, 4}),
                ElementsAre(3, 6, -3, 12, 15, -384, 21, 24));
  }
}

TEST_F(Unpack, BytesLessTheZeroPointOfTheirGroup) {
  Tensors tensors = With(Int8(), "m.weight_scale", Floats({2, 2}, {1, 2, 4, 8}));
  tensors["m.weight_zero_point"] = Bytes("I8", {2, 2}, {1, 0xff, 5, 0});
  EXPECT_THAT(*Read(kInt8Groups, tensors, {2, 4}), ElementsAre(0, 1, 0, 10, 0, -532, 56, 64));
}

TEST_F(Unpack, WhatIsStoredPlainlyIsLeftAlone) {
  const Tensors plain = {{"m.weight", Floats({1, 2}, {3, 4})}};
  for (const Quantization& quantization : {Quantization(kInt8), Quantization(Gptq()), Quantization(Awq())}) {
    EXPECT_THAT(*Read(quantization, plain, {1, 2}), ElementsAre(3, 4));
  }
}

TEST_F(Unpack, DamagedBytesAreRefusedByName) {
  const auto refused = [&](const CompressedTensors& format, const std::string& name, const Tensor& tensor,
                           const std::string& error) {
    ExpectRefused(format, With(Int8(), name, tensor), {2, 4}, error);
  };
  refused(kInt8, "m.weight", {}, "no tensor m.weight");
  refused(kInt8, "m.weight", Bytes("I8", {4, 2}, std::vector<uint8_t>(8)),
          "tensor m.weight: shape [4, 2], expected [2, 4]");
  refused(kInt8, "m.weight", Bytes("U8", {2, 4}, std::vector<uint8_t>(8)),
          "tensor m.weight: dtype U8, expected I8");
  refused(kFp8, "m.weight", Bytes("I8", {2, 4}, std::vector<uint8_t>(8)),
          "tensor m.weight: dtype I8, expected F8_E4M3");
  refused(kInt8, "m.weight", Floats({2, 4}, std::vector<float>(8)),
          "tensor m.weight: dtype F32, expected I8");
  refused(kFp8, "m.weight", Bytes("F8_E4M3", {2, 4}, {0, 0, 0, 0, 0, 0, 0xff, 0}),
          "tensor m.weight: holds NaN");
  refused(kInt8, "m.weight_scale", {}, "no tensor m.weight_scale");
  refused(kInt8, "m.weight_scale", Floats({1}, {1}), "tensor m.weight_scale: shape [1], expected [2, 1]");
  refused({.one_scale = true}, "m.weight_scale", Floats({2, 1}, {1, 2}),
          "tensor m.weight_scale: shape [2, 1], expected [1]");
  refused(kInt8, "m.weight_scale", Words({2, 1}, {1, 2}),
          "tensor m.weight_scale: dtype I32, expected F32, BF16 or F16");
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  refused(kInt8, "m.weight_scale", Floats({2, 1}, {1, kNaN}),
          "tensor m.weight_scale: holds nan, and a scale is finite");
  refused({.group_size = 3}, "other", Floats({1}, {1}),
          "tensor m.weight_scale: groups of 3 do not divide 4 columns");
  refused(kInt8Groups, "m.weight_scale", Floats({2, 2}, {1, 2, 3, 4}), "no tensor m.weight_zero_point");
  refused({.zero_points = true}, "m.weight_zero_point", Bytes("I8", {1}, {1}),
          "tensor m.weight_zero_point: shape [1], expected [2, 1]");
}

const CompressedTensors kPacked = {.packed = true, .bits = 4};

// Ten columns take two words.
const Tensors& Packed() {
  static const Tensors& tensors = *new Tensors{{"m.weight_packed", Words({1, 2}, {0x76543210, 0xffffffb8})},
                                               {"m.weight_scale", Floats({1, 1}, {1})},
                                               {"m.weight_shape", Of<int64_t>("I64", {2}, {1, 10})}};
  return tensors;
}

TEST_F(Unpack, WordsHoldTheFirstColumnInTheirLowestBits) {
  EXPECT_THAT(*Read(kPacked, Packed(), {1, 10}), ElementsAre(-8, -7, -6, -5, -4, -3, -2, -1, 0, 3));
  const Tensors zero = With(Packed(), "m.weight_zero_point", Words({1, 1}, {0xfffffff2}));
  EXPECT_THAT(*Read(CompressedTensors{.packed = true, .bits = 4, .zero_points = true}, zero, {1, 10}),
              ElementsAre(-2, -1, 0, 1, 2, 3, 4, 5, 6, 9));
  const Tensors bytes = {{"m.weight_packed", Words({1, 1}, {0xff817f00})},
                         {"m.weight_scale", Floats({1, 1}, {1})},
                         {"m.weight_shape", Of<int64_t>("I64", {2}, {1, 3})}};
  EXPECT_THAT(*Read(CompressedTensors{.packed = true, .bits = 8}, bytes, {1, 3}), ElementsAre(-128, -1, 1));
}

TEST_F(Unpack, DamagedWordsAreRefusedByName) {
  const auto refused = [&](const std::string& name, const Tensor& tensor, const std::string& error) {
    ExpectRefused(kPacked, With(Packed(), name, tensor), {1, 10}, error);
  };
  refused("m.weight_packed", {}, "no tensor m.weight_packed");
  refused("m.weight_packed", Words({1, 1}, {0}), "tensor m.weight_packed: shape [1, 1], expected [1, 2]");
  refused("m.weight_packed", Floats({1, 2}, {0, 0}), "tensor m.weight_packed: dtype F32, expected I32");
  refused("m.weight_shape", {}, "no tensor m.weight_shape");
  refused("m.weight_shape", Of<int64_t>("I64", {2}, {10, 1}),
          "tensor m.weight_shape: [10, 1], expected [1, 10]");
  ExpectRefused(CompressedTensors{.packed = true, .bits = 4, .zero_points = true}, Packed(), {1, 10},
                "no tensor m.weight_zero_point");
}

// --- GPTQ ---

// [8, 16]: the level of a weight is its column modulo 16, zero points are 8, and a scale for each group of 8
// columns.
Tensors GptqTensors() {
  std::vector<uint32_t> levels(16);
  std::fill(levels.begin(), levels.begin() + 8, 0x76543210u);
  std::fill(levels.begin() + 8, levels.end(), 0xfedcba98u);
  std::vector<float> scales(16, 1);
  std::fill(scales.begin() + 8, scales.end(), 2.0f);
  return {{"m.qweight", Words({2, 8}, levels)},
          {"m.qzeros", Words({2, 1}, {0x77777777, 0x77777777})},
          {"m.scales", Floats({2, 8}, scales)}};
}
constexpr Gptq kGptq = {.bits = 4, .group_size = 8};

std::vector<float> Row(const std::vector<float>& matrix, size_t row, size_t columns) {
  return {matrix.begin() + static_cast<std::ptrdiff_t>(row * columns),
          matrix.begin() + static_cast<std::ptrdiff_t>((row + 1) * columns)};
}

TEST_F(Unpack, GptqLevelsRunDownTheWords) {
  const std::vector<float> matrix = *Read(kGptq, GptqTensors(), {8, 16});
  for (size_t row = 0; row < 8; ++row) {
    EXPECT_THAT(Row(matrix, row, 16), ElementsAre(-8, -7, -6, -5, -4, -3, -2, -1, 0, 2, 4, 6, 8, 10, 12, 14));
  }
}

TEST_F(Unpack, GptqZeroPointsAreStoredLessOneInWholeWords) {
  // The rows' zero points are 8, 0, 15, 8, 8, 8, 8, 8. Storing one less for row 1 borrows from row 2.
  const uint32_t zero_points = 0x88888f08u, stored = zero_points - 0x11111111u;
  const Tensors tensors = With(GptqTensors(), "m.qzeros", Words({2, 1}, {stored, stored}));
  const std::vector<float> matrix = *Read(kGptq, tensors, {8, 16});
  std::vector<float> first_column;
  for (size_t row = 0; row < 8; ++row) first_column.push_back(matrix[row * 16]);
  EXPECT_THAT(first_column, ElementsAre(-8, 0, -15, -8, -8, -8, -8, -8));
  const Tensors version2 = With(GptqTensors(), "m.qzeros", Words({2, 1}, {zero_points, zero_points}));
  EXPECT_EQ(*Read(Gptq{.bits = 4, .group_size = 8, .less_one = false}, version2, {8, 16}), matrix);
}

TEST_F(Unpack, GptqColumnsMayNameTheirGroups) {
  const Tensors tensors =
      With(GptqTensors(), "m.g_idx", Words({16}, {1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1}));
  EXPECT_THAT(Row(*Read(Gptq{.bits = 4, .group_size = 8, .ordered = true}, tensors, {8, 16}), 0, 16),
              ElementsAre(-16, -7, -6, -5, -4, -3, -2, -1, 0, 2, 4, 6, 8, 10, 12, 14));
}

TEST_F(Unpack, DamagedGptqIsRefusedByName) {
  const auto refused = [&](const std::string& name, const Tensor& tensor, const std::string& error) {
    ExpectRefused(Gptq{.bits = 4, .group_size = 8, .ordered = true}, With(GptqTensors(), name, tensor),
                  {8, 16}, error);
  };
  refused("m.qweight", {}, "no tensor m.qweight");
  refused("m.qweight", Words({2, 7}, std::vector<uint32_t>(14)),
          "tensor m.qweight: shape [2, 7], expected [2, 8]");
  refused("m.qweight", Floats({2, 8}, std::vector<float>(16)), "tensor m.qweight: dtype F32, expected I32");
  refused("m.g_idx", {}, "no tensor m.g_idx");
  refused("m.g_idx", Words({15}, std::vector<uint32_t>(15)), "tensor m.g_idx: shape [15], expected [16]");
  std::vector<uint32_t> order(16);
  order[9] = 2;
  refused("m.g_idx", Words({16}, order), "tensor m.g_idx: names group 2 of 2");
  order[9] = 0xffffffff;
  refused("m.g_idx", Words({16}, order), "tensor m.g_idx: names group -1 of 2");

  const auto refused_plain = [&](const std::string& name, const Tensor& tensor, const std::string& error) {
    ExpectRefused(kGptq, With(GptqTensors(), name, tensor), {8, 16}, error);
  };
  refused_plain("m.scales", {}, "no tensor m.scales");
  refused_plain("m.scales", Floats({1, 8}, std::vector<float>(8)),
                "tensor m.scales: shape [1, 8], expected [2, 8]");
  refused_plain("m.scales", Floats({2, 8}, std::vector<float>(16, std::numeric_limits<float>::infinity())),
                "tensor m.scales: holds inf, and a scale is finite");
  refused_plain("m.qzeros", {}, "no tensor m.qzeros");
  refused_plain("m.qzeros", Words({2, 2}, std::vector<uint32_t>(4)),
                "tensor m.qzeros: shape [2, 2], expected [2, 1]");
  ExpectRefused(kGptq, GptqTensors(), {8, 15}, "tensor m.qweight: its 15 columns do not fill words of 8");
  ExpectRefused(kGptq, GptqTensors(), {7, 16}, "tensor m.qweight: its 7 rows do not fill words of 8");
  ExpectRefused(Gptq{.bits = 8, .group_size = 8}, GptqTensors(), {8, 16},
                "tensor m.qweight: shape [2, 8], expected [4, 8]");
}

// --- AWQ ---

// [8, 4]: the level of a weight is its row, zero points are 8, and a scale for each group of 2 columns.
Tensors AwqTensors() {
  return {{"m.qweight", Words({4, 1}, std::vector<uint32_t>(4, 0x75316420))},
          {"m.qzeros", Words({2, 1}, {0x88888888, 0x88888888})},
          {"m.scales", Floats({2, 8}, {1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2})}};
}
constexpr Awq kAwq = {.group_size = 2};

TEST_F(Unpack, AwqWordsHoldEightRows) {
  const std::vector<float> matrix = *Read(kAwq, AwqTensors(), {8, 4});
  std::vector<float> expected;
  for (int row = 0; row < 8; ++row) {
    for (const float scale : {1, 1, 2, 2}) expected.push_back(scale * static_cast<float>(row - 8));
  }
  EXPECT_THAT(matrix, ElementsAreArray(expected));
  // Zero points lie in the same order.
  const Tensors zero_points = With(AwqTensors(), "m.qzeros", Words({2, 1}, {0x75316420, 0x75316420}));
  EXPECT_THAT(*Read(kAwq, zero_points, {8, 4}), ElementsAreArray(std::vector<float>(32, 0)));
}

TEST_F(Unpack, DamagedAwqIsRefusedByName) {
  const auto refused = [&](const std::string& name, const Tensor& tensor, const std::string& error) {
    ExpectRefused(kAwq, With(AwqTensors(), name, tensor), {8, 4}, error);
  };
  refused("m.qweight", {}, "no tensor m.qweight");
  refused("m.qweight", Words({1, 4}, std::vector<uint32_t>(4)),
          "tensor m.qweight: shape [1, 4], expected [4, 1]");
  refused("m.qzeros", {}, "no tensor m.qzeros");
  refused("m.qzeros", Bytes("U8", {2, 1}, {1, 1}), "tensor m.qzeros: dtype U8, expected I32");
  refused("m.scales", {}, "no tensor m.scales");
  refused("m.scales", Floats({4, 4}, std::vector<float>(16)),
          "tensor m.scales: shape [4, 4], expected [2, 8]");
  ExpectRefused(Awq{.group_size = 3}, AwqTensors(), {8, 4},
                "tensor m.qweight: groups of 3 do not divide 4 columns");
  ExpectRefused(kAwq, AwqTensors(), {9, 4}, "tensor m.qweight: its 9 rows do not fill words of 8");
}

// --- blocks ---

// Weights of 8 rows and 64 columns, with random levels, zero points and scales, in groups of 32.
class InBlocks : public Unpack {
 protected:
  Tensor AnyWords(const std::vector<int64_t>& shape) {
    std::vector<uint32_t> words(static_cast<size_t>(shape[0] * shape[1]));
    for (uint32_t& word : words) word = static_cast<uint32_t>(random_());
    return Words(shape, words);
  }
  // Random scales. `divisor` decides whether they are exact in float16.
  Tensor AnyScales(const std::vector<int64_t>& shape, float divisor) {
    std::vector<float> scales(static_cast<size_t>(shape[0] * shape[1]));
    for (float& scale : scales) scale = (static_cast<float>(random_() % 200) - 100) / divisor;
    return Floats(shape, scales);
  }
  Tensors AnyGptq(int bits) {
    return {{"m.qweight", AnyWords({64 * bits / 32, 8})},
            {"m.qzeros", AnyWords({2, 8 * bits / 32})},
            {"m.scales", AnyScales({2, 8}, 64)}};
  }
  void ExpectIn(const Quantization& quantization, const Tensors& tensors, int bits, bool wide) {
    ASSERT_TRUE(Read(quantization, tensors, {8, 64}).ok());
    ASSERT_TRUE(blocks_.has_value());
    EXPECT_EQ(blocks_->bits, bits);
    EXPECT_EQ(blocks_->wide, wide);
  }

  std::mt19937 random_{1};
};

TEST_F(InBlocks, CompressedTensorsHaveTheirWeights) {
  Tensors bytes = {{"m.weight", AnyWords({8, 16})}, {"m.weight_scale", AnyScales({8, 2}, 64)}};
  bytes["m.weight"].type = "I8";
  bytes["m.weight"].shape = {8, 64};
  ExpectIn(CompressedTensors{.group_size = 32}, bytes, 8, /*wide=*/false);
  Tensors words = {{"m.weight_packed", AnyWords({8, 8})},
                   {"m.weight_scale", AnyScales({8, 2}, 64)},
                   {"m.weight_shape", Of<int64_t>("I64", {2}, {8, 64})}};
  ExpectIn(CompressedTensors{.packed = true, .bits = 4, .group_size = 32}, words, 4, false);
  words["m.weight_scale"] = AnyScales({8, 2}, 3);
  ExpectIn(CompressedTensors{.packed = true, .bits = 4, .group_size = 32}, words, 4, true);
  words["m.weight_scale"] = AnyScales({8, 1}, 64);
  ExpectIn(CompressedTensors{.packed = true, .bits = 4}, words, 4, false);
  words["m.weight_packed"] = AnyWords({8, 16});
  words["m.weight_zero_point"] = AnyWords({2, 1});
  ExpectIn(CompressedTensors{.packed = true, .bits = 8, .zero_points = true}, words, 8, true);
}

TEST_F(InBlocks, GptqAndAwqHaveTheirWeights) {
  ExpectIn(Gptq{.bits = 4, .group_size = 32}, AnyGptq(4), 4, false);
  ExpectIn(Gptq{.bits = 8, .group_size = 32, .less_one = false}, AnyGptq(8), 8, true);
  const Tensors awq = {
      {"m.qweight", AnyWords({64, 1})}, {"m.qzeros", AnyWords({2, 1})}, {"m.scales", AnyScales({2, 8}, 3)}};
  ExpectIn(Awq{.group_size = 32}, awq, 4, true);
}

TEST_F(InBlocks, AreOnlyIntegersWhoseGroupsAreWholeBlocks) {
  const Gptq groups_of_32 = {.bits = 4, .group_size = 32};
  std::vector<uint32_t> order(64);
  std::fill(order.begin(), order.begin() + 32, 1);
  ExpectIn(groups_of_32, With(AnyGptq(4), "m.g_idx", Words({64}, order)), 4, false);
  std::swap(order[31], order[32]);
  const auto is_none = [&](const Quantization& quantization, const Tensors& tensors) {
    ASSERT_TRUE(Read(quantization, tensors, {8, 64}).ok());
    EXPECT_FALSE(blocks_.has_value());
  };
  is_none(groups_of_32, With(AnyGptq(4), "m.g_idx", Words({64}, order)));
  const Tensors groups_of_16 =
      With(With(AnyGptq(4), "m.qzeros", AnyWords({4, 1})), "m.scales", AnyScales({4, 8}, 64));
  is_none(Gptq{.bits = 4, .group_size = 16}, groups_of_16);
  const Tensors floats = {{"m.weight", Bytes("F8_E4M3", {8, 64}, std::vector<uint8_t>(512, 0x38))},
                          {"m.weight_scale", AnyScales({8, 1}, 64)}};
  is_none(CompressedTensors{.floats = true}, floats);
}

}  // namespace
}  // namespace outrider
