// Memory of a file that a peer maps too, and may cut short at any time. Touching what it took away is a SIGBUS, which
// would end this process. In guarded memory, a page of zeros takes its place, for this process alone: what is then read
// there has no checksum or right that holds, so the peer's request fails and nothing else.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <mutex>
#include <utility>

#include "record.hpp"

namespace hostless {

class LostPages {
 public:
  // False: too much is guarded already.
  static bool guard(const uint8_t* memory, size_t bytes) {
    std::lock_guard hold(lock_);
    static const bool installed = install();
    for (Range& range : ranges_) {
      if (range.begin.load() != 0) continue;
      range.end.store(round_up(address(memory) + bytes, kPage));
      range.begin.store(address(memory) / kPage * kPage);
      return installed;
    }
    return false;
  }

  // Before the memory is unmapped. Idempotent.
  static void unguard(const uint8_t* memory) {
    std::lock_guard hold(lock_);
    for (Range& range : ranges_)
      if (range.begin.load() == address(memory) / kPage * kPage) return range.begin.store(0);
  }

 private:
  struct Range {
    std::atomic<uintptr_t> begin, end;  // begin 0: free
  };

  static uintptr_t address(const uint8_t* memory) { return reinterpret_cast<uintptr_t>(memory); }

  static bool install() {
    struct sigaction ours{};
    ours.sa_sigaction = &lost;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&ours.sa_mask);
    return sigaction(SIGBUS, &ours, &before_) == 0;
  }

  // On the thread that touched the page, which then goes on.
  static void lost(int signal, siginfo_t* info, void*) {
    int error = errno;
    bool sent = info->si_code <= 0;  // by a process
    if (sent || !replace(reinterpret_cast<uintptr_t>(info->si_addr))) {
      sigaction(SIGBUS, &before_, nullptr);  // as if we had not been there, once the touch is tried again
      if (sent) raise(signal);
    }
    errno = error;
  }

  static bool replace(uintptr_t at) {
    for (const Range& range : ranges_) {
      uintptr_t begin = range.begin.load();
      if (begin == 0 || at < begin || at >= range.end.load()) continue;
      void* page = reinterpret_cast<void*>(at / kPage * kPage);
      return mmap(page, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == page;
    }
    return false;
  }

  static inline std::mutex lock_;
  static inline Range ranges_[1024];
  static inline struct sigaction before_{};
};

}  // namespace hostless
