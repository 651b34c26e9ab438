// Products whose every result rests on its own row of A, its column of B and K alone, by the main
// loop of emulated_wgmma.h: other rows, M and the batch change no bit of it. What that asks for:
//
//   K            no tile is cut along it: an element is the same sums in any tile, of any size
//   A's limbs    rows are walked along k, however they lie: what is known of a row is one sum in
//                one order
//   B's limbs    as if M were not known, in a launch of their own where A's would be partitioned by
//                them, and never in slabs
//   certificate  of each element: what is uncertain is made anew by itself (recompute_elements.h)
//   scales       undone as an element's own row and column ask
//
// A product of few tiles leaves multiprocessors idle, since K is not cut.
#pragma once

#include "xgemm/mainloop/emulated_wgmma.h"
#include "xgemm/mainloop/recompute_elements.h"

namespace xgemm {
inline namespace XGEMM_FLAVOUR {

struct InvariantJob : WgmmaJob {
  static constexpr bool kShared = false, kAlone = true;
  ElementMap elements;

  // The epilogue of one tile, of which `warpgroup` has 64 rows, a unit. Where C is read, which may
  // be D, nothing is stored that is given or made anew.
  template <EmulationScheme S, Tile T>
  __device__ __forceinline__ void store_tile(GroupScales<T>& scales,
                                             const typename GroupScales<T>::Share& share, int64_t z,
                                             const TileCoord& o, int warpgroup,
                                             const float (&acc)[64]) const {
    static_assert(T.BN == kElementColumns);
    const Gemm its = problem(z);
    const int lane = threadIdx.x % 32, thread = threadIdx.x % kWarpgroup, tx = lane % 4 * 2;
    const int row = thread / 32 * 16 + lane / 4;
    const int64_t first = o.i + warpgroup * 64;
    named_barrier(1 + warpgroup, kWarpgroup);  // all have read the scales of the tile before
    scales.put(share, its.k, its.m - first, its.n - o.j, thread);
    named_barrier(1 + warpgroup, kWarpgroup);
    const uint32_t flags = scales.flags();
    const EmulatedEpilogue<S, T.BN / 8> epilogue{.g = its,
                                                 .rows = row_scales(z),
                                                 .columns = column_scales(z),
                                                 .i = first + row,
                                                 .j = o.j + tx,
                                                 .undo_rows = scales.rows + row,
                                                 .undo_columns = scales.columns + tx,
                                                 .flags = flags};
    const bool odd = flags & (kFar | kInfinities), given = flags & kGivenFlags;
    uint32_t anew = 0;  // of the unit
    uint64_t mine = 0;
    if (odd || flags & kLossy) [[unlikely]] {
      // Of rows that are given limbs say nothing.
      mine = odd || given ? epilogue.uncertain_alone(acc)
                          : epilogue.existing(epilogue.uncertain(acc, scales.row_doubts + row,
                                                                 scales.column_doubts + tx));
      const auto count = static_cast<uint32_t>(__popcll(mine));
      scales.vote(0, its, epilogue.rows, epilogue.columns, first, o.j, count, thread);
      named_barrier(1 + warpgroup, kWarpgroup);
      anew = scales.all_uncertain();
      if (anew > 0) {
        const int64_t unit = unit_at(z, first, o.j, T.BN);
        uint32_t* const bits = elements.bits_of(unit, thread);
        bits[0] = static_cast<uint32_t>(mine), bits[1] = static_cast<uint32_t>(mine >> 32);
        if (anew <= ElementMap::kMostListed) {
          uint32_t at = scales.uncertain_before(count, thread);
#pragma unroll 1
          for (uint64_t left = mine; left; left &= left - 1) {
            const int e = __ffsll(static_cast<long long>(left)) - 1;
            elements.list(unit)[at++] = static_cast<uint16_t>((row + epilogue.row_of(e)) * T.BN +
                                                              tx + epilogue.column_of(e));
          }
        }
      }
    }
    const Fate worst = anew > ElementMap::kMostListed ? Fate::chained
                       : anew > 0                     ? Fate::listed
                       : given                        ? Fate::given
                                                      : Fate::stands;
    if (thread == 0 && first < its.m) map.mark(unit_at(z, first, o.j, T.BN), worst, given, anew);
    if (odd || ((given || anew > 0) && its.beta != 0.f)) [[unlikely]]
      return epilogue.store_alone(acc, mine);
    if (!given || !scales.all_given()) [[likely]]
      epilogue.store(acc);
  }
};

// What is made anew, in the workspace behind what `limbs` has of it.
struct InvariantRoom : WgmmaRoom {
  ElementMap elements;
};
inline InvariantRoom plan_invariant(const Gemm& g, const DecomposePlan& limbs,
                                    const Context& context) {
  InvariantRoom r;
  RecomputeJob& job = r.job;
  job.g = g;
  job.a = limbs.a, job.b = limbs.b;
  job.counter = context.recomputed;
  RecomputeMap& map = job.map;
  map.units_m = ceil_div(g.m, kUnitRows), map.units_n = ceil_div(g.n, kElementColumns);
  map.units = map.units_m * map.units_n * g.batch;
  Layout all{context.workspace, limbs.bytes};
  const auto of_units = [&](size_t bytes) {
    return all.place(times(static_cast<size_t>(map.units), bytes));
  };
  r.clear.count = 1;
  r.clear.words = map.worst = static_cast<uint32_t*>(all.place(sizeof(uint32_t)));
  map.fates = static_cast<uint32_t*>(of_units(sizeof(uint32_t)));
  r.elements.bits = static_cast<uint32_t*>(of_units(ElementMap::kWords * sizeof(uint32_t)));
  r.elements.lists = static_cast<uint16_t*>(of_units(ElementMap::kMostListed * sizeof(uint16_t)));
  r.bytes = all.bytes;
  return r;
}

// Both operands in one launch where B lies along k, too: then neither decides how the other is
// partitioned.
template <EmulationScheme S, int kCluster>
void decompose_invariant(const Gemm& g, const DecomposePlan& plan, const Context& context,
                         const Clear& clear) {
  if (plan.b_is_kept || along_k(g.b.transposed(), g.n, g.k))
    return decompose<S, kCluster>(g, plan, context, clear);
  DecomposePlan one = plan;
  one.a_is_kept = true;
  decompose<S, kCluster>(g, one, context, clear);
  one.a_is_kept = false, one.b_is_kept = true;
  decompose<S, kCluster>(g, one, context);
}

template <EmulationScheme S, int kDecomposeCluster, Tile T>
void run_invariant(const Gemm& g, const Context& context) {
  for_each_slab(g, S.limbs, wave_of(T, context.device), context,
                [](const Gemm& part, const DecomposePlan& plan, const Context& its) {
                  const InvariantRoom room = plan_invariant(part, plan, its);
                  decompose_invariant<S, kDecomposeCluster>(part, plan, its, room.clear);
                  InvariantJob job;
                  job.elements = room.elements;
                  launch_wgmma<S, T>(part, plan, room, its, job);
                  launch_recompute_elements({room.job, room.elements}, its);
                });
}

// Bytes for it.
inline size_t invariant_workspace(EmulationScheme s, const Tile& t, const Gemm& g,
                                  const Context& context) {
  return workspace_of_slabs(g, s.limbs, wave_of(t, context.device), context,
                            [&](const Gemm& part, const DecomposePlan& plan) {
                              return plan_invariant(part, plan, context).bytes;
                            });
}

// Stage::invariant_row: of tiles that are whole along K, those whose waves take the least time.
inline int quickest_whole(const Tile* first, const Tile* last, const Gemm& g,
                          const Device& device) {
  const auto time = [&](const Tile& t) {
    return Slabs{.rows = g.m}.waves(g, wave_of(t, device)) * t.BM / static_cast<double>(t.rate);
  };
  return static_cast<int>(
      std::min_element(first, last,
                       [&](const Tile& x, const Tile& y) { return time(x) < time(y); }) -
      first);
}

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
