// One thread, one element of C; neighbouring threads walk down a column, so their loads of A and
// stores to C are apart.
//
// Each thread walks a row of A and a column of B and keeps one sum. The mistake is in who sits
// beside whom: the 32 lanes of a warp stand in 32 different rows, so one load of A asks for 32
// places that are a whole row apart, and each place costs a sector of 32 bytes of which 4 are used.
// Look at *sectors per request* below, then at the next rung, where the roles of two indices
// change.

#include "xgemm/device/launch.h"

namespace xgemm::XGEMM_FLAVOUR::naive {

constexpr Tile kTile{.BM = 32, .BN = 32, .BK = 1, .buffers = 0, .min_blocks = 2, .rate = 0.5f};

__global__ void __launch_bounds__(kTile.threads(), kTile.min_blocks) kernel(const Gemm batch) {
  const Gemm g = batch.at(blockIdx.z);
  const TileCoord o = swizzled_tile<kTile>(blockIdx.x, g);
  const int64_t i = o.i + threadIdx.x, j = o.j + threadIdx.y;
  if (i >= g.m || j >= g.n) return;

  const float *a = g.a.ptr(i, 0), *b = g.b.ptr(0, j);
  float acc = 0.f;
  for (int64_t k = 0; k < g.k; ++k, a += g.a.cs, b += g.b.rs) acc = fmaf(*a, *b, acc);
  g.store(i, j, acc);
}

void run(const Gemm& g, const Context& context) {
  launch_tiles(kernel, g, kTile, dim3(kTile.BM, kTile.BN), context);
}

static const Register<run> stage(
    kFlavour,
    {.name = "naive",
     .rung = 1,
     .idea = "one thread, one element of C; threadIdx.x walks rows, loads are uncoalesced",
     .source = "L v1, X 01",
     .tiles = {kTile},
     .auto_choice = false});

}  // namespace xgemm::XGEMM_FLAVOUR::naive
