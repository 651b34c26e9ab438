// The next slice is fetched into registers before this one is multiplied, and so are the fragments
// of the next k: loads and products overlap within a thread.
//
// While a slice is multiplied the next one is already on its way from global memory into registers,
// and the fragments of the next k are read while those of this one are used. In the timeline the
// loads run one slice ahead of the reads. There is still one shared buffer, so still two barriers.

#include "xgemm/device/copy/gmem.h"
#include "xgemm/device/fragment.h"
#include "xgemm/device/launch.h"

namespace xgemm::XGEMM_FLAVOUR::register_prefetch {

// Rows of 132 floats: an operand contiguous along k is stored down a column, 2 lanes a row, without
// a bank conflict.
constexpr Tile kTile{.BM = 128,
                     .BN = 128,
                     .BK = 8,
                     .WM = 32,
                     .WN = 64,
                     .TM = 8,
                     .TN = 8,
                     .width = 4,
                     .buffers = 1,
                     .pad_a = 4,
                     .pad_b = 4,
                     .a_rows = 8,
                     .min_blocks = 2,
                     .rate = 46.4f};
constexpr int BM = kTile.BM, BN = kTile.BN, BK = kTile.BK, TM = kTile.TM, TN = kTile.TN;
constexpr int WM = kTile.WM, WN = kTile.WN, W = kTile.width;
// A thread has 4 rows and 4 columns in each quarter of its warp's tile.
constexpr int kHalfM = WM / 2, kHalfN = WN / 2;

template <bool kA, bool kB>  // whether A, B transposed are contiguous along k
__global__ void __launch_bounds__(kTile.threads(), kTile.min_blocks) kernel(const Gemm batch) {
  XGEMM_SHARED(As, float[BK][BM + kTile.pad_a]);
  XGEMM_SHARED(Bs, float[BK][BN + kTile.pad_b]);
  const Gemm g = batch.at(blockIdx.z);
  const TileCoord o = swizzled_tile<kTile>(blockIdx.x, g);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int ty = warp / (BN / WN) * WM + lane_row(lane) * W;
  const int tx = warp % (BN / WN) * WN + lane_column(lane) * W;

  Loader<kTile.threads(), BM, BK, W, kA> a(g.a, o.i, g.m, g.k, kPadA);
  Loader<kTile.threads(), BN, BK, W, kB> b(g.b.transposed(), o.j, g.n, g.k, kPadB);
  float acc[TM][TN] = {}, ra[2][TM], rb[2][TN];
  a.fetch();
  b.fetch();
  for (int64_t k0 = 0; k0 < g.k; k0 += BK) {
    a.store_columns(As);
    b.store_columns(Bs);
    __syncthreads();
    if (k0 + BK < g.k) {  // in flight while this slice is multiplied
      a.fetch();
      b.fetch();
    }
    load_fragment<kHalfM>(ra[0], &As[0][ty]);
    load_fragment<kHalfN>(rb[0], &Bs[0][tx]);
#pragma unroll
    for (int k = 0; k < BK; ++k) {
      const int now = k % 2;
      if (k + 1 < BK) {
        load_fragment<kHalfM>(ra[1 - now], &As[k + 1][ty]);
        load_fragment<kHalfN>(rb[1 - now], &Bs[k + 1][tx]);
      }
      outer_product<Order::columns_halves>(acc, ra[now], rb[now]);
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
    {.name = "register_prefetch",
     .rung = 17,
     .idea = "the next slice waits in registers; fragments of k + 1 load while k is multiplied",
     .source = "S v9 (code)",
     .tiles = {kTile}});

}  // namespace xgemm::XGEMM_FLAVOUR::register_prefetch
