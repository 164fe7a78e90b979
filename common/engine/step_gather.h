// Decides whether a step waits for sequences that are about to return.
#pragma once

#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "common/kv/lease_table.h"
#include "common/spec/step_time.h"

namespace outrider {

// Keeps sequences in the same steps. Every step reads all weights, so two steps in turn, each with a part of
// the sequences, take longer than one with all. And once they take turns they keep to it: whenever a step
// ends, those that were not in it are waiting.
//
// A sequence whose item was answered is away until its next item comes. A step waits for sequences that are
// away if they are expected sooner than the time that a common step saves. What is computed stays the same.
//
// Engine thread only.
class StepGather {
 public:
  // How long a sequence is expected to be away before any has returned.
  static constexpr absl::Duration kFirstGuess = absl::Microseconds(500);

  // A step begins.
  void OnStep() { ++steps_; }
  // A sequence's item was answered after a step in which it had that many rows.
  void OnAnswer(const SequenceId& id, int rows, absl::Time now);
  // An item has come.
  void OnItem(const SequenceId& id, absl::Time now);
  void OnRelease(const SequenceId& id) { sequences_.erase(id); }

  // Returns when a step with those `rows` > 0 should begin: `now`, or when the last sequence is expected that
  // is worth waiting for. Ask again after each item.
  absl::Time StepAt(int rows, const StepTime& step_time, absl::Time now);

 private:
  struct Sequence {
    bool away = false;
    bool overdue = false;  // before the next step began
    absl::Time answered = {};
    int rows = 0;
    uint64_t step = 0;             // that was the last before the answer
    absl::Duration expected = {};  // to be away

    absl::Time due() const { return answered + expected; }
  };

  absl::flat_hash_map<SequenceId, Sequence> sequences_;
  uint64_t steps_ = 0;
  absl::Duration typical_ = kFirstGuess;  // what a new sequence is expected to be away
};

}  // namespace outrider
