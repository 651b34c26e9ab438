// The block's tile is cut into warp tiles of 32 x 64: a warp's lanes share rows and columns, so
// that it reads less of shared memory for its products.
//
// A warp gets a compact rectangle of the tile instead of long rows, so that for one k its lanes
// need fewer different words of A and B together. How the lanes lie in it matters as much: a read
// of 16 bytes serves half a warp at once only if neighbouring lanes, or lanes two apart, want the
// same 16 bytes. So lane i and i ^ 1 stand in one column here, and the wavefronts of a read fall to
// two.

#include "xgemm/device/copy/gmem.h"
#include "xgemm/device/fragment.h"
#include "xgemm/device/launch.h"

namespace xgemm::XGEMM_FLAVOUR::warp_tiled {

// Slices of 16: with the source's 8 the two blocks of an SM wait for gmem too often, 86% of cuBLAS
// instead of 93% (4096^3, H200). Rows of 132 floats: an operand contiguous along k is stored down a
// column, 4 lanes a row, 2 of them to a bank.
constexpr Tile kTile{.BM = 128,
                     .BN = 128,
                     .BK = 16,
                     .WM = 32,
                     .WN = 64,
                     .TM = 8,
                     .TN = 8,
                     .width = 4,
                     .buffers = 1,
                     .pad_a = 4,
                     .pad_b = 4,
                     .a_rows = 16,
                     .min_blocks = 2,
                     .rate = 45.8f};
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
  float acc[TM][TN] = {};
  for (int64_t k0 = 0; k0 < g.k; k0 += BK) {
    a.fetch();
    b.fetch();
    a.store_columns(As);
    b.store_columns(Bs);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < BK; ++k) {
      float ra[TM], rb[TN];
      load_fragment<kHalfM>(ra, &As[k][ty]);
      load_fragment<kHalfN>(rb, &Bs[k][tx]);
      outer_product<Order::columns>(acc, ra, rb);
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
    kFlavour, {.name = "warp_tiled",
               .rung = 16,
               .idea = "eight warps, each a 32 x 64 tile; a warp reads little and broadcasts much",
               .source = "S v8",
               .tiles = {kTile},
               .auto_choice = false});

}  // namespace xgemm::XGEMM_FLAVOUR::warp_tiled
