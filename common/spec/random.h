// The source of every random number in the system: a counter-based generator, so that a number depends on
// what it is for and not on how many were drawn before it. A retry, another batch or another schedule sees
// the same numbers.
//
// Generator: Philox4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), from
// Random123. Key = (seed, sample index); counter = (position, purpose, candidate, round start). All functions
// are pure and may be called from any thread, on the host and on a GPU.
#pragma once

#include <array>
#include <cstdint>

#include "Random123/philox.h"
#include "common/spec/types.h"

namespace outrider {

// The decision that a number is for. Two purposes never share a number. The values are part of the wire
// contract, because a draft service written elsewhere must sample its tokens with them to be reproducible.
enum class Purpose : uint64_t {
  kDraft = 1,     // which token the draft proposes
  kAccept = 2,    // whether a proposed token (token rule) or prefix (block rule) is accepted
  kResidual = 3,  // which token replaces a rejected one
  kBonus = 4,     // which token follows a fully accepted or an empty draft
  kGumbel = 5,    // the exponential race of the coupled rule
  kOrder = 6,     // in which order several proposals for one position are tried
};

// Identifies one sample of one request.
struct RandomKey {
  uint64_t seed = 0;
  uint64_t sample_index = 0;
};

// Four independent 64-bit numbers: Philox4x64-10 of `counter` under `key`.
OUTRIDER_HD inline std::array<uint64_t, 4> RandomBits(const RandomKey& key,
                                                      const std::array<uint64_t, 4>& counter) {
  const r123::Philox4x64 philox;  // ten rounds
  const r123::Philox4x64::ctr_type bits =
      philox({{counter[0], counter[1], counter[2], counter[3]}}, {{key.seed, key.sample_index}});
  return {bits.v[0], bits.v[1], bits.v[2], bits.v[3]};
}

// The uniform number in [0, 1) given by the top 53 bits of `bits`.
OUTRIDER_HD inline double UnitInterval(uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1.0p-53; }

// A uniform number k / 2^53 in [0, 1). `position` is the sequence index of the token that the number decides,
// `candidate` distinguishes several numbers for one position (0 for a chain), and `round_start` is the number
// of committed tokens when the round began. The round start matters: under the block rule a verdict depends
// on noise beyond the prefix it accepts, and using that noise again in the next round would bias the text.
OUTRIDER_HD inline double Uniform(const RandomKey& key, uint64_t position, Purpose purpose,
                                  uint64_t candidate, uint64_t round_start) {
  return UnitInterval(RandomBits(key, {position, static_cast<uint64_t>(purpose), candidate, round_start})[0]);
}

// Answers random questions with the numbers of one round of one sequence. A question is a function of a
// number (see Noise in verify.h).
struct RoundNoise {
  RandomKey key;
  uint64_t round_start;

  template <class Step>
  OUTRIDER_HD int Decide(Purpose purpose, uint64_t position, uint64_t candidate, const Step& step) const {
    return step(Uniform(key, position, purpose, candidate, round_start));
  }
  template <class Holds>
  OUTRIDER_HD bool Test(Purpose purpose, uint64_t position, uint64_t candidate, const Holds& holds) const {
    return holds(Uniform(key, position, purpose, candidate, round_start));
  }
};

}  // namespace outrider
