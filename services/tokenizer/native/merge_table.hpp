// Which two neighbours merge, to what and how early (B15): a flat hash table, four entries a cache line.
#pragma once

#include <cstdint>

#include "aligned.hpp"

namespace hostless::bpe {

inline constexpr std::uint32_t kNone = 0xFFFFFFFF;

struct Merge {
  std::uint32_t merged = kNone;
  std::uint32_t rank = kNone;  // the lowest merges first; kNone: these two never merge
};

class MergeTable {
 public:
  explicit MergeTable(std::size_t most) : lines_(std::bit_ceil(most / 2 + 1)), mask_(lines_.size() - 1) {
    for (std::size_t i = 0; i < lines_.size(); ++i) {
      for (Entry& entry : lines_[i].entries) entry = {kFree, {}};
    }
  }

  // At most `most` different pairs; a pair given again takes the new value.
  void set(std::uint32_t left, std::uint32_t right, Merge merge) {
    std::uint64_t key = key_of(left, right);
    for (std::size_t at = line_of(left, right);; at = (at + 1) & mask_) {
      for (Entry& entry : lines_[at].entries) {
        if (entry.key != key && entry.key != kFree) continue;
        entry = {key, merge};
        return;
      }
    }
  }

  Merge find(std::uint32_t left, std::uint32_t right) const { return find(left, right, line_of(left, right)); }

  // The same with the line known, which may have been fetched.
  Merge find(std::uint32_t left, std::uint32_t right, std::uint32_t line_of_both) const {
    std::uint64_t key = key_of(left, right);
    for (std::size_t at = line_of_both;; at = (at + 1) & mask_) {
      const Line& line = lines_[at];
      for (const Entry& entry : line.entries) {
        if (entry.key == key) return entry.merge;
      }
      if (line.entries[3].key == kFree) return {};
    }
  }

  std::uint32_t line_of(std::uint32_t left, std::uint32_t right) const {
    return static_cast<std::uint32_t>(mix(key_of(left, right), 0x9E3779B97F4A7C15) & mask_);
  }
  void prefetch(std::uint32_t line) const { __builtin_prefetch(&lines_[line]); }

  std::size_t bytes() const { return lines_.bytes(); }

 private:
  static constexpr std::uint64_t kFree = ~std::uint64_t{0};
  struct Entry {
    std::uint64_t key;
    Merge merge;
  };
  static_assert(sizeof(Entry) == 16);
  struct alignas(kLine) Line {
    Entry entries[4];  // filled from the first on; a line that is full goes on in the next
  };

  static std::uint64_t key_of(std::uint32_t left, std::uint32_t right) {
    return static_cast<std::uint64_t>(left) << 32 | right;
  }

  AlignedArray<Line> lines_;
  std::size_t mask_;
};

}  // namespace hostless::bpe
