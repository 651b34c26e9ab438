// A thread computes TM x TN = 8 x 8 elements from 8 + 8 fragments in registers: 64 products for 16
// reads of shared memory.
//
// A square of 8 x 8 results in registers, fed by fragments of 8 + 8: the outer product of rung 4
// with its operands in shared memory. For the first time the multiply-adds far outnumber the loads.

#include "xgemm/device/copy/gmem.h"
#include "xgemm/device/fragment.h"
#include "xgemm/device/launch.h"

namespace xgemm::XGEMM_FLAVOUR::block_tile_2d {

// A is row-major in shared memory, its rows padded to 20 floats so that 16-byte reads along k stay
// aligned.
constexpr Tile kTile{.BM = 128,
                     .BN = 128,
                     .BK = 16,
                     .TM = 8,
                     .TN = 8,
                     .buffers = 1,
                     .pad_a = 4,
                     .pad_b = 4,
                     .a_rows = 128,
                     .min_blocks = 2,
                     .rate = 35.4f};
constexpr int BM = kTile.BM, BN = kTile.BN, BK = kTile.BK, TM = kTile.TM, TN = kTile.TN;
// Threads down and across a tile; also the distance between a thread's elements.
constexpr int kRows = BM / TM, kColumns = BN / TN;

template <bool kA, bool kB>  // whether A, B transposed are walked along k
__global__ void __launch_bounds__(kTile.threads(), kTile.min_blocks) kernel(const Gemm batch) {
  XGEMM_SHARED(As, float[BM][BK + kTile.pad_a]);
  XGEMM_SHARED(Bs, float[BK][BN + kTile.pad_b]);
  const Gemm g = batch.at(blockIdx.z);
  const TileCoord o = swizzled_tile<kTile>(blockIdx.x, g);
  const int tx = threadIdx.x % kColumns, ty = threadIdx.x / kColumns;

  Loader<kTile.threads(), BM, BK, 1, kA> a(g.a, o.i, g.m, g.k, kPadA);
  Loader<kTile.threads(), BN, BK, 1, kB> b(g.b.transposed(), o.j, g.n, g.k, kPadB);
  float acc[TM][TN] = {};
  for (int64_t k0 = 0; k0 < g.k; k0 += BK) {
    a.fetch();
    b.fetch();
    a.store_rows(As);
    b.store_columns(Bs);
    __syncthreads();
#pragma unroll 2  // of 1, 2, 4, 8, 16 the fastest
    for (int k = 0; k < BK; ++k) {
      float ra[TM], rb[TN];
#pragma unroll
      for (int i = 0; i < TM; ++i) ra[i] = As[ty + i * kRows][k];
#pragma unroll
      for (int j = 0; j < TN; ++j) rb[j] = Bs[k][tx + j * kColumns];
      outer_product<Order::rows>(acc, ra, rb);
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < TM; ++i)
#pragma unroll
    for (int j = 0; j < TN; ++j) g.store(o.i + ty + i * kRows, o.j + tx + j * kColumns, acc[i][j]);
}

void run(const Gemm& g, const Context& context) {
  launch_tiles_by_major([](auto a, auto b) { return kernel<a(), b()>; }, g, kTile, context);
}

static const Register<run> stage(kFlavour,
                                 {.name = "block_tile_2d",
                                  .rung = 12,
                                  .idea = "8 x 8 results a thread from fragments in registers",
                                  .source = "X 05",
                                  .tiles = {kTile},
                                  .auto_choice = false});

}  // namespace xgemm::XGEMM_FLAVOUR::block_tile_2d
