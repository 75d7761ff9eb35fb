// Channels to the disks, each for one call at a time; files and memory are registered with all of them. Takes its
// requests as Python gives them.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "memory.hpp"
#include "reading.hpp"
#include "threads.hpp"
#include "uring.hpp"
#include "writing.hpp"

namespace hostless {

namespace nb = nanobind;

constexpr unsigned kThreads = 8;
constexpr size_t kLargestRegistered = 1 << 30;  // the kernel's limit
constexpr std::chrono::seconds kTurn{300};      // a call waits so long for a channel: a disk hangs, then

inline const uint8_t* exactly(nb::bytes bytes, size_t size, const char* what) {
  if (bytes.size() != size) {
    std::string text =
        std::string(what) + " has " + std::to_string(size) + " bytes, not " + std::to_string(bytes.size());
    throw nb::value_error(text.c_str());
  }
  return static_cast<const uint8_t*>(bytes.data());
}

inline size_t block_length(size_t length) {
  if (length != 0 && length <= kLargestBlock) return length;
  std::string text = "a block has 1 to " + std::to_string(kLargestBlock) + " bytes, not " + std::to_string(length);
  throw nb::value_error(text.c_str());
}

class Channels {
 public:
  Channels(unsigned count, unsigned depth, const std::string& kind) {
    if (count == 0 || depth == 0 || depth > 1024) throw nb::value_error("at least one channel, of depth 1 to 1024");
    if (kind != "auto" && kind != "io_uring" && kind != "threads")
      throw nb::value_error("kind is auto, io_uring or threads");
    for (unsigned i = 0; i < count; ++i) channels_.push_back(make(depth, kind));
    for (auto& channel : channels_) free_.push_back(channel.get());
    for (int slot = kFileSlots - 1; slot >= 0; --slot) file_slots_.push_back(slot);
    for (int slot = kBufferSlots - 1; slot > 0; --slot) buffer_slots_.push_back(slot);
  }

  const std::string& kind() const { return kind_; }
  const std::string& why() const { return why_; }

  int add_file(int fd) {
    std::lock_guard hold(registry_);
    if (file_slots_.empty()) return -1;
    int slot = file_slots_.back();
    for (auto& channel : channels_)
      if (!channel->device().add_file(slot, fd)) return drop_file_everywhere(slot), -1;
    file_slots_.pop_back();
    return slot;
  }

  void drop_file(int slot) {
    if (slot < 0) return;
    std::lock_guard hold(registry_);
    drop_file_everywhere(slot);
    file_slots_.push_back(slot);
  }

  // Memory stays mapped until it is dropped: its exporter is held.
  bool add_memory(nb::handle object) {
    std::lock_guard hold(registry_);
    auto held = std::make_unique<Buffer>(object, true);
    std::vector<Registered> parts;
    for (size_t at = 0; at < held->size(); at += kLargestRegistered) {
      size_t bytes = std::min(kLargestRegistered, held->size() - at);
      int slot = add_buffer(held->at(at, bytes), bytes);
      if (slot < 0) return drop(parts), false;
      parts.push_back({held->at(at, bytes), bytes, slot});
    }
    if (parts.empty()) return false;
    memories_.push_back({std::move(held), std::move(parts)});
    return true;
  }

  bool drop_memory(nb::handle object) {
    Buffer wanted(object, false);
    std::lock_guard hold(registry_);
    auto found = std::find_if(memories_.begin(), memories_.end(), [&](const Memory& memory) {
      return memory.held->at(0, 0) == wanted.at(0, 0) && memory.held->size() == wanted.size();
    });
    if (found == memories_.end()) return false;
    drop(found->parts);
    memories_.erase(found);
    return true;
  }

  // (fd, slot, offset, identity, begin, into) each; answers an outcome each.
  std::vector<int> read(nb::list requests) {
    std::vector<ReadWork> work;
    std::deque<Buffer> buffers;
    for (nb::handle request : requests) {
      auto [fd, slot, offset, identity, begin, into] =
          nb::cast<std::tuple<int, int, uint64_t, nb::bytes, uint64_t, nb::object>>(request);
      Buffer& buffer = buffers.emplace_back(into, true);
      const uint8_t* name = exactly(identity, kIdentity, "an identity");
      size_t length = block_length(load_u32(name + kLengthAt));
      if (buffer.size() == 0 || begin > length || buffer.size() > length - begin)
        throw nb::index_error("a slice reaches beyond its block, or is empty");
      work.push_back({{fd, slot}, offset, name, begin, buffer.size(), buffer.at(0, buffer.size())});
    }
    return run<Reading>(work);
  }

  // (fd, slot, offset, head, data, crc) each; answers an outcome each.
  std::vector<int> write(nb::list requests) {
    std::vector<WriteWork> work;
    std::deque<Buffer> buffers;
    for (nb::handle request : requests) {
      auto [fd, slot, offset, head, data, crc] =
          nb::cast<std::tuple<int, int, uint64_t, nb::bytes, nb::object, uint32_t>>(request);
      Buffer& buffer = buffers.emplace_back(data, false);
      const uint8_t* begin = exactly(head, kHead, "a head");
      size_t length = block_length(buffer.size());
      if (load_u32(begin + kLengthAt) != length) throw nb::value_error("a head says another length than its data has");
      work.push_back({{fd, slot}, offset, begin, buffer.at(0, length), length, crc});
    }
    return run<Writing>(work);
  }

  // (fd, slot) each; answers 0 or an errno each.
  std::vector<int> sync(const std::vector<std::tuple<int, int>>& files) {
    std::vector<Transfer> transfers;
    for (auto [fd, slot] : files) transfers.push_back({.action = Action::sync, .file = {fd, slot}});
    nb::gil_scoped_release let_others_run;
    Lease lease(*this);
    if (lease.channel == nullptr) return std::vector<int>(files.size(), ETIMEDOUT);
    Device& device = lease.channel->device();
    size_t window = lease.channel->depth();
    for (size_t i = 0; i < transfers.size() + std::min(window, transfers.size()); ++i) {
      if (i >= window || i >= transfers.size()) device.wait();
      if (i < transfers.size()) device.submit(transfers[i]);
    }
    std::vector<int> errors;
    for (const Transfer& transfer : transfers) errors.push_back(transfer.error);
    return errors;
  }

 private:
  struct Memory {
    std::unique_ptr<Buffer> held;
    std::vector<Registered> parts;
  };

  // `channel` is null when none came free in time.
  struct Lease {
    explicit Lease(Channels& owner) : owner(owner) {
      std::unique_lock hold(owner.lock_);
      if (!owner.returned_.wait_for(hold, kTurn, [&] { return !owner.free_.empty(); })) return;
      channel = owner.free_.back();
      owner.free_.pop_back();
    }
    ~Lease() {
      if (channel == nullptr) return;
      {
        std::lock_guard hold(owner.lock_);
        owner.free_.push_back(channel);
      }
      owner.returned_.notify_one();
    }
    Channels& owner;
    Channel* channel = nullptr;
  };

  std::unique_ptr<Channel> make(unsigned depth, const std::string& kind) {
    if (kind != "threads" && why_.empty()) {
      try {
        auto channel = std::make_unique<Channel>(std::make_unique<Uring>(4 * depth), depth);
        kind_ = "io_uring";
        return channel;
      } catch (const std::system_error& error) {
        if (kind == "io_uring") throw;
        why_ = error.what();
      }
    }
    kind_ = "threads";
    return std::make_unique<Channel>(std::make_unique<Threads>(std::min(depth, kThreads)), depth);
  }

  template <class Batch, class Work>
  std::vector<int> run(std::vector<Work>& work) {
    std::vector<Registered> registered;
    {
      std::lock_guard hold(registry_);
      for (const Memory& memory : memories_)
        registered.insert(registered.end(), memory.parts.begin(), memory.parts.end());
    }
    nb::gil_scoped_release let_others_run;
    Lease lease(*this);
    if (lease.channel == nullptr) return std::vector<int>(work.size(), ETIMEDOUT);
    Batch(*lease.channel, registered, work).run();
    std::vector<int> outcomes;
    for (const Work& one : work) outcomes.push_back(one.outcome);
    return outcomes;
  }

  int add_buffer(uint8_t* memory, size_t bytes) {
    if (buffer_slots_.empty()) return -1;
    int slot = buffer_slots_.back();
    for (auto& channel : channels_)
      if (!channel->device().add_buffer(slot, memory, bytes)) {
        for (auto& each : channels_) each->device().drop_buffer(slot);
        return -1;
      }
    buffer_slots_.pop_back();
    return slot;
  }

  void drop(const std::vector<Registered>& parts) {
    for (const Registered& part : parts) {
      for (auto& channel : channels_) channel->device().drop_buffer(part.slot);
      buffer_slots_.push_back(part.slot);
    }
  }

  void drop_file_everywhere(int slot) {
    for (auto& channel : channels_) channel->device().drop_file(slot);
  }

  std::string kind_, why_;
  std::vector<std::unique_ptr<Channel>> channels_;
  std::mutex lock_;
  std::condition_variable returned_;
  std::vector<Channel*> free_;
  std::mutex registry_;
  std::vector<int> file_slots_, buffer_slots_;
  std::vector<Memory> memories_;
};

}  // namespace hostless
