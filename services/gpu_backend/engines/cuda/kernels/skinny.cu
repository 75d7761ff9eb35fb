// skinny.cu: out[batch, N] = x[batch, K] W[N, K]^T in bfloat16 for few rows of x, which is reading W once (B10).
//
// W goes from memory straight into the tensor cores' registers. mma.m16n8k16 wants of each thread
// scattered pairs of a row; but the order of k within a sum is free, so a thread takes 8 neighbouring k
// of W and the same 8 of x, and 16-byte loads fill the operands of two mma. W's rows are the 16 rows of
// the mma, x's rows its 8 columns. A block owns 16 RT rows of W; its 8 warps share out K and add up at the end.
//
//   k of a warp's chunk of 64:  | quad thread 0: 0-7 | 1: 8-15 | 2: 16-23 | 3: 24-31 |, then the same + 32
//
// Fused: the RMSNorm of x (the scale of a row commutes with the product, its square sum is gathered on the
// way), the residual, SwiGLU (gate rows and up rows side by side in one mma).

using u16 = unsigned short;
using u32 = unsigned int;

enum Mode { kNormed = 0, kAdded = 1, kGated = 2 };

constexpr int kWarps = 8, kChunk = 64;

__device__ __forceinline__ uint4 load_once(const u16* at) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at));
  return v;
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
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// RT: tiles of 16 rows of W a block. NT: tiles of 8 rows of x, batch <= 8 NT. K a multiple of 64.
// N: rows of out; a multiple of 16 RT (kGated: of 8 RT; W has 2 N rows, gates first).
template <int MODE, int RT, int NT, int UNROLL>
__device__ __forceinline__ void skinny(const u16* W, const u16* x, const u16* norm, u16* out, int N, int K, int batch, float epsilon) {
  constexpr int kRows = 16 * RT, kColumns = 8 * NT;
  __shared__ float sums[kWarps][kColumns][kRows + 1];
  __shared__ float square_sums[kWarps][kColumns];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int chunks = K / kChunk;

  const u16* rows[RT][2];
#pragma unroll
  for (int r = 0; r < RT; ++r) {
    const long first = MODE == kGated ? long(blockIdx.x) * 8 * RT + r * 8 + g : long(blockIdx.x) * kRows + r * 16 + g;
    rows[r][0] = W + first * K + t * 8;
    rows[r][1] = W + (MODE == kGated ? first + N : first + 8) * K + t * 8;
  }
  float c[RT][NT][4] = {};
  float squares[NT] = {};
  uint4 a[UNROLL][RT][2][2];

  const auto fetch = [&](int first) {
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      const int chunk = first + u * kWarps;
#pragma unroll
      for (int r = 0; r < RT; ++r)
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
          for (int part = 0; part < 2; ++part)
            a[u][r][half][part] = chunk < chunks ? load_once(rows[r][half] + chunk * kChunk + part * 32) : uint4{0, 0, 0, 0};
    }
  };

  fetch(warp);
  // With programmatic launch this kernel starts before x is there; weights never change.
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");

  for (int first = warp; first < chunks; first += UNROLL * kWarps) {
    if (first != warp) fetch(first);
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      const int chunk = first + u * kWarps;
      if (chunk >= chunks) break;
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const int k = chunk * kChunk + part * 32 + t * 8;
        uint4 w{};
        if (MODE != kAdded) w = load(norm + k);
#pragma unroll
        for (int n = 0; n < NT; ++n) {
          const int row = n * 8 + g;
          uint4 b = row < batch ? load(x + long(row) * K + k) : uint4{0, 0, 0, 0};
          if (MODE != kAdded) {
            b.x = weigh(b.x, w.x, squares[n]);
            b.y = weigh(b.y, w.y, squares[n]);
            b.z = weigh(b.z, w.z, squares[n]);
            b.w = weigh(b.w, w.w, squares[n]);
          }
#pragma unroll
          for (int r = 0; r < RT; ++r) {
            const uint4 &low = a[u][r][0][part], &high = a[u][r][1][part];
            multiply(c[r][n], low.x, high.x, low.y, high.y, b.x, b.y);
            multiply(c[r][n], low.z, high.z, low.w, high.w, b.z, b.w);
          }
        }
      }
    }
  }

#pragma unroll
  for (int n = 0; n < NT; ++n) {
#pragma unroll
    for (int r = 0; r < RT; ++r)
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[warp][n * 8 + t * 2 + i % 2][r * 16 + g + i / 2 * 8] = c[r][n][i];
    if (MODE != kAdded) {
      squares[n] += __shfl_xor_sync(0xffffffffu, squares[n], 1);
      squares[n] += __shfl_xor_sync(0xffffffffu, squares[n], 2);
      if (t == 0) square_sums[warp][n * 8 + g] = squares[n];
    }
  }
  __syncthreads();

  constexpr int kOut = MODE == kGated ? kRows / 2 : kRows;
  for (int i = threadIdx.x; i < kOut * kColumns; i += kWarps * 32) {
    const int column = i / kOut, n = i % kOut;
    if (column >= batch) break;
    const int row = MODE == kGated ? n / 8 * 16 + n % 8 : n;
    float sum = 0, up = 0, scale = 1;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += sums[w][column][row];
    if (MODE != kAdded) {
      float square_sum = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) square_sum += square_sums[w][column];
      scale = rsqrtf(square_sum / K + epsilon);
    }
    u16* at = out + long(column) * N + long(blockIdx.x) * kOut + n;
    if (MODE == kGated) {
#pragma unroll
      for (int w = 0; w < kWarps; ++w) up += sums[w][column][row + 8];
      const float gate = sum * scale;
      *at = rounded(gate / (1.0f + __expf(-gate)) * (up * scale));
    } else if (MODE == kAdded) {
      *at = rounded(sum + __uint_as_float(static_cast<u32>(*at) << 16));
    } else {
      *at = rounded(sum * scale);
    }
  }
}

#define SKINNY(NAME, MODE, RT, NT, UNROLL)                                                                  \
  extern "C" __global__ void __launch_bounds__(kWarps * 32, 2) NAME##_##RT##_##NT(                          \
      const u16* W, const u16* x, const u16* norm, u16* out, int N, int K, int batch, float epsilon) {      \
    skinny<MODE, RT, NT, UNROLL>(W, x, norm, out, N, K, batch, epsilon);                                    \
  }
#define SKINNY_MODES(RT, NT, UNROLL)        \
  SKINNY(normed, kNormed, RT, NT, UNROLL)   \
  SKINNY(added, kAdded, RT, NT, UNROLL)     \
  SKINNY(gated, kGated, RT, NT, UNROLL)

SKINNY_MODES(1, 1, 4)
SKINNY_MODES(2, 1, 2)
SKINNY_MODES(1, 2, 4)
SKINNY_MODES(2, 2, 2)
SKINNY_MODES(2, 4, 2)
