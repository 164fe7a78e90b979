#include "common/spec/controls.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/spec/check.h"
#include "common/spec/status.h"
#include "common/spec/weights.h"

namespace outrider {
namespace {

constexpr float kRemoved = -std::numeric_limits<float>::infinity();

absl::Status CheckIds(absl::string_view field, const std::vector<TokenId>& ids, int vocab) {
  for (TokenId id : ids) {
    if (id < 0 || id >= vocab) return OutOfRange(field, id, absl::StrCat("[0, ", vocab, ")"));
  }
  return absl::OkStatus();
}

absl::Status CheckBias(const std::vector<std::pair<TokenId, float>>& bias, int vocab) {
  absl::flat_hash_set<TokenId> seen;
  for (const auto& [id, value] : bias) {
    if (id < 0 || id >= vocab) return OutOfRange("logit_bias", id, absl::StrCat("[0, ", vocab, ")"));
    if (!(value >= -100 && value <= 100)) return OutOfRange("logit_bias", value, "[-100, 100]");
    if (!seen.insert(id).second) {
      const std::string problem = absl::StrCat("id ", id, " is given twice");
      return FieldError("logit_bias", "each id once", problem, absl::StrCat("logit_bias: ", problem));
    }
  }
  return absl::OkStatus();
}

// The Row of ShapeInOrder, on the host. After KeepLargest it works only on the kept tokens.
class HostRow {
 public:
  HostRow(std::span<float> row, float largest, ControlsScratch& scratch)
      : row_(row), values_(row), largest_(largest), scratch_(scratch) {}

  int size() const { return static_cast<int>(row_.size()); }
  void KeepLargest(int k) {
    SelectLargest(row_, static_cast<size_t>(k), kLeastFinite, scratch_.ids, scratch_.values);
    values_ = scratch_.values;
  }
  void Exponentiate(float inverse_temperature) { ExpInPlace(values_, largest_, inverse_temperature); }
  void KeepMass(double share) { outrider::KeepMass(values_, share * SumWeights(values_), scratch_.mass); }
  void RemoveBelow(float bound) { outrider::RemoveBelow(values_, bound); }
  // Writes the weights to the row and returns their sum.
  double Finish() {
    if (values_.data() != row_.data()) {
      std::ranges::fill(row_, 0.0f);
      for (size_t i = 0; i < values_.size(); ++i) row_[scratch_.ids[i]] = values_[i];
    }
    return SumWeights(row_);
  }

 private:
  const std::span<float> row_;
  std::span<float> values_;  // for all tokens, or for those in scratch_.ids
  const float largest_;
  ControlsScratch& scratch_;
};

// Whether some token is allowed, not bad, and not held back by min_tokens.
bool SomeTokenIsLeft(const SamplingParams& params, int vocab) {
  absl::flat_hash_set<TokenId> removed(params.bad_ids.begin(), params.bad_ids.end());
  if (params.min_tokens > 0) removed.insert(params.eos_ids.begin(), params.eos_ids.end());
  if (params.allowed_ids.empty()) return removed.size() < static_cast<size_t>(vocab);
  return std::ranges::any_of(params.allowed_ids, [&](TokenId id) { return !removed.contains(id); });
}

}  // namespace

absl::Status ValidateSamplingParams(const SamplingParams& params, int vocab) {
  if (params.top_k < 0) return OutOfRange("top_k", params.top_k, "[0, 2147483647]");
  const struct {
    const char* field;
    double value, least, most;
    const char* range;
  } ranges[] = {{"temperature", params.temperature, 0, 100, "[0, 100]"},
                {"top_p", params.top_p, std::numeric_limits<double>::denorm_min(), 1, "(0, 1]"},
                {"min_p", params.min_p, 0, 1, "[0, 1]"},
                // At least 0.01, so that a logit divided by the penalty stays finite.
                {"repetition_penalty", params.repetition_penalty, 0.01, 10, "[0.01, 10]"},
                {"presence_penalty", params.presence_penalty, -2, 2, "[-2, 2]"},
                {"frequency_penalty", params.frequency_penalty, -2, 2, "[-2, 2]"}};
  for (const auto& [field, value, least, most, range] : ranges) {
    if (!(value >= least && value <= most)) return OutOfRange(field, value, range);  // NaN too
  }
  OUTRIDER_TRY(CheckBias(params.logit_bias, vocab));
  OUTRIDER_TRY(CheckIds("allowed_ids", params.allowed_ids, vocab));
  OUTRIDER_TRY(CheckIds("bad_ids", params.bad_ids, vocab));
  if (params.min_tokens < 0) return OutOfRange("min_tokens", params.min_tokens, "[0, 2147483647]");
  OUTRIDER_TRY(CheckIds("eos_ids", params.eos_ids, vocab));
  if (!SomeTokenIsLeft(params, vocab)) {
    return FieldError("allowed_ids", "ids of which bad_ids and min_tokens leave at least one",
                      "together with bad_ids and min_tokens no token is left");
  }
  return absl::OkStatus();
}

team::RowControls ToRowControls(const SamplingParams& params) {
  team::RowControls controls;
  controls.greedy = params.temperature == 0 ? 1 : 0;
  // The inverse of a tiny temperature is infinity, and 0 * infinity would turn the maximum's weight into NaN.
  if (params.temperature > 0) {
    controls.inverse_temperature =
        static_cast<float>(std::min<double>(1 / params.temperature, std::numeric_limits<float>::max()));
  }
  controls.top_k = params.top_k;
  controls.top_p = params.top_p;
  controls.min_p = static_cast<float>(params.min_p);
  return controls;
}

void TokenCounts::Update(std::span<const TokenId> context) {
  const size_t shared = std::min(context.size(), context_.size());
  const size_t same =
      std::mismatch(context.begin(), context.begin() + shared, context_.begin()).first - context.begin();
  for (size_t i = same; i < context_.size(); ++i) Add(i, -1);
  context_.resize(same);
  context_.insert(context_.end(), context.begin() + same, context.end());
  for (size_t i = same; i < context_.size(); ++i) Add(i, 1);
}

absl::StatusOr<Controls> Controls::Create(SamplingParams params, size_t prompt_length, int vocab) {
  OUTRIDER_TRY(ValidateSamplingParams(params, vocab));
  return Controls(std::move(params), prompt_length, vocab);
}

Controls::Controls(SamplingParams params, size_t prompt_length, int vocab)
    : params_(std::move(params)),
      row_controls_(ToRowControls(params_)),
      prompt_length_(prompt_length),
      vocab_(vocab),
      counts_(prompt_length),
      mask_(params_.grammar == nullptr ? nullptr : params_.grammar->NewMask()) {}

void Controls::ApplyPenalties(std::span<const TokenId> context, std::span<float> row) {
  for (const auto& [id, bias] : params_.logit_bias) row[id] += bias;
  if (params_.repetition_penalty == 1 && params_.presence_penalty == 0 && params_.frequency_penalty == 0) {
    return;
  }
  counts_.Update(context);
  const float repetition = static_cast<float>(params_.repetition_penalty);
  for (const auto& [id, count] : counts_.counts()) {
    float& logit = row[id];
    logit = logit < 0 ? logit * repetition : logit / repetition;
    if (count.output > 0) {
      logit = static_cast<float>(logit - params_.presence_penalty - params_.frequency_penalty * count.output);
    }
  }
}

bool Controls::ApplyMasks(std::span<const TokenId> context, std::span<float> row) {
  const bool hold_eos = context.size() < prompt_length_ + params_.min_tokens && !params_.eos_ids.empty();
  if (params_.allowed_ids.empty() && params_.bad_ids.empty() && !hold_eos && mask_.get() == nullptr)
    return false;
  if (!params_.allowed_ids.empty()) {
    std::vector<float>& values = scratch_.values;
    values.clear();
    for (TokenId id : params_.allowed_ids) values.push_back(row[id]);
    std::ranges::fill(row, kRemoved);
    for (size_t i = 0; i < values.size(); ++i) row[params_.allowed_ids[i]] = values[i];
  }
  for (TokenId id : params_.bad_ids) row[id] = kRemoved;
  if (mask_.get() != nullptr && context.size() >= prompt_length_) {
    mask_.get()->Apply(context.subspan(prompt_length_), row);
  }
  if (hold_eos) {
    std::vector<float>& values = scratch_.values;
    values.clear();
    for (TokenId id : params_.eos_ids) values.push_back(std::exchange(row[id], kRemoved));
    if (mask_.get() != nullptr && FindMax(row).value == kRemoved) {
      for (size_t i = values.size(); i-- > 0;) row[params_.eos_ids[i]] = values[i];
    }
  }
  return true;
}

absl::StatusOr<WeightRow> Controls::Apply(std::span<const TokenId> context, std::span<float> row) {
  OUTRIDER_CHECK(row.size() == static_cast<size_t>(vocab_));
  ApplyPenalties(context, row);
  MaxResult max = FindMax(row);
  if (!max.finite) return NotFiniteError();
  if (ApplyMasks(context, row)) max = FindMax(row);
  if (max.value == kRemoved) {
    return InvalidFor(kNoTokenLeft, "the grammar, allowed_ids and bad_ids leave no token");
  }
  if (greedy()) return WeightRow{.point_mass = max.index, .logits = row};
  HostRow shaping(row, max.value, scratch_);
  ShapeInOrder(shaping, row_controls_);
  return WeightRow{.weights = row, .total = shaping.Finish()};
}

}  // namespace outrider
