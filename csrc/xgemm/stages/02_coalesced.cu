// The same with threadIdx.x along a row of C: a warp reads 32 neighbours of B and writes 32 neighbours of C at once.
#include "xgemm/launch.h"

namespace xgemm::XGEMM_FLAVOUR::coalesced {

constexpr Tile kTile{.BM = 32, .BN = 32, .BK = 1, .buffers = 0, .rate = 6.4f};

__global__ void __launch_bounds__(kTile.threads()) kernel(const Gemm batch) {
  const Gemm g = batch.at(blockIdx.z);
  const Origin o = raster<kTile>(blockIdx.x, g);
  const int64_t i = o.i + threadIdx.y, j = o.j + threadIdx.x;
  if (i >= g.m || j >= g.n) return;

  const float *a = g.a.ptr(i, 0), *b = g.b.ptr(0, j);
  float acc = 0.f;
  for (int64_t k = 0; k < g.k; ++k, a += g.a.cs, b += g.b.rs) acc = fmaf(*a, *b, acc);
  g.store(i, j, acc);
}

void run(const Gemm& g, const Context& context) { launch_tiles(kernel, g, kTile, dim3(kTile.BN, kTile.BM), context); }

static const Register stage(kFlavour, {.name = "coalesced",
                                       .rung = 2,
                                       .idea = "threadIdx.x walks columns: a warp's loads of B and stores are neighbours",
                                       .source = "S naive, X 02, T untiled",
                                       .tiles = {kTile},
                                       .run = run});

}  // namespace xgemm::XGEMM_FLAVOUR::coalesced
