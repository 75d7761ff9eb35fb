// Counts the program's allocations: operators new, and malloc where the C library lets it be replaced.
#pragma once

#include <cstdlib>
#include <new>

inline std::size_t allocations = 0;

#ifndef ALLOCATIONS_NOT_COUNTED  // sanitizers have an allocator of their own
extern "C" void* __libc_malloc(std::size_t size);
extern "C" void* malloc(std::size_t size) {  // realloc, calloc and aligned_alloc are not what C++ containers use
  ++allocations;
  return __libc_malloc(size);
}

void* operator new(std::size_t size, std::align_val_t alignment) {
  ++allocations;
  const std::size_t line = static_cast<std::size_t>(alignment);
  if (void* memory = std::aligned_alloc(line, (size + line - 1) / line * line)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
#endif
