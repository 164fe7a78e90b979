// Sums over a row and draws from it. The order of every sum is fixed: blocks of kSumBlock elements; inside a
// block kLanes partial sums, element i going to partial sum i % kLanes, added pairwise (distance 8, 4, 2, 1);
// the sums of the blocks in order; all in double.
//
// A row is a source. For the indices in [begin, end), which lie in one block, source.Range(begin, end) has
// Load(i), which reads element i, and Value(i, loaded), its weight. They are separate so that many reads are
// in flight before the first is awaited. A sum asks for each value exactly once, so Value may also change the
// row there. Compile without contraction of products (-fmad=false, -ffp-contract=off).
#pragma once

#include <cstdint>

#include "common/spec/team/team.h"

namespace outrider::team {

// Weights as they are.
struct FloatRow {
  const float* weights;
  OUTRIDER_HD const FloatRow& Range(int /*begin*/, int /*end*/) const { return *this; }
  OUTRIDER_HD float Load(int i) const { return weights[i]; }
  OUTRIDER_HD double Value(int /*i*/, float weight) const { return weight; }
};

struct DoubleRow {
  const double* weights;
  OUTRIDER_HD const DoubleRow& Range(int /*begin*/, int /*end*/) const { return *this; }
  OUTRIDER_HD double Load(int i) const { return weights[i]; }
  OUTRIDER_HD double Value(int /*i*/, double weight) const { return weight; }
};

OUTRIDER_HD inline int Min(int a, int b) { return a < b ? a : b; }

// The number of tokens that a team sums before it looks at the sums: a block for each thread, so that a small
// team does not sum far beyond the token that it looks for.
template <class Team>
OUTRIDER_HD int ChunkOf(const Team& team) {
  return Min(kChunkBlocks, team.size()) * kSumBlock;
}

// scratch.sums[b] <- sum of block b of [begin, end). `begin` is on a block's boundary, and there are at most
// kChunkBlocks blocks. Returns their number.
template <class Team, class Source>
OUTRIDER_HD int SumBlocks(Team& team, const Source& source, int begin, int end) {
  auto&& local = team.local();
  double* const lanes = local.scratch().lanes;
  const int blocks = (end - begin + kSumBlock - 1) / kSumBlock;
  for (int tile = team.group() * kTileBlocks; tile < blocks; tile += team.groups() * kTileBlocks) {
    const int tile_blocks = Min(kTileBlocks, blocks - tile);
    for (int item = local.rank(); item < tile_blocks * kLanes; item += local.size()) {
      const int block = item / kLanes;
      const int lane = item % kLanes;
      const int first = begin + (tile + block) * kSumBlock;
      const int last = Min(end, first + kSumBlock);
      const auto& values = source.Range(first, last);
      decltype(values.Load(0)) loaded[kSumBlock / kLanes];
      for (int k = 0; k < kSumBlock / kLanes; ++k) {
        const int i = first + lane + k * kLanes;
        loaded[k] = i < last ? values.Load(i) : 0;
      }
      double sum = 0;
      for (int k = 0; k < kSumBlock / kLanes; ++k) {
        const int i = first + lane + k * kLanes;
        if (i < last) sum += values.Value(i, loaded[k]);
      }
      lanes[block * kLaneStride + lane] = sum;
    }
    local.Sync();
    for (int block = local.rank(); block < tile_blocks; block += local.size()) {
      double sums[kLanes];
      for (int lane = 0; lane < kLanes; ++lane) sums[lane] = lanes[block * kLaneStride + lane];
      for (int distance = kLanes / 2; distance > 0; distance /= 2) {
        for (int lane = 0; lane < distance; ++lane) sums[lane] += sums[lane + distance];
      }
      team.scratch().sums[tile + block] = sums[0];
    }
    local.Sync();
  }
  team.Sync();
  return blocks;
}

// The sum of a row.
template <class Team, class Source>
OUTRIDER_HD double SumRow(Team& team, const Source& source, int n) {
  const int chunk = ChunkOf(team);
  double sum = 0;
  for (int begin = 0; begin < n; begin += chunk) {
    const int blocks = SumBlocks(team, source, begin, Min(n, begin + chunk));
    if (team.rank() == 0) {
      for (int b = 0; b < blocks; ++b) sum += team.scratch().sums[b];
    }
    team.Sync();
  }
  return Broadcast(team, sum);
}

// The terms begin, begin + 1, ..., which the team has computed.
struct StagedTerms {
  const double* terms;
  int begin;
  OUTRIDER_HD double operator()(int i) const { return terms[i - begin]; }
};
inline constexpr int kMaxStaged = kTileBlocks * kLaneStride;

// Computes term(i) for i in [begin, end), at most kMaxStaged of them, for thread 0 to read one after the
// other. They stay valid until the scratch memory is used again.
template <class Team, class Term>
OUTRIDER_HD StagedTerms Stage(Team& team, const Term& term, int begin, int end) {
  double* const terms = team.scratch().lanes;
  for (int i = begin + team.rank(); i < end; i += team.size()) terms[i - begin] = term(i);
  team.Sync();
  return {terms, begin};
}

// term(0) + term(1) + ... + term(n - 1), added in this order.
template <class Team, class Term>
OUTRIDER_HD double AddInOrder(Team& team, int n, const Term& term) {
  double sum = 0;  // thread 0's
  for (int begin = 0; begin < n; begin += kMaxStaged) {
    const int end = Min(n, begin + kMaxStaged);
    const auto& staged = Stage(team, term, begin, end);
    for (int i = begin; team.rank() == 0 && i < end; ++i) sum += staged(i);
    team.Sync();
  }
  return Broadcast(team, sum);
}

// The last index below `end` with a positive value; -1 if there is none.
template <class Team, class Source>
OUTRIDER_HD int LastPositive(Team& team, const Source& source, int end) {
  uint64_t last = 0;
  for (int i = team.rank(); i < end; i += team.size()) {
    const int block = i - i % kSumBlock;
    const auto& values = source.Range(block, Min(end, block + kSumBlock));
    if (values.Value(i, values.Load(i)) > 0) last = static_cast<uint64_t>(i) + 1;
  }
  return static_cast<int>(team.Max(last)) - 1;
}

// The smallest index whose cumulative weight exceeds u * total, for u in [0, 1) and total = SumRow(source) >
// 0. Non-decreasing in u, and never an index of weight zero, even where rounding makes u * total reach the
// sum of the row. -1 if no weight is positive.
template <class Team, class Source>
OUTRIDER_HD int SampleIndex(Team& team, const Source& source, int n, double total, double u) {
  const int chunk = ChunkOf(team);
  const double threshold = u * total;
  double before = 0;  // thread 0's: the sum of the preceding weights
  int found = -1;     // the block, counted from `begin`
  int begin = 0;
  while (true) {
    const int blocks = SumBlocks(team, source, begin, Min(n, begin + chunk));
    if (team.rank() == 0) {
      for (int b = 0; b < blocks && found < 0; ++b) {
        const double sum = before + team.scratch().sums[b];
        if (sum > threshold) {
          found = b;
        } else {
          before = sum;
        }
      }
    }
    found = Broadcast(team, found);
    if (found >= 0) break;
    begin += chunk;
    if (begin >= n) return LastPositive(team, source, n);
  }

  const int first = begin + found * kSumBlock;
  const int last = Min(n, first + kSumBlock);
  const auto& values = source.Range(first, last);
  const auto value = [&](int i) { return values.Value(i, values.Load(i)); };
  const auto& staged = Stage(team, value, first, last);
  int index = -1;
  if (team.rank() == 0) {
    for (int i = first; i < last && index < 0; ++i) {
      before += staged(i);
      if (before > threshold) index = i;
    }
  }
  index = Broadcast(team, index);
  // Below 0: the block's sum, added in another order, was a little larger.
  return index >= 0 ? index : LastPositive(team, source, last);
}

}  // namespace outrider::team
