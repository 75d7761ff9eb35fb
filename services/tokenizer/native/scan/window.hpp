// Pieces by the window: 64 bytes of text become one bit mask a class, and bit arithmetic finds where pieces start.
//
// A window begins where a piece begins, so it needs nothing of what came before. It ends at the first character that
// the masks can't tell apart (most of what is not ASCII); a start that depends on what comes after is left out. The
// plain scanner goes on where no start is left.
#pragma once

#include <bit>
#include <cstring>
#include <initializer_list>

#include "text.hpp"

namespace hostless::scan {

using Mask = std::uint64_t;

static inline Mask after(Mask mask) { return mask << 1; }
static inline Mask before(Mask mask) { return mask >> 1; }
static inline Mask below(unsigned bits) { return bits < 64 ? (Mask{1} << bits) - 1 : ~Mask{0}; }

// One bit a byte. A character of several bytes has all its bits in `letters`.
struct Masks {
  Mask valid, letters, uppers, numbers, spaces, newlines, blanks, quotes, slashes;

  Mask others() const { return valid & ~(letters | numbers | spaces); }
};

// Of bytes beyond ASCII, those that are not letters of two bytes as most of Latin and Cyrillic are, where all that
// begin with the same byte are letters, or nearly all. A window must end there.
template <class Isa>
Mask not_common_letters(const typename Isa::Bytes& bytes, Mask high) {
  const Mask trail = Isa::between(bytes, 0x80, 0xBF);
  Mask odd = high & ~trail & ~Isa::between(bytes, 0xC3, 0xC9) & ~Isa::between(bytes, 0xD0, 0xD1);
  odd &= ~Isa::equal(bytes, 0xD3);
  const Mask no_sign = trail & ~Isa::equal(bytes, 0x97) & ~Isa::equal(bytes, 0xB7);  // U+00D7 and U+00F7 are signs
  return odd | (Isa::equal(bytes, 0xC3) & ~before(no_sign));
}

// Patterns whose windows go beyond ASCII with common letters, and which find nothing odd within it.
template <class Isa>
struct CommonLetters {
  static constexpr unsigned plain_from = 0xD4;  // the first byte of what is not worth a window
  static Mask odd(const Masks&, Mask) { return 0; }
  template <class Bytes>
  static Mask odd_beyond_ascii(const Bytes& bytes, Mask high) {
    return not_common_letters<Isa>(bytes, high);
  }
};

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
            .slashes = Isa::equal(bytes, '/')};
    Mask odd = Family::odd(m, Isa::between(bytes, 0x00, 0x1F) | Isa::equal(bytes, 0x7F));
    if (high) {
      m.letters |= high;
      odd |= Family::odd_beyond_ascii(bytes, high);
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
                               &Masks::blanks, &Masks::quotes, &Masks::slashes}) {
      m.*mask &= m.valid;
    }
    return m;
  }
};

}  // namespace hostless::scan
