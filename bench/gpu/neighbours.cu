// neighbours.cu: kernels of processes that share a GPU, one of which is killed (bench/gpu_neighbours.py).
#include <cuda/std/cstdint>

using cuda::std::uint32_t;
using cuda::std::uint64_t;

__device__ inline uint64_t now_ns() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

// Reads and writes `words` for so long, wherever they lie; words[0] says that it has begun.
extern "C" __global__ void spin(volatile uint64_t* words, uint64_t nanoseconds) {
  const uint64_t end = now_ns() + nanoseconds;
  uint64_t seen = 0;
  words[0] = 1;
  while (now_ns() < end) {
    seen += words[2];
    words[1] = seen;
  }
}

// A step of a chain that lives on the GPU: launches `other` (an empty graph) and waits for it, some times; then a fresh
// execution of itself takes over.
struct Links {
  uint64_t others[2], end, steps, done;
  uint64_t* words;
};
extern "C" __global__ void empty(Links* links) { atomicAdd(reinterpret_cast<unsigned long long*>(&links->done), 1ull); }
extern "C" __global__ void chain(Links* links) {
  if (links->end == 0) links->end = now_ns() + 20'000'000'000;
  links->words[0] = 1;
  for (int i = 0; i < 100 && now_ns() < links->end; ++i) {
    const uint64_t number = ++links->steps;
    if (cudaGraphLaunch(reinterpret_cast<cudaGraphExec_t>(links->others[number & 1]), cudaStreamGraphFireAndForget) !=
        0)
      return;
    while (*const_cast<volatile uint64_t*>(&links->done) != number && now_ns() < links->end) links->words[1] = number;
  }
  if (now_ns() < links->end) cudaGraphLaunch(cudaGetCurrentGraphExec(), cudaStreamGraphTailLaunch);
}

// What the neighbour does all the time: data[i] = value + i.
extern "C" __global__ void fill(uint32_t* data, uint32_t count, uint32_t value) {
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) data[i] = value + i;
}
