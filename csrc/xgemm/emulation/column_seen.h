// A column's scale by whoever reads it in parts, and a RowScale by a warp: decompose_rows.h has a
// whole row before it, and as many threads as it likes.
#pragma once

#include <cfloat>

#include "xgemm/device/ptx/extremes.h"
#include "xgemm/emulation/decompose.h"

namespace xgemm {
inline namespace XGEMM_FLAVOUR {

// What is known of some elements of a column: the largest magnitude, NaN if there is one; the bits
// of the smallest but zeros, less one, or none; and how many threads have seen any but zeros.
struct ColumnSeen {
  static constexpr uint32_t kNone = 0xffffffffu;
  float most = 0.f;
  uint32_t least = kNone, threads = 0;

  __device__ __forceinline__ void see(float x) {
    most = max_or_nan(most, fabsf(x));
    least = min_of_sum(float_to_bits(fabsf(x)), kNone, least);
  }
  __device__ __forceinline__ void join(const ColumnSeen& s) {
    most = max_or_nan(most, s.most), least = s.least < least ? s.least : least;
    threads += s.threads;
  }
  // Of the four threads that have one column.
  __device__ __forceinline__ ColumnSeen of_column() const {
    ColumnSeen all = *this;
#pragma unroll
    for (int lanes = 1; lanes <= 2; lanes *= 2)
      all.join({__shfl_xor_sync(0xffffffffu, all.most, lanes),
                __shfl_xor_sync(0xffffffffu, all.least, lanes),
                __shfl_xor_sync(0xffffffffu, all.threads, lanes)});
    return all;
  }
  __device__ __forceinline__ bool finite() const { return most <= FLT_MAX; }
  // If something is not finite nobody asks for limbs.
  __device__ __forceinline__ int exponent() const {
    return finite() && most > 0.f ? kMostTop - floor_log2(float_to_bits(most)) : 0;
  }
  // The same, without a branch, where limbs do not depend on it.
  static constexpr int kMostOfOne = 127;
  __device__ __forceinline__ int exponent_so_far() const {
    const int exponent = kMostTop + 127 - static_cast<int>(float_to_bits(most) >> 23);
    return exponent < kMostOfOne ? exponent : kMostOfOne;
  }
  // Whether some element but zeros, scaled so, lies below a limit that is not subnormal.
  __device__ __forceinline__ bool below(float limit, int exponent) const {
    const int first = exponent < 127 ? exponent : 127;
    const float t = bits_to_float(least + 1) * power_of_2(first) * power_of_2(exponent - first);
    return least != kNone && t < limit;
  }
  // Whether limbs depend on the exponent: they lose nothing down to a binade above `tiny`, below
  // which the second one's last bit is cut off. One factor has to do, besides.
  template <EmulationScheme S>
  __device__ __forceinline__ bool depends(int exponent) const {
    return finite() && (below(2.f * S.tiny, exponent) || exponent > kMostOfOne);
  }
  // Whether a whole column's products are plain. One that has a single element but zeros was seen
  // by one thread, and has one magnitude; if it has more of that, it is looked at for nothing.
  template <EmulationScheme S>
  __device__ __forceinline__ bool plain(int exponent) const {
    const bool single = threads == 1 && float_to_bits(most) == least + 1;
    return most == 0.f || (finite() && !single && !is_far(exponent) && !below(S.tiny, exponent));
  }
};

// RowScale of a row that lies along k, by a warp, as decompose_along_k finds it: the sums of
// squares are those of its threads, which a sum here is of several. `exponent`: where all elements
// are `finite`.
template <EmulationScheme S>
__device__ __forceinline__ RowScale scale_of_row(const float* row, int64_t k, DecomposeShape shape,
                                                 int exponent, bool finite) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (!finite) {
    uint32_t largest = 0;
#pragma unroll 8
    for (int64_t e = lane; e < k; e += 32) largest = max_of(largest, finite_magnitude(row[e]));
    exponent = exponent_of(__reduce_max_sync(0xffffffffu, largest), kMostTop);
  }
  const int64_t filled = slices_of(k) * kSliceK;
  uint32_t sums[RowSeen::kSums] = {};
#pragma unroll 1
  for (int thread = lane; thread < shape.threads; thread += 32) {
    RowSeen seen;
#pragma unroll 4
    for (int64_t at = thread * 8; at < filled; at += shape.threads * 8) {
      Eight<float> x;
      x.load(row + at, 1, static_cast<int>(k - at < 0 ? 0 : min_of(k - at, 8)), true);
      float t[8];
      scale8<S>(t, x, exponent, static_cast<uint32_t>(at), seen);
    }
    uint32_t its[RowSeen::kSums];
    seen.to(its, k);
#pragma unroll
    for (int s = 0; s < RowSeen::kSums; ++s) sums[s] += its[s];
  }
#pragma unroll
  for (uint32_t& sum : sums) sum = __reduce_add_sync(0xffffffffu, sum);
  return scale_of(exponent, sums, k);
}

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
