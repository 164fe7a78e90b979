#include "common/spec/random.h"

#include "Random123/philox.h"

namespace outrider {

std::array<uint64_t, 4> RandomBits(const RandomKey& key, const std::array<uint64_t, 4>& counter) {
  const r123::Philox4x64 philox;  // ten rounds
  const r123::Philox4x64::ctr_type bits =
      philox({{counter[0], counter[1], counter[2], counter[3]}}, {{key.seed, key.sample_index}});
  return {bits[0], bits[1], bits[2], bits[3]};
}

double Uniform(const RandomKey& key, uint64_t position, Purpose purpose, uint64_t candidate,
               uint64_t round_start) {
  return UnitInterval(RandomBits(key, {position, static_cast<uint64_t>(purpose), candidate, round_start})[0]);
}

}  // namespace outrider
