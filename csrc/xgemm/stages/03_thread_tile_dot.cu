// A thread computes V x V elements from gmem, dot product by dot product: an element of A, read
// once, serves V products, an element of B one.
#include "xgemm/device/launch.h"

namespace xgemm::XGEMM_FLAVOUR::thread_tile_dot {

constexpr int V = 4;
constexpr Tile kTile{
    .BM = 32, .BN = 128, .BK = 1, .TM = V, .TN = V, .buffers = 0, .min_blocks = 2, .rate = 3.8f};
// Lanes run along a row of C, and a thread's columns are kColumns apart, so that a warp reads 32
// neighbours of B at once.
constexpr int kColumns = kTile.BN / V;

__global__ void __launch_bounds__(kTile.threads(), kTile.min_blocks) kernel(const Gemm batch) {
  const Gemm g = batch.at(blockIdx.z);
  const TileCoord o = swizzled_tile<kTile>(blockIdx.x, g);
  const int64_t i0 = o.i + threadIdx.y * V, j0 = o.j + threadIdx.x;

  // Columns beyond the edge read the last one; what they give is not stored.
  const float* column[V];
#pragma unroll
  for (int y = 0; y < V; ++y) {
    const int64_t j = j0 + y * kColumns;
    column[y] = g.b.ptr(0, j < g.n ? j : g.n - 1);
  }
  for (int x = 0; x < V && i0 + x < g.m; ++x) {
    float acc[V] = {};
    for (int64_t k = 0; k < g.k; ++k) {
      const float a = g.a(i0 + x, k);
#pragma unroll
      for (int y = 0; y < V; ++y) acc[y] = fmaf(a, column[y][k * g.b.rs], acc[y]);
    }
#pragma unroll
    for (int y = 0; y < V; ++y) g.store(i0 + x, j0 + y * kColumns, acc[y]);
  }
}

void run(const Gemm& g, const Context& context) {
  launch_tiles(kernel, g, kTile, dim3(kColumns, kTile.BM / V), context);
}

static const Register<run> stage(
    kFlavour, {.name = "thread_tile_dot",
               .rung = 3,
               .idea = "4 x 4 results a thread, no shared memory, dot products: NV + NV^2 loads",
               .source = "L v1.5",
               .tiles = {kTile},
               .auto_choice = false});

}  // namespace xgemm::XGEMM_FLAVOUR::thread_tile_dot
