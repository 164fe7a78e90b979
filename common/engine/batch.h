// The input and output of a forward pass.
#pragma once

#include <cstddef>
#include <cstdint>
#include <variant>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/engine/sequence_params.h"
#include "common/kv/block_id.h"
#include "common/spec/types.h"
#include "common/spec/verify.h"

namespace outrider {

// The maximum number of rows in a batch that return logits. A row of 128,000 logits takes half a megabyte.
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
  int logit_rows = 0;                // how many of the last tokens return logits
  // A task that the model runs on these logits instead of returning them; Model::CanRun must accept it. For a
  // proposal, the blocks must also cover the drafted tokens.
  DeviceTask* task = nullptr;
  // A tree of drafted tokens at the end of the sequence. Node i is in slot tree_begin + i and follows the
  // earlier node parents[i] or, if that is -1, the token in slot tree_begin - 1. Its position is tree_begin +
  // its depth. It attends to the slots before tree_begin, its ancestors and itself. `parents` covers all
  // nodes up to the last of `tokens`, including those computed before. If it is empty, a slot is a position,
  // and each token follows the one before it.
  int tree_begin = 0;
  absl::Span<const int> parents = {};
  // How many of the last tokens return hidden states. Only for models that have them.
  int hidden_rows = 0;
  // Tokens that are to have logits though a cut head lacks them (text_tokens.h). Then the sequence has no
  // hidden_rows.
  absl::Span<const TokenId> text = {};
  // float32 [*, DecoderConfig::embedding_columns]: embeddings of the last tokens, used in place of those of
  // their ids. Only for models that have hidden states.
  absl::Span<const float> embeddings = {};
};

// Options of a forward pass, for all sequences of its batch. Models without hidden states accept only the
// defaults.
struct PassOptions {
  int layers = 0;                   // run this many layers before the final norm and the head; 0: all
  absl::Span<const int> taps = {};  // also return hidden states after these layer counts (of the layers run)
};

// Hidden states, float32 [rows, columns]: the hidden_rows of each sequence of the batch, in the batch's order
// and by position. A row holds the head's input (the final norm's output), then the residual stream after
// each of the pass's taps: hidden_size columns each.
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
