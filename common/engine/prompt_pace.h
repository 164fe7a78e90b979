// Limits the rows of prompts in a step.
#pragma once

#include "absl/time/time.h"
#include "common/spec/step_time.h"

namespace outrider {

// Keeps prompts from stalling the sequences that decode: a step with both takes at most kSlower times as long
// as one without prompts, by measured times. Where rows cost little, as on a GPU, that is a large part of a
// prompt. Engine thread only.
class PromptPace {
 public:
  static constexpr double kSlower = 2.5;
  static constexpr int kLeastRows = 8;  // so that prompts go on in any case
  // A sequence that decodes has nothing pending while its answer is on its way and the draft proposes.
  static constexpr absl::Duration kBetweenRounds = absl::Milliseconds(30);

  // Returns the most rows of prompts, at most `most`, in a step in which sequences that decode have
  // `decoding` rows.
  int MostRows(int decoding, int most, const StepTime& step_time, absl::Time now) {
    if (decoding > 0) {
      decoding_ = decoding;
      decoded_at_ = now;
    } else if (now - decoded_at_ > kBetweenRounds) {
      return most;
    }
    const double allowed = kSlower * step_time.Seconds(decoding_);
    int rows = kLeastRows;
    for (int more = rows; more <= most && step_time.Seconds(decoding_ + more) <= allowed; more += more / 2) {
      rows = more;
    }
    return rows;
  }

 private:
  int decoding_ = 0;  // rows of the last step in which any sequence decoded
  absl::Time decoded_at_ = absl::InfinitePast();
};

}  // namespace outrider
