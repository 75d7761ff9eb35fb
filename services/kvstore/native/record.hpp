// A block on disk: one page that says what it is, then its bytes up to a whole page.
//
//     0     identity: magic 8 | nonce of the segment u64 | own offset u64 | key 16 | length u32 | piece u32
//     48    what only Python reads (engines/local/record.py)
//     1024  crc32c of each piece, at most 512
//     4092  crc32c of the page before it
//
// All little endian. Nonce and offset make a page that lies anywhere else, or in a payload, no header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "crc32c.hpp"

namespace hostless {

constexpr size_t kPage = 4096;
constexpr size_t kIdentity = 48, kLengthAt = 40;
constexpr size_t kHead = 1024;
constexpr size_t kPieces = 512;
constexpr size_t kPageCrcAt = kPage - 4;
constexpr size_t kLargestBlock = 32 << 20;
static_assert(kHead + 4 * kPieces <= kPageCrcAt);

constexpr uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

// Bytes that one checksum covers in a block of so many: the least power of two, from 16 KiB up, that leaves 512 pieces.
// Smaller ones would make slices a little smaller, and checksums of memory that is in no cache twice as slow.
constexpr size_t kLeastPiece = 16 << 10;
constexpr size_t piece_bytes(size_t length) {
  size_t piece = kLeastPiece;
  while (length > kPieces * piece) piece *= 2;
  return piece;
}

// How checksums move over a piece, for each size that a piece may have.
inline const CrcShift& shift_of(size_t piece) {
  static const CrcShift shifts[] = {CrcShift(kLeastPiece), CrcShift(2 * kLeastPiece), CrcShift(4 * kLeastPiece)};
  static_assert(piece_bytes(kLargestBlock) == 4 * kLeastPiece);
  return shifts[piece / kLeastPiece / 2];
}

inline uint32_t load_u32(const uint8_t* at) {
  uint32_t value;
  std::memcpy(&value, at, 4);
  return value;
}

inline void seal_page(uint8_t* page) {
  uint32_t crc = crc32c(page, kPageCrcAt);
  std::memcpy(page + kPageCrcAt, &crc, 4);
}

inline bool page_is_sealed(const uint8_t* page) { return load_u32(page + kPageCrcAt) == crc32c(page, kPageCrcAt); }

}  // namespace hostless
