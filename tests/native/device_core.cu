// device_core.cu: the core compiles as device code, for a team of 256 threads of one block (B1).
//
// The platform here is the least that does: a launch only leaves its number behind. The real one
// starts captured graphs.
#include <cuda/atomic>

#include "core.hpp"

namespace {

struct BlockPlatform {
  uint64_t* shared;
  uint64_t* launched;
  uint32_t launches;

  template <class T>
  using System = cuda::atomic_ref<T, cuda::thread_scope_system>;

  __device__ uint32_t thread() const { return threadIdx.x; }
  __device__ uint32_t threads() const { return blockDim.x; }
  __device__ void barrier() const { __syncthreads(); }
  __device__ bool any(bool value) const { return __syncthreads_or(value) != 0; }
  __device__ uint64_t broadcast(uint64_t value) const {
    __syncthreads();  // the last value has been read by all
    if (thread() == 0) *shared = value;
    __syncthreads();
    return *shared;
  }
  __device__ uint32_t fetch_add(uint32_t* at, uint32_t by) const { return atomicAdd_block(at, by); }
  template <class T>
  __device__ T load_acquire(const T* at) const {
    return System<T>(*const_cast<T*>(at)).load(cuda::memory_order_acquire);
  }
  template <class T>
  __device__ T load_relaxed(const T* at) const {
    return System<T>(*const_cast<T*>(at)).load(cuda::memory_order_relaxed);
  }
  template <class T>
  __device__ void store_release(T* at, T value) const {
    System<T>(*at).store(value, cuda::memory_order_release);
  }
  template <class T>
  __device__ void store_relaxed(T* at, T value) const {
    System<T>(*at).store(value, cuda::memory_order_relaxed);
  }
  __device__ bool compare_exchange(uint64_t* at, uint64_t expected, uint64_t desired) const {
    return System<uint64_t>(*at).compare_exchange_strong(expected, desired, cuda::memory_order_acq_rel);
  }
  __device__ uint64_t clock_ns() const {
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
  }
  __device__ void launch(uint32_t, uint64_t step) {
    ++launches;
    store_release(launched, step);
  }
  __device__ uint32_t window_left() const { return 120 - launches; }
  __device__ void rest(hostless::Turn) const { __nanosleep(500); }
};

}  // namespace

extern "C" __global__ void __launch_bounds__(256) scheduler(void* core, void* ring, void* engine, uint64_t* launched,
                                                            uint32_t* result) {
  __shared__ uint64_t shared;
  BlockPlatform platform{&shared, launched, 0};
  hostless::Context<BlockPlatform> context(platform, core, ring, engine);
  const hostless::Turn turn = hostless::run(context);
  if (platform.thread() == 0) *result = static_cast<uint32_t>(turn);
}
