#include "instruction_sets.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

#include <bit>
#include <cstring>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,bmi,popcnt"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,bmi,popcnt")
#endif

#include "cut.hpp"

namespace hostless::scan {

namespace {

struct Avx512 {
  static constexpr bool windows = true;

  using Bytes = __m512i;

  static Bytes load(const std::uint8_t* p, std::size_t size) {
    return size < 64 ? _mm512_maskz_loadu_epi8((Mask{1} << size) - 1, p) : _mm512_loadu_si512(p);
  }

  static Bytes lower_case(Bytes bytes) { return _mm512_or_si512(bytes, _mm512_set1_epi8(0x20)); }

  static Mask equal(Bytes bytes, std::uint8_t value) {
    return _mm512_cmpeq_epi8_mask(bytes, _mm512_set1_epi8(static_cast<char>(value)));
  }

  static Mask between(Bytes bytes, std::uint8_t from, std::uint8_t to) {
    if (from == 0x80 && to == 0xFF) return _mm512_movepi8_mask(bytes);
    const __m512i offset = _mm512_sub_epi8(bytes, _mm512_set1_epi8(static_cast<char>(from)));
    return _mm512_cmple_epu8_mask(offset, _mm512_set1_epi8(static_cast<char>(to - from)));
  }
};

}  // namespace

Cut avx512_cutter(Pattern pattern) { return cut_for<Avx512>(pattern); }

}  // namespace hostless::scan

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
