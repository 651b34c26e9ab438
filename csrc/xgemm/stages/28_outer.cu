// With a short K a product is a matter of writing D: many small blocks, each a few runs of rows,
// are on their way to memory at a time.
#include <iterator>

#include "xgemm/copy.h"
#include "xgemm/launch.h"

namespace xgemm::XGEMM_FLAVOUR::outer {

constexpr int kThreads = 128, kRows = 8;  // of a thread, at a time
constexpr Tile tile(int BM, float rate) {
  return {.BM = BM,
          .BN = 4 * kThreads,
          .BK = 1,
          .TM = BM,
          .TN = 4,
          .width = 4,
          .buffers = 0,
          .min_blocks = 4,
          .rate = rate};
}
constexpr Tile kTiles[] = {tile(kRows, 8.f), tile(4 * kRows, 10.f)};

// A slice of A, K-major: a thread's rows are neighbours, and all of a block read the same.
constexpr int kSlice = 32;
template <int BM>
__device__ __forceinline__ void load_a(float (&As)[kSlice][BM], const Gemm& g, int64_t i0,
                                       int64_t k0) {
  const int depth = slice_depth(g.k, k0, kSlice);
  for (int e = threadIdx.x; e < BM * ((depth + 7) / 8 * 8); e += kThreads) {
    const int i = e % BM, k = e / BM;
    As[k][i] = i0 + i < g.m && k < depth ? g.a(i0 + i, k0 + k) : kPadA;
  }
}

// The thread's columns of kDepth rows of B.
template <int kDepth>
__device__ __forceinline__ void load_b(float (&b)[kDepth][4], const Gemm& g, int64_t k0,
                                       const int64_t (&j)[4], bool vectors) {
#pragma unroll
  for (int k = 0; k < kDepth; ++k)
    if (k0 + k >= g.k) {
      b[k][0] = b[k][1] = b[k][2] = b[k][3] = kPadB;
    } else if (vectors) {
      load4(b[k], g.b.ptr(k0 + k, j[0]));
    } else {
#pragma unroll
      for (int c = 0; c < 4; ++c) b[k][c] = g.b(k0 + k, min_of(j[c], g.n - 1));
    }
}

// kDepth: of k, at a time in registers. kWide: whether D's rows are stored in vectors; a thread's
// columns are neighbours then.
template <int kRow, int kDepth, bool kWide>
__global__ void __launch_bounds__(kThreads, kTiles[kRow].min_blocks) kernel(const Gemm batch) {
  constexpr Tile T = kTiles[kRow];
  XGEMM_SHARED(As, float[kSlice][T.BM]);
  const Gemm g = batch.at(blockIdx.z);
  // Blocks side by side write side by side.
  const auto across = static_cast<uint32_t>(ceil_div(g.n, T.BN));
  const int64_t i0 = static_cast<int64_t>(blockIdx.x / across) * T.BM;
  const int64_t j0 = static_cast<int64_t>(blockIdx.x % across) * T.BN;
  int64_t j[4];
#pragma unroll
  for (int c = 0; c < 4; ++c)
    j[c] = j0 + (kWide ? threadIdx.x * 4 + c : threadIdx.x + c * kThreads);
  const bool whole = kWide && j[3] < g.n, vectors = whole && g.b.wide();
  // The epilogue without its choices, which would be most of the instructions.
  const bool plain = whole && g.beta == 0.f && g.act == Act::none;
  float b[kDepth][4];
#pragma unroll 1
  for (int row = 0; row < T.BM && i0 + row < g.m; row += kRows) {
    float acc[kRows][4] = {};
#pragma unroll 1
    for (int64_t k0 = 0; k0 < g.k; k0 += kDepth) {
      // What is there of a short K stays there for all rows.
      if (row == 0 || g.k > kDepth) load_b(b, g, k0, j, vectors);
      if (k0 % kSlice == 0 && (row == 0 || g.k > kSlice)) {
        if (row + k0 > 0) __syncthreads();  // all have read the slice before
        load_a(As, g, i0, k0);
        __syncthreads();
      }
#pragma unroll
      for (int k = 0; k < kDepth; ++k) {
        float a[kRows];
        load4(a, &As[k0 % kSlice + k][row]);
        load4(a + 4, &As[k0 % kSlice + k][row + 4]);
#pragma unroll
        for (int i = 0; i < kRows; ++i)
#pragma unroll
          for (int c = 0; c < 4; ++c) acc[i][c] = fmaf(a[i], b[k][c], acc[i][c]);
      }
    }
    const int64_t i = i0 + row;
    if (plain && i + kRows <= g.m) {
      float* d = g.d.ptr(i, j[0]);
#pragma unroll
      for (int r = 0; r < kRows; ++r, d += g.d.rs)
        store4(d, make_float4(g.alpha * acc[r][0], g.alpha * acc[r][1], g.alpha * acc[r][2],
                              g.alpha * acc[r][3]));
    } else {
#pragma unroll
      for (int r = 0; r < kRows; ++r)
#pragma unroll
        for (int c = 0; c < 4; ++c) g.store(i + r, j[c], acc[r][c]);
    }
  }
}

template <int kRow>
void run_row(const Gemm& all, const Context& context) {
  // D's rows are those that lie in one piece.
  const Gemm g = all.d.cs != 1 && all.d.rs == 1 ? transposed(all) : all;
  void (*const kernels[2][2])(Gemm) = {{kernel<kRow, 8, false>, kernel<kRow, 8, true>},
                                       {kernel<kRow, 1, false>, kernel<kRow, 1, true>}};
  launch_tiles(kernels[g.k <= 1][g.d.wide()], g, kTiles[kRow], dim3(kThreads), context);
}

void run(const Gemm& g, const Context& context) {
  constexpr void (*rows[])(const Gemm&, const Context&) = {run_row<0>, run_row<1>};
  static_assert(std::size(rows) == std::size(kTiles));
  rows[context.row](g, context);
}

static const Register stage(
    kFlavour, {.name = "outer",
               .rung = 28,
               .idea = "a short K: D is written at the speed of memory, from registers",
               .source = "beyond the seeds",
               .tiles = {std::begin(kTiles), std::end(kTiles)},
               .run = run});

}  // namespace xgemm::XGEMM_FLAVOUR::outer
