// serve.hpp: one execution of the scheduler's kernel, whatever its platform notes on the way.
#pragma once
#include "core.hpp"
#include "watcher.hpp"

namespace hostless {

// Thread 0: what becomes of the scheduler after this execution. When the launch window is spent, a fresh one
// is launched behind this one, and finds all state in device memory (B4).
__device__ inline Ending hand_over(const Mission& mission, const Board& board, const DevicePlatform& platform,
                                   Turn turn) {
  const uint32_t asked = look_at(board.ending);
  if (turn != Turn::relaunch) return asked != 0 ? static_cast<Ending>(asked) : Ending::stopped;
  const cudaError_t error = platform.tailed ? platform.tail_error : launch_tail();
  if (error == cudaSuccess) return Ending::runs;
  mission.control->relaunch_error = error;
  return Ending::stranded;
}

// The team copies the state that every step touches from device memory to shared memory, or back.
__device__ inline void copy_hot(void* __restrict__ to, const void* __restrict__ from, uint32_t bytes) {
  auto* __restrict__ into = static_cast<uint4*>(to);
  const auto* __restrict__ out_of = static_cast<const uint4*>(from);
#pragma unroll 8  // loads on their way together
  for (uint32_t i = threadIdx.x; i < bytes / sizeof(uint4); i += kTeam) into[i] = out_of[i];
}

// By kBlock threads: the team, and the watcher behind it. `hot`: hot_bytes of shared memory.
template <class Platform>
__device__ void serve(const Mission& mission, Board& board, void* hot) {
  if (Tuning::tails_early && kept.over) return;  // this was launched before the last one knew that it was the last
  if (threadIdx.x == 0) {
    board.hurries = Tuning::starts_still;
    board.version = board.leaves = board.ending = 0;
  }
  if (threadIdx.x >= kTeam) {
    Watcher watcher{board, *static_cast<const CoreState*>(hot), mission};
    const uint64_t first = watcher.first_look();  // over the bus, while the team copies
    __syncthreads();
    watcher.run(first);
    __syncthreads();
    return;
  }
  copy_hot(hot, mission.core, mission.hot_bytes);
  __syncthreads();
  __syncthreads();  // the watcher has noted its first look
  Platform platform{{board, mission, static_cast<EngineMemory*>(mission.engine)->step}};
  Context<Platform> context(platform, hot, mission.core, mission.ring, mission.engine, mission.agent);
  const Turn turn = run(context);
  if (threadIdx.x == 0) platform.hurry(0);
  // Before a relaunch the watcher's last looks come back while the state is copied. (If that then fails, the last
  // report is some milliseconds old.)
  if (threadIdx.x == 0 && turn == Turn::relaunch) tell(board.leaves, Board::kForNow, cuda::memory_order_release);
  platform.barrier();
  copy_hot(mission.core, hot, mission.hot_bytes);
  platform.barrier();
  const Ending ending = threadIdx.x == 0 ? hand_over(mission, board, platform, turn) : Ending::runs;
  if (threadIdx.x == 0 && turn != Turn::relaunch) tell(board.leaves, Board::kForGood, cuda::memory_order_release);
  __syncthreads();  // the watcher has made its last report
  if (threadIdx.x == 0 && ending != Ending::runs) {
    if (Tuning::tails_early) kept.over = 1;
    DevicePlatform::store_release(&mission.control->ended, static_cast<uint64_t>(ending));
  }
}

}  // namespace hostless
