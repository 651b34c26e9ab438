// Few tiles, but large ones: K is cut into the chains of split_k, and a persistent grid makes one
// after another with warps that only fetch and warps that only multiply.
//
// split_k's chains, tma_specialized's machine. A chain of a tile is a work tile like any other: a
// tile, its first slice and its last. So the persistent grid, the ring and the warps that only
// fetch stay as they are, and what changes is the list of work tiles: all tiles of the first chain,
// then those of the second. The large tile does more products for each word it reads from shared
// memory, and where K is cut there are work tiles enough for it.
//
// A work tile's accumulators go to the workspace, through the same epilogue as results go to D, and
// the second launch is split_k's. The bits are, too: who makes a chain does not matter to it.
//
// arch: sm_90a
// against: tma_specialized, as the main loop is the same
// first: work_tile
// registers: 88 and 208, 80 and 176
// origin: This project: tma_specialized and split_k together.

#include <iterator>

#include "xgemm/device/copy/aligned.h"
#include "xgemm/epilogue/split_k_chains.h"
#include "xgemm/mainloop/warp_specialized.h"

namespace xgemm::XGEMM_FLAVOUR::tma_split_k {

// A unit is a chain of a tile: all tiles of the first, then those of the second.
struct ChainsJob : FetchJob {
  static constexpr bool kShared = false;
  ChainJob chains;
  uint32_t units = 1;  // of a matrix
  int each = 1;  // slices of a chain, of the last at most

  __device__ __forceinline__ bool work_tile(uint32_t step, WorkTile& p) const {
    const uint32_t unit = blockIdx.x + step * gridDim.x;
    if (unit >= units) return false;
    const int first = static_cast<int>(unit / tiles) * each;
    p = {unit, first, first + each < slices ? first + each : slices};
    return true;
  }
  __device__ __forceinline__ uint32_t matrix(uint32_t) const { return blockIdx.z; }
  __device__ __forceinline__ Gemm result(uint32_t unit) const {
    return chains.split_k_slice(blockIdx.z, unit / tiles);
  }
};

template <int kRow, bool kA, bool kB>
__global__ void __launch_bounds__(kSpecializedTiles[kRow].threads() + kProducers,
                                  kSpecializedTiles[kRow].min_blocks)
    kernel(const __grid_constant__ ChainsJob job) {
  using Ring = SliceRing<kSpecializedTiles[kRow], kA, kB>;
  XGEMM_SHARED_DYNAMIC(ring, Ring);
  multiply_work_tiles<kSpecializedTiles[kRow], kA, kB>(ring, job);
}

template <int kWidth>
__global__ void __launch_bounds__(kAddThreads) add(const ChainJob job) {
  wait_for_launch_before();
  add_chains<kWidth>(job);
}

size_t workspace(const Gemm& g, const Context& context) {
  return aligned_bytes(g, context) + plan_chains(g, nullptr).bytes;
}

template <int kRow, bool kA, bool kB>
void launch_row(const Gemm& g, const Context& context) {
  constexpr Tile T = kSpecializedTiles[kRow];
  static_assert(kSplitKStep % T.BK == 0);
  ChainJob all = plan_chains(g, context.workspace).job;
  all.g.match_single_chain_overflow = false;  // nobody looks at how far chains reach
  const int64_t units = tile_count(g, T.BM, T.BN) * all.split_k_slices;
  if (units > kMaxGridX)
    throw std::invalid_argument("tma_split_k: over 2^31 - 1 chains of tiles in one matrix");
  const auto make = [&](const ChainJob& chains, unsigned matrices) {
    ChainsJob job{fetch_job<T>(chains.g), chains, static_cast<uint32_t>(units)};
    job.each = chains.split_k_slices > 1 ? static_cast<int>(g.split_k_size / T.BK) : job.slices;
    launch(kernel<kRow, kA, kB>, fetch_config<T, kA, kB>(units, matrices, context), context, job);
  };
  launch_chains(make, add<1>, add<4>, all, context);
}

void run_tiles(const Gemm& g, const Context& context) {
  launch_specialized([&](auto row, auto a, auto b) { launch_row<row(), a(), b()>(g, context); }, g,
                     context);
}

void run(const Gemm& g, const Context& context) { run_aligned(run_tiles, g, context); }

static const Register<run> stage(
    kFlavour,
    {.name = "tma_split_k",
     .idea = "split_k's chains by a persistent grid of warps that only fetch and only multiply",
     .source = "this project",
     .tiles = {std::begin(kSpecializedTiles), std::end(kSpecializedTiles)},
     .min_sm = 90,
     .max_sm = 90,
     .split_k = true,
     .workspace = workspace});

}  // namespace xgemm::XGEMM_FLAVOUR::tma_split_k
