// smem_tiled with B's slice lying column by column: 32 lanes, 32 floats apart, all hit one bank,
// when they store and when they read. Slow on purpose.
//
// Shared memory has 32 banks, four bytes wide: the word at address w lies in bank w mod 32. Here
// B's slice lies column by column with a stride of 32, so the 32 lanes of a warp, side by side in a
// row, all ask one bank and are served one after the other, when they store and when they read. The
// picture of the banks shows one column as high as the warp is wide. Slow on purpose.

#include "xgemm/device/copy/gmem.h"
#include "xgemm/device/launch.h"

namespace xgemm::XGEMM_FLAVOUR::smem_conflicted {

constexpr Tile kTile{.BM = 32,
                     .BN = 32,
                     .BK = 32,
                     .buffers = 1,
                     .a_rows = 32,
                     .min_blocks = 2,
                     .group = 16,
                     .rate = 1.7f};
constexpr int BM = kTile.BM, BN = kTile.BN, BK = kTile.BK;

__global__ void __launch_bounds__(kTile.threads(), kTile.min_blocks) kernel(const Gemm batch) {
  XGEMM_SHARED(As, float[BM][BK]);
  XGEMM_SHARED(Bs, float[BN][BK]);
  const Gemm g = batch.at(blockIdx.z);
  const TileCoord o = swizzled_tile<kTile>(blockIdx.x, g);
  const int tx = threadIdx.x, ty = threadIdx.y;

  // Who loads what: lanes run along the stride that is 1, whichever that is.
  const bool a_across = g.a.rs < g.a.cs, b_across = g.b.rs < g.b.cs;
  const int ai = a_across ? tx : ty, ak = a_across ? ty : tx;
  const int bk = b_across ? tx : ty, bj = b_across ? ty : tx;

  const float *a = g.a.ptr(o.i + ai, ak), *b = g.b.ptr(bk, o.j + bj);
  const int64_t a_step = g.a.cs * BK, b_step = g.b.rs * BK;
  const bool a_inside = o.i + ai < g.m, b_inside = o.j + bj < g.n;
  float acc = 0.f;
  for (int64_t k0 = 0; k0 < g.k; k0 += BK, a += a_step, b += b_step) {
    const int depth = slice_depth(g.k, k0, BK);
    const float va = a_inside && ak < depth ? *a : kPadA, vb = b_inside && bk < depth ? *b : kPadB;
    As[ai][ak] = va;
    Bs[bj][bk] = vb;  // lanes along j: 32 rows, one bank
    __syncthreads();
#pragma unroll
    for (int k = 0; k < BK; ++k) acc = fmaf(As[ty][k], Bs[tx][k], acc);  // again
    __syncthreads();
  }
  g.store(o.i + ty, o.j + tx, acc);
}

void run(const Gemm& g, const Context& context) {
  launch_tiles(kernel, g, kTile, dim3(BN, BM), context);
}

static const Register<run> stage(
    kFlavour, {.name = "smem_conflicted",
               .rung = 6,
               .idea = "a layout in which 32 lanes hit one bank, on store and on read: on purpose",
               .source = "S v1",
               .tiles = {kTile},
               .auto_choice = false});

}  // namespace xgemm::XGEMM_FLAVOUR::smem_conflicted
