// Which block goes first: each root's unpinned blocks in a list by last use, and the oldest leaf of one or of all.
#pragma once

#include <vector>

#include "entry.hpp"

namespace hostless {

class Ages {
 public:
  Ages(std::vector<IndexEntry>& entries, std::vector<Root>& roots) : entries_(entries), roots_(roots) {}

  // Used now.
  void touch(Slot slot) {
    entries_[slot].recency = ++clock_;
    if (!entries_[slot].listed) return;
    unlist(slot);
    list(slot);
  }

  // A parent is never older than its children, so that the oldest block is a leaf.
  void touch_ancestors(Slot slot) {
    for (Slot at = entries_[slot].parent; at != kNone; at = entries_[at].parent) touch(at);
  }

  // Begins to be listed, as the most recently used.
  void list(Slot slot) {
    IndexEntry& e = entries_[slot];
    Root& r = roots_[e.root];
    e.recency = ++clock_;
    e.older = r.newest, e.newer = kNone;
    (r.newest == kNone ? r.oldest : entries_[r.newest].newer) = slot;
    r.newest = slot;
    e.listed = true;
  }

  // As list, but at its old place by age, which is near the old end.
  void list_again(Slot slot, uint64_t recency) {
    IndexEntry& e = entries_[slot];
    Root& r = roots_[e.root];
    Slot before = kNone, after = r.oldest;
    while (after != kNone && entries_[after].recency < recency) before = after, after = entries_[after].newer;
    e.recency = recency, e.older = before, e.newer = after, e.listed = true;
    (before == kNone ? r.oldest : entries_[before].newer) = slot;
    (after == kNone ? r.newest : entries_[after].older) = slot;
  }

  void unlist(Slot slot) {
    IndexEntry& e = entries_[slot];
    Root& r = roots_[e.root];
    (e.older == kNone ? r.oldest : entries_[e.older].newer) = e.newer;
    (e.newer == kNone ? r.newest : entries_[e.newer].older) = e.older;
    e.older = e.newer = kNone;
    e.listed = false;
  }

  // Passes over parents whose children are pinned: all others are younger than their children.
  Slot oldest_leaf_of(uint32_t at) const {
    Slot slot = roots_[at].oldest;
    while (slot != kNone && entries_[slot].first_child != kNone) slot = entries_[slot].newer;
    return slot;
  }

  Slot oldest_leaf() const {
    Slot oldest = kNone;
    for (uint32_t at = 0; at < roots_.size(); ++at) {
      if (!roots_[at].users || roots_[at].oldest == kNone) continue;
      if (oldest != kNone && entries_[roots_[at].oldest].recency > entries_[oldest].recency) continue;
      Slot slot = oldest_leaf_of(at);
      if (slot != kNone && (oldest == kNone || entries_[slot].recency < entries_[oldest].recency)) oldest = slot;
    }
    return oldest;
  }

 private:
  std::vector<IndexEntry>& entries_;
  std::vector<Root>& roots_;
  uint64_t clock_ = 0;
};

}  // namespace hostless
