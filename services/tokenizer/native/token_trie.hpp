// The longest token that a text begins with, among those that merging makes of their own text.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "aligned.hpp"
#include "merge_table.hpp"

namespace hostless::bpe {

class TokenTrie {
 public:
  static constexpr std::size_t kMostBytes = 1 << 24;

  // `bytes`: of all tokens that will be added, together; fewer than kMostBytes.
  explicit TokenTrie(std::size_t bytes) : slots_(free_slots(bytes)), tokens_(1, kNone) {}

  void add(const std::uint8_t* text, std::size_t length, std::uint32_t id) {
    std::uint32_t node = 0;
    for (std::size_t i = 0; i < length; ++i) {
      Slot& slot = slots_[slot_of(node, text[i])];
      if (slot.key == kFree) {
        slot = {key_of(node, text[i]), static_cast<std::uint32_t>(tokens_.size())};
        tokens_.push_back(kNone);
      }
      node = slot.node;
    }
    tokens_[node] = id;
  }

  // Gives back what tokens need less for sharing their beginnings. Call once, after the last add.
  void finish() {
    AlignedArray<Slot> sparse = std::exchange(slots_, free_slots(tokens_.size()));
    for (std::size_t i = 0; i < sparse.size(); ++i) {
      const Slot& slot = sparse[i];
      if (slot.key != kFree) slots_[slot_of(slot.key >> 8, static_cast<std::uint8_t>(slot.key))] = slot;
    }
    tokens_.shrink_to_fit();
  }

  // The longest token within `size` bytes; kNone if there is none.
  std::uint32_t longest(const std::uint8_t* text, std::size_t size) const {
    std::uint32_t node = 0, found = kNone;
    for (std::size_t i = 0; i < size; ++i) {
      const Slot& slot = slots_[slot_of(node, text[i])];
      if (slot.key == kFree) break;
      node = slot.node;
      found = tokens_[node] != kNone ? tokens_[node] : found;
    }
    return found;
  }

  std::size_t bytes() const { return slots_.bytes() + tokens_.capacity() * sizeof(std::uint32_t); }

 private:
  static constexpr std::uint32_t kFree = 0xFFFFFFFF;
  struct Slot {
    std::uint32_t key, node;
  };

  static AlignedArray<Slot> free_slots(std::size_t nodes) {
    AlignedArray<Slot> slots(std::bit_ceil(nodes + nodes / 2 + 1));
    for (std::size_t i = 0; i < slots.size(); ++i) slots[i] = {kFree, 0};
    return slots;
  }

  static std::uint32_t key_of(std::uint32_t node, std::uint8_t byte) { return node << 8 | byte; }

  // Of the key, or the free one where it would stand.
  std::size_t slot_of(std::uint32_t node, std::uint8_t byte) const {
    std::uint32_t key = key_of(node, byte);
    std::size_t at = mix(key, 0x9E3779B97F4A7C15) & (slots_.size() - 1);
    while (slots_[at].key != key && slots_[at].key != kFree) at = (at + 1) & (slots_.size() - 1);
    return at;
  }

  AlignedArray<Slot> slots_;
  std::vector<std::uint32_t> tokens_;  // what ends at each node
};

}  // namespace hostless::bpe
