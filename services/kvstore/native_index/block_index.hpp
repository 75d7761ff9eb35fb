// Which blocks are stored and which may go, in 80 to 97 bytes a block, its share of the hash table included. No I/O, no
// locks.
//
// Two rules hold after every call (`check` proves them): a block whose position is above 0 has its parent here, and
// `used` never exceeds `capacity`. So eviction takes leaves, least recently used first, and a chain found from its
// first key has no holes.
#pragma once

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "ages.hpp"
#include "root_table.hpp"
#include "slot_table.hpp"

namespace hostless {

class BlockIndex {
 public:
  BlockIndex(uint64_t capacity, uint64_t root_quota) : capacity_(capacity), quota_(root_quota) {}
  BlockIndex(const BlockIndex&) = delete;
  BlockIndex& operator=(const BlockIndex&) = delete;

  uint64_t capacity() const { return capacity_; }
  uint64_t stored() const { return stored_; }
  uint64_t reserved() const { return reserved_; }
  uint64_t used() const { return stored_ + reserved_; }
  size_t size() const { return count_; }
  size_t roots() const { return roots_.size(); }
  // Bytes of memory, as allocated.
  size_t memory() const {
    return entries_.capacity() * sizeof(IndexEntry) + table_.memory() + free_.capacity() * sizeof(Slot) +
           roots_.memory();
  }

  Slot find(const Key& key) const { return table_.find(key); }

  const IndexEntry& entry(Slot slot) const { return entries_.at(slot); }
  const Root& root(uint32_t at) const { return roots_.places().at(at); }
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
    for (size_t i = found.size(); i-- > 0;) ages_.touch(found[i]);
    if (!found.empty()) ages_.touch_ancestors(found[0]);
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
    ages_.touch_ancestors(insert(f));
  }

  void pin(Slot slot) {
    IndexEntry& e = entries_.at(slot);
    if (e.pins++ == 0 && e.listed) ages_.unlist(slot);
  }

  // Undoes the pins of a run. Blocks that nobody pins any more, and are still stored, become the most recently used.
  void unpin(const Slot* run, size_t count) {
    for (size_t i = count; i-- > 0;) unpin(run[i]);
    if (count && entries_[run[0]].stored) ages_.touch_ancestors(run[0]);
  }

  // Reserves `size` bytes for a block of the chain that starts at `root`. False, and nothing was evicted: larger than
  // the store or the root's quota, or the rest is pinned. `evicted`: whose bytes must go before the room is used.
  bool reserve(uint64_t size, const Key& root, std::vector<Key>& evicted) {
    evicted.clear();
    if (size > capacity_ || size > quota_) return false;
    uint32_t at = roots_.enter(root);
    std::vector<std::pair<Found, uint64_t>> undo;
    while (roots_[at].bytes + roots_[at].reserved + size > quota_ || used() + size > capacity_) {
      bool over = roots_[at].bytes + roots_[at].reserved + size > quota_;
      Slot victim = over ? ages_.oldest_leaf_of(at) : ages_.oldest_leaf();
      if (victim == kNone) {
        for (size_t i = undo.size(); i-- > 0;) restore(undo[i].first, undo[i].second);
        evicted.clear();
        roots_.leave(at);
        return false;
      }
      undo.emplace_back(as_found(entries_[victim]), entries_[victim].recency);
      evicted.push_back(entries_[victim].key);
      remove(victim);
    }
    reserved_ += size;
    roots_[at].reserved += size;
    return true;  // the reservation keeps the root
  }

  void unreserve(uint64_t size, const Key& root) {
    uint32_t at = roots_.place_of(root);
    reserved_ -= size;
    roots_[at].reserved -= size;
    roots_.leave(at);
  }

  // Evicts `size` bytes or a little more, leaves first, or as much as is not pinned.
  void evict(uint64_t size, std::vector<Key>& evicted) {
    evicted.clear();
    for (uint64_t freed = 0; freed < size;) {
      Slot victim = ages_.oldest_leaf();
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
    for (uint32_t at = 0; at < roots_.places().size(); ++at)
      while (roots_[at].bytes > quota_) {
        Slot victim = ages_.oldest_leaf_of(at);
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
    for (const Root& r : roots_.places())
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
    for (Slot slot : slots) ages_.touch(slot);
  }

  Found as_found(const IndexEntry& e) const { return Found{e.key, parent_key(e), e.position, e.length, e.size, 0}; }

  void unpin(Slot slot) {
    IndexEntry& e = entries_.at(slot);
    if (e.pins == 0) throw std::logic_error("a block is unpinned that nobody pins");
    if (--e.pins) return;
    if (e.stored)
      ages_.list(slot);
    else
      release(slot);
  }

  Slot insert(const Found& f) {
    table_.make_room(count_ + 1);
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
      e.root = roots_.enter(f.parent);
    } else {
      e.root = entries_[parent].root;
      ++roots_[e.root].users;
      e.next_sibling = entries_[parent].first_child;
      if (e.next_sibling != kNone) entries_[e.next_sibling].previous_sibling = slot;
      entries_[parent].first_child = slot;
    }
    table_.put(slot);
    ++count_;
    stored_ += e.size;
    roots_[e.root].bytes += e.size;
    ++roots_[e.root].blocks;
    ages_.list(slot);
    return slot;
  }

  // Undoes an eviction.
  void restore(const Found& f, uint64_t recency) {
    Slot slot = insert(f);
    ages_.unlist(slot);
    ages_.list_again(slot, recency);
  }

  void remove(Slot slot) {
    IndexEntry& e = entries_[slot];
    table_.take(slot);
    --count_;
    stored_ -= e.size;
    Root& r = roots_[e.root];
    r.bytes -= e.size;
    --r.blocks;
    if (e.listed) ages_.unlist(slot);
    if (e.parent != kNone) {
      if (e.previous_sibling != kNone)
        entries_[e.previous_sibling].next_sibling = e.next_sibling;
      else
        entries_[e.parent].first_child = e.next_sibling;
      if (e.next_sibling != kNone) entries_[e.next_sibling].previous_sibling = e.previous_sibling;
    }
    roots_.leave(e.root);
    e.stored = false;
    if (e.pins == 0) release(slot);  // else the last unpin does
  }

  void release(Slot slot) { free_.push_back(slot); }

  uint64_t capacity_, quota_;
  uint64_t stored_ = 0, reserved_ = 0;
  size_t count_ = 0;
  std::vector<IndexEntry> entries_;
  std::vector<Slot> free_;
  RootTable roots_;
  SlotTable table_{entries_};
  Ages ages_{entries_, roots_.places()};
};

}  // namespace hostless
