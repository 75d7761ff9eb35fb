// Ids of a vocabulary's tokens by their text, while its tables are made.
#pragma once

#include <cstdint>
#include <string_view>

#include "aligned.hpp"
#include "merge_table.hpp"

namespace hostless::bpe {

class TextIndex {
 public:
  explicit TextIndex(std::size_t most) : slots_(std::bit_ceil(most * 2 + 1)) {
    for (std::size_t i = 0; i < slots_.size(); ++i) slots_[i] = {};
  }

  // False if the text is there already. It must outlive the index.
  bool add(std::string_view text, std::uint32_t id) {
    Slot& slot = slots_[at(text)];
    if (slot.id != kNone) return false;
    slot = {text.data(), static_cast<std::uint32_t>(text.size()), id};
    return true;
  }

  std::uint32_t find(std::string_view text) const { return slots_[at(text)].id; }

 private:
  struct Slot {
    const char* text = nullptr;
    std::uint32_t size = 0, id = kNone;
  };

  std::size_t at(std::string_view text) const {
    std::size_t slot = std::hash<std::string_view>()(text) & (slots_.size() - 1);
    while (slots_[slot].id != kNone && std::string_view(slots_[slot].text, slots_[slot].size) != text) {
      slot = (slot + 1) & (slots_.size() - 1);
    }
    return slot;
  }

  AlignedArray<Slot> slots_;
};

}  // namespace hostless::bpe
