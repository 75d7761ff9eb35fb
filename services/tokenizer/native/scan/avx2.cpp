#include "instruction_sets.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

#include <bit>
#include <cstring>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,bmi,popcnt"))), apply_to = function)
#else
#pragma GCC target("avx2,bmi,popcnt")
#endif

#include "cut.hpp"

namespace hostless::scan {

namespace {

struct Avx2 {
  static constexpr bool windows = true;

  struct Bytes {
    __m256i low, high;
  };

  static Bytes load(const std::uint8_t* p, std::size_t size) {
    std::uint8_t copy[64] = {};
    if (size < 64) p = static_cast<const std::uint8_t*>(std::memcpy(copy, p, size));
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
  }

  static Bytes lower_case(const Bytes& bytes) {
    const __m256i bit = _mm256_set1_epi8(0x20);
    return {_mm256_or_si256(bytes.low, bit), _mm256_or_si256(bytes.high, bit)};
  }

  static Mask equal(const Bytes& bytes, std::uint8_t value) {
    const __m256i all = _mm256_set1_epi8(static_cast<char>(value));
    return mask(_mm256_cmpeq_epi8(bytes.low, all), _mm256_cmpeq_epi8(bytes.high, all));
  }

  static Mask between(const Bytes& bytes, std::uint8_t from, std::uint8_t to) {
    if (from == 0x80 && to == 0xFF) return mask(bytes.low, bytes.high);
    return mask(between(bytes.low, from, to), between(bytes.high, from, to));
  }

 private:
  static __m256i between(__m256i bytes, std::uint8_t from, std::uint8_t to) {
    const __m256i offset = _mm256_sub_epi8(bytes, _mm256_set1_epi8(static_cast<char>(from)));
    return _mm256_cmpeq_epi8(offset, _mm256_min_epu8(offset, _mm256_set1_epi8(static_cast<char>(to - from))));
  }

  static Mask mask(__m256i low, __m256i high) {
    const Mask upper_half = static_cast<std::uint32_t>(_mm256_movemask_epi8(high));
    return upper_half << 32 | static_cast<std::uint32_t>(_mm256_movemask_epi8(low));
  }
};

}  // namespace

Cut avx2_cutter(Pattern pattern) { return cut_for<Avx2>(pattern); }

}  // namespace hostless::scan

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
