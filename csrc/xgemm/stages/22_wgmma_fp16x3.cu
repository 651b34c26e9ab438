// FP32 accuracy from fp16 tensor cores: each operand in two parts, three products by wgmma, fed by
// TMA. Operands that two parts cannot hold go to three bf16 parts, without asking the host.

// arch: sm_90a

#include <iterator>

#include "xgemm/wgmma_gemm.h"

namespace xgemm::XGEMM_FLAVOUR::wgmma_fp16x3 {

constexpr Tile kTiles[] = {
    wgmma_tile(kFp16x3, 128, 2, 7, 205.f),
    wgmma_tile(kFp16x3, 128, 1, 7, 205.f),
    wgmma_tile(kFp16x3, 64, 1, 8, 165.f),
};
constexpr Tile kWide = wgmma_tile(kBf16x6, 128, 1, 4, 115.f);
constexpr int kCluster = 8;  // of the split

// From this many multiply-adds on, two more launches, mostly idle, are no price for what they can
// save: below, elements that two parts cannot hold are computed as the strict stages do, in the
// epilogue. The first row, which is for large problems, always decides. To pack B (m = 0) needs no
// decision.
constexpr double kDecides = 0x1p31;

bool decides(const Gemm& g, const Context& context) {
  const double products = static_cast<double>(g.m) * static_cast<double>(g.n) *
                          static_cast<double>(g.k) * static_cast<double>(g.batch);
  return g.m > 0 && (context.row == 0 || products >= kDecides);
}

const char* scheme(const Gemm& g, const Context& context) {
  return decides(g, context)
             ? "fp16x3: two fp16 parts of each operand, three products; bf16x6 if the split "
               "finds operands that they cannot hold"
             : kFp16x3Words;
}

// Where it is decided, there is room for three parts of B too: they are made of B itself.
SplitPlan plan_for(const Gemm& g, const Context& context, void* workspace) {
  return decides(g, context) ? plan_split(g, kBf16x6.parts, workspace)
                             : plan_split(g, kFp16x3.parts, workspace, context.packed_b);
}

// Of the two products one happens, and hands sums over behind what the split needs.
size_t workspace(const Gemm& g, const Context& context) {
  const SplitPlan plan = plan_for(g, context, nullptr);
  const size_t bytes = place_relay(kTiles[context.row], g, plan.bytes, context).bytes;
  return decides(g, context) ? std::max(bytes, place_relay(kWide, g, plan.bytes, context).bytes)
                             : bytes;
}

__global__ void __launch_bounds__(32) begin(Verdict* verdict, const Verdict* packed) {
  take_turn();
  if (threadIdx.x == 0) *verdict = packed ? *packed : Verdict{};
}

void run(const Gemm& g, const Context& context) {
  constexpr void (*kernels[])(const Gemm&, const SplitPlan&, const Context&, When) = {
      launch_wgmma<kFp16x3, kTiles[0]>, launch_wgmma<kFp16x3, kTiles[1]>,
      launch_wgmma<kFp16x3, kTiles[2]>};
  static_assert(std::size(kernels) == std::size(kTiles));
  const SplitPlan plan = plan_for(g, context, context.workspace);
  const Clear flags = place_relay(kTiles[context.row], g, plan.bytes, context).flags;
  if (!decides(g, context)) {
    split<kFp16x3, kCluster>(g, plan, context, nullptr, nullptr, flags);
    return kernels[context.row](g, plan, context, When::always);
  }
  SplitPlan narrow = plan;
  const Verdict* packed = nullptr;
  if (context.packed_b) {
    const PackedB b = plan_packed(g, context.packed_b);
    narrow.keep(b);
    packed = b.verdict;
  }
  launch(begin, {.grid = dim3(1), .block = dim3(32), .dependent = true}, context, plan.verdict,
         packed);
  split<kFp16x3, kCluster>(g, narrow, context, plan.verdict, nullptr, flags);
  kernels[context.row](g, narrow, context, When::narrow);
  split<kBf16x6, kCluster, true>(g, plan, context, nullptr, plan.verdict,
                                 place_relay(kWide, g, plan.bytes, context).flags);
  launch_wgmma<kBf16x6, kWide>(g, plan, context, When::wide);
}

static const Register stage(
    kFlavour,
    {.name = "wgmma_fp16x3",
     .rung = 22,
     .idea = "operands in two fp16 parts, three tensor-core products, short sums rounded in FP32",
     .source = "this project",
     .tiles = {std::begin(kTiles), std::end(kTiles)},
     .min_sm = 90,
     .max_sm = 90,
     .strict = false,
     .scheme = scheme,
     .refuse = too_large,
     .workspace = workspace,
     .packed_bytes = packed_bytes,
     .pack = pack<kCluster>,
     .run = run});

}  // namespace xgemm::XGEMM_FLAVOUR::wgmma_fp16x3
