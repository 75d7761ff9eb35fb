// toy.cu: an engine small enough to be obviously right, as kernels of a step's graph.
//
// As tests/native/toy.hpp: its KV pages hold tokens, and a sampled token is a hash of all tokens before it,
// read back through the block table, and of the sequence's random number. Whatever the scheduler mixes up
// yields another token. What an engine relies on is checked, and shows as an error of the step.
#include <cuda/atomic>

#include "sampling.hpp"
#include "step.hpp"

using namespace hostless;

constexpr uint32_t kVocabulary = 997;

__device__ inline uint64_t absorb(uint64_t hash, uint32_t token) { return scramble(hash ^ (token + 1)) + token; }
__device__ inline uint32_t sampled(uint64_t hash, float uniform) {
  return static_cast<uint32_t>(scramble(hash + static_cast<uint64_t>(uniform * 16777216.0f)) % kVocabulary);
}

// One block a row of the step.
extern "C" __global__ void toy_step(EngineMemory* memory, uint32_t* kv) {
  EngineMemory& m = *memory;
  auto at = [&](uint64_t offset) { return reinterpret_cast<uint32_t*>(reinterpret_cast<char*>(memory) + offset); };
  const StepSequence& q = reinterpret_cast<StepSequence*>(at(m.sequences_offset))[blockIdx.x];
  __shared__ bool wrong;
  if (threadIdx.x == 0) wrong = false;
  __syncthreads();
  if (blockIdx.x >= m.step.sequence_count || q.token_count == 0) {
    if (threadIdx.x == 0 && blockIdx.x < m.step.sequence_count) m.step.error = 2;
    if (threadIdx.x == 0 && q.token_count != 0) m.step.error = 3;
    return;
  }
  const uint32_t end = q.position + q.token_count;
  if (q.lane >= m.lanes || end > m.lane_pages * kPageTokens || q.token_begin + q.token_count > m.step.token_count) {
    m.step.error = 4;
    return;
  }
  const uint32_t* table = at(m.block_tables_offset) + uint64_t{q.lane} * m.lane_pages;
  const uint32_t* fresh = at(m.tokens_offset) + q.token_begin;
  for (uint32_t i = threadIdx.x; i < q.token_count; i += blockDim.x) {
    const uint32_t position = q.position + i, page = table[position / kPageTokens];
    if (page >= m.pages || fresh[i] >= kVocabulary) {
      wrong = true;
      continue;
    }
    kv[uint64_t{page} * kPageTokens + position % kPageTokens] = fresh[i];
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (wrong) m.step.error = 5;
  if (wrong || !q.sample) return;
  uint64_t hash = 0;
  for (uint32_t position = 0; position < end; ++position) {
    const uint32_t page = table[position / kPageTokens];
    if (page >= m.pages) {
      m.step.error = 6;
      return;
    }
    hash = absorb(hash, kv[uint64_t{page} * kPageTokens + position % kPageTokens]);
  }
  at(m.out_tokens_offset)[blockIdx.x] = sampled(hash, q.uniform);
}

extern "C" __global__ void step_done(EngineMemory* memory) {
  cuda::atomic_ref<uint64_t, cuda::thread_scope_device> done(memory->step.done_step);
  done.store(memory->step.step, cuda::memory_order_release);
}
