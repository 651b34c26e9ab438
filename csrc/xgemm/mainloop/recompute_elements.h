// What limbs could not give, by FP32 operations, where a result is to rest on its own row and
// column alone: those results that are uncertain, and no others of their unit, each as one chain in
// the order of k, as the strict stages make it. Of few results of a unit each is a warp's; of more
// the unit is multiplied as a whole, and what is not wanted of it is not stored.
#pragma once

#include "xgemm/mainloop/recompute.h"

namespace xgemm {

constexpr int kElementColumns = 128;  // of a unit

// Which results of units are made anew, as whoever has computed a unit knows them; the map tells
// how many.
struct ElementMap {
  // Of more the whole unit is multiplied. Four warps make four results in some 4.5 cycles a k, a
  // block all 8192 in 64.
  static constexpr uint32_t kMostListed = 32;
  static constexpr int kWords = kUnitRows * kElementColumns / 32;
  uint32_t* bits = nullptr;  // [unit][thread of a warpgroup][2], as its accumulators lie
  uint16_t* lists = nullptr;  // [unit][kMostListed]: row * columns + column; of units that have few

  XGEMM_HD uint32_t* bits_of(int64_t unit, int thread) const {
    return bits + unit * kWords + thread * 2;
  }
  XGEMM_HD uint16_t* list(int64_t unit) const { return lists + unit * kMostListed; }
  XGEMM_HD bool has(int64_t unit, int row, int column) const {
    const int thread = row / 16 * 32 + row % 8 * 4 + column % 8 / 2;
    const int e = column / 8 * 4 + row % 16 / 8 * 2 + column % 2;
    return bits_of(unit, thread)[e / 32] >> e % 32 & 1;
  }
  // A bit each of four neighbours in a row.
  XGEMM_HD uint32_t four(int64_t unit, int row, int column) const {
    uint32_t those = 0;
    for (int w = 0; w < 4; ++w) those |= static_cast<uint32_t>(has(unit, row, column + w)) << w;
    return those;
  }
};

struct ElementsJob : RecomputeJob {
  ElementMap elements;
};

inline namespace XGEMM_FLAVOUR {

// A row of A and a column of B on their way to the lanes of a warp that add up one result.
struct ChainSlice {
  static constexpr int kDepth = 128;
  alignas(16) float a[kDepth], b[kDepth];
};

struct ElementsShared {
  static constexpr Tile T = kRecomputeTile<kElementColumns>;
  union {
    Ring<T> ring;
    GivenUnit<T.threads(), kUnitRows, kElementColumns> given;
  };
  ChainSlice chains[T.threads() / 32];
  MarkedUnits<T.threads()> marked;
};

// Result (i, j) as one chain, by a warp: all lanes make the same.
__device__ __forceinline__ float chain_of(const Gemm& g, int64_t i, int64_t j, ChainSlice& slice) {
  constexpr int kEach = ChainSlice::kDepth / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float a[kEach], b[kEach], sum = 0.f;
  const auto load = [&](int64_t first) {
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const int64_t k = first + e * 32 + lane;
      a[e] = k < g.k ? g.a(i, k) : kPadA;
      b[e] = k < g.k ? g.b(k, j) : kPadB;
    }
  };
  load(0);
#pragma unroll 1
  for (int64_t first = 0; first < g.k; first += ChainSlice::kDepth) {
    __syncwarp();
#pragma unroll
    for (int e = 0; e < kEach; ++e) slice.a[e * 32 + lane] = a[e], slice.b[e * 32 + lane] = b[e];
    __syncwarp();
    load(first + ChainSlice::kDepth);
#pragma unroll 4
    for (int k = 0; k < ChainSlice::kDepth; k += 4) {
      float x[4], y[4];
      load4(x, slice.a + k);
      load4(y, slice.b + k);
#pragma unroll
      for (int w = 0; w < 4; ++w) sum = fmaf(x[w], y[w], sum);
    }
  }
  return sum;
}

// Each block has every gridDim.x'th unit of those that are given or have few results to be made
// anew, and then every gridDim.x'th of those that have many.
template <bool kA, bool kB>
__global__ void __launch_bounds__(ElementsShared::T.threads(), ElementsShared::T.min_blocks)
    recompute_elements(const ElementsJob job) {
  constexpr Tile T = ElementsShared::T;
  constexpr int kThreads = T.threads(), kColumns = kElementColumns, kTM = T.TM, kTN = T.TN;
  take_turn();
  const auto worst = static_cast<Fate>(*job.map.worst);
  if (worst == Fate::stands) return;
  XGEMM_SHARED_DYNAMIC(shared, ElementsShared);
  const RecomputeMap& map = job.map;
  const int warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll 1
  for (int64_t n = blockIdx.x; n < map.units; n += gridDim.x) {
    const UnitPlace at = job.below(n, kColumns);
    const int64_t unit = at.unit;
    const TileCoord o = at.o;
    const bool few = map.fate(unit) == Fate::listed;
    const uint32_t count = map.listed(unit);
    if (!few && !map.some_given(unit)) continue;
    const Gemm g = job.problem(at.z);
    if (map.some_given(unit)) {
      __syncthreads();  // all have stored the unit before
      shared.given.find(g, job.row_scales(at.z), job.column_scales(at.z), o.i, o.j);
      __syncthreads();
      shared.given.store(g, o.i, o.j, [&](int row, int column) {
        return count ? job.elements.four(unit, row, column) : 0u;
      });
    }
#pragma unroll 1
    for (uint32_t e = warp; few && e < count; e += kThreads / 32) {
      const int element = job.elements.list(unit)[e];
      const int64_t i = o.i + element / kColumns, j = o.j + element % kColumns;
      const float sum = chain_of(g, i, j, shared.chains[warp]);
      if (threadIdx.x % 32 == 0) g.store(i, j, sum);
    }
  }
  if (worst < Fate::chained) return;
  const UnitCounts<kThreads> counts(shared.marked, map);
  const uint32_t chained = counts.all[1];
  if (job.counter && blockIdx.x == 0 && threadIdx.x == 0) atomic_add(job.counter, chained);
#pragma unroll 1
  for (uint32_t item = blockIdx.x; item < chained; item += gridDim.x) {
    const UnitPlace at = job.place(counts.find(shared.marked, map, Fate::chained, item), kColumns);
    const Gemm g = job.problem(at.z);
    const TileCoord o = at.o;
    multiply_pipelined<T, kA, kB>(shared.ring, g, o, [&](auto& sum, int row, int column) {
#pragma unroll
      for (int i = 0; i < kTM; ++i)
#pragma unroll
        for (int j = 0; j < kTN; ++j) {
          const int r = row + i / 4 * kStrideM + i % 4, c = column + j / 4 * kStrideN + j % 4;
          if (job.elements.has(at.unit, r, c)) g.store(o.i + r, o.j + c, sum[i][j]);
        }
    });
  }
}

// Behind the product.
inline void launch_recompute_elements(const ElementsJob& job, const Context& context) {
  constexpr Tile T = ElementsShared::T;
  const int64_t blocks =
      std::min<int64_t>(job.map.units, int64_t{T.min_blocks} * context.device.sm_count);
  void (*const kernel)(ElementsJob) =
      by_major([](auto a, auto b) { return recompute_elements<a(), b()>; }, job.g);
  launch(kernel,
         {.grid = dim3(static_cast<unsigned>(blocks)),
          .block = dim3(T.threads()),
          .smem = sizeof(ElementsShared),
          .dependent = may_depend(context.device)},
         context, job);
}

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
