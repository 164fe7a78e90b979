#include "common/engine/step_gather.h"

#include <algorithm>

namespace outrider {
namespace {

// A sequence that was answered this long ago is forgotten.
constexpr absl::Duration kGone = absl::Seconds(1);
// How fast the expected time follows longer and shorter ones: most returns are to be within it.
constexpr double kLonger = 0.5, kShorter = 0.1;
// How fast the expected time of new sequences follows that of others.
constexpr double kTypical = 0.1;
// By how much the expected time shrinks with a return whose time is unknown, so that a sequence that once
// was late is waited for again.
constexpr double kForget = 0.02;
// How often the time saved must cover a wait, since some sequences do not return when expected.
constexpr double kWorth = 2;

}  // namespace

void StepGather::OnAnswer(const SequenceId& id, int rows, absl::Time now) {
  Sequence& sequence = sequences_[id];
  if (sequence.answered == absl::Time()) sequence.expected = typical_;
  sequence.away = true;
  sequence.overdue = false;
  sequence.answered = now;
  sequence.rows = rows;
  sequence.step = steps_;
}

void StepGather::OnItem(const SequenceId& id, absl::Time now) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end() || !found->second.away) return;
  Sequence& sequence = found->second;
  sequence.away = false;
  const absl::Duration away = now - sequence.answered;
  if (away <= sequence.expected) {
    sequence.expected += (away - sequence.expected) * kShorter;
  } else if (sequence.step == steps_ || sequence.overdue) {
    sequence.expected += std::min((away - sequence.expected) * kLonger, sequence.expected);
  } else {
    // It came during a step and is seen only now.
    sequence.expected *= 1 - kForget;
    return;
  }
  typical_ += (sequence.expected - typical_) * kTypical;
}

absl::Time StepGather::StepAt(int rows, const StepTime& step_time, absl::Time now) {
  int others = 0;  // rows
  absl::erase_if(sequences_, [&](auto& entry) {
    Sequence& sequence = entry.second;
    if (sequence.away && sequence.due() > now) others += sequence.rows;
    if (sequence.step == steps_ && sequence.due() <= now) sequence.overdue = true;
    return now - sequence.answered > kGone;
  });
  if (others == 0) return now;
  const double saved = step_time.Seconds(rows) + step_time.Seconds(others) - step_time.Seconds(rows + others);
  const absl::Time latest = now + absl::Seconds(saved / kWorth);
  absl::Time step = now;
  for (const auto& [id, sequence] : sequences_) {
    if (sequence.away && sequence.due() <= latest) step = std::max(step, sequence.due());
  }
  return step;
}

}  // namespace outrider
