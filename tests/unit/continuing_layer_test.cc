// A layer that continues another model's hidden states (DecoderConfig::outer_norms, first_position) against
// its definition, computed in float64.
#include <cmath>
#include <limits>

#include "absl/strings/match.h"
#include "common/engine/backend.h"
#include "common/engine/decoder/decoder_config.h"
#include "common/engine/self_test.h"
#include "tests/unit/hidden_testing.h"

namespace outrider::testing {
namespace {

using Row = std::vector<double>;

constexpr int kHidden = 32, kHeads = 4, kKvHeads = 2, kDim = 8, kInner = 48, kBlockSize = 4;

// `attended`: the columns that the first layer's attention reads in place of the residual stream; 0: none.
DecoderConfig SpecOf(int layers, int attended) {
  return {.vocab_size = 21,
          .hidden_size = kHidden,
          .intermediate_size = kInner,
          .layers = layers,
          .heads = kHeads,
          .kv_heads = kKvHeads,
          .head_dim = kDim,
          .max_position_embeddings = 64,
          .outer_norms = false,
          .first_position = 1,
          .attention_input = attended};
}

// Weights of layers alone. Refuses those that no such file has: norms at the ends, embedding and head.
class LayersAlone final : public TensorSource {
 public:
  using TensorSource::Get;
  absl::StatusOr<TensorView> Get(absl::string_view name, absl::Span<const int64_t> shape) const override {
    if (!absl::StartsWith(name, "model.layers.") || name == "model.layers.0.input_layernorm.weight") {
      return absl::InvalidArgumentError(absl::StrCat(name, " is missing"));
    }
    return weights_.Get(name, shape);
  }

 private:
  const MadeUpWeights weights_;
};

// The definition: Touvron et al. 2023's decoder without the two norms, row by row.
class Reference {
 public:
  Reference(const TensorSource& weights, const DecoderConfig& spec) : weights_(weights), spec_(spec) {}

  // Appends a row at the next position, from `first_position` on, and returns its residual stream at the end.
  Row Append(absl::Span<const float> embedding) {
    Row x(embedding.begin(), embedding.begin() + kHidden);
    const Row given(embedding.begin() + kHidden, embedding.end());
    const int position = spec_.first_position + rows_++;
    keys_.resize(static_cast<size_t>(spec_.layers));
    values_.resize(static_cast<size_t>(spec_.layers));
    for (int layer = 0; layer < spec_.layers; ++layer) {
      const std::string name = absl::StrCat("model.layers.", layer, ".");
      Add(x, Attend(layer, name,
                    layer == 0 ? (given.empty() ? x : given) : Normalized(x, name + "input_layernorm.weight"),
                    position));
      const Row inner = Normalized(x, name + "post_attention_layernorm.weight");
      Row gate = Product(name + "mlp.gate_proj.weight", kInner, inner);
      const Row up = Product(name + "mlp.up_proj.weight", kInner, inner);
      for (size_t i = 0; i < gate.size(); ++i) gate[i] *= up[i] / (1 + std::exp(-gate[i]));
      Add(x, Product(name + "mlp.down_proj.weight", kHidden, gate));
    }
    return x;
  }

 private:
  static void Add(Row& x, const Row& y) {
    for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }
  const float* Read(const std::string& name, std::vector<int64_t> shape) const {
    return reinterpret_cast<const float*>(weights_.Get(name, shape)->data);
  }
  Row Product(const std::string& name, int n, const Row& x) const {
    const float* weight = Read(name, {n, static_cast<int64_t>(x.size())});
    Row y(static_cast<size_t>(n));
    for (double& sum : y) {
      for (const double value : x) sum += *weight++ * value;
    }
    return y;
  }
  Row Normalized(Row x, const std::string& name) const {
    const float* weight = Read(name, {kHidden});
    double squares = 0;
    for (const double value : x) squares += value * value;
    const double scale = 1 / std::sqrt(squares / kHidden + spec_.rms_norm_eps);
    for (double& value : x) value *= scale * *weight++;
    return x;
  }
  // Rotates the pairs (x[i], x[i + dim / 2]) of each head.
  void Rotate(Row& x, int position) const {
    const std::vector<float> frequencies = RopeInverseFrequencies(spec_);
    for (size_t head = 0; head < x.size(); head += kDim) {
      for (size_t i = 0; i < kDim / 2; ++i) {
        const double angle = position * static_cast<double>(frequencies[i]);
        double &a = x[head + i], &b = x[head + i + kDim / 2];
        const double rotated = a * std::cos(angle) - b * std::sin(angle);
        b = b * std::cos(angle) + a * std::sin(angle);
        a = rotated;
      }
    }
  }
  Row Attend(int layer, const std::string& name, const Row& x, int position) {
    std::vector<Row>&keys = keys_[static_cast<size_t>(layer)], &values = values_[static_cast<size_t>(layer)];
    Row queries = Product(name + "self_attn.q_proj.weight", kHeads * kDim, x);
    keys.push_back(Product(name + "self_attn.k_proj.weight", kKvHeads * kDim, x));
    values.push_back(Product(name + "self_attn.v_proj.weight", kKvHeads * kDim, x));
    Rotate(queries, position);
    Rotate(keys.back(), position);
    Row attended(kHeads * kDim);
    for (size_t head = 0; head < kHeads; ++head) {
      const size_t query = head * kDim, key = head / (kHeads / kKvHeads) * kDim;
      Row weights;
      double sum = 0;
      for (const Row& of : keys) {
        double score = 0;
        for (size_t i = 0; i < kDim; ++i) score += queries[query + i] * of[key + i];
        sum += weights.emplace_back(std::exp(score / std::sqrt(kDim)));
      }
      for (size_t p = 0; p < values.size(); ++p) {
        for (size_t i = 0; i < kDim; ++i) attended[query + i] += weights[p] / sum * values[p][key + i];
      }
    }
    return Product(name + "self_attn.o_proj.weight", kHidden, attended);
  }

  const TensorSource& weights_;
  const DecoderConfig spec_;
  int rows_ = 0;
  std::vector<std::vector<Row>> keys_, values_;  // of each layer, by position
};

class ContinuingLayer : public ::testing::TestWithParam<std::tuple<EngineUnderTest, int, int>> {
 protected:
  std::unique_ptr<Model> Load(const DecoderConfig& spec, const TensorSource& weights) {
    RunnerOptions options = std::get<0>(GetParam()).Options();
    options.block_size = kBlockSize;
    const absl::StatusOr<std::unique_ptr<Backend>> backend = BackendFor(options.engine, options.device);
    auto model = (*backend)->Load(spec, weights, options, threads_);
    EXPECT_TRUE(model.ok()) << model.status();
    return *std::move(model);
  }

  // Random embeddings, one for each row.
  std::vector<float> SomeRows(int rows, unsigned seed) const {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> numbers(static_cast<size_t>(rows) * columns());
    for (float& number : numbers) number = normal(random);
    return numbers;
  }
  // Rows that all want their hidden states.
  SequenceRows Rows(absl::Span<const TokenId> ids, int slot, absl::Span<const BlockId> blocks,
                    absl::Span<const float> embeddings) const {
    const int count = static_cast<int>(embeddings.size() / columns());
    return {.tokens = ids.first(static_cast<size_t>(count)),
            .position = slot,
            .blocks = blocks,
            .hidden_rows = count,
            .embeddings = embeddings};
  }
  void ExpectRow(const Computed& found, size_t row, const Row& stream) const {
    EXPECT_LE(Difference(found.hidden[row], Rounded(stream)), tolerance()) << "row " << row;
  }
  static std::vector<float> Rounded(const Row& row) { return {row.begin(), row.end()}; }
  // Fills the slots of these blocks with NaN, except for those before the first position.
  void Spoil(const std::vector<BlockId>& blocks) {
    const int slots = kBlockSize * static_cast<int>(blocks.size()) - spec_.first_position;
    const std::vector<float> rows(static_cast<size_t>(slots) * columns(),
                                  std::numeric_limits<float>::quiet_NaN());
    const SequenceRows batch = Rows(ids_, spec_.first_position, blocks, rows);
    ASSERT_TRUE(model_->Forward({&batch, 1}, {}).ok());
  }
  size_t columns() const { return static_cast<size_t>(spec_.embedding_columns()); }
  // The embeddings of `count` rows from row `r` on.
  absl::Span<const float> PartOf(const std::vector<float>& rows, size_t r, size_t count = 1) const {
    return absl::MakeConstSpan(rows).subspan(r * columns(), count * columns());
  }
  double tolerance() const { return std::get<0>(GetParam()).tolerance_of_dtype; }

  const DecoderConfig spec_ = SpecOf(std::get<1>(GetParam()), std::get<2>(GetParam()));
  const LayersAlone weights_;
  const std::vector<TokenId> ids_ = std::vector<TokenId>(64, 3);
  ThreadPool threads_{1};
  std::unique_ptr<Model> model_ = Load(spec_, weights_);
};

INSTANTIATE_TEST_SUITE_P(All, ContinuingLayer,
                         ::testing::Combine(::testing::ValuesIn(EnginesUnderTest()), ::testing::Values(1, 2),
                                            ::testing::Values(0, 2 * kHidden, 6)),
                         [](const auto& info) {
                           return absl::StrCat(std::get<0>(info.param).name(), "_", std::get<1>(info.param),
                                               "_", std::get<2>(info.param));
                         });

// A layer that reads its residual stream, since no other could have the outer norms.
class ReadingItsStream : public ContinuingLayer {};

INSTANTIATE_TEST_SUITE_P(All, ReadingItsStream,
                         ::testing::Combine(::testing::ValuesIn(EnginesUnderTest()), ::testing::Values(1, 2),
                                            ::testing::Values(0)),
                         [](const auto& info) {
                           return absl::StrCat(std::get<0>(info.param).name(), "_", std::get<1>(info.param));
                         });

// The slots before the first position may hold anything.
TEST_P(ContinuingLayer, ComputesItsDefinition) {
  const std::vector<BlockId> blocks = {5, 2, 9, 4};
  Spoil({7, 5, 2, 9, 4});
  const std::vector<float> rows = SomeRows(14, 1);
  Reference reference(weights_, spec_);
  std::vector<Row> expected;
  for (size_t r = 0; r < 14; ++r) {
    expected.push_back(reference.Append(PartOf(rows, r)));
  }
  for (const size_t chunk : {14, 1, 5}) {
    Computed found;
    for (size_t r = 0; r < 14; r += chunk) {
      const SequenceRows part = Rows(ids_, static_cast<int>(1 + r), blocks, PartOf(rows, r, chunk));
      found.Add(Copied(model_->Forward({&part, 1}, {})));
    }
    ASSERT_EQ(found.hidden.size(), 14u);
    for (size_t r = 0; r < 14; ++r) ExpectRow(found, r, expected[r]);
  }
}

// A tree: the root in slot 1, its three children, and a child of the second. A chain is in the same batch.
TEST_P(ContinuingLayer, ComputesTreesToo) {
  const std::vector<BlockId> blocks = {5, 2}, others = {9, 4};
  Spoil({7, 5, 2, 9, 4});
  const std::vector<float> rows = SomeRows(5, 2), beside = SomeRows(5, 3);
  const std::vector<int> parents = {-1, -1, -1, 1};
  SequenceRows tree = Rows(ids_, 1, blocks, rows);
  tree.tree_begin = 2;
  tree.parents = parents;
  const SequenceRows batch[] = {tree, Rows(ids_, 1, others, beside)};
  const Computed found = Copied(model_->Forward(batch, {}));
  ASSERT_EQ(found.hidden.size(), 10u);
  const std::vector<std::vector<size_t>> paths = {{0}, {0, 1}, {0, 2}, {0, 3}, {0, 2, 4}};
  for (size_t r = 0; r < paths.size(); ++r) {
    Reference reference(weights_, spec_);
    Row stream;
    for (const size_t row : paths[r]) {
      stream = reference.Append(PartOf(rows, row));
    }
    ExpectRow(found, r, stream);
  }
  Reference reference(weights_, spec_);
  for (size_t r = 0; r < 5; ++r) {
    const Row stream = reference.Append(PartOf(beside, r));
    ExpectRow(found, 5 + r, stream);
  }
}

// The negative control of the laws above.
TEST_P(ReadingItsStream, WithTheOuterNormsItComputesSomethingElse) {
  const std::vector<BlockId> blocks = {0, 1};
  const std::vector<float> rows = SomeRows(6, 4);
  DecoderConfig with_norms = spec_;
  with_norms.outer_norms = true;
  const MadeUpWeights all;
  model_ = Load(with_norms, all);
  const SequenceRows batch = Rows(ids_, 1, blocks, rows);
  const Computed found = Copied(model_->Forward({&batch, 1}, {}));
  Reference reference(all, spec_);
  for (size_t r = 0; r < 6; ++r) {
    const Row stream = reference.Append(PartOf(rows, r));
    EXPECT_GT(Difference(found.hidden[r], Rounded(stream)), 3 * tolerance()) << "row " << r;
  }
}

}  // namespace
}  // namespace outrider::testing
