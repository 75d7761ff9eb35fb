// A Cut for each pattern, from a family of scanners and an instruction set.
#pragma once

#include "cl100k.hpp"
#include "deepseek3.hpp"
#include "gpt2.hpp"
#include "o200k.hpp"
#include "scanner.hpp"

namespace hostless::scan {

template <class Family, class Isa>
std::size_t cut(const std::uint8_t* bytes, std::size_t size, std::size_t begin, std::uint32_t* ends,
                std::size_t capacity) {
  const Text<Isa> text{bytes, size};
  std::size_t count = 0;
  while (begin < size && count < capacity) {
    if constexpr (Isa::windows) {
      const bool room = count + 64 <= capacity;
      if (!room && capacity >= 64) break;  // what is left goes by windows at the next call
      const bool blank = bytes[begin] == ' ' && begin + 1 < size;
      if (room && bytes[begin + blank] < Family::plain_from) {
        const auto window = Window<Isa>::template of<Family>(text, begin);
        Mask starts = Family::starts(window, text, begin);
        if (starts != 0) {
          for (; starts != 0; starts &= starts - 1) {
            ends[count++] = static_cast<std::uint32_t>(begin + static_cast<unsigned>(std::countr_zero(starts)));
          }
          begin = ends[count - 1];
          continue;
        }
      }
    }
    begin = Family::piece_end(text, begin);
    ends[count++] = static_cast<std::uint32_t>(begin);
  }
  return count;
}

template <class Isa>
Cut cut_for(Pattern pattern) {
  switch (pattern) {
    case Pattern::gpt2: return cut<Gpt2<Isa, false>, Isa>;
    case Pattern::smollm: return cut<Gpt2<Isa, true>, Isa>;
    case Pattern::cl100k: return cut<Cl100k<Isa, 3>, Isa>;
    case Pattern::qwen2: return cut<Cl100k<Isa, 1>, Isa>;
    case Pattern::o200k: return cut<O200k<Isa>, Isa>;
    case Pattern::deepseek3: return cut<DeepSeek3<Isa>, Isa>;
  }
  return nullptr;
}

}  // namespace hostless::scan
