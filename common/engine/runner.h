// Runs one model over ragged batches of sequences with a paged KV cache.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/engine/batch.h"
#include "common/engine/cuda_plugin.h"
#include "common/engine/decoder/model_config.h"
#include "common/kv/block_id.h"

namespace outrider {

struct RunnerOptions {
  std::string model_dir;       // a Hugging Face directory: config.json and safetensors
  std::string device = "cpu";  // or "cuda:N"
  // On the CPU float32, bfloat16, int8 (weights only, a scale for each output; keys and values bfloat16), or
  // auto: bfloat16 where the CPU has instructions for it, else float32. On a GPU bfloat16, fp8 (e4m3, weights
  // and operands; keys and values bfloat16), or auto: bfloat16.
  std::string dtype = "auto";
  int threads = 0;    // that compute, the caller's included; 0: one per CPU this process may run on
  int kv_blocks = 0;  // the pool's size; 0: as many as fit kv_memory_fraction of the free memory
  double kv_memory_fraction = 0.3;
  int max_sequences = 256;   // that the pool need ever hold; for kv_blocks 0
  int block_size = 16;       // tokens per block
  int max_batch_rows = 512;  // the most new tokens one Forward takes, over all its sequences
  std::string kernels;       // avx512bf16, avx512, avx2 or portable; empty: the best this CPU runs
  std::function<void(double fraction)> progress;  // called by Load, 0 to 1, never decreasing; optional
  DeviceModelFactory make_device_model = LoadDeviceModel;  // for --device cuda:N
};

// Owns the weights, the KV pool and all scratch memory; nothing is allocated per step.
//
// What a row yields, its logits and its cached keys and values, depends bit for bit on the tokens of its own
// prefix only: not on the batch, the chunking, the number of threads, the block size or the block ids. It
// does depend on the dtype and on the instruction set the kernels were chosen for (`kernel_name`).
//
// Two sequences of one batch may share blocks they only read (a common prefix); the slots written must belong
// to one sequence each. Truncation needs no call: slots at and after `position` are overwritten.
//
// Not thread-safe: one thread at a time. The worker threads sleep between calls.
class Runner {
 public:
  // INVALID_ARGUMENT for bad options, naming the flag, or a model that cannot be run, naming file and field
  // or tensor; NOT_FOUND for missing files; RESOURCE_EXHAUSTED where memory for weights or the pool cannot be
  // had.
  static absl::StatusOr<std::unique_ptr<Runner>> Load(const RunnerOptions& options);

  ~Runner();
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  // One forward pass: appends every sequence's tokens to the cache and returns the logits asked for, valid
  // until the next call. INVALID_ARGUMENT, with nothing changed, for an empty sequence, a token outside the
  // vocabulary, a position at or past max_position_embeddings, a block table that is too short or names a
  // block outside the pool, logit_rows out of range, a task where the model does not decide, or more than
  // max_batch_rows rows. INTERNAL if a device fails. An empty batch yields no rows.
  absl::StatusOr<LogitsView> Forward(absl::Span<const SequenceRows> batch);

  // A hint that Forward is about to be called, so that threads that sleep wake up in the meantime. Any
  // thread.
  void Wake();

  // Calls task(i) for every i in [0, count), on all threads, and returns when all have returned. For work on
  // the logits of a step, between calls of Forward.
  void ParallelFor(int count, absl::FunctionRef<void(int i)> task);

  // Copies all layers' keys and values of one block over another's (copy-on-write). Ids must be in the pool.
  void CopyBlock(BlockId from, BlockId to);

  // Whether sequences may come with a task.
  bool decides() const;

  const ModelConfig& config() const;
  const std::string& dtype() const;        // as resolved: "float32", "bfloat16", "int8" or "fp8"
  const std::string& kernel_name() const;  // "avx512bf16", "avx512", "avx2", "portable" or "cuda"
  int threads() const;
  int kv_blocks() const;
  int block_size() const;
  int max_batch_rows() const;
  size_t bytes_per_block() const;  // keys and values of all layers
  size_t weight_bytes() const;     // resident, as packed

 private:
  class Impl;
  explicit Runner(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace outrider
