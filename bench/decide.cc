// Measures how long the host takes to decide about a row, with both implementations: common/spec's passes
// over vectors, and common/spec/team's templates, which GPUs run, with a team of one. A decision has both of
// them only where the second is slower on the host; docs/architecture.md lists these decisions.
//
//   bench_decide [--benchmark_...]
#include <benchmark/benchmark.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "common/spec/controls.h"
#include "common/spec/distribution.h"
#include "common/spec/residual.h"
#include "common/spec/selection.h"
#include "common/spec/team/row_draw.h"
#include "common/spec/team/row_select.h"
#include "common/spec/team/row_shape.h"
#include "common/spec/team/row_sums.h"
#include "common/spec/team/row_verify.h"
#include "common/spec/verify.h"
#include "common/spec/weights.h"

namespace outrider {
namespace {

constexpr int kTopN = 64;  // entries of q
constexpr int kTopK = 50;
constexpr double kTopP = 0.9;
constexpr RandomKey kKey = {17, 0};

// A team of one thread, with only what every team has.
class OneThread {
 public:
  int rank() const { return 0; }
  int size() const { return 1; }
  int group() const { return 0; }
  int groups() const { return 1; }
  const OneThread& local() const { return *this; }
  team::TeamScratch& scratch(int /*group*/ = 0) const { return *scratch_; }
  void Sync() const {}
  uint64_t Max(uint64_t value) const { return value; }
  uint32_t Add(uint32_t* cell, uint32_t n) const {
    *cell += n;
    return *cell - n;
  }
  uint32_t Count(uint32_t* cell) const { return Add(cell, 1); }

 private:
  const std::unique_ptr<team::TeamScratch> scratch_ = std::make_unique<team::TeamScratch>();
};

// Realistic logits: few tokens hold most of the mass. Target and draft agree roughly.
struct Rows {
  explicit Rows(int vocab) : n(vocab), logits(vocab), p_weights(vocab) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0, 2.5f);
    std::vector<float> draft(vocab);
    for (int i = 0; i < vocab; ++i) {
      logits[i] = normal(random);
      draft[i] = logits[i] + 0.3f * normal(random);
    }
    p = Shape(logits, p_weights);
    q = TruncateTopN(Shape(draft, draft), kTopN);
    u.resize(1021);
    for (double& x : u) x = std::uniform_real_distribution<double>(0, 1)(random);
  }
  static WeightRow Shape(const std::vector<float>& logits, std::vector<float>& weights) {
    weights = logits;
    ExpInPlace(weights, FindMax(weights).value, 1);
    return {.weights = weights, .total = SumWeights(weights)};
  }

  int n;
  std::vector<float> logits, p_weights;
  WeightRow p;
  Distribution q;
  std::vector<double> u;
};

// The state of a benchmark: rows, a team, memory that a decision may overwrite, and uniform numbers.
struct Bench {
  explicit Bench(benchmark::State& state) : rows(static_cast<int>(state.range(0))), copy(rows.n) {}
  double NextUniform() { return rows.u[next++ % rows.u.size()]; }
  float* Copy(const std::vector<float>& from) {
    std::copy(from.begin(), from.end(), copy.begin());
    return copy.data();
  }
  void MakeTurns() {
    std::mt19937 random(2);
    for (int i = 0; i < 32; ++i) {
      turns.push_back(rows.logits);
      std::shuffle(turns.back().begin(), turns.back().end(), random);
    }
  }
  team::TargetRow Target() const { return {rows.p_weights.data(), rows.n, {rows.p.total, 0, -1, 1}}; }
  team::SparseQ Draft() const {
    return {rows.q.ids.data(), rows.q.weights.data(), static_cast<int>(rows.q.ids.size()),
            1.0 / rows.q.total};
  }

  Rows rows;
  OneThread team;
  std::vector<float> copy;
  std::vector<std::vector<float>> turns;  // other rows
  std::vector<TokenId> ids;
  std::vector<float> kept;
  MassScratch mass_scratch;
  size_t next = 0;
  std::optional<Controls> controls;
};

template <class Decide>
void Register(const std::string& name, const Decide& decide) {
  const auto run = [decide](benchmark::State& state) {
    Bench bench(state);
    for (auto _ : state) benchmark::DoNotOptimize(decide(bench));
  };
  benchmark::RegisterBenchmark(name.c_str(), run)->Arg(4096)->Arg(128256);
}

void RegisterSums() {
  Register("sum/host", [](Bench& b) { return SumWeights(b.rows.p_weights); });
  Register("sum/team",
           [](Bench& b) { return SumRow(b.team, team::FloatRow{b.rows.p_weights.data()}, b.rows.n); });
  Register("entropy/host", [](Bench& b) { return Entropy(b.rows.p_weights, b.rows.p.total); });
  Register("entropy/team", [](Bench& b) {
    return team::RowEntropy(b.team, b.rows.p_weights.data(), b.rows.n, b.rows.p.total);
  });
  Register("max/host", [](Bench& b) { return FindMax(b.rows.logits).index; });
  Register("max/team", [](Bench& b) { return team::LargestFinite(b.team, b.rows.logits.data(), b.rows.n); });
}

void RegisterShapes() {
  Register("copy", [](Bench& b) { return b.Copy(b.rows.logits); });
  Register("exp/host", [](Bench& b) {
    const std::span<float> row(b.Copy(b.rows.logits), b.rows.n);
    ExpInPlace(row, 12, 1);
    return SumWeights(row);
  });
  Register("exp/team", [](Bench& b) {
    return SumRow(b.team, team::ExpRow{b.Copy(b.rows.logits), 12, 1, team::kNoKey}, b.rows.n);
  });
  Register("top_k/host", [](Bench& b) {
    SelectLargest(b.rows.logits, kTopK, kLeastFinite, b.ids, b.kept);
    return b.kept.data();
  });
  Register("top_k/team", [](Bench& b) {
    return team::SelectRow(b.team, team::LogitKeys{b.rows.logits.data()}, b.rows.n, kTopK,
                           team::CountMeasure{}, kTopK);
  });
  Register("top_p/host", [](Bench& b) {
    const std::span<float> row(b.Copy(b.rows.p_weights), b.rows.n);
    KeepMass(row, kTopP * b.rows.p.total, b.mass_scratch);
    return SumWeights(row);
  });
  Register("top_p/team", [](Bench& b) {
    float* const row = b.Copy(b.rows.p_weights);
    const uint64_t cut = team::CutAtMass(b.team, row, b.rows.n, kTopP * b.rows.p.total);
    return SumRow(b.team, team::CutRow{row, cut, 0}, b.rows.n);
  });
}

void RegisterDraws() {
  Register("top_n/host", [](Bench& b) { return TruncateTopN(b.rows.p, kTopN); });
  Register("top_n/team", [](Bench& b) {
    Distribution q;
    q.ids.resize(kTopN);
    q.weights.resize(kTopN);
    team::TruncateTopN(b.team, b.rows.p_weights.data(), b.rows.n, kTopN, q.ids.data(), q.weights.data());
    return q;
  });
  Register("residual/host", [](Bench& b) {
    Residual residual(b.rows.p);
    residual.Subtract(b.rows.q);
    return residual.Sample(b.NextUniform());
  });
  Register("residual/team", [](Bench& b) {
    const team::ResidualRow residual{b.Target(), b.Draft(), 1.0 / b.rows.p.total};
    const double mass = SumRow(b.team, residual, b.rows.n);
    return SampleIndex(b.team, residual, b.rows.n, mass, b.NextUniform());
  });
}

// Whole decisions, as a service makes them.
void RegisterDecisions() {
  Register("shape/top_k,top_p,min_p", [](Bench& b) {
    if (!b.controls) {
      SamplingParams params;
      params.top_k = kTopK;
      params.top_p = kTopP;
      params.min_p = 0.01;
      b.controls = *Controls::Create(params, 0, b.rows.n);
    }
    return b.controls->Apply({}, {b.Copy(b.rows.logits), b.copy.size()});
  });
  // Rows take turns, so that branch prediction cannot learn a row.
  Register("propose", [](Bench& b) {
    if (!b.controls) {
      b.controls = *Controls::Create({}, 0, b.rows.n);
      b.MakeTurns();
    }
    const uint64_t n = b.next++;
    const WeightRow row = *b.controls->Apply({}, {b.Copy(b.turns[n % b.turns.size()]), b.copy.size()});
    PhiloxNoise noise(kKey, n);
    return Propose(Rule::kToken, row, kTopN, n, noise).token;
  });
  for (const Rule rule : {Rule::kToken, Rule::kCoupled}) {
    Register(rule == Rule::kToken ? "verify/token" : "verify/coupled", [rule](Bench& b) {
      const uint64_t n = b.next++;
      Proposal proposal;
      for (int i = 0; i < 4; ++i) {
        const TokenId token =
            rule == Rule::kToken ? DraftSample(b.rows.q, kKey, n + i, n) : Race(b.rows.p, kKey, n + i);
        AppendToChain(token, rule == Rule::kToken ? b.rows.q : Distribution(), proposal);
      }
      return Verify(
          {.rule = rule}, proposal, [&](int) { return b.rows.p; }, n, kKey);
    });
  }
}

}  // namespace
}  // namespace outrider

int main(int argc, char** argv) {
  outrider::RegisterSums();
  outrider::RegisterShapes();
  outrider::RegisterDraws();
  outrider::RegisterDecisions();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
