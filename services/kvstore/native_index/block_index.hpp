// Which blocks are stored and which may go, in 80 to 97 bytes a block, its share of the hash table included. No I/O, no
// locks.
//
// Two rules hold after every call (`check` proves them): a block whose position is above 0 has its parent here, and
// `used` never exceeds `capacity`. So eviction takes leaves, least recently used first, and a chain found from its
// first key has no holes.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

namespace hostless {

using Key = std::array<uint8_t, 16>;
using Slot = uint32_t;
constexpr Slot kNone = UINT32_MAX;

inline uint64_t hash_of(const Key& key) {  // keys are digests: their bytes are random already
  uint64_t h;
  std::memcpy(&h, key.data(), 8);
  return h;
}

struct KeyHash {
  size_t operator()(const Key& key) const { return hash_of(key); }
};

struct IndexEntry {
  Key key;
  uint64_t recency = 0;
  Slot parent = kNone;  // the block before it; none at position 0
  uint32_t root = 0;  // of its chain: who is charged for it
  uint32_t position = 0;
  uint32_t length = 0;  // bytes of payload
  uint32_t size = 0;  // bytes that it takes where it is stored
  uint32_t pins = 0;
  Slot older = kNone, newer = kNone;  // in its root's list of unpinned blocks
  Slot first_child = kNone, next_sibling = kNone, previous_sibling = kNone;
  bool stored = false;  // false: free, or lost while pinned
  bool listed = false;
};
static_assert(sizeof(IndexEntry) == 72);

// The chains of one model, layout and tenant share a root key; a root's unpinned blocks are a list by last use.
struct Root {
  Key key;
  uint64_t bytes = 0, reserved = 0, blocks = 0;
  Slot oldest = kNone, newest = kNone;
  uint64_t users = 0;  // entries and reservations that name it
};

// What a scan of a store's disk tells of a block.
struct Found {
  Key key, parent;
  uint32_t position, length, size, padding;
};
static_assert(sizeof(Found) == 48);

class BlockIndex {
 public:
  BlockIndex(uint64_t capacity, uint64_t root_quota) : capacity_(capacity), quota_(root_quota) { grow_table(64); }

  uint64_t capacity() const { return capacity_; }
  uint64_t stored() const { return stored_; }
  uint64_t reserved() const { return reserved_; }
  uint64_t used() const { return stored_ + reserved_; }
  size_t size() const { return count_; }
  size_t roots() const { return root_of_key_.size(); }
  // Bytes of memory, as allocated.
  size_t memory() const {
    return entries_.capacity() * sizeof(IndexEntry) + table_.capacity() * sizeof(Slot) +
           free_.capacity() * sizeof(Slot) + roots_.capacity() * sizeof(Root);
  }

  Slot find(const Key& key) const {
    for (size_t at = hash_of(key) & mask_;; at = (at + 1) & mask_) {
      Slot slot = table_[at];
      if (slot == kNone || entries_[slot].key == key) return slot;
    }
  }

  const IndexEntry& entry(Slot slot) const { return entries_.at(slot); }
  const Root& root(uint32_t at) const { return roots_.at(at); }
  size_t slots() const { return entries_.size(); }
  const Key& parent_key(const IndexEntry& e) const {
    return e.parent == kNone ? roots_[e.root].key : entries_[e.parent].key;
  }

  // The longest run of `keys`, from the first, that is stored; now the most recently used, parents last.
  size_t run(const Key* keys, size_t count, std::vector<Slot>& found) {
    found.clear();
    for (size_t i = 0; i < count; ++i) {
      Slot slot = find(keys[i]);
      if (slot == kNone) break;
      found.push_back(slot);
    }
    for (size_t i = found.size(); i-- > 0;) touch(found[i]);
    if (!found.empty()) touch_ancestors(found[0]);
    return found.size();
  }

  bool may_follow(const Key& parent, uint32_t position) const {
    if (position == 0) return true;
    Slot slot = find(parent);
    return slot != kNone && entries_[slot].position == position - 1;
  }

  // Makes a block visible. Its room was reserved and is given back, or is free.
  void add(const Found& f) {
    if (find(f.key) != kNone || !may_follow(f.parent, f.position))
      throw std::invalid_argument("the block is here already, or its parent is not");
    if (used() + f.size > capacity_) throw std::invalid_argument("no room is reserved for the block");
    touch_ancestors(insert(f));
  }

  void pin(Slot slot) {
    IndexEntry& e = entries_.at(slot);
    if (e.pins++ == 0 && e.listed) unlist(slot);
  }

  // Undoes the pins of a run. Blocks that nobody pins any more, and are still stored, become the most recently used.
  void unpin(const Slot* run, size_t count) {
    for (size_t i = count; i-- > 0;) unpin(run[i]);
    if (count && entries_[run[0]].stored) touch_ancestors(run[0]);
  }

  // Reserves `size` bytes for a block of the chain that starts at `root`. False, and nothing was evicted: larger than
  // the store or the root's quota, or the rest is pinned. `evicted`: whose bytes must go before the room is used.
  bool reserve(uint64_t size, const Key& root, std::vector<Key>& evicted) {
    evicted.clear();
    if (size > capacity_ || size > quota_) return false;
    uint32_t at = intern(root);
    std::vector<std::pair<Found, uint64_t>> undo;
    while (roots_[at].bytes + roots_[at].reserved + size > quota_ || used() + size > capacity_) {
      bool over = roots_[at].bytes + roots_[at].reserved + size > quota_;
      Slot victim = over ? oldest_leaf_of(at) : oldest_leaf();
      if (victim == kNone) {
        for (size_t i = undo.size(); i-- > 0;) restore(undo[i].first, undo[i].second);
        evicted.clear();
        leave(at);
        return false;
      }
      undo.emplace_back(as_found(entries_[victim]), entries_[victim].recency);
      evicted.push_back(entries_[victim].key);
      remove(victim);
    }
    reserved_ += size;
    roots_[at].reserved += size;
    return true;  // the reservation keeps the root interned
  }

  void unreserve(uint64_t size, const Key& root) {
    uint32_t at = root_of_key_.at(root);
    reserved_ -= size;
    roots_[at].reserved -= size;
    leave(at);
  }

  // Evicts `size` bytes or a little more, leaves first, or as much as is not pinned.
  void evict(uint64_t size, std::vector<Key>& evicted) {
    evicted.clear();
    for (uint64_t freed = 0; freed < size;) {
      Slot victim = oldest_leaf();
      if (victim == kNone) return;
      freed += entries_[victim].size;
      evicted.push_back(entries_[victim].key);
      remove(victim);
    }
  }

  // Removes a lost block and all that hangs on it, pinned or not; children before parents.
  void drop(const Key& key, std::vector<Key>& lost) {
    lost.clear();
    Slot top = find(key);
    if (top == kNone) return;
    std::vector<Slot> order{top};
    for (size_t i = 0; i < order.size(); ++i)
      for (Slot child = entries_[order[i]].first_child; child != kNone; child = entries_[child].next_sibling)
        order.push_back(child);
    for (size_t i = order.size(); i-- > 0;) {
      lost.push_back(entries_[order[i]].key);
      remove(order[i]);
    }
  }

  // Takes in what a scan found, least recently used first. `unwanted`: without a parent, twice there, or too many;
  // children come before parents.
  void rebuild(const Found* found, size_t count, std::vector<Key>& unwanted) {
    unwanted.clear();
    std::vector<uint32_t> order(count);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](uint32_t a, uint32_t b) { return found[a].position < found[b].position; });
    uint64_t limit = capacity_;
    capacity_ = UINT64_MAX;
    for (uint32_t at : order) {
      if (find(found[at].key) == kNone && may_follow(found[at].parent, found[at].position))
        insert(found[at]);
      else
        unwanted.push_back(found[at].key);
    }
    std::reverse(unwanted.begin(), unwanted.end());
    list_by_age(found, count, order);
    capacity_ = limit;
    std::vector<Key> evicted;
    for (uint32_t at = 0; at < roots_.size(); ++at)
      while (roots_[at].bytes > quota_) {
        Slot victim = oldest_leaf_of(at);
        evicted.push_back(entries_[victim].key);
        remove(victim);
      }
    unwanted.insert(unwanted.end(), evicted.begin(), evicted.end());
    if (stored_ > capacity_) {
      evict(stored_ - capacity_, evicted);
      unwanted.insert(unwanted.end(), evicted.begin(), evicted.end());
    }
  }

  // Throws std::logic_error unless the rules hold and the sums are right.
  void check() const {
    uint64_t bytes = 0, children = 0, linked = 0;
    size_t count = 0;
    for (Slot slot = 0; slot < entries_.size(); ++slot) {
      const IndexEntry& e = entries_[slot];
      if (!e.stored) continue;
      ++count;
      bytes += e.size;
      require(find(e.key) == slot, "a block is not found under its key");
      require(e.listed == (e.pins == 0), "a block is evictable and pinned, or neither");
      if (e.parent != kNone) {
        ++children;
        require(entries_[e.parent].stored && entries_[e.parent].position + 1 == e.position,
                "a block outlived its parent");
      } else {
        require(e.position == 0, "a block without a parent is not the first of its chain");
      }
      for (Slot c = e.first_child; c != kNone; c = entries_[c].next_sibling) {
        ++linked;
        require(entries_[c].parent == slot, "a child has another parent");
      }
    }
    require(children == linked, "children are not linked");
    require(count == count_ && bytes == stored_, "the sums are wrong");
    require(used() <= capacity_, "more is used than there is");
    uint64_t of_roots = 0;
    for (const Root& r : roots_)
      if (r.users) of_roots += r.bytes;
    require(of_roots == stored_, "the sums of the roots are wrong");
  }

 private:
  static void require(bool holds, const char* what) {
    if (!holds) throw std::logic_error(what);
  }

  // After a rebuild: a block counts as used when it or the last of its descendants was. `order`: by position.
  void list_by_age(const Found* found, size_t count, const std::vector<uint32_t>& order) {
    std::vector<size_t> age(entries_.size(), 0);
    for (size_t i = 0; i < count; ++i)
      if (Slot slot = find(found[i].key); slot != kNone) age[slot] = i;
    for (size_t i = count; i-- > 0;) {
      Slot slot = find(found[order[i]].key);
      if (slot == kNone || entries_[slot].parent == kNone) continue;
      size_t& of_parent = age[entries_[slot].parent];
      of_parent = std::max(of_parent, age[slot]);
    }
    std::vector<Slot> slots;
    for (Slot slot = 0; slot < entries_.size(); ++slot)
      if (entries_[slot].stored) slots.push_back(slot);
    std::sort(slots.begin(), slots.end(), [&](Slot a, Slot b) {
      return age[a] != age[b] ? age[a] < age[b] : entries_[a].position > entries_[b].position;
    });
    for (Slot slot : slots) touch(slot);
  }

  Found as_found(const IndexEntry& e) const { return Found{e.key, parent_key(e), e.position, e.length, e.size, 0}; }

  void unpin(Slot slot) {
    IndexEntry& e = entries_.at(slot);
    if (e.pins == 0) throw std::logic_error("a block is unpinned that nobody pins");
    if (--e.pins) return;
    if (e.stored)
      list_newest(slot);
    else
      release(slot);
  }

  uint32_t intern(const Key& root) {
    auto [found, fresh] = root_of_key_.try_emplace(root, static_cast<uint32_t>(roots_.size()));
    if (fresh) {
      if (!free_roots_.empty()) {
        found->second = free_roots_.back();
        free_roots_.pop_back();
        roots_[found->second] = Root{};
      } else {
        roots_.emplace_back();
      }
      roots_[found->second].key = root;
    }
    ++roots_[found->second].users;
    return found->second;
  }

  void leave(uint32_t at) {
    if (--roots_[at].users) return;
    root_of_key_.erase(roots_[at].key);
    free_roots_.push_back(at);
  }

  Slot insert(const Found& f) {
    if (2 * (count_ + 1) > table_.size()) grow_table(2 * table_.size());
    Slot slot;
    if (free_.empty()) {
      slot = static_cast<Slot>(entries_.size());
      if (entries_.size() == entries_.capacity())  // an eighth, so that hardly more is taken than is needed
        entries_.reserve(entries_.size() + entries_.size() / 8 + 64);
      entries_.emplace_back();
    } else {
      slot = free_.back();
      free_.pop_back();
      entries_[slot] = IndexEntry{};
    }
    Slot parent = f.position ? find(f.parent) : kNone;
    IndexEntry& e = entries_[slot];
    e.key = f.key, e.parent = parent, e.position = f.position, e.length = f.length, e.size = f.size, e.stored = true;
    if (parent == kNone) {
      e.root = intern(f.parent);
    } else {
      e.root = entries_[parent].root;
      ++roots_[e.root].users;
      e.next_sibling = entries_[parent].first_child;
      if (e.next_sibling != kNone) entries_[e.next_sibling].previous_sibling = slot;
      entries_[parent].first_child = slot;
    }
    put(slot);
    ++count_;
    stored_ += e.size;
    roots_[e.root].bytes += e.size;
    ++roots_[e.root].blocks;
    list_newest(slot);
    return slot;
  }

  // Undoes an eviction: back at its old place by age, which is near the old end.
  void restore(const Found& f, uint64_t recency) {
    Slot slot = insert(f);
    unlist(slot);
    Root& r = roots_[entries_[slot].root];
    Slot before = kNone, after = r.oldest;
    while (after != kNone && entries_[after].recency < recency) before = after, after = entries_[after].newer;
    IndexEntry& e = entries_[slot];
    e.recency = recency, e.older = before, e.newer = after, e.listed = true;
    (before == kNone ? r.oldest : entries_[before].newer) = slot;
    (after == kNone ? r.newest : entries_[after].older) = slot;
  }

  void remove(Slot slot) {
    IndexEntry& e = entries_[slot];
    take(slot);
    --count_;
    stored_ -= e.size;
    Root& r = roots_[e.root];
    r.bytes -= e.size;
    --r.blocks;
    if (e.listed) unlist(slot);
    if (e.parent != kNone) {
      if (e.previous_sibling != kNone)
        entries_[e.previous_sibling].next_sibling = e.next_sibling;
      else
        entries_[e.parent].first_child = e.next_sibling;
      if (e.next_sibling != kNone) entries_[e.next_sibling].previous_sibling = e.previous_sibling;
    }
    leave(e.root);
    e.stored = false;
    if (e.pins == 0) release(slot);  // else the last unpin does
  }

  void release(Slot slot) { free_.push_back(slot); }

  void touch(Slot slot) {
    entries_[slot].recency = ++clock_;
    if (!entries_[slot].listed) return;
    unlist(slot);
    list_newest(slot);
  }

  // A parent is never older than its children, so that the oldest block is a leaf.
  void touch_ancestors(Slot slot) {
    for (Slot at = entries_[slot].parent; at != kNone; at = entries_[at].parent) touch(at);
  }

  void list_newest(Slot slot) {
    IndexEntry& e = entries_[slot];
    Root& r = roots_[e.root];
    e.recency = ++clock_;
    e.older = r.newest, e.newer = kNone;
    (r.newest == kNone ? r.oldest : entries_[r.newest].newer) = slot;
    r.newest = slot;
    e.listed = true;
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

  void put(Slot slot) {
    size_t at = hash_of(entries_[slot].key) & mask_;
    while (table_[at] != kNone) at = (at + 1) & mask_;
    table_[at] = slot;
  }

  // Closes the gap, so that probing never meets tombstones.
  void take(Slot slot) {
    size_t gap = hash_of(entries_[slot].key) & mask_;
    while (table_[gap] != slot) gap = (gap + 1) & mask_;
    for (size_t at = (gap + 1) & mask_; table_[at] != kNone; at = (at + 1) & mask_) {
      size_t home = hash_of(entries_[table_[at]].key) & mask_;
      if (((at - home) & mask_) < ((at - gap) & mask_)) continue;
      table_[gap] = table_[at];
      gap = at;
    }
    table_[gap] = kNone;
  }

  void grow_table(size_t size) {
    std::vector<Slot> old = std::move(table_);
    table_.assign(size, kNone);
    mask_ = size - 1;
    for (Slot slot : old)
      if (slot != kNone) put(slot);
  }

  uint64_t capacity_, quota_;
  uint64_t stored_ = 0, reserved_ = 0, clock_ = 0;
  size_t count_ = 0, mask_ = 0;
  std::vector<IndexEntry> entries_;
  std::vector<Slot> free_;
  std::vector<Slot> table_;
  std::vector<Root> roots_;
  std::vector<uint32_t> free_roots_;
  std::unordered_map<Key, uint32_t, KeyHash> root_of_key_;
};

}  // namespace hostless
