// Characters of valid UTF-8 text, with what the scanners' regexes ask of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "classes.hpp"

namespace hostless::scan {

// Bits of a character's classes: scripts/unicode_classes.py writes the low eight.
enum : std::uint32_t {
  letter = 1,   // \p{L}
  number = 2,   // \p{N}
  mark = 4,     // \p{M}
  sign = 8,     // \p{P} or \p{S}
  space = 16,   // \s
  upper = 32,   // \p{Lu} or \p{Lt}
  lower = 64,   // \p{Ll}
  digit = 128,  // what the pre-tokenizer `Digits` sets apart
  end = 256,    // no character: the text ends here
};

struct Char {
  std::uint32_t code;
  std::uint32_t classes;
  std::size_t size;  // bytes; 0 at the end

  bool is(std::uint32_t any) const { return (classes & any) != 0; }
  bool none(std::uint32_t any) const { return (classes & any) == 0; }
  bool newline() const { return code == '\n' || code == '\r'; }
};

// The regexes' dot-free world: text that ends, and characters in it by byte offset. `Isa` keeps instantiations for
// different instruction sets apart.
template <class Isa>
struct Text {
  const std::uint8_t* bytes;
  std::size_t size;

  Char operator[](std::size_t at) const {
    if (at >= size) return {0, end, 0};
    const std::uint8_t* p = bytes + at;
    if (p[0] < 0x80) return {p[0], class_of[p[0]], 1};
    if (p[0] < 0xE0) return classed((p[0] & 0x1Fu) << 6 | (p[1] & 0x3Fu), 2);
    if (p[0] < 0xF0) return classed((p[0] & 0x0Fu) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu), 3);
    return classed((p[0] & 0x07u) << 18 | (p[1] & 0x3Fu) << 12 | (p[2] & 0x3Fu) << 6 | (p[3] & 0x3Fu), 4);
  }

 private:
  static Char classed(std::uint32_t code, std::size_t size) {
    return {code, class_of[class_block[code / 128] * 128u + code % 128], size};
  }
};

// Past further repetitions of the character of `size` bytes that ends at `at`.
template <class Isa>
std::size_t past_repeats(const Text<Isa>& text, std::size_t at, std::size_t size) {
  const std::size_t begin = at;
  const auto word = [&](std::size_t from) {
    std::uint64_t value;
    std::memcpy(&value, text.bytes + from, sizeof value);
    return value;
  };
  while (text.size - at >= 8 && word(at) == word(at - size)) at += 8;
  return at - (at - begin) % size;
}

inline constexpr std::size_t kRun = 32;  // characters after which it is worth a look whether one repeats

// Steps over characters for as long as `more` says, which answers the same for the same character from the kRun-th on;
// returns where it stopped.
template <class Isa, class More>
std::size_t skip(const Text<Isa>& text, std::size_t at, More more) {
  std::size_t count = 0;
  for (Char c = text[at]; more(c); c = text[at]) {
    at += c.size;
    if (++count % kRun == 0) at = past_repeats(text, at, c.size);
  }
  return at;
}

// Past the most common ideographs, U+5000 to U+8FFF, without a look at their classes: letters without case.
template <class Isa>
std::size_t past_ideographs(const Text<Isa>& text, std::size_t at) {
  while (at < text.size && text.bytes[at] - 0xE5u < 4) at += 3;
  return at;
}

// skip() where `more` holds for ideographs.
template <class Isa, class More>
std::size_t skip_word(const Text<Isa>& text, std::size_t at, More more) {
  for (std::size_t count = 0;;) {
    at = past_ideographs(text, at);
    const Char c = text[at];
    if (!more(c)) return at;
    at += c.size;
    if (++count % kRun == 0) at = past_repeats(text, at, c.size);
  }
}

// Bytes of an English contraction's end after an apostrophe at `at`: 's 't 'm 'd 're 've 'll; 0 if there is none.
// Any case: as a regex with (?i:) has it, where the long s counts as an s.
template <class Isa>
std::size_t contraction(const Text<Isa>& text, std::size_t at, bool any_case) {
  const auto byte = [&](std::size_t i) -> unsigned {
    if (at + i >= text.size) return 0;
    const unsigned b = text.bytes[at + i];
    return any_case && b - 0x41u < 26 ? b | 0x20u : b;
  };
  switch (byte(1)) {
    case 's':
    case 't':
    case 'm':
    case 'd': return 1;
    case 'r':
    case 'v': return byte(2) == 'e' ? 2 : 0;
    case 'l': return byte(2) == 'l' ? 2 : 0;
    case 0xC5: return any_case && byte(2) == 0xBF ? 2 : 0;
    default: return 0;
  }
}

// \s+(?!\S)|\s+ at a character of white space: all of the run at the end of text, or all but its last character.
// With `lines`, \s*[\r\n]+ goes first: up to the run's last line end.
template <class Isa, class Ends>
std::size_t white_space(const Text<Isa>& text, std::size_t at, bool lines, Ends ends) {
  std::size_t last = at, after_line = 0, to = at, count = 0;
  Char c = text[to];
  for (; c.is(space) && !ends(c); c = text[to]) {
    to += c.size;
    if (++count % kRun == 0) to = past_repeats(text, to, c.size);
    last = to - c.size;
    if (c.newline()) after_line = to;
  }
  if (lines && after_line) return after_line;
  return ends(c) || last == at ? to : last;
}

}  // namespace hostless::scan
