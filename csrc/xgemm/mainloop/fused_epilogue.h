// From the sums that the split-K slices of a tile have to D: by the block that has all of K, by the
// blocks of a cluster, or by those of another launch.
#pragma once

#include "xgemm/device/ptx/cluster.h"
#include "xgemm/epilogue/chain.h"
#include "xgemm/mainloop/fused_redo.h"
#include "xgemm/mainloop/fused_singles.h"

namespace xgemm {
inline namespace XGEMM_FLAVOUR {

// Takes four neighbours from (i, j) on through the epilogue: their sums, or, where some of a tile
// may have overflowed on their way, a single chain of each.
__device__ __forceinline__ void store_sums4(const Gemm& g, int64_t i, int64_t j, float (&sum)[4],
                                            bool overflow) {
  if (i >= g.m || j >= g.n) return;
  if (overflow) [[unlikely]]
    chain4<8>(g, i, j, sum);
  store_row4(g, i, j, sum);
}

// The blocks of a cluster add up what they have of a tile, each its part of it, once all have left
// it. told: not 0 where a block's sums may have overflowed.
template <int BM>
__device__ __forceinline__ void finish_in_cluster(const NarrowSums<BM>& mine, const float* told,
                                                  const Gemm& g, const TileCoord& o, int split,
                                                  int splits) {
  const int lane = threadIdx.x % 32;
  const bool overflow =
      __any_sync(0xffffffffu, load_from_block(told, lane < splits ? lane : split) != 0.f);
  add_in_cluster<kConsumerThreads>(mine, split, splits, [&](int row, int column, float (&sum)[4]) {
    store_sums4(g, o.i + row, o.j + column, sum, overflow);
  });
  cluster_sync(Relaxed());  // nobody reads this block's any more
}

// Part `part` of a tile whose split-K slices are in the workspace: four elements a thread.
template <int BM>
__device__ __forceinline__ void finish_tile(const SplitKJob& job, const Gemm& g, unsigned tile,
                                            int part) {
  constexpr int kAhead = 16;
  const TileCoord o = tile_coord(job, tile, BM);
  const int64_t place = job.place(blockIdx.z, tile);
  const int e = (part * kConsumerThreads + static_cast<int>(threadIdx.x)) * 4;
  const int splits = static_cast<int>(job.split_k_slices);
  const float* const sums = job.sums + place * (BM * kLong) + e;
  float sum[4] = {-0.f, -0.f, -0.f, -0.f};  // -0 + x is x
  uint32_t overflow = 0;
#pragma unroll 1
  for (int first = 0; first < splits; first += kAhead) {
    const int split = first + static_cast<int>(threadIdx.x) % kAhead;
    if (split < splits) overflow |= job.overflow[place + split];
    add_slices<kAhead>(sum, first, splits,
                       [&](float (&x)[4], int s) { load4(x, sums + int64_t{s} * (BM * kLong)); });
  }
  store_sums4(g, o.i + e / kLong, o.j + e % kLong, sum, __any_sync(0xffffffffu, overflow != 0));
}

// Leaves a slice's sums in a tile whose rows are kPitch apart.
template <int BM, int kPitch>
__device__ __forceinline__ void leave_sums(float* tile, const float (&sum)[kNarrowSums<BM>]) {
  float* const sums =
      tile + threadIdx.x % 4 * 2 * kPitch + RegisterLimbs<kLong, false>::first_row();
#pragma unroll
  for (int e = 0; e < kNarrowSums<BM>; e += 4)
#pragma unroll
    for (int c = 0; c < 2; ++c) store2(sums + (e / 4 * 8 + c) * kPitch, sum[e + c], sum[e + 2 + c]);
}

// store(i, j, x) for each x that a thread has of a tile, as far as D goes: by way of shared memory,
// where an index may be dynamic as it may not in registers.
template <int BM, class Store>
__device__ __forceinline__ void go_round(NarrowSums<BM>& mine, const Gemm& g, const TileCoord& o,
                                         const float (&x)[kNarrowSums<BM>], const Store& store) {
  const int row = threadIdx.x % 4 * 2, column = RegisterLimbs<kLong, false>::first_row();
  leave_sums<BM, NarrowSums<BM>::kPitch>(mine.d[0], x);
#pragma unroll 1
  for (int e = 0; e < kNarrowSums<BM>; ++e) {
    const int r = row + sum_row(e), c = column + sum_column(e);
    if (o.i + r < g.m && o.j + c < g.n) store(o.i + r, o.j + c, mine.d[r][c]);
  }
}

// Takes the sums of a tile through the epilogue, from the registers of those who have them. Most
// tiles go straight through: behind a jump, code is waited for. What may have overflowed is made by
// warps that have rows.
template <int BM>
__device__ __forceinline__ void store_sums(NarrowSums<BM>& mine, const Gemm& g, const TileCoord& o,
                                           const float (&sum)[kNarrowSums<BM>], bool overflow) {
  constexpr int kSums = kNarrowSums<BM>;
  const int64_t i = o.i + threadIdx.x % 4 * 2;
  const int64_t j = o.j + RegisterLimbs<kLong, false>::first_row();
  if (overflow) [[unlikely]] {
#pragma unroll 1
    for (int row = threadIdx.x / 32; row < BM; row += kConsumerThreads / 32) {
      float x[4];
      store_sums4(g, o.i + row, o.j + threadIdx.x % 32 * 4, x, true);
    }
    return;
  }
  float z[kSums];
  if (g.beta == 0.f) {
#pragma unroll
    for (int e = 0; e < kSums; ++e) z[e] = g.without_c(sum[e]);
  } else {
#pragma unroll
    for (int e = 0; e < kSums; ++e)
      z[e] = g.c(min_of(i + sum_row(e), g.m - 1), min_of(j + sum_column(e), g.n - 1));
#pragma unroll
    for (int e = 0; e < kSums; ++e) z[e] = g.with_c(sum[e], z[e]);
  }
  const bool straight = g.act == Act::none && o.i + BM <= g.m && o.j + kLong <= g.n &&
                        reinterpret_cast<uintptr_t>(g.d.data) % 8 == 0;
  if (straight && g.d.cs == 1 && g.d.rs % 2 == 0) {
#pragma unroll
    for (int e = 0; e < kSums; e += 4) {
      store2(g.d.ptr(i + sum_row(e), j), z[e], z[e + 2]);
      store2(g.d.ptr(i + sum_row(e) + 1, j), z[e + 1], z[e + 3]);
    }
  } else if (straight && g.d.rs == 1 && g.d.cs % 2 == 0) {
#pragma unroll
    for (int e = 0; e < kSums; e += 2)
      store2(g.d.ptr(i + sum_row(e), j + sum_column(e)), z[e], z[e + 1]);
  } else {
    go_round<BM>(mine, g, o, z, [&](int64_t r, int64_t c, float x) {
      g.d(r, c) = g.act == Act::none ? x : activate(g.act, x);
    });
  }
}

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
