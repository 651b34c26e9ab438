// FP32 accuracy from fp16 tensor cores: each operand in two limbs, three products by wgmma, fed by
// TMA. Results that two limbs cannot give are made anew by FP32 operations, without asking the
// host.
//
// The limbs and the three sums stay; the machine around them is Hopper's. A warpgroup, four warps,
// starts a product of 64 rows by 128 columns with one instruction, `wgmma`, which reads both
// operands from shared memory and works on while the warps do other things. TMA brings whole boxes
// of a tensor there, at one thread's word. A fetching warpgroup and the multiplying ones meet at
// mbarriers only: `full` counts the bytes that have landed, `empty` the readers that are done.
// Nobody waits for the whole block.
//
// The three sums are what lets the tensor cores never wait, too. While `acc_corr` is multiplied,
// `acc_hi` is done, and the warps add it to `acc`; by the next slice it is free again. Hence the
// order in the code: `acc_hi`, one wait that lets `acc_corr` go on, the additions, then the slice
// *before* goes back to the ring. The picture of the ring shows who has a slice when.
//
// In a cluster of two blocks, one below the other, each fetches half of B's slice and TMA delivers
// it to both. The compiler must take part: where it sees too few registers, or a sum touched while
// wgmma may still add to it, it makes every wgmma wait for the last, without a word but a note in
// its log. The build reads that note and fails.
//
// Where a block has several tiles of 512 and more of K, a second kernel hides the epilogue: five
// slots in place of seven leave room for a tile of D, which idle warps of the fetching warpgroup
// store while the next is multiplied.
//
// The certificate of each result is that of rung 21, and so are the units that are made anew. The
// host asks nothing and waits for nothing, so a CUDA graph can hold it all.
//
// arch: sm_90a
// first: wgmma_kernel in mainloop/emulated_wgmma.h
// registers: 40 and 232, 40 and 232, as launched
// origin: This project, with rung 21's limbs and sums.

#include <iterator>

#include "xgemm/mainloop/emulated_wgmma.h"
#include "xgemm/mainloop/grouped_wgmma.h"
#include "xgemm/mainloop/invariant_wgmma.h"
#include "xgemm/mainloop/mixed_wgmma.h"

namespace xgemm::XGEMM_FLAVOUR::wgmma_fp16x3 {

constexpr Tile kTiles[] = {
    wgmma_tile(kFp16x3, 128, 2, 7, 205.f),
    wgmma_tile(kFp16x3, 128, 1, 7, 205.f),
    wgmma_tile(kFp16x3, 64, 1, 8, 165.f),
};
constexpr int kCluster = 8;  // of the decomposition

constexpr Tile kGroupTile = kTiles[1];  // groups have few rows
constexpr Tile kMixedTile = wgmma_tile(kFp16x2, 128, 2, 9, 0.f, 1);  // slots are smaller

size_t workspace(const Gemm& g, const Context& context) {
  if (context.groups) return grouped_workspace<kFp16x3, kGroupTile>(g, context);
  if (context.half_a) return mixed_workspace<kMixedTile>(g, context);
  if (context.invariant) return invariant_workspace(kFp16x3, kTiles[context.row], g, context);
  return wgmma_workspace(kFp16x3, kTiles[context.row], g, context);
}

void run(const Gemm& g, const Context& context) {
  if (context.groups) return run_grouped<kFp16x3, kCluster, kGroupTile>(g, context);
  if (context.half_a) return run_mixed<kCluster, kMixedTile>(g, context);
  using Run = void (*)(const Gemm&, const Context&);
  constexpr Run rows[] = {run_wgmma<kFp16x3, kCluster, kTiles[0]>,
                          run_wgmma<kFp16x3, kCluster, kTiles[1]>,
                          run_wgmma<kFp16x3, kCluster, kTiles[2]>};
  constexpr Run invariant[] = {run_invariant<kFp16x3, kCluster, kTiles[0]>,
                               run_invariant<kFp16x3, kCluster, kTiles[1]>,
                               run_invariant<kFp16x3, kCluster, kTiles[2]>};
  static_assert(std::size(rows) == std::size(kTiles) && std::size(invariant) == std::size(kTiles));
  (context.invariant ? invariant : rows)[context.row](g, context);
}

int invariant_row(const Gemm& g, const Device& device) {
  return quickest_row(std::begin(kTiles), std::end(kTiles), g, device);
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
     .pack = pack<kCluster>,
     .takes_groups = true,
     .takes_half_a = true,
     .invariant_row = invariant_row,
     .sums_rows = sums_rows});

}  // namespace xgemm::XGEMM_FLAVOUR::wgmma_fp16x3
