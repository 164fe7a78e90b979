#include "common/engine/proposers/propose_after.h"

#include <algorithm>
#include <variant>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/spec/tree_shape.h"

namespace outrider {
namespace {

// Most nodes of a proposal.
int NodesOf(const ProposalRequest& request) {
  return request.tree ? MaxNodes(*request.tree, request.draft_tokens) : request.draft_tokens;
}

// What is asked for, as far as proposer and context go.
ProposalRequest Bounded(const VerdictToFollow& verdict, const Proposer& proposer, const Runner& runner) {
  const SequenceState& sequence = *verdict.sequence;
  ProposalRequest request = *sequence.work_as<VerifyWork>().propose;
  const int committed = sequence.committed() + static_cast<int>(sequence.answer().verdict->path.size()) + 1;
  // The token that follows the proposal must fit the context too.
  const int room = runner.config().decoder.max_position_embeddings - committed - 1;
  request.draft_tokens = std::min({request.draft_tokens, proposer.max_tokens(), room});
  return request;
}

absl::Status ProposeTogether(Proposer& proposer, std::span<Drafting> draftings) {
  const absl::Time start = absl::Now();
  const absl::Status status = MakeProposals(proposer, draftings);
  const absl::Duration took = absl::Now() - start;
  for (Drafting& drafting : draftings) drafting.sequence->answer().timing.propose = took;
  return status;
}

}  // namespace

VerdictToFollow ToFollow(SequenceState& sequence, const HiddenView& hidden) {
  VerdictToFollow verdict{.sequence = &sequence};
  if (hidden.rows == 0) return verdict;
  const std::vector<int>& path = sequence.answer().verdict->path;
  const absl::Span<const float> row = hidden.row(path.empty() ? 0 : path.back() + 1);
  verdict.hidden.assign(row.begin(), row.end());
  return verdict;
}

Proposer* ProposerOf(const Runner& runner, const SequenceState& sequence) {
  const std::optional<ProposerKind> kind = sequence.params().proposer;
  const bool verifies = !std::holds_alternative<ProposeWork>(sequence.work());
  return kind && verifies ? runner.proposer(*kind) : nullptr;
}

bool WantsProposal(const Runner& runner, const SequenceState& sequence) {
  const auto* verify = std::get_if<VerifyWork>(&sequence.work());
  return verify != nullptr && verify->propose && ProposerOf(runner, sequence) != nullptr;
}

absl::Status ProposeAfter(std::span<const VerdictToFollow> verdicts, Runner& runner, SequenceStore& store) {
  const int most_rows = std::min(runner.max_batch_rows(), kMaxLogitRows);
  for (const std::unique_ptr<Proposer>& proposer : runner.proposers()) {
    std::vector<Drafting> draftings;
    int rows = 0;
    for (const VerdictToFollow& verdict : verdicts) {
      SequenceState& sequence = *verdict.sequence;
      if (ProposerOf(runner, sequence) != proposer.get()) continue;
      const ProposalRequest request = Bounded(verdict, *proposer, runner);
      const int nodes = NodesOf(request);
      if (request.draft_tokens < 1 || 1 + nodes > most_rows) continue;
      if (!store.BeginProposal(sequence, proposer->SlotsFor(nodes, request.draft_tokens))) continue;
      if (rows + 1 + nodes > most_rows) {
        if (absl::Status status = ProposeTogether(*proposer, draftings); !status.ok()) {
          return status;
        }
        draftings.clear();
        rows = 0;
      }
      rows += 1 + nodes;
      draftings.push_back({.sequence = &sequence, .request = request, .hidden = verdict.hidden});
    }
    if (absl::Status status = ProposeTogether(*proposer, draftings); !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

}  // namespace outrider
