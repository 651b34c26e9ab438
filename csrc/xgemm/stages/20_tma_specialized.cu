// Warps that only fetch fill a ring of slices, by TMA where the operand lies as its slices do; the
// others only multiply, and nobody waits for the whole block.

// arch: sm_90a

#include <iterator>
#include <type_traits>
#include <utility>

#include "xgemm/specialized.h"

namespace xgemm::XGEMM_FLAVOUR::tma_specialized {

constexpr Tile kTiles[] = {specialized_tile(128, 256, 8, 16, 1, 49.6f),
                           specialized_tile(64, 128, 8, 8, 2, 46.6f)};

template <int kRow, bool kA, bool kB, bool kShared>  // whether tiles are shared out along K
__global__ void __launch_bounds__(kTiles[kRow].threads() + kProducers, kTiles[kRow].min_blocks)
    kernel(const __grid_constant__ std::conditional_t<kShared, RelayJob, TilesJob> job) {
  using Ring = SliceRing<kTiles[kRow], kA, kB>;
  XGEMM_SHARED_DYNAMIC(ring, Ring);
  multiply_pieces<kTiles[kRow], kA, kB>(ring, job);
}

template <int kRow, bool kA, bool kB>
void launch_row(const Gemm& g, const Context& context) {
  launch_fetching<kTiles[kRow], kA, kB>(kernel<kRow, kA, kB, false>, kernel<kRow, kA, kB, true>, g,
                                        context);
}

template <int... kRow>
void run_row(const Gemm& g, const Context& context, std::integer_sequence<int, kRow...>) {
  const auto launches = [&](auto a, auto b) {
    constexpr void (*rows[])(const Gemm&, const Context&) = {launch_row<kRow, a(), b()>...};
    return rows[context.row];
  };
  by_major(launches, g)(g, context);
}

size_t workspace(const Gemm& g, const Context& context) {
  const Tile& t = kTiles[context.row];
  return plan_chain_relay(g, t, slice_count(g.k, t.BK), context).bytes;
}

void run(const Gemm& g, const Context& context) {
  run_row(g, context, std::make_integer_sequence<int, std::size(kTiles)>());
}

static const Register stage(
    kFlavour,
    {.name = "tma_specialized",
     .rung = 20,
     .idea = "warps that only fetch, by TMA or cp.async, and warps that only multiply; persistent",
     .source = "beyond the seeds",
     .tiles = {std::begin(kTiles), std::end(kTiles)},
     .min_sm = 90,
     .max_sm = 90,
     .workspace = workspace,
     .run = run});

}  // namespace xgemm::XGEMM_FLAVOUR::tma_specialized
