// What one thread encodes with. Grows to its largest text's need, so that later texts allocate nothing (B15).
#pragma once

#include <cstdint>

#include "aligned.hpp"

namespace hostless::bpe {

// A token of a text: its id, and where its text ends.
struct Token {
  std::uint32_t id, end;
  bool operator==(const Token&) const = default;
};

// A symbol of a long piece, at the index of its first byte in the piece.
struct Node {
  std::uint32_t id;
  std::uint32_t rank;  // of the merge with the next symbol; kNone if there is none, or this symbol is merged away
  std::uint32_t previous, next;
};
static_assert(sizeof(Node) == 16);

struct Arena {
  Scratch<std::uint32_t> ids;      // of the whole text
  Scratch<std::uint8_t> text;      // a section of the text, rewritten
  Scratch<Node> nodes;             // long pieces
  Scratch<std::uint64_t> queue;    // long pieces: merges to do
  Scratch<Token> done, part, seam; // long pieces: tokens of what lies before, of the part after it, of their seam

  std::size_t bytes() const {
    return ids.bytes() + text.bytes() + nodes.bytes() + queue.bytes() + done.bytes() + part.bytes() + seam.bytes();
  }

  // A thread does not hold for ever what one huge text took.
  void trim(std::size_t most) {
    if (bytes() > most) *this = {};
  }
};

}  // namespace hostless::bpe
