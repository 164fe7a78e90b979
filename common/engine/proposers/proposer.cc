#include "common/engine/proposers/proposer.h"

#include <utility>

#include "common/engine/proposers/tree_growth.h"
#include "common/spec/status.h"
#include "common/spec/verify.h"

namespace outrider {
namespace {

// Draws the next token of a chain. Returns whether another one follows.
bool DrawNext(Drafting& drafting, absl::Span<float> logits) {
  SequenceState& sequence = *drafting.sequence;
  const SequenceParams& params = sequence.params();
  const std::span<const TokenId> context = sequence.tokens();
  const absl::StatusOr<WeightRow> row =
      sequence.proposal_controls().Apply(context, {logits.data(), logits.size()});
  if (!row.ok()) return false;  // what was drafted before stays
  PhiloxNoise noise(params.key, static_cast<uint64_t>(sequence.committed()));
  ProposalNode node = Propose(params.rule, *row, params.draft_top_n, context.size(), noise);
  const TokenId token = node.token;
  Proposal& proposal = sequence.answer().proposal;
  AppendToChain(token, std::move(node.q), proposal);
  if (static_cast<int>(proposal.size()) == drafting.request.draft_tokens) return false;
  sequence.Append(token);
  return true;
}

// The same for the next level of a tree.
bool DrawNextLevel(Drafting& drafting, const LogitsView& rows) {
  SequenceState& sequence = *drafting.sequence;
  const TreeGrowth growth{.shape = *drafting.request.tree,
                          .depth = drafting.request.draft_tokens,
                          .controls = sequence.proposal_controls()};
  const absl::StatusOr<int> drawn = DrawLevel(growth, sequence, rows);
  if (!drawn.ok()) return false;
  drafting.rows = AppendLevel(growth, sequence, *drawn);
  return drafting.rows > 0;
}

}  // namespace

SequenceRows RowsOfLevel(const Drafting& drafting) {
  const SequenceState& sequence = *drafting.sequence;
  const int first = static_cast<int>(sequence.tokens().size()) - drafting.rows;
  SequenceRows rows{.tokens = sequence.tokens().subspan(static_cast<size_t>(first)),
                    .position = first,
                    .blocks = sequence.blocks(),
                    .logit_rows = drafting.rows};
  if (!sequence.parents().empty()) {
    rows.tree_begin = sequence.tree_begin();
    rows.parents = sequence.parents();
  }
  return rows;
}

LogitsView RowsForNodes(const LogitsView& rows, std::span<Drafting* const> draftings,
                        std::vector<float>& storage) {
  std::vector<float> copies;
  int count = 0;
  for (size_t i = 0; i < draftings.size(); ++i) {
    const absl::Span<const float> row = rows.row(static_cast<int>(i));
    for (int r = 0; r < draftings[i]->rows; ++r) copies.insert(copies.end(), row.begin(), row.end());
    count += draftings[i]->rows;
  }
  storage = std::move(copies);
  return {storage.data(), count, rows.vocab};
}

absl::Status MakeProposals(Proposer& proposer, std::span<Drafting> draftings) {
  for (int level = 0;; ++level) {
    std::vector<Drafting*> active;
    for (Drafting& drafting : draftings) {
      if (!drafting.done) active.push_back(&drafting);
    }
    if (active.empty()) return absl::OkStatus();
    const LogitsView logits = OUTRIDER_TRY(proposer.LogitsOfLevel(level, active));
    int first = 0;
    for (Drafting* drafting : active) {
      const LogitsView rows{logits.row(first).data(), drafting->rows, logits.vocab};
      first += drafting->rows;
      drafting->done =
          !(drafting->request.tree ? DrawNextLevel(*drafting, rows) : DrawNext(*drafting, rows.row(0)));
    }
  }
}

}  // namespace outrider
