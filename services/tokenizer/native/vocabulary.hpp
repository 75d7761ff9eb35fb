// From a vocabulary as files hold it to the encoder's tables. Refuses what the encoder could not do exactly.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "alphabet.hpp"
#include "characters.hpp"
#include "joins.hpp"
#include "letters.hpp"
#include "long_piece.hpp"
#include "merge_table.hpp"
#include "piece_table.hpp"
#include "queue_merge.hpp"
#include "short_piece.hpp"
#include "text_index.hpp"

namespace hostless::bpe {

// The vocabulary can't be encoded exactly; the message says why.
struct Unsupported : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct TokenText {
  std::string_view text;  // as the file writes it
  std::uint32_t id;
};

struct MergeText {
  std::string_view left, right;
  std::uint32_t rank;
};

struct Tables {
  MergeTable merges;
  Alphabet alphabet;
  PieceTable pieces;
  LongPieces longs;
  Joins joins;
  Characters characters;  // none where merging from characters on would not be exact
  std::vector<std::string> texts;  // bytes that each id stands for
  std::vector<bool> made;  // merging makes the token of its own text; where not, it may be a whole piece still
};

class VocabularyReader {
 public:
  // `spaces_marked`: a SentencePiece vocabulary: characters, U+2581 for the space, <0x00> to <0xFF> for bytes.
  // Otherwise byte level: each byte is written as a letter.
  VocabularyReader(const std::vector<TokenText>& tokens, bool spaces_marked)
      : tokens_(tokens), marked_(spaces_marked), index_(tokens.size()) {
    std::uint32_t size = 0;
    for (const TokenText& token : tokens) {
      if (token.id >= kMostIds) throw Unsupported("token id " + std::to_string(token.id) + " is too large");
      if (!index_.add(token.text, token.id)) throw Unsupported("two tokens of the text " + quoted(token.text));
      size = std::max(size, token.id + 1);
    }
    texts_.resize(size);
    reached_.resize(size);
    barred_.resize(size);
    std::vector<bool> seen(size);
    for (const TokenText& token : tokens) {
      if (seen[token.id]) throw Unsupported("two tokens with the id " + std::to_string(token.id));
      seen[token.id] = true;
      read(token);
    }
  }

  // Merges in any order; of two for the same pair the later one counts. `special`: ids of control tokens, which no
  // text is merged to.
  Tables tables(const std::vector<MergeText>& list, bool ignore_merges, const std::vector<std::uint32_t>& special) && {
    for (std::uint32_t id : special) {
      if (id < barred_.size()) barred_[id] = true;
    }
    MergeTable merges(list.size());
    Joins joins;
    std::vector<Pair> pairs;
    pairs.reserve(list.size());
    std::array<std::uint32_t, 256> bytes = byte_ids();
    for (const MergeText& merge : list) {
      std::uint32_t left = id_of(merge.left), right = id_of(merge.right);
      together_.assign(merge.left).append(merge.right);
      std::uint32_t made = id_of(together_);
      if (barred_[left] || barred_[right] || barred_[made]) {
        throw Unsupported("a merge of control tokens, or of bytes: " + quoted(together_));
      }
      merges.set(left, right, {made, merge.rank});
      pairs.push_back({left, right, merge.rank});
      joins.add(texts_[left], texts_[right]);
    }
    joins.finish();
    Alphabet alphabet(bytes, characters(), merges);
    LongPieces longs = births(alphabet, merges);
    Characters whole;
    if (!marked_ && !alphabet.lacks_some() && in_order(pairs, longs)) whole = whole_characters();
    PieceTable pieces(whole_pieces(ignore_merges));
    return {std::move(merges), std::move(alphabet), std::move(pieces), std::move(longs),
            std::move(joins),  std::move(whole),    std::move(texts_), std::move(made_)};
  }

 private:
  static constexpr std::uint32_t kMostIds = 1 << 24;

  struct Pair {
    std::uint32_t left, right, rank;
  };

  static std::string quoted(std::string_view text) { return "'" + std::string(text) + "'"; }

  std::uint32_t id_of(std::string_view text) const {
    std::uint32_t id = index_.find(text);
    if (id == kNone) throw Unsupported("a merge names " + quoted(text) + ", which is no token");
    return id;
  }

  void read(const TokenText& token) {
    std::optional<std::string> text = marked_ ? spaced(token.text) : Letters::all().bytes(token.text);
    reached_[token.id] = text.has_value();
    texts_[token.id] = text ? *std::move(text) : std::string(token.text);
  }

  // With spaces for marks. A space that is written as such is not there any more when text is cut.
  static std::optional<std::string> spaced(std::string_view text) {
    if (text.find(' ') != text.npos) return std::nullopt;
    std::string made;
    for (std::size_t at = 0; at < text.size();) {
      bool mark = text.substr(at, kMark.size()) == kMark;
      made += mark ? ' ' : text[at];
      at += mark ? kMark.size() : 1;
    }
    return made;
  }

  std::array<std::uint32_t, 256> byte_ids() {
    std::array<std::uint32_t, 256> ids{};
    for (std::size_t byte = 0; byte < 256; ++byte) {
      static constexpr char kDigits[] = "0123456789ABCDEF";
      std::string text = marked_ ? std::string("<0x") + kDigits[byte >> 4] + kDigits[byte & 15] + ">"
                                 : Letters::all().letter(static_cast<std::uint8_t>(byte));
      ids[byte] = index_.find(text);
      bool in_text = byte < 0xF5 && byte != 0xC0 && byte != 0xC1;  // valid UTF-8 holds no others
      if (marked_ && ids[byte] == kNone && in_text) throw Unsupported("no token for the byte " + quoted(text));
      if (marked_ && ids[byte] != kNone) {
        barred_[ids[byte]] = true;  // stands for a byte, not for its text
        reached_[ids[byte]] = false;
        texts_[ids[byte]] = std::string(1, static_cast<char>(byte));
      }
    }
    return ids;
  }

  std::vector<std::pair<std::uint32_t, std::uint32_t>> characters() const {
    std::vector<std::pair<std::uint32_t, std::uint32_t>> found;
    if (!marked_) return found;
    for (const TokenText& token : tokens_) {
      const std::string& text = texts_[token.id];
      auto first = reinterpret_cast<const std::uint8_t*>(text.data());
      if (!reached_[token.id] || text.empty() || text.size() != char_length(*first)) continue;
      found.emplace_back(code_point(first, text.size()), token.id);
    }
    if (found.empty()) throw Unsupported("no token is a character");
    return found;
  }

  // Whether no merge comes before what it merges can be there.
  bool in_order(const std::vector<Pair>& pairs, const LongPieces& longs) const {
    return std::all_of(pairs.begin(), pairs.end(), [&](const Pair& pair) {
      bool ever = made_[pair.left] && made_[pair.right];
      return !ever || (longs.time(pair.left) <= pair.rank && longs.time(pair.right) <= pair.rank);
    });
  }

  Characters whole_characters() const {
    Characters found;
    for_made([&](std::uint32_t id, const std::uint8_t* text, std::size_t size) {
      bool whole = size > 1 && *text >= 0xC2 && *text < 0xF5 && size == char_length(*text) &&
                   std::none_of(text + 1, text + size, [](std::uint8_t byte) { return (byte & 0xC0) != 0x80; });
      if (whole && code_point(text, size) < 0x110000) found.add(code_point(text, size), id);
    });
    return found;
  }

  // Merges the text of each token, to see whether the token is made of it, and of which two.
  LongPieces births(const Alphabet& alphabet, const MergeTable& merges) {
    std::vector<Birth> births(texts_.size());
    std::vector<std::uint32_t> lengths(texts_.size());
    std::size_t bytes = 0;
    Arena arena;
    QueueMerge queue(alphabet, merges, arena);
    made_.resize(texts_.size());
    for (const TokenText& token : tokens_) {
      const std::string& text = texts_[token.id];
      lengths[token.id] = static_cast<std::uint32_t>(text.size());
      if (!reached_[token.id] || text.empty()) continue;
      auto data = reinterpret_cast<const std::uint8_t*>(text.data());
      std::uint32_t halves[2];
      std::size_t count = last_two(data, text.size(), alphabet, merges, queue, arena, halves);
      Merge merge = count == 2 ? merges.find(halves[0], halves[1]) : Merge{};
      made_[token.id] = (count == 1 && halves[0] == token.id) || (count == 2 && merge.merged == token.id);
      if (!made_[token.id]) continue;
      bytes += text.size();
      if (count == 2) births[token.id] = {halves[0], halves[1], merge.rank + 1, kNone};
    }
    if (bytes >= TokenTrie::kMostBytes) throw Unsupported("tokens of 16 MB of text together");
    TokenTrie trie(bytes);
    for_made([&](std::uint32_t id, const std::uint8_t* text, std::size_t size) { trie.add(text, size, id); });
    trie.finish();
    for_made([&](std::uint32_t id, const std::uint8_t* text, std::size_t size) {
      births[id].shorter = trie.longest(text, size - 1);
    });
    return {std::move(trie), std::move(births), std::move(lengths)};
  }

  // What a text is before its last merge: up to two symbols. Returns how many there are, which may be more.
  static std::size_t last_two(const std::uint8_t* text, std::size_t size, const Alphabet& alphabet,
                              const MergeTable& merges, QueueMerge& queue, Arena& arena, std::uint32_t* halves) {
    if (size > kShortSymbols) {
      std::size_t count = queue.merge(text, size, arena.parts, 2);
      for (std::size_t i = 0; i < std::min<std::size_t>(count, 2); ++i) halves[i] = arena.parts.data()[i].id;
      return count;
    }
    Symbol symbols[kShortSymbols];
    std::size_t count = short_symbols(alphabet, merges, text, 0, size, symbols);
    count = merge_short(merges, symbols, count, 2);
    for (std::size_t i = 0; i < std::min<std::size_t>(count, 2); ++i) halves[i] = symbols[i].id;
    return count;
  }

  template <class Visit>
  void for_made(Visit visit) const {
    for (const TokenText& token : tokens_) {
      const std::string& text = texts_[token.id];
      if (made_[token.id]) visit(token.id, reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
    }
  }

  std::vector<PieceTable::Piece> whole_pieces(bool ignore_merges) const {
    std::vector<PieceTable::Piece> pieces;
    for (const TokenText& token : tokens_) {
      const std::string& text = texts_[token.id];
      bool whole = made_[token.id] || (ignore_merges && reached_[token.id] && !barred_[token.id] && !text.empty());
      if (whole) pieces.push_back({reinterpret_cast<const std::uint8_t*>(text.data()), text.size(), token.id});
    }
    return pieces;
  }

  static constexpr std::string_view kMark = "\xE2\x96\x81";

  const std::vector<TokenText>& tokens_;
  bool marked_;
  TextIndex index_;
  std::vector<std::string> texts_;
  std::vector<bool> reached_;  // text that is cut can hold what the token says
  std::vector<bool> barred_;  // no merge may make it or take it
  std::vector<bool> made_;  // merging makes it of its own text
  std::string together_;
};

}  // namespace hostless::bpe
