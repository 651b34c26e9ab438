// One to four rows are a matter of memory: a warp reads its columns' share of K once, on its own,
// with several slices on their way. The chains of an element meet in a cluster's shared memory.
//
// A matrix-vector product reads each element of the matrix once and multiplies it once: shared
// memory has nothing to share, and whoever reads at the speed of memory has won. Warps work on
// their own here, without a barrier of the block, each on its columns' share of K.
//
// Where columns lie side by side, a lane takes one of them or four and asks for 32 or 64 rows at a
// time, past shared memory; of A each lane has every 32nd element and tells the others. Where
// columns lie along k, neighbouring lanes would have to read places far apart; so a warp copies 32
// columns by 32 k with cp.async, eight lanes side by side along a column, and each lane then reads
// its own column back, 16 bytes at a time. The order of those 16 bytes is another in each of 8
// rows, so that eight lanes that read at once meet 32 different banks. Slices are on their way
// while one is multiplied.
//
// Columns that are an odd number of floats long begin anywhere in a sector of 32 bytes, and 4-byte
// copies, which fit anywhere, take four times the requests. A lane's slices of its column therefore
// begin where the sectors do, up to seven k before the chain's: aligned copies bring whole sectors,
// each once, and a column's shift is in the place of A at which its lane reads. What is before or
// past the chain is padding, -0 of A and +0 of B, which leaves every bit of the sum.
//
// The chains are split_k's: same lengths, same order, same bits. The blocks that have an element's
// chains are a cluster, read each other's shared memory and add the chains up in order, in the same
// launch; only where there are over twice as many chains as warps in a cluster do they go through a
// workspace. Blocks have as many warps as their chains ask for, so that few columns are still
// spread over all multiprocessors.
//
// Sums of several chains may overflow elsewhere than a single chain does. For `precision="fp32"`,
// which guarantees infinity just where the chain has it, each chain also keeps the largest
// magnitudes it has met. Where their product, times K, might be out of range, the chain leaves NaN,
// and whoever adds up makes that element again as one chain. That costs nothing: the memory is what
// is waited for.
//
// against: coalesced, as both read global memory without shared memory between
// first: add in mainloop/gemv.h

#include <iterator>
#include <type_traits>

#include "xgemm/core/limits.h"
#include "xgemm/device/ptx/cluster.h"
#include "xgemm/mainloop/gemv.h"
#include "xgemm/mainloop/gemv_plan.h"

namespace xgemm::XGEMM_FLAVOUR::gemv {

// `width`: a lane's columns, where they lie side by side.
constexpr Tile tile(int rows, int width, int threads, int min_blocks, float rate) {
  return {.BM = rows,
          .BN = width * threads,
          .BK = 1,
          .TM = rows,
          .TN = width,
          .width = width,
          .buffers = 0,
          .min_blocks = min_blocks,
          .rate = rate};
}
constexpr Tile kTiles[] = {tile(1, 4, 128, 2, 1.5f), tile(1, 1, 256, 2, 1.4f),
                           tile(4, 4, 128, 2, 4.f)};

constexpr int warp_columns(int row, bool along_k) { return along_k ? 32 : 32 * kTiles[row].TN; }
constexpr int buffers_of(int row) { return kTiles[row].threads() == 128 ? 4 : 3; }

template <int kRow, bool kB>  // whether B transposed is contiguous along k
struct alignas(128) Warp {
  static constexpr int TM = kTiles[kRow].TM;
  std::conditional_t<kB, GemvRing<TM, buffers_of(kRow)>, char> ring;
  float sums[kMostChains][TM * warp_columns(kRow, kB)];
};

template <int kRow, bool kB>
__global__ void __launch_bounds__(kTiles[kRow].threads(), kTiles[kRow].min_blocks)
    kernel(const GemvJob job) {
  constexpr int TM = kTiles[kRow].TM, kColumns = warp_columns(kRow, kB);
  using One = Warp<kRow, kB>;
  XGEMM_SHARED_DYNAMIC(first, One);  // and so many as the block has warps
  One* const warps = &first;
  const Gemm g = job.g.at(blockIdx.z);
  const GemvTeam team(job, static_cast<int>(blockDim.x) / 32);
  const GemvPart part = team.part(job, g, TM, kColumns);
  take_turn();
  One& mine = warps[threadIdx.x / 32];
  if (part.i0 < g.m && part.chain < job.split_k_slices) {
    const int64_t length = job.split_k_slices > 1 ? g.split_k_size : g.k;
    const auto multiply = [&](const auto& loop) {
      loop.multiply(length, [&](int64_t chain, const auto& acc, GemvRange range) {
        constexpr int kEach = std::extent_v<std::remove_reference_t<decltype(acc)>, 1>;
        bool sure = true;
        if (g.match_single_chain_overflow && job.split_k_slices > 1) {
          const int64_t k = chain * length;
          sure = range.sure<TM, kEach>(g, part, k, min_of(k + length, g.k), loop.column(0),
                                       loop.kStep);
        }
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
          for (int c = 0; c < kEach; ++c) {
            const float sum = sure ? acc[i][c] : bits_to_float(kUnsure);
            const int column = loop.column(c);
            if (job.in_cluster) mine.sums[chain - part.chain][i * kColumns + column] = sum;
            else job.leave(g, chain, part.i0 + i, part.j0 + column, sum);
          }
      });
    };
    if constexpr (kB) {
      multiply(GemvAlongK<TM, buffers_of(kRow)>{mine.ring, g, part});
    } else if constexpr (kTiles[kRow].TN == 1) {
      multiply(GemvAlongN<TM, 1, false>{g, part});
    } else if (g.b.wide() && g.n - part.j0 >= kColumns) {
      multiply(GemvAlongN<TM, 4, true>{g, part});
    } else {
      multiply(GemvAlongN<TM, 4, false>{g, part});
    }
  }
  if (!job.in_cluster) return;
  cluster_sync();  // all chains of the cluster's elements are there
  team.store<TM, kColumns>(job, g, part,
                           [&](int w, int chain, int e) { return &warps[w].sums[chain][e]; });
  if (job.blocks > 1) cluster_sync(Relaxed());  // nobody reads this block's any more
}

template <int kWidth>
__global__ void __launch_bounds__(kAddThreads) add(const GemvJob job) {
  wait_for_launch_before();
  add_chains<kWidth>(job);
}

// Row `asked`; the first, of the same bits, where a device has no room for its rings along k.
struct Plan : GemvPlan {
  int row;
  bool along_k;
  int64_t groups;  // of columns
  Plan(const Gemm& all, int asked, const Device& device, void* workspace) {
    const Gemm g = rows_first(all);
    along_k = xgemm::along_k(g.b.transposed(), g.n, g.k);
    const bool fits = !along_k || kFlavour == Flavour::host ||
                      smem_of_block(device.sm) >=
                          static_cast<int>(kTiles[1].threads() / 32 * sizeof(Warp<1, true>));
    row = fits ? asked : 0;
    const Tile& t = kTiles[row];
    groups = ceil_div(g.m, t.TM) * ceil_div(g.n, warp_columns(row, along_k));
    static_cast<GemvPlan&>(*this) = plan_gemv(g, t, groups, device, workspace);
  }
};

size_t workspace(const Gemm& g, const Context& context) {
  return Plan(g, context.row, context.device, nullptr).bytes;
}

template <int kRow>
void run_row(const Plan& plan, const Context& context) {
  const GemvJob& job = plan.job;
  const int64_t blocks = ceil_div(plan.groups, plan.side) * job.blocks;
  if (blocks > kMaxGridX)
    throw std::invalid_argument("gemv: over 2^31 - 1 groups of columns and rows");
  const size_t smem = plan.along_k ? sizeof(Warp<kRow, true>) : sizeof(Warp<kRow, false>);
  const int warps = job.warps * plan.side;
  LaunchConfig config{.block = dim3(static_cast<unsigned>(warps) * 32), .smem = warps * smem};
  if (job.in_cluster) config.cluster = static_cast<unsigned>(job.blocks);
  const auto make = [&](const GemvJob& chains, unsigned matrices) {
    config.grid = dim3(static_cast<unsigned>(blocks), 1, matrices);
    config.dependent = may_take_turn(context.device, blocks * matrices);
    launch(plan.along_k ? kernel<kRow, true> : kernel<kRow, false>, config, context, chains);
  };
  launch_chains(make, add<1>, add<4>, job, context);
}

void run(const Gemm& g, const Context& context) {
  constexpr void (*rows[])(const Plan&, const Context&) = {run_row<0>, run_row<1>, run_row<2>};
  static_assert(std::size(rows) == std::size(kTiles));
  const Plan plan(g, context.row, context.device, context.workspace);
  rows[plan.row](plan, context);
}

static const Register<run> stage(
    kFlavour, {.name = "gemv",
               .idea = "few rows: warps read the large operand once, each its columns' share of K",
               .source = "this project",
               .tiles = {std::begin(kTiles), std::end(kTiles)},
               .min_sm = 80,
               .split_k = true,
               .matches_single_chain_overflow = true,
               .turns = has_more_rows,
               .workspace = workspace});

}  // namespace xgemm::XGEMM_FLAVOUR::gemv
