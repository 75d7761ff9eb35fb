// Operations on a region's bytes, given as any Python buffer: copies that never tear a word, and atomics on words.
// What is out of the buffer raises IndexError, what is misaligned or of the wrong length ValueError.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

namespace hostless {

// Copies of this size and more let other Python threads run meanwhile.
constexpr size_t kReleaseGil = 64 << 10;

inline void inside(uint64_t length, uint64_t offset, uint64_t bytes) {
  if (offset <= length && bytes <= length - offset) return;
  const std::string text = "bytes [" + std::to_string(offset) + ", +" + std::to_string(bytes) + ") of a region of " +
                           std::to_string(length) + " bytes";
  throw nanobind::index_error(text.c_str());
}

[[noreturn]] inline void misaligned(uint64_t offset) {
  const std::string text = "offset " + std::to_string(offset) + " of an 8-byte word is not a multiple of 8";
  throw nanobind::value_error(text.c_str());
}

inline void aligned_word(uint64_t offset) {
  if (offset % 8 != 0) misaligned(offset);
}

inline uint64_t unsigned_of(nanobind::handle value) {
  const unsigned long long number = PyLong_AsUnsignedLongLong(value.ptr());
  if (!PyErr_Occurred()) return number;
  PyErr_Clear();
  throw nanobind::type_error("an offset or word is a number from 0 to 2**64 - 1");
}

// A contiguous buffer of Python's, held while the call lasts.
class Buffer {
 public:
  Buffer(nanobind::handle object, bool writable) {
    if (PyObject_GetBuffer(object.ptr(), &view_, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) != 0)
      throw nanobind::python_error();
  }
  ~Buffer() { PyBuffer_Release(&view_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  size_t size() const { return static_cast<size_t>(view_.len); }

  uint8_t* at(uint64_t offset, uint64_t length) const {
    inside(size(), offset, length);
    return static_cast<uint8_t*>(view_.buf) + offset;
  }

  std::atomic_ref<uint64_t> word(uint64_t offset) const {
    uint8_t* p = at(offset, 8);
    if (reinterpret_cast<uintptr_t>(p) % 8 != 0) misaligned(offset);
    return std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(p));
  }

  // The buffer as an array of T, which must hold `count` of them exactly.
  template <class T>
  T* array(size_t count, const char* name) const {
    if (size() != count * sizeof(T)) {
      std::string text = std::string(name) + " has " + std::to_string(size()) + " bytes, not " + std::to_string(count) +
                         " elements of " + std::to_string(sizeof(T));
      throw nanobind::value_error(text.c_str());
    }
    return static_cast<T*>(view_.buf);
  }

 private:
  Py_buffer view_;
};

template <class Copy>
void copy_gently(size_t bytes, Copy copy) {
  if (bytes < kReleaseGil) return copy();
  nanobind::gil_scoped_release let_others_run;
  copy();
}

inline bool aligned(const void* p, size_t to) { return reinterpret_cast<uintptr_t>(p) % to == 0; }

typedef uint64_t TwoWords __attribute__((vector_size(16), may_alias));

// Plain memcpy may split an 8-byte word; a reader of slot words must never see half of one. Every aligned word of
// `from` arrives whole, whatever the alignment of `to`.
inline void copy_out(uint8_t* from, uint8_t* to, size_t bytes) {
  const size_t lead = std::min<size_t>(bytes, -reinterpret_cast<uintptr_t>(from) % 8);
  std::memcpy(to, from, lead);
  from += lead, to += lead, bytes -= lead;
  auto* source = reinterpret_cast<uint64_t*>(from);
  const size_t words = bytes / 8;
  size_t i = 0;
  const auto one = [&] {
    const uint64_t word = std::atomic_ref<uint64_t>(source[i]).load(std::memory_order_relaxed);
    std::memcpy(to + 8 * i++, &word, 8);
  };
  if (words != 0 && !aligned(from, 16)) one();
  // Both halves of an aligned 16-byte load are whole on x86-64 and on Arm; by single words memory is half as fast.
  for (; i + 8 <= words; i += 8) {
    const auto* wide = reinterpret_cast<const volatile TwoWords*>(source + i);
    const TwoWords a = wide[0], b = wide[1], c = wide[2], d = wide[3];
    uint8_t* target = to + 8 * i;
    std::memcpy(target, &a, 16), std::memcpy(target + 16, &b, 16);
    std::memcpy(target + 32, &c, 16), std::memcpy(target + 48, &d, 16);
  }
  while (i < words) one();
  std::memcpy(to + 8 * words, from + 8 * words, bytes % 8);
  std::atomic_thread_fence(std::memory_order_acquire);
}

inline void copy_in(const uint8_t* from, uint8_t* to, size_t bytes) {
  std::atomic_thread_fence(std::memory_order_release);
  if (bytes == 8 && aligned(to, 8)) {
    uint64_t value;
    std::memcpy(&value, from, 8);
    std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(to)).store(value, std::memory_order_release);
  } else if (bytes == 4 && aligned(to, 4)) {
    uint32_t value;
    std::memcpy(&value, from, 4);
    std::atomic_ref<uint32_t>(*reinterpret_cast<uint32_t*>(to)).store(value, std::memory_order_release);
  } else {
    std::memcpy(to, from, bytes);
  }
}

inline void read_into(nanobind::handle source, uint64_t offset, nanobind::handle out) {
  Buffer from(source, false), to(out, true);
  uint8_t* begin = from.at(offset, to.size());
  copy_gently(to.size(), [&] { copy_out(begin, to.at(0, to.size()), to.size()); });
}

inline void write_from(nanobind::handle target, uint64_t offset, nanobind::handle data) {
  Buffer to(target, true), from(data, false);
  uint8_t* begin = to.at(offset, from.size());
  copy_gently(from.size(), [&] { copy_in(from.at(0, from.size()), begin, from.size()); });
}

// Calls each(piece in the region, piece in the flat buffer, bytes) once every piece is known to be inside both.
template <class Each>
void for_each_piece(const Buffer& region, const Buffer& flat, nanobind::handle offsets, nanobind::handle lengths,
                    Each each) {
  Buffer offset_buffer(offsets, false), length_buffer(lengths, false);
  size_t count = offset_buffer.size() / 8;
  const auto* offset = offset_buffer.array<uint64_t>(count, "offsets");
  const auto* length = length_buffer.array<uint64_t>(count, "lengths");
  uint64_t total = 0;
  for (size_t i = 0; i < count; ++i) {
    region.at(offset[i], length[i]);
    flat.at(total, length[i]);
    total += length[i];
  }
  if (total != flat.size()) throw nanobind::value_error("the lengths don't add up to the flat buffer's bytes");
  copy_gently(total, [&] {
    uint8_t* at = flat.at(0, total);
    for (size_t i = 0; i < count; at += length[i], ++i) each(region.at(offset[i], length[i]), at, length[i]);
  });
}

inline void gather(nanobind::handle source, nanobind::handle offsets, nanobind::handle lengths, nanobind::handle out) {
  Buffer from(source, false), to(out, true);
  for_each_piece(from, to, offsets, lengths, [](uint8_t* piece, uint8_t* flat, size_t n) { copy_out(piece, flat, n); });
}

inline void scatter(nanobind::handle target, nanobind::handle offsets, nanobind::handle lengths,
                    nanobind::handle data) {
  Buffer to(target, true), from(data, false);
  for_each_piece(to, from, offsets, lengths, [](uint8_t* piece, uint8_t* flat, size_t n) { copy_in(flat, piece, n); });
}

inline uint64_t load_acquire_u64(nanobind::handle buffer, uint64_t offset) {
  return Buffer(buffer, false).word(offset).load(std::memory_order_acquire);
}

inline void store_release_u64(nanobind::handle buffer, uint64_t offset, uint64_t value) {
  Buffer(buffer, true).word(offset).store(value, std::memory_order_release);
}

inline void store_release_many(nanobind::handle buffer, nanobind::handle offsets, nanobind::handle values) {
  Buffer target(buffer, true), offset_buffer(offsets, false), value_buffer(values, false);
  size_t count = offset_buffer.size() / 8;
  const auto* offset = offset_buffer.array<uint64_t>(count, "offsets");
  const auto* value = value_buffer.array<uint64_t>(count, "values");
  for (size_t i = 0; i < count; ++i) target.word(offset[i]);  // all or none
  for (size_t i = 0; i < count; ++i) target.word(offset[i]).store(value[i], std::memory_order_release);
}

inline uint64_t compare_exchange_u64(nanobind::handle buffer, uint64_t offset, uint64_t expected, uint64_t desired) {
  Buffer(buffer, true).word(offset).compare_exchange_strong(expected, desired, std::memory_order_acq_rel);
  return expected;
}

inline uint64_t fetch_add_u64(nanobind::handle buffer, uint64_t offset, uint64_t add) {
  return Buffer(buffer, true).word(offset).fetch_add(add, std::memory_order_acq_rel);
}

inline void compare_exchange_many(nanobind::handle buffer, nanobind::handle offsets, nanobind::handle expected,
                                  nanobind::handle desired, nanobind::handle found) {
  Buffer target(buffer, true), offset_buffer(offsets, false), expected_buffer(expected, false);
  Buffer desired_buffer(desired, false), found_buffer(found, true);
  size_t count = offset_buffer.size() / 8;
  const auto* offset = offset_buffer.array<uint64_t>(count, "offsets");
  const auto* old = expected_buffer.array<uint64_t>(count, "expected");
  const auto* next = desired_buffer.array<uint64_t>(count, "desired");
  auto* out = found_buffer.array<uint64_t>(count, "found");
  for (size_t i = 0; i < count; ++i) target.word(offset[i]);  // all are tried, or none
  for (size_t i = 0; i < count; ++i) {
    out[i] = old[i];
    target.word(offset[i]).compare_exchange_strong(out[i], next[i], std::memory_order_acq_rel);
  }
}

}  // namespace hostless
