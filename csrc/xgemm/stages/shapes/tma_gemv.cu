// Few rows are a matter of memory, of which threads cannot ask for enough: TMA brings both operands
// to rings of warps, each with its columns' share of K. Chains meet as gemv's do.
//
// Eight rows are too many for gemv, whose lanes would need eight sums for each of their columns and
// ask for the same of A again and again, and too few for a tile: a block of split_k waits for
// memory at every slice, together. Here, as in gemv, each warp is on its own. It has 32 columns, a
// share of K, and in shared memory two slices of both operands, 32 deep, which TMA fills: one lane
// asks for a box, all lanes multiply the other slice, and no warp waits for another. What a thread
// asks for itself is limited by how much of it a multiprocessor keeps on its way; boxes are not, so
// two slices are enough. More of them make large products slower, as memory is then asked for too
// many places at a time.
//
// Slices lie as they came, so the lanes of a warp are dealt out over rows and columns in the order
// in which their reads meet no bank twice: with eight rows a lane has four columns by two rows, and
// each value that it reads serves two or four products.
//
// The chains are split_k's again, bit for bit. All chains of a group of columns belong to one block
// of up to twelve warps, if the groups are enough to give every multiprocessor work: then they meet
// at a barrier of the block, which costs next to nothing. Else they meet in a cluster of two, four
// or eight blocks. Other numbers leave multiprocessors empty, and blocks that wait for a place cost
// as much as all the others together.
//
// arch: sm_90a
// against: gemv, as both are for few rows, and warps have their own share of K
// first: multiply in mainloop/gemv_tma.h

#include <iterator>
#include <utility>

#include "xgemm/device/ptx/cluster.h"
#include "xgemm/device/ptx/mbarrier.h"
#include "xgemm/epilogue/cluster_reduce.h"
#include "xgemm/mainloop/gemv_plan.h"
#include "xgemm/mainloop/gemv_tma.h"

namespace xgemm::XGEMM_FLAVOUR::tma_gemv {

constexpr int kTeamWarps = 12;  // of a block at most

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
  team.store<TM, kStreamColumns>(job, g, part,
                                 [&](int w, int chain, int e) { return &warps[w].sums[chain][e]; });
  if (job.blocks > 1) cluster_sync(Relaxed());  // nobody reads this block's any more
}

template <int kWidth>
__global__ void __launch_bounds__(kAddThreads) add(const GemvJob job) {
  wait_for_launch_before();
  add_chains<kWidth>(job);
}

// Which warps make the chains: all warps of a group of columns in one block, if that leaves no
// multiprocessor without work; else in a cluster.

// Warps of a block: where a group has few, several groups are side by side.
inline int block_warps(const GemvJob& job) { return job.warps <= 2 ? 4 : job.warps; }

// Of `groups` of columns, with so many chains each at a time in a warp at most. What counts is how
// many chains the multiprocessor makes that makes most. Clusters of more than two leave some of
// them empty, and those that must wait for others' places cost a round of all: twice the time.
inline GemvPlan plan_teams(const Gemm& g, int64_t groups, int64_t most_chains, const Device& device,
                           void* workspace) {
  GemvPlan plan{.job = {{.g = g}}};
  GemvJob& job = plan.job;
  const int64_t splits = job.split_k_slices = split_k_slices(g);
  constexpr int64_t kNone = INT64_MAX;
  int64_t least = kNone;
  for (int64_t blocks = 1; blocks <= (may_depend(device) ? kClusterSlices : 1); blocks *= 2) {
    const int64_t each = ceil_div(splits, kTeamWarps * blocks);
    const int64_t warps = ceil_div(splits, each * blocks), room = cluster_room(blocks);
    const bool at_once = groups * blocks <= room * (kTeamWarps / warps);
    const int64_t load = ceil_div(groups * blocks, room) * warps * each;
    if (each > most_chains || load >= least || (blocks > 1 && !at_once)) continue;
    if (ceil_div(splits, each * warps) < blocks) continue;  // some would be idle
    least = load;
    job.warps = static_cast<int>(warps), job.blocks = blocks, job.each = each;
  }
  // A second launch costs less than a third of the multiprocessors.
  job.in_cluster = splits > 1 && least != kNone &&
                   (least <= kTeamWarps || least * kSms * 2 <= groups * splits * 3);
  if (splits == 1 || job.in_cluster) return plan;
  const ChainPlan chains = plan_chains(g, workspace);
  static_cast<ChainJob&>(job) = chains.job;
  plan.bytes = chains.bytes;
  job.warps = static_cast<int>(std::min<int64_t>(splits, 4)), job.each = 1;
  job.blocks = ceil_div(splits, job.warps);
  return plan;
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
          all.maps = {
              NativeLoader<32, TM, kA>::map(g.a, g.m, g.k, g.batch),
              NativeLoader<32, kStreamColumns, kB>::map(g.b.transposed(), g.n, g.k, g.batch)};
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
