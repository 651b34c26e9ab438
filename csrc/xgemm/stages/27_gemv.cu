// One to four rows are a matter of memory: a warp reads its columns' share of K once, on its own,
// with several slices on their way; the chains are added up by a second launch.
#include <iterator>
#include <utility>

#include "xgemm/gemv.h"
#include "xgemm/ptx_hopper.h"

namespace xgemm::XGEMM_FLAVOUR::gemv {

constexpr Tile tile(int rows, int min_blocks, float rate) {
  return {.BM = rows,
          .BN = 4 * kGemvThreads,  // or a quarter, where columns lie along k
          .BK = 1,
          .TM = rows,
          .TN = 4,
          .width = 4,
          .buffers = 0,
          .min_blocks = min_blocks,
          .rate = rate};
}
constexpr Tile kTiles[] = {tile(1, 3, 1.5f), tile(4, 2, 4.f)};

// Where the warp works: warps are numbered by groups of columns and shares of k, so that neighbours
// read neighbouring memory, and then by rows.
struct Place {
  int64_t i, j, share;
};
template <bool kB>
__device__ __forceinline__ Place place(const ChainJob& job, int rows, uint32_t warp) {
  const auto shares = static_cast<uint32_t>(job.shares);
  const auto groups = static_cast<uint32_t>(ceil_div(job.g.n, gemv_columns(kB)));
  const uint32_t fast = kB ? shares : groups, slow = kB ? groups : shares;
  const uint32_t x = warp % fast, rest = warp / fast, y = rest % slow;
  return {static_cast<int64_t>(rest / slow) * rows,
          static_cast<int64_t>(kB ? y : x) * gemv_columns(kB), kB ? x : y};
}

template <int kRow, bool kB>  // whether B transposed is contiguous along k
__global__ void __launch_bounds__(kGemvThreads, kTiles[kRow].min_blocks)
    kernel(const ChainJob job) {
  constexpr int TM = kTiles[kRow].TM;
  let_next_launch_begin();
  const uint32_t warp = blockIdx.x * kGemvWarps + threadIdx.x / 32;
  const Place at = place<kB>(job, TM, warp);
  if (at.i >= job.g.m) return;
  const Gemm g = job.share(blockIdx.z, at.share);
  if constexpr (kB) {
    XGEMM_SHARED_DYNAMIC(rings, GemvRing<TM>[kGemvWarps]);
    GemvAlongK<TM>{rings[threadIdx.x / 32], g, at.i, at.j, g.b.transposed().wide()}.multiply();
  } else if (g.b.wide() && g.n - at.j >= gemv_columns(kB)) {
    gemv_along_n<TM, true>(g, at.i, at.j);
  } else {
    gemv_along_n<TM, false>(g, at.i, at.j);
  }
}

__global__ void __launch_bounds__(kAddThreads) add(const ChainJob job) {
  wait_for_launch_before();
  add_chains(job);
}

size_t workspace(const Gemm& g, const Context&) { return plan_chains(g, nullptr).bytes; }

template <int kRow>
void run_row(const Gemm& all, const Context& context) {
  constexpr int TM = kTiles[kRow].TM;
  const ChainJob job = plan_chains(all, context.workspace).job;
  const Gemm& g = job.g;
  const bool b = along_k(g.b.transposed(), g.n, g.k);
  const int64_t warps = ceil_div(g.m, TM) * ceil_div(g.n, gemv_columns(b)) * job.shares;
  if (warps > kMaxGridX)
    throw std::invalid_argument("gemv: over 2^31 - 1 groups of columns and rows");
  launch_chains(b ? kernel<kRow, true> : kernel<kRow, false>,
                {.grid = dim3(static_cast<unsigned>(ceil_div(warps, kGemvWarps))),
                 .block = dim3(kGemvThreads),
                 .smem = b ? sizeof(GemvRing<TM>[kGemvWarps]) : 0},
                add, job, context);
}

void run(const Gemm& g, const Context& context) {
  constexpr void (*rows[])(const Gemm&, const Context&) = {run_row<0>, run_row<1>};
  static_assert(std::size(rows) == std::size(kTiles));
  rows[context.row](g, context);
}

static const Register stage(
    kFlavour, {.name = "gemv",
               .rung = 27,
               .idea = "few rows: warps read the large operand once, each its columns' share of K",
               .source = "beyond the seeds",
               .tiles = {std::begin(kTiles), std::end(kTiles)},
               .min_sm = 80,
               .splits = true,
               .workspace = workspace,
               .run = run});

}  // namespace xgemm::XGEMM_FLAVOUR::gemv
