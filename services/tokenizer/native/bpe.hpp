// The encoder of one vocabulary. Immutable; each thread brings its arena.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "added_tokens.hpp"
#include "alphabet.hpp"
#include "arena.hpp"
#include "rewriting.hpp"
#include "scan/scanner.hpp"
#include "sentencepiece.hpp"
#include "short_piece.hpp"
#include "vocabulary.hpp"

namespace hostless::bpe {

class Bpe {
 public:
  // `cut`: null for SentencePiece vocabularies.
  Bpe(Tables tables, AddedTokens raw, AddedTokens rewritten, Rewriting how, scan::Cut cut)
      : tables_(std::move(tables)),
        raw_(std::move(raw)),
        rewritten_(std::move(rewritten)),
        how_(std::move(how)),
        cut_(cut) {}

  const std::vector<std::string>& texts() const { return tables_.texts; }

  std::size_t table_bytes() const {
    return tables_.merges.bytes() + tables_.alphabet.memory() + tables_.pieces.bytes() + tables_.longs.bytes() +
           tables_.joins.bytes() + tables_.characters.bytes();
  }

  // Ids of a valid UTF-8 text of less than 2^31 bytes, in arena.ids; returns how many. Control tokens are found in the
  // text if it is trusted. Allocates only where the arena must grow, or NFC text must be made.
  std::size_t encode(const std::uint8_t* text, std::size_t size, bool trusting, Arena& arena) const {
    std::size_t count = 0;
    auto token = [&](std::uint32_t id) { arena.ids.need(count + 1, count)[count] = id, ++count; };
    auto rewritten = [&](const std::uint8_t* section, std::size_t length) {
      auto part = [&](std::size_t begin, std::size_t end) {
        count = cut_and_merge(section + begin, end - begin, count, arena);
      };
      if (rewritten_.none(trusting)) return part(0, length);
      rewritten_.split(section, length, trusting, part, token);
    };
    auto raw = [&](std::size_t begin, std::size_t end) { how_.rewrite(text + begin, end - begin, arena, rewritten); };
    if (!raw_.none(trusting)) {
      raw_.split(text, size, trusting, raw, token);
    } else if (size) {
      raw(0, size);
    }
    return count;
  }

 private:
  static constexpr std::size_t kBatch = 128;  // pieces looked up at a time: the table's lines come while keys are made

  static constexpr std::size_t kByMerges = 32;  // bytes; merging is quadratic, and trying tokens is dearer at first
  static_assert(kByMerges <= kShortSymbols);

  std::size_t cut_and_merge(const std::uint8_t* text, std::size_t size, std::size_t count, Arena& arena) const {
    std::uint32_t* ids = arena.ids.need(count + size, count) + count;  // no token is shorter than a byte
    std::uint32_t* out = ids;
    std::uint32_t ends[kBatch];
    for (std::size_t begin = 0, cut; (cut = next_pieces(text, size, begin, ends)) > 0; begin = ends[cut - 1]) {
      out = merge_pieces<true>(text, size, begin, ends, cut, out, arena);
    }
    return count + static_cast<std::size_t>(out - ids);
  }

  std::size_t next_pieces(const std::uint8_t* text, std::size_t size, std::size_t begin, std::uint32_t* ends) const {
    return cut_ ? cut_(text, size, begin, ends, kBatch) : cut_words(tables_.joins, text, size, begin, ends, kBatch);
  }

  // `divisible`: a piece that is no token may fall apart where nothing ever joins.
  template <bool divisible>
  std::uint32_t* merge_pieces(const std::uint8_t* text, std::size_t size, std::size_t begin, const std::uint32_t* ends,
                              std::size_t cut, std::uint32_t* out, Arena& arena) const {
    const PieceTable& pieces = tables_.pieces;
    PieceKey keys[kBatch];
    std::uint64_t hashes[kBatch];
    for (std::size_t i = 0, at = begin; i < cut; at = ends[i++]) {
      if (ends[i] - at > kShortPiece) continue;
      keys[i] = piece_key(text + at, ends[i] - at, size - at);
      hashes[i] = keys[i].hash();
      pieces.prefetch(hashes[i]);
    }
    for (std::size_t i = 0; i < cut; begin = ends[i++]) {
      std::size_t length = ends[i] - begin;
      std::uint32_t id = kNone;
      if (length <= kShortPiece) {
        id = pieces.find(keys[i], hashes[i]);
      } else if (length <= pieces.longest()) {
        id = pieces.find_long(text + begin, length);
      }
      if (!divisible && id != kNone && !tables_.made[id]) id = kNone;
      if (id != kNone) {
        *out++ = id;
      } else if (divisible && tables_.alphabet.lacks(text + begin, length)) {
        out = merge_rest(text + begin, length, out, arena);
      } else if (divisible && (!cut_ || !ascii(text + begin, length))) {
        out = divide(text, size, begin, ends[i], out, arena);
      } else {
        out = merge_piece(text + begin, length, out, arena);
      }
    }
    return out;
  }

  static bool ascii(const std::uint8_t* text, std::size_t size) {
    std::uint8_t all = 0;
    for (std::size_t i = 0; i < size; ++i) all |= text[i];
    return all < 0x80;
  }

  std::uint32_t* divide(const std::uint8_t* text, std::size_t size, std::size_t begin, std::size_t end,
                        std::uint32_t* out, Arena& arena) const {
    std::uint32_t ends[kBatch];
    std::size_t count = 0, first = begin;
    for (std::size_t at = begin, length = char_length(text[at]); at < end;) {
      std::size_t next = at + length, next_length = next < end ? char_length(text[next]) : 0;
      if (next == end || !tables_.joins.may(text + at, length, text + next, next_length)) {
        ends[count++] = static_cast<std::uint32_t>(next);
        if (next == end && count == 1 && first == begin) return merge_piece(text + begin, end - begin, out, arena);
        if (next == end || count == kBatch) {
          out = merge_pieces<false>(text, size, first, ends, count, out, arena);
          first = next;
          count = 0;
        }
      }
      at = next;
      length = next_length;
    }
    return out;
  }

  // Without the bytes that have no token: what stands around them merges as if they were not there.
  std::uint32_t* merge_rest(const std::uint8_t* text, std::size_t size, std::uint32_t* out, Arena& arena) const {
    std::uint8_t* kept = arena.piece.need(size);
    const std::uint8_t* end = std::copy_if(text, text + size, kept,
                                           [&](std::uint8_t value) { return tables_.alphabet.byte(value) != kNone; });
    return end == kept ? out : merge_piece(kept, static_cast<std::size_t>(end - kept), out, arena);
  }

  std::uint32_t* merge_piece(const std::uint8_t* text, std::size_t size, std::uint32_t* out, Arena& arena) const {
    if (size <= kByMerges) {
      Symbol symbols[kShortSymbols];
      std::size_t count =
          tables_.characters.none() || ascii(text, size)  // the pairs of bytes are in a table
              ? short_symbols(tables_.alphabet, tables_.merges, text, 0, size, symbols)
              : tables_.characters.symbols(tables_.joins, tables_.alphabet, tables_.merges, text, size, symbols);
      count = merge_short(tables_.merges, symbols, count);
      for (std::size_t i = 0; i < count; ++i) *out++ = symbols[i].id;
      return out;
    }
    std::size_t count = tables_.longs.merge(text, size, tables_.alphabet, tables_.merges, arena);
    const Part* parts = arena.parts.data();
    for (std::size_t i = 0; i < count; ++i) *out++ = parts[i].id;
    return out;
  }

  Tables tables_;
  AddedTokens raw_, rewritten_;
  Rewriting how_;
  scan::Cut cut_;
};

}  // namespace hostless::bpe
