// A target's own proposals: what follows a verdict, drafted from the target's hidden states before the answer
// leaves.
#pragma once

#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/engine/batch.h"
#include "common/engine/sequence/sequence_state.h"
#include "common/engine/sequence_params.h"
#include "common/engine/work_item.h"
#include "common/kv/block_id.h"

namespace outrider {

// A proposal in the making. The sequence's committed tokens end with the verdict's token, the first that is
// not computed; the nodes that were drawn follow, but for the last level's if nothing follows them. Its
// blocks have room for the slots that the proposer asked for.
struct Drafting {
  SequenceState* sequence = nullptr;
  ProposalRequest request;
  absl::Span<const float> hidden;  // the row whose logits the verdict's token was drawn from (HiddenView)
  int rows = 1;                    // nodes of the last level; 1 at level 0: the verdict's token
  bool done = false;
  std::vector<float> states = {};  // the proposer's own
};

// A proposer's q depends on committed tokens only (and, where the backend is not row-invariant, on rounding),
// so that it is the same after a resend. What it caches lies beside the target's keys and values, in the same
// blocks and slots. Engine thread.
class Proposer {
 public:
  virtual ~Proposer() = default;

  virtual ProposerKind kind() const = 0;
  // Most tokens of a path that it can propose.
  virtual int max_tokens() const = 0;
  // How many slots a proposal of so many nodes, K deep, writes after the computed tokens.
  virtual int SlotsFor(int nodes, int depth) const = 0;

  // Of `rows` rows of a sequence, of which `logit_rows` have logits, how many hidden states it wants of a
  // forward pass.
  virtual int HiddenRows(int /*rows*/, int /*logit_rows*/) const { return 0; }
  // After how many layers it wants the residual stream of these rows too (PassOptions::taps). At most one
  // kind of a target's proposers does.
  virtual absl::Span<const int> taps() const { return {}; }
  // They are computed: those of slots `first_slot` and up. Before any of them is accepted or dropped.
  virtual void OnHidden(const SequenceState& /*sequence*/, int /*first_slot*/, const HiddenView& /*hidden*/) {
  }

  // The logits of the last level's nodes of all draftings, none of which is done, in order; they may be
  // overwritten until the next call. Levels count from 0. Errors are those of Model::Forward.
  virtual absl::StatusOr<LogitsView> Level(int level, std::span<Drafting* const> draftings) = 0;

  // What the target's cache does.
  virtual void CopyBlock(BlockId /*from*/, BlockId /*to*/) {}
  virtual void MoveSlots(absl::Span<const BlockId> /*blocks*/, absl::Span<const SlotMove> /*moves*/) {}
};

// Fills in the proposals of the draftings' answers. Errors are those of Proposer::Level; what was drafted
// before one is of no use.
absl::Status MakeProposals(Proposer& proposer, std::span<Drafting> draftings);

}  // namespace outrider
