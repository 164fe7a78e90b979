#include "common/text/model_fingerprint.h"

namespace outrider {
namespace {

// Mixes `value` into the running hash with the finaliser of splitmix64.
uint64_t Mix(uint64_t hash, uint64_t value) {
  uint64_t z = hash + 0x9e3779b97f4a7c15 * (value + 1);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

}  // namespace

uint64_t ModelFingerprint(uint64_t tokenizer, int vocab_size, std::span<const TokenId> eos_ids) {
  uint64_t hash = Mix(tokenizer, static_cast<uint64_t>(vocab_size));
  for (TokenId id : eos_ids) hash = Mix(hash, static_cast<uint64_t>(id));
  return hash;
}

}  // namespace outrider
