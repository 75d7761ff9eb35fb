// skinny.cu: out[batch, N] = x[batch, K] W[N, K]^T in bfloat16 for up to 8 rows of x, which is reading W once (B10).
//
// One block a multiprocessor, each walking tiles of 16 rows of W. Four warps keep the copy engine busy: they fill a
// ring of stages in shared memory, across the ends of tiles, so that reading never pauses. (A warp issues the copies
// of its lanes one after another, some 70 cycles each; one warp would be too slow.) Sixteen
// warps each take 64 of a stage's 1,024 k, and add up at the end of a tile.
//
// A warp meets the same k in every tile, so its part of x stays in registers: it is read, and weighed by the norm,
// once a block. That holds 4,096 k. A longer K is cut into pieces; a block keeps to one piece, and of the blocks that
// share a tile the last to arrive adds the pieces up, in their order.
//
// mma.m16n8k16 wants of each thread scattered pairs of a row; but the order of k within a sum is free, so a thread
// takes 8 neighbouring k of W and the same 8 of x, and 16-byte loads fill the operands of two mma. W's rows are the
// 16 rows of the mma, x's rows its 8 columns. (With two of them for 16 rows of x, this is slower
// than cuBLAS: each multiprocessor reads all of x from L2, which then takes 4 us a product.)
//
//   k of a warp's chunk of 64:  | quad thread 0: 0-7 | 1: 8-15 | 2: 16-23 | 3: 24-31 |, then the same + 32
//
// Fused: the RMSNorm of x (the scale of a row commutes with the product), the residual, SwiGLU (gate rows and up rows
// are the halves of one tile).

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

enum Mode { kNormed = 0, kAdded = 1, kGated = 2 };

constexpr int kWarps = 16, kProducers = 4, kChunk = 64, kStageK = kWarps * kChunk, kRows = 16, kColumns = 8;
constexpr int kPitch = kStageK * 2 + 64;  // bytes; shifts each row by half of the banks, so that rows don't collide
constexpr int kStageBytes = kRows * kPitch;
constexpr int kStages = 6;  // 192 KB in flight a multiprocessor
constexpr int kMostSteps = 4;  // stages of a tile: 4,096 k

struct Shared {
  unsigned char stages[kStages][kStageBytes];
  float sums[kWarps][kColumns][kRows + 1];
  float squares[kWarps][kColumns], scales[kColumns];
  u64 full[kStages], empty[kStages];
  u32 arrived;
};
static_assert(sizeof(Shared) <= 217 * 1024);  // what gemms.py asks for

struct Job {
  const u16 *W, *x, *norm;
  u16* out;
  int N, K, batch;  // K of x and W; a block's piece of it is [k, k + width)
  float epsilon;
  int pieces, piece, k, width;
  float* partials;  // [pieces, tiles, kColumns * kRows], where pieces > 1
  u32* arrivals;    // [tiles]: pieces there; 0 before and after
  int tiles, first, stride;
};

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

__device__ __forceinline__ void consumers_meet() { asm volatile("bar.sync 1, 512;" ::: "memory"); }

// The first lanes of a producer: each copies one row of every tile, stage by stage.
template <int MODE>
__device__ __forceinline__ void produce(Shared& s, const Job& job, int producer, int lane) {
  constexpr int rows = kRows / kProducers;
  const int mine = producer * rows + lane;
  u64 policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  int stage = 0;
  u32 parity = 1;  // a fresh barrier counts as having completed the phase before its first
  for (int tile = job.first; tile < job.tiles; tile += job.stride) {
    const long row =
        MODE != kGated ? long(tile) * kRows + mine : (mine < 8 ? 0 : long(job.N) - 8) + long(tile) * 8 + mine;
    const u16* from = job.W + row * job.K + job.k;
    for (int k = 0; k < job.width; k += kStageK) {
      const u32 bytes = 2 * min(kStageK, job.width - k);
      wait(&s.empty[stage], parity);
      if (lane == 0) expect(&s.full[stage], rows * bytes);
      __syncwarp((1u << rows) - 1);
      copy(s.stages[stage] + mine * kPitch, from + k, bytes, &s.full[stage], policy);
      if (++stage == kStages) stage = 0, parity ^= 1;
    }
  }
}

// Thread i of 128: the tile's output n = i % width of x's row i / width.
template <int MODE>
__device__ __forceinline__ void finish(const Shared& s, const Job& job, int tile, int i) {
  constexpr int width = MODE == kGated ? kRows / 2 : kRows;
  const int column = i / width, n = i % width;
  if (column >= job.batch) return;
  float sum = 0, up = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) sum += s.sums[w][column][n];
  const float scale = MODE == kAdded ? 1.0f : s.scales[column];
  u16* at = job.out + long(column) * job.N + long(tile) * width + n;
  if (MODE == kGated) {
#pragma unroll
    for (int w = 0; w < kWarps; ++w) up += s.sums[w][column][n + 8];
    const float gate = sum * scale;
    *at = rounded(gate / (1.0f + __expf(-gate)) * (up * scale));
  } else if (MODE == kNormed) {
    *at = rounded(sum * scale);
  } else if (job.pieces == 1) {
    *at = rounded(sum + low_of(*at));
  } else {
    __stcg(job.partials + (long(job.piece) * job.tiles + tile) * (kColumns * kRows) + i, sum);
  }
}

// Thread i of 128, when all have stored their part of this piece. All consumers call it.
__device__ __forceinline__ void join_pieces(Shared& s, const Job& job, int tile, int i) {
  __threadfence();
  consumers_meet();
  if (i == 0) {
    s.arrived = atomicAdd(job.arrivals + tile, 1u) + 1;
    if (s.arrived == job.pieces) job.arrivals[tile] = 0;
  }
  consumers_meet();
  if (s.arrived != job.pieces) return;
  __threadfence();
  const int column = i / kRows, n = i % kRows;
  if (column >= job.batch) return;
  float sum = 0;
  for (int piece = 0; piece < job.pieces; ++piece)
    sum += __ldcg(job.partials + (long(piece) * job.tiles + tile) * (kColumns * kRows) + i);
  u16* at = job.out + long(column) * job.N + long(tile) * kRows + n;
  *at = rounded(sum + low_of(*at));
}

// The warp's part of x: of step i, 8 k in each of two parts, for column g.
template <int MODE>
__device__ __forceinline__ void read_x(uint4 (&x)[kMostSteps][2], Shared& s, const Job& job, int warp, int lane) {
  const int g = lane / 4, t = lane % 4;
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kMostSteps; ++i) {
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const int k = i * kStageK + warp * kChunk + part * 32 + t * 8;
      uint4 weights = {};
      if (MODE != kAdded && k < job.width) weights = load(job.norm + job.k + k);
      uint4 values = {};
      if (k < job.width && g < job.batch) values = load(job.x + long(g) * job.K + job.k + k);
      if (MODE != kAdded) {
        values.x = weigh(values.x, weights.x, squares);
        values.y = weigh(values.y, weights.y, squares);
        values.z = weigh(values.z, weights.z, squares);
        values.w = weigh(values.w, weights.w, squares);
      }
      x[i][part] = values;
    }
  }
  if (MODE == kAdded) return;
  squares += __shfl_xor_sync(0xffffffffu, squares, 1);
  squares += __shfl_xor_sync(0xffffffffu, squares, 2);
  if (t == 0) s.squares[warp][g] = squares;
  consumers_meet();
  const int column = warp * 32 + lane;
  if (column < kColumns) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += s.squares[w][column];
    s.scales[column] = rsqrtf(sum / job.K + job.epsilon);
  }  // seen by all after the first tile's barrier
}

template <int MODE>
__device__ __forceinline__ void consume(Shared& s, const Job& job, int warp, int lane) {
  const int g = lane / 4, t = lane % 4, me = warp * 32 + lane;
  uint4 x[kMostSteps][2];
  read_x<MODE>(x, s, job, warp, lane);
  const unsigned char* mine = s.stages[0] + g * kPitch + (warp * kChunk + t * 8) * 2;
  int stage = 0;
  u32 parity = 0;
  for (int tile = job.first; tile < job.tiles; tile += job.stride) {
    float c[4] = {};
#pragma unroll
    for (int i = 0; i < kMostSteps; ++i) {
      if (i * kStageK >= job.width) break;
      wait(&s.full[stage], parity);
      if (i * kStageK + warp * kChunk < job.width) {
        const unsigned char* rows = mine + stage * kStageBytes;
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          const uint4 low = *reinterpret_cast<const uint4*>(rows + part * 64);
          const uint4 high = *reinterpret_cast<const uint4*>(rows + 8 * kPitch + part * 64);
          multiply(c, low.x, high.x, low.y, high.y, x[i][part].x, x[i][part].y);
          multiply(c, low.z, high.z, low.w, high.w, x[i][part].z, x[i][part].w);
        }
      }
      __syncwarp();
      if (lane == 0) arrive(&s.empty[stage]);
      if (++stage == kStages) stage = 0, parity ^= 1;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) s.sums[warp][t * 2 + i % 2][g + i / 2 * 8] = c[i];
    consumers_meet();
    constexpr int outputs = (MODE == kGated ? kRows / 2 : kRows) * kColumns;
    if (me < outputs) finish<MODE>(s, job, tile, me);
    if (MODE == kAdded && job.pieces > 1)
      join_pieces(s, job, tile, me);
    else
      consumers_meet();  // the sums have been read
  }
}

// N: columns of out, a multiple of 16 (kGated: of 8; W has 2 N rows, gates first). A piece of K is a multiple of 64,
// at most 4,096, and all of K but for kAdded. batch <= 8. The grid is a multiple of `pieces`.
template <int MODE>
__device__ __forceinline__ void skinny(Job job) {
  extern __shared__ __align__(128) unsigned char memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  job.width = job.K / job.pieces;
  job.piece = blockIdx.x % job.pieces;
  job.k = job.piece * job.width;
  job.tiles = job.N / (MODE == kGated ? 8 : kRows);
  job.first = blockIdx.x / job.pieces;
  job.stride = gridDim.x / job.pieces;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) init(&s.full[i], kProducers), init(&s.empty[i], kWarps);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  if (warp >= kWarps) {
    // Weights never change: where launches overlap, they are read before x is there.
    if (lane < kRows / kProducers) produce<MODE>(s, job, warp - kWarps, lane);
  } else {
    asm volatile("griddepcontrol.wait;" ::: "memory");
    consume<MODE>(s, job, warp, lane);
  }
}

#define SKINNY(NAME, MODE)                                                                                            \
  extern "C" __global__ void __launch_bounds__((kWarps + kProducers) * 32, 1)                                         \
      NAME(const u16* W, const u16* x, const u16* norm, u16* out, int N, int K, int batch, float epsilon, int pieces, \
           float* partials, u32* arrivals) {                                                                          \
    skinny<MODE>(Job{W, x, norm, out, N, K, batch, epsilon, pieces, 0, 0, 0, partials, arrivals, 0, 0, 0});           \
  }
SKINNY(normed, kNormed)
SKINNY(added, kAdded)
SKINNY(gated, kGated)
