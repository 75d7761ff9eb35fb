// [^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?
// |[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?
// |\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+
#pragma once

#include "window.hpp"

namespace hostless::scan {

template <class Isa>
struct O200k {
  // End of the piece that begins at `at`, which is before the end of text.
  static std::size_t piece_end(const Text<Isa>& text, std::size_t at) {
    const Char first = text[at];
    if (first.is(number)) {
      int left = 3;
      return skip(text, at, [&](Char c) { return c.is(number) && left-- > 0; });
    }
    if (const std::size_t to = word_end(text, at, first)) return to + suffix(text, to);
    const std::size_t next = at + first.size;
    const bool led = first.code == ' ' && other(text[next]);
    if (!led && first.is(space)) return white_space(text, at, true, [](Char c) { return c.is(end); });
    const std::size_t to = skip(text, next, other);
    return skip(text, to, [](Char c) { return c.newline() || c.code == '/'; });
  }

  // A slash after a line end: both may go with the signs before them.
  static constexpr unsigned plain_from = 0x80;  // the first byte of what is not worth a window
  static Mask odd(const Masks& m, Mask) { return m.slashes & after(m.newlines); }
  template <class Bytes>
  static Mask odd_beyond_ascii(const Bytes&, Mask high) {
    return high;
  }

  static Mask starts(const Window<Isa>& window, const Text<Isa>& text, std::size_t at) {
    const Masks& m = window.masks;
    const Mask others = m.others();
    const Mask runs = m.spaces & ~line_ends_taken(m.newlines, others);
    const Mask other_starts = others & ~after(others) & ~after(m.blanks);
    const Mask led = after(other_starts | (runs & ~m.newlines));
    Mask starts = other_starts | (m.letters & ~after(m.letters) & ~led) | number_starts(m.numbers, 3);
    starts |= m.uppers & after(m.letters & ~m.uppers);
    starts |= white_space_starts(runs, m.newlines, others | m.letters | m.numbers);
    std::size_t suffix_end = 0;
    for (Mask quotes = m.quotes & after(m.letters); quotes != 0; quotes &= quotes - 1) {
      const std::size_t quote = std::countr_zero(quotes);
      const std::size_t size = quote == suffix_end ? 0 : suffix(text, at + quote);
      if (size == 0) continue;
      starts &= ~(Mask{1} << quote);
      suffix_end = quote + size;
      if (suffix_end < 64) starts |= Mask{1} << suffix_end;
    }
    return window.certain(starts, runs);
  }

 private:
  static bool other(Char c) { return c.none(letter | number | space | end); }
  static bool head(Char c) { return (c.is(letter) && !c.is(lower)) || c.is(mark); }
  static bool tail(Char c) { return (c.is(letter) && !c.is(upper)) || c.is(mark); }

  // The first two alternatives but for the contraction, each with a leading character and then without; 0 for none.
  static std::size_t word_end(const Text<Isa>& text, std::size_t at, Char first) {
    const bool leads = first.none(letter | number) && !first.newline();
    const std::size_t next = at + first.size;
    std::size_t to = leads ? capitalized_end(text, next) : 0;
    if (!to) to = capitalized_end(text, at);
    if (!to && leads) to = capitals_end(text, next);
    if (!to) to = capitals_end(text, at);
    return to;
  }

  // head*tail+ at `at`, or 0. Where no tail follows the heads, they give back up to the last that is a tail as well.
  static std::size_t capitalized_end(const Text<Isa>& text, std::size_t at) {
    std::size_t both_end = 0, to = at;
    for (;;) {
      const std::size_t ideographs_end = past_ideographs(text, to);
      if (ideographs_end != to) both_end = to = ideographs_end;
      const Char c = text[to];
      if (!head(c)) return tail(c) ? skip_word(text, to, tail) : both_end;
      to += c.size;
      if (tail(c)) both_end = to;
    }
  }

  // head+tail* at `at`, or 0, where capitalized_end() found nothing: so no tail follows.
  static std::size_t capitals_end(const Text<Isa>& text, std::size_t at) {
    const std::size_t to = skip(text, at, head);
    return to == at ? 0 : to;
  }

  static std::size_t suffix(const Text<Isa>& text, std::size_t at) {
    if (text[at].code != '\'') return 0;
    const std::size_t size = contraction(text, at, true);
    return size ? 1 + size : 0;
  }
};

}  // namespace hostless::scan
