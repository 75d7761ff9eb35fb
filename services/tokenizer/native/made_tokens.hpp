// Which tokens merging makes of their own text, and by which last merge: found by merging each, when tables are made.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "alphabet.hpp"
#include "arena.hpp"
#include "characters.hpp"
#include "long_piece.hpp"
#include "merge_table.hpp"
#include "queue_merge.hpp"
#include "short_piece.hpp"
#include "token_trie.hpp"
#include "unsupported.hpp"

namespace hostless::bpe {

class MadeTokens {
 public:
  struct Pair {  // of a merge
    std::uint32_t left, right, rank;
  };

  // `texts`: bytes of each id, none for an id that is none; they must outlive this. `reached`: text can hold them.
  // Raises Unsupported where they are too long together.
  MadeTokens(const std::vector<std::string>& texts, const std::vector<bool>& reached, const Alphabet& alphabet,
             const MergeTable& merges)
      : texts_(texts), made_(texts.size()), births_(texts.size()) {
    Arena arena;
    QueueMerge queue(alphabet, merges, arena);
    for (std::uint32_t id = 0; id < texts.size(); ++id) {
      const std::string& text = texts[id];
      if (!reached[id] || text.empty()) continue;
      auto data = reinterpret_cast<const std::uint8_t*>(text.data());
      std::uint32_t halves[2];
      std::size_t count = last_two(data, text.size(), alphabet, merges, queue, arena, halves);
      Merge merge = count == 2 ? merges.find(halves[0], halves[1]) : Merge{};
      made_[id] = (count == 1 && halves[0] == id) || (count == 2 && merge.merged == id);
      if (!made_[id]) continue;
      bytes_ += text.size();
      if (count == 2) births_[id] = {halves[0], halves[1], merge.rank + 1, kNone};
    }
    if (bytes_ >= TokenTrie::kMostBytes) throw Unsupported("tokens of 16 MB of text together");
  }

  // By id: whether merging makes the token of its own text.
  const std::vector<bool>& which() const { return made_; }

  // Whether no merge comes before what it merges can be there.
  bool in_order(const std::vector<Pair>& pairs) const {
    return std::all_of(pairs.begin(), pairs.end(), [&](const Pair& pair) {
      bool ever = made_[pair.left] && made_[pair.right];
      return !ever || (births_[pair.left].time <= pair.rank && births_[pair.right].time <= pair.rank);
    });
  }

  // Those of one character.
  Characters characters() const {
    Characters found;
    for_made([&](std::uint32_t id, const std::uint8_t* text, std::size_t size) {
      bool whole = size > 1 && *text >= 0xC2 && *text < 0xF5 && size == char_length(*text) &&
                   std::none_of(text + 1, text + size, [](std::uint8_t byte) { return (byte & 0xC0) != 0x80; });
      if (whole && code_point(text, size) < 0x110000) found.add(code_point(text, size), id);
    });
    return found;
  }

  LongPieces long_pieces() && {
    TokenTrie trie(bytes_);
    for_made([&](std::uint32_t id, const std::uint8_t* text, std::size_t size) { trie.add(text, size, id); });
    trie.finish();
    for_made([&](std::uint32_t id, const std::uint8_t* text, std::size_t size) {
      births_[id].shorter = trie.longest(text, size - 1);
    });
    std::vector<std::uint32_t> lengths;
    for (const std::string& text : texts_) lengths.push_back(static_cast<std::uint32_t>(text.size()));
    return {std::move(trie), std::move(births_), std::move(lengths)};
  }

 private:
  // What a text is before its last merge: up to two symbols. Returns how many there are, which may be more.
  static std::size_t last_two(const std::uint8_t* text, std::size_t size, const Alphabet& alphabet,
                              const MergeTable& merges, QueueMerge& queue, Arena& arena, std::uint32_t* halves) {
    if (size > kShortSymbols) {
      std::size_t count = queue.merge(text, size, arena.parts, 2);
      for (std::size_t i = 0; i < std::min<std::size_t>(count, 2); ++i) halves[i] = arena.parts.data()[i].id;
      return count;
    }
    ShortPiece piece;
    piece.fill(alphabet, merges, text, size);
    std::size_t count = piece.merge(merges, 2);
    for (std::size_t i = 0; i < std::min<std::size_t>(count, 2); ++i) halves[i] = piece[i];
    return count;
  }

  template <class Visit>
  void for_made(Visit visit) const {
    for (std::uint32_t id = 0; id < texts_.size(); ++id) {
      if (made_[id]) visit(id, reinterpret_cast<const std::uint8_t*>(texts_[id].data()), texts_[id].size());
    }
  }

  const std::vector<std::string>& texts_;
  std::vector<bool> made_;
  std::vector<Birth> births_;
  std::size_t bytes_ = 0;  // of the tokens that are made
};

}  // namespace hostless::bpe
