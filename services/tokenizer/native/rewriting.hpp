// How a section between added tokens becomes the text that is cut: brought to NFC, or with spaces for U+2581.
#pragma once

#include <cstdint>
#include <cstring>

#include "arena.hpp"
#include "nfc.hpp"

namespace hostless::bpe {

struct Rewriting {
  bool composed = false;  // the vocabulary asks for NFC
  bool prepend_space = false;
  bool unify_space = false;  // U+2581 and the space are the same; the tables write both as a space

  // Calls next(text, size) once; what it gets lives for as long as the call.
  template <class Next>
  void rewrite(const std::uint8_t* text, std::size_t size, Arena& arena, Next next) const {
    if (composed) {
      auto found = nfc::Composer(arena).compose(text, size);
      return next(found.data(), found.size());
    }
    if (!prepend_space && !(unify_space && has_mark(text, size))) return next(text, size);
    std::uint8_t* made = arena.text.need(size + 1);
    std::size_t at = 0;
    if (prepend_space) made[at++] = ' ';
    for (std::size_t i = 0; i < size;) {
      bool mark = size - i >= 3 && is_mark(text + i);
      made[at++] = mark ? ' ' : text[i];
      i += mark ? 3 : 1;
    }
    next(made, at);
  }

 private:
  static bool is_mark(const std::uint8_t* at) { return at[0] == 0xE2 && at[1] == 0x96 && at[2] == 0x81; }

  static bool has_mark(const std::uint8_t* text, std::size_t size) {
    for (const std::uint8_t* end = text + size; end - text >= 3; ++text) {
      text = static_cast<const std::uint8_t*>(std::memchr(text, 0xE2, static_cast<std::size_t>(end - text)));
      if (!text || end - text < 3) return false;
      if (is_mark(text)) return true;
    }
    return false;
  }
};

}  // namespace hostless::bpe
