// A draft and a target that take a given time by the clock and no CPU time, so that a machine with two cores
// can measure the gain of a schedule on a pair of any speed. How often they agree, and how often the target
// chooses the token that the draft would have chosen next, are chosen numbers, independent of each other.
//
// At temperature 0, choices depend on the position alone. The draft's first choice for a position is one
// token, its second choice another. In a verification, row i, which follows i accepted tokens, has
//   the first choice with probability alpha, if a drafted token is judged there; else
//   the second choice with probability hits[i], else a token that the draft would not propose.
// The last row, where no token is judged, has the first choice with probability hits[i], else a token that
// the draft would not propose. Thus a draft that assumed the outcome with i accepted tokens is right with
// probability hits[i]; beyond the end of the list, its last entry applies. The target's choice in the last
// row depends on the row's place in the batch, as no real model may do: a text depends on K and the schedule.
#pragma once

#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/engine/backend.h"
#include "common/engine/model.h"
#include "common/spec/random.h"
#include "common/spec/types.h"

namespace outrider {

struct TimedLaw {
  double alpha = 0;
  std::vector<double> hits;  // by accepted tokens; not empty
};

// The choices for a position, from three ranges of tokens that have text, so that they differ.
class TimedChoices {
 public:
  explicit TimedChoices(int position) : position_(static_cast<uint64_t>(position)) {}
  TokenId first() const { return Token(0); }
  TokenId second() const { return Token(1); }

  // The target's choice in a row that follows `accepted` drafted tokens.
  TokenId Target(const TimedLaw& law, size_t accepted, bool judges) const {
    const double hit = law.hits[std::min(accepted, law.hits.size() - 1)];
    if (judges && Number(kAgrees) < law.alpha) return first();
    if (Number(kHits) >= hit) return Token(2);
    return judges ? second() : first();
  }

 private:
  enum : uint64_t { kAgrees = 3, kHits = 4 };
  static constexpr int kRange = 1000;

  double Number(uint64_t what) const { return Uniform({}, position_, Purpose::kDraft, what, 0); }
  TokenId Token(int range) const {
    const double number = Number(static_cast<uint64_t>(range));
    return 300 + range * kRange + static_cast<TokenId>(number * kRange);
  }

  const uint64_t position_;
};

struct TimedModelOptions {
  bool is_draft = false;
  const std::atomic<const TimedLaw*>* law = nullptr;  // may change between steps
  std::chrono::duration<double> step{0};
  std::chrono::duration<double> more_per_row{0};  // beyond the first
};

class TimedModel final : public Model {
 public:
  TimedModel(const TimedModelOptions& timed, const DecoderConfig& spec, const RunnerOptions& options)
      : timed_(timed), spec_(spec), kv_blocks_(options.kv_blocks) {}

  absl::StatusOr<LogitsView> Forward(absl::Span<const SequenceRows> batch,
                                     const PassOptions& /*pass*/) override {
    const auto begun = std::chrono::steady_clock::now();
    if (!std::exchange(is_precise_, true)) prctl(PR_SET_TIMERSLACK, 1);  // of this thread, in nanoseconds
    size_t rows = 0, logit_rows = 0;
    for (const SequenceRows& sequence : batch) {
      rows += sequence.tokens.size();
      logit_rows += static_cast<size_t>(sequence.logit_rows);
    }
    logits_.assign(logit_rows * static_cast<size_t>(spec_.vocab_size), 0);
    const LogitsView view{logits_.data(), static_cast<int>(logit_rows), spec_.vocab_size};
    int row = 0;
    for (const SequenceRows& sequence : batch) {
      const int next = sequence.position + static_cast<int>(sequence.tokens.size());  // after the last row
      for (int i = 0; i < sequence.logit_rows; ++i) {
        Fill(view.row(row++), TimedChoices(next - sequence.logit_rows + 1 + i), static_cast<size_t>(i),
             i + 1 < sequence.logit_rows);
      }
    }
    const auto time = timed_.step + static_cast<double>(rows - 1) * timed_.more_per_row;
    std::this_thread::sleep_until(begun + time);
    return view;
  }
  void CopyBlock(BlockId, BlockId) override {}
  void MoveSlots(absl::Span<const BlockId>, absl::Span<const SlotMove>) override {}
  absl::Status ReadSlot(BlockId, int, absl::Span<float>) override {
    return absl::UnimplementedError("nothing is cached");
  }
  void Wake() override {}
  bool row_invariant() const override { return timed_.is_draft; }
  bool tree_row_invariant() const override { return timed_.is_draft; }
  std::string dtype() const override { return "float32"; }
  std::string kernel_name() const override { return "timed"; }
  int kv_blocks() const override { return kv_blocks_; }
  int max_positions() const override { return spec_.max_position_embeddings; }
  size_t bytes_per_block() const override { return 0; }
  size_t weight_bytes() const override { return 0; }

 private:
  void Fill(absl::Span<float> row, const TimedChoices& choices, size_t accepted, bool judges) const {
    if (timed_.is_draft) {
      row[choices.first()] = 2;
      row[choices.second()] = 1;
    } else {
      row[choices.Target(**timed_.law, accepted, judges)] = 1;
    }
  }

  const TimedModelOptions timed_;
  const DecoderConfig spec_;
  const int kv_blocks_;
  bool is_precise_ = false;
  std::vector<float> logits_;
};

class TimedBackend final : public Backend {
 public:
  explicit TimedBackend(const TimedModelOptions& timed) : timed_(timed) {}
  absl::Status Check(const RunnerOptions&) const override { return absl::OkStatus(); }
  absl::StatusOr<std::unique_ptr<Model>> Load(const DecoderConfig& spec, const TensorSource&,
                                              const RunnerOptions& options, ThreadPool&) const override {
    return std::make_unique<TimedModel>(timed_, spec, options);
  }

 private:
  const TimedModelOptions timed_;
};

}  // namespace outrider
