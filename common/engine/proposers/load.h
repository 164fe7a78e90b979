// Loads the proposers that run on the target itself.
//
// A folder has config.json, and model.safetensors where there are weights. The field `proposer` of
// config.json names the kind, and `target_weights_hash` the weights that it was trained for
// (Checkpoint::Hash, 16 hexadecimal digits). Further fields by kind:
//
//   medusa      medusa_num_heads; medusa_num_layers: residual blocks per head
//   blockwise   num_heads, intermediate_size
//   eagle       those of a Llama with one layer; draft_vocab_size: how many tokens it drafts from
//               (head_folder.h)
//   layer_skip  exit_layer: how many layers the draft has
//   pass        lookahead_tokens
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/engine/backend.h"
#include "common/engine/decoder/decoder_config.h"
#include "common/engine/decoder/tensor_source.h"
#include "common/engine/model.h"
#include "common/engine/proposers/proposer.h"
#include "common/engine/runner_options.h"
#include "common/engine/thread_pool.h"

namespace outrider {

// The target of the proposers. All references except `options` and `weights` must outlive them.
struct ProposerTarget {
  const Backend& backend;
  const RunnerOptions& options;
  const DecoderConfig& decoder;
  const TensorSource& weights;
  uint64_t weights_hash;
  Model& model;
  ThreadPool& threads;
};

// The most bytes that the proposers keep beside each block of the target's keys and values. Errors of a
// folder are left to LoadProposers.
size_t ProposerBytesPerBlock(const RunnerOptions& options, const DecoderConfig& decoder);

// Loads one proposer for each folder of options.heads, in the order of their kinds. Errors are on one line
// and name the folder: INVALID_ARGUMENT for an invalid config, sizes that are not the target's, other weights
// than those it was trained for, a repeated kind, or an engine without hidden states; else those of
// SafeTensors.
absl::StatusOr<std::vector<std::unique_ptr<Proposer>>> LoadProposers(const ProposerTarget& target);

}  // namespace outrider
