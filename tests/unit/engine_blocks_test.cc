// Weights that stay packed in blocks: the formats of GGUF files, the kernels' products, and whole models.
#include <cmath>
#include <limits>
#include <random>

#include "common/engine/cpu/product.h"
#include "common/engine/decoder/gguf_model.h"
#include "common/engine/decoder/rounded_blocks.h"
#include "tests/unit/engine_goldens.h"
#include "tests/unit/gguf_testing.h"

namespace outrider::testing {
namespace {

struct Format {
  const char* name;
  uint32_t type;  // a ggml_type
  int bits;
  bool wide;
  size_t bytes;                // of a ggml block
  int64_t columns;             // of a ggml block
  std::vector<size_t> halves;  // where a block's float16 scales are
  int scale;                   // roughly their bits, for weights of some hundredths
};

const std::vector<Format>& Formats() {
  static const auto& formats = *new std::vector<Format>{
      {"q4_0", 2, 4, false, 18, 32, {0}, 0x2000},     {"q4_1", 3, 4, false, 20, 32, {0, 2}, 0x2000},
      {"q5_0", 6, 8, false, 22, 32, {0}, 0x1c00},     {"q5_1", 7, 8, false, 24, 32, {0, 2}, 0x1c00},
      {"q8_0", 8, 8, false, 34, 32, {0}, 0x1000},     {"q4_K", 12, 4, true, 144, 256, {0, 2}, 0x0c00},
      {"q5_K", 13, 8, true, 176, 256, {0, 2}, 0x0800}};
  return formats;
}

// Any levels, with scales of either sign.
std::string RandomBlocks(const Format& format, int64_t rows, int64_t columns, std::mt19937& random) {
  std::string data(static_cast<size_t>(rows * columns / format.columns) * format.bytes, '\0');
  for (char& byte : data) byte = static_cast<char>(random());
  for (size_t block = 0; block < data.size(); block += format.bytes) {
    for (const size_t at : format.halves) {
      const auto half = static_cast<uint16_t>(format.scale + random() % 0x400 + (random() % 2 << 15));
      std::memcpy(&data[block + at], &half, sizeof(half));
    }
  }
  return data;
}

absl::StatusOr<GgufFile> Written(const GgufContent& content) {
  const std::string path = ::testing::TempDir() + "/blocks.gguf";
  content.WriteTo(path);
  absl::StatusOr<GgufFile> file = GgufFile::Open(path);
  std::remove(path.c_str());
  return file;
}

class BlockFormat : public ::testing::TestWithParam<Format> {};

INSTANTIATE_TEST_SUITE_P(Ggml, BlockFormat, ::testing::ValuesIn(Formats()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(BlockFormat, HasTheNumbersThatGgmlUnpacks) {
  std::mt19937 random(1);
  constexpr int64_t kRows = 8, kColumns = 512;
  const auto file = Written(GgufContent()
                                .Set("general.architecture", std::string("llama"))
                                .AddTensor("blk.0.attn_q.weight", GetParam().type, {kRows, kColumns},
                                           RandomBlocks(GetParam(), kRows, kColumns, random)));
  ASSERT_TRUE(file.ok()) << file.status();
  const GgufTensors tensors(*file, {.head_dim = 4});
  constexpr char kName[] = "model.layers.0.self_attn.q_proj.weight";  // whose rows are reordered
  const std::vector<int64_t> shape = {kRows, kColumns};
  const auto unpacked = tensors.Get(kName, shape);
  const auto format = tensors.BlocksOf(kName, shape);
  const auto blocks = tensors.GetBlocks(kName, shape);
  ASSERT_TRUE(unpacked.ok() && format.has_value() && blocks.ok());
  EXPECT_EQ(format->bits, GetParam().bits);
  EXPECT_EQ(format->wide, GetParam().wide);
  const std::vector<float> expected = AllElements(*unpacked);
  for (int64_t i = 0; i < kRows * kColumns; i += kBlock) {
    Block block;
    (*blocks)(i / kColumns, i % kColumns / kBlock, block);
    for (int j = 0; j < kBlock; ++j) {
      const float value = block.scale * static_cast<float>(block.levels[j]) + block.minimum;
      ASSERT_NEAR(value, expected[static_cast<size_t>(i + j)], 1e-6) << i << " + " << j;
    }
  }
}

TEST_P(BlockFormat, HasNoBlocksOfAnotherShape) {
  std::mt19937 random(1);
  const auto file = Written(GgufContent().AddTensor("output.weight", GetParam().type, {2, 256},
                                                    RandomBlocks(GetParam(), 2, 256, random)));
  ASSERT_TRUE(file.ok()) << file.status();
  const GgufTensors tensors(*file, {});
  EXPECT_TRUE(tensors.BlocksOf("lm_head.weight", {2, 256}).has_value());
  EXPECT_FALSE(tensors.BlocksOf("lm_head.weight", {1, 256}).has_value());
  EXPECT_FALSE(tensors.BlocksOf("model.norm.weight", {256}).has_value());
}

TEST(BlockFormats, AreNotThoseWithSmallerBlocks) {
  EXPECT_FALSE(GgufTensors::HasBlocks(14)) << "q6_K";
  EXPECT_FALSE(GgufTensors::HasBlocks(GgufFile::kBFloat16));
}

// A matrix of random levels, whose scales and minimums are exact in float16 unless they are wide.
BlockReader RandomMatrix(int bits, bool wide, uint32_t seed) {
  return [=](int64_t row, int64_t block, Block& to) {
    std::mt19937 random(seed + static_cast<uint32_t>(row * 1000 + block));
    const auto scale = [&] {
      const float value = (static_cast<float>(random() % 200) - 100) / 64;
      return wide ? value / 3 : value;
    };
    to.scale = scale();
    to.minimum = scale();
    for (int8_t& level : to.levels) {
      level = static_cast<int8_t>(bits == 4 ? random() % 16 : random());
    }
  };
}

TEST(OperandBlocks, AreRoundedToSixteenBitsAndNeverHideANumberThatIsNotFinite) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> sizes = {1, 0, 3e-39f, 1e-30f, 65535, 3e38f, kInfinity, -kInfinity, kNaN};
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> x;
  for (const float size : sizes) {
    for (int i = 0; i < kBlock; ++i) x.push_back(i == 5 ? size : normal(random) * std::min(size, 1e37f) / 8);
  }
  int rounding = 0;
  for (const std::string& name : RunnableKernels()) {
    const Kernels& kernels = *FindKernels(name.c_str());
    if (!kernels.rounds_blocks) continue;
    ++rounding;
    std::vector<int16_t> levels(x.size());
    std::vector<float> scales(sizes.size()), sums(sizes.size());
    kernels.prepare_blocks(x.data(), static_cast<int64_t>(sizes.size()),
                           {levels.data(), scales.data(), sums.data()});
    for (size_t block = 0; block < sizes.size(); ++block) {
      EXPECT_EQ(std::isfinite(scales[block]), std::isfinite(sizes[block])) << name << ", " << sizes[block];
      if (!std::isfinite(sizes[block])) continue;
      double sum = 0;
      for (size_t i = block * kBlock; i < (block + 1) * kBlock; ++i) {
        const double rounded = double{scales[block]} * levels[i];
        EXPECT_NEAR(rounded, x[i], std::max(sizes[block] / 32768, 1e-33f)) << name << ", element " << i;
        sum += rounded;
      }
      EXPECT_FLOAT_EQ(sums[block], static_cast<float>(sum)) << name;
    }
  }
  EXPECT_GE(rounding, 1) << "the portable kernels";
}

TensorView ViewOf(const std::vector<float>& values, int64_t columns) {
  const int64_t rows = static_cast<int64_t>(values.size()) / columns;
  return {ElementType::kFloat32, {rows, columns}, reinterpret_cast<const char*>(values.data())};
}

TEST(RoundedBlocks, AreWithinHalfALevelAndKeepEightBitsAsTheyAre) {
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  std::vector<float> values;
  for (int i = 0; i < kBlock; ++i) values.push_back(normal(random));
  for (int i = 0; i < kBlock; ++i) values.push_back(static_cast<float>(i == 3 ? -127 : i) / 64);
  values.resize(4 * kBlock);
  values[3 * kBlock + 7] = std::numeric_limits<float>::infinity();
  const BlockReader reader = RoundedBlocks(ViewOf(values, 2 * kBlock));
  for (int block = 0; block < 3; ++block) {
    Block read;
    reader(block / 2, block % 2, read);
    EXPECT_EQ(read.minimum, 0);
    for (int i = 0; i < kBlock; ++i) {
      const float value = read.scale * static_cast<float>(read.levels[i]);
      EXPECT_NEAR(value, values[static_cast<size_t>(block * kBlock + i)], block == 0 ? .51f * read.scale : 0);
    }
  }
  Block read;
  reader(1, 1, read);
  EXPECT_TRUE(std::isinf(read.scale));
}

using Case = std::tuple<std::string, int, bool>;  // kernels, bits, wide

class BlockProduct : public ::testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(All, BlockProduct,
                         ::testing::Combine(::testing::ValuesIn(RunnableKernels()), ::testing::Values(4, 8),
                                            ::testing::Bool()));

TEST_P(BlockProduct, IsThatOfTheUnpackedMatrixAndARowsBitsAreItsOwn) {
  const auto& [name, bits, wide] = GetParam();
  const Kernels& kernels = *FindKernels(name.c_str());
  constexpr int kN = 70, kK = 96, kMostRows = 13;
  MatrixSource source;
  source.k = kK;
  source.blocks = {RandomMatrix(bits, wide, 5)};
  for (int row = 0; row < kN; ++row) source.rows.push_back({0, row});
  const Storage storage = bits == 4 ? (wide ? Storage::kWideBlocks4 : Storage::kBlocks4)
                                    : (wide ? Storage::kWideBlocks8 : Storage::kBlocks8);
  const Buffer buffer = *Buffer::Allocate(PackedBytes(kN, kK, storage), "weights");
  ThreadPool pool(2);
  Pack(source, storage, pool, buffer.data());
  const PackedMatrix matrix{buffer.data(), kN, kK, storage};

  std::vector<std::vector<float>> weights(kN, std::vector<float>(kK));
  for (int row = 0; row < kN; ++row) {
    for (int block = 0; block < kK / kBlock; ++block) {
      Block read;
      source.blocks[0](row, block, read);
      for (int i = 0; i < kBlock; ++i) {
        weights[static_cast<size_t>(row)][static_cast<size_t>(block * kBlock + i)] =
            read.scale * static_cast<float>(read.levels[i]) + read.minimum;
      }
    }
    std::vector<float> back(kK);
    ReadRow(matrix, row, back.data());
    EXPECT_EQ(back, weights[static_cast<size_t>(row)]);
  }

  const Multiplier multiplier(kernels, pool, Storage::kBFloat16);
  std::mt19937 random(2);
  std::vector<float> x(kMostRows * kK);
  // Numbers that bfloat16 holds exactly.
  for (float& value : x) value = (static_cast<float>(random() % 255) - 127) / 32;
  std::vector<float> alone;
  for (const int rows : {1, 2, 5, 6, 7, kMostRows}) {
    std::vector<char> operands(static_cast<size_t>(rows) * kK * multiplier.operand_bytes());
    multiplier.ToOperands(x.data(), rows * kK, operands.data());
    std::vector<float> y(static_cast<size_t>(rows) * kN);
    const Product product = {matrix, Epilogue::kStore};
    multiplier.Multiply(product, product, rows, operands.data(), reinterpret_cast<char*>(y.data()), kN);
    for (int row = 0; row < rows; ++row) {
      for (int column = 0; column < kN; ++column) {
        double sum = 0, magnitude = 0;
        for (int k = 0; k < kK; ++k) {
          const double term = static_cast<double>(x[static_cast<size_t>(row * kK + k)]) *
                              weights[static_cast<size_t>(column)][static_cast<size_t>(k)];
          sum += term;
          magnitude += std::abs(term);
        }
        EXPECT_NEAR(y[static_cast<size_t>(row * kN + column)], sum, 1e-5 * magnitude);
      }
    }
    const std::vector<float> first(y.begin(), y.begin() + kN);
    if (alone.empty()) alone = first;
    EXPECT_EQ(first, alone) << rows << " rows";
  }
}

// A small Llama whose matrices are of this format.
std::string WriteModel(const Format& format) {
  std::mt19937 random(7);
  constexpr int64_t kHidden = 256, kInner = 512, kVocab = 70;
  GgufContent content;
  const auto set = [&](const char* name, auto value) { content.Set(absl::StrCat("llama.", name), value); };
  content.Set("general.architecture", std::string("llama"));
  set("block_count", uint32_t{2});
  set("context_length", uint32_t{128});
  set("embedding_length", static_cast<uint32_t>(kHidden));
  set("feed_forward_length", static_cast<uint32_t>(kInner));
  set("attention.head_count", uint32_t{4});
  set("attention.head_count_kv", uint32_t{2});
  set("attention.layer_norm_rms_epsilon", 1e-5f);
  const auto add = [&](const std::string& name, int64_t rows, int64_t columns) {
    content.AddTensor(name, format.type, {rows, columns}, RandomBlocks(format, rows, columns, random));
  };
  const auto add_norm = [&](const std::string& name) {
    content.AddTensor(name, {kHidden}, std::vector<float>(kHidden, 1.0f));
  };
  add("token_embd.weight", kVocab, kHidden);
  for (int layer = 0; layer < 2; ++layer) {
    const std::string name = absl::StrCat("blk.", layer, ".");
    add_norm(name + "attn_norm.weight");
    add(name + "attn_q.weight", kHidden, kHidden);
    add(name + "attn_k.weight", kHidden / 2, kHidden);
    add(name + "attn_v.weight", kHidden / 2, kHidden);
    add(name + "attn_output.weight", kHidden, kHidden);
    add_norm(name + "ffn_norm.weight");
    add(name + "ffn_gate.weight", kInner, kHidden);
    add(name + "ffn_up.weight", kInner, kHidden);
    add(name + "ffn_down.weight", kHidden, kInner);
  }
  add_norm("output_norm.weight");
  const std::string path = ::testing::TempDir() + "/blocks-" + format.name + ".gguf";
  content.WriteTo(path);
  return path;
}

TEST(PackedModel, RoundsTheMatricesOfHeads) {
  RunnerOptions options = Options("");
  options.model_dir = WriteModel(Formats()[0]);
  options.dtype = "auto";
  const auto packed = LoadOrDie(options);
  ASSERT_NE(packed, nullptr);
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (const int64_t columns : {36, 96}) {
    std::vector<float> weights(static_cast<size_t>(10 * columns)), x(static_cast<size_t>(columns)), y(10);
    for (float& weight : weights) weight = normal(random);
    for (float& value : x) value = normal(random);
    const auto matrix = packed->model().LoadMatrix(ViewOf(weights, columns));
    ASSERT_TRUE(matrix.ok()) << matrix.status();
    ASSERT_TRUE((*matrix)->Multiply(x, absl::MakeSpan(y)).ok());
    double error = 0, size = 0;
    for (size_t row = 0; row < 10; ++row) {
      double sum = 0;
      for (size_t i = 0; i < x.size(); ++i) sum += double{weights[row * x.size() + i]} * x[i];
      error += std::pow(y[row] - sum, 2);
      size += sum * sum;
    }
    EXPECT_LT(error, 3e-4 * size) << columns;  // bfloat16 and 8 bits alike
    EXPECT_GT(error, columns == 96 ? 1e-7 * size : 0) << "no rounding";
  }
  std::remove(options.model_dir.c_str());
}

double Spread(const Logits& logits) {
  const Logits zeros(logits.size(), std::vector<float>(logits[0].size()));
  return RootMeanSquareDifference(logits, zeros);
}

TEST_P(BlockFormat, AModelHasTheLogitsOfItsUnpackedWeights) {
  RunnerOptions options = Options("");
  options.model_dir = WriteModel(GetParam());
  const std::vector<TokenId> tokens = SomeTokens(24, 70);
  const auto exact = LoadOrDie(options);  // in float32
  ASSERT_NE(exact, nullptr);
  const Logits expected = AllLogits(*exact, tokens);
  options.dtype = "auto";
  for (const std::string& kernels : RunnableKernels()) {
    options.kernels = kernels;
    const auto packed = LoadOrDie(options);
    ASSERT_NE(packed, nullptr);
    EXPECT_EQ(packed->dtype(), "packed");
    EXPECT_LT(packed->weight_bytes() * 3, exact->weight_bytes());
    const Logits logits = AllLogits(*packed, tokens);
    // Keys, values and some kernels' operands are rounded to bfloat16's eight bits.
    EXPECT_LT(RootMeanSquareDifference(logits, expected), 2e-2 * Spread(expected)) << kernels;
    EXPECT_EQ(AllLogits(*packed, tokens, 1), logits) << kernels << ", row by row";
  }
  std::remove(options.model_dir.c_str());
}

}  // namespace
}  // namespace outrider::testing
