// Both shared tiles K-major, [BK][BM] and [BK][BN], filled by one generic loop of all threads: what
// is read together lies together.
//
// Both slices lie K-major, so that what is read together for one k lies together, and one loop
// fills both: element t of a slice is the business of thread t mod the number of threads, whichever
// operand it is. A's fragment is eight neighbours now. The source still reads them one by one, and
// the counts below, which are of the source, are those of the rung before; but the compiler joins
// them. For each k the machine code has two reads of 16 bytes (`LDS.128`); where A lay row by row
// it could only join two neighbours along k, eight reads of 8 bytes for every two k. B's fragment,
// whose elements are as far apart as a row of threads is wide, stays at eight reads of 4.

#include "xgemm/device/copy/gmem.h"
#include "xgemm/device/fragment.h"
#include "xgemm/device/launch.h"

namespace xgemm::XGEMM_FLAVOUR::block_tile_kmajor {

constexpr Tile kTile{.BM = 128,
                     .BN = 128,
                     .BK = 16,
                     .TM = 8,
                     .TN = 8,
                     .buffers = 1,
                     .pad_a = 4,
                     .pad_b = 4,
                     .a_rows = 16,
                     .min_blocks = 2,
                     .rate = 39.2f};
constexpr int BM = kTile.BM, BN = kTile.BN, BK = kTile.BK, TM = kTile.TM, TN = kTile.TN;
constexpr int kColumns = BN / TN;

template <bool kA, bool kB>  // whether A, B transposed are walked along k
__global__ void __launch_bounds__(kTile.threads(), kTile.min_blocks) kernel(const Gemm batch) {
  XGEMM_SHARED(As, float[BK][BM + kTile.pad_a]);
  XGEMM_SHARED(Bs, float[BK][BN + kTile.pad_b]);
  const Gemm g = batch.at(blockIdx.z);
  const TileCoord o = swizzled_tile<kTile>(blockIdx.x, g);
  const int tx = threadIdx.x % kColumns, ty = threadIdx.x / kColumns * TM;

  Loader<kTile.threads(), BM, BK, 1, kA> a(g.a, o.i, g.m, g.k, kPadA);
  Loader<kTile.threads(), BN, BK, 1, kB> b(g.b.transposed(), o.j, g.n, g.k, kPadB);
  float acc[TM][TN] = {};
  for (int64_t k0 = 0; k0 < g.k; k0 += BK) {
    a.fetch();
    b.fetch();
    a.store_columns(As);
    b.store_columns(Bs);
    __syncthreads();
#pragma unroll 4
    for (int k = 0; k < BK; ++k) {
      float ra[TM], rb[TN];
#pragma unroll
      for (int i = 0; i < TM; ++i) ra[i] = As[k][ty + i];
#pragma unroll
      for (int j = 0; j < TN; ++j) rb[j] = Bs[k][tx + j * kColumns];
      outer_product<Order::columns>(acc, ra, rb);
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < TM; ++i)
#pragma unroll
    for (int j = 0; j < TN; ++j) g.store(o.i + ty + i, o.j + tx + j * kColumns, acc[i][j]);
}

void run(const Gemm& g, const Context& context) {
  launch_tiles_by_major([](auto a, auto b) { return kernel<a(), b()>; }, g, kTile, context);
}

static const Register<run> stage(
    kFlavour, {.name = "block_tile_kmajor",
               .rung = 13,
               .idea = "both shared tiles K-major, filled by a generic cooperative fetch loop",
               .source = "L v3 + cooperative fetching",
               .tiles = {kTile},
               .auto_choice = false});

}  // namespace xgemm::XGEMM_FLAVOUR::block_tile_kmajor
