// _index: block_index.hpp for Python. Keys travel as bytes, 16 a key; sets of pinned blocks as opaque bytes.
#include <nanobind/nanobind.h>

#include <string>

#include "block_index.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace hostless;

namespace {

constexpr size_t kKeyBytes = sizeof(Key);

Key key_of(const nb::bytes& bytes) {
  if (bytes.size() != kKeyBytes) throw nb::value_error("a key has 16 bytes");
  Key key;
  std::memcpy(key.data(), bytes.c_str(), kKeyBytes);
  return key;
}

// The keys that lie in `bytes`, without a copy.
std::pair<const Key*, size_t> keys_in(const nb::bytes& bytes) {
  if (bytes.size() % kKeyBytes) throw nb::value_error("keys: their bytes are no multiple of 16");
  return {reinterpret_cast<const Key*>(bytes.c_str()), bytes.size() / kKeyBytes};
}

nb::bytes to_bytes(const Key& key) { return nb::bytes(key.data(), kKeyBytes); }

nb::list to_list(const std::vector<Key>& keys) {
  nb::list list;
  for (const Key& key : keys) list.append(to_bytes(key));
  return list;
}

nb::tuple stored_tuple(const BlockIndex& index, const IndexEntry& e) {
  return nb::make_tuple(to_bytes(e.key), to_bytes(index.parent_key(e)), e.position, e.length);
}

std::pair<const Slot*, size_t> slots_in(const nb::bytes& pins) {
  if (pins.size() % sizeof(Slot)) throw nb::value_error("these are no pins");
  return {reinterpret_cast<const Slot*>(pins.c_str()), pins.size() / sizeof(Slot)};
}

Found found_of(const nb::bytes& key, const nb::bytes& parent, uint32_t position, uint32_t length, uint32_t size) {
  return Found{key_of(key), key_of(parent), position, length, size, 0};
}

nb::bytes run(BlockIndex& index, const nb::bytes& keys) {
  auto [first, count] = keys_in(keys);
  std::vector<Slot> found;
  index.run(first, count, found);
  return nb::bytes(found.data(), found.size() * sizeof(Slot));
}

size_t hit(BlockIndex& index, const nb::bytes& keys) {
  auto [first, count] = keys_in(keys);
  std::vector<Slot> found;
  return index.run(first, count, found);
}

nb::object get(const BlockIndex& index, const nb::bytes& key) {
  Slot slot = index.find(key_of(key));
  return slot == kNone ? nb::none() : nb::object(stored_tuple(index, index.entry(slot)));
}

// (key, parent, position, length) of pinned blocks; none in place of one that was lost meanwhile.
nb::list pinned(const BlockIndex& index, const nb::bytes& pins, size_t first, size_t count) {
  auto [slots, total] = slots_in(pins);
  if (first > total || count > total - first) throw nb::index_error("more blocks than are pinned");
  nb::list list;
  for (size_t i = first; i < first + count; ++i) {
    const IndexEntry& e = index.entry(slots[i]);
    list.append(e.stored ? nb::object(stored_tuple(index, e)) : nb::none());
  }
  return list;
}

nb::object reserve(BlockIndex& index, uint64_t size, const nb::bytes& root) {
  std::vector<Key> evicted;
  if (!index.reserve(size, key_of(root), evicted)) return nb::none();
  return to_list(evicted);
}

// Root key of the chain that a block with this parent and position is in; none when the parent is not here.
nb::object root_of(const BlockIndex& index, const nb::bytes& parent, uint32_t position) {
  if (position == 0) return parent;
  Slot slot = index.find(key_of(parent));
  if (slot == kNone) return nb::none();
  return to_bytes(index.root(index.entry(slot).root).key);
}

nb::list rebuild(BlockIndex& index, const nb::bytes& records) {
  if (records.size() % sizeof(Found)) throw nb::value_error("records of a scan have 48 bytes each");
  std::vector<Found> found(records.size() / sizeof(Found));
  std::memcpy(found.data(), records.c_str(), records.size());
  std::vector<Key> unwanted;
  index.rebuild(found.data(), found.size(), unwanted);
  return to_list(unwanted);
}

// A page of the blocks, in no order: (next cursor, [(key, parent, position, length, pins, root)]).
nb::tuple page(const BlockIndex& index, size_t cursor, size_t limit) {
  nb::list list;
  size_t at = cursor;
  for (; at < index.slots() && nb::len(list) < limit; ++at) {
    const IndexEntry& e = index.entry(static_cast<Slot>(at));
    if (!e.stored) continue;
    list.append(nb::make_tuple(to_bytes(e.key), to_bytes(index.parent_key(e)), e.position, e.length, e.pins,
                               to_bytes(index.root(e.root).key)));
  }
  return nb::make_tuple(at < index.slots() ? at : 0, list);
}

}  // namespace

NB_MODULE(_index, m) {
  nb::class_<BlockIndex>(m, "BlockIndex")
      .def(nb::init<uint64_t, uint64_t>(), "capacity"_a, "root_quota"_a)
      .def_prop_ro("capacity", &BlockIndex::capacity)
      .def_prop_ro("stored", &BlockIndex::stored)
      .def_prop_ro("reserved", &BlockIndex::reserved)
      .def_prop_ro("used", &BlockIndex::used)
      .def_prop_ro("roots", &BlockIndex::roots)
      .def_prop_ro("memory", &BlockIndex::memory)
      .def("__len__", &BlockIndex::size)
      .def("__contains__",
           [](const BlockIndex& index, const nb::bytes& key) { return index.find(key_of(key)) != kNone; })
      .def("get", &get, "key"_a)
      .def("hit", &hit, "keys"_a)
      .def(
          "pin_run",
          [](BlockIndex& index, const nb::bytes& keys) {
            nb::bytes slots = run(index, keys);
            auto [slot, count] = slots_in(slots);
            for (size_t i = 0; i < count; ++i) index.pin(slot[i]);
            return slots;
          },
          "keys"_a)
      .def(
          "unpin",
          [](BlockIndex& index, const nb::bytes& pins) {
            auto [slot, count] = slots_in(pins);
            index.unpin(slot, count);
          },
          "pins"_a)
      .def("pinned", &pinned, "pins"_a, "first"_a, "count"_a)
      .def(
          "may_follow",
          [](const BlockIndex& index, const nb::bytes& parent, uint32_t position) {
            return index.may_follow(key_of(parent), position);
          },
          "parent"_a, "position"_a)
      .def("root_of", &root_of, "parent"_a, "position"_a)
      .def(
          "add",
          [](BlockIndex& index, const nb::bytes& key, const nb::bytes& parent, uint32_t position, uint32_t length,
             uint32_t size) { index.add(found_of(key, parent, position, length, size)); },
          "key"_a, "parent"_a, "position"_a, "length"_a, "size"_a)
      .def("reserve", &reserve, "size"_a, "root"_a)
      .def(
          "unreserve",
          [](BlockIndex& index, uint64_t size, const nb::bytes& root) { index.unreserve(size, key_of(root)); },
          "size"_a, "root"_a)
      .def(
          "evict",
          [](BlockIndex& index, uint64_t size) {
            std::vector<Key> evicted;
            index.evict(size, evicted);
            return to_list(evicted);
          },
          "size"_a)
      .def(
          "drop",
          [](BlockIndex& index, const nb::bytes& key) {
            std::vector<Key> lost;
            index.drop(key_of(key), lost);
            return to_list(lost);
          },
          "key"_a)
      .def("rebuild", &rebuild, "records"_a)
      .def("page", &page, "cursor"_a, "limit"_a)
      .def("check", &BlockIndex::check);
}
