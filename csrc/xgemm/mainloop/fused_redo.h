// A split-K slice whose operands' limbs leave some of its sums uncertain: those are made anew by
// FP32 multiply-adds, as a chain of the slice, by the threads that have them.
#pragma once

#include "xgemm/device/copy/gmem.h"
#include "xgemm/emulation/range_certificate.h"
#include "xgemm/mainloop/fused_emulated.h"

namespace xgemm {
inline namespace XGEMM_FLAVOUR {

// Of both operands, k by k. A thread reads pairs of rows.
template <int BM>
struct RedoSlice {
  float rows[kSliceK][BM + 2], columns[kSliceK][kLong + 2];
};

// Finite elements of one operand, of which a thread has kEach of each slice: the largest magnitude,
// as bits, and for each place in a slice the sum of magnitudes, so scaled that no K makes it
// infinite.
template <int kEach>
struct FiniteSizes {
  static constexpr int kScale = -64;
  uint32_t top = 0;
  float sums[kEach] = {};

  __device__ __forceinline__ void see(const float (&x)[kEach][1]) {
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const uint32_t size = float_to_bits(x[e][0]) & 0x7fffffffu;
      if (size >= 0x7f800000u) continue;
      if (size > top) top = size;
      sums[e] = fmaf(bits_to_float(size), power_of_2(kScale), sums[e]);
    }
  }
};

// chain += a slice's products, for those groups of a thread's sums (four each, from 8 rows down)
// that have a bit, the same for all of a warp.
template <int BM>
__device__ __forceinline__ void multiply_again(float (&chain)[kNarrowSums<BM>],
                                               const RedoSlice<BM>& slice, uint32_t groups) {
  constexpr int kAtOnce = 4;
  const int row = threadIdx.x % 4 * 2, column = RegisterLimbs<kLong, false>::first_row();
#pragma unroll 1
  for (int k = 0; k < kSliceK; k += kAtOnce) {
    float b[kAtOnce][2];
#pragma unroll
    for (int q = 0; q < kAtOnce; ++q) load2(b[q], &slice.columns[k + q][column]);
#pragma unroll
    for (int p = 0; p < BM / 8; ++p) {
      if (!(groups >> p & 1)) continue;
      float a[kAtOnce][2];
#pragma unroll
      for (int q = 0; q < kAtOnce; ++q) load2(a[q], &slice.rows[k + q][row + p * 8]);
#pragma unroll
      for (int q = 0; q < kAtOnce; ++q)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          chain[p * 4 + e] = fmaf(a[q][e % 2], b[q][e / 2], chain[p * 4 + e]);
    }
  }
}

// Whether sums of finite products may overflow, in whatever order: the largest sum along k of one
// operand's magnitudes, times the other's largest element, in each of so many split-K slices. The
// former lie in `sizes` by their places in a slice, `range` has the largest.
template <int BM>
__device__ __forceinline__ bool may_overflow(const RedoSlice<BM>& sizes, uint32_t (&of_warps)[8],
                                             uint32_t range, int splits) {
  constexpr uint32_t kAll = 0xffffffffu;
  static_assert(kConsumerThreads == 2 * kLong && BM <= kLong && kLong == 4 * 32);
  const int line = threadIdx.x % kLong, lane = threadIdx.x % 32;
  const bool of_columns = threadIdx.x < kLong;
  float sum = 0.f;
  if (of_columns || line < BM)
#pragma unroll 4
    for (int k = 0; k < kSliceK; ++k)
      sum += of_columns ? sizes.columns[k][line] : sizes.rows[k][line];
  const uint32_t most = __reduce_max_sync(kAll, float_to_bits(sum));  // they are no less than 0
  if (lane == 0) of_warps[threadIdx.x / 32] = most;
  named_barrier(1, kConsumerThreads);  // all have told
  const auto stays = [&](bool columns, uint32_t top_of_others) {
    const bool mine = lane < 8 && (lane < 4) == columns;
    const float largest = bits_to_float(__reduce_max_sync(kAll, mine ? of_warps[lane] : 0));
    // 2^126 * 2^kScale / what no other element reaches: 2^(its exponent + 1).
    const int limit = 126 + FiniteSizes<1>::kScale - (static_cast<int>(top_of_others) - 126);
    return largest * static_cast<float>(splits) <= power_of_2(limit < 127 ? limit : 127);
  };
  const bool by_columns = stays(true, range >> 8 & 255u), by_rows = stays(false, range >> 24);
  return !by_columns && !by_rows;
}

// Makes the sums of k0 to k1, one of so many slices, certain, by all that multiply, once all are
// done with the ring. What a chain does not make so either is left to one of all K: whether finite
// elements' sums may overflow on their way.
template <int BM, bool kA, bool kB>
__device__ __forceinline__ bool redo_uncertain(NarrowRing<BM, kA, kB>& ring, const Gemm& g,
                                               const TileCoord& o, int64_t k0, int64_t k1,
                                               int splits, float (&sum)[kNarrowSums<BM>]) {
  constexpr int kSums = kNarrowSums<BM>, kWarps = kConsumerThreads / 32;
  constexpr uint32_t kAll = 0xffffffffu;
  const Certainty certain(ring.range(kRangeWarps), g.k);
  if (certain.always()) [[likely]]
    return false;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t i = o.i + lane % 4 * 2, j = o.j + RegisterLimbs<kLong, false>::first_row();
  uint32_t groups = 0;
#pragma unroll
  for (int e = 0; e < kSums; ++e)
    if (i + sum_row(e) < g.m && j + sum_column(e) < g.n && !certain.of(sum[e]))
      groups |= 1u << e / 4;
  groups = __reduce_or_sync(kAll, groups);
  if (lane == 0) ring.uncertain[warp] = groups;
  named_barrier(1, kConsumerThreads);  // all have told, and have read the range
  if (!__any_sync(kAll, ring.uncertain[lane % kWarps] != 0)) return false;

  using Slice = RedoSlice<BM>;
  static_assert(2 * sizeof(Slice) <= sizeof ring.columns);
  Slice* const slices = reinterpret_cast<Slice*>(&ring.columns);  // two
  View<const float> rows = g.a, columns = g.b.transposed();
  rows.data += k0 * rows.cs, columns.data += k0 * columns.cs;
  Loader<kConsumerThreads, BM, kSliceK, 1, kA> a(rows, o.i, g.m, k1 - k0, kPadA);
  Loader<kConsumerThreads, kLong, kSliceK, 1, kB> b(columns, o.j, g.n, k1 - k0, kPadB);
  float chain[kSums] = {};
  FiniteSizes<decltype(a)::kEach> of_a;
  FiniteSizes<decltype(b)::kEach> of_b;
  a.fetch();
  b.fetch();
#pragma unroll 1
  for (int left = slices_between(k0, k1); left > 0; --left) {
    Slice& slice = slices[left % 2];
    a.store_columns(slice.rows);
    b.store_columns(slice.columns);
    of_a.see(a.v);
    of_b.see(b.v);
    if (left == 1) {
      const uint32_t range = join_ranges_of_warp(of_a.top >> 23 << 8 | of_b.top >> 23 << 24);
      if (lane == 0) ring.ranges[warp] = range;
    }
    named_barrier(1, kConsumerThreads);  // the slice is there, and the one before the last was read
    if (left > 1) a.fetch(), b.fetch();
    if (groups) multiply_again<BM>(chain, slice, groups);
  }
#pragma unroll
  for (int e = 0; e < kSums; ++e)
    if (!certain.of(sum[e])) sum[e] = chain[e];
  const uint32_t range = ring.range(kWarps);
  if (!Certainty(range, g.k).overflow) [[likely]]
    return false;
  Slice& sizes = slices[0];  // the last slice but one was there, and was read
#pragma unroll
  for (int e = 0; e < a.kEach; ++e) a.v[e][0] = of_a.sums[e];
#pragma unroll
  for (int e = 0; e < b.kEach; ++e) b.v[e][0] = of_b.sums[e];
  a.store_columns(sizes.rows);
  b.store_columns(sizes.columns);
  named_barrier(1, kConsumerThreads);  // all sizes are there
  return may_overflow<BM>(sizes, ring.uncertain, range, splits);
}

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
