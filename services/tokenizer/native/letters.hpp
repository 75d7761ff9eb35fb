// Byte-level vocabularies write each byte as a printable letter: itself, or one from U+0100 on.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "alphabet.hpp"

namespace hostless::bpe {

class Letters {
 public:
  static const Letters& all() {
    static const Letters letters;
    return letters;
  }

  // Nothing if the text holds a character that stands for no byte.
  std::optional<std::string> bytes(std::string_view text) const {
    std::string made;
    auto at = reinterpret_cast<const std::uint8_t*>(text.data());
    for (const std::uint8_t* end = at + text.size(); at < end; at += char_length(*at)) {
      std::uint32_t point = code_point(at, char_length(*at));
      if (point >= byte_of_.size() || byte_of_[point] < 0) return std::nullopt;
      made += static_cast<char>(byte_of_[point]);
    }
    return made;
  }

  std::string letter(std::uint8_t byte) const {
    std::uint32_t point = points_[byte];
    if (point < 0x80) return {static_cast<char>(point)};
    return {static_cast<char>(0xC0 | point >> 6), static_cast<char>(0x80 | (point & 0x3F))};
  }

 private:
  Letters() {
    byte_of_.fill(-1);
    std::uint32_t hidden = 0x100;
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
      bool shown = (byte >= 0x21 && byte < 0x7F) || (byte >= 0xA1 && byte != 0xAD);
      points_[byte] = shown ? byte : hidden++;
      byte_of_[points_[byte]] = static_cast<std::int16_t>(byte);
    }
  }

  std::array<std::uint32_t, 256> points_{};
  std::array<std::int16_t, 0x180> byte_of_{};
};

}  // namespace hostless::bpe
