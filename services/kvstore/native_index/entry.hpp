// What the index knows of a block, and of a root.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>

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

}  // namespace hostless
