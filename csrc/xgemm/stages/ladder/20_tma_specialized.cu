// Warps that only fetch fill a ring of slices, by TMA where the operand lies as its slices do; the
// others only multiply, and nobody waits for the whole block.
//
// What is left to gain is in the instructions that are not multiply-adds: each takes the place of
// one. So the block is divided. One warpgroup only fetches; it gives most of its registers to the
// others, which only multiply, and find room for larger thread tiles. The two meet at mbarriers, a
// pair for each slot of the ring: `full` ends a phase when all copies of a slice have landed,
// `empty` when all readers are done with it. Nobody waits for the whole block, and a fetch may be
// slow as long as the ring is long enough.
//
// An operand that lies as its slices do, contiguous along m or n, is one box of TMA: a single
// thread asks for a slice of it. One that is contiguous along k must be transposed on its way,
// which TMA cannot do to floats; there `cp.async` still copies them one by one, and arrives at the
// mbarrier by itself when they have landed. A block stays when its tile is done and takes the next,
// whose first slices are fetched while the last one's results are stored.
//
// Then the epilogue is what is left of instructions that are not multiply-adds. It has much to ask:
// of edges, of vectors, of C, of an activation. Asked once for all of a thread's results, it costs
// a store and four multiplications for each four of them. Asked for each four, it costs as much as
// the products where K is short, and can be measured even where it is long.
//
// What is outside the operands, TMA fills with +0. That keeps the bits of the chain where B is
// padded, but not where A is: a partial last slice of A comes by `cp.async`, and is padded with -0.
//
// Tiles seldom make whole waves: 512 tiles on 132 multiprocessors are three waves and 116 tiles,
// and the fourth wave leaves 16 of them idle. So the last two waves are cut evenly along
// K, and most blocks get the end of one tile and the beginning of the next. A chain cannot be made
// in two halves that are added, its bits would change; but it can be handed over like a baton. The
// beginning is made first, its accumulators go to a workspace as they are, and the block that has
// the end comes to it last and goes on where the other stopped. By then they are there: hardly
// anyone waits.
//
// arch: sm_90a
// first: multiply_work_tiles in mainloop/warp_specialized.h
// registers: 88 and 208, 80 and 176
// origin: This project. Warps that only fetch and persistent blocks are also in CUTLASS's kernels
//   for sm_90; tiles that are cut along K are the idea of Stream-K (Osama et al.,
//   [arXiv:2301.03598](https://arxiv.org/abs/2301.03598)), here without changing a chain.

#include <iterator>
#include <type_traits>

#include "xgemm/device/copy/aligned.h"
#include "xgemm/mainloop/warp_specialized.h"

namespace xgemm::XGEMM_FLAVOUR::tma_specialized {

template <int kRow, bool kA, bool kB, bool kShared>  // whether tiles are cut along K
__global__ void __launch_bounds__(kSpecializedTiles[kRow].threads() + kProducers,
                                  kSpecializedTiles[kRow].min_blocks)
    kernel(const __grid_constant__ std::conditional_t<kShared, StreamKJob, TilesJob> job) {
  using Ring = SliceRing<kSpecializedTiles[kRow], kA, kB>;
  XGEMM_SHARED_DYNAMIC(ring, Ring);
  multiply_work_tiles<kSpecializedTiles[kRow], kA, kB>(ring, job);
}

size_t workspace(const Gemm& g, const Context& context) {
  const Tile& t = kSpecializedTiles[context.row];
  return aligned_bytes(g, context) +
         plan_chain_stream_k(g, t, slice_count(g.k, t.BK), context).bytes;
}

void run_tiles(const Gemm& g, const Context& context) {
  const auto launch_row = [&](auto row, auto a, auto b) {
    launch_fetching<kSpecializedTiles[row()], a(), b()>(kernel<row(), a(), b(), false>,
                                                        kernel<row(), a(), b(), true>, g, context);
  };
  launch_specialized(launch_row, g, context);
}

void run(const Gemm& g, const Context& context) { run_aligned(run_tiles, g, context); }

static const Register<run> stage(
    kFlavour,
    {.name = "tma_specialized",
     .rung = 20,
     .idea = "warps that only fetch, by TMA or cp.async, and warps that only multiply; persistent",
     .source = "this project",
     .tiles = {std::begin(kSpecializedTiles), std::end(kSpecializedTiles)},
     .min_sm = 90,
     .max_sm = 90,
     .workspace = workspace});

}  // namespace xgemm::XGEMM_FLAVOUR::tma_specialized
