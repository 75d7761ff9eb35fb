// Merging of up to kShortSymbols symbols: they lie side by side, and the earliest merge is looked for among all.
#pragma once

#include <cstdint>

#include "alphabet.hpp"
#include "arena.hpp"
#include "merge_table.hpp"

namespace hostless::bpe {

inline constexpr std::size_t kShortSymbols = 64;

struct Symbol {
  std::uint32_t id;
  std::uint32_t rank, merged;  // of the merge with the next symbol
  std::uint32_t unused;
};
static_assert(sizeof(Symbol) == 16);

// Symbols of text[begin, end), at most kShortSymbols bytes; each knows its merge with the next.
inline std::size_t short_symbols(const Alphabet& alphabet, const MergeTable& merges, const std::uint8_t* text,
                                 std::size_t begin, std::size_t end, Symbol* symbols) {
  std::size_t count = 0;
  alphabet.symbols(text, begin, end,
                   [&](std::uint32_t id, std::size_t, std::size_t) { symbols[count++] = {id, kNone, kNone, 0}; });
  for (std::size_t i = 0; i + 1 < count; ++i) {
    Merge merge = alphabet.by_character() ? merges.find(symbols[i].id, symbols[i + 1].id)
                                          : alphabet.pair(text[begin + i], text[begin + i + 1]);
    symbols[i].rank = merge.rank;
    symbols[i].merged = merge.merged;
  }
  return count;
}

// Merges until nothing merges or `least` are left: always the lowest rank, of equal ones the leftmost. Returns how many
// are left.
inline std::size_t merge_short(const MergeTable& merges, Symbol* symbols, std::size_t count, std::size_t least = 1) {
  auto pair = [&](std::size_t left) {
    Merge merge = left + 1 < count ? merges.find(symbols[left].id, symbols[left + 1].id) : Merge{};
    symbols[left].rank = merge.rank;
    symbols[left].merged = merge.merged;
  };
  while (count > least) {
    std::size_t best = 0;
    std::uint32_t rank = symbols[0].rank;
    for (std::size_t i = 1; i < count; ++i) {
      bool lower = symbols[i].rank < rank;
      rank = lower ? symbols[i].rank : rank;
      best = lower ? i : best;
    }
    if (rank == kNone) break;
    symbols[best].id = symbols[best].merged;
    --count;
    for (std::size_t i = best + 1; i < count; ++i) symbols[i] = symbols[i + 1];
    pair(best);
    if (best) pair(best - 1);
  }
  return count;
}

}  // namespace hostless::bpe
