// Runs one model over ragged batches of sequences with a paged KV cache.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/engine/backend.h"
#include "common/engine/batch.h"
#include "common/engine/decoder/model_config.h"
#include "common/engine/model.h"
#include "common/engine/runner_options.h"
#include "common/engine/thread_pool.h"
#include "common/kv/block_id.h"

namespace outrider {

// Owns a model, which holds the weights, the KV pool and all scratch memory, and the threads that compute on
// the host. Checks each batch, so that what reaches the model is well formed; nothing is allocated per step.
//
// What a row yields, its logits and its cached keys and values, depends bit for bit on the tokens of its own
// prefix only: not on the batch, the chunking, the number of threads, the block size or the block ids. It
// does depend on the dtype and on the instruction set the kernels were chosen for (`kernel_name`).
//
// Two sequences of one batch may share blocks they only read (a common prefix); the slots written must belong
// to one sequence each. Truncation needs no call: slots at and after `position` are overwritten.
//
// Not thread-safe, but for Wake: one thread at a time. The pool's threads sleep between calls.
class Runner {
 public:
  // Loads the model onto the backend of options.device. INVALID_ARGUMENT for bad options, naming the flag, or
  // a model that cannot be run, naming file and field or tensor; NOT_FOUND for missing files;
  // RESOURCE_EXHAUSTED where memory for weights or the pool cannot be had; FAILED_PRECONDITION where the
  // device cannot be used.
  static absl::StatusOr<std::unique_ptr<Runner>> Load(const RunnerOptions& options);
  // The same onto this backend, whatever options.device says.
  static absl::StatusOr<std::unique_ptr<Runner>> Load(const RunnerOptions& options, const Backend& backend);

  // One forward pass: appends every sequence's tokens to the cache and returns the logits asked for, valid
  // until the next call. INVALID_ARGUMENT, with nothing changed, for an empty sequence, a token outside the
  // vocabulary, a position at or past max_position_embeddings, a block table that is too short or names a
  // block outside the pool, logit_rows out of range, a task that the model cannot run, or more than
  // max_batch_rows rows. INTERNAL if a device fails. An empty batch yields no rows.
  absl::StatusOr<LogitsView> Forward(absl::Span<const SequenceRows> batch);

  // A hint that Forward is about to be called, so that threads that sleep wake up in the meantime. Any
  // thread.
  void Wake() { model_->Wake(); }

  // Calls task(i) for every i in [0, count), on all threads, and returns when all have returned. For work on
  // the logits of a step, between calls of Forward.
  void ParallelFor(int count, absl::FunctionRef<void(int i)> task);

  // Copies all layers' keys and values of one block over another's (copy-on-write). Ids must be in the pool.
  void CopyBlock(BlockId from, BlockId to) { model_->CopyBlock(from, to); }

  // Whether a sequence may come with this task.
  bool CanRun(const DeviceTask& task) const { return model_->CanRun(task); }

  const ModelConfig& config() const { return config_; }
  std::string dtype() const { return model_->dtype(); }  // as resolved, if it was "auto"
  std::string kernel_name() const { return model_->kernel_name(); }
  int threads() const { return thread_pool_.threads(); }
  int kv_blocks() const { return model_->kv_blocks(); }
  int block_size() const { return options_.block_size; }
  int max_batch_rows() const { return options_.max_batch_rows; }
  size_t bytes_per_block() const { return model_->bytes_per_block(); }  // keys and values of all layers
  size_t weight_bytes() const { return model_->weight_bytes(); }        // resident, as packed

 private:
  Runner(const RunnerOptions& options, ModelConfig config);

  absl::Status CheckBatch(absl::Span<const SequenceRows> batch) const;
  absl::Status CheckSequence(size_t index, const SequenceRows& sequence) const;

  const RunnerOptions options_;
  const ModelConfig config_;
  ThreadPool thread_pool_;
  std::unique_ptr<Model> model_;  // uses thread_pool_
};

}  // namespace outrider
