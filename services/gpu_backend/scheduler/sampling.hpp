// sampling.hpp: the random number of a token.
//
// A counter-based hash of (seed, index of the new token in its request), so a request draws the same
// numbers whatever its neighbours, however often it is paused, evicted or moved, on host and device.
#pragma once
#include "ring.hpp"

namespace hostless {

// A bijection of 64 bits in which every input bit reaches every output bit (the finalizer of splitmix64).
HOSTLESS_FN constexpr uint64_t scramble(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// In [0, 1), a multiple of 2^-24, exact in float.
//   uniform = (scramble(scramble(seed + g) + g * (index + 1)) >> 40) / 2^24,  g = 0x9e3779b97f4a7c15
HOSTLESS_FN constexpr float uniform(uint64_t seed, uint32_t index) {
  constexpr uint64_t golden = 0x9e3779b97f4a7c15ULL;
  const uint64_t bits = scramble(scramble(seed + golden) + golden * (uint64_t{index} + 1));
  return static_cast<float>(bits >> 40) * (1.0f / 16777216.0f);
}

}  // namespace hostless
