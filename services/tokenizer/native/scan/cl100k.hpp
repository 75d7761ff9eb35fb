// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
// Qwen 2 and 3: \p{N} in place of \p{N}{1,3}.
#pragma once

#include "window.hpp"

namespace hostless::scan {

template <class Isa, int digits>
struct Cl100k : CommonLetters<Isa> {
  // End of the piece that begins at `at`, which is before the end of text.
  static std::size_t piece_end(const Text<Isa>& text, std::size_t at) {
    const Char first = text[at];
    if (first.code == '\'') {
      if (const std::size_t size = contraction(text, at, true)) return at + 1 + size;
    }
    if (first.is(number)) return number_end(text, at);
    const std::size_t next = at + first.size;
    const Char second = text[next];
    if (first.is(letter) || (!first.newline() && second.is(letter))) {
      return skip_word(text, next, [](Char c) { return c.is(letter); });
    }
    const bool led = first.code == ' ' && other(second);
    if (!led && first.is(space)) return white_space(text, at, true, [](Char c) { return c.is(end); });
    const std::size_t to = skip(text, next, other);
    return skip(text, to, [](Char c) { return c.newline(); });
  }

  static Mask starts(const Window<Isa>& window, const Text<Isa>& text, std::size_t at) {
    const Masks& m = window.masks;
    const Mask others = m.others();
    const Mask runs = m.spaces & ~line_ends_taken(m.newlines, others);
    const Mask other_starts = others & ~after(others) & ~after(m.blanks);
    const Mask led = after(other_starts | (runs & ~m.newlines));
    Mask starts = other_starts | (m.letters & ~after(m.letters) & ~led) | number_starts(m.numbers, digits);
    starts |= white_space_starts(runs, m.newlines, others | m.letters | m.numbers);
    for (Mask quotes = m.quotes & other_starts & before(m.letters); quotes != 0; quotes &= quotes - 1) {
      const int quote = std::countr_zero(quotes);
      if (const std::size_t size = contraction(text, at + quote, true)) starts |= Mask{2} << quote << size;
    }
    return window.certain(starts, runs);
  }

 private:
  static bool other(Char c) { return c.none(letter | number | space | end); }

  static std::size_t number_end(const Text<Isa>& text, std::size_t at) {
    int left = digits;
    return skip(text, at, [&](Char c) { return c.is(number) && left-- > 0; });
  }
};

}  // namespace hostless::scan
