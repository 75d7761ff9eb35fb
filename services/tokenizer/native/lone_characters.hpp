// What merging makes of a character by itself, found when tables are made: most parts that Chinese text falls into.
#pragma once

#include <cstdint>
#include <vector>

#include "aligned.hpp"
#include "alphabet.hpp"
#include "merge_table.hpp"
#include "short_piece.hpp"

namespace hostless::bpe {

class LoneCharacters {
 public:
  // None where the vocabulary lacks bytes.
  LoneCharacters(const Alphabet& alphabet, const MergeTable& merges) {
    if (alphabet.lacks_some()) return;
    entries_ = AlignedArray<std::uint32_t>(kPoints);
    for (std::uint32_t point = 0; point < kPoints; ++point) entries_[point] = entry(point, alphabet, merges);
    more_.shrink_to_fit();
  }

  bool has(std::uint32_t point) const { return point < entries_.size(); }

  void prefetch(std::uint32_t point) const { __builtin_prefetch(entries_.data() + (has(point) ? point : 0)); }

  // The only id of a character; kNone if it has several, or is not here.
  std::uint32_t only(std::uint32_t point) const {
    return !has(point) || entries_[point] & kSeveral ? kNone : entries_[point];
  }

  std::uint32_t* write(std::uint32_t point, std::uint32_t* out) const {
    std::uint32_t entry = entries_[point];
    if (!(entry & kSeveral)) [[likely]] {
      *out = entry;
      return out + 1;
    }
    const std::uint32_t* ids = more_.data() + (entry & kPlace);
    for (std::uint32_t left = (entry & ~kSeveral) / kCount; left > 0; --left) *out++ = *ids++;
    return out;
  }

  std::size_t bytes() const { return entries_.bytes() + more_.capacity() * sizeof(std::uint32_t); }

 private:
  static constexpr std::uint32_t kPoints = 1 << 16;
  static constexpr std::uint32_t kSeveral = std::uint32_t{1} << 31;  // then comes how many, and their place in more_
  static constexpr std::uint32_t kCount = 1 << 24, kPlace = kCount - 1;

  std::uint32_t entry(std::uint32_t point, const Alphabet& alphabet, const MergeTable& merges) {
    std::uint8_t text[4];
    std::size_t size = 0;
    if (point < 0x80) {
      text[size++] = static_cast<std::uint8_t>(point);
    } else {
      if (point < 0x800) {
        text[size++] = static_cast<std::uint8_t>(0xC0 | point >> 6);
      } else {
        text[size++] = static_cast<std::uint8_t>(0xE0 | point >> 12);
        text[size++] = static_cast<std::uint8_t>(0x80 | (point >> 6 & 0x3F));
      }
      text[size++] = static_cast<std::uint8_t>(0x80 | (point & 0x3F));
    }
    ShortPiece piece;
    piece.fill(alphabet, merges, text, size);
    std::size_t count = piece.merge(merges);
    if (count == 1) return piece[0];
    auto place = static_cast<std::uint32_t>(more_.size());
    for (std::size_t i = 0; i < count; ++i) more_.push_back(piece[i]);
    return kSeveral | static_cast<std::uint32_t>(count) * kCount | place;
  }

  AlignedArray<std::uint32_t> entries_;  // by code point, of those below kPoints
  std::vector<std::uint32_t> more_;
};

}  // namespace hostless::bpe
