// How long a proposal takes to become a message and to be read again: what draft, coordinator and target do
// with q, without the network. K = 4 tokens with a sparse q of 64 entries each, unless the vocabulary is
// smaller.
//
//   bench_convert [--benchmark_...]
#include <benchmark/benchmark.h>

#include <random>
#include <string>

#include "common/rpc/convert.h"
#include "common/rpc/parse_message.h"
#include "common/spec/distribution.h"
#include "outrider/v1/draft.pb.h"
#include "outrider/v1/target.pb.h"

namespace outrider {
namespace {

constexpr int kTokens = 4;
constexpr int kEntries = 64;

Proposal MakeProposal(int vocab) {
  std::mt19937 random(1);
  std::vector<float> weights(static_cast<size_t>(vocab));
  for (float& weight : weights) weight = std::uniform_real_distribution<float>(0, 1)(random);
  const WeightRow row{.weights = weights, .total = SumWeights(weights)};
  Proposal proposal;
  for (int i = 0; i < kTokens; ++i) {
    Distribution q = TruncateTopN(row, kEntries);
    const TokenId token = q.ids[static_cast<size_t>(i)];
    AppendToChain(token, std::move(q), proposal);
  }
  return proposal;
}

v1::ProposeResult ResultOf(const Proposal& proposal) {
  v1::ProposeResult result;
  SerializeProposal(proposal, result.mutable_nodes());
  return result;
}

void FromDraft(benchmark::State& state) {
  const Proposal proposal = MakeProposal(static_cast<int>(state.range(0)));
  for (auto _ : state) benchmark::DoNotOptimize(SerializeMessage(ResultOf(proposal)));
}

void ThroughCoordinator(benchmark::State& state) {
  const int vocab = static_cast<int>(state.range(0));
  const grpc::ByteBuffer bytes = SerializeMessage(ResultOf(MakeProposal(vocab)));
  for (auto _ : state) {
    v1::ProposeResult result;
    if (!ParseMessage(bytes, &result).ok()) return state.SkipWithError("not a result");
    const auto proposal = ParseUnpreparedProposal(result.nodes(), Rule::kToken, vocab);
    v1::VerifyItem item;
    SerializeProposal(*proposal, item.mutable_draft());
    benchmark::DoNotOptimize(SerializeMessage(item));
  }
}

void ToTarget(benchmark::State& state) {
  const int vocab = static_cast<int>(state.range(0));
  v1::VerifyItem sent;
  SerializeProposal(MakeProposal(vocab), sent.mutable_draft());
  const grpc::ByteBuffer bytes = SerializeMessage(sent);
  for (auto _ : state) {
    v1::VerifyItem item;
    if (!ParseMessage(bytes, &item).ok()) return state.SkipWithError("not an item");
    benchmark::DoNotOptimize(ParseProposal(item.draft(), Rule::kToken, vocab));
  }
}

BENCHMARK(FromDraft)->Arg(4096)->Arg(128256);
BENCHMARK(ThroughCoordinator)->Arg(4096)->Arg(128256);
BENCHMARK(ToTarget)->Arg(4096)->Arg(128256);

}  // namespace
}  // namespace outrider

BENCHMARK_MAIN();
