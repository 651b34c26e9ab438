// Small products: tiles so small that every scheduler has a warp, and all that a block needs of K
// on its way before it waits.
//
// A product of 128 x 128 x 128 is eight tiles of rung 19's smallest row: sixteen warps, on a
// machine with 528 schedulers, and each of them waits for memory, for a barrier, for its last
// product, with nobody to take its place. Nothing there is short of anything but time. So tiles are
// small, 16 x 16 with two results a thread, until every scheduler has a warp; what a block reads
// twice for it comes from a cache.
//
// What a thread waits for is then all there is. A block asks for the first four slices of K, 64
// deep, before it waits for the first: up to a K of 256 that is everything, and memory is waited
// for once. Slices lie in shared memory as the operand lies outside, so every copy has 16 bytes,
// and none is turned over on its way, which costs a copy for each float. A fragment is four of k:
// along k one vector of each of the thread's rows, else four short reads. It is read while the one
// before is multiplied; to read further ahead made it slower.
//
// With so few results a thread, reads of shared memory bound what is left: a float for each of 32
// lanes in a cycle, TM + TN of them for TM * TN products. From a side of 640 on a larger tile is
// worth more than another warp, and rung 19 has it.
//
// A batch of small matrices is the opposite: there are warps enough, each has a slice or two to
// multiply, and then it waits for its block's end and the next one's first slice. Two of the tiles
// are for that: a warp has 32 x 32 results, 8 x 4 a thread, or two warps 64 x 64, 8 x 8 a thread,
// which read three eighths and a quarter of a float for a product where 2 x 4 reads three quarters.
// As many blocks as fit at a time walk over the batch, and the ring of slices runs on from matrix
// to matrix: the next one's are on their way while this one is multiplied and stored.
//
// against: cp_async_pipelined, as it has the same ring of slices, and as many on their way
// first: multiply_whole_k in mainloop/small_tile.h

#include <iterator>
#include <utility>

#include "xgemm/device/copy/aligned.h"
#include "xgemm/device/launch.h"
#include "xgemm/mainloop/small_tile.h"

namespace xgemm::XGEMM_FLAVOUR::whole_k {

constexpr Tile tile(int BM, int BN, int BK, int TM, int TN, int buffers, int min_blocks,
                    float rate) {
  return {.BM = BM,
          .BN = BN,
          .BK = BK,
          .WM = kLanesM * TM,
          .WN = kLanesN * TN,
          .TM = TM,
          .TN = TN,
          .width = 4,
          .buffers = buffers,
          .pad_a = 4,
          .pad_b = BN > BK ? 4 * BN / BK : 4,  // which holds lines along k, too
          .a_rows = BM,
          .min_blocks = min_blocks,
          .rate = rate};
}
// Best, of squares on an H200: to 160; 192 and 256, 384 and 448; 320; 512 and 640; a short K and a
// large D, and 768, where a block has to leave room for others. Rates are those of 1024^3.
constexpr Tile kTiles[] = {
    tile(16, 16, 64, 2, 1, 4, 4, 17.f),
    tile(16, 32, 64, 2, 2, 4, 4, 23.f),
    tile(32, 32, 64, 2, 4, 4, 3, 25.f),
    tile(32, 64, 64, 4, 4, 3, 2, 30.f),
    tile(32, 64, 32, 4, 4, 3, 4, 35.f),
    // Their blocks walk over the tiles of a batch, a warp for 32 x 32 and two for 64 x 64: 8 x 4
    // and 8 x 8 results a thread read 12 and 16 floats of shared memory for 32 and 64 products,
    // where 2 x 4 read 6 for 8, and would not keep pace with memory (4096 products of 32 x 32 x
    // 32).
    tile(32, 32, 32, 8, 4, 2, 12, 28.f),
    tile(64, 64, 32, 8, 8, 3, 4, 36.f),
};
constexpr int kFirstWalk = 5;

template <int kRow, bool kA, bool kB>  // whether A, B transposed are contiguous along k
__global__ void __launch_bounds__(kTiles[kRow].threads(), kTiles[kRow].min_blocks)
    kernel(const Gemm batch) {
  constexpr Tile T = kTiles[kRow];
  using Ring = NativeRing<T, kA, kB>;
  static_assert(sizeof(Ring) <= T.smem());
  XGEMM_SHARED_DYNAMIC(ring, Ring);
  if constexpr (kRow < kFirstWalk) {
    const Gemm g = batch.at(blockIdx.z);
    multiply_whole_k<T, kA, kB>(ring, g,
                                swizzled_tile<uint32_t>(blockIdx.x, g.m, g.n, T.BM, T.BN, T.group));
  } else {
    multiply_batch<T, kA, kB>(ring, batch);
  }
}

// Blocks that are resident together, each with as many tiles as the others or one less.
void launch_walk(void (*kernel)(Gemm), const Gemm& g, const Tile& t, const Context& context) {
  const int64_t tiles = tile_count(g, t.BM, t.BN), most = kMaxGridX;
  if (tiles > most) throw std::invalid_argument("xgemm: more than 2^31 - 1 tiles in one matrix");
  for (int64_t z = 0; z < g.batch; z += most) {
    Gemm part = g.at(z);
    part.batch = std::min(g.batch - z, most);
    const int64_t all = tiles * part.batch,
                  resident = static_cast<int64_t>(context.device.sm_count) * t.min_blocks,
                  blocks = ceil_div(all, ceil_div(all, resident));
    launch(kernel,
           {.grid = dim3(static_cast<unsigned>(blocks)),
            .block = dim3(t.threads()),
            .smem = static_cast<size_t>(t.smem()),
            .dependent = may_take_turn(context.device, blocks)},
           context, part);
  }
}

template <int... kRow>
void run_row(const Gemm& g, const Context& context, std::integer_sequence<int, kRow...>) {
  const Tile& t = kTiles[context.row];
  const auto of_row = [&](auto a, auto b) {
    constexpr void (*kernels[])(Gemm) = {kernel<kRow, a(), b()>...};
    return kernels[context.row];
  };
  if (context.row < kFirstWalk)
    launch_tiles_by_major(of_row, g, t, context, static_cast<size_t>(t.smem()), true);
  else launch_walk(by_major(of_row, g), g, t, context);
}

void run_tiles(const Gemm& g, const Context& context) {
  run_row(g, context, std::make_integer_sequence<int, std::size(kTiles)>());
}

void run(const Gemm& g, const Context& context) { run_aligned(run_tiles, g, context); }

static const Register<run> stage(
    kFlavour, {.name = "whole_k",
               .idea = "small tiles; all that a block needs of K is on its way before it waits",
               .source = "this project",
               .tiles = {std::begin(kTiles), std::end(kTiles)},
               .min_sm = 80,
               .workspace = aligned_bytes});

}  // namespace xgemm::XGEMM_FLAVOUR::whole_k
