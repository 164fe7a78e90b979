#include "coordinator/policy/measured_choice.h"

#include <algorithm>
#include <utility>

namespace outrider {
namespace {

// Rounds of a trial. The times of so few differ by a few percent by chance.
constexpr int kTrial = 16;
constexpr double kClearlyBetter = 0.97;
// A trial of the worse one takes at most a ninth of the rounds, and a 65th in the end.
constexpr int kFirstPause = 8 * kTrial;
constexpr int kLongestPause = 64 * kTrial;

}  // namespace

bool MeasuredChoice::Next() {
  if (pause_ == 0) {
    // Nothing is known yet, and the first rounds are slow for other reasons.
    pause_ = kFirstPause;
    rounds_left_ = kTrial;
  }
  if (rounds_left_-- == 0) {
    if (trying_) {
      EndTrial();
    } else {
      rounds_left_ = kTrial - 1;
      trying_ = true;
      // Measurements from long ago do not compare with the present.
      (other_is_better_ ? usual_ : other_) = RunningMean(kDecay);
    }
  }
  return other_is_better_ != trying_;
}

void MeasuredChoice::EndTrial() {
  const double present = (other_is_better_ ? other_ : usual_).mean(0);
  const double tried = (other_is_better_ ? usual_ : other_).mean(present);
  trying_ = false;
  if (tried < kClearlyBetter * present) {
    other_is_better_ = !other_is_better_;
    pause_ = kFirstPause;
  } else {
    pause_ = std::min(2 * pause_, kLongestPause);
  }
  rounds_left_ = pause_ - 1;
}

void MeasuredChoice::Observe(bool other, double seconds, int tokens) {
  if (tokens > 0) (other ? other_ : usual_).Observe(seconds / tokens, tokens);
}

}  // namespace outrider
