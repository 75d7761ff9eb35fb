// SentencePiece merges a whole text as one piece. Where no merge puts a space behind a certain character, nothing is
// ever merged across such a border, so that words can be merged one by one, with the same outcome.
#pragma once

#include <cstdint>
#include <cstring>

#include "joins.hpp"

namespace hostless::bpe {

// As scan::Cut: ends before each space that never joins what it follows.
inline std::size_t cut_words(const Joins& joins, const std::uint8_t* text, std::size_t size, std::size_t begin,
                             std::uint32_t* ends, std::size_t capacity) {
  std::size_t count = 0, at = begin;
  while (begin < size && count < capacity) {
    const void* space = at + 1 < size ? std::memchr(text + at + 1, ' ', size - at - 1) : nullptr;
    at = space ? static_cast<std::size_t>(static_cast<const std::uint8_t*>(space) - text) : size;
    if (at < size && joins.before_space(text, at)) continue;
    ends[count++] = static_cast<std::uint32_t>(at);
    begin = at;
  }
  return count;
}

}  // namespace hostless::bpe
