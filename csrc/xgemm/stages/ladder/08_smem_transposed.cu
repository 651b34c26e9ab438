// One operand transposed on its way into shared memory: A's slice lies K-major, all reads are free
// of conflicts. Lanes that load along k still store to one bank.
//
// Only the way in which a slice lies in shared memory changes: A's is turned on its way in, and all
// reads are free of conflicts. The store that turns it still meets one bank; it happens once for a
// whole slice of reads, which is why it is the smaller evil, and padding a row would end it.

#include "xgemm/device/copy/gmem.h"
#include "xgemm/device/launch.h"

namespace xgemm::XGEMM_FLAVOUR::smem_transposed {

constexpr Tile kTile{.BM = 32,
                     .BN = 32,
                     .BK = 32,
                     .buffers = 1,
                     .a_rows = 32,
                     .min_blocks = 2,
                     .group = 16,
                     .rate = 5.1f};
constexpr int BM = kTile.BM, BN = kTile.BN, BK = kTile.BK;

__global__ void __launch_bounds__(kTile.threads(), kTile.min_blocks) kernel(const Gemm batch) {
  XGEMM_SHARED(As, float[BK][BM]);
  XGEMM_SHARED(Bs, float[BK][BN]);
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
    As[ak][ai] = va;  // lanes along k: 32 rows, one bank
    Bs[bk][bj] = vb;
    __syncthreads();
#pragma unroll
    for (int k = 0; k < BK; ++k) acc = fmaf(As[k][ty], Bs[k][tx], acc);
    __syncthreads();
  }
  g.store(o.i + ty, o.j + tx, acc);
}

void run(const Gemm& g, const Context& context) {
  launch_tiles(kernel, g, kTile, dim3(kTile.threads()), context);
}

static const Register<run> stage(
    kFlavour, {.name = "smem_transposed",
               .rung = 8,
               .idea = "A transposed on packing: the read conflict goes, the store conflict stays",
               .source = "S v3",
               .tiles = {kTile},
               .auto_choice = false});

}  // namespace xgemm::XGEMM_FLAVOUR::smem_transposed
