// Products of groups (core/groups.h) by the main loop of emulated_wgmma.h. One kernel reads where
// groups end; decomposition, product and what is made anew go by its table, and the host waits for
// nothing.
//
// Groups of rows: A is decomposed as one matrix, B's matrices as a batch's. TMA takes a box from
// any row on, so that a group's tiles begin where it does; what a box has of the next group is
// multiplied and not stored.
// Groups of K: each group's limbs begin with a slice of their own, filled up with zeros, and have
// scales of their own, so that what another group holds reaches no result.
#pragma once

#include "xgemm/mainloop/emulated_wgmma.h"
#include "xgemm/mainloop/plan_groups.h"

namespace xgemm {
inline namespace XGEMM_FLAVOUR {

// Where group z begins in operands whose K is cut into groups: each has a slice more than fill it.
XGEMM_HD int64_t first_slice_of(const GroupTable& groups, int64_t z) {
  return groups.of_k ? groups.first[z] / kSliceK + z : 0;
}

// Both operands of groups of K. A group's blocks are neighbours.
template <Half kType, int kCluster>
__global__ void __launch_bounds__(kDecomposeThreads, kDeepBlocks)
    decompose_groups(const DecomposeJob a, const DecomposeJob b, const GroupTable groups,
                     const Clear clear) {
  constexpr EmulationScheme S = scheme_of(kType);
  take_turn();
  if (blockIdx.x == 0)
    for (int i = threadIdx.x; i < clear.count; i += kDecomposeThreads) clear.words[i] = 0;
  const bool first = blockIdx.x < a.grid * groups.count;
  DecomposeJob job = first ? a : b;
  const int64_t block = first ? blockIdx.x : blockIdx.x - a.grid * groups.count;
  const int64_t z = block / job.grid;
  job.x.data += groups.first[z] * job.x.cs;
  job.k = groups.length(z);
  job.limbs.data =
      static_cast<char*>(job.limbs.data) + first_slice_of(groups, z) * (kSliceK * 2 * S.limbs);
  job.limbs.scales += z * job.limbs.rows;
  if (!job.along_k) return decompose_strip<S, kCluster, true>(job, block % job.grid);
  decompose_along_k<S, 128, 2, true>(job, block % job.grid);
}

// How kernels find a group.
template <class Job>
struct OfGroups : Job {
  GroupTable groups;

  __device__ __forceinline__ Gemm problem(int64_t z) const { return groups.problem(this->g, z); }
  __device__ __forceinline__ const RowScale* row_scales_of(const Limbs& a, int64_t z) const {
    return a.scales + (groups.of_k ? z * this->g.m : groups.first[z]);
  }
  __device__ __forceinline__ const RowScale* column_scales_of(const Limbs& b, int64_t z) const {
    return b.scales + z * this->g.n;
  }
};

struct GroupedJob : OfGroups<WgmmaJob> {
  struct Work : WorkTile {
    int32_t z;
    int64_t row;  // of tiles
    int64_t column;
  };
  static constexpr bool kShared = false;

  __device__ __forceinline__ const RowScale* row_scales(int64_t z) const {
    return row_scales_of(a_limbs, z);
  }
  __device__ __forceinline__ const RowScale* column_scales(int64_t z) const {
    return column_scales_of(b_limbs, z);
  }
  __device__ __forceinline__ int64_t first_row(int64_t z) const {
    return groups.of_k ? 0 : groups.first[z];
  }
  __device__ __forceinline__ int64_t first_column(int64_t z) const {
    return groups.of_k ? 0 : z * g.n;
  }
  __device__ __forceinline__ int first_slice(int64_t z) const {
    return static_cast<int>(first_slice_of(groups, z));
  }
  __device__ __forceinline__ int64_t unit_at(int64_t z, int64_t i, int64_t j, int columns) const {
    return (groups.units[z] + i / kUnitRows) * map.units_n + j / columns;
  }
  // Of all groups: their rows of tiles are walked as if they were one matrix'.
  template <Tile T>
  __device__ __forceinline__ uint32_t tiles() const {
    return static_cast<uint32_t>(groups.tiles[groups.count] * ceil_div(g.n, T.BN));
  }
  template <Tile T>
  __device__ __forceinline__ bool work_tile(uint32_t tiles, uint32_t cluster, uint32_t step,
                                            Work& work) const {
    work.tile = cluster + step * gridDim.x;
    if (work.tile >= tiles) return false;
    const TileCoord o = swizzled_tile<uint64_t>(work.tile, groups.tiles[groups.count],
                                                ceil_div(g.n, T.BN), 1, 1, group);
    work.z = groups.group_of(groups.tiles, o.i);
    work.row = o.i - groups.tiles[work.z], work.column = o.j;
    work.first = 0;
    work.last = static_cast<int>(slices_of(groups.of_k ? groups.length(work.z) : g.k));
    return true;
  }
  __device__ __forceinline__ uint32_t matrix(uint32_t, const Work& work) const {
    return static_cast<uint32_t>(work.z);
  }
  template <Tile T>
  __device__ __forceinline__ TileCoord origin(uint32_t, const Work& work) const {
    return {work.row * T.BM, work.column * T.BN};
  }
};

struct GroupedRecomputeJob : OfGroups<RecomputeJob> {
  __device__ __forceinline__ const RowScale* row_scales(int64_t z) const {
    return row_scales_of(a, z);
  }
  __device__ __forceinline__ const RowScale* column_scales(int64_t z) const {
    return column_scales_of(b, z);
  }
  // As many as there are, and not as there may be.
  __device__ __forceinline__ RecomputeMap units() const {
    RecomputeMap its = map;
    its.units = groups.units[groups.count] * map.units_n;
    return its;
  }
  __device__ __forceinline__ UnitPlace place(int64_t n, int columns) const {
    const int64_t row = n / map.units_n;
    const int32_t z = groups.group_of(groups.units, row);
    return {n, z, {(row - groups.units[z]) * kUnitRows, n % map.units_n * columns}};
  }
  __device__ __forceinline__ UnitPlace below(int64_t n, int columns) const {
    const int64_t rows = groups.units[groups.count];
    return place(n % rows * map.units_n + n / rows, columns);
  }
};

// Limbs of more than Context::slab_bytes are made and multiplied part by part in the same room:
// groups of rows in runs of groups, since B is the larger operand; groups of K in runs of rows of A
// or of columns of B, whichever are more. Of ends that do not ascend, groups of two runs may have
// rows in common, of which the later run's stay.
struct GroupedParts {
  bool of_k = false, of_a = false;
  int64_t each = 0, count = 1;  // groups, rows or columns of a part

  Gemm part(const Gemm& g, int64_t p) const {
    Gemm its = g;
    const int64_t from = p * each;
    if (!of_k) {
      its.b.data += from * g.b.bs, its.batch = std::min(each, g.batch - from);
    } else if (of_a) {
      its.a.data += from * g.a.rs, its.d.data += from * g.d.rs, its.m = std::min(each, g.m - from);
    } else {
      its.b.data += from * g.b.cs, its.d.data += from * g.d.cs, its.n = std::min(each, g.n - from);
    }
    return its;
  }
};
inline GroupedParts parts_of(const Gemm& g, int limbs, const Context& context) {
  GroupedParts r{.of_k = context.groups.of_k, .of_a = context.groups.of_k && g.m > g.n};
  const int64_t all = !r.of_k ? g.batch : r.of_a ? g.m : g.n;
  const int64_t k = r.of_k ? g.k + g.batch * kSliceK : g.k;
  const auto of_row = static_cast<size_t>(slices_of(k) * kSliceK * 2 * limbs);
  const size_t of_one = r.of_k ? of_row : times(of_row, static_cast<size_t>(g.n));
  const auto most = static_cast<int64_t>(context.slab_bytes / std::max<size_t>(of_one, 1));
  const int64_t least = r.of_k ? std::min(kSlabRows, all) : 1;
  r.each = std::clamp(r.of_k ? most / kSlabRows * kSlabRows : most, least, all);
  r.count = ceil_div(all, r.each);
  return r;
}

// Where everything is, in a workspace. The operand that all parts share is first.
struct GroupedPlan {
  DecomposePlan limbs;
  GroupTable table;
  RecomputePlan room;
};
template <EmulationScheme S, Tile T>
GroupedPlan plan_grouped(const Gemm& g, const GroupedParts& parts, const Context& context) {
  GroupedPlan plan;
  Layout all{context.workspace};
  const auto operand = [&](int64_t rows, int64_t matrices) {
    return parts.of_k ? place_slices(all, rows, 1, g.k / kSliceK + g.batch, g.batch, S.limbs)
                      : place_limbs(all, rows, matrices, g.k, S.limbs);
  };
  if (parts.of_a) plan.limbs.b = operand(g.n, g.batch);
  plan.limbs.a = operand(g.m, 1);
  if (!parts.of_a) plan.limbs.b = operand(g.n, g.batch);
  plan.table = place_table(all, g.batch, parts.of_k);
  plan.limbs.bytes = all.bytes;
  const int64_t units = ceil_div(g.m, kUnitRows);
  plan.room = plan_recompute(g, plan.limbs, T.BN, 0, 0, context,
                             parts.of_k ? units * g.batch : units + g.batch);
  return plan;
}

template <EmulationScheme S, Tile T>
size_t grouped_workspace(const Gemm& g, const Context& context) {
  const GroupedParts parts = parts_of(g, S.limbs, context);
  return plan_grouped<S, T>(parts.part(g, 0), parts, context).room.bytes;
}

template <EmulationScheme S, int kCluster>
void decompose_of_k(const Gemm& g, const GroupedPlan& plan, const Context& context) {
  const auto job = [&](const View<const float>& rows, const Limbs& limbs) {
    DecomposeJob j{.x = rows, .limbs = limbs, .along_k = along_k(rows, limbs.rows, g.k)};
    j.grid = j.along_k
                 ? ceil_div(ceil_div(limbs.rows, kDecomposeThreads / 128), kCluster) * kCluster
                 : ceil_div(limbs.rows, kStrip) * kCluster;
    return j;
  };
  DecomposeJob a = job(g.a, plan.limbs.a), b = job(g.b.transposed(), plan.limbs.b);
  b.of_b = true;
  if (plan.limbs.a_is_kept) a.grid = 0;
  if (plan.limbs.b_is_kept) b.grid = 0;
  const int64_t blocks = (a.grid + b.grid) * g.batch;
  if (blocks > kMaxGridX) throw std::invalid_argument("xgemm: too many rows to decompose");
  launch(decompose_groups<S.type, kCluster>,
         {.grid = dim3(static_cast<unsigned>(blocks)),
          .block = dim3(kDecomposeThreads),
          .smem = sizeof(StripRoom),
          .cluster = static_cast<unsigned>(kCluster),
          .dependent = true},
         context, a, b, plan.table, plan.room.clear);
}

template <EmulationScheme S, int kDecomposeCluster, Tile T>
void run_grouped(const Gemm& all, const Context& context) {
  static_assert(T.cluster == 1);
  const bool of_k = context.groups.of_k;
  const GroupedParts parts = parts_of(all, S.limbs, context);
  for (int64_t p = 0; p < parts.count; ++p) {
    const Gemm g = parts.part(all, p);
    GroupedPlan plan = plan_grouped<S, T>(g, parts, context);
    (parts.of_a ? plan.limbs.b_is_kept : plan.limbs.a_is_kept) = p > 0;
    const int64_t before = of_k ? 0 : p * parts.each;
    launch(plan_groups<32>, {.grid = dim3(1), .block = dim3(32), .dependent = true}, context,
           GroupsJob{.ends = context.groups.ends + before,
                     .from_zero = before == 0,
                     .all = of_k ? g.k : g.m,
                     .rows = g.m,
                     .tile_rows = T.BM,
                     .unit_rows = kUnitRows,
                     .table = plan.table});
    if (of_k) decompose_of_k<S, 2>(g, plan, context);
    else decompose<S, kDecomposeCluster>(g, plan.limbs, context, plan.room.clear);

    GroupedJob job;
    job.g = g;
    job.a = limb_map<S>(plan.limbs.a, T.BM), job.b = limb_map<S>(plan.limbs.b, T.BN);
    job.a_limbs = plan.limbs.a, job.b_limbs = plan.limbs.b;
    job.map = plan.room.job.map;
    job.group = group_of(T, plan.limbs.a.row_bytes(S.limbs));
    job.groups = plan.table;
    constexpr void (*kernel)(GroupedJob) =
        wgmma_kernel<S.type, T.BM, T.cluster, T.buffers, GroupedJob>;
    launch(kernel,
           {.grid = dim3(static_cast<unsigned>(context.device.sm_count)),
            .block = dim3(static_cast<unsigned>(T.threads() + T.producers)),
            .smem = sizeof(WgmmaRing<S, S, T>),
            .dependent = true},
           context, job);

    GroupedRecomputeJob anew;
    static_cast<RecomputeJob&>(anew) = plan.room.job;
    anew.groups = plan.table;
    launch_recompute<T.BN>(anew, context);
  }
}

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
