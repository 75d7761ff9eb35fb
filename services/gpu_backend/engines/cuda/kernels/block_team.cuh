// block_team.cuh: what a kernel asks of its block, and numbers of logits that can be ordered.
//
// Compiles for the device, and for the host as a block of one thread, which is how tests run it.
#pragma once

#ifdef __CUDA_ARCH__
#define TEAM_FN __device__ __forceinline__
#define TEAM_CALL __device__ __noinline__  // big ones, called from several places
#define TEAM_SHARED __shared__
#define TEAM_THREAD threadIdx.x
#define TEAM_THREADS blockDim.x
#define TEAM_BARRIER() __syncthreads()
#else
#include <cmath>
#include <cstring>
#define TEAM_FN inline
#define TEAM_CALL inline
#define TEAM_SHARED static
#define TEAM_THREAD 0u
#define TEAM_THREADS 1u
#define TEAM_BARRIER()
#endif

namespace hostless_sampling {

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

#ifdef __CUDA_ARCH__
TEAM_FN float as_float(u32 bits) { return __uint_as_float(bits); }
TEAM_FN u32 as_bits(float value) { return __float_as_uint(value); }
TEAM_FN void add(u32* at, u32 value) { atomicAdd(at, value); }
TEAM_FN void add(u64* at, u64 value) { atomicAdd(at, value); }
TEAM_FN void raise(u64* at, u64 value) { atomicMax(at, value); }
TEAM_FN u32 take(u32* at) { return atomicAdd(at, 1u); }
TEAM_FN u64 warp_max(u64 value) {
  for (int reach = 16; reach > 0; reach /= 2) {
    const u64 other = __shfl_xor_sync(0xffffffffu, value, reach);
    value = other > value ? other : value;
  }
  return value;
}
TEAM_FN bool first_lane() { return (threadIdx.x & 31u) == 0; }
#else
TEAM_FN float as_float(u32 bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
TEAM_FN u32 as_bits(float value) {
  u32 bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}
TEAM_FN void add(u32* at, u32 value) { *at += value; }
TEAM_FN void add(u64* at, u64 value) { *at += value; }
TEAM_FN void raise(u64* at, u64 value) {
  if (value > *at) *at = value;
}
TEAM_FN u32 take(u32* at) { return (*at)++; }
TEAM_FN u64 warp_max(u64 value) { return value; }
TEAM_FN bool first_lane() { return true; }
#endif

TEAM_FN float to_float(u16 bfloat16) { return as_float(static_cast<u32>(bfloat16) << 16); }
TEAM_FN float to_float(float value) { return value; }

// Ordered as the floats are; -0 and 0, which are equal, get one number.
TEAM_FN u32 order_of(float value) {
  const u32 bits = as_bits(value == 0.0f ? 0.0f : value);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
TEAM_FN float value_of(u32 order) { return as_float(order & 0x80000000u ? order & 0x7fffffffu : ~order); }
// Less for the token that comes first.
TEAM_FN u64 rank_of(float value, u32 id) { return (static_cast<u64>(~order_of(value)) << 32) | id; }

struct alignas(16) Pack {
  u32 word[4];
};

// f(value, id) for the row's tokens, spread over the block; 16 bytes a load where rows are aligned.
template <class Value, class F>
TEAM_FN void for_row(const Value* row, u32 vocab, F f) {
  constexpr u32 width = 16 / sizeof(Value);
  if (vocab % width != 0) {
    for (u32 id = TEAM_THREAD; id < vocab; id += TEAM_THREADS) f(to_float(row[id]), id);
    return;
  }
#pragma unroll 4
  for (u32 at = TEAM_THREAD * width; at < vocab; at += TEAM_THREADS * width) {
    const Pack pack = *reinterpret_cast<const Pack*>(row + at);
#pragma unroll
    for (u32 i = 0; i < width; ++i) {
      if constexpr (sizeof(Value) == 2) {
        f(as_float(i % 2 ? pack.word[i / 2] & 0xffff0000u : pack.word[i / 2] << 16), at + i);
      } else {
        f(as_float(pack.word[i]), at + i);
      }
    }
  }
}

}  // namespace hostless_sampling
