#include "common/text/model_fingerprint.h"

#include <initializer_list>
#include <string_view>

namespace outrider {
namespace {

// 64-bit FNV-1a. Texts and lists are preceded by their length, so that two different specs never hash the
// same bytes.
class Hash {
 public:
  void Add(uint64_t number) {
    for (int shift = 0; shift < 64; shift += 8) AddByte(static_cast<uint8_t>(number >> shift));
  }
  void Add(std::string_view text) {
    Add(uint64_t{text.size()});
    for (const char byte : text) AddByte(static_cast<uint8_t>(byte));
  }
  uint64_t value() const { return value_; }

 private:
  void AddByte(uint8_t byte) { value_ = (value_ ^ byte) * 0x100000001B3; }

  uint64_t value_ = 0xCBF29CE484222325;
};

uint64_t Flags(std::initializer_list<bool> flags) {
  uint64_t bits = 0;
  for (const bool flag : flags) bits = bits * 2 + (flag ? 1 : 0);
  return bits;
}

// Mixes `value` into the running hash with the finaliser of splitmix64.
uint64_t Mix(uint64_t hash, uint64_t value) {
  uint64_t z = hash + 0x9e3779b97f4a7c15 * (value + 1);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

}  // namespace

uint64_t FingerprintOf(const TokenizerSpec& spec) {
  Hash hash;
  hash.Add(uint64_t{spec.vocab.size()});
  for (const auto& [token, id] : spec.vocab) {
    hash.Add(token);
    hash.Add(static_cast<uint64_t>(id));
  }
  hash.Add(uint64_t{spec.merges.size()});
  for (const auto& [left, right] : spec.merges) {
    hash.Add(left);
    hash.Add(right);
  }
  hash.Add(Flags({spec.ignore_merges}));
  // Byte-level files lack these fields, so their fingerprints stay the same.
  if (!spec.spelling.byte_level || !spec.normalizer.empty()) {
    hash.Add(Flags({spec.spelling.byte_level, spec.spelling.drops_leading_space, spec.byte_fallback,
                    spec.fuse_unknown, spec.unknown_token.has_value()}));
    hash.Add(spec.spelling.space);
    hash.Add(spec.unknown_token.value_or(""));
    hash.Add(uint64_t{spec.normalizer.size()});
    for (const NormalizeStep& step : spec.normalizer) {
      hash.Add(static_cast<uint64_t>(step.kind));
      hash.Add(step.pattern);
      hash.Add(step.content);
    }
  }
  hash.Add(uint64_t{spec.added.size()});
  for (const AddedToken& token : spec.added) {
    hash.Add(static_cast<uint64_t>(token.id));
    hash.Add(token.content);
    hash.Add(Flags({token.special, token.single_word, token.lstrip, token.rstrip, token.normalized}));
  }
  hash.Add(uint64_t{spec.steps.size()});
  for (const SplitStep& step : spec.steps) {
    hash.Add(static_cast<uint64_t>(step.kind));
    hash.Add(step.pattern);
    hash.Add(step.join_previous ? 4 : Flags({step.remove_matches, step.remove_between}));
  }
  return hash.value();
}

uint64_t ModelFingerprint(uint64_t tokenizer, int vocab_size, std::span<const TokenId> eos_ids) {
  uint64_t hash = Mix(tokenizer, static_cast<uint64_t>(vocab_size));
  for (TokenId id : eos_ids) hash = Mix(hash, static_cast<uint64_t>(id));
  return hash;
}

}  // namespace outrider
