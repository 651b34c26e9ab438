// A thread computes V x V elements from gmem, dot product by dot product: an element of A, read
// once, serves V products, an element of B one.
//
// A thread takes a square of results instead of one. It computes them dot product by dot product,
// so an element of A is read once and serves a row of products, while B is read again for every
// row. Reuse in a register is the first way to need fewer loads; the order of the loops decides how
// much of it there is.
//
// Fewer loads, {thread_tile_dot.loads_per_fma} for a multiply-add after {coalesced.loads_per_fma},
// and yet no more speed: {thread_tile_dot@2048} TFLOP/s after {coalesced@2048} at 2048, and
// {thread_tile_dot@4096} after {coalesced@4096} at 4096. The sectors that the caches are asked for
// hardly change, {thread_tile_dot.sectors} after {coalesced.sectors}, since a thread walks along K
// four times, once for each of its rows, and reads its columns of B each time. With
// {thread_tile_dot.registers} registers a thread, {thread_tile_dot.occupancy} of the threads that a
// multiprocessor has room for are there, and the batches of loads of rung 2 are gone: fewer loads
// are under way, so it counts how long one takes. B has 16 MiB at 2048 and stays in an H200's 50 MB
// of L2 between the walks. At 4096 it has 64 MiB, and most of it comes from memory again. (That is
// what the counts and sizes suggest; no profiler has been asked.)

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
