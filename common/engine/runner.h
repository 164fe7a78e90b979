// Runs one model on ragged batches of sequences with a paged KV cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/engine/backend.h"
#include "common/engine/batch.h"
#include "common/engine/decoder/model_config.h"
#include "common/engine/model.h"
#include "common/engine/proposers/proposer.h"
#include "common/engine/runner_options.h"
#include "common/engine/text_tokens.h"
#include "common/engine/thread_pool.h"
#include "common/kv/block_id.h"

namespace outrider {

// Owns a model (weights, KV pool, scratch memory) and the host's compute threads. Validates each batch, so
// the model need not.
//
// Where row_invariant() is true, the results of a row (its logits, keys and values) depend bit for bit only
// on the tokens of its own prefix: not on the batch, the chunking of the prompt, the number of threads, the
// block size or the block ids. They do depend on the dtype and on the instruction set of the kernels
// (`kernel_name`). Otherwise this holds up to rounding.
//
// Two sequences of a batch may share blocks that they only read (a common prefix). A slot that is written
// belongs to one sequence. Truncation needs no call: slots at and after `position` are overwritten.
//
// Not thread-safe, except for Wake. The pool's threads sleep between calls.
class Runner {
 public:
  // Loads the model on the backend for options.engine and options.device. INVALID_ARGUMENT, naming the flag,
  // for bad options, or naming file and field or tensor for an unsupported model; NOT_FOUND for missing
  // files; RESOURCE_EXHAUSTED if there is not enough memory for the weights or the pool; FAILED_PRECONDITION
  // if the device cannot be used.
  static absl::StatusOr<std::unique_ptr<Runner>> Load(const RunnerOptions& options);
  // The same, but on `backend`, whatever options.engine and options.device name.
  static absl::StatusOr<std::unique_ptr<Runner>> Load(const RunnerOptions& options, const Backend& backend);

  // Runs SelfTestInFull with the engine, device and dtype of the options on a small model of this model's
  // shape. Reads the model's configuration, but no weights. Errors are those of Load up to that point.
  static absl::StatusOr<bool> Test(const RunnerOptions& options,
                                   absl::FunctionRef<void(absl::string_view line)> report);

  // Runs one forward pass: appends each sequence's tokens to the cache and returns the requested logits,
  // valid until the next call. INVALID_ARGUMENT, naming the sequence, with nothing changed, for what
  // SequenceRows and PassOptions do not allow or this model cannot do, and for more than max_batch_rows rows
  // or kMaxLogitRows rows of logits. INTERNAL if the device fails. An empty batch returns no rows.
  absl::StatusOr<LogitsView> Forward(absl::Span<const SequenceRows> batch, const PassOptions& pass = {});

  // A hint that Forward will be called soon, so that sleeping threads wake up in the meantime. Thread-safe.
  void Wake() { model_->Wake(); }

  // Calls task(i) for every i in [0, count) on all threads, and returns when all calls have returned. For
  // work on a step's logits, between calls of Forward.
  void ParallelFor(int count, absl::FunctionRef<void(int i)> task) {
    thread_pool_.Run(count, [&](int i, int /*worker*/) { task(i); });
  }

  // Copies the keys and values of all layers from one block to another (copy-on-write). Both ids must be in
  // the pool.
  void CopyBlock(BlockId from, BlockId to) {
    model_->CopyBlock(from, to);
    for (const std::unique_ptr<Proposer>& proposer : proposers_) proposer->CopyBlock(from, to);
  }
  void MoveSlots(absl::Span<const BlockId> blocks, absl::Span<const SlotMove> moves) {
    model_->MoveSlots(blocks, moves);
    for (const std::unique_ptr<Proposer>& proposer : proposers_) proposer->MoveSlots(blocks, moves);
  }

  // The proposers on this model itself (RunnerOptions::heads), in the order of their kinds.
  absl::Span<const std::unique_ptr<Proposer>> proposers() const { return proposers_; }
  // Null if there is none of that kind.
  Proposer* proposer(ProposerKind kind) const {
    for (const std::unique_ptr<Proposer>& proposer : proposers_) {
      if (proposer->kind() == kind) return proposer.get();
    }
    return nullptr;
  }

  // Reads the keys and values of one token back, as Model::ReadSlot defines them. INVALID_ARGUMENT for a slot
  // that is not in the pool; INTERNAL if the device fails.
  absl::StatusOr<std::vector<float>> ReadSlot(BlockId block, int slot);

  // For tools that compare engines.
  Model& model() { return *model_; }

  // Repeats the work of rank 0, as Model::Follow defines it.
  absl::Status Follow() { return model_->Follow(); }

  // Whether a sequence of a batch may carry this task.
  bool CanRun(const DeviceTask& task) const { return model_->CanRun(task); }

  const ModelConfig& config() const { return config_; }
  bool row_invariant() const { return model_->row_invariant(); }
  bool tree_row_invariant() const { return model_->tree_row_invariant(); }
  std::string dtype() const { return model_->dtype(); }  // as resolved, if it was "auto"
  std::string kernel_name() const { return model_->kernel_name(); }
  std::string algorithms() const { return model_->algorithms(); }
  GraphCaptures graph_captures() const { return model_->graph_captures(); }
  // Describes what the last bits of a result depend on. With the same weights and the same description, a
  // result has the same bits.
  std::string numerics() const;
  int threads() const { return thread_pool_.threads(); }
  int kv_blocks() const { return model_->kv_blocks(); }
  int block_size() const { return options_.block_size; }
  int max_batch_rows() const { return options_.max_batch_rows; }
  size_t bytes_per_block() const { return model_->bytes_per_block(); }  // keys and values of all layers
  size_t weight_bytes() const { return model_->weight_bytes(); }        // see Model::weight_bytes
  // Checkpoint::Hash of the model; 0 on ranks other than 0.
  uint64_t weights_hash() const { return weights_hash_; }

 private:
  Runner(const RunnerOptions& options, ModelConfig config);

  // Forward with logits of the frequent tokens and of the texts' tokens.
  absl::StatusOr<LogitsView> ForwardFrequent(absl::Span<const SequenceRows> batch, const PassOptions& pass);
  absl::Status CheckBatch(absl::Span<const SequenceRows> batch, const PassOptions& pass) const;
  // Checks that the model has the layers that the pass names.
  absl::Status CheckPass(const PassOptions& pass) const;
  // Checks that the rows are within the context and that a tree is well-formed.
  absl::Status CheckPositions(const SequenceRows& sequence) const;
  absl::Status CheckSequence(size_t index, const SequenceRows& sequence) const;

  const RunnerOptions options_;
  const ModelConfig config_;
  std::vector<TokenId> frequent_;  // the only tokens that the model computes logits for; empty: all
  std::vector<float> spread_;      // the logits of all tokens, if frequent_ is not empty
  uint64_t weights_hash_ = 0;
  ThreadPool thread_pool_;
  std::unique_ptr<Model> model_;                      // uses thread_pool_
  std::vector<std::unique_ptr<Proposer>> proposers_;  // use model_
  std::unique_ptr<TextTokens> text_tokens_;           // that frequent_ lacks; null: no logits; uses model_
};

}  // namespace outrider
