// A model loaded on a backend (common/engine/backend.h), and matrices loaded beside it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/engine/batch.h"
#include "common/engine/decoder/tensor_source.h"
#include "common/kv/block_id.h"

namespace outrider {

// A weight matrix on a backend, for computations outside a decoder. Not thread-safe; may use the threads that
// its backend was given.
class Matrix {
 public:
  virtual ~Matrix() = default;

  // y = x W^T for W [n, k], k even: x is float32 [rows, k] and y float32 [rows, n]. An error means that the
  // device failed.
  virtual absl::Status Multiply(absl::Span<const float> x, absl::Span<float> y) = 0;
};

// Statistics of the CUDA graphs that a model has captured so far.
struct GraphCaptures {
  int64_t count = 0;     // captured graphs, including those evicted since
  absl::Status failure;  // the error of a capture, after which no more are made; OK: none failed
};

// Owns weights, KV pool and scratch memory. Not thread-safe, except for Wake.
class Model {
 public:
  virtual ~Model() = default;

  // Runs one forward pass. The batch is not empty, and valid as Runner::Forward defines it.
  // RESOURCE_EXHAUSTED if a model that allocates memory for each step has too little for this one; any other
  // error means that the device failed.
  virtual absl::StatusOr<LogitsView> Forward(absl::Span<const SequenceRows> batch,
                                             const PassOptions& pass) = 0;
  virtual void CopyBlock(BlockId from, BlockId to) = 0;
  // Moves keys and values of all layers within a sequence, one move after another; each move goes to a lower
  // slot. Afterwards an accepted path of a tree is where it would be if it had been computed as a chain.
  virtual void MoveSlots(absl::Span<const BlockId> blocks, absl::Span<const SlotMove> moves) = 0;
  // Reads one token's rotated keys and its values from the cache: float32 [layers, 2, kv_heads, head_dim].
  // For tests and tools that compare backends.
  virtual absl::Status ReadSlot(BlockId block, int slot, absl::Span<float> values) = 0;
  // Whether Forward takes embeddings, returns hidden states and can run only the first layers. If not,
  // Project, ReadEmbeddings and LoadMatrix fail.
  virtual bool has_hidden_states() const { return false; }
  // Computes the logits of rows of the head's input, float32 [rows, hidden], at most max_batch_rows and
  // kMaxLogitRows of them. The result is valid as long as that of Forward.
  virtual absl::StatusOr<LogitsView> Project(absl::Span<const float> /*hidden*/) {
    return absl::UnimplementedError("this engine shows no hidden states");
  }
  // Reads the tokens' embeddings: float32 [tokens, hidden].
  virtual absl::Status ReadEmbeddings(absl::Span<const TokenId> /*tokens*/, absl::Span<float> /*to*/) {
    return absl::UnimplementedError("this engine shows no hidden states");
  }
  // Copies a matrix [n, k] to the model's device and dtype, for computations on its hidden states. Beside
  // packed weights it is rounded to 8 bits. The model must outlive it. RESOURCE_EXHAUSTED if there is not
  // enough memory.
  virtual absl::StatusOr<std::unique_ptr<Matrix>> LoadMatrix(const TensorView& /*weights*/) {
    return absl::UnimplementedError("this engine shows no hidden states");
  }
  // A hint from any thread that Forward will be called soon.
  virtual void Wake() = 0;

  // Repeats the work of rank 0 until that process is gone (RunnerOptions::parallel). Ranks other than 0 call
  // only this function. Returns why it ended, never OK: UNAVAILABLE if rank 0 is gone.
  virtual absl::Status Follow() { return absl::UnimplementedError("this engine runs in one process"); }

  // Whether Forward supports this task. A model with tasks is row_invariant.
  virtual bool CanRun(const DeviceTask& /*task*/) const { return false; }

  // Whether a row's results depend bit for bit only on the tokens of its own prefix (see Runner). If not,
  // they do so up to rounding.
  virtual bool row_invariant() const = 0;
  // The same for a node of a tree: whether its results are bit for bit those of its path computed as a chain.
  virtual bool tree_row_invariant() const = 0;

  virtual std::string dtype() const = 0;        // "float32", "bfloat16", "int8" or "fp8"
  virtual std::string kernel_name() const = 0;  // a kernel set of FindKernels, "cuda" or "torch"
  // The library algorithms that the model uses, for the log; empty if there is no choice.
  virtual std::string algorithms() const { return ""; }
  // Describes what the last bits of a result depend on besides dtype and kernels: the device, and the
  // library with its version and algorithms. Empty if they depend on nothing else.
  virtual std::string bits_depend_on() const { return ""; }
  virtual GraphCaptures graph_captures() const { return {}; }
  virtual int kv_blocks() const = 0;
  // The longest sequence that the KV pool and the position encoding support.
  virtual int max_positions() const = 0;
  virtual size_t bytes_per_block() const = 0;  // keys and values of all layers
  // Bytes of weights that a step of one row reads, as packed. Includes the embedding matrix only if the head
  // is the same memory; does not include the row of it that the step looks up.
  virtual size_t weight_bytes() const = 0;
};

}  // namespace outrider
