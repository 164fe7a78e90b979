// A team of threads that works on one row: a cluster of thread blocks on the device, or any number of threads
// on the host, where the tests run the same source.
//
// A team has
//   rank(), size()         this thread's number, and the number of threads
//   groups(), group()      the number of groups, all of the same size (the blocks of a cluster), at most
//                          kMaxGroups, and this thread's group. Group g begins with rank
//                          g * size() / groups().
//   local()                the team of this thread's group
//   scratch(), scratch(g)  the shared memory of the team, which is that of group 0, and of group g. A group
//                          reaches its own fastest.
//   Sync()                 a barrier: after it, every thread sees what any thread wrote before it
//   Max(uint64_t)          collective: returns the largest of the threads' values to every thread
//   Add(cell, n)           adds to a uint32_t of the scratch memory, atomically, and returns its previous
//                          value
//   Count(cell)            Add(cell, 1), faster if many threads count in the same cell
// Functions that take a team are collective: every thread calls them, with the same arguments, and gets the
// same result. They return after a Sync() that follows their last use of the scratch memory, so that the next
// function may start at once. Their results do not depend on the size of the team.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/spec/types.h"

namespace outrider::team {

inline constexpr int kSumBlock = 256;        // elements of a row in one block of a sum
inline constexpr int kLanes = 16;            // partial sums of a block
inline constexpr int kLaneStride = 17;       // keeps sums of neighbouring blocks in different memory banks
inline constexpr int kTileBlocks = 64;       // blocks summed between two barriers
inline constexpr int kChunkBlocks = 1024;    // blocks whose sums are held at a time
inline constexpr int kMaxCandidates = 1024;  // keys that are collected; also the largest size of a group
inline constexpr int kMaxGroups = 8;
inline constexpr int kBins = 256;
inline constexpr int kBinGroup = 16;

// A sum of 64 bits in two halves. A GPU adds 32 bits to shared memory in one instruction, and 64 bits in a
// loop that compares and swaps.
struct WideSum {
  uint32_t low, high;
  OUTRIDER_HD uint64_t Value() const { return static_cast<uint64_t>(high) << 32 | low; }
};

struct TeamScratch {
  double sums[kChunkBlocks];
  double lanes[kTileBlocks * kLaneStride];
  uint64_t candidates[kMaxCandidates];
  WideSum histogram[kBins];
  uint64_t totals[kBins];  // of the histograms of all groups
  uint64_t bin_groups[kBins / kBinGroup];
  uint64_t broadcast;
  uint64_t partial[32], group_partial[kMaxGroups];  // for Max
  uint32_t found;
};

// Adds to a sum that other threads may add to. In whatever order they add to the low half, it wraps around
// once for each carry of their sum, and exactly one of them sees each wrap-around.
template <class Team>
OUTRIDER_HD void AddWide(Team& team, WideSum* sum, uint64_t n) {
  const uint32_t low = static_cast<uint32_t>(n);
  const uint32_t before = team.Add(&sum->low, low);
  const uint32_t carry = before + low < low ? 1 : 0;
  const uint32_t high = static_cast<uint32_t>(n >> 32) + carry;
  if (high != 0) team.Add(&sum->high, high);
}

// Returns thread 0's `value` to every thread; the other threads' arguments are ignored.
template <class Team, class T>
OUTRIDER_HD T Broadcast(Team& team, T value) {
  static_assert(sizeof(T) <= sizeof(uint64_t), "a value has to fit into a cell");
  uint64_t* const cell = &team.scratch().broadcast;
  if (team.rank() == 0) memcpy(cell, &value, sizeof(value));
  team.Sync();
  T result;
  memcpy(&result, cell, sizeof(result));
  team.Sync();
  return result;
}

// Runs compute(local) in group 0 and returns its result to every thread. The other groups wait.
template <class Team, class Compute>
OUTRIDER_HD auto ByFirstGroup(Team& team, const Compute& compute) {
  auto&& local = team.local();
  if (team.groups() == 1) return compute(local);
  decltype(compute(local)) value{};
  if (team.group() == 0) value = compute(local);
  return Broadcast(team, value);
}

// Calls use(i, load(i)) for all i in [0, n), each on one of the threads. A thread starts several loads before
// it waits for the first.
template <class Team, class Load, class Use>
OUTRIDER_HD void ForEach(Team& team, int n, const Load& load, const Use& use) {
  constexpr int kAhead = 8;
  const int size = team.size();
  int i = team.rank();
  decltype(load(0)) loaded[kAhead];
  for (; i + (kAhead - 1) * size < n; i += kAhead * size) {
    for (int k = 0; k < kAhead; ++k) loaded[k] = load(i + k * size);
    for (int k = 0; k < kAhead; ++k) use(i + k * size, loaded[k]);
  }
  for (int k = 0; k < kAhead - 1; ++k) {
    if (i + k * size < n) loaded[k] = load(i + k * size);
  }
  for (int k = 0; k < kAhead - 1; ++k) {
    if (i + k * size < n) use(i + k * size, loaded[k]);
  }
}

}  // namespace outrider::team
