// Products whose every result rests on its own row of A, its column of B, N and K alone, by the
// main loop of emulated_wgmma.h: other rows, M and the batch change no bit of it. What that asks
// for:
//
//   K            cut in parts by N and K alone (core/k_parts.h): an element is the same sums in any
//                tile, of any size, whoever makes them
//   A's limbs    rows are walked along k, however they lie: what is known of a row is one sum in
//                one order
//   B's limbs    as if M were not known, in a launch of their own where A's would be partitioned by
//                them, and never in slabs
//   certificate  of each element: what is uncertain is made anew by itself (recompute_elements.h)
//   scales       undone as an element's own row and column ask
#pragma once

#include "xgemm/core/k_parts.h"
#include "xgemm/device/ptx/loads.h"
#include "xgemm/mainloop/emulated_wgmma.h"
#include "xgemm/mainloop/few_rows.h"
#include "xgemm/mainloop/recompute_elements.h"

namespace xgemm {
inline namespace XGEMM_FLAVOUR {

struct InvariantJob : WgmmaJob {
  static constexpr bool kShared = false, kAlone = true;
  using Work = PartOfTile;
  // Of tiles that clusters share `sums` has [part][tile][rank][warpgroup], as WgmmaJob's lie, and
  // `flags` are [tile][rank][warpgroup].
  PartsWalk walk;
  ElementMap elements;

  PartsWalk plan(int64_t tiles, int64_t blocks, int64_t clusters) const {
    return plan_parts(tiles, parts_of_k(g.n, blocks), blocks, clusters);
  }
  template <Tile T>
  __device__ __forceinline__ bool work_tile(uint32_t, uint32_t cluster, uint32_t step,
                                            Work& work) const {
    return walk.work_tile(cluster, step, work);
  }

  // What becomes of the sums that `warpgroup` has of a part of K; whether they are all of K's then.
  // ((p0 + p1) + p2) + ..., whichever way. A warp whose 16 rows are not there moves nothing.
  // `so_far`: of parts that one warpgroup makes, in shared memory.
  template <Tile T>
  __device__ __forceinline__ bool end_part(const Work& work, const TileCoord& o, int rank,
                                           int warpgroup, float* so_far, float (&acc)[64]) const {
    if (walk.parts.count == 1) return true;
    constexpr int kMath = T.BM / 64;
    const int thread = threadIdx.x % kWarpgroup;
    const bool there = o.i + warpgroup * 64 + thread / 32 * 16 < g.m;
    const bool last = walk.is_last(work);
    const auto sums_at = [&](uint32_t place) {
      return sums +
             (static_cast<int64_t>(place * kMath + warpgroup) * 16 * kWarpgroup + thread) * 4;
    };
    if (!walk.shared(work.tile)) {
      so_far += thread * 4;
#pragma unroll
      for (int e = 0; e < 64; e += 4) {
        float x[4];
        if (work.part > 0) {
          load4(x, so_far + e * kWarpgroup);
#pragma unroll
          for (int i = 0; i < 4; ++i) acc[e + i] += x[i];
        }
        if (!last)
          store4(so_far + e * kWarpgroup, make_float4(acc[e], acc[e + 1], acc[e + 2], acc[e + 3]));
      }
      return last;
    }
    const uint32_t tiles = walk.shared_tiles() * T.cluster;
    const uint32_t tile = (work.tile - walk.alone) * T.cluster + rank;
    uint32_t* const flag = &flags[tile * kMath + warpgroup];
    if (!last) {
      float* const to = sums_at(work.part * tiles + tile);
      if (there)
#pragma unroll
        for (int e = 0; e < 64; e += 4)
          store4(to + e * kWarpgroup, make_float4(acc[e], acc[e + 1], acc[e + 2], acc[e + 3]));
      named_barrier(1 + warpgroup, kWarpgroup);
      if (thread == 0) signal(flag);
      return false;
    }
    if (thread == 0) wait_for_signals(flag, work.part);
    named_barrier(1 + warpgroup, kWarpgroup);
    if (there)
      add<T.BM == 64 ? 5 : 4, 16>(sums_at(tile), int64_t{tiles} * kMath * 64 * kWarpgroup,
                                  work.part, acc);
    return true;
  }

  // acc = ((x0 + x1) + ...) + acc, of `count` sums that lie so far apart, by whole warps. kDepth of
  // them are asked for at a time, kWidth elements of each: what registers there are.
  template <int kDepth, int kWidth>
  __device__ __forceinline__ static void add(const float* from, int64_t apart, uint32_t count,
                                             float (&acc)[64]) {
#pragma unroll
    for (int first = 0; first < 64; first += kWidth) {
      float total[kWidth];
#pragma unroll
      for (int e = 0; e < kWidth; ++e) total[e] = -0.f;  // -0 + x is x
#pragma unroll 1
      for (uint32_t p = 0; p < count; p += kDepth) {
        float x[kDepth][kWidth];
#pragma unroll
        for (int d = 0; d < kDepth; ++d)
#pragma unroll
          for (int e = 0; e < kWidth; e += 4) {
            if (p + d < count) load4(&x[d][e], from + (p + d) * apart + (first + e) * kWarpgroup);
            else x[d][e] = x[d][e + 1] = x[d][e + 2] = x[d][e + 3] = -0.f;
          }
        loads_together();
#pragma unroll
        for (int d = 0; d < kDepth; ++d)
#pragma unroll
          for (int e = 0; e < kWidth; ++e) total[e] += x[d][e];
      }
#pragma unroll
      for (int e = 0; e < kWidth; ++e) acc[first + e] = total[e] + acc[first + e];
    }
  }

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

// Where sums are handed over and what is made anew, in the workspace behind what `limbs` has of it.
struct InvariantRoom : WgmmaRoom {
  ElementMap elements;
};
inline InvariantRoom plan_invariant(const Tile& t, const Gemm& g, const DecomposePlan& limbs,
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
  const PartsRoom room =
      parts_room(tile_count(g, t.BM * t.cluster, t.BN) * g.batch, parts_of_k(g.n, slices_of(g.k)),
                 wave_of(t, context.device).tiles);
  r.sums = static_cast<float*>(
      all.place(static_cast<size_t>(room.sums * t.cluster * t.BM * t.BN) * sizeof(float)));
  const auto flags = static_cast<int>(room.flags * t.cluster * t.BM / 64);
  r.clear.count = flags + 1;
  r.clear.words = r.flags =
      static_cast<uint32_t*>(all.place(static_cast<size_t>(r.clear.count) * sizeof(uint32_t)));
  map.worst = r.flags + flags;
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
  DecomposePlan part = plan;
  if (!plan.b_is_kept && !along_k(g.b.transposed(), g.n, g.k)) {
    part.a_is_kept = true;
    decompose<S, kCluster>(g, part, context);
    part.a_is_kept = false, part.b_is_kept = true;
  }
  decompose<S, kCluster>(g, part, context, clear);
}

template <EmulationScheme S, int kDecomposeCluster, Tile T>
void run_invariant(const Gemm& g, const Context& context) {
  const StripPlan strips = plan_strips(g, context.packed_b, context.device);
  if (strips.blocks > 0) return run_few_rows<S, kDecomposeCluster>(g, strips, context);
  for_each_slab(g, S.limbs, wave_of(T, context.device), context,
                [](const Gemm& part, const DecomposePlan& plan, const Context& its) {
                  const InvariantRoom room = plan_invariant(T, part, plan, its);
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
                              return plan_invariant(t, part, plan, context).bytes;
                            });
}

// Stage::invariant_row: the tile whose busiest cluster has the least to do; of several that of the
// fewest rows that are not there, which leaves multiprocessors to others.
inline int quickest_row(const Tile* first, const Tile* last, const Gemm& g, const Device& device) {
  const int64_t slices = slices_of(g.k);
  const auto cost = [&](const Tile& t) {
    const int rows = t.BM * t.cluster;
    const PartsWalk walk = plan_parts(tile_count(g, rows, t.BN) * g.batch, parts_of_k(g.n, slices),
                                      slices, wave_of(t, device).tiles);
    return std::pair(static_cast<double>(walk.longest()) * t.BM / static_cast<double>(t.rate),
                     ceil_div(g.m, rows) * rows);
  };
  return static_cast<int>(
      std::min_element(first, last,
                       [&](const Tile& x, const Tile& y) { return cost(x) < cost(y); }) -
      first);
}

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
