// SentencePiece merges a whole text as one piece. Where no merge puts a space behind something else, nothing is ever
// merged across such a border, so words can be merged one by one, with the same outcome.
#pragma once

#include <cstdint>
#include <cstring>

namespace hostless::bpe {

inline std::size_t cut_whole(const std::uint8_t*, std::size_t size, std::size_t begin, std::uint32_t* ends,
                             std::size_t) {
  if (begin == size) return 0;
  ends[0] = static_cast<std::uint32_t>(size);
  return 1;
}

// Before each space that follows something else.
inline std::size_t cut_words(const std::uint8_t* text, std::size_t size, std::size_t begin, std::uint32_t* ends,
                             std::size_t capacity) {
  std::size_t count = 0;
  while (begin < size && count < capacity) {
    while (begin < size && text[begin] == ' ') ++begin;
    const void* space = std::memchr(text + begin, ' ', size - begin);
    begin = space ? static_cast<std::size_t>(static_cast<const std::uint8_t*>(space) - text) : size;
    ends[count++] = static_cast<std::uint32_t>(begin);
  }
  return count;
}

}  // namespace hostless::bpe
