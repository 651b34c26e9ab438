// Two shared buffers: the next slice is stored into one while the other is read, and a slice costs
// one barrier instead of two.
//
// With a second buffer the next slice can be stored while this one is still read, so one of the two
// barriers goes. The timeline shows stores and reads side by side in one phase: of different
// slices, in different buffers.

#include "xgemm/device/copy/gmem.h"
#include "xgemm/device/fragment.h"
#include "xgemm/device/launch.h"

namespace xgemm::XGEMM_FLAVOUR::smem_double_buffered {

// Slices of 16, and fragments of one k: with the source's 8, and fragments of two, there is less to
// multiply between barriers and registers run short: 89% of cuBLAS instead of 96% (4096^3, H200).
constexpr Tile kTile{.BM = 128,
                     .BN = 128,
                     .BK = 16,
                     .WM = 32,
                     .WN = 64,
                     .TM = 8,
                     .TN = 8,
                     .width = 4,
                     .buffers = 2,
                     .pad_a = 4,
                     .pad_b = 4,
                     .a_rows = 16,
                     .min_blocks = 2,
                     .rate = 47.8f};
constexpr int BM = kTile.BM, BN = kTile.BN, BK = kTile.BK, TM = kTile.TM, TN = kTile.TN;
constexpr int WM = kTile.WM, WN = kTile.WN, W = kTile.width;
// A thread has 4 rows and 4 columns in each quarter of its warp's tile.
constexpr int kHalfM = WM / 2, kHalfN = WN / 2;

template <bool kA, bool kB>  // whether A, B transposed are contiguous along k
__global__ void __launch_bounds__(kTile.threads(), kTile.min_blocks) kernel(const Gemm batch) {
  XGEMM_SHARED(As, float[2][BK][BM + kTile.pad_a]);
  XGEMM_SHARED(Bs, float[2][BK][BN + kTile.pad_b]);
  const Gemm g = batch.at(blockIdx.z);
  const TileCoord o = swizzled_tile<kTile>(blockIdx.x, g);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int ty = warp / (BN / WN) * WM + lane_row(lane) * W;
  const int tx = warp % (BN / WN) * WN + lane_column(lane) * W;

  Loader<kTile.threads(), BM, BK, W, kA> a(g.a, o.i, g.m, g.k, kPadA);
  Loader<kTile.threads(), BN, BK, W, kB> b(g.b.transposed(), o.j, g.n, g.k, kPadB);
  float acc[TM][TN] = {};
  a.fetch();
  b.fetch();
  a.store_columns(As[0]);
  b.store_columns(Bs[0]);
  __syncthreads();
  int buffer = 0;
  for (int64_t k0 = 0; k0 < g.k; k0 += BK, buffer ^= 1) {
    const bool more = k0 + BK < g.k;
    if (more) {  // in flight while this slice is multiplied
      a.fetch();
      b.fetch();
    }
    const auto &as = As[buffer], &bs = Bs[buffer];
#pragma unroll
    for (int k = 0; k < BK; ++k) {
      float ra[TM], rb[TN];
      load_fragment<kHalfM>(ra, &as[k][ty]);
      load_fragment<kHalfN>(rb, &bs[k][tx]);
      outer_product<Order::columns>(acc, ra, rb);
    }
    if (more) {  // into the other buffer, which was last read before the barrier before
      a.store_columns(As[buffer ^ 1]);
      b.store_columns(Bs[buffer ^ 1]);
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < TM; ++i) {
    const int64_t row = o.i + ty + i % W + i / W * kHalfM;
    store_row4(g, row, o.j + tx, acc[i]);
    store_row4(g, row, o.j + kHalfN + tx, acc[i] + W);
  }
}

void run(const Gemm& g, const Context& context) {
  launch_tiles_by_major([](auto a, auto b) { return kernel<a(), b()>; }, g, kTile, context);
}

static const Register<run> stage(
    kFlavour,
    {.name = "smem_double_buffered",
     .rung = 18,
     .idea = "two shared buffers: one is filled while the other is read, one barrier a slice",
     .source = "S v9 (prose)",
     .tiles = {kTile},
     .auto_choice = false});

}  // namespace xgemm::XGEMM_FLAVOUR::smem_double_buffered
