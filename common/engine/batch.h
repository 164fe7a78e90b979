// The input and output of a forward pass.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/types/span.h"
#include "common/engine/device_task.h"
#include "common/kv/block_id.h"
#include "common/kv/slot_move.h"
#include "common/spec/types.h"

namespace outrider {

// Most rows of a batch that return logits. Logits take memory, half a megabyte a row with 128,000 tokens.
inline constexpr int kMaxLogitRows = 2048;

// The rows of one sequence in a batch.
struct SequenceRows {
  absl::Span<const TokenId> tokens;  // the new tokens, at least one; a row each
  int position = 0;                  // slot of tokens[0]: how many tokens the cache has already
  absl::Span<const BlockId> blocks;  // slot s is in blocks[s / block_size]; covers the new tokens
  int logit_rows = 0;                // the logits of this many tokens, the last ones, are returned
  // Work that the model does on these logits itself instead of returning them. Only a task that Model::CanRun
  // accepts. For a proposal the blocks must also cover the drafted tokens.
  DeviceTask* task = nullptr;
  // A tree of drafted tokens at the end of the sequence: node i is in slot tree_begin + i and follows node
  // parents[i], an earlier one, or with -1 the token in slot tree_begin - 1. Its position is tree_begin + its
  // depth, and it attends to the slots before tree_begin, to its ancestors and to itself. `parents` has all
  // nodes up to the last of `tokens`, those that were computed before included. Empty: a slot is a position,
  // and each token follows the one before it.
  int tree_begin = 0;
  absl::Span<const int> parents = {};
  // The hidden states of this many tokens, the last ones, are returned. Only from models that have them.
  int hidden_rows = 0;
  // float32 [*, DecoderSpec::embedding_columns]: what the last tokens are embedded as, whatever their ids
  // are. Only for models that have hidden states.
  absl::Span<const float> embeddings = {};
  // float32 [*, hidden_size]: the residual streams of the first tokens, but not of all, after
  // PassOptions::resume_after layers. An earlier pass computed these layers and left their keys and values in
  // the cache; this one goes on from there.
  absl::Span<const float> resumed = {};
};

// The rows of a batch that are not resumed. Nothing of them is wanted.
std::vector<SequenceRows> NotResumed(absl::Span<const SequenceRows> batch, int hidden_size);

// What a forward pass computes, for all sequences of its batch. Only models that have hidden states take
// anything but the default.
struct PassOptions {
  int layers = 0;                   // the first ones only, before the final norm and the head; 0: all
  absl::Span<const int> taps = {};  // after how many layers, at most those, hidden states are wanted too
  // After how many layers, fewer than are computed, SequenceRows::resumed is; 0: nothing is. Not with taps.
  int resume_after = 0;
};

// Hidden states, float32 [rows, columns]: the hidden_rows of each sequence of the batch, in the batch's order
// and by position. A row has what the head multiplies, which is the final norm's output, and then the
// residual stream after each of the pass's taps: hidden_size each.
struct HiddenView {
  const float* data = nullptr;
  int rows = 0;
  int columns = 0;

  HiddenView Rows(int first, int count) const { return {row(first).data(), count, columns}; }
  absl::Span<const float> row(int r) const {
    return {data + static_cast<size_t>(r) * static_cast<size_t>(columns), static_cast<size_t>(columns)};
  }
};

// float32 logits, row-major [rows, vocab]: the logit_rows of each sequence of the batch, in the batch's order
// and by position. Sequences with a task have none. The caller may overwrite them, as sampling controls do.
struct LogitsView {
  float* data = nullptr;
  int rows = 0;
  int vocab = 0;
  HiddenView hidden = {};

  absl::Span<float> row(int r) const {
    return absl::MakeSpan(data + static_cast<size_t>(r) * static_cast<size_t>(vocab),
                          static_cast<size_t>(vocab));
  }
};

}  // namespace outrider
