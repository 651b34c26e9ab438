// FP32 accuracy from fp16 tensor cores: each operand in two limbs, three products by wgmma, fed by
// TMA. Results that two limbs cannot give are made anew by FP32 operations, without asking the
// host.

// arch: sm_90a

#include <iterator>

#include "xgemm/mainloop/emulated_wgmma.h"

namespace xgemm::XGEMM_FLAVOUR::wgmma_fp16x3 {

constexpr Tile kTiles[] = {
    wgmma_tile(kFp16x3, 128, 2, 7, 205.f),
    wgmma_tile(kFp16x3, 128, 1, 7, 205.f),
    wgmma_tile(kFp16x3, 64, 1, 8, 165.f),
};
constexpr int kCluster = 8;  // of the decomposition

size_t workspace(const Gemm& g, const Context& context) {
  return wgmma_workspace(kFp16x3, kTiles[context.row], g, context);
}

void run(const Gemm& g, const Context& context) {
  constexpr void (*rows[])(const Gemm&, const Context&) = {run_wgmma<kFp16x3, kCluster, kTiles[0]>,
                                                           run_wgmma<kFp16x3, kCluster, kTiles[1]>,
                                                           run_wgmma<kFp16x3, kCluster, kTiles[2]>};
  static_assert(std::size(rows) == std::size(kTiles));
  rows[context.row](g, context);
}

static const Register<run> stage(
    kFlavour,
    {.name = "wgmma_fp16x3",
     .rung = 22,
     .idea = "operands in two fp16 limbs, three tensor-core products, short sums rounded in FP32",
     .source = "this project",
     .tiles = {std::begin(kTiles), std::end(kTiles)},
     .min_sm = 90,
     .max_sm = 90,
     .strict = false,
     .unit_rows = kUnitRows,
     .scheme = [](const Gemm&, const Context&) { return kFp16x3Words; },
     .can_implement = can_implement_wgmma,
     .workspace = workspace,
     .packed_bytes = packed_bytes,
     .pack = pack<kCluster>});

}  // namespace xgemm::XGEMM_FLAVOUR::wgmma_fp16x3
