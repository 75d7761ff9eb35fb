// '(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// Digits apart (SmolLM): the text is first cut before and after every digit.
#pragma once

#include "window.hpp"

namespace hostless::scan {

template <class Isa, bool digits_apart>
struct Gpt2 : CommonLetters<Isa> {
  // End of the piece that begins at `at`, which is before the end of text.
  static std::size_t piece_end(const Text<Isa>& text, std::size_t at) {
    const Char first = text[at];
    if (digits_apart && first.is(digit)) return at + first.size;
    if (first.code == '\'') {
      if (const std::size_t size = contraction(text, at, false)) return at + 1 + size;
    }
    const Char second = first.code == ' ' ? text[at + 1] : first;
    const bool led = first.code == ' ' && !second.is(space) && !ends(second);
    const Char c = led ? second : first;
    const std::size_t from = at + led;
    if (c.is(space)) return white_space(text, at, false, ends);
    if (c.is(letter)) return skip_word(text, from, [](Char c) { return c.is(letter); });
    if (c.is(number)) return skip(text, from, [](Char c) { return c.is(number) && !ends(c); });
    return skip(text, from, [](Char c) { return c.none(letter | number | space) && !ends(c); });
  }

  static Mask starts(const Window<Isa>& window, const Text<Isa>& text, std::size_t at) {
    const Masks& m = window.masks;
    const Mask others = m.others(), led = after(m.blanks);
    const Mask alone = digits_apart ? m.numbers : 0;
    const Mask followers = others | m.letters | (m.numbers & ~alone);
    const Mask other_starts = others & ~after(others) & ~led;
    Mask starts = other_starts | (m.letters & ~after(m.letters) & ~led);
    starts |= alone | (m.numbers & ~after(m.numbers) & ~led);
    starts |= m.spaces & (~after(m.spaces) | before(followers));
    for (Mask quotes = m.quotes & other_starts & before(m.letters); quotes != 0; quotes &= quotes - 1) {
      const int quote = std::countr_zero(quotes);
      if (const std::size_t size = contraction(text, at + quote, false)) {
        starts &= ~(Mask{2} << quote);
        starts |= Mask{2} << quote << size;
      }
    }
    return window.certain(starts, m.spaces);
  }

  static bool ends(Char c) { return c.is(digits_apart ? end | digit : end); }
};

}  // namespace hostless::scan
