// With a short K a product is a matter of writing D: many small blocks, each a few runs of rows,
// are on their way to memory at a time.
#include <iterator>

#include "xgemm/copy.h"
#include "xgemm/fragment.h"
#include "xgemm/launch.h"

namespace xgemm::XGEMM_FLAVOUR::outer {

constexpr int kRows = 8, kColumns = 4;  // of a thread
constexpr Tile tile(int BM, int BN, int min_blocks, float rate) {
  return {.BM = BM,
          .BN = BN,
          .BK = 1,
          .TM = kRows,
          .TN = kColumns,
          .width = 4,
          .buffers = 0,
          .min_blocks = min_blocks,
          .rate = rate};
}
constexpr Tile kTiles[] = {tile(8, 512, 4, 8.f), tile(32, 256, 2, 10.f)};

// A slice of A, K-major: a thread's rows are neighbours, and all of a warp read the same.
constexpr int kSlice = 16;
template <int BM, int kThreads>
__device__ __forceinline__ void load_a(float (&As)[kSlice][BM], const Gemm& g, int64_t i0,
                                       int64_t k0) {
  const int depth = slice_depth(g.k, k0, kSlice);
  for (int e = threadIdx.x; e < BM * ((depth + 7) / 8 * 8); e += kThreads) {
    const int i = e % BM, k = e / BM;
    As[k][i] = i0 + i < g.m && k < depth ? g.a(i0 + i, k0 + k) : kPadA;
  }
}

// The thread's columns of kDepth rows of B.
template <int kStep, int kDepth>
__device__ __forceinline__ void load_b(float (&b)[kDepth][kColumns], const Gemm& g, int64_t k0,
                                       int64_t j, bool vectors) {
#pragma unroll
  for (int k = 0; k < kDepth; ++k)
    if (k0 + k >= g.k) {
      b[k][0] = b[k][1] = b[k][2] = b[k][3] = kPadB;
    } else if (vectors) {
      load4(b[k], g.b.ptr(k0 + k, j));
    } else {
#pragma unroll
      for (int c = 0; c < 4; ++c) b[k][c] = g.b(k0 + k, min_of(j + c * kStep, g.n - 1));
    }
}

// The epilogue of a thread's rows from i on: its choices are made once for all of them, since they
// would be most of the instructions. whole: columns are neighbours, exist, and move as a vector.
template <int kStep>
__device__ __forceinline__ void store(const Gemm& g, float (&acc)[kRows][kColumns], int64_t i,
                                      int64_t j, bool whole) {
  const auto exists = [&](int r, int c) { return i + r < g.m && j + c * kStep < g.n; };
  const auto each = [&](auto change) {
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
      for (int c = 0; c < 4; ++c) acc[r][c] = change(r, c, acc[r][c]);
  };
  if (g.beta == 0.f) each([&](int, int, float x) { return g.without_c(x); });
  else
    each([&](int r, int c, float x) {
      return g.with_c(x, exists(r, c) ? g.c(i + r, j + c * kStep) : 0.f);
    });
  if (g.act != Act::none) each([&](int, int, float x) { return activate(g.act, x); });
  float* d = g.d.ptr(i, j);
#pragma unroll
  for (int r = 0; r < kRows; ++r, d += g.d.rs)
    if (whole && i + r < g.m) {
      store4(d, make_float4(acc[r][0], acc[r][1], acc[r][2], acc[r][3]));
    } else {
#pragma unroll
      for (int c = 0; c < 4; ++c)
        if (exists(r, c)) g.d(i + r, j + c * kStep) = acc[r][c];
    }
}

// kDepth: of k, at a time in registers. kWide: whether D's rows are stored in vectors; a thread's
// columns are neighbours then.
template <int kRow, int kDepth, bool kWide>
__global__ void __launch_bounds__(kTiles[kRow].threads(), kTiles[kRow].min_blocks)
    kernel(const Gemm batch) {
  constexpr Tile T = kTiles[kRow];
  constexpr int kAcross = T.BN / kColumns;  // threads side by side
  XGEMM_SHARED(As, float[kSlice][T.BM]);
  const Gemm g = batch.at(blockIdx.z);
  // Blocks side by side write side by side.
  const auto across = static_cast<uint32_t>(ceil_div(g.n, T.BN));
  const int64_t i0 = static_cast<int64_t>(blockIdx.x / across) * T.BM;
  const int64_t j0 = static_cast<int64_t>(blockIdx.x % across) * T.BN;
  const int tx = threadIdx.x % kAcross, ty = threadIdx.x / kAcross * kRows;
  // A thread's columns are neighbours, or as far apart as there are threads side by side.
  constexpr int kStep = kWide ? 1 : kAcross;
  const int64_t j = j0 + (kWide ? tx * kColumns : tx);
  const bool whole = kWide && j + 3 < g.n, vectors = whole && g.b.wide();
  float acc[kRows][kColumns] = {};
#pragma unroll 1
  for (int64_t k0 = 0; k0 < g.k; k0 += kDepth) {
    float b[kDepth][kColumns];
    load_b<kStep>(b, g, k0, j, vectors);
    if (k0 % kSlice == 0) {
      if (k0 > 0) __syncthreads();  // all have read the slice before
      load_a<T.BM, T.threads()>(As, g, i0, k0);
      __syncthreads();
    }
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
      float a[kRows];
      load4(a, &As[k0 % kSlice + k][ty]);
      load4(a + 4, &As[k0 % kSlice + k][ty + 4]);
      outer_product<Order::rows>(acc, a, b[k]);
    }
  }
  store<kStep>(g, acc, i0 + ty, j, whole);
}

template <int kRow>
void run_row(const Gemm& all, const Context& context) {
  // D's rows are those that lie in one piece.
  const Gemm g = all.d.cs != 1 && all.d.rs == 1 ? transposed(all) : all;
  void (*const kernels[2][2])(Gemm) = {{kernel<kRow, 8, false>, kernel<kRow, 8, true>},
                                       {kernel<kRow, 1, false>, kernel<kRow, 1, true>}};
  launch_tiles(kernels[g.k <= 1][g.d.wide()], g, kTiles[kRow], dim3(kTiles[kRow].threads()),
               context);
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
