// Between which characters a merge may ever take place. Elsewhere a piece can be cut, and each part merged by itself
// with the same outcome: most Chinese or Japanese text falls apart into parts that are one token each.
#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_set>

#include "aligned.hpp"
#include "alphabet.hpp"

namespace hostless::bpe {

class Joins {
 public:
  // Notes a merge, by the texts of what it merges.
  void add(std::string_view left, std::string_view right) {
    if (left.empty() || right.empty()) return;
    auto last = static_cast<std::uint8_t>(left.back()), first = static_cast<std::uint8_t>(right.front());
    if (continues(first)) return;  // within a character
    if (last < 0x80 && first < 0x80) {
      set(last, first);
      return;
    }
    std::size_t begin = left.size() - 1;
    while (begin && continues(static_cast<std::uint8_t>(left[begin]))) --begin;
    std::string_view before = left.substr(begin), after = right.substr(0, char_length(first));
    bool whole = before.size() == char_length(static_cast<std::uint8_t>(before[0])) &&
                 !continues(static_cast<std::uint8_t>(before[0])) && after.size() == char_length(first);
    if (whole) {
      pairs_.insert(key(before, after));
    } else {
      set(last, first);
    }
  }

  // Call once, after the last add.
  void finish() {
    filter_ = AlignedArray<std::uint64_t>(std::bit_ceil(pairs_.size() / 4 + 1));  // 16 bits for each pair
    std::memset(filter_.data(), 0, filter_.bytes());
    for (std::uint64_t pair : pairs_) {
      std::uint64_t bit = bit_of(pair);
      filter_[bit >> 6] |= std::uint64_t{1} << (bit & 63);
    }
    pairs_ = {};
  }

  // False: no merge ever joins what ends with this character, of that last byte, and what begins with that one.
  bool may(std::uint32_t before, std::uint8_t last, std::uint32_t after, std::uint8_t first) const {
    if (edge(last, first)) return true;
    if (last < 0x80 && first < 0x80) return false;
    std::uint64_t bit = bit_of(std::uint64_t{before} << 32 | after);
    return filter_[bit >> 6] >> (bit & 63) & 1;
  }

  void prefetch(std::uint32_t before, std::uint32_t after) const {
    __builtin_prefetch(&filter_[bit_of(std::uint64_t{before} << 32 | after) >> 6]);
  }

  // Whether a merge may take a byte that ends a character and one that begins the next, and not both characters whole.
  // True for some whole ones of ASCII, too.
  bool edge(std::uint8_t last, std::uint8_t first) const { return edges_[last][first >> 6] >> (first & 63) & 1; }

  // The same for the character that ends before the space at text[at].
  bool before_space(const std::uint8_t* text, std::size_t at) const {
    std::size_t begin = at - 1;
    while (begin && continues(text[begin])) --begin;
    return may(code_point(text + begin, at - begin), text[at - 1], ' ', ' ');
  }

  std::size_t bytes() const { return filter_.bytes() + sizeof edges_; }

 private:
  static bool continues(std::uint8_t byte) { return (byte & 0xC0) == 0x80; }

  static std::uint64_t key(std::string_view before, std::string_view after) {
    auto point = [](std::string_view text) {
      return code_point(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
    };
    return std::uint64_t{point(before)} << 32 | point(after);
  }

  std::uint64_t bit_of(std::uint64_t pair) const { return mix(pair, 0xD6E8FEB86659FD93) & (filter_.size() * 64 - 1); }

  void set(std::uint8_t last, std::uint8_t first) { edges_[last][first >> 6] |= std::uint64_t{1} << (first & 63); }

  std::uint64_t edges_[256][4] = {};  // last byte, first byte: of ASCII, and where a merge takes a part of a character
  std::unordered_set<std::uint64_t> pairs_;
  AlignedArray<std::uint64_t> filter_;  // one bit for a hash of two whole characters: may say yes wrongly, never no
};

}  // namespace hostless::bpe
