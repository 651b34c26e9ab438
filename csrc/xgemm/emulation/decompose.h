// The decomposition: both operands' limbs and scales in one launch. Memory-bound: an element is
// read once where a row fits into the registers or the shared memory of those who work on it.
#pragma once

#include <algorithm>
#include <utility>

#include "xgemm/device/launch.h"
#include "xgemm/emulation/decompose_strips.h"
#include "xgemm/emulation/decompose_whole.h"

namespace xgemm {
inline namespace XGEMM_FLAVOUR {

// How operands are partitioned. A row along k: kThreads on it, kItems times 8 elements each, so
// that it fits into their registers where it can. kRows: of a strip, where an operand comes in them
// (0: none does), which is kCluster blocks'.
struct DecomposeShape {
  int threads, items, strip, cluster;
};

// Blocks on an SM that leave a thread the registers for all loads it has under way.
constexpr int decompose_blocks(int strip, int items) {
  if (strip == kStrip) return items > 2 ? kDeepBlocks : kStripBlocks;
  return strip || items > 2 ? 3 : 4;
}

// Words that a kernel after this one is to find zero.
struct Clear {
  uint32_t* words = nullptr;
  int count = 0;
};

template <Half kType, int kThreads, int kItems, int kRows, int kCluster>
__global__ void __launch_bounds__(kDecomposeThreads, decompose_blocks(kRows, kItems))
    decompose_kernel(const DecomposeJob a, const DecomposeJob b, const Clear clear) {
  constexpr EmulationScheme S = scheme_of(kType);
  take_turn();
  if (blockIdx.x == 0)
    for (int i = threadIdx.x; i < clear.count; i += kDecomposeThreads) clear.words[i] = 0;
  if (blockIdx.x >= a.grid + b.grid) return;
  const bool first = blockIdx.x < a.grid;
  const DecomposeJob job = first ? a : b;
  const int64_t block = first ? blockIdx.x : blockIdx.x - a.grid;
  constexpr bool kMayBeShort = kItems == 1;
  if constexpr (kRows == kStrip) {
    if (!job.along_k) return decompose_strip<S, kCluster>(job, block);
  } else if constexpr (kRows > 0) {
    if (!job.along_k) return decompose_whole_strip<S, kRows, kMayBeShort>(job, block);
  }
  decompose_along_k<S, kThreads, kItems, kMayBeShort>(job, block);
}

// Enqueues the decomposition of A and B, as far as they are not kept, and tells how they are
// partitioned. It clears `clear`, too. kCluster: blocks that share a strip of a deep operand, twice
// as many of the deepest; 1 where there are no clusters (below sm_90).
template <EmulationScheme S, int kCluster>
DecomposeShape decompose(const Gemm& g, const DecomposePlan& plan, const Context& context,
                         Clear clear = {}) {
  const bool a_along_k = g.m == 0 || plan.a_is_kept || plan.invariant || along_k(g.a, g.m, g.k);
  const bool b_along_k = plan.b_is_kept || along_k(g.b.transposed(), g.n, g.k);
  void (*kernel)(DecomposeJob, DecomposeJob, Clear) = nullptr;
  DecomposeShape shape{};
  const auto take = [&]<int kThreads, int kItems, int kRows, int kBlocks>() {
    kernel = decompose_kernel<S.type, kThreads, kItems, kRows, kBlocks>;
    shape = {kThreads, kItems, kRows, kBlocks};
  };
  // Of a short K a kernel of its own, where there are two limbs: to look for one costs the others
  // 0.3 us, on an H200.
  // Rows along k: few threads on each, which then wait for few others and have more on its way.
  // Strips that are not deep: so few rows that blocks are enough. Others: of rows that are whole
  // lines, of as many blocks as N and K say, whatever M is: a row's scale is guessed of what they
  // begin with, and a B that is kept has the bits of one that is not. Measured on an H200,
  // 2026-11-28.
  const auto take_rows = [&] {
    if constexpr (S.limbs == 2) {
      if (g.k <= kShortK) return take.template operator()<32, 1, 0, 1>();
    }
    if (g.k <= 512) return take.template operator()<32, 2, 0, 1>();
    if (g.k <= 1024) return take.template operator()<32, 4, 0, 1>();
    if (g.k <= 2048) return take.template operator()<64, 4, 0, 1>();
    if (g.k <= 4096) return take.template operator()<128, 4, 0, 1>();
    take.template operator()<kDecomposeThreads, 4, 0, 1>();
  };
  const auto take_deep = [&]<int kBlocks, int kThreads>() {
    if (a_along_k || b_along_k) take.template operator()<kThreads, 4, kStrip, kBlocks>();
    else take.template operator()<kDecomposeThreads, 2, kStrip, kBlocks>();
  };
  const auto take_strips = [&] {
    if constexpr (S.limbs == 2) {
      if (g.k <= kShortK) return take.template operator()<32, 1, 16, 1>();
    }
    if (g.k <= 512) return take.template operator()<32, 2, 16, 1>();
    if (g.k <= kWholeK) {
      const int64_t strips =
          (a_along_k ? 0 : ceil_div(plan.a.rows, kStrip) * plan.a.matrices) +
          (b_along_k ? 0 : ceil_div(plan.b.rows, kStrip) * (plan.invariant ? 1 : plan.b.matrices));
      return 2 * strips > context.device.sm_count ? take.template operator()<32, 4, 16, 1>()
                                                  : take.template operator()<32, 4, 8, 1>();
    }
    constexpr int kTwo = std::min(kCluster, 2), kFour = std::min(kCluster, 4);
    if (g.k <= 2048)
      return g.n < 2048 ? take_deep.template operator()<kFour, 64>()
                        : take_deep.template operator()<kTwo, 64>();
    if (g.k <= 4096)
      return g.n < 1536 ? take_deep.template operator()<kCluster, 128>()
                        : take_deep.template operator()<kTwo, 128>();
    // Clusters of eight of so few strips leave multiprocessors half empty: on an H200 both operands
    // of 512 x 512 x 65536 take 193 us by them and 165 by sixteen.
    constexpr int kMost = kCluster == kPortableCluster ? 2 * kCluster : kCluster;
    if (g.n <= 1024 && g.k >= 16384)
      return take_deep.template operator()<kMost, kDecomposeThreads>();
    take_deep.template operator()<kCluster, kDecomposeThreads>();
  };
  if (a_along_k && b_along_k) take_rows();
  else take_strips();

  const auto job = [&](const View<const float>& rows, const Limbs& limbs, bool rows_along_k) {
    DecomposeJob j{.x = rows, .k = g.k, .limbs = limbs, .along_k = rows_along_k};
    j.grid = rows_along_k ? ceil_div(limbs.rows * limbs.matrices, kDecomposeThreads / shape.threads)
                          : ceil_div(limbs.rows, shape.strip) * limbs.matrices * shape.cluster;
    j.grid = ceil_div(j.grid, shape.cluster) * shape.cluster;
    return j;
  };
  DecomposeJob a = job(g.a, plan.a, a_along_k), b = job(g.b.transposed(), plan.b, b_along_k);
  a.sums = context.row_sums;
  b.of_b = true;
  if (plan.a_is_kept) a.grid = 0;
  if (plan.b_is_kept) b.grid = 0;
  if (a.along_k && !b.along_k) std::swap(a, b);  // strips take longest: they begin first
  if (a.grid + b.grid > kMaxGridX) throw std::invalid_argument("xgemm: too many rows to decompose");
  const size_t smem = shape.strip == kStrip ? sizeof(StripRoom)
                      : shape.strip == 16   ? WholeStrip<16>::bytes(plan.a)
                      : shape.strip         ? WholeStrip<8>::bytes(plan.a)
                                            : 0;
  launch(kernel,
         {.grid = dim3(static_cast<unsigned>(std::max<int64_t>(a.grid + b.grid, shape.cluster))),
          .block = dim3(kDecomposeThreads),
          .smem = smem,
          .cluster = static_cast<unsigned>(shape.cluster),
          .dependent = kCluster > 1},
         context, a, b, clear);
  return shape;
}

// Stage::sums_rows: the decomposition adds up the rows of an A that does not lie along k.
inline bool sums_rows(const Gemm& g) { return g.batch == 1 && !along_k(g.a, g.m, g.k); }

inline size_t packed_bytes(const Gemm& g) { return plan_packed(g, nullptr).bytes; }

// Stage::pack: decomposes B to where it is kept.
template <int kCluster>
void pack(const Gemm& g, const Context& context) {
  const Limbs b = plan_packed(g, context.packed_b).limbs;
  DecomposePlan plan = plan_decompose(g, kFp16x3.limbs, context.workspace, &b);
  plan.b_is_kept = false;
  decompose<kFp16x3, kCluster>(g, plan, context);
}

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
