// Memory of the arrays that encoding returns: kept when an array is gone, so that requests allocate none of it (B15).
#pragma once

#include <bit>
#include <cstdint>
#include <mutex>
#include <new>

#include "aligned.hpp"

namespace hostless::bpe {

class ResultBlocks {
 public:
  // Of the process. Never destroyed: an array may be the last thing that Python lets go.
  static ResultBlocks& all() {
    static ResultBlocks& blocks = *new ResultBlocks;
    return blocks;
  }

  // Room for so many ids; raises bad_alloc.
  std::uint32_t* take(std::size_t count) {
    std::size_t kind = kind_of(count * sizeof(std::uint32_t));
    if (kind < kKinds) {
      std::lock_guard lock(mutex_);
      Kept& kept = kept_[kind];
      if (kept.count) return kept.blocks[--kept.count];
    }
    std::size_t bytes = kind < kKinds ? kLeast << kind : count * sizeof(std::uint32_t);
    return static_cast<std::uint32_t*>(::operator new(bytes, std::align_val_t{kLine}));
  }

  // What take(count) gave.
  void give(std::uint32_t* block, std::size_t count) noexcept {
    std::size_t kind = kind_of(count * sizeof(std::uint32_t));
    if (kind < kKinds) {
      std::lock_guard lock(mutex_);
      Kept& kept = kept_[kind];
      if (kept.count < kMost) {
        kept.blocks[kept.count++] = block;
        return;
      }
    }
    ::operator delete(block, std::align_val_t{kLine});
  }

 private:
  // Blocks of 1 KB, 2 KB, ... to 1 MB, and eight of each at most: 16 MB.
  static constexpr std::size_t kLeast = 1024, kKinds = 11, kMost = 8;
  struct Kept {
    std::uint32_t* blocks[kMost];
    std::size_t count = 0;
  };

  static std::size_t kind_of(std::size_t bytes) {
    return static_cast<std::size_t>(std::bit_width((bytes + kLeast - 1) / kLeast - (bytes > 0)));
  }

  std::mutex mutex_;
  Kept kept_[kKinds];
};

}  // namespace hostless::bpe
