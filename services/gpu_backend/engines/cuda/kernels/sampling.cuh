// sampling.cuh: a row of logits to a token, by one block, without sorting the vocabulary (B9).
//
// The same function as engines/sampling.py: order by logit, highest first, equal ones by id; weigh by
// softmax(logits / temperature); keep the first top_k (0: all); of these the fewest whose mass reaches
// top_p; then the first token whose cumulated mass exceeds uniform times the mass that was kept.
//
// All three are one question: which is the first token, in that order, whose cumulated count or mass
// exceeds a target? One pass sorts tokens into bins that are equally wide in logits; the answer's bin
// follows from the bins' sums, and of the few tokens in it each counts those before it. Masses are
// integers (weight 1 = 2^46), so sums depend on no order, and 2^17 tokens fit in 64 bits.
//
// Compiles for the device, and for the host as a block of one thread, which is how tests run it (block_team.cuh).
#pragma once
#include "block_team.cuh"

namespace hostless_sampling {

constexpr u32 kBins = 2048, kGroup = 32, kListed = 1024;
constexpr double kOne = 70368744177664.0;  // 2^46, the mass of the most likely token

// The tokens under consideration: those with logits in [low, high], cut into equal bins from high down.
struct Range {
  float low, high;
  u32 count;         // tokens in it
  u64 before;        // count or mass of the tokens above it
  float scale;       // bins a unit of logit
  TEAM_FN bool holds(float value) const { return value >= low && value <= high; }
  TEAM_FN u32 bin(float value) const {
    // Each operation is monotone whatever its rounding, so bins never overlap; high and low never share one.
    if (value >= high) return 0;
    const float at = (high - value) * scale;
    return at < static_cast<float>(kBins - 1) ? static_cast<u32>(at) : kBins - 1;
  }
};

TEAM_FN Range range_of(float low, float high, u32 count, u64 before) {
  return Range{low, high, count, before, static_cast<float>(kBins) / (high - low)};
}

struct Found {
  u64 through;  // mass of the tokens up to this one, itself included
  u32 token;
};

struct Shared {
  u32 counts[kBins];
  u64 masses[kBins];
  u64 groups[kBins / kGroup];
  u64 ranks[kListed];
  u64 weights[kListed];
  u64 high, low, nans, found_rank, found_mass, before, mass_before;
  u32 listed, chosen, ties;
};

template <class Value>
struct Sampler {
  const Value* row;
  u32 vocab;
  float temperature, highest;
  Shared& s;
  bool refined = false;  // the bins are those of a narrower range than the first

  TEAM_FN u64 mass(float value) const {
    const double exponent =
        (static_cast<double>(value) - static_cast<double>(highest)) / static_cast<double>(temperature);
    return exponent < -33.0 ? 0 : static_cast<u64>(exp(exponent) * kOne + 0.5);
  }

  // Sums of the range's tokens by bin. The block; ends with a barrier.
  TEAM_CALL void fill_bins(const Range& range) {
    for (u32 i = TEAM_THREAD; i < kBins; i += TEAM_THREADS) s.counts[i] = 0, s.masses[i] = 0;
    TEAM_BARRIER();
    for_row(row, vocab, [&](float value, u32) {
      if (!range.holds(value)) return;
      const u32 bin = range.bin(value);
      add(&s.counts[bin], 1u);
      if (const u64 weight = mass(value)) add(&s.masses[bin], weight);
    });
    TEAM_BARRIER();
  }

  // Count or mass of the whole range.
  TEAM_CALL u64 in_all(bool by_count) {
    if (TEAM_THREAD == 0) s.before = 0;
    TEAM_BARRIER();
    u64 sum = 0;
    for (u32 i = TEAM_THREAD; i < kBins; i += TEAM_THREADS) sum += in_bin(by_count, i);
    if (sum) add(&s.before, sum);
    TEAM_BARRIER();
    sum = s.before;
    TEAM_BARRIER();
    return sum;
  }

  TEAM_FN u64 in_bin(bool by_count, u32 bin) const { return by_count ? s.counts[bin] : s.masses[bin]; }

  // The bin in which the cumulated count or mass first exceeds the target; s.before: what lies before it.
  TEAM_CALL u32 find_bin(bool by_count, u64 before, u64 target) {
    for (u32 group = TEAM_THREAD; group < kBins / kGroup; group += TEAM_THREADS) {
      u64 sum = 0;
      for (u32 i = 0; i < kGroup; ++i) sum += in_bin(by_count, group * kGroup + (i + group) % kGroup);
      s.groups[group] = sum;
    }
    TEAM_BARRIER();
    if (TEAM_THREAD == 0) {
      u32 group = 0;
      while (group + 1 < kBins / kGroup && before + s.groups[group] <= target) before += s.groups[group++];
      u32 bin = group * kGroup;
      const u32 last = bin + kGroup - 1;
      while (bin < last && before + in_bin(by_count, bin) <= target) before += in_bin(by_count, bin++);
      s.chosen = bin;
      s.before = before;
    }
    TEAM_BARRIER();
    return s.chosen;
  }

  // Mass of all tokens in bins before `bin`.
  TEAM_FN u64 mass_before_bin(u32 bin) {
    if (TEAM_THREAD == 0) s.mass_before = 0;
    TEAM_BARRIER();
    u64 sum = 0;
    for (u32 i = TEAM_THREAD; i < bin; i += TEAM_THREADS) sum += s.masses[i];
    if (sum) add(&s.mass_before, sum);
    TEAM_BARRIER();
    return s.mass_before;
  }

  // The first token whose cumulated count (mass) exceeds target, which must be less than the whole range's.
  TEAM_CALL Found find(Range range, bool by_count, u64 target) {
    if (refined) fill_bins(range);
    refined = false;
    u64 mass_above = 0;
    while (true) {
      const u32 bin = find_bin(by_count, range.before, target);
      const u64 before = s.before;
      const u32 count = s.counts[bin];
      mass_above += mass_before_bin(bin);
      if (count <= kListed) return find_listed(range, bin, by_count, before, mass_above, target);
      const Range narrow = shrink(range, bin, before, count);
      if (narrow.low == narrow.high) return find_tie(narrow, by_count, mass_above, target);
      range = narrow;
      refined = true;
      fill_bins(range);
    }
  }

  TEAM_CALL Found find_listed(const Range& range, u32 bin, bool by_count, u64 before, u64 mass_above, u64 target) {
    if (TEAM_THREAD == 0) s.listed = 0, s.found_rank = 0, s.found_mass = 0;
    TEAM_BARRIER();
    for_row(row, vocab, [&](float value, u32 id) {
      if (!range.holds(value) || range.bin(value) != bin) return;
      const u32 at = take(&s.listed);
      s.ranks[at] = rank_of(value, id);
      s.weights[at] = mass(value);
    });
    TEAM_BARRIER();
    const u32 listed = s.listed;
    for (u32 i = TEAM_THREAD; i < listed; i += TEAM_THREADS) {
      u64 reached = before, mass_reached = mass_above;
      for (u32 other = 0; other < listed; ++other) {
        if (s.ranks[other] >= s.ranks[i]) continue;
        reached += by_count ? 1 : s.weights[other];
        mass_reached += s.weights[other];
      }
      if (reached <= target && target < reached + (by_count ? 1 : s.weights[i])) {
        s.found_rank = s.ranks[i];
        s.found_mass = mass_reached + s.weights[i];
      }
    }
    TEAM_BARRIER();
    return Found{s.found_mass, static_cast<u32>(s.found_rank)};
  }

  // The bin as a range of its own, between the logits that are really in it.
  TEAM_CALL Range shrink(const Range& range, u32 bin, u64 before, u32 count) {
    if (TEAM_THREAD == 0) s.high = s.low = 0;
    TEAM_BARRIER();
    u64 high = 0, low = 0;
    for_row(row, vocab, [&](float value, u32) {
      if (!range.holds(value) || range.bin(value) != bin) return;
      const u64 order = order_of(value), inverse = 0xffffffffu - order;
      high = order > high ? order : high;
      low = inverse > low ? inverse : low;
    });
    high = warp_max(high);
    low = warp_max(low);
    if (first_lane()) raise(&s.high, high), raise(&s.low, low);
    TEAM_BARRIER();
    const float lowest = value_of(0xffffffffu - static_cast<u32>(s.low));
    const Range narrow = range_of(lowest, value_of(static_cast<u32>(s.high)), count, before);
    TEAM_BARRIER();
    return narrow;
  }

  // All tokens of the range have one logit: the answer is the n-th of them by id.
  TEAM_CALL Found find_tie(const Range& range, bool by_count, u64 mass_above, u64 target) {
    const u64 weight = mass(range.high);
    u64 wanted = by_count ? target - range.before : weight ? (target - range.before) / weight : 0;
    if (wanted >= range.count) wanted = range.count - 1;
    const u32 share = (vocab + kListed - 1) / kListed;  // ids are cut into kListed runs; count those in each
    for (u32 run = TEAM_THREAD; run < kListed; run += TEAM_THREADS) {
      u64 ties = 0;
      for (u32 id = run * share; id < (run + 1) * share && id < vocab; ++id) ties += range.holds(to_float(row[id]));
      s.ranks[run] = ties;
    }
    TEAM_BARRIER();
    if (TEAM_THREAD == 0) {
      u64 seen = 0;
      u32 run = 0;
      while (seen + s.ranks[run] <= wanted) seen += s.ranks[run++];
      u32 id = run * share;
      while (true) {
        if (range.holds(to_float(row[id])) && seen++ == wanted) break;
        ++id;
      }
      s.found_rank = id;
    }
    TEAM_BARRIER();
    return Found{mass_above + (wanted + 1) * weight, static_cast<u32>(s.found_rank)};
  }
};

// floor(value), at most mass - 1.
TEAM_FN u64 below(double value, u64 mass) {
  const u64 target = value > 0.0 ? static_cast<u64>(value) : 0;
  return target < mass ? target : mass - 1;
}

// The block: the token, or -1 if logits or parameters are out of range. temperature 0 is greedy.
template <class Value>
TEAM_FN long long sample_row(const Value* row, u32 vocab, float temperature, float top_p, u32 top_k, float uniform,
                             Shared& s) {
  if (TEAM_THREAD == 0) s.high = s.low = s.nans = 0;
  TEAM_BARRIER();
  float best = as_float(0xff800000u), worst = 3.4028234e38f;
  u32 best_id = 0;
  bool broken_here = false;
  for_row(row, vocab, [&](float value, u32 id) {  // ids ascend, so the first of equal ones stays
    if (value > best) best = value, best_id = id;
    if (value < worst && value >= -3.4028234e38f) worst = value;
    broken_here |= value != value;
  });
  const u64 high = warp_max((static_cast<u64>(order_of(best)) << 32) | (0xffffffffu - best_id));
  const u64 low = warp_max(0xffffffffu - order_of(worst));
  const u64 nans = warp_max(broken_here);
  if (first_lane()) raise(&s.high, high), raise(&s.low, low), raise(&s.nans, nans);
  TEAM_BARRIER();
  const float highest = value_of(static_cast<u32>(s.high >> 32));
  const float lowest = value_of(0xffffffffu - static_cast<u32>(s.low));
  const u32 greedy = 0xffffffffu - static_cast<u32>(s.high);
  const bool broken = s.nans != 0 || !(highest <= 3.4028234e38f) || !(highest >= -3.4028234e38f);
  TEAM_BARRIER();
  if (broken) return -1;
  if (temperature == 0.0f) return greedy;
  if (!(temperature > 0.0f && top_p > 0.0f && top_p <= 1.0f && uniform >= 0.0f && uniform < 1.0f)) return -1;

  Sampler<Value> sampler{row, vocab, temperature, highest, s};
  const Range finite = range_of(lowest, highest, vocab, 0);
  sampler.fill_bins(finite);
  u64 kept = sampler.in_all(false);
  if (top_k != 0 && top_k < sampler.in_all(true)) kept = sampler.find(finite, true, top_k - 1).through;
  if (top_p < 1.0f) {
    const double wanted = ceil(static_cast<double>(top_p) * static_cast<double>(kept));  // reached = exceeds one less
    kept = sampler.find(finite, false, below(wanted - 1.0, kept)).through;
  }
  return sampler.find(finite, false, below(static_cast<double>(uniform) * static_cast<double>(kept), kept)).token;
}

}  // namespace hostless_sampling
