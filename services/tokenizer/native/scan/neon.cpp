#include "instruction_sets.hpp"

#if defined(__aarch64__)
#include <arm_neon.h>

#include <bit>
#include <cstring>

#include "cut.hpp"

namespace hostless::scan {

namespace {

struct Neon {
  static constexpr bool windows = true;

  using Bytes = uint8x16x4_t;

  static Bytes load(const std::uint8_t* p, std::size_t size) {
    std::uint8_t copy[64] = {};
    if (size < 64) p = static_cast<const std::uint8_t*>(std::memcpy(copy, p, size));
    return {vld1q_u8(p), vld1q_u8(p + 16), vld1q_u8(p + 32), vld1q_u8(p + 48)};
  }

  static Bytes lower_case(const Bytes& bytes) {
    return each(bytes, [](uint8x16_t part) { return vorrq_u8(part, vdupq_n_u8(0x20)); });
  }

  static Mask equal(const Bytes& bytes, std::uint8_t value) {
    return mask(each(bytes, [=](uint8x16_t part) { return vceqq_u8(part, vdupq_n_u8(value)); }));
  }

  static Mask between(const Bytes& bytes, std::uint8_t from, std::uint8_t to) {
    const uint8x16_t least = vdupq_n_u8(from), range = vdupq_n_u8(to - from);
    return mask(each(bytes, [=](uint8x16_t part) { return vcleq_u8(vsubq_u8(part, least), range); }));
  }

 private:
  template <class Of>
  static Bytes each(const Bytes& b, Of of) {
    return {of(b.val[0]), of(b.val[1]), of(b.val[2]), of(b.val[3])};
  }

  // Each byte of 0xFF or 0 to one bit: its own bit of a group of eight, then three sums of neighbours.
  static Mask mask(const Bytes& b) {
    const uint8x16_t bits = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201));
    const uint8x16_t low = vpaddq_u8(vandq_u8(b.val[0], bits), vandq_u8(b.val[1], bits));
    const uint8x16_t high = vpaddq_u8(vandq_u8(b.val[2], bits), vandq_u8(b.val[3], bits));
    const uint8x16_t pairs = vpaddq_u8(low, high);
    return vgetq_lane_u64(vreinterpretq_u64_u8(vpaddq_u8(pairs, pairs)), 0);
  }
};

}  // namespace

Cut neon_cutter(Pattern pattern) { return cut_for<Neon>(pattern); }

}  // namespace hostless::scan
#endif
