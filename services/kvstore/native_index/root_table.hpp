// Roots by key. A root is there as long as a block or a reservation names it; then its place is another's.
#pragma once

#include <unordered_map>
#include <vector>

#include "entry.hpp"

namespace hostless {

class RootTable {
 public:
  // One user more. Returns its place.
  uint32_t enter(const Key& key) {
    auto [found, fresh] = by_key_.try_emplace(key, static_cast<uint32_t>(places_.size()));
    if (fresh) {
      if (!free_.empty()) {
        found->second = free_.back();
        free_.pop_back();
        places_[found->second] = Root{};
      } else {
        places_.emplace_back();
      }
      places_[found->second].key = key;
    }
    ++places_[found->second].users;
    return found->second;
  }

  // One user less.
  void leave(uint32_t at) {
    if (--places_[at].users) return;
    by_key_.erase(places_[at].key);
    free_.push_back(at);
  }

  Root& operator[](uint32_t at) { return places_[at]; }
  const Root& operator[](uint32_t at) const { return places_[at]; }

  // Throws std::out_of_range where none of this key is there.
  uint32_t place_of(const Key& key) const { return by_key_.at(key); }

  size_t size() const { return by_key_.size(); }
  size_t memory() const { return places_.capacity() * sizeof(Root); }

  // By place; those without users are free.
  std::vector<Root>& places() { return places_; }
  const std::vector<Root>& places() const { return places_; }

 private:
  std::vector<Root> places_;
  std::vector<uint32_t> free_;
  std::unordered_map<Key, uint32_t, KeyHash> by_key_;
};

}  // namespace hostless
