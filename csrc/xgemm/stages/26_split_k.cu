// Few tiles leave a GPU idle: K is cut into shares, each a chain of its own in a block of its own,
// and a second launch adds the chains up in order. Where K is cut depends on the problem alone.

#include <iterator>
#include <utility>

#include "xgemm/chain_sums.h"
#include "xgemm/pipelined.h"
#include "xgemm/ptx_hopper.h"

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

template <int kRow, bool kA, bool kB>  // whether A, B transposed are contiguous along k
__global__ void __launch_bounds__(kTiles[kRow].threads(), kTiles[kRow].min_blocks)
    kernel(const ChainJob job) {
  constexpr Tile T = kTiles[kRow];
  XGEMM_SHARED_DYNAMIC(ring, Ring<T>);
  let_next_launch_begin();
  const Gemm g = job.share(blockIdx.z, blockIdx.y);
  multiply_pipelined<T, kA, kB>(ring, g, raster<T>(blockIdx.x, g));
}

__global__ void __launch_bounds__(kAddThreads) add(const ChainJob job) {
  wait_for_launch_before();
  add_chains(job);
}

__global__ void __launch_bounds__(kTiles[kInTurn].threads(), kTiles[kInTurn].min_blocks)
    in_turn(const Gemm batch) {
  const Gemm g = batch.at(blockIdx.z);
  const Origin o = raster<kTiles[kInTurn]>(blockIdx.x, g);
  chains_in_turn(g, o.i + threadIdx.y, o.j + threadIdx.x);
}

size_t workspace(const Gemm& g, const Context& context) {
  return context.row == kInTurn ? 0 : plan_chains(g, nullptr).bytes;
}

template <int... kRow>
void run_pipelined(const Gemm& all, const Context& context, std::integer_sequence<int, kRow...>) {
  static_assert(((sizeof(Ring<kTiles[kRow]>) == kTiles[kRow].smem()) && ...));
  ChainJob job = plan_chains(all, context.workspace).job;
  job.g.as_one = false;  // nobody looks at how far chains reach
  const Tile& t = kTiles[context.row];
  const int64_t tiles = tile_count(job.g, t.BM, t.BN);
  if (tiles > kMaxGridX || job.shares > kMaxGridZ)
    throw std::invalid_argument("split_k: over 2^31 - 1 tiles, or over 65535 shares of k");
  const auto kernel_of_row = by_major(
      [&](auto a, auto b) {
        constexpr void (*kernels[])(ChainJob) = {kernel<kRow, a(), b()>...};
        return kernels[context.row];
      },
      job.g);
  launch_chains(kernel_of_row,
                {.grid = dim3(static_cast<unsigned>(tiles), static_cast<unsigned>(job.shares)),
                 .block = dim3(t.threads()),
                 .smem = static_cast<size_t>(t.smem())},
                add, job, context);
}

void run(const Gemm& g, const Context& context) {
  if (context.row == kInTurn)
    return launch_tiles(in_turn, rows_first(g), kTiles[kInTurn], dim3(32, 32), context);
  run_pipelined(g, context, std::make_integer_sequence<int, kPipelined>());
}

static const Register stage(
    kFlavour,
    {.name = "split_k",
     .rung = 26,
     .idea = "few tiles: K cut by the problem's shape, a chain of each part, added in order",
     .source = "beyond the seeds",
     .tiles = {std::begin(kTiles), std::end(kTiles)},
     .min_sm = 80,
     .splits = true,
     .workspace = workspace,
     .run = run});

}  // namespace xgemm::XGEMM_FLAVOUR::split_k
