// Where blocks lie, by key: 24 bytes a slot, of which three quarters at most are taken. Linear probing; what is removed
// leaves no mark, as those behind it move up.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

namespace hostless {

class PlaceTable {
 public:
  using Key = std::array<uint8_t, 16>;

  size_t size() const { return size_; }
  size_t memory() const { return slots_.size() * sizeof(Slot); }

  // 0: not there.
  uint64_t get(const Key& key) const { return slots_[find(key)].place; }

  // `place` is not 0. Returns the one before it, or 0.
  uint64_t set(const Key& key, uint64_t place) {
    Slot* slot = &slots_[find(key)];
    if (slot->place == 0) {
      if (4 * (size_ + 1) > 3 * slots_.size()) {
        grow();
        slot = &slots_[find(key)];
      }
      slot->key = key;
      ++size_;
    }
    return std::exchange(slot->place, place);
  }

  // The place, or 0.
  uint64_t pop(const Key& key) {
    size_t hole = find(key);
    uint64_t place = slots_[hole].place;
    if (place == 0) return 0;
    --size_;
    for (size_t at = next(hole); slots_[at].place != 0; at = next(at)) {
      size_t wanted = home(slots_[at].key);
      if (((at - wanted) & mask()) < ((at - hole) & mask())) continue;  // it would come before its home
      slots_[hole] = slots_[at];
      hole = at;
    }
    slots_[hole].place = 0;
    return place;
  }

 private:
  struct Slot {
    Key key{};
    uint64_t place = 0;
  };

  size_t mask() const { return slots_.size() - 1; }
  size_t next(size_t at) const { return (at + 1) & mask(); }

  size_t home(const Key& key) const {
    uint64_t word;
    std::memcpy(&word, key.data(), 8);
    return (word * 0x9e3779b97f4a7c15) >> 20 & mask();
  }

  size_t find(const Key& key) const {
    size_t at = home(key);
    while (slots_[at].place != 0 && slots_[at].key != key) at = next(at);
    return at;
  }

  void grow() {
    std::vector<Slot> before(2 * slots_.size());
    before.swap(slots_);
    for (const Slot& slot : before)
      if (slot.place != 0) slots_[find(slot.key)] = slot;
  }

  std::vector<Slot> slots_ = std::vector<Slot>(64);
  size_t size_ = 0;
};

}  // namespace hostless
