// kernel.cu: the scheduler core as a kernel that never returns to the host (B1, B3, B4).
//
// Sits alone in a graph, so that it may launch other graphs, and its own.
#include "serve.hpp"

using namespace hostless;

namespace {

struct Plain : DevicePlatform {};

}  // namespace

extern "C" __global__ void __launch_bounds__(kBlock, 1) hostless_scheduler(const __grid_constant__ Mission mission) {
  __shared__ Board board;
  extern __shared__ uint4 hot[];
  serve<Plain>(mission, board, hot);
}

// The GPU's clock, to be set against the host's.
extern "C" __global__ void hostless_clock(uint64_t* now) { *now = device_ns(); }
