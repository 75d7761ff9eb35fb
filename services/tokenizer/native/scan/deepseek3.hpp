// Three cuts, each within the pieces of the one before:
//   \p{N}{1,3}
//   [\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+
//   [!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*
//   |\s*[\r\n]+|\s+(?!\S)|\s+
// What no alternative matches (controls, unassigned characters) stays together as one piece.
#pragma once

#include "window.hpp"

namespace hostless::scan {

template <class Isa>
struct DeepSeek3 {
  // End of the piece that begins at `at`, which is before the end of text.
  static std::size_t piece_end(const Text<Isa>& text, std::size_t at) {
    const Char first = text[at];
    if (first.is(number)) {
      int left = 3;
      return skip(text, at, [&](Char c) { return c.is(number) && left-- > 0; });
    }
    // For the third cut, text ends where the second or the first has cut.
    const bool east_asian = is_east_asian(first);
    const auto ends = [=](Char c) { return c.is(end | number) || is_east_asian(c) != east_asian; };
    const auto in_word = [=](Char c) { return c.is(letter | mark) && !ends(c); };
    const auto signs = [=](Char c) { return c.is(sign) && !ends(c); };
    const std::size_t next = at + first.size;
    const Char second = text[next];

    if (first.is(sign) && first.code < 0x80 && ascii_letter(second)) return skip(text, next, ascii_letter);
    if (in_word(first)) return east_asian ? skip_word(text, next, in_word) : skip(text, next, in_word);
    if (first.none(sign) && !first.newline() && in_word(second)) return skip(text, next, in_word);
    if (first.is(sign) || (first.code == ' ' && signs(second))) {
      return skip(text, skip(text, next, signs), [=](Char c) { return c.newline() && !ends(c); });
    }
    if (first.is(space)) return white_space(text, at, true, ends);
    return unmatched_end(text, next, ends, in_word);
  }

  static constexpr unsigned plain_from = 0x80;  // the first byte of what is not worth a window
  static Mask odd(const Masks& m, Mask controls) { return controls & ~m.spaces; }
  template <class Bytes>
  static Mask odd_beyond_ascii(const Bytes&, Mask high) {
    return high;
  }

  static Mask starts(const Window<Isa>& window, const Text<Isa>&, std::size_t) {
    const Masks& m = window.masks;
    const Mask others = m.others();
    const Mask runs = m.spaces & ~line_ends_taken(m.newlines, others);
    const Mask other_starts = others & ~after(others) & ~after(m.blanks);
    const Mask led = after(other_starts | (runs & ~m.newlines));
    Mask starts = other_starts | (m.letters & ~after(m.letters) & ~led) | number_starts(m.numbers, 3);
    starts |= white_space_starts(runs, m.newlines, others | m.letters);
    return window.certain(starts, runs);
  }

 private:
  static bool ascii_letter(Char c) { return (c.code | 0x20) - 'a' < 26u; }
  static bool is_east_asian(Char c) { return c.code - 0x4E00 <= 0x9FA5u - 0x4E00 || c.code - 0x3040 <= 0xBFu; }

  // A run of characters that match nothing; the last of them leads a word if one follows.
  template <class Ends, class InWord>
  static std::size_t unmatched_end(const Text<Isa>& text, std::size_t at, Ends ends, InWord in_word) {
    for (Char c = text[at]; c.none(letter | mark | sign | space) && !ends(c);) {
      const Char next = text[at + c.size];
      if (in_word(next)) break;
      at += c.size;
      c = next;
    }
    return at;
  }
};

}  // namespace hostless::scan
