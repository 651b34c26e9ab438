// FP32 accuracy from fp16 tensor cores: each operand in two parts, three products by wgmma, fed by
// TMA.
// arch: sm_90a
#include <iterator>

#include "xgemm/wgmma_gemm.h"

namespace xgemm::XGEMM_FLAVOUR::wgmma_fp16x3 {

constexpr Tile kTiles[] = {
    wgmma_tile(kFp16x3, 128, 2, 7, 210.f),
    wgmma_tile(kFp16x3, 128, 1, 7, 205.f),
    wgmma_tile(kFp16x3, 64, 1, 8, 185.f),
};
constexpr int kCluster = 8;  // of the split

size_t workspace(const Gemm& g, const Context&) {
  return plan_split(g, kFp16x3.parts, nullptr).bytes;
}

void run(const Gemm& g, const Context& context) {
  const SplitPlan plan = plan_split(g, kFp16x3.parts, context.workspace);
  split<kFp16x3, kCluster>(g, plan, context);
  constexpr void (*kernels[])(const Gemm&, const SplitPlan&, const Context&) = {
      launch_wgmma<kFp16x3, kTiles[0]>, launch_wgmma<kFp16x3, kTiles[1]>,
      launch_wgmma<kFp16x3, kTiles[2]>};
  static_assert(std::size(kernels) == std::size(kTiles));
  kernels[context.row](g, plan, context);
}

static const Register stage(
    kFlavour,
    {.name = "wgmma_fp16x3",
     .rung = 22,
     .idea = "operands in two fp16 parts, three tensor-core products, short sums rounded in FP32",
     .source = "beyond the seeds",
     .tiles = {std::begin(kTiles), std::end(kTiles)},
     .min_sm = 90,
     .max_sm = 90,
     .strict = false,
     .refuse = too_many_rows,
     .workspace = workspace,
     .run = run});

}  // namespace xgemm::XGEMM_FLAVOUR::wgmma_fp16x3
