// Merging of pieces of any length, in close to linear time: a megabyte of one letter is one piece.
//
// A long piece is merged in parts that stay in the cache, and the parts are joined. What makes that exact: a row of
// tokens is the right one if every two neighbours are, i.e. if merging the text of just those two gives them again.
// (Take the first merge across a border between two tokens: up to then each side went its own way, just as in the
// text of those two alone, so it would have happened there too.)
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>

#include "alphabet.hpp"
#include "arena.hpp"
#include "merge_table.hpp"
#include "short_piece.hpp"

namespace hostless::bpe {

class LongPiece {
 public:
  LongPiece(const Alphabet& alphabet, const MergeTable& merges, Arena& arena)
      : alphabet_(alphabet), merges_(merges), arena_(arena) {}

  // Tokens of the piece that is text[0, size), valid until the arena's next use.
  std::pair<const Token*, std::size_t> merge(const std::uint8_t* text, std::size_t size) {
    text_ = text;
    size_ = size;
    done_ = 0;
    for (std::size_t begin = 0; begin < size;) {
      std::size_t end = part_end(begin, size);
      std::size_t count = span(begin, end, arena_.part.need(end - begin));
      if (!join(count)) {  // one part's end changes what lies many parts away: no part can be done by itself
        done_ = queued(0, size, arena_.done.need(size));
        break;
      }
      begin = end;
    }
    return {arena_.done.data(), done_};
  }

 private:
  static constexpr std::size_t kPart = kShortSymbols;  // bytes
  static constexpr std::size_t kSeam = 16 * kPart;     // bytes that a seam may be looked for in

  std::size_t part_end(std::size_t begin, std::size_t size) const {
    std::size_t end = std::min(begin + kPart, size);
    while (in_character(end)) --end;
    return end;
  }

  // Puts the part's tokens behind those that are done, and mends both sides of the seam. False: not within kSeam.
  bool join(std::size_t count) {
    const Token* part = arena_.part.data();
    std::size_t left = std::min<std::size_t>(done_, 1), right = 1, mended = 0;
    while (done_) {
      while (in_character(begin_of(done_ - left))) ++left;
      while (in_character(part[right - 1].end)) ++right;
      std::size_t begin = begin_of(done_ - left), end = part[right - 1].end;
      if (end - begin > kSeam) return false;
      Token* seam = arena_.seam.need(end - begin);
      mended = span(begin, end, seam);
      bool left_holds = left == done_ || seam[0] == arena_.done.data()[done_ - left];
      bool right_holds = right == count || seam[mended - 1] == part[right - 1];
      if (left_holds && right_holds) break;
      if (!left_holds) left = std::min(left * 2, done_);
      if (!right_holds) right = std::min(right * 2, count);
    }
    if (!done_) right = 0;
    Token* done = arena_.done.need(done_ + mended + count, done_);
    done_ -= left;
    std::copy_n(arena_.seam.data(), mended, done + done_);
    std::copy_n(part + right, count - right, done + done_ + mended);
    done_ += mended + count - right;
    return true;
  }

  // Between two bytes of a character that makes one symbol or none: nothing can be merged from there on by itself.
  bool in_character(std::size_t at) const {
    return alphabet_.by_character() && at < size_ && (text_[at] & 0xC0) == 0x80;
  }

  std::size_t begin_of(std::size_t token) { return token ? arena_.done.data()[token - 1].end : 0; }

  // Tokens of text[begin, end), which is merged by itself.
  std::size_t span(std::size_t begin, std::size_t end, Token* tokens) {
    if (end - begin > kShortSymbols) return queued(begin, end, tokens);
    Symbol symbols[kShortSymbols];
    std::size_t count = short_symbols(alphabet_, merges_, text_, begin, end, symbols);
    count = merge_short(merges_, symbols, count);
    for (std::size_t i = 0; i < count; ++i) tokens[i] = {symbols[i].id, symbols[i].end};
    return count;
  }

  // The same by a queue of merges, lowest rank first, then leftmost. Entries that no longer hold are passed over.
  std::size_t queued(std::size_t begin, std::size_t end, Token* tokens) {
    std::size_t size = end - begin, waiting = 0;
    Node* nodes = arena_.nodes.need(size);
    std::uint64_t* queue = arena_.queue.need(2 * size);  // each merge takes a symbol and adds at most two entries
    auto rank = [&](std::uint32_t at) {
      Node& node = nodes[at];
      node.rank = node.next < size ? merges_.find(node.id, nodes[node.next].id).rank : kNone;
      return node.rank == kNone ? 0 : (queue[waiting++] = static_cast<std::uint64_t>(node.rank) << 32 | at, 1);
    };
    std::uint32_t previous = kNone;
    alphabet_.symbols(text_ + begin, 0, size, [&](std::uint32_t id, std::size_t first, std::size_t last) {
      auto at = static_cast<std::uint32_t>(first);
      nodes[at] = {id, kNone, previous, static_cast<std::uint32_t>(last)};
      if (previous != kNone) rank(previous);
      previous = at;
    });
    std::make_heap(queue, queue + waiting, std::greater<>());
    while (waiting) {
      std::pop_heap(queue, queue + waiting, std::greater<>());
      std::uint64_t entry = queue[--waiting];
      auto at = static_cast<std::uint32_t>(entry);
      if (nodes[at].rank != entry >> 32) continue;
      take_next(nodes, at, size);
      if (rank(at)) std::push_heap(queue, queue + waiting, std::greater<>());
      if (nodes[at].previous != kNone && rank(nodes[at].previous)) {
        std::push_heap(queue, queue + waiting, std::greater<>());
      }
    }
    std::size_t count = 0;
    for (std::uint32_t at = 0; at < size; at = nodes[at].next) {
      tokens[count++] = {nodes[at].id, static_cast<std::uint32_t>(begin) + nodes[at].next};
    }
    return count;
  }

  void take_next(Node* nodes, std::uint32_t at, std::size_t size) {
    Node& gone = nodes[nodes[at].next];
    nodes[at].id = merges_.find(nodes[at].id, gone.id).merged;
    nodes[at].next = gone.next;
    if (gone.next < size) nodes[gone.next].previous = at;
    gone.rank = kNone;
  }

  const Alphabet& alphabet_;
  const MergeTable& merges_;
  Arena& arena_;
  const std::uint8_t* text_ = nullptr;
  std::size_t size_ = 0;
  std::size_t done_ = 0;
};

}  // namespace hostless::bpe
