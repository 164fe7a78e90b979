#include "common/engine/cuda/warm_up.h"

#include <algorithm>

#include "common/engine/cuda/attention_plan.h"
#include "common/engine/cuda/step_plan.h"

namespace outrider::cuda {
namespace {

using Work = WarmUpStep::Work;

// Any ids that every vocabulary has.
TokenId AnyToken(size_t i) { return static_cast<TokenId>(i % 16); }

bool Fits(const WarmUpStep& step, const WarmUpLimits& limits) {
  return step.sequences * step.rows <= limits.rows && step.length + step.draft_tokens <= limits.positions;
}

}  // namespace

std::vector<WarmUpStep> DirectSteps(const WarmUpLimits& limits) {
  // More rows than a graph has, and more positions than a split of attention.
  const int prompt = std::min({limits.rows, limits.positions, std::max(kMaxCapturedRows, kSplit) + 1});
  std::vector<WarmUpStep> steps = {{.rows = prompt, .length = prompt},
                                   {.rows = 2, .length = 2, .work = Work::kVerify},
                                   {.work = Work::kPropose, .draft_tokens = 2}};
  std::erase_if(steps, [&](const WarmUpStep& step) { return !Fits(step, limits); });
  return steps;
}

std::vector<WarmUpStep> CommonSteps(const WarmUpLimits& limits) {
  constexpr int kMostDrafted = 8;
  constexpr int kLengths[] = {kSplit / 2, 2 * kSplit, 4 * kSplit}, kSequences[] = {1, 8};
  std::vector<WarmUpStep> steps;
  for (const int length : kLengths) {
    for (const int sequences : kSequences) {
      for (const int drafted : {0, kMostDrafted / 2, kMostDrafted}) {
        steps.push_back(
            {.sequences = sequences, .rows = drafted + 1, .length = length, .work = Work::kVerify});
      }
    }
  }
  for (const int length : kLengths) {
    for (const int sequences : kSequences) {
      for (int drafted = 1; drafted <= kMostDrafted; ++drafted) {
        steps.push_back(
            {.sequences = sequences, .length = length, .work = Work::kPropose, .draft_tokens = drafted});
      }
    }
  }
  std::erase_if(steps, [&](const WarmUpStep& step) { return !Fits(step, limits); });
  return steps;
}

MadeUpBatch::MadeUpBatch(const WarmUpStep& step, int block_size) {
  params_.draft_top_n = 1;  // fewer than any vocabulary has
  for (int i = 0; i < step.rows; ++i) tokens_.push_back(AnyToken(static_cast<size_t>(i)));
  blocks_.assign(static_cast<size_t>((step.length + step.draft_tokens + block_size - 1) / block_size), 0);
  if (step.work == Work::kVerify) {
    for (int i = 1; i < step.rows; ++i) {
      const TokenId token = tokens_[static_cast<size_t>(i)];
      AppendToChain(token, {.form = Distribution::Form::kPointMass, .ids = {token}, .total = 1}, draft_);
    }
  }
  const int start = step.length - static_cast<int>(draft_.size());
  tasks_.resize(step.work == Work::kLogits ? 0 : static_cast<size_t>(step.sequences));
  for (DeviceTask& task : tasks_) {
    task.params = &params_;
    task.round_start = static_cast<uint64_t>(start);
    if (step.work == Work::kVerify) {
      task.work = VerifyTask{.draft = draft_};
    } else {
      task.work = ProposeTask{.draft_tokens = step.draft_tokens};
    }
  }
  for (int s = 0; s < step.sequences; ++s) {
    rows_.push_back({.tokens = tokens_,
                     .position = step.length - step.rows,
                     .blocks = blocks_,
                     .logit_rows = static_cast<int>(draft_.size()) + 1,
                     .task = tasks_.empty() ? nullptr : &tasks_[static_cast<size_t>(s)]});
  }
}

}  // namespace outrider::cuda
