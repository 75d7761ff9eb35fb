// Sees that a text is in Unicode's composed form (NFC) already, as nearly all text is, without composing it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "alphabet.hpp"
#include "nfc_ranges.hpp"

namespace hostless::bpe::nfc {

class Orders {
 public:
  static const Orders& all() {
    static const Orders orders;
    return orders;
  }

  std::uint8_t of(std::uint32_t point) const { return values_[pages_[point / kPage] * kPage + point % kPage]; }

 private:
  static constexpr std::size_t kPage = 128;

  Orders() : pages_(0x110000 / kPage, 0), values_(kPage, 0) {  // page 0: nothing to know
    for (const Range& range : kRanges) {
      for (std::uint32_t point = range.first; point <= range.last; ++point) {
        std::uint16_t& page = pages_[point / kPage];
        if (!page) {
          page = static_cast<std::uint16_t>(values_.size() / kPage);
          values_.resize(values_.size() + kPage, 0);
        }
        values_[page * kPage + point % kPage] = range.order;
      }
    }
  }

  std::vector<std::uint16_t> pages_;
  std::vector<std::uint8_t> values_;
};

// True: composing would not change the text. False: it may.
inline bool surely_composed(const std::uint8_t* text, std::size_t size) {
  constexpr std::uint8_t kFirstKnown = 0xCC;  // leads U+0300, the first character that there is anything to know of
  constexpr unsigned kHan = 0xE4, kHanLeads = 6;  // lead U+4000 to U+9FFF: nothing to know of these, either
  std::uint8_t last = 0;
  for (std::size_t at = 0; at < size;) {
    if (text[at] < kFirstKnown) {
      const std::uint8_t* next = std::find_if(text + at, text + size, [](std::uint8_t b) { return b >= kFirstKnown; });
      at = static_cast<std::size_t>(next - text);
      last = 0;
      continue;
    }
    if (text[at] - kHan < kHanLeads) {
      at += 3;
      last = 0;
      continue;
    }
    std::size_t length = char_length(text[at]);
    std::uint8_t order = Orders::all().of(code_point(text + at, length));
    if (order == kUnsure || (order && last > order)) return false;
    last = order;
    at += length;
  }
  return true;
}

}  // namespace hostless::bpe::nfc
