// Merging a byte-level piece from characters on, not from bytes: a third of the symbols where a text is Chinese.
//
// What makes that exact, if no merge comes before its parts can be there (their own merges have lower ranks): merges
// are done in the order of their ranks. No merge takes a part of a character whose both ends are clean (Joins), so
// those within it are done by themselves, and before any that takes the whole of it.
#pragma once

#include <cstdint>

#include "alphabet.hpp"
#include "character_ids.hpp"
#include "joins.hpp"
#include "merge_table.hpp"
#include "short_piece.hpp"

namespace hostless::bpe {

class Characters {
 public:
  // Of a character that merging makes a token of.
  void add(std::uint32_t point, std::uint32_t id) { whole_.add(point, id); }

  bool none() const { return whole_.none(); }
  std::size_t bytes() const { return whole_.bytes(); }

  // Symbols of a piece of at most kShortSymbols bytes, as ShortPiece::fill makes them, but of whole characters.
  void fill(const Joins& joins, const Alphabet& alphabet, const MergeTable& merges, const std::uint8_t* text,
            std::size_t size, ShortPiece& piece) const {
    piece.clear();
    bool clean = true;  // nothing takes what is before `at` together with a part of what follows
    for (std::size_t at = 0; at < size;) {
      std::size_t length = text[at] < 0xC0 ? 1 : char_length(text[at]), next = at + length;
      bool clean_after = next >= size || !joins.edge(text[next - 1], text[next]);
      std::uint32_t id =
          clean && clean_after && length > 1 && next <= size ? whole_[code_point(text + at, length)] : kNone;
      if (id != kNone) {
        piece.add(id);
      } else {
        for (next = std::min(next, size); at < next; ++at) piece.add(alphabet.byte(text[at]));
      }
      clean = clean_after;
      at = next;
    }
    piece.start(merges);
  }

 private:
  CharacterIds whole_;
};

}  // namespace hostless::bpe
