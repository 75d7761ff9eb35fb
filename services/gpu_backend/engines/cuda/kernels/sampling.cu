// sampling.cu: out_tokens of a step, and the flag that ends it (B5, B9).
#include "sampling.cuh"

using namespace hostless_sampling;

// step.hpp's StepSequence; tests compare the two.
struct Sequence {
  u32 lane, token_begin, token_count, position, sample;
  float temperature, top_p;
  u32 top_k;
  float uniform;
  u32 slot, reserved[2];
};

// Grid: a block a row. logits [rows, vocab]; row i is of sequences[i].
template <class Value>
__device__ void sample_rows(const Value* logits, const Sequence* sequences, const u32* sequence_count, u32 vocab,
                            u32* out_tokens, u32* error) {
  __shared__ Shared shared;
  const u32 i = blockIdx.x;
  if (i >= *sequence_count) return;
  const Sequence& q = sequences[i];
  if (q.token_count == 0 || q.sample != 1) return;
  const long long token =
      sample_row(logits + static_cast<u64>(i) * vocab, vocab, q.temperature, q.top_p, q.top_k, q.uniform, shared);
  if (threadIdx.x != 0) return;
  if (token >= 0)
    out_tokens[i] = static_cast<u32>(token);
  else
    *error = 1;
}

extern "C" __global__ void __launch_bounds__(1024, 1)
    sample_bfloat16(const u16* logits, const Sequence* sequences, const u32* sequence_count, u32 vocab, u32* out_tokens,
                    u32* error) {
  sample_rows(logits, sequences, sequence_count, vocab, out_tokens, error);
}

extern "C" __global__ void __launch_bounds__(1024, 1)
    sample_float32(const float* logits, const Sequence* sequences, const u32* sequence_count, u32 vocab,
                   u32* out_tokens, u32* error) {
  sample_rows(logits, sequences, sequence_count, vocab, out_tokens, error);
}

// One thread, the step's last node: whoever sees done_step sees everything that the step wrote.
extern "C" __global__ void finish_step(const u64* step, u64* done_step) {
  asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(done_step), "l"(*step) : "memory");
}
