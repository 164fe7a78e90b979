// The rolling hash with which coordinator and servers check that they agree on a token prefix, without
// sending it.
//
// Definition (all arithmetic modulo 2^64; part of the wire contract):
//   h_0     = 0x6f75747269646572
//   h_{i+1} = Mix(h_i + 0x9e3779b97f4a7c15 * (token_i + 1))
//   Mix(z)  : z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
//             z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
//             return z ^ (z >> 31)          (the finaliser of splitmix64)
// where token_i is an unsigned 32-bit number. The hash of n tokens is h_n. It detects mistakes; it does not
// resist an adversary.
#pragma once

#include <cstdint>
#include <span>

#include "common/spec/types.h"

namespace outrider {

inline constexpr uint64_t kEmptyPrefixHash = 0x6f75747269646572;

constexpr uint64_t ExtendPrefixHash(uint64_t hash, TokenId token) {
  uint64_t z = hash + 0x9e3779b97f4a7c15 * (uint64_t{static_cast<uint32_t>(token)} + 1);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

constexpr uint64_t PrefixHash(std::span<const TokenId> tokens) {
  uint64_t hash = kEmptyPrefixHash;
  for (TokenId token : tokens) hash = ExtendPrefixHash(hash, token);
  return hash;
}

}  // namespace outrider
