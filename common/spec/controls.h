// Sampling controls turn a row of logits into the distribution that is sampled. Draft and target run the same
// code at each position, with that position's own context, so that the draft predicts what the target will
// do.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/spec/distribution.h"
#include "common/spec/selection.h"
#include "common/spec/shape_in_order.h"
#include "common/spec/token_mask.h"
#include "common/spec/types.h"

namespace outrider {

// The defaults change nothing: the model's own distribution at temperature 1.
struct SamplingParams {
  double temperature = 1;         // [0, 100]; 0 is greedy, ties to the lowest id
  int top_k = 0;                  // >= 0; 0 is off; ties at the cut go to the lowest ids, exactly k stay
  double top_p = 1;               // (0, 1]; 1 is off
  double min_p = 0;               // [0, 1]; 0 is off
  double repetition_penalty = 1;  // [0.01, 10]; over prompt and output
  double presence_penalty = 0;    // [-2, 2]; over output
  double frequency_penalty = 0;   // [-2, 2]; over output
  std::vector<std::pair<TokenId, float>> logit_bias = {};  // each id once, bias in [-100, 100]
  std::vector<TokenId> allowed_ids = {};                   // empty is all
  std::vector<TokenId> bad_ids = {};
  int min_tokens = 0;                 // eos_ids are removed until this many tokens were output
  std::vector<TokenId> eos_ids = {};  // for min_tokens only; the coordinator decides what ends the text
  std::shared_ptr<const TokenMaskSource> grammar = nullptr;  // constrains the output; null: none
};

// InvalidArgument naming the field, its value and its range.
absl::Status ValidateSamplingParams(const SamplingParams& params, int vocab);

// The controls that follow the penalties and masks, in the types that rows are computed with.
team::RowControls ToRowControls(const SamplingParams& params);

// Counts how often each token occurs in a context. Update costs the number of tokens by which the context
// differs from the last one, plus one comparison of the shared part.
class TokenCounts {
 public:
  struct Count {
    int prompt = 0;
    int output = 0;
  };
  // Tokens with index below prompt_length are the prompt.
  explicit TokenCounts(size_t prompt_length) : prompt_length_(prompt_length) {}

  void Update(std::span<const TokenId> context);
  const absl::flat_hash_map<TokenId, Count>& counts() const { return counts_; }

 private:
  void Add(size_t index, int by) {
    const auto it = counts_.try_emplace(context_[index]).first;
    Count& count = it->second;
    (index < prompt_length_ ? count.prompt : count.output) += by;
    if (count.prompt == 0 && count.output == 0) counts_.erase(it);
  }

  size_t prompt_length_;
  std::vector<TokenId> context_;
  absl::flat_hash_map<TokenId, Count> counts_;
};

// Memory that Controls reuses from row to row.
struct ControlsScratch {
  MassScratch mass;
  std::vector<TokenId> ids;   // the tokens that survive top_k, ascending
  std::vector<float> values;  // their weights; during ApplyMasks, the logits that it restores
};

// The controls of one sequence. Not synchronised: one thread at a time. Holds scratch memory, so that a row
// allocates nothing in the steady state.
class Controls {
 public:
  static constexpr char kNoTokenLeft[] = "NO_TOKEN_LEFT";

  // `prompt_length` separates prompt from output in a context. Fails as ValidateSamplingParams does, also if
  // the ids leave no token that could ever be sampled.
  static absl::StatusOr<Controls> Create(SamplingParams params, size_t prompt_length, int vocab);

  // Shapes `row` (the logits of one position, [vocab], float32) in place. `context` is every token before the
  // position, drafted ones included; a span over the same growing sequence makes penalties cheap. Order:
  // logit_bias, repetition, presence, frequency, allowed and bad ids, the grammar, min_tokens, temperature,
  // top_k, top_p, min_p. If only eos_ids are left, min_tokens does not remove them. Each control does what
  // the `transformers` processor of the same name does, if there is one, except for ties at the top_k and
  // top_p cuts, which go to the lowest ids.
  //
  // The result refers to `row`. Internal "logits_not_finite" if a logit is NaN or infinite, also after bias
  // and penalties; InvalidArgument, reason kNoTokenLeft, if the masks together leave no token. The row is
  // then undefined.
  absl::StatusOr<WeightRow> Apply(std::span<const TokenId> context, std::span<float> row);

  const SamplingParams& params() const { return params_; }
  bool greedy() const { return row_controls_.greedy != 0; }
  int vocab() const { return vocab_; }

 private:
  Controls(SamplingParams params, size_t prompt_length, int vocab);
  void ApplyPenalties(std::span<const TokenId> context, std::span<float> row);
  // Returns whether any token may have been removed.
  bool ApplyMasks(std::span<const TokenId> context, std::span<float> row);

  SamplingParams params_;
  team::RowControls row_controls_;
  size_t prompt_length_;
  int vocab_;
  TokenCounts counts_;
  AnyTokenMask mask_;  // the grammar's
  ControlsScratch scratch_;
};

}  // namespace outrider
