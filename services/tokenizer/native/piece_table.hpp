// Whole pieces that are one token, by their bytes: most pieces of usual text, found without merging anything.
//
// Only tokens that merging makes of their own text belong here, or all where the vocabulary ignores merges.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "aligned.hpp"
#include "merge_table.hpp"

namespace hostless::bpe {

// A piece's first twelve bytes, its length above them. The whole piece, if it is no longer than that.
struct PieceKey {
  std::uint64_t low, high;
  std::uint64_t hash() const { return mix(low ^ 0xA0761D6478BD642F, high ^ 0xE7037ED1A0B428DB); }
};

inline constexpr std::size_t kShortPiece = 12;

// `readable` bytes may be read at `text`, `length` of them make the piece; 1 <= length <= kShortPiece.
inline PieceKey piece_key(const std::uint8_t* text, std::size_t length, std::size_t readable) {
  std::uint64_t low, high;
  if (readable >= 16) [[likely]] {
    low = load<std::uint64_t>(text);
    high = load<std::uint64_t>(text + 8);
  } else {
    std::uint8_t padded[16] = {};
    std::memcpy(padded, text, length);
    low = load<std::uint64_t>(padded);
    high = load<std::uint64_t>(padded + 8);
  }
  std::uint64_t last = length >= 8 ? ~std::uint64_t{0} : (std::uint64_t{1} << 8 * length) - 1;
  std::uint64_t over = length <= 8 ? 0 : (std::uint64_t{1} << 8 * (length - 8)) - 1;
  return {low & last, (high & over) | static_cast<std::uint64_t>(length) << 32};
}

class PieceTable {
 public:
  struct Piece {
    const std::uint8_t* text;
    std::size_t length;
    std::uint32_t id;
  };

  // Of pieces that are all different, with ids under 2^24.
  explicit PieceTable(const std::vector<Piece>& pieces) {
    std::size_t brief = 0, bytes = 0;
    for (const Piece& piece : pieces) {
      piece.length <= kShortPiece ? ++brief : bytes += piece.length;
      longest_ = std::max(longest_, piece.length);
    }
    short_ = AlignedArray<ShortLine>(std::bit_ceil(brief / 2 + 1));
    std::memset(static_cast<void*>(short_.data()), 0, short_.bytes());
    long_ = AlignedArray<LongEntry>(std::bit_ceil((pieces.size() - brief) * 2 + 1));
    for (std::size_t i = 0; i < long_.size(); ++i) long_[i].id = kNone;
    texts_.reserve(bytes);
    for (const Piece& piece : pieces) piece.length <= kShortPiece ? add_short(piece) : add_long(piece);
  }

  std::size_t longest() const { return longest_; }
  std::size_t bytes() const { return short_.bytes() + long_.bytes() + texts_.capacity(); }

  void prefetch(std::uint64_t hash) const { __builtin_prefetch(&short_[hash & (short_.size() - 1)]); }
  void prefetch_long(std::uint64_t hash) const { __builtin_prefetch(&long_[hash & (long_.size() - 1)]); }

  // kNone if there is no such piece.
  std::uint32_t find(const PieceKey& key, std::uint64_t hash) const {
    for (std::size_t at = hash & (short_.size() - 1);; at = (at + 1) & (short_.size() - 1)) {
      const ShortLine& line = short_[at];
      for (const ShortEntry& entry : line.entries) {
        // A difference in the text or the length, not in the id, which lies above both.
        if (entry.low == key.low && ((entry.high ^ key.high) << 24) == 0) return entry.high >> 40;
      }
      if (line.entries[3].high == 0) return kNone;
    }
  }

  // For kShortPiece < length <= longest().
  static std::uint64_t long_hash(const std::uint8_t* text, std::size_t length) {
    std::uint64_t hash = length;
    for (std::size_t i = 0; i + 8 <= length; i += 8) {
      hash = mix(hash ^ load<std::uint64_t>(text + i), 0x8EBC6AF09C88C6E3);
    }
    return mix(hash ^ load<std::uint64_t>(text + length - 8), 0x589965CC75374CC3);
  }

  std::uint32_t find_long(const std::uint8_t* text, std::size_t length, std::uint64_t hash) const {
    for (std::size_t at = hash & (long_.size() - 1);; at = (at + 1) & (long_.size() - 1)) {
      const LongEntry& entry = long_[at];
      if (entry.id == kNone) return kNone;
      if (entry.tag == static_cast<std::uint32_t>(hash >> 32) && entry.length == length &&
          std::memcmp(texts_.data() + entry.begin, text, length) == 0) {
        return entry.id;
      }
    }
  }

 private:
  struct ShortEntry {
    std::uint64_t low;
    std::uint64_t high;  // 4 bytes of text, 1 of length, 3 of id; zero in a free entry, since no length is 0
  };
  struct alignas(kLine) ShortLine {
    ShortEntry entries[4];
  };
  struct LongEntry {
    std::uint32_t tag, begin, length, id;
  };

  void add_short(const Piece& piece) {
    PieceKey key = piece_key(piece.text, piece.length, piece.length);
    for (std::size_t at = key.hash() & (short_.size() - 1);; at = (at + 1) & (short_.size() - 1)) {
      for (ShortEntry& entry : short_[at].entries) {
        if (entry.high) continue;
        entry = {key.low, key.high | static_cast<std::uint64_t>(piece.id) << 40};
        return;
      }
    }
  }

  void add_long(const Piece& piece) {
    std::uint64_t hash = long_hash(piece.text, piece.length);
    std::size_t at = hash & (long_.size() - 1);
    while (long_[at].id != kNone) at = (at + 1) & (long_.size() - 1);
    long_[at] = {static_cast<std::uint32_t>(hash >> 32), static_cast<std::uint32_t>(texts_.size()),
                 static_cast<std::uint32_t>(piece.length), piece.id};
    texts_.insert(texts_.end(), piece.text, piece.text + piece.length);
  }

  AlignedArray<ShortLine> short_;
  AlignedArray<LongEntry> long_;
  std::vector<std::uint8_t> texts_;
  std::size_t longest_ = 0;
};

}  // namespace hostless::bpe
