// Long pieces in linear time, by tokens and not by merges: a megabyte of one letter is one piece.
//
// What makes that exact: a row of tokens is the right one if every two neighbours are, i.e. if merging the text of
// just those two gives them again. (Take the first merge across a border between two tokens: up to then each side
// went its own way, just as in the text of those two alone, so it would have happened there too.) So tokens are tried
// from left to right, longest first. The right row of any beginning of the text is unique: a place that leads nowhere
// leads nowhere whatever stands before it, and is tried once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "alphabet.hpp"
#include "arena.hpp"
#include "merge_table.hpp"
#include "queue_merge.hpp"
#include "short_piece.hpp"
#include "token_trie.hpp"

namespace hostless::bpe {

// How a token comes about: by its last merge. A symbol has none.
struct Birth {
  std::uint32_t left = kNone, right = kNone;
  std::uint32_t time = 0;  // 1 + rank of the merge; 0 for a symbol
  std::uint32_t shorter = kNone;  // the longest token that is a beginning of this one
};
static_assert(sizeof(Birth) == 16);

class LongPieces {
 public:
  // `births` and `lengths` by id; the trie holds each token that is made of its own text.
  LongPieces(TokenTrie trie, std::vector<Birth> births, std::vector<std::uint32_t> lengths)
      : trie_(std::move(trie)), births_(std::move(births)), lengths_(std::move(lengths)), disordered_(births_.size()) {
    for (std::uint32_t id = 0; id < births_.size(); ++id) disordered_[id] = disordered(id);
    for (std::uint32_t length : lengths_) most_ = std::max<std::size_t>(most_, length);
  }

  // Writes the ids of the piece text[0, size) to `out`, which has room for `size`; returns their end.
  std::uint32_t* merge(const std::uint8_t* text, std::size_t size, const Alphabet& alphabet, const MergeTable& merges,
                       Arena& arena, std::uint32_t* out) const {
    std::uint64_t* dead = arena.dead.need(size / 64 + 1);
    std::memset(dead, 0, (size / 64 + 1) * sizeof *dead);
    std::size_t count = 0, at = 0;
    std::size_t last_dead = 0, unlike = 0;  // the last place that is dead; where a repetition was seen to end
    std::uint32_t token = longest(text, at, size, alphabet);
    Pair fits;  // the last that were found to be neighbours: runs repeat them
    while (at < size) {
      for (; token != kNone; token = births_[token].shorter) {
        std::size_t end = at + lengths_[token];
        bool blocked = dead[end >> 6] >> (end & 63) & 1;
        if (blocked) continue;
        if (!count) break;
        Pair pair{out[count - 1], token};
        if (pair == fits || neighbours(pair.left, pair.right, text + at, alphabet, merges, arena)) {
          fits = pair;
          break;
        }
      }
      if (token != kNone) {
        at += lengths_[token];
        out[count++] = token;
        if (std::size_t back = at < unlike ? 0 : recurrence(out, count)) {
          std::size_t period = 0;
          for (std::size_t i = 1; i <= back; ++i) period += lengths_[out[count - i]];
          std::size_t same = at > last_dead + period ? repetition(text, at, size, period) : 0;
          unlike = at + same;
          for (; same > most_; same -= lengths_[token]) {
            token = out[count - back];
            at += lengths_[token];
            out[count++] = token;
          }
        }
        token = longest(text, at, size, alphabet);
      } else {
        if (!count) return by_queue(text, size, alphabet, merges, arena, out);  // there is always a row
        dead[at >> 6] |= std::uint64_t{1} << (at & 63);
        last_dead = std::max(last_dead, at);
        token = out[--count];
        at -= lengths_[token];
        token = births_[token].shorter;
      }
    }
    return out + count;
  }

  std::size_t bytes() const {
    return trie_.bytes() + births_.capacity() * sizeof(Birth) + lengths_.capacity() * sizeof(std::uint32_t);
  }

 private:
  static constexpr std::size_t kFarthest = 4;  // tokens that are looked back to for a repetition

  struct Pair {
    std::uint32_t left = kNone, right = kNone;
    bool operator==(const Pair&) const = default;
  };

  std::uint32_t longest(const std::uint8_t* text, std::size_t at, std::size_t size, const Alphabet& alphabet) const {
    if (at == size) return kNone;
    std::uint32_t token = trie_.longest(text + at, size - at);
    return token == kNone ? alphabet.byte(text[at]) : token;
  }

  // How many tokens ago the last token was there already; 0 if it was not, a few tokens back.
  static std::size_t recurrence(const std::uint32_t* tokens, std::size_t count) {
    for (std::size_t back = 1; back <= kFarthest && back < count; ++back) {
      if (tokens[count - 1 - back] == tokens[count - 1]) return back;
    }
    return 0;
  }

  // For how many bytes the text goes on from `at` as it did from `period` bytes before. As long as these are more than
  // any token has, and no place ahead is dead, the same tokens are tried and taken again as from there on: the token
  // before is the same, too.
  static std::size_t repetition(const std::uint8_t* text, std::size_t at, std::size_t size, std::size_t period) {
    std::size_t begin = at;
    while (size - at >= 8 && load<std::uint64_t>(text + at) == load<std::uint64_t>(text + at - period)) at += 8;
    while (at < size && text[at] == text[at - period]) ++at;
    return at - begin;
  }

  static std::uint32_t* by_queue(const std::uint8_t* text, std::size_t size, const Alphabet& alphabet,
                                 const MergeTable& merges, Arena& arena, std::uint32_t* out) {
    std::size_t count = QueueMerge(alphabet, merges, arena).merge(text, size, arena.parts);
    for (std::size_t i = 0; i < count; ++i) *out++ = arena.parts.data()[i].id;
    return out;
  }

  // Whether merging the text of both, which meet at `border`, gives both again. Goes back in time, from both of them to
  // the symbols at the border: the two parts that meet there at some time were merged if that came before one of them
  // grew otherwise.
  bool neighbours(std::uint32_t left, std::uint32_t right, const std::uint8_t* border, const Alphabet& alphabet,
                  const MergeTable& merges, Arena& arena) const {
    if (disordered_[left] || disordered_[right]) [[unlikely]] {
      const std::uint8_t* begin = border - lengths_[left];
      return merged_again(begin, lengths_[left] + lengths_[right], left, right, alphabet, merges, arena);
    }
    std::uint32_t left_grows = kNone, right_grows = kNone;
    for (;;) {
      std::uint32_t rank = merges.find(left, right).rank;
      // Of equal ranks the leftmost comes first: the left part's own merge, this one, the right part's.
      if (rank < left_grows && rank <= right_grows && rank != kNone) return false;
      const Birth &left_birth = births_[left], &right_birth = births_[right];
      if (left_birth.time > right_birth.time) {
        left_grows = left_birth.time - 1;
        left = left_birth.right;
      } else if (right_birth.time) {
        right_grows = right_birth.time - 1;
        right = right_birth.left;
      } else {
        return true;
      }
    }
  }

  // The same by doing it.
  static bool merged_again(const std::uint8_t* text, std::size_t size, std::uint32_t left, std::uint32_t right,
                           const Alphabet& alphabet, const MergeTable& merges, Arena& arena) {
    if (size > kShortSymbols) {
      bool two = QueueMerge(alphabet, merges, arena).merge(text, size, arena.again) == 2;
      return two && arena.again.data()[0].id == left && arena.again.data()[1].id == right;
    }
    ShortPiece piece;
    piece.fill(alphabet, merges, text, size);
    return piece.merge(merges) == 2 && piece[0] == left && piece[1] == right;
  }

  // Made by merges whose ranks do not rise: the time that a part came about does not follow from its rank.
  bool disordered(std::uint32_t id) const {
    const Birth& birth = births_[id];
    if (!birth.time) return false;
    return births_[birth.left].time >= birth.time || births_[birth.right].time >= birth.time ||
           disordered(birth.left) || disordered(birth.right);
  }

  TokenTrie trie_;
  std::vector<Birth> births_;
  std::vector<std::uint32_t> lengths_;
  std::vector<bool> disordered_;
  std::size_t most_ = 0;  // bytes of the longest token
};

}  // namespace hostless::bpe
