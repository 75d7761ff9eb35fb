// The ids of characters by code point, in pages of 256 of which most are shared: no character of page 0 has an id.
#pragma once

#include <cstdint>
#include <vector>

#include "merge_table.hpp"

namespace hostless::bpe {

class CharacterIds {
 public:
  void add(std::uint32_t point, std::uint32_t id) {
    if (none()) {
      pages_.assign(0x110000 / kPage, 0);
      ids_.assign(kPage, kNone);
    }
    std::uint16_t& page = pages_[point / kPage];
    if (!page) {
      page = static_cast<std::uint16_t>(ids_.size() / kPage);
      ids_.resize(ids_.size() + kPage, kNone);
    }
    ids_[page * kPage + point % kPage] = id;
  }

  bool none() const { return pages_.empty(); }

  // kNone where it has none. Only if there are any.
  std::uint32_t operator[](std::uint32_t point) const { return ids_[pages_[point / kPage] * kPage + point % kPage]; }

  std::size_t bytes() const {
    return ids_.capacity() * sizeof(std::uint32_t) + pages_.capacity() * sizeof(std::uint16_t);
  }

 private:
  static constexpr std::size_t kPage = 256;

  std::vector<std::uint16_t> pages_;
  std::vector<std::uint32_t> ids_;
};

}  // namespace hostless::bpe
