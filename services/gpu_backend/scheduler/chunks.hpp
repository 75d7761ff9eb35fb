// chunks.hpp: how much of a prompt a step computes: by tokens, and by what its attention will cost (D13).
//
// The same choice as global_scheduler/policy/chunk.py makes, in whole femtoseconds, so that every build of
// the core chooses alike.
#pragma once
#include "state.hpp"

namespace hostless {

// Attention of `count` new tokens behind `cached` whose KV is there, by the fit to a profile. It grows with count,
// and stays within 64 bits (check_settings).
HOSTLESS_FN constexpr uint64_t attention_fs(const Settings& g, uint64_t cached, uint64_t count) {
  if (count == 0) return 0;
  const uint64_t pairs = count * cached + count * (count + 1) / 2;
  return g.attention_request_fs + g.attention_token_fs * count + g.attention_pair_fs * pairs;
}

// The most tokens, up to `count`, that cost no more than `allowed`; by halving.
HOSTLESS_FN constexpr uint32_t affordable(const Settings& g, uint32_t cached, uint32_t count, uint64_t allowed) {
  if (attention_fs(g, cached, count) <= allowed) return count;
  uint32_t fits = 0, over = count;
  while (over - fits > 1) {
    const uint32_t middle = fits + (over - fits) / 2;
    (attention_fs(g, cached, middle) <= allowed ? fits : over) = middle;
  }
  return fits;
}

// What a step has left for prompts. Asked for them in order of arrival.
struct PromptRoom {
  uint32_t tokens;
  uint64_t attention_fs;
  bool whole;  // prompts are cut only where they are longer than a step (B6)
  bool first = true;

  // Tokens of the next prompt, of which `left` are to be computed behind `cached`; none comes after one that gets
  // fewer than it has left. The first gets one whatever it costs, so that every step gets something done.
  HOSTLESS_FN constexpr uint32_t take(const Settings& g, uint32_t cached, uint32_t left) {
    if (whole && !first && left > tokens) return 0;
    uint32_t count = left < tokens ? left : tokens;
    if (g.attention_quota_fs != 0) {
      count = affordable(g, cached, count, attention_fs);
      if (count == 0 && first) count = 1;
      const uint64_t cost = hostless::attention_fs(g, cached, count);
      attention_fs -= cost < attention_fs ? cost : attention_fs;
    }
    tokens -= count;
    first = false;
    return count;
  }
};

}  // namespace hostless
