// Pieces by the window: 64 bytes of text become one bit mask a class, and bit arithmetic finds where pieces start.
//
// A window begins where a piece begins, so it needs nothing of what came before. It ends at the first character that
// the masks can't tell apart (most of what is not ASCII); a start that depends on what comes after is left out. The
// plain scanner goes on where no start is left.
#pragma once

#include <bit>
#include <cstring>

#include "text.hpp"

namespace hostless::scan {

using Mask = std::uint64_t;

static inline Mask after(Mask mask) { return mask << 1; }
static inline Mask before(Mask mask) { return mask >> 1; }
static inline Mask below(unsigned bits) { return bits < 64 ? (Mask{1} << bits) - 1 : ~Mask{0}; }

// One bit a byte. A character of several bytes has all its bits in `letters`.
struct Masks {
  Mask valid, letters, uppers, numbers, spaces, newlines, blanks, quotes, slashes, ideographs;

  Mask others() const { return valid & ~(letters | numbers | spaces | ideographs); }
};

// What a window makes of bytes beyond ASCII: the letters, and the characters where it must end.
struct Foreign {
  Mask letters, ideographs, odd;
};

// Letters of two or three bytes by their first byte, where all that begin so are letters, or nearly all: Latin,
// Cyrillic, ideographs, Hangul.
template <class Isa>
Foreign foreign_letters(const typename Isa::Bytes& bytes, Mask high) {
  const Mask trail = Isa::between(bytes, 0x80, 0xBF);
  const Mask latin1 = Isa::equal(bytes, 0xC3), han4 = Isa::equal(bytes, 0xE4);
  Mask odd = high & ~trail & ~Isa::between(bytes, 0xC3, 0xC9) & ~Isa::between(bytes, 0xD0, 0xD1);
  odd &= ~Isa::equal(bytes, 0xD3) & ~Isa::between(bytes, 0xE4, 0xE9) & ~Isa::between(bytes, 0xEB, 0xEC);
  odd |= latin1 & ~before(trail & ~Isa::equal(bytes, 0x97) & ~Isa::equal(bytes, 0xB7));  // U+00D7, U+00F7
  odd |= han4 & ~before(Isa::between(bytes, 0xB8, 0xBF));                                // below U+4E00
  return {high, 0, odd};
}

// Letters without case: ideographs and Hangul.
template <class Isa>
Foreign foreign_caseless(const typename Isa::Bytes& bytes, Mask high) {
  Mask odd = high & ~Isa::between(bytes, 0x80, 0xBF) & ~Isa::between(bytes, 0xE4, 0xE9);
  odd &= ~Isa::between(bytes, 0xEB, 0xEC);
  odd |= Isa::equal(bytes, 0xE4) & ~before(Isa::between(bytes, 0xB8, 0xBF));
  return {high, 0, odd};
}

// U+4E00 to U+9F7F.
template <class Isa>
Foreign foreign_ideographs(const typename Isa::Bytes& bytes, Mask high) {
  const Mask trail = Isa::between(bytes, 0x80, 0xBF), from_b8 = Isa::between(bytes, 0xB8, 0xBF);
  Mask odd = high & ~trail & ~Isa::between(bytes, 0xE4, 0xE9);
  odd |= Isa::equal(bytes, 0xE4) & ~before(from_b8);
  odd |= Isa::equal(bytes, 0xE9) & ~before(trail & ~Isa::between(bytes, 0xBE, 0xBF));
  return {0, high, odd};
}

// Line ends that go with the piece of other characters before them: [^\s\p{L}\p{N}]+[\r\n]*
static inline Mask line_ends_taken(Mask newlines, Mask others) {
  return newlines & ~(newlines + (newlines & after(others)));
}

// \s*[\r\n]+|\s+(?!\S)|\s+ in runs of white space: a start at each run, one after its last line end, and one at its
// last character if one of `next` follows and it is no line end.
static inline Mask white_space_starts(Mask runs, Mask newlines, Mask next) {
  const Mask inner = runs & ~newlines;
  Mask lines = after(runs & newlines) & inner;
  Mask not_last = (inner + lines) & ~inner & newlines;  // a line end that follows what follows a line end
  for (; not_last != 0; not_last &= not_last - 1) {
    const Mask gap = ~inner & ((not_last & -not_last) - 1);
    lines &= ~(Mask{1} << (64 - std::countl_zero(gap)));
  }
  return (runs & ~after(runs)) | lines | (inner & before(next));
}

// \p{N}{1,digits}
static inline Mask number_starts(Mask numbers, int digits) {
  if (digits == 1) return numbers;
  Mask starts = numbers & ~after(numbers);
  const Mask third = numbers & (numbers << 1) & (numbers << 2);
  for (Mask next = starts << 3 & third; next != 0; next = next << 3 & third) starts |= next;
  return starts;
}

template <class Isa>
struct Window {
  Masks masks;
  unsigned size;  // bytes of it that count
  bool last;      // they are the text's last

  template <class Family>
  static Window of(const Text<Isa>& text, std::size_t at) {
    const std::size_t left = text.size - at;
    const typename Isa::Bytes bytes = Isa::load(text.bytes + at, left);
    const Mask valid = below(left < 64 ? static_cast<unsigned>(left) : 64);
    const Mask high = Isa::between(bytes, 0x80, 0xFF) & valid;
    Masks m{.valid = valid,
            .letters = Isa::between(Isa::lower_case(bytes), 'a', 'z'),
            .uppers = Isa::between(bytes, 'A', 'Z'),
            .numbers = Isa::between(bytes, '0', '9'),
            .spaces = Isa::between(bytes, '\t', '\r') | Isa::equal(bytes, ' '),
            .newlines = Isa::equal(bytes, '\n') | Isa::equal(bytes, '\r'),
            .blanks = Isa::equal(bytes, ' '),
            .quotes = Isa::equal(bytes, '\''),
            .slashes = Isa::equal(bytes, '/'),
            .ideographs = 0};
    Mask odd = Family::odd(m, Isa::between(bytes, 0x00, 0x1F) | Isa::equal(bytes, 0x7F));
    if (high) {
      const Foreign foreign = Family::foreign(bytes, high);
      m.letters |= foreign.letters;
      m.ideographs = foreign.ideographs;
      odd |= foreign.odd | Family::odd_foreign(m, high);
    }
    m.valid &= below(odd & valid ? static_cast<unsigned>(std::countr_zero(odd)) : 64);
    return {limited(m), static_cast<unsigned>(std::popcount(m.valid)), left < 64 && m.valid == valid};
  }

  // Piece starts of this window that hold whatever follows it, without the one at its first byte; with the end of
  // text if it is here. White space up to the window's end (`runs`: white space that is not part of another piece)
  // waits for what follows it.
  Mask certain(Mask starts, Mask runs) const {
    starts &= masks.valid & ~Mask{1};
    if (last) return starts | Mask{1} << size;
    return starts & below(65 - static_cast<unsigned>(std::countl_zero(masks.valid & ~runs)));
  }

 private:
  static Masks limited(Masks m) {
    for (Mask Masks::* mask : {&Masks::letters, &Masks::uppers, &Masks::numbers, &Masks::spaces, &Masks::newlines,
                               &Masks::blanks, &Masks::quotes, &Masks::slashes, &Masks::ideographs}) {
      m.*mask &= m.valid;
    }
    return m;
  }
};

}  // namespace hostless::scan
