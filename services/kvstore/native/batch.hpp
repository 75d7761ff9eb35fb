// What reading and writing a batch of blocks have in common: a bounded number of transfers under way, refilled before
// anything else is done, so that checksums are computed while the disk works.
#pragma once

#include <deque>
#include <span>
#include <vector>

#include "arena.hpp"
#include "device.hpp"

namespace hostless {

constexpr size_t kDirect = 4 << 20;  // most bytes of a transfer in place
static_assert(kDirect % kBounce == 0);
constexpr size_t kStroke = 1 << 20;  // most bytes of a transfer of several blocks, with their pages

// Outcome of one block: 0, an errno, or one of these.
enum Outcome : int { done_well = 0, not_there = -1, wrong_bytes = -2 };

// Memory that is registered with the device, and under which number.
struct Registered {
  uint8_t* begin;
  size_t bytes;
  int slot;
};

class Channel {
 public:
  Channel(std::unique_ptr<Device> device, unsigned depth) : device_(std::move(device)), arena_(depth), depth_(depth) {
    own_slot_ = device_->add_buffer(0, arena_.base(), arena_.bytes()) ? 0 : -1;
  }

  Device& device() { return *device_; }
  Arena& arena() { return arena_; }
  unsigned depth() const { return depth_; }
  int own_slot() const { return own_slot_; }

 private:
  std::unique_ptr<Device> device_;
  Arena arena_;
  unsigned depth_;
  int own_slot_;
};

inline int slot_of(std::span<const Registered> registered, const uint8_t* memory, size_t bytes) {
  for (const Registered& r : registered)
    if (memory >= r.begin && bytes <= r.bytes && static_cast<size_t>(memory - r.begin) <= r.bytes - bytes)
      return r.slot;
  return -1;
}

inline bool page_aligned(const uint8_t* memory) { return reinterpret_cast<uintptr_t>(memory) % kPage == 0; }

// Transfers of one call. Headers don't count against the depth: they lie beside the bytes that follow them.
class Flights {
 public:
  explicit Flights(Channel& channel) : channel_(channel), transfers_(4 * channel.depth()) {
    for (Transfer& transfer : transfers_) free_.push_back(&transfer);
  }

  bool room_for_header() const { return !free_.empty(); }
  bool room_for_body() const { return !free_.empty() && bodies_ < channel_.depth(); }
  bool none() const { return under_way_ == 0; }

  void send(const Transfer& what) { channel_.device().submit(*begin(what)); }

  // A stroke that is held back a little, as more may follow it in the file.
  void hold(const Transfer& what) {
    depart();
    held_ = begin(what);
  }

  // The held stroke, if two stretches of `bytes` at that place may be added to it.
  Transfer* extensible(const File& file, uint64_t offset, size_t bytes) const {
    bool fits = held_ != nullptr && held_->file.fd == file.fd && held_->offset + held_->bytes == offset &&
                held_->bytes + bytes <= kStroke && held_->count + 2 <= Transfer::kParts;
    return fits ? held_ : nullptr;
  }

  // Sees to it that all that was sent is on its way.
  void start() { channel_.device().flush(); }

  // And what is held.
  void flush() {
    depart();
    start();
  }

  // One that has ended; its room is the next one's, its record the caller's until `end`. After a flush.
  Transfer* receive() {
    Transfer* transfer = channel_.device().wait();
    --under_way_, bodies_ -= transfer->body;
    return transfer;
  }

  void end(Transfer* transfer) { free_.push_back(transfer); }

 private:
  Transfer* begin(const Transfer& what) {
    Transfer* transfer = free_.back();
    free_.pop_back();
    *transfer = what;
    ++under_way_, bodies_ += what.body;
    return transfer;
  }

  void depart() {
    if (held_ != nullptr) channel_.device().submit(*held_);
    held_ = nullptr;
  }

  Channel& channel_;
  std::vector<Transfer> transfers_;
  std::vector<Transfer*> free_;
  Transfer* held_ = nullptr;
  unsigned under_way_ = 0, bodies_ = 0;
};

}  // namespace hostless
