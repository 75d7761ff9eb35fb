#include <cstring>

#include "scanner.hpp"

namespace hostless::scan {

namespace {

// Bytes of the well-formed character at p (Unicode's table 3-7), of which `left` bytes are there; 0 if there is none.
std::size_t character(const std::uint8_t* p, std::size_t left) {
  const auto trail = [&](std::size_t i, unsigned from = 0x80, unsigned to = 0xBF) {
    return i < left && p[i] >= from && p[i] <= to;
  };
  const unsigned lead = p[0];
  if (lead < 0x80) return 1;
  if (lead < 0xC2) return 0;
  if (lead < 0xE0) return trail(1) ? 2 : 0;
  if (lead < 0xF0) return trail(1, lead == 0xE0 ? 0xA0 : 0x80, lead == 0xED ? 0x9F : 0xBF) && trail(2) ? 3 : 0;
  if (lead > 0xF4) return 0;
  return trail(1, lead == 0xF0 ? 0x90 : 0x80, lead == 0xF4 ? 0x8F : 0xBF) && trail(2) && trail(3) ? 4 : 0;
}

// Bytes at the start of text that are ASCII, in eights.
std::size_t ascii_eights(const std::uint8_t* text, std::size_t size) {
  std::size_t at = 0;
  for (std::uint64_t eight; at + 8 <= size; at += 8) {
    std::memcpy(&eight, text + at, 8);
    if (eight & 0x8080808080808080) break;
  }
  return at;
}

}  // namespace

bool valid_utf8(const std::uint8_t* text, std::size_t size) {
  for (std::size_t at = 0; at < size;) {
    at += ascii_eights(text + at, size - at);
    if (at == size) break;
    const std::size_t bytes = character(text + at, size - at);
    if (bytes == 0) return false;
    at += bytes;
  }
  return true;
}

}  // namespace hostless::scan
