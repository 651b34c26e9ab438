// The same V x V elements by outer products: V elements of A and V of B, read once into registers,
// serve V * V products.
//
// The same square, the loops exchanged: for each k the thread reads a short column of A and a short
// row of B, and every pair of them makes a product. V + V loads now serve V x V multiply-adds. All
// fast kernels from here on are this outer product; what changes is where its operands come from.

#include "xgemm/device/launch.h"

namespace xgemm::XGEMM_FLAVOUR::thread_tile_outer {

constexpr int V = 4;
constexpr Tile kTile{
    .BM = 32, .BN = 128, .BK = 1, .TM = V, .TN = V, .buffers = 0, .min_blocks = 2, .rate = 16.7f};
constexpr int kColumns = kTile.BN / V;

__global__ void __launch_bounds__(kTile.threads(), kTile.min_blocks) kernel(const Gemm batch) {
  const Gemm g = batch.at(blockIdx.z);
  const TileCoord o = swizzled_tile<kTile>(blockIdx.x, g);
  const int64_t i0 = o.i + threadIdx.y * V, j0 = o.j + threadIdx.x;

  // Rows and columns beyond the edge read the last one; what they give is not stored.
  const float *row[V], *column[V];
#pragma unroll
  for (int v = 0; v < V; ++v) {
    const int64_t i = i0 + v, j = j0 + v * kColumns;
    row[v] = g.a.ptr(i < g.m ? i : g.m - 1, 0);
    column[v] = g.b.ptr(0, j < g.n ? j : g.n - 1);
  }
  float acc[V][V] = {};
  for (int64_t k = 0; k < g.k; ++k) {
    float a[V], b[V];
#pragma unroll
    for (int v = 0; v < V; ++v) a[v] = row[v][k * g.a.cs];
#pragma unroll
    for (int v = 0; v < V; ++v) b[v] = column[v][k * g.b.rs];
#pragma unroll
    for (int x = 0; x < V; ++x)
#pragma unroll
      for (int y = 0; y < V; ++y) acc[x][y] = fmaf(a[x], b[y], acc[x][y]);
  }
#pragma unroll
  for (int x = 0; x < V; ++x)
#pragma unroll
    for (int y = 0; y < V; ++y) g.store(i0 + x, j0 + y * kColumns, acc[x][y]);
}

void run(const Gemm& g, const Context& context) {
  launch_tiles(kernel, g, kTile, dim3(kColumns, kTile.BM / V), context);
}

static const Register<run> stage(
    kFlavour, {.name = "thread_tile_outer",
               .rung = 4,
               .idea = "the same 4 x 4 results a thread by outer products: 2 NV loads",
               .source = "L v2",
               .tiles = {kTile},
               .auto_choice = false});

}  // namespace xgemm::XGEMM_FLAVOUR::thread_tile_outer
