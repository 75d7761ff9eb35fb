// Merging of up to kShortSymbols symbols: they lie side by side, and the earliest merge is looked for among all.
#pragma once

#include <bit>
#include <cstdint>

#include "alphabet.hpp"
#include "merge_table.hpp"

namespace hostless::bpe {

inline constexpr std::size_t kShortSymbols = 64;

struct Symbol {
  std::uint32_t id;
  std::uint32_t rank, merged;  // of the merge with the next symbol
  std::uint32_t line;         // of the table, where that merge would be
};
static_assert(sizeof(Symbol) == 16);

// Merged in steps, so that what one step has to look up can come from memory meanwhile.
class ShortPiece {
 public:
  void clear() { count_ = open_ = 0; }

  std::size_t count() const { return count_; }
  std::uint32_t operator[](std::size_t i) const { return symbols_[i].id; }

  void add(std::uint32_t id) { symbols_[count_++] = {id, kNone, kNone, 0}; }

  // Symbols of text[0, size), at most kShortSymbols bytes.
  void fill(const Alphabet& alphabet, const MergeTable& merges, const std::uint8_t* text, std::size_t size) {
    clear();
    alphabet.symbols(text, 0, size, [&](std::uint32_t id, std::size_t, std::size_t) { add(id); });
    if (alphabet.by_character()) return start(merges);
    for (std::size_t i = 0; i + 1 < count_; ++i) {
      Merge merge = alphabet.pair(text[i], text[i + 1]);
      symbols_[i].rank = merge.rank;
      symbols_[i].merged = merge.merged;
    }
  }

  // Before the first step, after symbols were added.
  void start(const MergeTable& merges) {
    for (std::size_t i = 0; i + 1 < count_; ++i) open(merges, i);
  }

  // Does one merge: the lowest rank, of equal ones the leftmost. False: none is left.
  bool step(const MergeTable& merges) {
    for (; open_; open_ &= open_ - 1) {
      Symbol* symbol = symbols_ + std::countr_zero(open_);
      Merge merge = merges.find(symbol[0].id, symbol[1].id, symbol->line);
      symbol->rank = merge.rank;
      symbol->merged = merge.merged;
    }
    std::size_t best = 0;
    std::uint32_t rank = kNone;
    for (std::size_t i = 0; i + 1 < count_; ++i) {
      bool lower = symbols_[i].rank < rank;
      rank = lower ? symbols_[i].rank : rank;
      best = lower ? i : best;
    }
    if (rank == kNone) return false;
    symbols_[best].id = symbols_[best].merged;
    --count_;
    for (std::size_t i = best + 1; i < count_; ++i) symbols_[i] = symbols_[i + 1];
    if (best + 1 < count_) open(merges, best);
    if (best) open(merges, best - 1);
    return open_ != 0;
  }

  // Until nothing merges or `least` are left. Returns how many are.
  std::size_t merge(const MergeTable& merges, std::size_t least = 1) {
    while (count_ > least && step(merges)) continue;
    return count_;
  }

 private:
  void open(const MergeTable& merges, std::size_t i) {
    symbols_[i].line = merges.line_of(symbols_[i].id, symbols_[i + 1].id);
    merges.prefetch(symbols_[i].line);
    open_ |= std::uint64_t{1} << i;
  }

  std::size_t count_;
  std::uint64_t open_;  // a bit for each symbol whose merge with the next is still to be looked up
  Symbol symbols_[kShortSymbols];
};

}  // namespace hostless::bpe
