// scheduler_profile.cu: the scheduler's kernel with a stopwatch in it: when thread 0 of the team passes each
// barrier of a turn that launches a decode step, in ns from the moment that the last step was seen to be done.
#include "serve.hpp"

using namespace hostless;

constexpr uint32_t kMarks = 64;

// By how many marks the turn had: sums of the times at each, and turns.
__device__ uint64_t profile[kMarks][kMarks + 1];

namespace {

__shared__ uint64_t marks[kMarks];
__shared__ uint32_t marked;
__shared__ bool flew;

struct Stopwatch : DevicePlatform {
  __device__ void mark() {
    if (thread() == 0 && marked < kMarks) marks[marked++] = device_ns();
  }
  __device__ void barrier() {
    DevicePlatform::barrier();
    mark();
  }
  __device__ bool any(bool value) { return DevicePlatform::any(value); }
  __device__ uint64_t broadcast(uint64_t value) {
    const uint64_t result = DevicePlatform::broadcast(value);
    mark();
    return result;
  }
  __device__ void launch(uint32_t graph, uint64_t number) {
    mark();
    DevicePlatform::launch(graph, number);
    mark();
    flew = true;
  }
  __device__ void rest(Turn turn) {
    if (thread() == 0 && flew)
      for (uint32_t i = 0; i < marked; ++i) profile[marked - 1][i] += marks[i] - marks[0];
    if (thread() == 0 && flew) ++profile[marked - 1][kMarks];
    DevicePlatform::rest(turn);
    if (thread() == 0) {
      marked = 0;
      flew = false;
    }
    mark();
  }
};

}  // namespace

extern "C" __global__ void __launch_bounds__(kBlock, 1) hostless_scheduler(const __grid_constant__ Mission mission) {
  __shared__ Board board;
  extern __shared__ uint4 hot[];
  if (threadIdx.x == 0) {
    marked = kMarks;  // the first turn has no beginning
    flew = false;
  }
  serve<Stopwatch>(mission, board, hot);
}
extern "C" __global__ void hostless_clock(uint64_t* now) { *now = device_ns(); }
