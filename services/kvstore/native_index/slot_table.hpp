// Entries by key: their slots in a hash table of which half is taken at most. Linear probing; what is removed leaves no
// mark, as those behind it move up.
#pragma once

#include <utility>
#include <vector>

#include "entry.hpp"

namespace hostless {

class SlotTable {
 public:
  explicit SlotTable(const std::vector<IndexEntry>& entries) : entries_(entries) { resize(64); }

  size_t memory() const { return table_.capacity() * sizeof(Slot); }

  Slot find(const Key& key) const {
    for (size_t at = hash_of(key) & mask_;; at = next(at)) {
      Slot slot = table_[at];
      if (slot == kNone || entries_[slot].key == key) return slot;
    }
  }

  // Room for so many.
  void make_room(size_t count) {
    if (2 * count > table_.size()) resize(2 * table_.size());
  }

  // There must be room, and no other entry of that key.
  void put(Slot slot) {
    size_t at = home(slot);
    while (table_[at] != kNone) at = next(at);
    table_[at] = slot;
  }

  void take(Slot slot) {
    size_t gap = home(slot);
    while (table_[gap] != slot) gap = next(gap);
    for (size_t at = next(gap); table_[at] != kNone; at = next(at)) {
      if (((at - home(table_[at])) & mask_) < ((at - gap) & mask_)) continue;  // it would come before its home
      table_[gap] = table_[at];
      gap = at;
    }
    table_[gap] = kNone;
  }

 private:
  size_t next(size_t at) const { return (at + 1) & mask_; }
  size_t home(Slot slot) const { return hash_of(entries_[slot].key) & mask_; }

  void resize(size_t size) {
    std::vector<Slot> before = std::exchange(table_, std::vector<Slot>(size, kNone));
    mask_ = size - 1;
    for (Slot slot : before)
      if (slot != kNone) put(slot);
  }

  const std::vector<IndexEntry>& entries_;
  std::vector<Slot> table_;
  size_t mask_ = 0;
};

}  // namespace hostless
