// device_platform.hpp: the core's Platform on a GPU: 256 threads of one block (B1), and a watcher.
//
// The watcher is a ninth warp. It reads, over and over, the words that others write and each turn looks
// at (doorbells, leases, the tail of the orders, the host's command), and keeps what it saw in shared
// memory. A read of host memory takes over a microsecond; so the team never waits for one. What the watcher
// saw is a reason to look, and no more: what a word announces is read after the word itself, with acquire.
// It holds still while the team is between two steps: a fence of the team would wait for the watcher's reads.
#pragma once
#include <cuda/atomic>

#include "control.hpp"
#include "platform.hpp"

namespace hostless {

constexpr uint32_t kTeam = 256, kBlock = kTeam + 32;
constexpr uint32_t kTeamBarrier = 1;
constexpr uint64_t kLongestRest = 200'000, kLongestHurry = 50'000, kGrace = 1'000'000'000;  // ns
constexpr uint32_t kLaunchAttempts = 16;

template <class T>
using SystemAtomic = cuda::atomic_ref<T, cuda::thread_scope_system>;
template <class T>
using BlockAtomic = cuda::atomic_ref<T, cuda::thread_scope_block>;

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
  template <class T>
  __device__ static T load_relaxed(const T* at) {
    return SystemAtomic<T>(*const_cast<T*>(at)).load(cuda::memory_order_relaxed);
  }
  template <class T>
  __device__ static void store_release(T* at, T value) {
    SystemAtomic<T>(*at).store(value, cuda::memory_order_release);
  }
  template <class T>
  __device__ static void store_relaxed(T* at, T value) {
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

  __device__ uint64_t seen(uint32_t index) const {
    return BlockAtomic<uint64_t>(board.seen[index]).load(cuda::memory_order_acquire);
  }
  __device__ uint64_t doorbell(const RingHeader&, uint32_t f) const { return seen(Watched::doorbells + f); }
  __device__ uint32_t lease(const RingHeader&, uint32_t f) const {
    return static_cast<uint32_t>(seen(Watched::leases + f));
  }
  __device__ uint64_t orders_tail(const EngineMemory&) const { return seen(Watched::orders_tail); }
  __device__ uint32_t command(const CoreState&) const {
    if (BlockAtomic<uint32_t>(board.ending).load(cuda::memory_order_relaxed) != 0)
      return static_cast<uint32_t>(Command::stop);
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
    if (flies) return;
    store_relaxed(&step.error, 1u);  // nothing will compute it
    store_release(&step.done_step, number);
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

  __device__ void hurry(uint32_t does) { BlockAtomic<uint32_t>(board.hurries).store(does, cuda::memory_order_relaxed); }

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
        const uint32_t version = BlockAtomic<uint32_t>(board.version).load(cuda::memory_order_acquire);
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

// --- the watcher ---

__device__ inline const uint64_t* watched_word(const Mission& m, uint32_t index) {
  const auto& ring = *static_cast<const RingHeader*>(m.ring);
  if (index < Watched::leases) return &ring.doorbells[index];
  if (index < Watched::command) return reinterpret_cast<const uint64_t*>(&ring.leases[index - Watched::leases]);
  if (index == Watched::command) return &m.control->command;
  if (index == Watched::orders_tail) return &static_cast<const EngineMemory*>(m.agent)->orders_tail;
  return &m.control->host_beat;
}

struct Watcher {
  Board& board;
  const CoreState& state;
  const Mission& mission;
  const uint32_t lane = threadIdx.x % 32;
  uint64_t last = 0, next_report = 0, host_moved = 0, last_host_beat = 0;
  uint32_t version = 0;

  // The lanes below `count` read their words, by one load of the warp.
  __device__ uint64_t load(uint32_t count) const {
    return lane < count ? DevicePlatform::load_relaxed(watched_word(mission, lane)) : 0;
  }
  // A lease's word also holds its first slot.
  __device__ void note(uint64_t value, uint32_t count, bool first = false) {
    if (lane >= Watched::leases && lane < Watched::command) value &= 0xffffffff;
    const bool changed = lane < count && (first || value != last);
    if (changed) {
      BlockAtomic<uint64_t>(board.seen[lane]).store(value, cuda::memory_order_relaxed);
      last = value;
    }
    if (!__any_sync(0xffffffff, changed && lane != Watched::host_beat)) return;
    __syncwarp();
    ++version;
    if (lane == 0) BlockAtomic<uint32_t>(board.version).store(version, cuda::memory_order_release);
  }

  // The counters, one a lane, for whoever reads them on the host.
  __device__ void report(uint64_t now) {
    constexpr uint32_t count = sizeof(Counters) / sizeof(uint64_t);
    static_assert(count <= 32);
    const auto* from = reinterpret_cast<const uint64_t*>(&state.counters);
    auto* to = reinterpret_cast<uint64_t*>(&mission.control->counters);
    if (lane < count) DevicePlatform::store_relaxed(to + lane, DevicePlatform::load_relaxed(from + lane));
    if (lane == 0) DevicePlatform::store_relaxed(&mission.control->device_ns, now);
    next_report = now + mission.report_ns;
  }

  __device__ void end(Ending why) {
    BlockAtomic<uint32_t> ending(board.ending);
    if (ending.load(cuda::memory_order_relaxed) == 0)
      ending.store(static_cast<uint32_t>(why), cuda::memory_order_relaxed);
  }
  // Lane 0: a card that hangs is worse than a scheduler that ends.
  __device__ void guard(uint64_t now) {
    if (mission.deadline_ns != 0 && now > mission.deadline_ns) {
      if (now > mission.deadline_ns + kGrace) __trap();
      end(Ending::deadline);
    }
    if (mission.host_patience_ns == 0) return;
    const uint64_t beat = BlockAtomic<uint64_t>(board.seen[Watched::host_beat]).load(cuda::memory_order_relaxed);
    if (beat != last_host_beat || host_moved == 0) {
      last_host_beat = beat;
      host_moved = now;
    } else if (now - host_moved > mission.host_patience_ns) {
      end(Ending::orphaned);
    }
  }

  // Doorbells all the time, with several looks on their way at once; everything else now and then.
  // first: a look at everything.
  __device__ void run(uint64_t first) {
    constexpr uint32_t kOnTheWay = 3, kNowAndThen = 4, kDoorbells = Watched::leases;
    note(first, Watched::count, true);
    __syncthreads();  // the team waits for it
    uint64_t looks[kOnTheWay];
    for (uint64_t& each : looks) each = load(kDoorbells);
    uint32_t leaves = 0;
    for (uint32_t round = 0; leaves == 0; ++round) {
      hold_still();
      const bool all = round % kNowAndThen == 0;
      if (all) keep_house();
      const uint64_t everything = load(all ? Watched::count : 0);
#pragma unroll
      for (uint64_t& each : looks) {
        note(each, kDoorbells);
        each = load(kDoorbells);
      }
      if (all) note(everything, Watched::count);
      leaves = BlockAtomic<uint32_t>(board.leaves).load(cuda::memory_order_acquire);
    }
    if (leaves == Board::kForGood) report(device_ns());
  }
  __device__ void hold_still() const {
    const uint64_t until = device_ns() + kLongestHurry;
    while (BlockAtomic<uint32_t>(board.hurries).load(cuda::memory_order_relaxed) != 0 && device_ns() < until)
      __nanosleep(20);
  }
  __device__ void keep_house() {
    const uint64_t now = __shfl_sync(0xffffffff, device_ns(), 0);
    if (now >= next_report) report(now);
    if (lane == 0) guard(now);
    __syncwarp();
  }
};

}  // namespace hostless
