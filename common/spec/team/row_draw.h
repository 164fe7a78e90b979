// The race of the coupled rule, and a row's heaviest tokens as a draft sends them.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

#include "common/spec/random.h"
#include "common/spec/team/exact_math.h"
#include "common/spec/team/row_select.h"
#include "common/spec/team/row_sums.h"
#include "common/spec/team/team.h"

namespace outrider::team {

// The race of common/spec/verify.h over a row that is not a point mass. Teams of any size, on any machine,
// find the same winner unless two times agree to the last bits. Then another library's logarithm, or the
// order in which the bound rules tokens out, may decide (about one in 2^50).
template <class Team>
OUTRIDER_HD int RaceRow(Team& team, const float* weights, int n, const RandomKey& key, uint64_t position) {
  double best_time = HUGE_VAL;
  int winner = n;
  for (int group = team.rank(); 4 * group < n; group += team.size()) {
    double weight[4];
    for (int k = 0; k < 4; ++k) weight[k] = 4 * group + k < n ? weights[4 * group + k] : 0;
    if (weight[0] == 0 && weight[1] == 0 && weight[2] == 0 && weight[3] == 0) continue;
    const std::array<uint64_t, 4> bits =
        RandomBits(key, {position, static_cast<uint64_t>(Purpose::kGumbel), static_cast<uint64_t>(group), 0});
    for (int k = 0; k < 4; ++k) {
      // -log(1 - u) >= u rules most tokens out before their logarithm is taken.
      const double u = UnitInterval(bits[k]);
      if (weight[k] == 0 || u >= Times(best_time, weight[k])) continue;
      const double time = -::log1p(-u) / weight[k];
      if (time < best_time) {
        best_time = time;
        winner = 4 * group + k;
      }
    }
  }
  // Positive doubles are ordered as their bits.
  uint64_t time_bits;
  memcpy(&time_bits, &best_time, sizeof(time_bits));
  const uint64_t earliest = ~team.Max(~time_bits);
  return static_cast<int>(~team.Max(time_bits == earliest ? ~static_cast<uint64_t>(winner) : 0));
}

// TruncateTopN of common/spec/distribution.h for top_n in [1, kMaxCandidates] and below n: writes the ids,
// ascending, and their weights, to memory that all threads see. Returns how many there are.
template <class Team>
OUTRIDER_HD int TruncateTopN(Team& team, const float* weights, int n, int top_n, int32_t* q_ids,
                             float* q_weights) {
  const WeightKeys keys{weights};
  const uint64_t target = static_cast<uint64_t>(top_n);
  Candidates candidates = CollectCandidates(team, keys, n, top_n);
  uint64_t cut = kNoKey;
  const bool few = candidates.count >= 0;
  if (!few) {
    cut = SelectUntil(team, keys, n, CountMeasure{}, target);
    candidates.count = CollectFrom(team, keys, n, cut);
  }
  return ByFirstGroup(team, [&](auto& local) {
    const StoredKeys stored{local.scratch().candidates};
    if (few) cut = SelectUntil(local, stored, candidates.count, CountMeasure{}, target);
    uint64_t count = 0;
    for (int i = local.rank(); i < candidates.count; i += local.size()) {
      const uint64_t key = stored(i);
      if (key < cut) continue;
      int place = 0;
      for (int j = 0; j < candidates.count; ++j) place += stored(j) >= cut && IdOf(stored(j)) < IdOf(key);
      q_ids[place] = IdOf(key);
      q_weights[place] = ValueOf(key);
      if (static_cast<uint64_t>(place) + 1 > count) count = static_cast<uint64_t>(place) + 1;
    }
    return static_cast<int>(local.Max(count));
  });
}

}  // namespace outrider::team
