// smem_conflicted with one-dimensional threads: the row is a quotient of one index, the column its
// remainder. The conflicts stay, and so does the speed.
//
// Threads are numbered in one dimension and compute their row and column themselves. In its
// source's ladder that is said to save a register; here both kernels have
// {smem_conflicted_1d.registers}. It moves no datum. The banks are what limits the kernel, and they
// see the same addresses: an optimization away from the bottleneck.

#include "xgemm/device/copy/gmem.h"
#include "xgemm/device/launch.h"

namespace xgemm::XGEMM_FLAVOUR::smem_conflicted_1d {

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
  const int tx = threadIdx.x % BN, ty = threadIdx.x / BN;

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
  launch_tiles(kernel, g, kTile, dim3(kTile.threads()), context);
}

static const Register<run> stage(
    kFlavour, {.name = "smem_conflicted_1d",
               .rung = 7,
               .idea = "the same with one-dimensional threads: as many registers, no visible gain",
               .source = "S v2",
               .tiles = {kTile},
               .auto_choice = false});

}  // namespace xgemm::XGEMM_FLAVOUR::smem_conflicted_1d
