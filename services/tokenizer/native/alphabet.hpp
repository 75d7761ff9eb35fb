// The symbols that merging starts from: bytes (byte level), or characters with bytes for those the vocabulary lacks.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "aligned.hpp"
#include "character_ids.hpp"
#include "merge_table.hpp"

namespace hostless::bpe {

// Length in bytes of the character that `first` begins, in valid UTF-8.
inline std::size_t char_length(std::uint8_t first) {
  return first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
}

inline std::uint32_t code_point(const std::uint8_t* at, std::size_t length) {
  switch (length) {
    case 1: return at[0];
    case 2: return (at[0] & 0x1Fu) << 6 | (at[1] & 0x3Fu);
    case 3: return (at[0] & 0x0Fu) << 12 | (at[1] & 0x3Fu) << 6 | (at[2] & 0x3Fu);
    default: return (at[0] & 0x07u) << 18 | (at[1] & 0x3Fu) << 12 | (at[2] & 0x3Fu) << 6 | (at[3] & 0x3Fu);
  }
}

class Alphabet {
 public:
  // `bytes`: the id of each byte, by itself or as the part of a character without an id; kNone where it has none.
  // `characters`: code points that have an id; empty where every symbol is a byte.
  Alphabet(const std::array<std::uint32_t, 256>& bytes,
           const std::vector<std::pair<std::uint32_t, std::uint32_t>>& characters, const MergeTable& merges)
      : bytes_(bytes) {
    for (auto [point, id] : characters) characters_.add(point, id);
    if (!by_character()) pair_bytes(merges);
    lacks_some_ = !by_character() && std::find(bytes_.begin(), bytes_.end(), kNone) != bytes_.end();
  }

  bool by_character() const { return !characters_.none(); }

  bool lacks_some() const { return lacks_some_; }

  // Whether a byte-level vocabulary lacks the token of some byte in this text; such bytes are left out of it.
  bool lacks(const std::uint8_t* text, std::size_t size) const {
    return lacks_some_ && std::any_of(text, text + size, [&](std::uint8_t value) { return bytes_[value] == kNone; });
  }

  std::size_t memory() const { return pairs_.bytes() + characters_.bytes(); }

  // Calls visit(id, begin, end) for each symbol of a text that is not cut within a character.
  template <class Visit>
  void symbols(const std::uint8_t* text, std::size_t begin, std::size_t end, Visit visit) const {
    if (!by_character()) {
      for (std::size_t i = begin; i < end; ++i) visit(bytes_[text[i]], i, i + 1);
      return;
    }
    while (begin < end) {
      std::size_t length = char_length(text[begin]);
      std::uint32_t id = characters_[code_point(text + begin, length)];
      if (id != kNone) {
        visit(id, begin, begin + length);
      } else {
        for (std::size_t i = 0; i < length; ++i) visit(bytes_[text[begin + i]], begin + i, begin + i + 1);
      }
      begin += length;
    }
  }

  std::uint32_t byte(std::uint8_t value) const { return bytes_[value]; }

  // What two bytes merge to, for symbols that are bytes: no hashing.
  Merge pair(std::uint8_t left, std::uint8_t right) const { return pairs_[std::size_t{left} << 8 | right]; }

 private:
  void pair_bytes(const MergeTable& merges) {
    pairs_ = AlignedArray<Merge>(1 << 16);
    for (std::size_t i = 0; i < 1 << 16; ++i) pairs_[i] = merges.find(bytes_[i >> 8], bytes_[i & 0xFF]);
  }

  std::array<std::uint32_t, 256> bytes_;
  CharacterIds characters_;
  bool lacks_some_;
  AlignedArray<Merge> pairs_;
};

}  // namespace hostless::bpe
