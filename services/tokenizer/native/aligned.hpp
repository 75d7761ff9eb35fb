// Memory for tables and arenas: aligned to cache lines, not initialised unless asked for.
#pragma once

#include <sys/mman.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <type_traits>

namespace hostless::bpe {

static_assert(std::endian::native == std::endian::little, "keys are made of bytes as they lie in memory");

inline constexpr std::size_t kLine = 64;
inline constexpr std::size_t kHugePage = 2 << 20;

// A fixed number of T, which must be plain data.
template <class T>
class AlignedArray {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);

 public:
  AlignedArray() = default;
  explicit AlignedArray(std::size_t size)
      : data_(static_cast<T*>(allocate(size * sizeof(T))), Free{alignment(size * sizeof(T))}), size_(size) {}

  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  std::size_t size() const { return size_; }
  std::size_t bytes() const { return size_ * sizeof(T); }
  T& operator[](std::size_t i) { return data_.get()[i]; }
  const T& operator[](std::size_t i) const { return data_.get()[i]; }

 private:
  struct Free {
    std::align_val_t alignment{kLine};
    void operator()(T* memory) const { ::operator delete(memory, alignment); }
  };

  static std::align_val_t alignment(std::size_t bytes) {
    return std::align_val_t{bytes < kHugePage ? kLine : kHugePage};
  }

  // Large arrays are read here and there: on huge pages, each look-up misses one cache and not two.
  static void* allocate(std::size_t bytes) {
    void* memory = ::operator new(bytes, alignment(bytes));
    if (bytes >= kHugePage) madvise(memory, bytes, MADV_HUGEPAGE);  // a wish: it may be refused
    return memory;
  }

  std::unique_ptr<T, Free> data_;
  std::size_t size_ = 0;
};

// Grows to the most that was ever needed and keeps it; what it held is kept only where `keep` says so.
template <class T>
class Scratch {
 public:
  T* need(std::size_t size, std::size_t keep = 0) {
    if (size > array_.size()) grow(size, keep);
    return array_.data();
  }
  T* data() { return array_.data(); }
  std::size_t bytes() const { return array_.bytes(); }

 private:
  void grow(std::size_t size, std::size_t keep) {
    AlignedArray<T> larger(std::bit_ceil(size < kLine ? kLine : size));
    if (keep) std::memcpy(larger.data(), array_.data(), keep * sizeof(T));
    array_ = std::move(larger);
  }
  AlignedArray<T> array_;
};

// The product's halves folded together: one multiplication mixes 128 bits into 64.
inline std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  Wide product = static_cast<Wide>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

template <class T>
inline T load(const std::uint8_t* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

}  // namespace hostless::bpe
