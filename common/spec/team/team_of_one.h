// The host's team: a single thread, which sums the weights of a block with vector instructions.
//
// Reusable, by one thread at a time. Its 29 KiB are not touched unless a function needs them.
#pragma once

#include <cstdint>

#include "common/spec/team/row_shape.h"
#include "common/spec/team/row_sums.h"
#include "common/spec/team/team.h"

namespace outrider::team {

class TeamOfOne {
 public:
  int rank() const { return 0; }
  int size() const { return 1; }
  int group() const { return 0; }
  int groups() const { return 1; }
  TeamOfOne& local() { return *this; }
  TeamScratch& scratch(int /*group*/ = 0) { return scratch_; }
  void Sync() const {}
  uint64_t Max(uint64_t value) const { return value; }
  uint32_t Add(uint32_t* cell, uint32_t n) const {
    const uint32_t before = *cell;
    *cell += n;
    return before;
  }
  uint32_t Count(uint32_t* cell) const { return Add(cell, 1); }

 private:
  TeamScratch scratch_;
};

// These overloads replace the templates of the same names, with the same results.

template <class T>
T Broadcast(TeamOfOne& /*team*/, T value) {
  return value;
}

// No other thread waits for the terms: they are computed when they are read.
template <class Term>
const Term& Stage(TeamOfOne& /*team*/, const Term& term, int /*begin*/, int /*end*/) {
  return term;
}

// The sum over [begin, end), at most a block, in the order of SumBlocks (weights.cc).
double SumOfBlock(const FloatRow& row, int begin, int end);
double SumOfBlock(const DoubleRow& row, int begin, int end);
double SumOfBlock(const TimesLogRow& row, int begin, int end);

// [begin, end) is one block, since there is one thread.
template <class Source>
int SumBlocks(TeamOfOne& team, const Source& source, int begin, int end) {
  team.scratch().sums[0] = SumOfBlock(source, begin, end);
  return 1;
}

}  // namespace outrider::team
