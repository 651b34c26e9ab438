// What limbs could not give, by FP32 operations: units of D whose results are not all certified, or
// of which single elements give some, are marked in a map on the device, and one launch behind the
// product, mostly idle, works the map off. Its order does not reach the bits: which units are
// marked depends on the operands alone, and where K is cut on how many they are.
#pragma once

#include "xgemm/core/workspace.h"
#include "xgemm/device/launch.h"
#include "xgemm/emulation/certificate.h"
#include "xgemm/emulation/decompose.h"
#include "xgemm/emulation/given.h"
#include "xgemm/mainloop/multistage.h"

namespace xgemm {

constexpr int kUnitRows = 64;  // of D; a unit has 64 or 128 columns

// Results of a unit that are recomputed each for itself; of more the whole unit is. On an H100 a
// unit made anew costs a product 50 us, and a few of its elements 5; of a deep K they are asked for
// longer than the unit, whose K is cut, and of a short one the unit is as quick, and its
// other results have the chain's errors.
constexpr uint32_t kMostListed = 16;
XGEMM_HD uint32_t most_listed(int64_t k) { return k < 64 ? 0 : k <= 4096 ? kMostListed : 4; }

// The map, written by whoever has computed a unit: its Fate, kSomeGiven, and in the bits from 8 on
// how many results are listed.
struct RecomputeMap {
  static constexpr uint32_t kSomeGiven = 128;  // some of its rows or columns are given
  uint32_t* fates = nullptr;
  uint16_t* lists = nullptr;  // [unit][kMostListed]: row * columns + column
  uint32_t* worst = nullptr;  // of all units' fates; found zero
  int64_t units_m = 0, units_n = 0, units = 0;  // of a matrix, down and across; of all

  XGEMM_HD int64_t unit_at(int64_t z, int64_t i, int64_t j, int columns) const {
    return (z * units_m + i / kUnitRows) * units_n + j / columns;
  }
  XGEMM_HD uint16_t* list(int64_t unit) const { return lists + unit * kMostListed; }
  XGEMM_HD Fate fate(int64_t unit) const { return static_cast<Fate>(fates[unit] % kSomeGiven); }
  XGEMM_HD bool some_given(int64_t unit) const { return fates[unit] & kSomeGiven; }
  XGEMM_HD uint32_t listed(int64_t unit) const { return fates[unit] >> 8; }

  // By one thread, of a unit that is there.
  __device__ __forceinline__ void mark(int64_t unit, Fate fate, bool some_given,
                                       uint32_t listed = 0) const {
    fates[unit] = static_cast<uint32_t>(fate) | (some_given ? kSomeGiven : 0) | listed << 8;
    if (fate != Fate::stands) atomic_max(worst, static_cast<uint32_t>(fate));
  }
};

// A unit, and where it is: of which matrix, and from where on.
struct UnitPlace {
  int64_t unit, z;
  TileCoord o;
};

struct RecomputeJob {
  Gemm g;
  RecomputeMap map;
  Limbs a, b;  // of which the scales are read
  uint32_t slots = 0;  // room for so many sums of a slice of K
  float* sums = nullptr;  // [slot][element / 4][thread][4]
  uint32_t* come = nullptr;  // by unit: how many slices of K have come; found zero
  uint32_t* counter = nullptr;  // Context::recomputed

  // Of matrix z; kernels ask for it so, since groups differ in where they find it.
  __device__ __forceinline__ Gemm problem(int64_t z) const { return g.at(z); }
  __device__ __forceinline__ const RowScale* row_scales(int64_t z) const {
    return a.scales + a.first_row(z);
  }
  __device__ __forceinline__ const RowScale* column_scales(int64_t z) const {
    return b.scales + b.first_row(z);
  }
  __device__ __forceinline__ const RecomputeMap& units() const { return map; }
  // Unit n, counted downwards: neighbours are below each other.
  __device__ __forceinline__ UnitPlace below(int64_t n, int columns) const {
    const int64_t of_matrix = map.units_m * map.units_n, z = n / of_matrix, rest = n % of_matrix;
    const TileCoord o{rest % map.units_m * kUnitRows, rest / map.units_m * columns};
    return {map.unit_at(z, o.i, o.j, columns), z, o};
  }
  // Unit n of the map.
  __device__ __forceinline__ UnitPlace place(int64_t n, int columns) const {
    const int64_t of_matrix = map.units_m * map.units_n;
    return {n, n / of_matrix, {n % of_matrix / map.units_n * kUnitRows, n % map.units_n * columns}};
  }
};

inline namespace XGEMM_FLAVOUR {

// K is cut where units are few, in slices at least so long.
constexpr int64_t kLeastRecomputeSplit = 256;

template <int kColumns>
constexpr Tile recompute_tile() {
  if constexpr (kColumns == 128) return pipelined_tile(64, 128, 16, 8, 8, 4, 3, 0.f);
  else return pipelined_tile(64, 64, 16, 8, 4, 4, 3, 0.f);
}
template <int kColumns>
constexpr Tile kRecomputeTile = recompute_tile<kColumns>();

// The units to be made anew, as a block counts them: each thread has a run of the map.
template <int kThreads>
struct MarkedUnits {
  uint32_t recomputed[kThreads], chained[kThreads];  // in each thread's run
  uint32_t found;
};
// What a thread knows of them: how many there are before its run, in it, and in all.
template <int kThreads>
struct UnitCounts {
  uint32_t before[2] = {}, own[2] = {}, all[2] = {};  // recomputed, chained

  __device__ static __forceinline__ int64_t run_of(const RecomputeMap& map) {
    return ceil_div(map.units, kThreads);
  }
  __device__ __forceinline__ UnitCounts(MarkedUnits<kThreads>& marked, const RecomputeMap& map) {
    const int64_t first = threadIdx.x * run_of(map);
    for (int64_t u = first; u < min_of(first + run_of(map), map.units); ++u) {
      own[0] += map.fate(u) == Fate::recomputed;
      own[1] += map.fate(u) == Fate::chained;
    }
    marked.recomputed[threadIdx.x] = own[0], marked.chained[threadIdx.x] = own[1];
    __syncthreads();
    for (unsigned t = 0; t < kThreads; ++t) {
      const uint32_t count[2] = {marked.recomputed[t], marked.chained[t]};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (t < threadIdx.x) before[i] += count[i];
        all[i] += count[i];
      }
    }
  }
  // Number `ordinal` of a fate, by all threads.
  __device__ __forceinline__ int64_t find(MarkedUnits<kThreads>& marked, const RecomputeMap& map,
                                          Fate fate, uint32_t ordinal) const {
    const bool of_chained = fate == Fate::chained;
    uint32_t number = of_chained ? before[1] : before[0];
    if (number <= ordinal && ordinal < number + (of_chained ? own[1] : own[0])) {
      int64_t u = threadIdx.x * run_of(map);
      for (;; ++u)
        if (map.fate(u) == fate && number++ == ordinal) break;
      marked.found = static_cast<uint32_t>(u);
    }
    __syncthreads();  // nor does anybody read the ring, or the number before, any more
    return marked.found;
  }
};

template <int kColumns>
struct RecomputeShared {
  union {
    Ring<kRecomputeTile<kColumns>> ring;
    GivenUnit<kRecomputeTile<kColumns>.threads(), kUnitRows, kColumns> given;
  };
  MarkedUnits<kRecomputeTile<kColumns>.threads()> marked;
  float of_warps[kRecomputeTile<kColumns>.threads() / 32];
};

// Result (i, j) by all of a block: each thread has every kThreads'th k.
template <int kThreads>
__device__ __forceinline__ void recompute_one(const Gemm& g, int64_t i, int64_t j,
                                              float (&of_warps)[kThreads / 32]) {
  float sum = 0.f;
#pragma unroll 16
  for (int64_t k = threadIdx.x; k < g.k; k += kThreads) sum = fmaf(g.a(i, k), g.b(k, j), sum);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  __syncthreads();  // the result before is stored
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x > 0) return;
#pragma unroll
  for (int w = 1; w < kThreads / 32; ++w) sum += of_warps[w];
  g.store(i, j, sum);
}

// Blocks take item after item: a unit, or, where there are fewer to be made anew than blocks, a
// slice of K of one. A unit whose sum may overflow on its way is one chain, as the strict stages
// make it. Before, each has every gridDim.x'th unit of those that are given or listed: neighbours
// are below each other, so that all blocks read the same columns of B.
template <int kColumns, bool kA, bool kB, class Job>
__global__ void __launch_bounds__(kRecomputeTile<kColumns>.threads(),
                                  kRecomputeTile<kColumns>.min_blocks) recompute(const Job job) {
  constexpr Tile T = kRecomputeTile<kColumns>;
  constexpr int kThreads = T.threads(), kSums = T.TM * T.TN;
  take_turn();
  const auto worst = static_cast<Fate>(*job.map.worst);
  if (worst == Fate::stands) return;
  XGEMM_SHARED_DYNAMIC(shared, RecomputeShared<kColumns>);
  const RecomputeMap& map = job.units();
#pragma unroll 1
  for (int64_t n = blockIdx.x; n < map.units; n += gridDim.x) {
    const UnitPlace at = job.below(n, kColumns);
    const int64_t unit = at.unit;
    const TileCoord o = at.o;
    const Fate fate = map.fate(unit);
    if (fate != Fate::given && fate != Fate::listed) continue;
    const Gemm g = job.problem(at.z);
    if (map.some_given(unit)) {
      __syncthreads();  // all have stored the unit before
      shared.given.find(g, job.row_scales(at.z), job.column_scales(at.z), o.i, o.j);
      __syncthreads();
      shared.given.store(g, o.i, o.j);
    }
    const uint32_t listed = map.listed(unit);
#pragma unroll 1
    for (uint32_t e = 0; e < listed; ++e) {
      const int element = map.list(unit)[e];
      recompute_one<kThreads>(g, o.i + element / kColumns, o.j + element % kColumns,
                              shared.of_warps);
    }
  }
  if (worst < Fate::recomputed) return;
  const UnitCounts<kThreads> counts(shared.marked, map);
  const uint32_t recomputed = counts.all[0], chained = counts.all[1];
  if (job.counter && blockIdx.x == 0 && threadIdx.x == 0)
    atomic_add(job.counter, chained + recomputed);
  // Split-K: so many slices that each has a block and a slot.
  uint32_t splits = 1;
  if (recomputed > 0 && chained + 2 * recomputed <= job.slots)
    splits = static_cast<uint32_t>(
        min_of((job.slots - chained) / recomputed, ceil_div(job.g.k, kLeastRecomputeSplit)));
  const int64_t length = ceil_div(ceil_div(job.g.k, splits), T.BK) * T.BK;
  const uint32_t items = chained + recomputed * splits;
#pragma unroll 1
  for (uint32_t item = blockIdx.x; item < items; item += gridDim.x) {
    const bool alone = item < chained || splits == 1;
    const uint32_t ordinal = item < chained ? item : (item - chained) / splits;
    const uint32_t s = alone ? 0 : (item - chained) % splits;
    const UnitPlace at = job.place(
        counts.find(shared.marked, map, item < chained ? Fate::chained : Fate::recomputed, ordinal),
        kColumns);
    const Gemm g = job.problem(at.z);
    const TileCoord o = at.o;
    const int64_t k0 = alone ? 0 : min_of(s * length, g.k);
    Gemm part = g;
    part.a.data += k0 * g.a.cs;
    part.b.data += k0 * g.b.rs;
    part.k = alone ? g.k : min_of(length, g.k - k0);
    // The last slice's block adds up, in order.
    multiply_pipelined<T, kA, kB>(shared.ring, part, o, [&](auto& sum, int row, int column) {
      if (!alone) {
        float* const mine = job.sums + (int64_t{item} * kSums * kThreads + threadIdx.x * 4);
#pragma unroll
        for (int e = 0; e < kSums; e += 4) {
          const float* const x = &sum[e / T.TN][e % T.TN];
          store4(mine + e * kThreads, make_float4(x[0], x[1], x[2], x[3]));
        }
        if (s + 1 < splits) {
          __syncthreads();
          if (threadIdx.x == 0) signal(&job.come[ordinal]);
          return;
        }
        if (threadIdx.x == 0) wait_for_signals(&job.come[ordinal], splits - 1);
        __syncthreads();
#pragma unroll
        for (int e = 0; e < kSums; ++e) sum[e / T.TN][e % T.TN] = -0.f;  // -0 + x is x
        const float* from = mine - int64_t{s} * kSums * kThreads;
#pragma unroll 1
        for (uint32_t n = 0; n < splits; ++n, from += kSums * kThreads)
#pragma unroll
          for (int e = 0; e < kSums; e += 4) {
            float x[4];
            load4(x, from + e * kThreads);
#pragma unroll
            for (int w = 0; w < 4; ++w) sum[e / T.TN][e % T.TN + w] += x[w];
          }
      }
      store_fragment<kStrideM, kStrideN>(g, o.i + row, o.j + column, sum);
    });
  }
}

// Where the map and the sums lie in the workspace, behind the limbs; words that the decomposition
// is to clear, `flags` of them somebody else's, lie together; `room` bytes of sums are there
// anyway, for what has ended before. `unit_rows`: rows of units, where they are not those of a
// batch.
struct RecomputePlan {
  RecomputeJob job;
  Clear clear;
  float* sums = nullptr;
  size_t bytes = 0;
};
inline RecomputePlan plan_recompute(const Gemm& g, const DecomposePlan& limbs, int columns,
                                    size_t room, int flags, const Context& context,
                                    int64_t unit_rows = 0) {
  RecomputePlan plan;
  RecomputeJob& job = plan.job;
  job.g = g;
  job.a = limbs.a, job.b = limbs.b;
  job.counter = context.recomputed;
  job.map.units_m = ceil_div(g.m, kUnitRows), job.map.units_n = ceil_div(g.n, columns);
  if (!unit_rows) unit_rows = job.map.units_m * g.batch;
  job.map.units = unit_rows * job.map.units_n;
  const int64_t splits = ceil_div(g.k, kLeastRecomputeSplit);
  const int64_t blocks = int64_t{kRecomputeTile<128>.min_blocks} * context.device.sm_count;
  if (splits > 1)
    job.slots = static_cast<uint32_t>(
        std::min(blocks, job.map.units > blocks ? blocks : job.map.units * splits));
  Layout all{context.workspace, limbs.bytes};
  const size_t of_slots = size_t{job.slots} * kUnitRows * static_cast<size_t>(columns) * 4;
  plan.sums = static_cast<float*>(all.place(std::max(room, of_slots)));
  job.sums = plan.sums;
  plan.clear.count = flags + 1 + static_cast<int>(job.slots);
  plan.clear.words =
      static_cast<uint32_t*>(all.place(static_cast<size_t>(plan.clear.count) * sizeof(uint32_t)));
  job.map.worst = plan.clear.words + flags;
  job.come = job.map.worst + 1;
  job.map.fates = static_cast<uint32_t*>(
      all.place(times(static_cast<size_t>(job.map.units), sizeof(uint32_t))));
  job.map.lists = static_cast<uint16_t*>(
      all.place(times(static_cast<size_t>(job.map.units), kMostListed * sizeof(uint16_t))));
  plan.bytes = all.bytes;
  return plan;
}

// Behind the product.
template <int kColumns, class Job>
void launch_recompute(const Job& job, const Context& context) {
  constexpr Tile T = kRecomputeTile<kColumns>;
  const int64_t blocks = std::max<int64_t>(
      job.slots, std::min<int64_t>(job.map.units, int64_t{T.min_blocks} * context.device.sm_count));
  void (*const kernel)(Job) =
      by_major([](auto a, auto b) { return recompute<kColumns, a(), b(), Job>; }, job.g);
  launch(kernel,
         {.grid = dim3(static_cast<unsigned>(blocks)),
          .block = dim3(T.threads()),
          .smem = sizeof(RecomputeShared<kColumns>),
          .dependent = may_depend(context.device),
          .in_order = true},
         context, job);
}

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
