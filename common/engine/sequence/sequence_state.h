// One sequence of a server: its tokens and their cache, how it is sampled, and the work in progress.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <variant>

#include "absl/time/time.h"
#include "common/engine/sequence_params.h"
#include "common/engine/work_item.h"
#include "common/kv/block_id.h"
#include "common/kv/cached_sequence.h"
#include "common/kv/sequence_id.h"
#include "common/spec/controls.h"

namespace outrider {

// Samplers and the step read it and feed tokens; what begins and ends work is SequenceStore. Tokens are the
// committed ones, then those that this round feeds beyond them: a proposal. One thread at a time.
class SequenceState {
 public:
  const SequenceId& id() const { return id_; }
  const SequenceParams& params() const { return *params_; }
  Controls& controls() const { return *controls_; }

  std::span<const TokenId> tokens() const { return cache_.tokens(); }
  int committed() const { return committed_; }
  // Tokens whose keys and values are in the cache, the first ones.
  int num_computed() const { return cache_.num_computed(); }
  // Tokens that wait to be computed.
  int num_pending() const { return cache_.size() - cache_.num_computed(); }
  std::span<const BlockId> blocks() const { return cache_.table().blocks(); }

  const Work& work() const { return item_.work; }
  // The work, which is of that kind.
  template <class Kind>
  const Kind& work_as() const {
    return std::get<Kind>(item_.work);
  }
  absl::Time deadline() const { return item_.deadline; }
  // Whether the work is in progress.
  bool active() const { return active_; }
  // Whether it was part of a forward pass.
  bool started() const { return started_; }
  // Alternatives to report with each committed token; -1: the prompt is not scored.
  int prompt_logprobs() const;

  // How many of the last tokens need logits, together, once all are fed.
  int logit_rows() const { return logit_rows_; }
  void set_logit_rows(int rows) { logit_rows_ = rows; }

  // Adds a token after all others, to be computed.
  void Append(TokenId token) { cache_.Append(token); }
  // Takes back the tokens that are not computed.
  void DropPending() { cache_.Truncate(cache_.num_computed()); }
  // The next `rows` tokens are computed.
  void MarkComputed(int rows) { cache_.MarkComputed(cache_.num_computed() + rows); }
  // What a forward pass is about to compute this sequence in.
  void OnStep(absl::Time start, int batch_sequences, int batch_rows);
  // Its deadline has come, and was let pass.
  void ClearDeadline() { item_.deadline = absl::InfiniteFuture(); }

  Answer& answer() { return answer_; }

 protected:
  SequenceState(const SequenceId& id, BlockPool* pool, int block_size) : id_(id), cache_(pool, block_size) {}

  const SequenceId id_;
  CachedSequence cache_;
  std::shared_ptr<const SequenceParams> params_;
  std::unique_ptr<Controls> controls_;
  int committed_ = 0;
  WorkItem item_;  // in progress, or the last one
  Answer answer_;  // to it
  int logit_rows_ = 0;
  bool active_ = false;
  bool started_ = false;
  absl::Time started_at_;
};

}  // namespace outrider
