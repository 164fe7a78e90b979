// Parses an item of a coordinator's stream as a target does. A proposal that is valid can be judged, and a
// coordinator can parse the verdict.
#include <cmath>

#include "common/rpc/convert.h"
#include "common/serve/serve_item.h"
#include "common/spec/controls.h"
#include "tests/fuzz/target.h"

namespace outrider {
namespace {

constexpr int kVocab = 8;

void Judge(const WorkItem& item, const Proposal& proposal) {
  static const std::vector<float> weights = {1, 0, 0.5F, 2, 0, 0, 1e-30F, 4};
  const auto rows = [&](int) -> absl::StatusOr<WeightRow> {
    return WeightRow{.weights = weights, .total = SumWeights(weights)};
  };
  const VerifyOptions options = OptionsOf(*item.params);
  const auto verdict = Verify(options, proposal, rows, item.base + item.tokens.size(), item.params->key);
  if (!IsChain(proposal) && (options.rule == Rule::kBlock || options.lenience < 1)) {
    return Require(absl::IsInvalidArgument(verdict.status()), "what judges chains refuses trees");
  }
  Require(verdict.ok(), "a proposal that was accepted is judged");
  Require(verdict->path.size() <= proposal.size(), "a path is one of the proposal");
  const auto read = ParseVerdict(SerializeVerdict(*verdict), proposal, kVocab);
  Require(read.ok() && read->path == verdict->path && read->token == verdict->token,
          "a verdict survives the wire");
}

}  // namespace

void FuzzTarget(std::string_view input) {
  v1::TargetItem message;
  if (!message.ParseFromArray(input.data(), static_cast<int>(input.size()))) return;
  const auto item = ParseUpdate(message.verify().sequence(), kVocab, /*default_top_n=*/4);
  if (!item.ok() || !item->invalid.ok() || item->params == nullptr) return;
  for (const TokenId token : item->tokens)
    Require(token >= 0 && token < kVocab, "a token is in the vocabulary");
  if (!ValidateSamplingParams(item->params->sampling, kVocab).ok()) return;
  const auto proposal = ParseProposal(message.verify().draft(), item->params->rule, kVocab);
  if (proposal.ok()) Judge(*item, *proposal);
}

}  // namespace outrider
