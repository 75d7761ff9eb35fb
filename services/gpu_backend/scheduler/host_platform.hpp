// host_platform.hpp: a Platform of one host thread.
#pragma once
#include "core.hpp"

namespace hostless {

// The memory operations that any host platform needs, with named orders: right on Arm as on x86.
struct HostAtomics {
  template <class T>
  static T load_acquire(const T* at) {
    return __atomic_load_n(at, __ATOMIC_ACQUIRE);
  }
  template <class T>
  static T load_relaxed(const T* at) {
    return __atomic_load_n(at, __ATOMIC_RELAXED);
  }
  template <class T>
  static void store_release(T* at, T value) {
    __atomic_store_n(at, value, __ATOMIC_RELEASE);
  }
  template <class T>
  static void store_relaxed(T* at, T value) {
    __atomic_store_n(at, value, __ATOMIC_RELAXED);
  }
  static uint32_t fetch_add(uint32_t* at, uint32_t by) { return __atomic_fetch_add(at, by, __ATOMIC_RELAXED); }
  static bool compare_exchange(uint64_t* at, uint64_t expected, uint64_t desired) {
    return __atomic_compare_exchange_n(at, &expected, desired, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
  }
  static bool step_done(const StepHeader& header, uint64_t step) { return load_acquire(&header.done_step) == step; }
  static uint64_t doorbell(const RingHeader& ring, uint32_t f) { return load_acquire(&ring.doorbells[f]); }
  static uint32_t lease(const RingHeader& ring, uint32_t f) { return load_acquire(&ring.leases[f].active); }
  static uint64_t orders_tail(const EngineMemory& agent) { return load_acquire(&agent.orders_tail); }
  static uint32_t command(const CoreState& core) { return load_acquire(&core.command); }
};

struct SingleThread : HostAtomics {
  static uint32_t thread() { return 0; }
  static uint32_t threads() { return 1; }
  static void barrier() {}
  static bool any(bool value) { return value; }
  static uint64_t broadcast(uint64_t value) { return value; }
};

// The thread of a HostScheduler (Hub), which does what touches the world.
template <class Hub>
struct HostPlatform : SingleThread {
  Hub& hub;
  explicit HostPlatform(Hub& h) : hub(h) {}
  uint64_t clock_ns() { return hub.clock_ns(); }
  void launch(uint32_t graph, uint64_t step) { hub.launch(graph, step); }
  uint32_t window_left() { return hub.window_left(); }
  void rest(Turn turn) { hub.rest(turn); }
};

}  // namespace hostless
