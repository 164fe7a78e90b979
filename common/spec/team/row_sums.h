// Sums over a row and draws from it, with the bits of common/spec/weights.cc: blocks of 256 elements, 16
// partial sums in each, added pairwise, and the sums of the blocks in order, all in double.
//
// A row is a source: for the indices in [begin, end), which lie in one block, source.Range(begin, end) has
// Load(i), which reads, and Value(i, loaded), the weight at i. They are apart so that many reads are under
// way before the first is waited for. A sum asks for each value exactly once, so that Value may also change
// the row there. Compile without contraction of products (-fmad=false, -ffp-contract=off).
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

OUTRIDER_HD inline int Smaller(int a, int b) { return a < b ? a : b; }

// scratch.sums[b] <- sum of block b of [begin, end), `begin` on a block's boundary and at most kChunkBlocks
// of them. Returns how many.
template <class Team, class Source>
OUTRIDER_HD int SumBlocks(Team& team, const Source& source, int begin, int end) {
  TeamScratch& scratch = team.scratch();
  const int blocks = (end - begin + kSumBlock - 1) / kSumBlock;
  for (int tile = 0; tile < blocks; tile += kTileBlocks) {
    const int tile_blocks = Smaller(kTileBlocks, blocks - tile);
    for (int item = team.rank(); item < tile_blocks * kLanes; item += team.size()) {
      const int block = item / kLanes;
      const int lane = item % kLanes;
      const int first = begin + (tile + block) * kSumBlock;
      const int last = Smaller(end, first + kSumBlock);
      const auto& values = source.Range(first, last);
      float loaded[kSumBlock / kLanes];
      for (int k = 0; k < kSumBlock / kLanes; ++k) {
        const int i = first + lane + k * kLanes;
        loaded[k] = i < last ? values.Load(i) : 0;
      }
      double sum = 0;
      for (int k = 0; k < kSumBlock / kLanes; ++k) {
        const int i = first + lane + k * kLanes;
        if (i < last) sum += values.Value(i, loaded[k]);
      }
      scratch.lanes[block * kLaneStride + lane] = sum;
    }
    team.Sync();
    for (int block = team.rank(); block < tile_blocks; block += team.size()) {
      double sums[kLanes];
      for (int lane = 0; lane < kLanes; ++lane) sums[lane] = scratch.lanes[block * kLaneStride + lane];
      for (int distance = kLanes / 2; distance > 0; distance /= 2) {
        for (int lane = 0; lane < distance; ++lane) sums[lane] += sums[lane + distance];
      }
      scratch.sums[tile + block] = sums[0];
    }
    team.Sync();
  }
  return blocks;
}

// SumWeights of weights.h.
template <class Team, class Source>
OUTRIDER_HD double SumRow(Team& team, const Source& source, int n) {
  double sum = 0;
  for (int begin = 0; begin < n; begin += kChunkBlocks * kSumBlock) {
    const int blocks = SumBlocks(team, source, begin, Smaller(n, begin + kChunkBlocks * kSumBlock));
    if (team.rank() == 0) {
      for (int b = 0; b < blocks; ++b) sum += team.scratch().sums[b];
    }
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
    const auto& values = source.Range(block, Smaller(end, block + kSumBlock));
    if (values.Value(i, values.Load(i)) > 0) last = static_cast<uint64_t>(i) + 1;
  }
  return static_cast<int>(team.Max(last)) - 1;
}

// SampleIndex of weights.h: the smallest index whose cumulative weight exceeds u * total, where total =
// SumRow(source) > 0.
template <class Team, class Source>
OUTRIDER_HD int SampleIndex(Team& team, const Source& source, int n, double total, double u) {
  TeamScratch& scratch = team.scratch();
  const double threshold = u * total;
  double cumulative = 0;  // thread 0's
  for (int begin = 0; begin < n; begin += kChunkBlocks * kSumBlock) {
    const int blocks = SumBlocks(team, source, begin, Smaller(n, begin + kChunkBlocks * kSumBlock));
    int found = -1;
    if (team.rank() == 0) {
      for (int b = 0; b < blocks && found < 0; ++b) {
        const double sum = scratch.sums[b];
        if (cumulative + sum > threshold) {
          found = b;
        } else {
          cumulative += sum;
        }
      }
    }
    found = Broadcast(team, found);
    if (found < 0) continue;

    const int first = begin + found * kSumBlock;
    const int last = Smaller(n, first + kSumBlock);
    const auto& values = source.Range(first, last);
    for (int i = first + team.rank(); i < last; i += team.size()) {
      scratch.lanes[i - first] = values.Value(i, values.Load(i));
    }
    team.Sync();
    int index = -1;
    if (team.rank() == 0) {
      for (int i = first; i < last && index < 0; ++i) {
        cumulative += scratch.lanes[i - first];
        if (cumulative > threshold) index = i;
      }
    }
    index = Broadcast(team, index);
    // Below 0: the block's sum in another order reached a little further.
    return index >= 0 ? index : LastPositive(team, source, last);
  }
  return LastPositive(team, source, n);
}

}  // namespace outrider::team
