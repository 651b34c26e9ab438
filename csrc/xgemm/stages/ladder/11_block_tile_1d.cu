// A thread computes a column of TM = 8 elements: one element of B, read once into a register,
// serves eight products.
//
// A larger block tile with a flat slice, and eight results a thread down a column: the element of B
// stays in a register while eight of A pass. Larger tiles also ask less of global memory, because a
// slice that is loaded once serves more results.
//
// against: smem_tiled, as it follows it in its sources; rungs 6 to 10 are of another ladder

#include "xgemm/device/copy/gmem.h"
#include "xgemm/device/launch.h"

namespace xgemm::XGEMM_FLAVOUR::block_tile_1d {

// A lies K-major: a thread's 8 rows are neighbours, two 16-byte reads, and 40 registers do, so that
// three blocks fit.
constexpr Tile kTile{.BM = 64,
                     .BN = 64,
                     .BK = 8,
                     .TM = 8,
                     .buffers = 1,
                     .pad_a = 4,
                     .pad_b = 4,
                     .a_rows = 8,
                     .min_blocks = 3,
                     .rate = 19.6f};
constexpr int BM = kTile.BM, BN = kTile.BN, BK = kTile.BK, TM = kTile.TM;

template <bool kA, bool kB>  // whether A, B transposed are walked along k
__global__ void __launch_bounds__(kTile.threads(), kTile.min_blocks) kernel(const Gemm batch) {
  XGEMM_SHARED(As, float[BK][BM + kTile.pad_a]);
  XGEMM_SHARED(Bs, float[BK][BN + kTile.pad_b]);
  const Gemm g = batch.at(blockIdx.z);
  const TileCoord o = swizzled_tile<kTile>(blockIdx.x, g);
  const int tx = threadIdx.x % BN, ty = threadIdx.x / BN * TM;

  Loader<kTile.threads(), BM, BK, 1, kA> a(g.a, o.i, g.m, g.k, kPadA);
  Loader<kTile.threads(), BN, BK, 1, kB> b(g.b.transposed(), o.j, g.n, g.k, kPadB);
  float acc[TM] = {};
  for (int64_t k0 = 0; k0 < g.k; k0 += BK) {
    a.fetch();
    b.fetch();
    a.store_columns(As);
    b.store_columns(Bs);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < BK; ++k) {
      const float bk = Bs[k][tx];
#pragma unroll
      for (int i = 0; i < TM; ++i) acc[i] = fmaf(As[k][ty + i], bk, acc[i]);
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < TM; ++i) g.store(o.i + ty + i, o.j + tx, acc[i]);
}

void run(const Gemm& g, const Context& context) {
  launch_tiles_by_major([](auto a, auto b) { return kernel<a(), b()>; }, g, kTile, context);
}

static const Register<run> stage(
    kFlavour, {.name = "block_tile_1d",
               .rung = 11,
               .idea = "a column of 8 results a thread; the element of B stays in a register",
               .source = "X 04, C 2",
               .tiles = {kTile},
               .auto_choice = false});

}  // namespace xgemm::XGEMM_FLAVOUR::block_tile_1d
