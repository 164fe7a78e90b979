// The input and output of a forward pass.
#pragma once

#include <cstddef>
#include <cstdint>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/engine/sequence_params.h"
#include "common/kv/block_id.h"
#include "common/spec/types.h"
#include "common/spec/verify.h"

namespace outrider {

// Most rows of a batch that return logits. Logits take memory, half a megabyte a row with 128,000 tokens.
inline constexpr int kMaxLogitRows = 2048;

// Drafts K tokens; each but the last is fed back to draft the next one. Needs one row of logits.
struct ProposeTask {
  int draft_tokens = 0;    // K, at least 1
  Proposal proposal = {};  // the result
};

// Verifies a draft whose tokens are the last ones of the sequence. Needs a row of logits for each drafted
// token and one more.
struct VerifyTask {
  absl::Span<const ProposalNode> draft = {};  // a chain
  Verdict verdict = {};                       // the result
};

// A task for a device. Model::CanRun says which ones a model supports; the host handles the others from
// logits. The result is the one that common/spec gives for the same logits and random numbers.
struct DeviceTask {
  const SequenceParams* params = nullptr;
  uint64_t round_start = 0;  // tokens of the sequence before the draft
  std::variant<ProposeTask, VerifyTask> work = {};
  absl::Status status = {};  // the result; INTERNAL "logits_not_finite" if a logit is NaN or infinite
};

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
};

// What a forward pass computes, for all sequences of its batch. Only models that have hidden states take
// anything but the default.
struct PassOptions {
  int layers = 0;                   // the first ones only, before the final norm and the head; 0: all
  absl::Span<const int> taps = {};  // after how many layers, at most those, hidden states are wanted too
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
