// 16-byte accesses everywhere on a small tile: gmem loads, fragments (both slices K-major in smem),
// stores of C.
//
// Vectors everywhere: global loads, shared stores where the layout allows, reads of fragments,
// stores of C. The tile is small, so more blocks exist and small problems fill the GPU; each thread
// has fewer products to hide its loads behind.
//
// against: micro_4x1_vec4, as it follows it in its source; rungs 11 to 13 are of other ladders

#include "xgemm/device/copy/gmem.h"
#include "xgemm/device/fragment.h"
#include "xgemm/device/launch.h"

namespace xgemm::XGEMM_FLAVOUR::vec4_64x64 {

// Rows of 68 floats: an operand contiguous along k is stored down a column, 4 lanes a row, without
// a bank conflict.
constexpr Tile kTile{.BM = 64,
                     .BN = 64,
                     .BK = 16,
                     .TM = 4,
                     .TN = 4,
                     .width = 4,
                     .buffers = 1,
                     .pad_a = 4,
                     .pad_b = 4,
                     .a_rows = 16,
                     .min_blocks = 4,
                     .rate = 30.5f};
constexpr int BM = kTile.BM, BN = kTile.BN, BK = kTile.BK, TM = kTile.TM, TN = kTile.TN;
constexpr int W = kTile.width, kColumns = BN / TN;

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
      load4(rb, &Bs[k][tx]);
      outer_product<Order::rows>(acc, ra, rb);
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < TM; ++i) store_row4(g, o.i + ty + i, o.j + tx, acc[i]);
}

void run(const Gemm& g, const Context& context) {
  launch_tiles_by_major([](auto a, auto b) { return kernel<a(), b()>; }, g, kTile, context);
}

static const Register<run> stage(
    kFlavour, {.name = "vec4_64x64",
               .rung = 14,
               .idea = "16-byte accesses everywhere, shared reads too; 4 x 4 results a thread",
               .source = "S v6",
               .tiles = {kTile},
               .auto_choice = false});

}  // namespace xgemm::XGEMM_FLAVOUR::vec4_64x64
