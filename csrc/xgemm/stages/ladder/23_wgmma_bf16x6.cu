// The same from bf16 tensor cores: three limbs hold all of a float's bits and nearly all of its
// range; six products.
//
// A bf16 number has FP32's range of exponents and eight bits. Three of them hold all the bits of a
// float, wherever it lies in its row, so there is next to nothing that the limbs cannot give. The
// price is in the products: of nine, the six matter that are not below FP32's last bit, twice as
// many as with two fp16 limbs. The kernel is the same, with other numbers in its scheme: a rung for
// those who want no exceptions.
//
// arch: sm_90a
// registers: 40 and 232, 40 and 232, as launched
// origin: This project. Three bf16 limbs are from Henry, Tang and Heinecke
//   ([arXiv:1904.06376](https://arxiv.org/abs/1904.06376)).

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
               .workspace = workspace,
               .sums_rows = sums_rows});

}  // namespace xgemm::XGEMM_FLAVOUR::wgmma_bf16x6
