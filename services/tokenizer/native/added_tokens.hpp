// Tokens that are found in a text before anything else is done to it: control tokens and what users of a vocabulary
// added. Always the leftmost, of several that begin there the longest.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "merge_table.hpp"
#include "unsupported.hpp"

namespace hostless::bpe {

struct AddedToken {
  std::string text;
  std::uint32_t id;
  bool special;        // control token: found only in text that is trusted
  bool left, right;    // swallows white space before it, after it
};

// Length of the white space (Unicode's White_Space) that begins at `at`; 0 if there is none.
inline std::size_t space_length(const std::uint8_t* at, const std::uint8_t* end) {
  std::size_t readable = static_cast<std::size_t>(end - at);
  if (!readable) return 0;
  if (at[0] == ' ' || (at[0] >= 0x09 && at[0] <= 0x0D)) return 1;
  if (at[0] == 0xC2 && readable >= 2) return at[1] == 0x85 || at[1] == 0xA0 ? 2 : 0;
  if (readable < 3) return 0;
  std::uint32_t three = at[0] << 16 | at[1] << 8 | at[2];
  bool general = three >= 0xE28080 && three <= 0xE2808A;  // U+2000 to U+200A
  bool other = three == 0xE19A80 || three == 0xE280A8 || three == 0xE280A9 || three == 0xE280AF || three == 0xE2819F ||
               three == 0xE38080;
  return general || other ? 3 : 0;
}

class AddedTokens {
 public:
  // Raises Unsupported for two of the same text.
  explicit AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)), trie_(trie_size(tokens_)) {
    ends_.push_back(kNone);
    for (std::size_t i = 0; i < tokens_.size(); ++i) add(static_cast<std::uint32_t>(i));
  }

  bool none(bool trusting) const { return trusting ? tokens_.empty() : ordinary_ == 0; }

  // Calls text(begin, end) and token(id) for the parts of a text, in order; parts of text are not empty.
  // Not trusting, a control token's text is text, but no other token is looked for within it.
  template <class Text, class Found>
  void split(const std::uint8_t* text, std::size_t size, bool trusting, Text on_text, Found on_token) const {
    std::size_t begin = 0;
    for (std::size_t at = 0; (at = candidate(text, at, size)) < size;) {
      auto [token, length] = longest(text + at, size - at);
      if (!token) {
        ++at;
        continue;
      }
      std::size_t from = at, to = at + length;
      at = to;
      if (token->special && !trusting) continue;
      if (token->left) from = before_spaces(text, begin, from);
      if (token->right) {
        while (std::size_t space = space_length(text + to, text + size)) to += space;
      }
      if (begin < from) on_text(begin, from);
      on_token(token->id);
      begin = to;
    }
    if (begin < size) on_text(begin, size);
  }

 private:
  static std::size_t trie_size(const std::vector<AddedToken>& tokens) {
    std::size_t size = 0;
    for (const AddedToken& token : tokens) size += token.text.size();
    return size;
  }

  void add(std::uint32_t index) {
    const AddedToken& token = tokens_[index];
    ordinary_ += !token.special;
    std::uint32_t node = 0;
    for (char letter : token.text) {
      auto byte = static_cast<std::uint8_t>(letter);
      std::uint32_t next = trie_.find(node, byte).merged;
      if (next == kNone) {
        next = static_cast<std::uint32_t>(ends_.size());
        trie_.set(node, byte, {next, 0});
        ends_.push_back(kNone);
      }
      node = next;
    }
    if (ends_[node] != kNone) throw Unsupported("two added tokens of the text '" + token.text + "'");
    ends_[node] = index;
    auto first = static_cast<std::uint8_t>(token.text[0]);
    first_count_ += !firsts_[first];
    firsts_[first] = true;
    first_ = first;
  }

  // Where the next byte is that some token begins with; `size` if nowhere.
  std::size_t candidate(const std::uint8_t* text, std::size_t at, std::size_t size) const {
    if (first_count_ == 1) {
      const void* found = at < size ? std::memchr(text + at, first_, size - at) : nullptr;
      return found ? static_cast<std::size_t>(static_cast<const std::uint8_t*>(found) - text) : size;
    }
    while (at < size && !firsts_[text[at]]) ++at;
    return at;
  }

  std::pair<const AddedToken*, std::size_t> longest(const std::uint8_t* text, std::size_t size) const {
    std::pair<const AddedToken*, std::size_t> found{nullptr, 0};
    std::uint32_t node = 0;
    for (std::size_t i = 0; i < size; ++i) {
      node = trie_.find(node, text[i]).merged;
      if (node == kNone) break;
      if (ends_[node] != kNone) found = {&tokens_[ends_[node]], i + 1};
    }
    return found;
  }

  static std::size_t before_spaces(const std::uint8_t* text, std::size_t begin, std::size_t at) {
    for (std::size_t step = 1; step; at -= step) {
      step = 3;  // bytes of the character before `at`, if it is white space
      while (step && (at < begin + step || space_length(text + at - step, text + at) != step)) --step;
    }
    return at;
  }

  std::vector<AddedToken> tokens_;
  std::size_t ordinary_ = 0;
  MergeTable trie_;  // (node, byte) to node; the root is 0
  std::vector<std::uint32_t> ends_;
  bool firsts_[256] = {};
  std::size_t first_count_ = 0;
  std::uint8_t first_ = 0;
};

}  // namespace hostless::bpe
