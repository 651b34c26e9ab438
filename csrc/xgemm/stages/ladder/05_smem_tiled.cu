// A block stages a 32 x 32 slice of A and of B in shared memory: each element leaves gmem once for
// 32 uses.
//
// A block's threads need the same rows of A and columns of B. They load a slice of each together,
// once, and then read it from shared memory as often as they like. Two barriers frame a slice:
// nobody reads before all have stored, nobody overwrites before all have read. Global memory is no
// longer what limits it. Two reads of shared memory for each multiply-add are.
//
// After rung 4 that is a step down, from {thread_tile_outer@4096} to {smem_tiled@4096} TFLOP/s at
// 4096. The two are branches: rung 4 reuses what is in registers, this one what is in shared
// memory, and it begins where rung 2 was, with one result a thread. So {smem_tiled.loads_per_fma}
// words are loaded for a multiply-add, where rung 4 loads {thread_tile_outer.loads_per_fma}; that
// most of them come from shared memory and not from a cache brings the sectors for 1000 of them
// down to {smem_tiled.sectors}, but it saves no instruction. Rung 11, with eight results a thread
// from shared memory, is the first to be faster than rung 4.
//
// against: coalesced, as both have one result a thread, and shared memory is all that is new

#include "xgemm/device/copy/gmem.h"
#include "xgemm/device/launch.h"

namespace xgemm::XGEMM_FLAVOUR::smem_tiled {

// Rows are padded to 36: a transposed operand is read along its columns and would be stored 32
// lanes to a bank; with 36 it is 4 to a bank, and 16-byte reads of A along k stay aligned.
constexpr Tile kTile{.BM = 32,
                     .BN = 32,
                     .BK = 32,
                     .buffers = 1,
                     .pad_a = 4,
                     .pad_b = 4,
                     .a_rows = 32,
                     .min_blocks = 2,
                     .group = 16,
                     .rate = 9.2f};
constexpr int BM = kTile.BM, BN = kTile.BN, BK = kTile.BK;

__global__ void __launch_bounds__(kTile.threads(), kTile.min_blocks) kernel(const Gemm batch) {
  XGEMM_SHARED(As, float[BM][BK + kTile.pad_a]);
  XGEMM_SHARED(Bs, float[BK][BN + kTile.pad_b]);
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
    const float va = a_inside && ak < depth ? *a : kPadA,
                vb = b_inside && bk < depth ? *b : kPadB;   // both in flight
    As[ai][ak] = va;
    Bs[bk][bj] = vb;
    __syncthreads();
#pragma unroll
    for (int k = 0; k < BK; ++k) acc = fmaf(As[ty][k], Bs[k][tx], acc);
    __syncthreads();
  }
  g.store(o.i + ty, o.j + tx, acc);
}

void run(const Gemm& g, const Context& context) {
  launch_tiles(kernel, g, kTile, dim3(BN, BM), context);
}

static const Register<run> stage(
    kFlavour, {.name = "smem_tiled",
               .rung = 5,
               .idea = "block tiles staged through shared memory, zero-filled at the edges",
               .source = "T, X 03, C 1",
               .tiles = {kTile},
               .auto_choice = false});

}  // namespace xgemm::XGEMM_FLAVOUR::smem_tiled
