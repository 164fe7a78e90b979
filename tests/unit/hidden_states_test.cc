// Hidden states as outputs and inputs of passes, passes that end early, and matrices. In any batch, a row has
// the same bits on the CPU, and the same values up to rounding on libtorch.
#include <filesystem>
#include <fstream>
#include <numeric>
#include <tuple>

#include "bench/temporary_folder.h"
#include "common/engine/runner_options.h"
#include "tests/unit/hidden_testing.h"

namespace outrider::testing {
namespace {

constexpr int kLong = 40;  // longer than a sliding window

struct Case {
  EngineUnderTest engine;
  std::string model;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const EngineUnderTest& engine : EnginesUnderTest()) {
    for (const std::string& model : engine.models) cases.push_back({engine, model});
  }
  return cases;
}

class HiddenStates : public ::testing::TestWithParam<Case> {
 protected:
  RunnerOptions Options() const {
    RunnerOptions options = GetParam().engine.Options();
    options.model_dir = DataDir(GetParam().model);
    options.block_size = 4;
    return options;
  }
  std::unique_ptr<Runner> Load() const { return LoadOrDie(Options()); }
  // Loads the model with its first layers only.
  std::unique_ptr<Runner> LoadCut(int layers) const {
    const TemporaryFolder folder;
    std::filesystem::copy(DataDir(GetParam().model), folder.path());
    nlohmann::json config = ReadJson(DataDir(GetParam().model) + "/config.json");
    config["num_hidden_layers"] = layers;
    if (config.contains("layer_types")) {
      nlohmann::json& types = config["layer_types"];
      types.erase(types.begin() + layers, types.end());
    }
    std::ofstream(folder.path() + "/config.json") << config;
    RunnerOptions options = Options();
    options.model_dir = folder.path();
    return LoadOrDie(options);
  }

  int Differing(const Logits& found, const Logits& expected) const {
    return testing::Differing(GetParam().engine, found, expected);
  }
  void ExpectSame(const Computed& found, const Computed& expected, const std::string& what) const {
    EXPECT_EQ(Differing(found.logits, expected.logits), 0) << what;
    EXPECT_EQ(Differing(found.hidden, expected.hidden), 0) << what;
  }
  // The logits of rows of hidden states, from the columns that the head multiplies.
  static Logits Project(Runner& runner, const Logits& hidden) {
    std::vector<float> rows;
    for (const std::vector<float>& row : hidden) {
      rows.insert(rows.end(), row.begin(), row.begin() + runner.config().decoder.hidden_size);
    }
    return Copied(runner.model().Project(rows)).logits;
  }
  static std::vector<int> AllTaps(const Runner& runner) {
    std::vector<int> taps(static_cast<size_t>(runner.config().decoder.layers));
    std::iota(taps.rbegin(), taps.rend(), 1);
    return taps;
  }
};

INSTANTIATE_TEST_SUITE_P(All, HiddenStates, ::testing::ValuesIn(Cases()), [](const auto& info) {
  std::string name = info.param.model + "_" + info.param.engine.name();
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST_P(HiddenStates, OfARowAreWhatItsLogitsAreProjectedFrom) {
  const auto runner = Load();
  ASSERT_TRUE(runner->model().has_hidden_states());
  const Chain chain = SomeChain(*runner, kLong, 1, 0), second = SomeChain(*runner, 4, 2, 10),
              third = SomeChain(*runner, 6, 4, 30), fourth = SomeChain(*runner, 7, 5, 40);
  const TreeSequence tree = SomeTree(*runner, 20, 12, 3, 3, 20);
  SequenceRows nodes = tree.Rows(0, tree.slots());
  nodes.logit_rows = 9;
  nodes.hidden_rows = 12;
  const SequenceRows batch[] = {chain.Rows(0, kLong, 3, 5), second.Rows(0, 4, 2, 0), nodes,
                                third.Rows(0, 6, 0, 2), fourth.Rows(0, 7, 6, 4)};
  const Computed found = Compute(*runner, batch);
  ASSERT_EQ(found.logits.size(), 3u + 2 + 9 + 0 + 6);
  ASSERT_EQ(found.hidden.size(), 5u + 0 + 12 + 2 + 4);
  const Logits projected = Project(*runner, found.hidden);
  // The ranges of logits and hidden states of the sequences whose last rows have both.
  for (const auto& [logits, hidden, rows] : {std::tuple(0, 2, 3), {5, 8, 9}, {16, 19, 4}}) {
    const Logits expected(found.logits.begin() + logits, found.logits.begin() + logits + rows);
    EXPECT_EQ(Differing({projected.begin() + hidden, projected.begin() + hidden + rows}, expected), 0);
  }
  EXPECT_EQ(Differing({projected[1]}, {found.logits[0]}), 1) << "another row";
}

TEST_P(HiddenStates, DependOnTheirPrefixAlone) {
  const auto runner = Load();
  const std::vector<int> taps = AllTaps(*runner);
  const PassOptions pass = {.taps = taps};
  const Chain chain = SomeChain(*runner, kLong, 1, 0);
  const Computed whole = ComputeChunks(*runner, chain, 0, kLong, pass);
  ASSERT_EQ(whole.hidden.size(), size_t{kLong});
  EXPECT_EQ(whole.hidden[0].size(),
            (1 + taps.size()) * static_cast<size_t>(runner->config().decoder.hidden_size));
  for (const size_t chunk : {1, 7}) {
    ExpectSame(ComputeChunks(*runner, chain, 0, chunk, pass), whole, absl::StrCat("chunks of ", chunk));
  }
  // Beside other sequences, with fewer rows, and with rows that have no logits.
  const Chain before = SomeChain(*runner, 30, 2, 20), after = SomeChain(*runner, 9, 3, 40);
  for (const auto& [logits, hidden] : {std::pair(3, 10), {0, 4}, {8, 2}}) {
    const SequenceRows batch[] = {before.Rows(0, 30, 1, 2), chain.Rows(25, kLong, logits, hidden),
                                  after.Rows(0, 9, 2, 0)};
    Computed found = Compute(*runner, batch, pass);
    found.logits = {found.logits.begin() + 1, found.logits.end() - 2};
    found.hidden = {found.hidden.begin() + 2, found.hidden.end()};
    ExpectSame(found,
               {LastOf(whole.logits, static_cast<size_t>(logits)),
                LastOf(whole.hidden, static_cast<size_t>(hidden))},
               absl::StrCat(hidden, " rows beside others"));
  }
  Chain changed = chain;
  changed.tokens[kLong - 5] = (changed.tokens[kLong - 5] + 1) % runner->config().decoder.vocab_size;
  EXPECT_EQ(Differing(ComputeChunks(*runner, changed, 0, kLong, pass).hidden, whole.hidden), 5);
}

TEST_P(HiddenStates, OfANodeAreThoseOfItsPathAsAChain) {
  const auto runner = Load();
  const std::vector<int> taps = AllTaps(*runner);
  const PassOptions pass = {.taps = taps};
  const TreeSequence tree = SomeTree(*runner, 21, 14, 3, 7);
  FeedPrompt(*runner, tree);
  Computed found;
  for (int begin = tree.prompt() - 1; begin < tree.slots(); begin += 6) {
    SequenceRows rows = tree.Rows(begin, std::min(begin + 6, tree.slots()));
    rows.hidden_rows = rows.logit_rows;
    found.Add(Compute(*runner, {&rows, 1}, pass));
  }
  Computed expected;
  for (int node = -1; node < tree.nodes(); ++node) {
    Chain chain = SomeChain(*runner, tree.slots(), 0, 20);
    chain.tokens = tree.Chain(tree.PathTo(node));
    const SequenceRows rows = chain.Rows(0, chain.tokens.size(), 1, 1);
    expected.Add(Compute(*runner, {&rows, 1}, pass));
  }
  ExpectSame(found, expected, "nodes");
}

TEST_P(HiddenStates, AndLogitsOfAnEarlyExitAreThoseOfAModelOfFewerLayers) {
  const auto runner = Load();
  const Chain chain = SomeChain(*runner, kLong, 1, 0);
  const Computed whole = ComputeChunks(*runner, chain, 0, kLong);
  for (int layers = 1; layers <= runner->config().decoder.layers; ++layers) {
    const std::vector<int> taps = {layers};
    const auto cut = LoadCut(layers);
    const Computed expected = ComputeChunks(*cut, chain, 0, kLong, {.taps = taps});
    for (const size_t chunk : {1, 5, kLong - 20}) {
      // The whole model has stored keys and values in these slots before.
      const Computed found = ComputeChunks(*runner, chain, 20, chunk, {.layers = layers, .taps = taps});
      ExpectSame(found, {LastOf(expected.logits, kLong - 20), LastOf(expected.hidden, kLong - 20)},
                 absl::StrCat(layers, " layers in chunks of ", chunk));
      const Logits all_layers = LastOf(whole.logits, kLong - 20);
      EXPECT_EQ(Differing(found.logits, all_layers),
                layers < runner->config().decoder.layers ? kLong - 20 : 0);
    }
    // A whole pass over the same slots is as if there had been none before.
    ExpectSame(ComputeChunks(*runner, chain, 20, kLong),
               {LastOf(whole.logits, kLong - 20), LastOf(whole.hidden, kLong - 20)}, "after an early exit");
  }
}

TEST_P(HiddenStates, OfATapAreTheResidualStreamAfterItsLayers) {
  RunnerOptions options = Options();
  std::vector<std::vector<float>> residual;  // after each layer
  options.observe = [&](const StageOutput& output) {
    if (output.name == kAfterMlp) residual.emplace_back(output.values.begin(), output.values.end());
  };
  const auto runner = LoadOrDie(options);
  const std::vector<int> taps = AllTaps(*runner);
  const size_t hidden = static_cast<size_t>(runner->config().decoder.hidden_size);
  const Chain chain = SomeChain(*runner, kLong, 1, 0);
  const SequenceRows rows = chain.Rows(0, kLong, 1, kLong);
  const Computed found = Compute(*runner, {&rows, 1}, {.taps = taps});
  ASSERT_EQ(residual.size(), taps.size());
  for (size_t t = 0; t < taps.size(); ++t) {
    const std::vector<float>& expected = residual[static_cast<size_t>(taps[t]) - 1];
    ASSERT_EQ(expected.size(), kLong * hidden);
    for (size_t r = 0; r < kLong; ++r) {
      EXPECT_TRUE(std::equal(expected.begin() + static_cast<std::ptrdiff_t>(r * hidden),
                             expected.begin() + static_cast<std::ptrdiff_t>((r + 1) * hidden),
                             found.hidden[r].begin() + static_cast<std::ptrdiff_t>((1 + t) * hidden)))
          << "row " << r << " after " << taps[t] << " layers";
    }
  }
}

TEST_P(HiddenStates, EmbeddingsTakeThePlaceOfTokens) {
  const auto runner = Load();
  const size_t hidden = static_cast<size_t>(runner->config().decoder.hidden_size);
  Chain chain = SomeChain(*runner, kLong, 1, 0), other = SomeChain(*runner, 12, 2, 20);
  const Chain untouched = SomeChain(*runner, 8, 3, 30);
  const absl::Span<const TokenId> tokens = chain.tokens;
  std::vector<float> last(4 * hidden), all(12 * hidden);
  ASSERT_TRUE(runner->model().ReadEmbeddings(tokens.last(4), absl::MakeSpan(last)).ok());
  ASSERT_TRUE(runner->model().ReadEmbeddings(other.tokens, absl::MakeSpan(all)).ok());
  const auto batch = [&](size_t begin) {
    return std::vector<SequenceRows>{chain.Rows(begin, kLong, 5, 9), other.Rows(0, 12, 12, 12),
                                     untouched.Rows(0, 8, 2, 2)};
  };
  const Computed expected = Compute(*runner, batch(0));
  std::fill(chain.tokens.end() - 4, chain.tokens.end(), 5);
  std::fill(other.tokens.begin(), other.tokens.end(), 6);
  for (const size_t begin : {0, kLong - 9}) {
    std::vector<SequenceRows> rows = batch(begin);
    rows[0].embeddings = last;
    rows[1].embeddings = all;
    ExpectSame(Compute(*runner, rows), expected, absl::StrCat("from ", begin, " on"));
  }
  EXPECT_EQ(Differing(Compute(*runner, batch(0)).logits, expected.logits), 4 + 12);
}

class EngineMatrix : public ::testing::TestWithParam<EngineUnderTest> {};

INSTANTIATE_TEST_SUITE_P(All, EngineMatrix, ::testing::ValuesIn(EnginesUnderTest()),
                         [](const auto& info) { return info.param.name(); });

TEST_P(EngineMatrix, MultipliesRows) {
  const auto runner = LoadOrDie(GetParam().Options());
  for (const auto& [n, k] : {std::pair<size_t, size_t>(203, 36), {5, 96}, {64, 128}}) {
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    std::vector<float> weights(n * k), x(40 * k);
    for (float& weight : weights) weight = normal(random);
    for (float& value : x) value = normal(random);
    const TensorView view = {ElementType::kFloat32,
                             {static_cast<int64_t>(n), static_cast<int64_t>(k)},
                             reinterpret_cast<const char*>(weights.data())};
    const auto matrix = runner->model().LoadMatrix(view);
    ASSERT_TRUE(matrix.ok()) << matrix.status();
    std::vector<float> whole(40 * n);
    ASSERT_TRUE((*matrix)->Multiply(x, absl::MakeSpan(whole)).ok());
    Logits found, alone, expected;
    for (size_t r = 0; r < 40; ++r) {
      found.emplace_back(whole.begin() + static_cast<std::ptrdiff_t>(r * n),
                         whole.begin() + static_cast<std::ptrdiff_t>((r + 1) * n));
      alone.emplace_back(n);
      expected.emplace_back(n);
      ASSERT_TRUE(
          (*matrix)->Multiply(absl::MakeConstSpan(x).subspan(r * k, k), absl::MakeSpan(alone[r])).ok());
      for (size_t i = 0; i < n; ++i) {
        double sum = 0;
        for (size_t j = 0; j < k; ++j) sum += static_cast<double>(weights[i * k + j]) * x[r * k + j];
        expected[r][i] = static_cast<float>(sum);
      }
      EXPECT_LE(Difference(found[r], expected[r]), GetParam().tolerance_of_dtype) << n << " x " << k;
    }
    EXPECT_EQ(Differing(GetParam(), alone, found), 0) << n << " x " << k;
  }
}

}  // namespace
}  // namespace outrider::testing
