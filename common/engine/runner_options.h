// Options for loading a model, and the intermediate results of a forward pass that an observer receives, for
// tools that compare engines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace outrider {

// The stages, in the order of computation. Keys and values are read from the cache (Model::ReadSlot).
inline constexpr absl::string_view kEmbedded = "embedded";  // [hidden], before the first layer
inline constexpr absl::string_view kQueries = "queries";    // [heads * head_dim], rotated and not scaled
inline constexpr absl::string_view kAttended = "attended";  // [heads * head_dim]
inline constexpr absl::string_view kAfterAttention = "after attention";  // [hidden], the residual stream
inline constexpr absl::string_view kActivated = "activated";     // [intermediate], the MLP's activations
inline constexpr absl::string_view kAfterMlp = "after the MLP";  // [hidden], the residual stream

// The rows of one stage, for RunnerOptions::observe. Model::Forward calls that function on its own thread,
// once per stage of every forward pass, including passes that draft tokens. If processes share a model, rank
// 0 shows only its share of the heads and of the MLP's columns.
//
// The rows are the batch's tokens, in its order. From kAfterAttention of the last layer on, a model may omit
// rows that return no logits, so comparisons should request all logits. A model that pads its batches shows
// further, meaningless rows at the end.
struct StageOutput {
  absl::string_view name;  // one of the above
  int layer = 0;           // from 0; kEmbedded: 0
  int columns = 0;
  absl::Span<const float> values;  // [rows, columns], valid during the call
};

// How several processes share a model; for the engine torch. Rank 0 decides what is computed.
struct ParallelOptions {
  int size = 1;                                // processes
  int rank = 0;                                // which of them this is
  std::string rendezvous = "127.0.0.1:29500";  // HOST:PORT where rank 0 listens and the others find it
  // Called when this rank begins to wait for the others. May be null.
  std::function<void()> on_wait;
  // Called from any thread when a rank that this one needs is gone: the process must end. May be null.
  std::function<void(const absl::Status& why)> on_lost;
};

// The role of a model. On a GPU, a draft's steps run before those of other models in its process, since they
// are short and the target waits for them. A model captures the steps of its role when it is loaded.
enum class ModelRole : uint8_t { kAny, kDraft, kTarget };

// The dtype of a model some of whose weights stay packed.
inline constexpr char kPackedDtype[] = "packed";

struct RunnerOptions {
  std::string model_dir;          // a folder with config.json and safetensors, or a GGUF file
  std::string engine = "native";  // native kernels for the device, or "torch": libtorch
  std::string device = "cpu";     // or "cuda:N"
  // On the CPU: float32, bfloat16, int8 (weights only, one scale per output; bfloat16 keys and values) or
  // auto. auto is bfloat16 if the CPU has instructions for it, else float32, but matrices stored in blocks
  // (decoder/blocks.h) stay packed, and Model::dtype is then kPackedDtype. On a GPU: bfloat16, fp8 (e4m3
  // weights and operands; bfloat16 keys and values) or auto, which is bfloat16. With the engine torch:
  // float32, bfloat16 or auto, which is float32 on the CPU and bfloat16 on a GPU.
  std::string dtype = "auto";
  int threads = 0;  // compute threads, the caller's included; 0: one per CPU this process may run on
  // Further bytes per block of the pool, for the data that proposers keep beside it. Set by Runner::Load;
  // used if kv_blocks is 0.
  size_t more_block_bytes = 0;
  int kv_blocks = 0;  // size of the pool; 0: as many as fit kv_memory_fraction of the free memory
  double kv_memory_fraction = 0.3;
  // For drafts: compute logits only for this many of the most frequent tokens (frequent_head.h) and for those
  // of the text. 0: for all tokens.
  int frequent_tokens = 0;
  int max_sequences = 256;   // the most sequences that the pool must hold; used if kv_blocks is 0
  int block_size = 16;       // tokens per block
  int max_batch_rows = 512;  // the most rows of a forward pass, over all its sequences
  // If kv_blocks is 0, replaces kv_memory_fraction: returns the bytes of the pool, given the bytes that are
  // free after all other allocations. Called once, by the thread that loads. May be null.
  std::function<double(double free_bytes, size_t block_bytes)> pool_bytes;
  // For the native kernels on a GPU: a file of cuBLAS algorithms. It is written if it does not exist and
  // read otherwise, so that a later start computes the same bits. Empty: none.
  std::string matmul_algorithms;
  ModelRole role = ModelRole::kAny;
  ParallelOptions parallel;
  // For tools: called with the output of each stage of a forward pass, which makes it slow. May be null.
  std::function<void(const StageOutput& output)> observe;
  std::vector<std::string> heads;  // folders of proposers on the target itself (proposers/load.h)
  std::string kernels;             // for the CPU, by name (FindKernels); empty: the best supported
  std::function<void(double fraction)> progress;  // called by Load with 0 to 1, never decreasing; may be null
};

}  // namespace outrider
