// Few rows are a matter of memory, of which threads cannot ask for enough: TMA brings both operands
// to rings of warps, each with its columns' share of K. Chains meet as gemv's do.

// arch: sm_90a

#include <iterator>
#include <utility>

#include "xgemm/device/ptx/cluster.h"
#include "xgemm/device/ptx/mbarrier.h"
#include "xgemm/mainloop/gemv_teams.h"
#include "xgemm/mainloop/gemv_tma.h"

namespace xgemm::XGEMM_FLAVOUR::tma_gemv {

constexpr Tile tile(int rows, float rate) {
  return {.BM = rows,
          .BN = kStreamColumns * kTeamWarps,
          .BK = 1,
          .TM = rows,
          .TN = 1,
          .buffers = 0,
          .rate = rate};
}
constexpr Tile kTiles[] = {tile(1, 1.4f), tile(4, 4.5f), tile(8, 8.f)};

// Of a multiprocessor, among which its registers are divided: two blocks of seven.
constexpr int kWarpsAtOnce = 14;
static_assert(kWarpsAtOnce >= kTeamWarps);

// Of a warp, that stay in shared memory.
constexpr int chains_of(int rows) { return std::min(kMostChains, 32 / rows); }

template <int TM, bool kA, bool kB>
struct alignas(1024) Warp {
  StreamRing<TM, kA, kB> ring;
  float sums[chains_of(TM)][TM * kStreamColumns];
  Mbarrier landed[kStreamBuffers];
};

struct StreamJob : GemvJob {
  StreamMaps maps;
};

template <int kRow, bool kA, bool kB>
__global__ void __launch_bounds__(kWarpsAtOnce * 32, kRow == 0 ? 2 : 1)
    kernel(const __grid_constant__ StreamJob job) {
  constexpr int TM = kTiles[kRow].TM;
  using Loop = GemvStream<TM, kA, kB>;
  using One = Warp<TM, kA, kB>;
  XGEMM_SHARED_DYNAMIC(first, One);  // and so many as the block has warps
  One* const warps = &first;
  const Gemm g = job.g.at(blockIdx.z);
  const GemvTeam team(job, static_cast<int>(blockDim.x) / 32);
  const GemvPart part = team.part(job, g, TM, kStreamColumns);
  take_turn();
  One& mine = warps[threadIdx.x / 32];
  if (part.i0 < g.m && part.chain < job.split_k_slices) {
    const Loop loop{mine.ring, mine.landed, g, part, job.maps};
    loop.multiply(job.split_k_slices > 1 ? g.split_k_size : g.k,
                  [&](int64_t chain, const typename Loop::Sums& sums, uint32_t sure) {
#pragma unroll
                    for (int r = 0; r < Loop::kRows; ++r)
#pragma unroll
                      for (int c = 0; c < Loop::kColumns; ++c) {
                        const int i = Loop::row(r), j = Loop::column(c);
                        const float sum = sure >> j & 1 ? sums[r][c] : bits_to_float(kUnsure);
                        if (job.in_cluster)
                          mine.sums[chain - part.chain][i * kStreamColumns + j] = sum;
                        else job.leave(g, chain, part.i0 + i, part.j0 + j, sum);
                      }
                  });
  }
  if (!job.in_cluster) return;
  cluster_sync();  // all chains of the cluster's elements are there
  team.store<TM, kStreamColumns>(job, g, part, [&](int w, int chain, unsigned rank, int e) {
    const float* const sum = &warps[w].sums[chain][e];
    return job.blocks == 1 ? *sum : load_from_block(sum, rank);
  });
  if (job.blocks > 1) cluster_sync(Relaxed());  // nobody reads this block's any more
}

template <int kWidth>
__global__ void __launch_bounds__(kAddThreads) add(const GemvJob job) {
  wait_for_launch_before();
  add_chains<kWidth>(job);
}

int64_t groups_of(const Gemm& g, int rows) {
  return ceil_div(g.m, rows) * ceil_div(g.n, kStreamColumns);
}

GemvPlan plan_of(const Gemm& all, const Context& context, void* workspace) {
  Gemm g = rows_first(all);
  g.match_single_chain_overflow =
      g.match_single_chain_overflow && is_few(g.m, g.n);  // of more rows nobody asks for it
  const int rows = kTiles[context.row].TM;
  return plan_teams(g, groups_of(g, rows) * g.batch, chains_of(rows), context.device, workspace);
}

size_t workspace(const Gemm& g, const Context& context) {
  return plan_of(g, context, nullptr).bytes;
}

template <int kRow>
void run_row(const GemvJob& job, const Context& context) {
  constexpr int TM = kTiles[kRow].TM;
  const int warps = block_warps(job);
  const int64_t blocks = ceil_div(groups_of(job.g, TM), warps / job.warps) * job.blocks;
  if (blocks > kMaxGridX)
    throw std::invalid_argument("tma_gemv: over 2^31 - 1 groups of columns and rows");
  LaunchConfig config{.block = dim3(static_cast<unsigned>(warps) * 32),
                      .dependent = may_depend(context.device)};
  if (job.in_cluster) config.cluster = static_cast<unsigned>(job.blocks);
  const auto make = [&](const GemvJob& chains, unsigned matrices) {
    const Gemm& g = chains.g;
    config.grid = dim3(static_cast<unsigned>(blocks), 1, matrices);
    StreamJob all{chains, {}};
    void (*const kernel_of_job)(StreamJob) = by_major(
        [&](auto a, auto b) {
          constexpr bool kA = a() || TM == 1, kB = b();  // a box is 16 bytes wide at least
          all.maps = {RawLoader<32, TM, kA>::map(g.a, g.m, g.k, g.batch),
                      RawLoader<32, kStreamColumns, kB>::map(g.b.transposed(), g.n, g.k, g.batch)};
          config.smem = warps * sizeof(Warp<TM, kA, kB>);
          return kernel<kRow, kA, kB>;
        },
        g);
    launch(kernel_of_job, config, context, all);
  };
  launch_chains(make, add<1>, add<4>, job, context);
}

void run(const Gemm& g, const Context& context) {
  constexpr void (*rows[])(const GemvJob&, const Context&) = {run_row<0>, run_row<1>, run_row<2>};
  static_assert(std::size(rows) == std::size(kTiles));
  rows[context.row](plan_of(g, context, context.workspace).job, context);
}

static const Register<run> stage(
    kFlavour, {.name = "tma_gemv",
               .rung = 30,
               .idea = "few rows: both operands by TMA, to rings that warps have of their own",
               .source = "this project",
               .tiles = {std::begin(kTiles), std::end(kTiles)},
               .min_sm = 90,
               .max_sm = 90,
               .split_k = true,
               .matches_single_chain_overflow = true,
               .turns = has_more_rows,
               .workspace = workspace});

}  // namespace xgemm::XGEMM_FLAVOUR::tma_gemv
