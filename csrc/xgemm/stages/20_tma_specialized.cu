// Warps that only fetch fill a ring of slices, by TMA where the operand lies as its slices do; the
// others only multiply, and nobody waits for the whole block.

// arch: sm_90a

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
