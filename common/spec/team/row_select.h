// Finds the heaviest tokens of a row without sorting it: exactly k, or the fewest that hold a share of the
// mass. Heavier tokens come first, then lower ids, as in common/spec/selection.h.
//
// Every token has a key, and all keys of a row are different: the order of the keys is the order of
// preference. A cut selects the tokens whose keys are not below it. All measures here are integers, so that
// no order of summation matters.
//
// KeepMass of common/spec/selection.h adds doubles. A token's mass here is its weight in units of 2^-44,
// rounded down but at least 1: exact from 2^-21 on, else wrong by less than 2^-44. The mass of a prefix of m
// tokens is thus wrong by less than m 2^-44. The prefix found here differs from that of KeepMass only if the
// mass of the prefix, or of the next shorter one, is that close to top_p * total, or if the rounding of the
// doubles decides.
#pragma once

#include <cstdint>

#include "common/spec/team/exact_math.h"
#include "common/spec/team/team.h"

namespace outrider::team {

// The key of no token; never selected.
inline constexpr uint64_t kNoKey = 0;

// `value` is not NaN. The two zeros are the same.
OUTRIDER_HD inline uint64_t KeyOf(float value, int id) {
  uint32_t bits = BitsOf(value);
  if (bits == 0x80000000u) bits = 0;
  const uint32_t ordered = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<uint64_t>(ordered) << 32 | static_cast<uint32_t>(~id);
}

OUTRIDER_HD inline int IdOf(uint64_t key) { return static_cast<int>(~static_cast<uint32_t>(key)); }

OUTRIDER_HD inline float ValueOf(uint64_t key) {
  const uint32_t ordered = static_cast<uint32_t>(key >> 32);
  return FloatOf((ordered & 0x80000000u) != 0 ? ordered ^ 0x80000000u : ~ordered);
}

// Keys of a row of finite logits.
struct LogitKeys {
  const float* row;
  OUTRIDER_HD uint64_t operator()(int i) const { return KeyOf(row[i], i); }
};

// Keys of a row of weights, without those of weight zero.
struct WeightKeys {
  const float* row;
  OUTRIDER_HD uint64_t operator()(int i) const { return row[i] > 0 ? KeyOf(row[i], i) : kNoKey; }
};

struct StoredKeys {
  const uint64_t* keys;
  OUTRIDER_HD uint64_t operator()(int i) const { return keys[i]; }
};

// A token's measure, which does not shrink as the key grows. AddTo adds it to a sum that many threads share.
struct CountMeasure {
  OUTRIDER_HD uint64_t operator()(uint64_t /*key*/) const { return 1; }
  template <class Team>
  OUTRIDER_HD void AddTo(Team& team, WideSum* sum, uint64_t /*key*/) const {
    team.Count(&sum->low);  // `low` alone holds kMaxVocab
  }
};
inline constexpr double kMassUnits = static_cast<double>(1ull << 44);  // the mass of a weight of 1
struct MassMeasure {
  OUTRIDER_HD uint64_t operator()(uint64_t key) const {
    const uint64_t mass = static_cast<uint64_t>(kMassUnits * static_cast<double>(ValueOf(key)));
    return mass > 0 ? mass : 1;
  }
  template <class Team>
  OUTRIDER_HD void AddTo(Team& team, WideSum* sum, uint64_t key) const {
    AddWide(team, sum, (*this)(key));
  }
};

// The cut of the shortest prefix, in the order of preference, whose measure reaches target >= 1; kNoKey if
// all keys together do not reach it. The cut separates the keys keys(i), i in [0, n), and need not be one of
// them. The keys may be in the scratch memory. The cut is found digit by digit from the top, by a histogram
// of the next digit over the keys that agree with the known digits.
template <class Team, class Keys, class Measure>
OUTRIDER_HD uint64_t SelectUntil(Team& team, const Keys& keys, int n, const Measure& measure,
                                 uint64_t target) {
  auto&& local = team.local();
  WideSum* const histogram = local.scratch().histogram;
  TeamScratch& scratch = team.scratch();
  uint64_t cut = 0;
  uint64_t known = 0;  // the bits of the cut that are known
  for (int shift = 56; shift >= 0; shift -= 8) {
    for (int bin = local.rank(); bin < kBins; bin += local.size()) histogram[bin] = {};
    local.Sync();
    ForEach(team, n, keys, [&](int /*i*/, uint64_t key) {
      if (key == kNoKey || (key & known) != cut) return;
      measure.AddTo(local, &histogram[key >> shift & (kBins - 1)], key);
    });
    team.Sync();
    for (int bin = team.rank(); bin < kBins; bin += team.size()) {
      uint64_t sum = 0;
      for (int g = 0; g < team.groups(); ++g) sum += team.scratch(g).histogram[bin].Value();
      scratch.totals[bin] = sum;
    }
    team.Sync();
    for (int group = team.rank(); group < kBins / kBinGroup; group += team.size()) {
      uint64_t sum = 0;
      for (int bin = 0; bin < kBinGroup; ++bin) sum += scratch.totals[group * kBinGroup + bin];
      scratch.bin_groups[group] = sum;
    }
    team.Sync();
    int bin = -1;
    uint64_t rest = target;
    if (team.rank() == 0) {
      int group = kBins / kBinGroup - 1;
      while (group >= 0 && scratch.bin_groups[group] < rest) rest -= scratch.bin_groups[group--];
      if (group >= 0) {
        bin = group * kBinGroup + kBinGroup - 1;
        while (scratch.totals[bin] < rest) rest -= scratch.totals[bin--];
      }
    }
    bin = Broadcast(team, bin);
    if (bin < 0) return kNoKey;
    target = Broadcast(team, rest);
    const uint64_t surplus = scratch.totals[bin] - target;
    team.Sync();
    cut |= static_cast<uint64_t>(bin) << shift;
    known |= static_cast<uint64_t>(kBins - 1) << shift;
    // Every token of this bin is needed to reach the target.
    if (surplus < measure(cut)) return cut;
  }
  return cut;
}

// Puts the keys of a row that are not below `floor` into scratch.candidates, in any order. Returns their
// number, or -1 if there is no room for them.
template <class Team, class Keys>
OUTRIDER_HD int CollectFrom(Team& team, const Keys& keys, int n, uint64_t floor) {
  TeamScratch& scratch = team.scratch();
  if (team.rank() == 0) scratch.found = 0;
  team.Sync();
  ForEach(team, n, keys, [&](int /*i*/, uint64_t key) {
    if (key == kNoKey || key < floor) return;
    const uint32_t place = team.Count(&scratch.found);
    if (place < kMaxCandidates) scratch.candidates[place] = key;
  });
  team.Sync();
  const uint32_t found = scratch.found;
  team.Sync();
  return found <= kMaxCandidates ? static_cast<int>(found) : -1;
}

struct Candidates {
  int count;       // keys in scratch.candidates; -1: there was no room
  uint64_t floor;  // they are the keys that are not below this one; kNoKey: all of them
};

// Collects the `wanted` heaviest tokens of a row and some more, a prefix in the order of preference.
//
// Each thread finds the largest key of its part of the row, and the threads of one rank in all groups share a
// part. These keys belong to different tokens, so the wanted-th largest of them is not above the wanted-th of
// the row. If the tokens are in no particular order, few others are above it.
template <class Team, class Keys>
OUTRIDER_HD Candidates CollectCandidates(Team& team, const Keys& keys, int n, int wanted) {
  uint64_t floor = kNoKey;
  if (n > kMaxCandidates) {
    auto&& own = team.local();
    if (wanted > own.size()) return {-1, kNoKey};
    uint64_t largest = kNoKey;
    ForEach(team, n, keys, [&](int /*i*/, uint64_t key) {
      if (key > largest) largest = key;
    });
    own.scratch().candidates[own.rank()] = largest;
    team.Sync();
    floor = ByFirstGroup(team, [&](auto& local) {
      uint64_t* const cell = &local.scratch().candidates[local.rank()];
      for (int g = 1; g < team.groups(); ++g) {
        const uint64_t other = team.scratch(g).candidates[local.rank()];
        if (other > *cell) *cell = other;
      }
      local.Sync();
      return SelectUntil(local, StoredKeys{local.scratch().candidates}, local.size(), CountMeasure{},
                         static_cast<uint64_t>(wanted));
    });
  }
  return {CollectFrom(team, keys, n, floor), floor};
}

// SelectUntil over a row. Looks only at the `wanted` heaviest tokens and some more if they suffice.
template <class Team, class Keys, class Measure>
OUTRIDER_HD uint64_t SelectRow(Team& team, const Keys& keys, int n, int wanted, const Measure& measure,
                               uint64_t target) {
  const Candidates candidates = CollectCandidates(team, keys, n, wanted);
  if (candidates.count >= 0) {
    const uint64_t cut = ByFirstGroup(team, [&](auto& local) {
      return SelectUntil(local, StoredKeys{local.scratch().candidates}, candidates.count, measure, target);
    });
    // A cut separates the candidates; all other tokens are below the floor.
    if (cut != kNoKey) return cut > candidates.floor ? cut : candidates.floor;
    if (candidates.floor == kNoKey) return kNoKey;
  }
  return SelectUntil(team, keys, n, measure, target);
}

}  // namespace outrider::team
