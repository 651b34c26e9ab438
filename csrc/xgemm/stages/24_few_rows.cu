// Few rows of A (or columns of B) make no tiles: the other operand is read once, at the speed of
// memory, and K is shared out among many blocks, whose sums are added in a fixed order.
#include <algorithm>
#include <iterator>
#include <utility>

#include "xgemm/few_rows.h"

namespace xgemm::XGEMM_FLAVOUR::few_rows {

constexpr Tile tile(int rows, float rate) {
  return {.BM = rows,
          .BN = 256,
          .BK = 1,
          .TM = rows,
          .TN = 1,
          .width = 4,
          .buffers = 0,
          .min_blocks = rows <= 2   ? 3
                        : rows <= 8 ? 2
                                    : 1,
          .rate = rate};
}

constexpr Tile kTiles[] = {tile(2, 2.f), tile(4, 4.f), tile(8, 7.f), tile(16, 12.f)};

template <int kRow, bool kAlongK>
__global__ void __launch_bounds__(kFewThreads, kTiles[kRow].min_blocks) kernel(const FewJob job) {
  constexpr int kRows = kTiles[kRow].BM;
  const Gemm g = job.g.at(blockIdx.z);
  const FewBlock at(job, kRows, kAlongK ? kFewColumnsAlongK : kFewThreads);
  if constexpr (kAlongK) few_along_k<kRows>(job, g, at);
  else few_along_n<kRows>(job, g, at);
}

// Adds up what the blocks left, goes through the epilogue and stores.
__global__ void __launch_bounds__(kFewThreads) add(const FewJob job) {
  const Gemm g = job.g.at(blockIdx.z);
  const int64_t e = static_cast<int64_t>(blockIdx.x) * kFewThreads + threadIdx.x;
  if (e >= g.m * g.n) return;
  const int64_t i = e / g.n, j = e % g.n;
  g.store(i, j, few_sum(job, g, blockIdx.z, i, j));
}

size_t workspace(const Gemm& g, const Context& context) {
  return plan_few(rows_first(g), kTiles[context.row].BM, nullptr).bytes;
}

template <int... kRow>
void run_row(const Gemm& all, const Context& context, std::integer_sequence<int, kRow...>) {
  constexpr void (*kernels[][2])(FewJob) = {{kernel<kRow, false>, kernel<kRow, true>}...};
  const Gemm g = rows_first(all);
  FewJob job = plan_few(g, kTiles[context.row].BM, context.workspace).job;
  const int64_t adders = ceil_div(g.m * g.n, kFewThreads);
  if (std::max(job.blocks(), adders) > kMaxGridX)
    throw std::invalid_argument("few_rows: over 2^31 - 1 blocks");
  for (int64_t z = 0; z < g.batch; z += kMaxGridZ) {
    job.g = g.at(z);
    const auto matrices = static_cast<unsigned>(std::min(g.batch - z, kMaxGridZ));
    launch(kernels[context.row][job.along_k],
           {.grid = dim3(static_cast<unsigned>(job.blocks()), 1, matrices),
            .block = dim3(kFewThreads)},
           context, job);
    launch(add,
           {.grid = dim3(static_cast<unsigned>(adders), 1, matrices), .block = dim3(kFewThreads)},
           context, job);
  }
}

void run(const Gemm& g, const Context& context) {
  run_row(g, context, std::make_integer_sequence<int, std::size(kTiles)>());
}

static const Register stage(
    kFlavour,
    {.name = "few_rows",
     .rung = 24,
     .idea =
         "few rows: the large operand is read once, K shared out among blocks, sums in fixed order",
     .source = "this project",
     .tiles = {std::begin(kTiles), std::end(kTiles)},
     .strict = false,
     .auto_choice = false,
     .turns = has_more_rows,
     .workspace = workspace,
     .run = run});

}  // namespace xgemm::XGEMM_FLAVOUR::few_rows
