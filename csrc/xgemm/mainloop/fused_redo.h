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

// The largest finite magnitudes that a thread has seen, as bits.
struct FiniteTops {
  uint32_t a = 0, b = 0;
  __device__ static __forceinline__ void see(uint32_t& top, float x) {
    const uint32_t size = float_to_bits(x) & 0x7fffffffu;
    if (size < 0x7f800000u && size > top) top = size;
  }
  // As a range (join_ranges), of the largest alone.
  __device__ __forceinline__ uint32_t range() const { return a >> 23 << 8 | b >> 23 << 24; }
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

// Makes the sums of k0 to k1 certain, by all that multiply, once all are done with the ring. What a
// chain does not make so either is left to one of all K: whether finite elements' sums may overflow
// on their way.
template <int BM, bool kA, bool kB>
__device__ __forceinline__ bool redo_uncertain(NarrowRing<BM, kA, kB>& ring, const Gemm& g,
                                               const TileCoord& o, int64_t k0, int64_t k1,
                                               float (&sum)[kNarrowSums<BM>]) {
  constexpr int kSums = kNarrowSums<BM>, kWarps = kConsumerThreads / 32;
  constexpr uint32_t kAll = 0xffffffffu;
  const Certainty certain(ring.range(kRangeWarps), g.k);
  if (certain.always()) [[likely]]
    return false;
  if (certain.overflow) return true;
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
  FiniteTops tops;
  a.fetch();
  b.fetch();
#pragma unroll 1
  for (int left = slices_between(k0, k1); left > 0; --left) {
    Slice& slice = slices[left % 2];
    a.store_columns(slice.rows);
    b.store_columns(slice.columns);
#pragma unroll
    for (const auto& x : a.v) tops.see(tops.a, x[0]);
#pragma unroll
    for (const auto& x : b.v) tops.see(tops.b, x[0]);
    if (left == 1) {
      const uint32_t range = join_ranges_of_warp(tops.range());
      if (lane == 0) ring.ranges[warp] = range;
    }
    named_barrier(1, kConsumerThreads);  // the slice is there, and the one before the last was read
    if (left > 1) a.fetch(), b.fetch();
    if (groups) multiply_again<BM>(chain, slice, groups);
  }
#pragma unroll
  for (int e = 0; e < kSums; ++e)
    if (!certain.of(sum[e])) sum[e] = chain[e];
  return Certainty(ring.range(kWarps), g.k).overflow;
}

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
