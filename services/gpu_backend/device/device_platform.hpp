// device_platform.hpp: the core's Platform on a GPU: 256 threads of one block (B1), beside a watcher (watcher.hpp).
#pragma once
#include "board.hpp"

namespace hostless {

// A fresh execution of the graph that this kernel is alone in, behind this one and all that it has launched.
__device__ inline cudaError_t launch_tail() {
  return cudaGraphLaunch(cudaGetCurrentGraphExec(), cudaStreamGraphTailLaunch);
}

struct DevicePlatform {
  Board& board;
  const Mission& mission;
  StepHeader& step;
  uint32_t phase = 0;         // which broadcast word is next
  uint32_t launches = 0;      // of this execution; thread 0's
  uint32_t seen_version = 0;  // thread 0's
  uint64_t launched = 0;      // step in flight; thread 0's
  uint32_t last_graph = kNone;
  uint64_t likely = 0;  // executable of the next step, if it is of the same graph; read while a step flies
  bool tailed = false;  // launch_tail was called, and said:
  cudaError_t tail_error = cudaSuccess;

  __device__ static uint32_t thread() { return threadIdx.x; }
  __device__ static constexpr uint32_t threads() { return kTeam; }
  __device__ static void barrier() {
    __syncwarp();
    asm volatile("barrier.sync %0, %1;" ::"n"(kTeamBarrier), "n"(kTeam) : "memory");
  }
  __device__ static bool any(bool value) {
    uint32_t result;
    __syncwarp();
    asm volatile("{ .reg .pred p, q; setp.ne.u32 p, %1, 0; barrier.red.or.pred q, %2, %3, p; selp.u32 %0, 1, 0, q; }"
                 : "=r"(result)
                 : "r"(static_cast<uint32_t>(value)), "n"(kTeamBarrier), "n"(kTeam)
                 : "memory");
    return result != 0;
  }
  // Two words in turn: when one is written again, a barrier has passed since all read it.
  __device__ uint64_t broadcast(uint64_t value) {
    volatile uint64_t& word = board.broadcast[phase];
    phase ^= 1;
    if (thread() == 0) word = value;
    barrier();
    return word;
  }

  __device__ static uint32_t fetch_add(uint32_t* at, uint32_t by) {
    return BlockAtomic<uint32_t>(*at).fetch_add(by, cuda::memory_order_relaxed);
  }
  template <class T>
  __device__ static T load_acquire(const T* at) {
    return SystemAtomic<T>(*const_cast<T*>(at)).load(cuda::memory_order_acquire);
  }
  // In shared memory: the counters, which the watcher reports.
  template <class T>
  __device__ static T load_relaxed(const T* at) {
    if (__isShared(at)) return look_at(*at);
    return SystemAtomic<T>(*const_cast<T*>(at)).load(cuda::memory_order_relaxed);
  }
  template <class T>
  __device__ static void store_release(T* at, T value) {
    SystemAtomic<T>(*at).store(value, cuda::memory_order_release);
  }
  template <class T>
  __device__ static void store_relaxed(T* at, T value) {
    if (__isShared(at)) return tell(*at, value);
    SystemAtomic<T>(*at).store(value, cuda::memory_order_relaxed);
  }
  // Over a bus without atomics a swap is no more than a store. It suffices: what the scheduler swaps it has
  // just read, it is its own by the transition table, and a front end's swaps expect other words.
  __device__ bool compare_exchange(uint64_t* at, uint64_t expected, uint64_t desired) const {
    if (!mission.ring_on_host)
      return SystemAtomic<uint64_t>(*at).compare_exchange_strong(expected, desired, cuda::memory_order_acq_rel);
    store_release(at, desired);
    return true;
  }

  __device__ uint64_t seen(uint32_t index) const { return look_at(board.seen[index], cuda::memory_order_acquire); }
  __device__ uint64_t doorbell(const RingHeader&, uint32_t f) const { return seen(Watched::doorbells + f); }
  __device__ uint32_t lease(const RingHeader&, uint32_t f) const {
    return static_cast<uint32_t>(seen(Watched::leases + f));
  }
  __device__ uint64_t orders_tail(const EngineMemory&) const { return seen(Watched::orders_tail); }
  __device__ uint32_t command(const CoreState&) const {
    if (look_at(board.ending) != 0) return static_cast<uint32_t>(Command::stop);
    return static_cast<uint32_t>(seen(Watched::command));
  }

  __device__ static bool step_done(const StepHeader& header, uint64_t number) {
    return load_acquire(&header.done_step) == number;
  }

  __device__ uint64_t clock_ns() const { return device_ns() + mission.clock_offset_ns; }

  // Of a graph's two executables, the one for this step.
  __device__ uint64_t executable(uint32_t graph, uint64_t number) const {
    return mission.executables[2 * graph + (number & 1)];
  }
  // Thread 0, after a barrier: the fence makes what the team has assembled the graph's to read.
  __device__ void launch(uint32_t graph, uint64_t number) {
    const uint64_t chosen = graph == last_graph ? likely : executable(graph, number);
    cuda::atomic_thread_fence(cuda::memory_order_release, cuda::thread_scope_device);
    launched = number;
    bool flies = start(chosen);
    for (uint32_t attempt = 1; !flies && attempt < kLaunchAttempts && launches < mission.launch_window; ++attempt) {
      __nanosleep(1000);
      flies = start(executable(graph, number + attempt));
    }
    last_graph = graph;
    likely = executable(graph, number + 1);
    hurry(0);
    if (!flies) {
      store_relaxed(&step.error, 1u);  // nothing will compute it
      store_release(&step.done_step, number);
    }
    if (Tuning::tails_early && launches >= mission.launch_window) {
      tailed = true;
      tail_error = launch_tail();
    }
  }
  __device__ bool start(uint64_t executable) {
    ++launches;
    const cudaError_t error =
        cudaGraphLaunch(reinterpret_cast<cudaGraphExec_t>(executable), cudaStreamGraphFireAndForget);
    if (error == cudaSuccess) return true;
    mission.control->last_error = error;
    ++mission.control->launch_errors;
    return false;
  }
  __device__ uint32_t window_left() const { return mission.launch_window - launches; }

  __device__ void hurry(uint32_t does) { tell(board.hurries, does); }

  // Until something has happened: the step landed, a watched word changed, or it is time to look round.
  __device__ void rest(Turn turn) {
    if (turn == Turn::progress) return;
    if (thread() == 0) {
      const bool flying = turn == Turn::flying;
      hurry(0);
      const uint64_t until = device_ns() + kLongestRest;
      for (;;) {
        if (flying && load_relaxed(&step.done_step) == launched) {
          hurry(1);
          break;
        }
        const uint32_t version = look_at(board.version, cuda::memory_order_acquire);
        if (version != seen_version || device_ns() > until) {
          seen_version = version;
          break;
        }
        if (!flying) __nanosleep(100);
      }
    }
    barrier();
  }
};

}  // namespace hostless
