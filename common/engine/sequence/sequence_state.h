// One sequence on a server: its tokens and their KV cache, its sampling parameters, and the work in progress,
// which a sampler answers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/engine/batch.h"
#include "common/engine/sequence_params.h"
#include "common/engine/work_item.h"
#include "common/kv/block_id.h"
#include "common/kv/cached_sequence.h"
#include "common/kv/lease_table.h"
#include "common/kv/prefix_index.h"
#include "common/spec/controls.h"
#include "common/spec/types.h"

namespace outrider {

// Samplers and the step read it and append tokens; SequenceStore starts and ends its work. The tokens are
// the committed ones, followed by those of this round's proposal: a chain or a tree. Not thread-safe.
class SequenceState {
 public:
  SequenceState(const SequenceId& id, BlockPool* pool, int block_size) : id_(id), cache_(pool, block_size) {}

  const SequenceId& id() const { return id_; }
  const SequenceParams& params() const { return *params_; }
  Controls& controls() const { return *controls_; }
  // The controls of the target's own proposals; set if the parameters name a proposer.
  Controls& proposal_controls() const { return *proposal_controls_; }

  std::span<const TokenId> tokens() const { return cache_.tokens(); }
  int committed() const { return committed_; }
  // Where a tree begins and the parents of its nodes, as CachedSequence defines them. No parents: a chain.
  int tree_begin() const { return cache_.tree_begin(); }
  std::span<const int> parents() const { return cache_.parents(); }
  // The committed tokens, then the path to a node of the tree, itself included.
  std::vector<TokenId> PathTo(int node) const { return cache_.PathTo(node); }
  // How many of the first tokens have their keys and values in the cache.
  int num_computed() const { return cache_.num_computed(); }
  // The number of computed tokens that an item may continue from; excludes those of a tree.
  int held() const { return std::min(cache_.num_computed(), cache_.tree_begin()); }
  // The number of tokens that are not computed yet.
  int num_pending() const { return cache_.size() - cache_.num_computed(); }
  std::span<const BlockId> blocks() const { return cache_.table().blocks(); }

  const Work& work() const { return item_.work; }
  // The work, which must be of this kind.
  template <class Kind>
  const Kind& work_as() const {
    return std::get<Kind>(item_.work);
  }
  absl::Time deadline() const { return item_.deadline; }
  // Whether work is in progress.
  bool active() const { return active_; }
  // Whether the work has been part of a forward pass, and when the last such pass began.
  bool started() const { return started_; }
  absl::Time step_started_at() const { return step_started_at_; }
  // Alternatives to report with each committed token; -1: the prompt is not scored.
  int prompt_logprobs() const {
    const auto* verify = std::get_if<VerifyWork>(&item_.work);
    return verify == nullptr ? -1 : verify->prompt_logprobs;
  }

  // How many of the last tokens need logits, all in one forward pass.
  int logit_rows() const { return logit_rows_; }
  void set_logit_rows(int rows) { logit_rows_ = rows; }

  // The number of leading tokens for which the proposer has cached data of its own, besides keys and values.
  int proposer_computed() const { return proposer_computed_; }
  void set_proposer_computed(int tokens) { proposer_computed_ = tokens; }

  // Whether its tokens are only assumed to be committed.
  bool branch() const { return branch_; }

  // Commits the token that ProposeWork::draw_next asks for. The token is still to be computed, and the
  // proposal follows it.
  void CommitNext(TokenId next) {
    Append(next);
    committed_ = cache_.size();
    answer_.next = next;
    if (item_.on_next) item_.on_next(next);
  }
  // Appends a token, to be computed.
  void Append(TokenId token) { cache_.Append(token); }
  // Appends a node of a tree, to be computed, which follows an earlier node or, with -1, the committed
  // tokens.
  void AppendNode(TokenId token, int parent) { cache_.AppendNode(token, parent); }
  // Drops all but the first n tokens of a chain. Keeps the blocks, since samplers run on several threads.
  void Rewind(int n) { cache_.Rewind(n); }
  // Drops the tokens that are not computed.
  void DropPending() { cache_.Truncate(cache_.num_computed()); }
  // Records that the next `rows` tokens are computed.
  void MarkComputed(int rows) { cache_.MarkComputed(cache_.num_computed() + rows); }
  // Records that a forward pass with this sequence starts.
  void OnStep(absl::Time start, int batch_sequences, int batch_rows) {
    answer_.timing.batch_sequences = batch_sequences;
    answer_.timing.batch_rows = batch_rows;
    step_started_at_ = start;
    if (!started_) started_at_ = start;
    started_ = true;
  }
  // The deadline has passed; the work continues without one.
  void ClearDeadline() { item_.deadline = absl::InfiniteFuture(); }

  Answer& answer() { return answer_; }
  const Answer& answer() const { return answer_; }

 private:
  friend class SequenceStore;

  const SequenceId id_;
  CachedSequence cache_;
  std::shared_ptr<const SequenceParams> params_;
  std::unique_ptr<Controls> controls_;
  std::unique_ptr<Controls> proposal_controls_;
  int committed_ = 0;
  WorkItem item_;  // the item in progress, or the last one
  Answer answer_;  // the answer to item_
  bool branch_ = false;
  int logit_rows_ = 0;
  int proposer_computed_ = 0;
  bool active_ = false;
  bool started_ = false;
  absl::Time started_at_;       // when the first forward pass began
  absl::Time step_started_at_;  // when the last one began

  // The store's own.
  uint64_t arrival_ = 0;               // serial number in order of arrival; a forked branch has its origin's
  absl::Time idle_since_;              // valid unless active
  PrefixIndex::Cursor prefix_cursor_;  // its blocks in the prefix index
  uint64_t params_hash_ = 0;
  // Of the item in progress, or the last one that ended.
  uint64_t round_ = 0;
  uint64_t digest_ = 0;  // 0: there was no item yet, or its answer was an error
  std::vector<std::function<void(const Answer&)>> listeners_;
  bool proposes_ = false;  // from BeginProposal to Finish
};

// Turns logits into answers: the draft samples tokens from them, the target verifies a proposal against them.
// Called from the engine thread only, except for Sample.
class Sampler {
 public:
  virtual ~Sampler() = default;

  // Starts an item: appends the tokens that it proposes and sets how many rows of logits it needs.
  virtual void Begin(SequenceState& sequence) = 0;

  // Scores rows of a prompt: row i holds the logits that follow the token with index `first` + i.
  virtual void Score(SequenceState& sequence, int first, const LogitsView& rows) = 0;

  // All tokens are computed; `rows` holds the sequence's logits, which may be overwritten. Fills in the
  // answer. Returns false if it appended tokens, which must be computed first. Called for several sequences
  // at once, from several threads.
  virtual absl::StatusOr<bool> Sample(SequenceState& sequence, const LogitsView& rows) = 0;

  // The task with which a device can replace Sample in the step that computes the last pending tokens;
  // nullopt if only the host can do the work.
  virtual std::optional<DeviceTask> MakeDeviceTask(const SequenceState& sequence) const = 0;

  // A device has completed the task. Fills in the answer and appends the tokens that the device computed
  // itself.
  virtual void TakeDeviceResult(SequenceState& sequence, DeviceTask& task) = 0;

  // The item's deadline has passed. OK ends the item with the answer as it is, an error ends it with that
  // error, and nullopt lets it continue.
  virtual std::optional<absl::Status> OnDeadline(SequenceState& sequence) = 0;
};

}  // namespace outrider
