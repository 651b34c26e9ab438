// Few tiles leave a GPU idle: K is cut into slices, each a chain of its own in a block of its own,
// and the blocks of a cluster, or a second launch, add the chains up in order. Where K is cut
// depends on the problem alone.
//
// The main loop is that of cp_async_pipelined, to the letter; only the grid is another. A product
// with few results and a long K has few tiles: most of a GPU looks on while some multiprocessors
// walk along K. Here K is cut into shares, and each share of each tile is a block of its own. It
// makes a chain of fused multiply-adds of its share and leaves it in the workspace; a second launch
// adds an element's chains up in order and takes them through the epilogue. Where the blocks of a
// tile can be a cluster and no multiprocessor has more of them for it, they need neither: the
// chains stay in shared memory, where the slices were, and each block adds up its part of the tile.
//
// That changes bits, so it must not depend on anything but the problem: the length of a share comes
// from M, N, K and the batch alone, is the same for every tile of the table, on every GPU and on
// the CPU, and `explain` says it. Shorter chains round less often one after the other, so the sum
// is more accurate than one chain, not less.
//
// The last row of the table is for the day when there is no memory for a workspace: one thread
// makes an element's chains one after another and adds them as it goes, with the same bits, slowly.
//
// against: cp_async_pipelined, as the main loop is the same
// first: kernel
// origin: This project. To cut K is an old technique; that the cut depends on the problem alone, so
//   that bits do not change, is this stage's.

#include <iterator>
#include <utility>

#include "xgemm/device/copy/aligned.h"
#include "xgemm/device/ptx/cluster.h"
#include "xgemm/epilogue/cluster_reduce.h"
#include "xgemm/epilogue/split_k_chains.h"
#include "xgemm/mainloop/multistage.h"

namespace xgemm::XGEMM_FLAVOUR::split_k {

constexpr Tile kTiles[] = {
    pipelined_tile(16, 64, 32, 4, 4, 3, 6, 20.f),
    pipelined_tile(32, 64, 32, 4, 4, 3, 4, 37.8f),
    pipelined_tile(64, 64, 16, 8, 4, 4, 6, 42.8f),
    pipelined_tile(64, 128, 16, 8, 8, 4, 4, 47.7f),
    pipelined_tile(128, 128, 16, 8, 8, 4, 2, 48.0f),
    // Without a workspace: a thread makes an element's chains one after another. The last resort.
    {.BM = 32, .BN = 32, .BK = 1, .buffers = 0, .min_blocks = 2, .group = 1},
};
constexpr int kPipelined = std::size(kTiles) - 1, kInTurn = kPipelined;

// kA, kB: whether A, B transposed are contiguous along k. kInCluster: the chains of a tile are
// those of a cluster, which adds them up itself.
template <int kRow, bool kA, bool kB, bool kInCluster>
__global__ void __launch_bounds__(kTiles[kRow].threads(), kTiles[kRow].min_blocks)
    kernel(const ChainJob job) {
  constexpr Tile T = kTiles[kRow];
  XGEMM_SHARED_DYNAMIC(ring, Ring<T>);
  if constexpr (kInCluster) {
    const auto splits = static_cast<unsigned>(job.split_k_slices);
    const Gemm chain = job.split_k_slice(blockIdx.z, cluster_rank());
    const TileCoord o = swizzled_tile<T>(blockIdx.x / splits, chain);
    using Sums = SharedSums<T.BM, T.BN>;
    static_assert(sizeof(Sums) <= sizeof ring);
    Sums& sums = *reinterpret_cast<Sums*>(&ring);
    multiply_pipelined<T, kA, kB>(ring, chain, o, [&](const auto& acc, int row, int column) {
      __syncthreads();  // all are done with the ring
      leave_fragment<kStrideM, kStrideN>(sums, chain, row, column, acc);
    });
    cluster_sync();  // all of the cluster have left theirs
    const Gemm g = job.g.at(blockIdx.z);
    add_in_cluster<T.threads()>(sums, static_cast<int>(cluster_rank()), static_cast<int>(splits),
                                [&](int row, int column, const float (&sum)[4]) {
                                  store_row4(g, o.i + row, o.j + column, sum);
                                });
    cluster_sync(Relaxed());  // nobody reads this block's any more
  } else {
    const Gemm chain = job.split_k_slice(blockIdx.z, blockIdx.y);
    multiply_pipelined<T, kA, kB>(ring, chain, swizzled_tile<T>(blockIdx.x, chain));
  }
}

template <int kWidth>
__global__ void __launch_bounds__(kAddThreads) add(const ChainJob job) {
  wait_for_launch_before();
  add_chains<kWidth>(job);
}

__global__ void __launch_bounds__(kTiles[kInTurn].threads(), kTiles[kInTurn].min_blocks)
    in_turn(const Gemm batch) {
  const Gemm g = batch.at(blockIdx.z);
  const TileCoord o = swizzled_tile<kTiles[kInTurn]>(blockIdx.x, g);
  chains_in_turn(g, o.i + threadIdx.y, o.j + threadIdx.x);
}

// Few rows lie along a tile's shorter side.
bool turns(const Gemm& g, const Tile& t) {
  return has_more_rows(g) && (t.buffers == 0 || std::min(g.m, g.n) < t.BN);
}

struct Plan : ChainPlan {
  bool in_cluster;
  // Clusters take no launch more, but leave some multiprocessors empty: not where others would have
  // more blocks for it.
  Plan(const Gemm& g, const Context& context, void* workspace)
      : ChainPlan{.job = chain_job(turns(g, kTiles[context.row]) ? transposed(g) : g)} {
    const Tile& t = kTiles[context.row];
    const int64_t splits = job.split_k_slices,
                  blocks = tile_count(job.g, t.BM, t.BN) * splits * g.batch;
    in_cluster = splits > 1 && splits <= kClusterSlices && may_depend(context.device) &&
                 ceil_div(blocks, cluster_room(splits)) == ceil_div(blocks, kSms);
    if (!in_cluster) bytes = place_chains(job, workspace);
  }
};

size_t workspace(const Gemm& g, const Context& context) {
  if (context.row == kInTurn) return 0;
  return aligned_bytes(g, context) + Plan(g, context, nullptr).bytes;
}

template <int... kRow>
void run_pipelined(const Gemm& all, const Context& context, std::integer_sequence<int, kRow...>) {
  static_assert(((sizeof(Ring<kTiles[kRow]>) == kTiles[kRow].smem()) && ...));
  const Tile& t = kTiles[context.row];
  const Plan plan(all, context, context.workspace);
  ChainJob job = plan.job;
  job.g.match_single_chain_overflow = false;  // nobody looks at how far chains reach
  const int64_t tiles = tile_count(job.g, t.BM, t.BN) * (plan.in_cluster ? job.split_k_slices : 1);
  if (tiles > kMaxGridX || job.split_k_slices > kMaxGridZ)
    throw std::invalid_argument("split_k: over 2^31 - 1 tiles, or over 65535 slices of k");
  const auto kernel_of_row = by_major(
      [&](auto a, auto b) {
        constexpr void (*kernels[][2])(ChainJob) = {
            {kernel<kRow, a(), b(), false>, kernel<kRow, a(), b(), true>}...};
        return kernels[context.row][plan.in_cluster];
      },
      job.g);
  const auto splits = static_cast<unsigned>(job.split_k_slices);
  const auto make = [&](const ChainJob& chains, unsigned matrices) {
    launch(kernel_of_row,
           {.grid = dim3(static_cast<unsigned>(tiles), plan.in_cluster ? 1 : splits, matrices),
            .block = dim3(t.threads()),
            .smem = static_cast<size_t>(t.smem()),
            .cluster = plan.in_cluster ? splits : 1,
            .dependent =
                may_take_turn(context.device, tiles * (plan.in_cluster ? 1 : splits) * matrices)},
           context, chains);
  };
  launch_chains(make, add<1>, add<4>, job, context);
}

void run_tiles(const Gemm& g, const Context& context) {
  run_pipelined(g, context, std::make_integer_sequence<int, kPipelined>());
}

void run(const Gemm& g, const Context& context) {
  if (context.row == kInTurn)
    return launch_tiles(in_turn, rows_first(g), kTiles[kInTurn], dim3(32, 32), context);
  run_aligned(run_tiles, g, context);
}

static const Register<run> stage(
    kFlavour,
    {.name = "split_k",
     .idea = "few tiles: K cut by the problem's shape, a chain of each part, added in order",
     .source = "this project",
     .tiles = {std::begin(kTiles), std::end(kTiles)},
     .min_sm = 80,
     .split_k = true,
     .turns = turns,
     .workspace = workspace});

}  // namespace xgemm::XGEMM_FLAVOUR::split_k
