// What one thread encodes with. Grows to its largest text's need, so that later texts allocate nothing (B15).
#pragma once

#include <cstdint>

#include "aligned.hpp"

namespace hostless::bpe {

// A token of a long piece: its id, and where its text ends.
struct Part {
  std::uint32_t id, end;
};

// A symbol of a long piece, at the index of its first byte.
struct Node {
  std::uint32_t id;
  std::uint32_t rank;  // of the merge with the next symbol; kNone if there is none, or this symbol is merged away
  std::uint32_t previous, next;
};
static_assert(sizeof(Node) == 16);

// A character of a stretch that is brought to NFC, and its combining class.
struct Letter {
  std::uint32_t point, order;
};

struct Arena {
  Scratch<std::uint8_t> utf8;    // the whole text
  Scratch<std::uint32_t> ids;    // of the whole text
  Scratch<std::uint8_t> text;    // a section of the text, rewritten
  Scratch<Letter> letters, ordered;  // of a stretch of that section
  Scratch<std::uint8_t> piece;   // a piece without the bytes that the vocabulary lacks
  Scratch<Part> parts, again;    // of a long piece; of two tokens in it
  Scratch<std::uint64_t> dead;   // a bit for each place in a long piece that no tokens lead on from
  Scratch<Node> nodes;           // symbols of a long piece
  Scratch<std::uint64_t> queue;  // merges of a long piece that are still to be done

  std::size_t bytes() const {
    return utf8.bytes() + ids.bytes() + text.bytes() + letters.bytes() + ordered.bytes() + piece.bytes() +
           parts.bytes() + again.bytes() + dead.bytes() + nodes.bytes() + queue.bytes();
  }

  // A thread does not hold for ever what one huge text took.
  void trim(std::size_t most) {
    if (bytes() > most) *this = {};
  }
};

}  // namespace hostless::bpe
