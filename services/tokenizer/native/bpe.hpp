// The encoder of one vocabulary. Immutable; each thread brings its arena.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "added_tokens.hpp"
#include "alphabet.hpp"
#include "arena.hpp"
#include "merging.hpp"
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
      : tables_(std::move(tables)), raw_(std::move(raw)), rewritten_(std::move(rewritten)), how_(how), cut_(cut) {}

  const std::vector<std::string>& texts() const { return tables_.texts; }

  std::size_t table_bytes() const {
    return tables_.merges.bytes() + tables_.alphabet.memory() + tables_.pieces.bytes() + tables_.longs.bytes() +
           tables_.joins.bytes() + tables_.lone.bytes() + tables_.characters.bytes();
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
    Merging merging(tables_.merges);
    std::uint32_t ends[kBatch];
    for (std::size_t begin = 0, cut; (cut = next_pieces(text, size, begin, ends)) > 0; begin = ends[cut - 1]) {
      out = merge_pieces(text, size, begin, ends, cut, out, arena, merging);
    }
    out = merging.finish(out);
    return count + static_cast<std::size_t>(out - ids);
  }

  std::size_t next_pieces(const std::uint8_t* text, std::size_t size, std::size_t begin, std::uint32_t* ends) const {
    return cut_ ? cut_(text, size, begin, ends, kBatch) : cut_words(tables_.joins, text, size, begin, ends, kBatch);
  }

  std::uint32_t* merge_pieces(const std::uint8_t* text, std::size_t size, std::size_t begin, const std::uint32_t* ends,
                              std::size_t cut, std::uint32_t* out, Arena& arena, Merging& merging) const {
    const PieceTable& pieces = tables_.pieces;
    PieceKey keys[kBatch];
    std::uint64_t hashes[kBatch];
    for (std::size_t i = 0, at = begin; i < cut; at = ends[i++]) {
      std::size_t length = ends[i] - at;
      if (length <= kShortPiece) {
        keys[i] = piece_key(text + at, length, size - at);
        hashes[i] = keys[i].hash();
        pieces.prefetch(hashes[i]);
      } else if (may_be_long(text + at, length)) {
        hashes[i] = pieces.long_hash(text + at, length);
        pieces.prefetch_long(hashes[i]);
      }
    }
    for (std::size_t i = 0; i < cut; begin = ends[i++]) {
      std::size_t length = ends[i] - begin;
      std::uint32_t id = kNone;
      if (length <= kShortPiece) {
        id = pieces.find(keys[i], hashes[i]);
      } else if (may_be_long(text + begin, length)) {
        id = pieces.find_long(text + begin, length, hashes[i]);
      }
      if (id != kNone) {
        *out++ = id;
      } else if (tables_.alphabet.lacks(text + begin, length)) {
        out = merge_rest(text + begin, length, out, arena, merging);
      } else if (!cut_ || !ascii(text + begin, length)) {
        out = divide(text, size, begin, ends[i], out, arena, merging);
      } else {
        out = merge_piece(text + begin, length, out, arena, merging);
      }
    }
    return out;
  }

  // Whether a piece of more than kShortPiece bytes is worth a look whether it is a token. Where all tokens are what
  // merging makes, one of East Asian letters is found as soon by merging.
  bool may_be_long(const std::uint8_t* text, std::size_t length) const {
    return length <= tables_.pieces.longest() && (text[0] < 0xE0 || !tables_.all_made);
  }

  static bool ascii(const std::uint8_t* text, std::size_t size) {
    std::uint8_t all = 0;
    for (std::size_t i = 0; i < size; ++i) all |= text[i];
    return all < 0x80;
  }

  // Parts of a piece, as they end; those that are one character are that, others kNone.
  struct Parts {
    std::uint32_t ends[kBatch], alone[kBatch];
    std::size_t count = 0;

    void add(std::size_t end, std::uint32_t character) {
      ends[count] = static_cast<std::uint32_t>(end);
      alone[count++] = character;
    }
  };

  // A piece that is no token falls apart where nothing ever joins.
  std::uint32_t* divide(const std::uint8_t* text, std::size_t size, std::size_t begin, std::size_t end,
                        std::uint32_t* out, Arena& arena, Merging& merging) const {
    std::uint32_t points[kBatch], places[kBatch];
    Parts parts;
    std::uint32_t before = 0;  // the character
    std::size_t first = begin, characters = 0;  // of the part
    auto alone = [&] { return characters == 1 && tables_.lone.has(before) ? before : kNone; };
    for (std::size_t at = begin; at < end;) {
      std::size_t some = 0;
      for (std::uint32_t previous = before; some < kBatch && at < end; previous = points[some++]) {
        std::size_t length = char_length(text[at]);
        points[some] = code_point(text + at, length);
        places[some] = static_cast<std::uint32_t>(at);
        tables_.joins.prefetch(previous, points[some]);
        tables_.lone.prefetch(points[some]);
        at += length;
      }
      for (std::size_t i = 0; i < some; before = points[i++], ++characters) {
        std::size_t place = places[i];
        if (place == begin || tables_.joins.may(before, text[place - 1], points[i], text[place])) continue;
        parts.add(place, alone());
        characters = 0;
        if (parts.count < kBatch) continue;
        out = merge_parts(text, size, first, parts, out, arena, merging);
        first = place;
        parts.count = 0;
      }
    }
    parts.add(end, alone());
    return merge_parts(text, size, first, parts, out, arena, merging);
  }

  std::uint32_t* merge_parts(const std::uint8_t* text, std::size_t size, std::size_t begin, const Parts& parts,
                             std::uint32_t* out, Arena& arena, Merging& merging) const {
    PieceKey keys[kBatch];
    std::uint64_t hashes[kBatch];
    for (std::size_t i = 0, at = begin; i < parts.count; at = parts.ends[i++]) {
      std::size_t length = parts.ends[i] - at;
      if (parts.alone[i] != kNone || length > kShortPiece) continue;
      keys[i] = piece_key(text + at, length, size - at);
      hashes[i] = keys[i].hash();
      tables_.pieces.prefetch(hashes[i]);
    }
    for (std::size_t i = 0; i < parts.count; begin = parts.ends[i++]) {
      if (parts.alone[i] != kNone) {
        out = tables_.lone.write(parts.alone[i], out);
        continue;
      }
      std::size_t length = parts.ends[i] - begin;
      std::uint32_t id = length <= kShortPiece ? tables_.pieces.find(keys[i], hashes[i]) : kNone;
      if (id != kNone && (tables_.all_made || tables_.made[id])) {
        *out++ = id;
      } else {
        out = merge_part(text + begin, length, out, arena, merging);
      }
    }
    return out;
  }

  // A part that is no token. Where it is two characters, what they would merge to were one.
  std::uint32_t* merge_part(const std::uint8_t* text, std::size_t size, std::uint32_t* out, Arena& arena,
                            Merging& merging) const {
    std::size_t first = char_length(text[0]), rest = size - first;
    if (rest && rest == char_length(text[first]) && !tables_.characters.none() &&
        !tables_.joins.edge(text[first - 1], text[first])) {
      std::uint32_t left = tables_.lone.only(code_point(text, first));
      std::uint32_t right = tables_.lone.only(code_point(text + first, rest));
      if (left != kNone && right != kNone) {
        *out++ = left;
        *out++ = right;
        return out;
      }
    }
    return merge_piece(text, size, out, arena, merging);
  }

  // Without the bytes that have no token: what stands around them merges as if they were not there.
  std::uint32_t* merge_rest(const std::uint8_t* text, std::size_t size, std::uint32_t* out, Arena& arena,
                            Merging& merging) const {
    std::uint8_t* kept = arena.piece.need(size);
    const std::uint8_t* end = std::copy_if(text, text + size, kept,
                                           [&](std::uint8_t value) { return tables_.alphabet.byte(value) != kNone; });
    return end == kept ? out : merge_piece(kept, static_cast<std::size_t>(end - kept), out, arena, merging);
  }

  std::uint32_t* merge_piece(const std::uint8_t* text, std::size_t size, std::uint32_t* out, Arena& arena,
                             Merging& merging) const {
    if (size <= kByMerges) {
      if (merging.full()) out = merging.finish(out);
      ShortPiece& piece = merging.add(out++);
      if (tables_.characters.none() || ascii(text, size)) {  // the pairs of bytes are in a table
        piece.fill(tables_.alphabet, tables_.merges, text, size);
      } else {
        tables_.characters.fill(tables_.joins, tables_.alphabet, tables_.merges, text, size, piece);
      }
      return out;
    }
    return tables_.longs.merge(text, size, tables_.alphabet, tables_.merges, arena, out);
  }

  Tables tables_;
  AddedTokens raw_, rewritten_;
  Rewriting how_;
  scan::Cut cut_;
};

}  // namespace hostless::bpe
