// skinny.cu: out[batch, N] = x[batch, K] W[N, K]^T in bfloat16 for up to 8 rows of x, which is reading W once (B10).
//
// One block a multiprocessor, each walking tiles of 16 rows of W. Four warps keep the copy engine busy: they fill a
// ring of stages in shared memory, across the ends of tiles, so that reading never pauses. (One warp is too slow: it
// issues the copies of its lanes one after another, some 70 cycles each.) Eight warps each take 64 of a stage's 512 k,
// and add up at the end of a tile.
//
// mma.m16n8k16 wants of each thread scattered pairs of a row; but the order of k within a sum is free, so a thread
// takes 8 neighbouring k of W and the same 8 of x, and 16-byte loads fill the operands of two mma. W's rows are the
// 16 rows of the mma, x's rows its 8 columns.
//
//   k of a warp's chunk of 64:  | quad thread 0: 0-7 | 1: 8-15 | 2: 16-23 | 3: 24-31 |, then the same + 32
//
// Fused: the RMSNorm of x (each block weighs x once, into shared memory; the scale of a row commutes with the product),
// the residual, SwiGLU (gate rows and up rows are the halves of one tile).

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

enum Mode { kNormed = 0, kAdded = 1, kGated = 2 };

constexpr int kWarps = 8, kProducers = 4, kChunk = 64, kStageK = kWarps * kChunk, kRows = 16, kColumns = 8;
constexpr int kPitch = kStageK * 2 + 64;  // bytes; shifts each row by half of the banks, so that rows don't collide
constexpr int kStageBytes = kRows * kPitch;
constexpr int kStages = 8;  // 128 KB in flight a multiprocessor
constexpr int kMostNormedK = 4096;

struct Shared {
  unsigned char stages[kStages][kStageBytes];
  float sums[2][kWarps][kColumns][kRows + 1];
  float scales[kColumns];
  u64 full[kStages], empty[kStages];
  alignas(16) unsigned char x[kColumns * (2 * kMostNormedK + 64)];  // weighed: rows of 2 K + 64 bytes
};
static_assert(sizeof(Shared) <= 214 * 1024);  // what gemms.py asks for

__device__ __forceinline__ u32 shared_address(const void* at) { return static_cast<u32>(__cvta_generic_to_shared(at)); }

__device__ __forceinline__ void init(u64* barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void arrive(u64* barrier) {
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
__device__ __forceinline__ void expect(u64* barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void wait(u64* barrier, u32 parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 done, [%0], %1;\n"
      "@done bra over;\n"
      "bra again;\n"
      "over:\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}
// Weights are read once a step: evict them first, so that KV and activations stay in L2.
__device__ __forceinline__ void copy(void* to, const u16* from, u32 bytes, u64* barrier, u64 policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}

__device__ __forceinline__ uint4 load(const u16* at) { return *reinterpret_cast<const uint4*>(at); }
__device__ __forceinline__ float low_of(u32 pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_of(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }
__device__ __forceinline__ u32 pair_of(float low, float high) {
  u32 pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
__device__ __forceinline__ u16 rounded(float value) { return static_cast<u16>(pair_of(value, 0.0f)); }

// x times the norm's weight, and x's squares on top of `squares`.
__device__ __forceinline__ u32 weigh(u32 x, u32 w, float& squares) {
  const float low = low_of(x), high = high_of(x);
  squares += low * low + high * high;
  return pair_of(low * low_of(w), high * high_of(w));
}

__device__ __forceinline__ void multiply(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The first lanes of a producer: each copies one row of every tile, stage by stage.
template <int MODE>
__device__ __forceinline__ void produce(Shared& s, const u16* W, int N, int K, int tiles, int producer, int lane) {
  constexpr int rows = kRows / kProducers;
  const int mine = producer * rows + lane;
  u64 policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  int stage = 0;
  u32 parity = 1;  // a fresh barrier counts as having completed the phase before its first
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const long row = MODE != kGated ? long(tile) * kRows + mine : (mine < 8 ? 0 : long(N) - 8) + long(tile) * 8 + mine;
    for (int k = 0; k < K; k += kStageK) {
      const u32 bytes = 2 * min(kStageK, K - k);
      wait(&s.empty[stage], parity);
      if (lane == 0) expect(&s.full[stage], rows * bytes);
      __syncwarp((1u << rows) - 1);
      copy(s.stages[stage] + mine * kPitch, W + row * K + k, bytes, &s.full[stage], policy);
      if (++stage == kStages) stage = 0, parity ^= 1;
    }
  }
}

// Thread i of 128: the tile's output n = i % width of x's row i / width.
template <int MODE>
__device__ __forceinline__ void finish(const Shared& s, int turn, int tile, u16* out, int N, int batch, int i) {
  constexpr int width = MODE == kGated ? kRows / 2 : kRows;
  const int column = i / width, n = i % width;
  if (column >= batch) return;
  float sum = 0, up = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) sum += s.sums[turn][w][column][n];
  const float scale = MODE == kAdded ? 1.0f : s.scales[column];
  u16* at = out + long(column) * N + long(tile) * width + n;
  if (MODE == kGated) {
#pragma unroll
    for (int w = 0; w < kWarps; ++w) up += s.sums[turn][w][column][n + 8];
    const float gate = sum * scale;
    *at = rounded(gate / (1.0f + __expf(-gate)) * (up * scale));
  } else if (MODE == kAdded) {
    *at = rounded(sum + __uint_as_float(static_cast<u32>(*at) << 16));
  } else {
    *at = rounded(sum * scale);
  }
}

// Warp w: row w of x, weighed, into shared memory, and its scale. Ends with a barrier of the consumers.
__device__ __forceinline__ void weigh_row(Shared& s, const u16* x, const u16* norm, int K, int batch, float epsilon,
                                          int warp, int lane) {
  if (warp < batch) {
    uint4* to = reinterpret_cast<uint4*>(s.x + warp * (2 * K + 64));
    float squares = 0;
#pragma unroll 4
    for (int k = lane * 8; k < K; k += 256) {
      uint4 values = load(x + long(warp) * K + k);
      const uint4 weights = load(norm + k);
      values.x = weigh(values.x, weights.x, squares);
      values.y = weigh(values.y, weights.y, squares);
      values.z = weigh(values.z, weights.z, squares);
      values.w = weigh(values.w, weights.w, squares);
      to[k / 8] = values;
    }
#pragma unroll
    for (int reach = 16; reach > 0; reach /= 2) squares += __shfl_xor_sync(0xffffffffu, squares, reach);
    if (lane == 0) s.scales[warp] = rsqrtf(squares / K + epsilon);
  }
  asm volatile("bar.sync 1, 256;" ::: "memory");
}

template <int MODE>
__device__ __forceinline__ void consume(Shared& s, const u16* x, u16* out, int N, int K, int tiles, int batch, int warp,
                                        int lane) {
  const int g = lane / 4, t = lane % 4;
  const u16* mine = MODE == kAdded ? x + long(g) * K : reinterpret_cast<const u16*>(s.x + g * (2 * K + 64));
  const unsigned char* first = s.stages[0] + g * kPitch + (warp * kChunk + t * 8) * 2;
  int stage = 0, turn = 0;
  u32 parity = 0;
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x, turn ^= 1) {
    float c[2][4] = {};  // two sums, so that their mma don't wait for each other
    for (int k = warp * kChunk; k < K + warp * kChunk; k += kStageK) {
      const bool active = k < K;
      uint4 b[2] = {}, low[2], high[2];
#pragma unroll
      for (int part = 0; part < 2; ++part)
        if (active && g < batch) b[part] = load(mine + k + t * 8 + part * 32);
      wait(&s.full[stage], parity);
      if (active) {
        const unsigned char* rows = first + stage * kStageBytes;
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          low[part] = *reinterpret_cast<const uint4*>(rows + part * 64);
          high[part] = *reinterpret_cast<const uint4*>(rows + 8 * kPitch + part * 64);
        }
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          multiply(c[part], low[part].x, high[part].x, low[part].y, high[part].y, b[part].x, b[part].y);
          multiply(c[part], low[part].z, high[part].z, low[part].w, high[part].w, b[part].z, b[part].w);
        }
      }
      __syncwarp();
      if (lane == 0) arrive(&s.empty[stage]);
      if (++stage == kStages) stage = 0, parity ^= 1;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) s.sums[turn][warp][t * 2 + i % 2][g + i / 2 * 8] = c[0][i] + c[1][i];
    // Among the consumers only. Two sets of sums in turn: who writes one has passed the barrier after its last reading.
    asm volatile("bar.sync 1, 256;" ::: "memory");
    constexpr int outputs = (MODE == kGated ? kRows / 2 : kRows) * kColumns;
    const int i = warp * 32 + lane;
    if (i < outputs) finish<MODE>(s, turn, tile, out, N, batch, i);
  }
}

// N: columns of out, a multiple of 16 (kGated: of 8; W has 2 N rows, gates first). K: a multiple of 64, and at most
// kMostNormedK but for kAdded. batch <= 8.
template <int MODE>
__device__ __forceinline__ void skinny(const u16* W, const u16* x, const u16* norm, u16* out, int N, int K, int batch,
                                       float epsilon) {
  extern __shared__ __align__(128) unsigned char memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int tiles = N / (MODE == kGated ? 8 : kRows);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) init(&s.full[i], kProducers), init(&s.empty[i], kWarps);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  if (warp >= kWarps) {
    // Weights never change: where launches overlap, they are read before x is there.
    if (lane < kRows / kProducers) produce<MODE>(s, W, N, K, tiles, warp - kWarps, lane);
  } else {
    asm volatile("griddepcontrol.wait;" ::: "memory");
    if (MODE != kAdded) weigh_row(s, x, norm, K, batch, epsilon, warp, lane);
    consume<MODE>(s, x, out, N, K, tiles, batch, warp, lane);
  }
}

#define SKINNY(NAME, MODE)                                                                                  \
  extern "C" __global__ void __launch_bounds__((kWarps + kProducers) * 32, 1)                               \
      NAME(const u16* W, const u16* x, const u16* norm, u16* out, int N, int K, int batch, float epsilon) { \
    skinny<MODE>(W, x, norm, out, N, K, batch, epsilon);                                                    \
  }
SKINNY(normed, kNormed)
SKINNY(added, kAdded)
SKINNY(gated, kGated)
