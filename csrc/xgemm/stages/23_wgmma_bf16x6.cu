// The same from bf16 tensor cores: three limbs hold all of a float's bits and nearly all of its
// range; six products.

// arch: sm_90a

#include <iterator>

#include "xgemm/mainloop/emulated_wgmma.h"

namespace xgemm::XGEMM_FLAVOUR::wgmma_bf16x6 {

constexpr Tile kTiles[] = {
    wgmma_tile(kBf16x6, 128, 2, 4, 108.f),
    wgmma_tile(kBf16x6, 128, 1, 4, 105.f),
    wgmma_tile(kBf16x6, 64, 1, 6, 95.f),
};
constexpr int kCluster = 8;  // of the decomposition

size_t workspace(const Gemm& g, const Context& context) {
  return wgmma_workspace(kBf16x6, kTiles[context.row], g, context);
}

void run(const Gemm& g, const Context& context) {
  constexpr void (*rows[])(const Gemm&, const Context&) = {run_wgmma<kBf16x6, kCluster, kTiles[0]>,
                                                           run_wgmma<kBf16x6, kCluster, kTiles[1]>,
                                                           run_wgmma<kBf16x6, kCluster, kTiles[2]>};
  static_assert(std::size(rows) == std::size(kTiles));
  rows[context.row](g, context);
}

static const Register<run> stage(
    kFlavour, {.name = "wgmma_bf16x6",
               .rung = 23,
               .idea = "operands in three bf16 limbs, six tensor-core products: the range of FP32",
               .source = "this project",
               .tiles = {std::begin(kTiles), std::end(kTiles)},
               .min_sm = 90,
               .max_sm = 90,
               .strict = false,
               .auto_choice = false,
               .unit_rows = kUnitRows,
               .scheme = [](const Gemm&, const Context&) { return kBf16x6Words; },
               .can_implement = can_implement_wgmma,
               .workspace = workspace});

}  // namespace xgemm::XGEMM_FLAVOUR::wgmma_bf16x6
