// From a vocabulary as files hold it to the encoder's tables. Refuses what the encoder could not do exactly.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "alphabet.hpp"
#include "characters.hpp"
#include "joins.hpp"
#include "letters.hpp"
#include "lone_characters.hpp"
#include "long_piece.hpp"
#include "made_tokens.hpp"
#include "merge_table.hpp"
#include "piece_table.hpp"
#include "scan/scanner.hpp"
#include "text_index.hpp"
#include "unsupported.hpp"

namespace hostless::bpe {

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
  LoneCharacters lone;
  Characters characters;  // none where merging from characters on would not be exact
  std::vector<std::string> texts;  // bytes that each id stands for
  std::vector<bool> made;         // merging makes the token of its own text
  bool all_made;                  // of those that may be a whole piece
};

class VocabularyReader {
 public:
  // `spaces_marked`: a SentencePiece vocabulary: characters, U+2581 for the space, <0x00> to <0xFF> for bytes.
  // Otherwise byte level: each byte is written as a letter.
  VocabularyReader(const std::vector<TokenText>& tokens, bool spaces_marked)
      : tokens_(tokens), marked_(spaces_marked), index_(tokens.size()) {
    if (tokens.empty()) throw Unsupported("a vocabulary without a token");
    std::uint32_t size = 0;
    for (const TokenText& token : tokens) {
      if (!scan::valid_utf8(reinterpret_cast<const std::uint8_t*>(token.text.data()), token.text.size())) {
        throw Unsupported("the token with the id " + std::to_string(token.id) + " is not UTF-8");
      }
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
    std::vector<MadeTokens::Pair> pairs;
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
    MadeTokens made(texts_, reached_, alphabet, merges);
    Characters whole;
    if (!marked_ && !alphabet.lacks_some() && made.in_order(pairs)) whole = made.characters();
    LoneCharacters lone(alphabet, merges);
    std::vector<bool> which = made.which();
    std::vector<PieceTable::Piece> whole_pieces = pieces(which, ignore_merges);
    bool all_made = std::all_of(whole_pieces.begin(), whole_pieces.end(), [&](auto& piece) { return which[piece.id]; });
    return {std::move(merges),        std::move(alphabet),
            PieceTable(whole_pieces), std::move(made).long_pieces(),
            std::move(joins),         std::move(lone),
            std::move(whole),         std::move(texts_),
            std::move(which),         all_made};
  }

 private:
  static constexpr std::uint32_t kMostIds = 1 << 24;

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

  std::vector<PieceTable::Piece> pieces(const std::vector<bool>& made, bool ignore_merges) const {
    std::vector<PieceTable::Piece> found;
    for (const TokenText& token : tokens_) {
      const std::string& text = texts_[token.id];
      bool whole = made[token.id] || (ignore_merges && reached_[token.id] && !barred_[token.id] && !text.empty());
      if (whole) found.push_back({reinterpret_cast<const std::uint8_t*>(text.data()), text.size(), token.id});
    }
    return found;
  }

  static constexpr std::string_view kMark = "\xE2\x96\x81";

  const std::vector<TokenText>& tokens_;
  bool marked_;
  TextIndex index_;
  std::vector<std::string> texts_;
  std::vector<bool> reached_;  // text that is cut can hold what the token says
  std::vector<bool> barred_;  // no merge may make it or take it
  std::string together_;
};

}  // namespace hostless::bpe
