// board.hpp: what the scheduler's team and its watcher tell each other, in shared memory.
#pragma once
#include <cuda/atomic>

#include "control.hpp"
#include "platform.hpp"
#include "tuning.hpp"

namespace hostless {

constexpr uint32_t kTeam = 256, kBlock = kTeam + 32;
constexpr uint32_t kTeamBarrier = 1;
// In ns.
constexpr uint64_t kLongestRest = Tuning::longest_rest_ns, kLongestHurry = 50'000, kGrace = 1'000'000'000;
constexpr uint32_t kLaunchAttempts = 16;

template <class T>
using SystemAtomic = cuda::atomic_ref<T, cuda::thread_scope_system>;
template <class T>
using BlockAtomic = cuda::atomic_ref<T, cuda::thread_scope_block>;

// A word of shared memory that the team and its watcher both touch, by atomic instructions: compute-sanitizer takes
// loads and stores for races, however strong they are. (A swap of 0 for 0 is a look.)
template <class T>
__device__ T look_at(const T& word, cuda::memory_order order = cuda::memory_order_relaxed) {
  T value = 0;
  BlockAtomic<T>(const_cast<T&>(word)).compare_exchange_strong(value, 0, order, order);
  return value;
}
template <class T>
__device__ void tell(T& word, T value, cuda::memory_order order = cuda::memory_order_relaxed) {
  BlockAtomic<T>(word).exchange(value, order);
}

__device__ inline uint64_t device_ns() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

// Words of the board, by index.
struct Watched {
  static constexpr uint32_t doorbells = 0, leases = kFrontEnds, command = 2 * kFrontEnds, orders_tail = command + 1,
                            host_beat = command + 2, count = command + 3;
};

// In shared memory.
struct Board {
  static constexpr uint32_t kForNow = 1, kForGood = 2;
  uint64_t seen[Watched::count];
  uint64_t broadcast[2];
  uint32_t version;  // grows whenever a word has changed
  uint32_t leaves;   // 0; kForNow or kForGood when the team has ended
  uint32_t ending;   // Ending that the watcher asks for; 0 none
  uint32_t hurries;  // the team is between two steps
};

// In device memory, from one execution to the next of a scheduler that is built to need it.
struct Kept {
  uint64_t seen[Watched::count];  // by the watcher, of all words
  uint32_t looked;                // 1: they are there
  uint32_t over;                  // 1: it has ended for good
};
static __device__ Kept kept;

}  // namespace hostless
