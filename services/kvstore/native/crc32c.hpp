// CRC32C (Castagnoli) by the CPU's own instruction, three pieces at a time: the instruction takes three cycles and a
// core starts one every cycle. A block's checksum is put together from those of its pieces, so that its bytes are read
// once.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#define HOSTLESS_CRC_TARGET __attribute__((target("sse4.2")))
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>
#define HOSTLESS_CRC_TARGET __attribute__((target("+crc")))
#endif

namespace hostless {

constexpr uint32_t kCastagnoli = 0x82f63b78;  // bits reversed, as every crc32c here

// Product of two polynomials modulo Castagnoli's.
constexpr uint32_t crc_multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = 1u << 31; bit != 0; bit >>= 1) {
    if (a & bit) product ^= b;
    b = b & 1 ? (b >> 1) ^ kCastagnoli : b >> 1;
  }
  return product;
}

// x to the power of 8 * bytes: what a checksum is multiplied by when so many bytes follow.
constexpr uint32_t crc_shift_by(uint64_t bytes) {
  uint32_t result = 1u << 31, base = 1u << 23;
  for (; bytes != 0; bytes >>= 1, base = crc_multiply(base, base))
    if (bytes & 1) result = crc_multiply(base, result);
  return result;
}

// Eight tables: byte i of a word, followed by 7 - i more. Without the instruction, eight bytes a step.
constexpr auto make_crc_tables() {
  std::array<std::array<uint32_t, 256>, 8> tables{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? (crc >> 1) ^ kCastagnoli : crc >> 1;
    tables[0][i] = crc;
  }
  for (size_t n = 1; n < 8; ++n)
    for (size_t i = 0; i < 256; ++i) tables[n][i] = (tables[n - 1][i] >> 8) ^ tables[0][tables[n - 1][i] & 255];
  return tables;
}
inline constexpr auto kCrcTables = make_crc_tables();

// Below, states are without the inversion at begin and end.
inline uint32_t crc_by_table(uint32_t state, const uint8_t* data, size_t bytes) {
  const auto& t = kCrcTables;
  for (; bytes >= 8; data += 8, bytes -= 8) {
    uint64_t word;
    std::memcpy(&word, data, 8);
    word ^= state;
    state = 0;
    for (int i = 0; i < 8; ++i) state ^= t[7 - i][(word >> (8 * i)) & 255];
  }
  for (; bytes != 0; ++data, --bytes) state = (state >> 8) ^ t[0][(state ^ *data) & 255];
  return state;
}

#ifdef HOSTLESS_CRC_TARGET
HOSTLESS_CRC_TARGET inline uint32_t crc_step8(uint32_t state, const uint8_t* data) {
  uint64_t word;
  std::memcpy(&word, data, 8);
#if defined(__x86_64__)
  return static_cast<uint32_t>(_mm_crc32_u64(state, word));
#else
  return __crc32cd(state, word);
#endif
}

HOSTLESS_CRC_TARGET inline uint32_t crc_by_instruction(uint32_t state, const uint8_t* data, size_t bytes) {
  for (; bytes >= 8; data += 8, bytes -= 8) state = crc_step8(state, data);
  return crc_by_table(state, data, bytes);
}

// Three stretches of `bytes` (a multiple of 8) that follow one another. They come from the disk, so they are in no
// cache, and three streams at once are more than the hardware's prefetchers see: ahead of each, a line is asked for.
HOSTLESS_CRC_TARGET inline void crc_three(uint32_t* states, const uint8_t* data, size_t bytes) {
  constexpr size_t kLine = 64, kAhead = 1024;
  uint32_t a = states[0], b = states[1], c = states[2];
  const uint8_t *end = data + bytes, *lines_end = data + bytes / kLine * kLine;
  for (; data != lines_end; data += kLine) {
    for (size_t stream = 0; stream < 3; ++stream) __builtin_prefetch(data + stream * bytes + kAhead);
    for (size_t i = 0; i < kLine; i += 8) {
      a = crc_step8(a, data + i);
      b = crc_step8(b, data + bytes + i);
      c = crc_step8(c, data + 2 * bytes + i);
    }
  }
  for (; data != end; data += 8) {
    a = crc_step8(a, data);
    b = crc_step8(b, data + bytes);
    c = crc_step8(c, data + 2 * bytes);
  }
  states[0] = a, states[1] = b, states[2] = c;
}

inline bool cpu_has_crc() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("sse4.2") != 0;
#else
  return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
#endif
}
#else
inline uint32_t crc_by_instruction(uint32_t state, const uint8_t* data, size_t bytes) {
  return crc_by_table(state, data, bytes);
}
inline void crc_three(uint32_t* states, const uint8_t* data, size_t bytes) {
  for (int i = 0; i < 3; ++i) states[i] = crc_by_table(states[i], data + i * bytes, bytes);
}
inline bool cpu_has_crc() { return false; }
#endif

inline const bool kCrcInstruction = cpu_has_crc();

inline uint32_t crc32c(const uint8_t* data, size_t bytes, bool instruction = kCrcInstruction) {
  return ~(instruction ? crc_by_instruction(~0u, data, bytes) : crc_by_table(~0u, data, bytes));
}

// The checksum of each piece of `piece` bytes (a multiple of 8); the last may be shorter.
inline void crc32c_pieces(const uint8_t* data, size_t bytes, size_t piece, uint32_t* out,
                          bool instruction = kCrcInstruction) {
  if (instruction) {
    for (; bytes >= 3 * piece; data += 3 * piece, bytes -= 3 * piece, out += 3) {
      uint32_t states[3] = {~0u, ~0u, ~0u};
      crc_three(states, data, piece);
      for (int i = 0; i < 3; ++i) out[i] = ~states[i];
    }
  }
  for (; bytes != 0; ++out) {
    size_t length = bytes < piece ? bytes : piece;
    *out = crc32c(data, length, instruction);
    data += length, bytes -= length;
  }
}

// Multiplication by one power of x, byte by byte from tables: a block's pieces are joined by hundreds of them.
class CrcShift {
 public:
  explicit CrcShift(size_t bytes) {
    uint32_t factor = crc_shift_by(bytes);
    for (int byte = 0; byte < 4; ++byte)
      for (uint32_t value = 1; value < 256; ++value) {
        uint32_t rest = value & (value - 1);  // linear: the sum of its bits' products
        tables_[byte][value] =
            rest ? tables_[byte][rest] ^ tables_[byte][value ^ rest] : crc_multiply(factor, value << (8 * byte));
      }
  }
  uint32_t operator()(uint32_t crc) const {
    return tables_[0][crc & 255] ^ tables_[1][crc >> 8 & 255] ^ tables_[2][crc >> 16 & 255] ^ tables_[3][crc >> 24];
  }

 private:
  uint32_t tables_[4][256] = {};
};

// The checksum of the whole, `bytes` long, from those of its pieces; `shift` is by a piece.
inline uint32_t crc32c_join(const uint32_t* crcs, size_t bytes, size_t piece, const CrcShift& shift) {
  uint32_t whole = 0;
  for (; bytes >= piece; bytes -= piece, ++crcs) whole = shift(whole) ^ *crcs;
  return bytes == 0 ? whole : crc_multiply(crc_shift_by(bytes), whole) ^ *crcs;
}

}  // namespace hostless
