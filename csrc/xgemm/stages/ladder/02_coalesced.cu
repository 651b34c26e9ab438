// The same with threadIdx.x along a row of C: a warp reads 32 neighbours of B and writes 32
// neighbours of C at once.
//
// The lanes of a warp now stand side by side in one row of C. They all need the same element of A,
// which is one broadcast, and 32 neighbours of B, which are four full sectors. Every multiply-add
// still needs two loads from global memory, and what keeps the kernel moving is the cache, not the
// code.
//
// Two smaller things changed, too. A thread asks for eight elements of A and eight of B before it
// multiplies them, so that sixteen loads are under way at a time: 6.5 TFLOP/s at 4096, where a loop
// of single products, which the compiler unrolls, gives 5.6. And `.group = 1` has the blocks go
// through D row of tiles by row of tiles; other stages take groups of rows, to find their slices of
// A in L2.

#include "xgemm/device/launch.h"

namespace xgemm::XGEMM_FLAVOUR::coalesced {

// What binds is the latency of L1, so a thread asks for 8 elements of A and B before it multiplies
// them: 6.5 TFLOP/s where a loop of single products, unrolled 16 times by the compiler, gives 5.6
// (4096^3, H200).
constexpr int kAhead = 8;

constexpr Tile kTile{
    .BM = 32, .BN = 32, .BK = 1, .buffers = 0, .min_blocks = 2, .group = 1, .rate = 6.5f};

__global__ void __launch_bounds__(kTile.threads(), kTile.min_blocks) kernel(const Gemm batch) {
  const Gemm g = batch.at(blockIdx.z);
  const TileCoord o = swizzled_tile<kTile>(blockIdx.x, g);
  const int64_t i = o.i + threadIdx.y, j = o.j + threadIdx.x;
  if (i >= g.m || j >= g.n) return;

  const float *a = g.a.ptr(i, 0), *b = g.b.ptr(0, j);
  float acc = 0.f;
  int64_t k = 0;
  for (; k + kAhead <= g.k; k += kAhead) {
    float ra[kAhead], rb[kAhead];
#pragma unroll
    for (int q = 0; q < kAhead; ++q, a += g.a.cs, b += g.b.rs) ra[q] = *a, rb[q] = *b;
#pragma unroll
    for (int q = 0; q < kAhead; ++q) acc = fmaf(ra[q], rb[q], acc);
  }
  for (; k < g.k; ++k, a += g.a.cs, b += g.b.rs) acc = fmaf(*a, *b, acc);
  g.store(i, j, acc);
}

void run(const Gemm& g, const Context& context) {
  launch_tiles(kernel, g, kTile, dim3(kTile.BN, kTile.BM), context);
}

static const Register<run> stage(
    kFlavour, {.name = "coalesced",
               .rung = 2,
               .idea = "threadIdx.x walks columns: a warp's loads of B and stores are neighbours",
               .source = "S naive, X 02, T untiled",
               .tiles = {kTile},
               .auto_choice = false});

}  // namespace xgemm::XGEMM_FLAVOUR::coalesced
