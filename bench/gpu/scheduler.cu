// scheduler.cu: what bench/gpu_scheduler.py runs on the GPU. Times are the GPU's own, in ns.
#include "core.hpp"
#include "device_platform.hpp"

using namespace hostless;

// --- a model that takes a set time, and notes when ---

struct Trace {
  uint64_t nanoseconds;  // of a step
  uint64_t capacity;     // of the three rings, indexed by step
  uint64_t begin, end, done;
};

__device__ inline void note(uint64_t ring, const Trace& trace, uint64_t step) {
  reinterpret_cast<uint64_t*>(ring)[step % trace.capacity] = device_ns();
}

extern "C" __global__ void timed_step(EngineMemory* memory, const Trace* trace) {
  const uint64_t begin = device_ns();
  if (threadIdx.x == 0) note(trace->begin, *trace, memory->step.step);
  if (threadIdx.x < memory->step.sequence_count)
    reinterpret_cast<uint32_t*>(reinterpret_cast<char*>(memory) + memory->out_tokens_offset)[threadIdx.x] = 1;
  while (device_ns() - begin < trace->nanoseconds) {
  }
  __syncthreads();
  if (threadIdx.x == 0) note(trace->end, *trace, memory->step.step);
}
extern "C" __global__ void timed_done(EngineMemory* memory, const Trace* trace) {
  note(trace->done, *trace, memory->step.step);
  cuda::atomic_ref<uint64_t, cuda::thread_scope_device> done(memory->step.done_step);
  done.store(memory->step.step, cuda::memory_order_release);
}

// --- launches, without a scheduler ---

struct Chain {
  uint64_t executables[2];  // of the empty graph, in turn
  uint64_t step, target;    // steps so far and wanted
  uint64_t done;            // written by the graph
  uint64_t window;          // launches an execution
  uint64_t error, failed_at;
  uint64_t latencies;       // u32[capacity]: launch to detected completion
  uint64_t gaps;            // u32[capacity]: end of an execution to the start of the next
  uint64_t capacity, relaunches, left_at;
};

extern "C" __global__ void empty_step() {}
extern "C" __global__ void empty_done(Chain* chain) {
  cuda::atomic_ref<uint64_t, cuda::thread_scope_device> done(chain->done);
  done.store(done.load(cuda::memory_order_relaxed) + 1, cuda::memory_order_release);
}

// Fire-and-forget launches of an empty graph, each awaited by polling; a tail launch of itself when the window
// is spent (B3-B5).
extern "C" __global__ void chain_steps(Chain* chain) {
  Chain& c = *chain;
  if (c.left_at != 0 && c.relaunches < c.capacity)
    reinterpret_cast<uint32_t*>(c.gaps)[c.relaunches - 1] = static_cast<uint32_t>(device_ns() - c.left_at);
  cuda::atomic_ref<uint64_t, cuda::thread_scope_device> done(c.done);
  for (uint64_t i = 0; i < c.window && c.step < c.target && c.error == 0; ++i) {
    const uint64_t begin = device_ns();
    const auto executable = reinterpret_cast<cudaGraphExec_t>(c.executables[c.step & 1]);
    c.error = cudaGraphLaunch(executable, cudaStreamGraphFireAndForget);
    ++c.step;
    while (c.error == 0 && done.load(cuda::memory_order_acquire) != c.step) {
      if (device_ns() - begin > 1'000'000'000) c.error = 9999;
    }
    if (c.step <= c.capacity)
      reinterpret_cast<uint32_t*>(c.latencies)[c.step - 1] = static_cast<uint32_t>(device_ns() - begin);
    if (c.error != 0) c.failed_at = c.step;
  }
  if (c.step == c.target || c.error != 0) return;
  ++c.relaunches;
  c.left_at = device_ns();
  c.error = cudaGraphLaunch(cudaGetCurrentGraphExec(), cudaStreamGraphTailLaunch);
}

// --- the scan of all slots (B2) ---

extern "C" __global__ void __launch_bounds__(kBlock, 1)
    scan_slots(const __grid_constant__ Mission mission, uint32_t times, uint32_t* took, uint32_t* found) {
  __shared__ Board board;
  if (threadIdx.x >= kTeam) return;
  DevicePlatform platform{board, mission, static_cast<EngineMemory*>(mission.engine)->step};
  Context<DevicePlatform> c(platform, mission.core, mission.core, mission.ring, mission.engine, mission.agent);
  for (uint32_t i = 0; i < times; ++i) {
    DevicePlatform::barrier();
    const uint64_t begin = device_ns();
    scan_words(c, 0, c.s.settings.slots, [&](uint32_t) { atomicAdd(found, 1); });
    if (threadIdx.x == 0) took[i] = static_cast<uint32_t>(device_ns() - begin);
  }
}
// One line of eight doorbells, by one warp.
extern "C" __global__ void look_once(const __grid_constant__ Mission mission, uint32_t times, uint32_t* took) {
  for (uint32_t i = 0; i < times; ++i) {
    const uint64_t begin = device_ns();
    const uint64_t bell =
        DevicePlatform::load_relaxed(&static_cast<RingHeader*>(mission.ring)->doorbells[threadIdx.x % 8]);
    if (__any_sync(0xffffffff, bell == ~0ull)) took[0] = 1;
    if (threadIdx.x == 0) took[i] = static_cast<uint32_t>(device_ns() - begin);
  }
}
// How finely the GPU's clock ticks.
extern "C" __global__ void clock_ticks(uint64_t* readings, uint32_t count) {
  uint64_t last = device_ns();
  for (uint32_t i = 0; i < count;) {
    const uint64_t now = device_ns();
    if (now != last) readings[i++] = now - last;
    last = now;
  }
}

// Answers the host: whenever word 0 changes, says when that was seen (word 8) and answers (word 16).
extern "C" __global__ void echo(uint64_t* words, uint32_t times) {
  uint64_t last = 0;
  const uint64_t give_up = device_ns() + 10'000'000'000;
  for (uint32_t i = 0; i < times && device_ns() < give_up; ++i) {
    uint64_t word = last;
    while (word == last && device_ns() < give_up) word = DevicePlatform::load_relaxed(&words[0]);
    DevicePlatform::store_relaxed(&words[8], device_ns());
    DevicePlatform::store_release(&words[16], last = word);
  }
}
