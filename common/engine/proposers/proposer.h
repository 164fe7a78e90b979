// A target's own proposals, drafted from its hidden states after a verdict, before the answer is sent.
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

// A proposal in progress. The sequence's committed tokens end with the verdict's token, which is the first
// token that is not computed. The drawn nodes follow, except those of the last level if the proposal ends
// there. The sequence's blocks have room for the slots that the proposer asked for.
struct Drafting {
  SequenceState* sequence = nullptr;
  ProposalRequest request;
  absl::Span<const float> hidden;  // the row whose logits the verdict's token was drawn from (HiddenView)
  int rows = 1;                    // nodes of the last level; 1 at level 0: the verdict's token
  bool done = false;
  // The proposer's own.
  std::vector<float> states = {};
  std::vector<TokenId> others = {};
};

// The rows of the last level's nodes: the last tokens of the sequence.
SequenceRows RowsOfLevel(const Drafting& drafting);

// The hidden states that a forward pass computed of a sequence's slots `first_slot` and up.
struct HiddenOfSequence {
  const SequenceState* sequence = nullptr;
  int first_slot = 0;
  HiddenView states;
};

// Repeats each drafting's row of `rows` for every node of its last level. The result is in `storage`.
LogitsView RowsForNodes(const LogitsView& rows, std::span<Drafting* const> draftings,
                        std::vector<float>& storage);

// A proposer's q depends only on committed tokens (and, if the backend is not row-invariant, on rounding), so
// that it is the same after a resend. Its cached data lies beside the target's keys and values, in the same
// blocks and slots. Engine thread only.
class Proposer {
 public:
  virtual ~Proposer() = default;

  virtual ProposerKind kind() const = 0;
  // The longest path that it can propose, in tokens.
  virtual int max_tokens() const { return 1 << 10; }  // more than any request asks for
  // How many slots a proposal of `nodes` nodes and this depth, K, writes after the computed tokens.
  virtual int SlotsFor(int nodes, int depth) const = 0;

  // How many hidden states it needs from a forward pass with `rows` rows of a sequence, `logit_rows` of them
  // with logits.
  virtual int HiddenRows(int /*rows*/, int /*logit_rows*/) const { return 0; }
  // The numbers of layers after which it also needs the residual stream of these rows (PassOptions::taps).
  // At most one of a target's proposers has taps.
  virtual absl::Span<const int> taps() const { return {}; }
  // Receives these hidden states of a forward pass, before any of the slots is accepted or dropped.
  virtual void OnHidden(std::span<const HiddenOfSequence> /*hidden*/) {}

  // The logits of the last level's nodes of all draftings, in order. No drafting is done yet. Valid until
  // the next call; the caller may overwrite them. Levels count from 0. Errors are those of Model::Forward.
  virtual absl::StatusOr<LogitsView> LogitsOfLevel(int level, std::span<Drafting* const> draftings) = 0;

  // Called for each copy and move in the target's cache.
  virtual void CopyBlock(BlockId /*from*/, BlockId /*to*/) {}
  virtual void MoveSlots(absl::Span<const BlockId> /*blocks*/, absl::Span<const SlotMove> /*moves*/) {}
};

// Fills in the proposals of the draftings' answers. Errors are those of Proposer::LogitsOfLevel; after one,
// the proposals are unusable.
absl::Status MakeProposals(Proposer& proposer, std::span<Drafting> draftings);

}  // namespace outrider
