// A channel's own memory, registered once: pages for headers, and buffers for what can't be transferred in place.
#pragma once

#include <sys/mman.h>

#include <cerrno>
#include <system_error>
#include <vector>

#include "record.hpp"

namespace hostless {

constexpr size_t kBounce = 256 << 10;  // whole pieces of any block
static_assert(kBounce % piece_bytes(kLargestBlock) == 0);
constexpr unsigned kPagesEach = 8;  // pages for each transfer under way, which may be of so many blocks

class Arena {
 public:
  explicit Arena(unsigned depth) : bytes_(depth * (kPagesEach * kPage + kBounce)) {
    void* at = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "memory of a channel");
    base_ = static_cast<uint8_t*>(at);
    for (unsigned i = 0; i < depth; ++i) bounces.push_back(base_ + i * kBounce);
    for (unsigned i = 0; i < kPagesEach * depth; ++i) pages.push_back(base_ + depth * kBounce + i * kPage);
  }
  ~Arena() { munmap(base_, bytes_); }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  uint8_t* base() const { return base_; }
  size_t bytes() const { return bytes_; }

  std::vector<uint8_t*> pages, bounces;  // those that are free

 private:
  size_t bytes_;
  uint8_t* base_ = nullptr;
};

inline uint8_t* take(std::vector<uint8_t*>& free) {
  if (free.empty()) return nullptr;
  uint8_t* memory = free.back();
  free.pop_back();
  return memory;
}

}  // namespace hostless
