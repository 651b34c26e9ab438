// The same tile with 16-byte accesses everywhere: gmem loads, fragments (both slices K-major in
// smem), stores of C.
//
// Both at once: the large tile and its 8 x 8 results a thread, and 16-byte accesses everywhere. A
// thread's results lie in four groups of 4 x 4, so that neighbouring lanes read neighbouring
// vectors.
//
// against: block_tile_2d, as both compute 128 x 128 by 8 x 8 a thread; vectors are new

#include "xgemm/device/copy/gmem.h"
#include "xgemm/device/fragment.h"
#include "xgemm/device/launch.h"

namespace xgemm::XGEMM_FLAVOUR::vec4_128x128 {

// Rows of 132 floats: an operand contiguous along k is stored down a column, 2 lanes a row, without
// a bank conflict.
constexpr Tile kTile{.BM = 128,
                     .BN = 128,
                     .BK = 8,
                     .TM = 8,
                     .TN = 8,
                     .width = 4,
                     .buffers = 1,
                     .pad_a = 4,
                     .pad_b = 4,
                     .a_rows = 8,
                     .min_blocks = 2,
                     .rate = 39.9f};
constexpr int BM = kTile.BM, BN = kTile.BN, BK = kTile.BK, TM = kTile.TM, TN = kTile.TN;
constexpr int W = kTile.width, kColumns = BN / TN;
// A thread has 4 rows and 4 columns in each half of the tile, so that neighbouring lanes' vectors
// are neighbours in shared memory.
constexpr int kHalfM = BM / 2, kHalfN = BN / 2;

template <bool kA, bool kB>  // whether A, B transposed are contiguous along k
__global__ void __launch_bounds__(kTile.threads(), kTile.min_blocks) kernel(const Gemm batch) {
  XGEMM_SHARED(As, float[BK][BM + kTile.pad_a]);
  XGEMM_SHARED(Bs, float[BK][BN + kTile.pad_b]);
  const Gemm g = batch.at(blockIdx.z);
  const TileCoord o = swizzled_tile<kTile>(blockIdx.x, g);
  const int tx = threadIdx.x % kColumns * W, ty = threadIdx.x / kColumns * W;

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
      load4(ra, &As[k][ty]);
      load4(ra + W, &As[k][kHalfM + ty]);
      load4(rb, &Bs[k][tx]);
      load4(rb + W, &Bs[k][kHalfN + tx]);
      outer_product<Order::rows>(acc, ra, rb);
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
    kFlavour, {.name = "vec4_128x128",
               .rung = 15,
               .idea = "16-byte accesses to gmem, smem and C; A transposed in shared memory",
               .source = "S v7, X 06",
               .tiles = {kTile},
               .auto_choice = false});

}  // namespace xgemm::XGEMM_FLAVOUR::vec4_128x128
