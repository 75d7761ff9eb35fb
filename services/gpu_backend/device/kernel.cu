// kernel.cu: the scheduler core as a kernel that never returns to the host (B1, B3, B4).
//
// Sits alone in a graph, so that it may launch other graphs. When its launch window is spent it ends, and
// launches its own graph behind itself: the fresh instance finds all state in device memory.
#include "core.hpp"
#include "device_platform.hpp"

using namespace hostless;

namespace {

__device__ Ending lead_out(const Mission& mission, const Board& board, Turn turn) {
  if (turn != Turn::relaunch) return board.ending != 0 ? static_cast<Ending>(board.ending) : Ending::stopped;
  const cudaError_t error = cudaGraphLaunch(cudaGetCurrentGraphExec(), cudaStreamGraphTailLaunch);
  if (error == cudaSuccess) return Ending::runs;
  mission.control->relaunch_error = error;
  return Ending::stranded;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kBlock, 1) hostless_scheduler(const __grid_constant__ Mission mission) {
  __shared__ Board board;
  if (threadIdx.x == 0) board.version = board.leaves = board.ending = 0;
  __syncthreads();
  if (threadIdx.x >= kTeam) {
    Watcher{board, mission}.run();
    __syncthreads();
    return;
  }
  __syncthreads();  // the watcher has looked once
  DevicePlatform platform{board, mission, static_cast<EngineMemory*>(mission.engine)->step};
  Context<DevicePlatform> context(platform, mission.core, mission.ring, mission.engine, mission.agent);
  const Turn turn = run(context);
  const Ending ending = threadIdx.x == 0 ? lead_out(mission, board, turn) : Ending::runs;
  if (threadIdx.x == 0) BlockAtomic<uint32_t>(board.leaves).store(1, cuda::memory_order_release);
  __syncthreads();  // the watcher has made its last report
  if (threadIdx.x == 0 && ending != Ending::runs)
    DevicePlatform::store_release(&mission.control->ended, static_cast<uint64_t>(ending));
}

// The GPU's clock, to be set against the host's.
extern "C" __global__ void hostless_clock(uint64_t* now) { *now = device_ns(); }
