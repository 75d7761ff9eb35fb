// What an owner lets peers do: its regions, and the judgement of a batch of operations on one. No I/O.
#pragma once

#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "tcp_wire.hpp"

namespace hostless::tcp {

struct Region {
  uint8_t* data;
  uint64_t length, rkey;
  uint32_t rights;
};

// The regions that peers may touch. Who holds the lock knows that nobody else does anything to them.
class Regions {
 public:
  std::mutex mutex;

  void publish(uint64_t generation, Region region) {
    std::lock_guard lock(mutex);
    regions_[generation] = region;
  }
  void end(uint64_t generation) {
    std::lock_guard lock(mutex);
    regions_.erase(generation);
  }
  const Region* find(uint64_t generation) const {
    const auto found = regions_.find(generation);
    return found == regions_.end() ? nullptr : &found->second;
  }

 private:
  std::unordered_map<uint64_t, Region> regions_;
};

// Of a whole batch: the first thing that forbids it, or `done`, and then how many bytes it asks for and brings.
// `trusted`: it knows the region's key, and asks for no more rights than the region gives.
struct Judgement {
  Status status = Status::done;
  bool trusted = false;
  uint64_t found = 0, written = 0;
};

// `region` is the one that the head names, nullptr where there is none.
inline Judgement judge(const BatchHead& head, const WireOperation* operations, const Region* region) {
  if (region == nullptr) return {Status::stale};
  if (region->rkey != head.rkey) return {Status::wrong_key};
  if ((head.rights & ~region->rights) != 0) return {Status::no_right};
  Judgement judged{Status::done, true};
  for (uint32_t i = 0; i < head.count; ++i) {
    const WireOperation& operation = operations[i];
    const auto kind = static_cast<Kind>(operation.kind);
    const uint64_t length = operation.length();
    if ((region->rights & right_to(kind)) == 0) return {Status::no_right, true};
    if (atomic(kind) && operation.offset % kWord != 0) return {Status::malformed, true};
    if (operation.offset > region->length || length > region->length - operation.offset)
      return {Status::out_of_bounds, true};
    (kind == Kind::write ? judged.written : judged.found) += length;
  }
  return judged;
}

}  // namespace hostless::tcp
