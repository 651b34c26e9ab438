// The decomposition of an operand that does not lie along k and is not deep: strips of few rows,
// whole in shared memory, so that blocks are many and need nobody else.
#pragma once

#include "xgemm/emulation/decompose_rows.h"

namespace xgemm {
inline namespace XGEMM_FLAVOUR {

constexpr int kWholeK = 1024;  // that a strip can have

// kRows rows by all of k, transposed: a line of each k after what is said of the rows.
template <int kRows>
struct WholeStrip {
  static constexpr int kWarps = kDecomposeThreads / 32, kGroups = kRows / 8;
  using Line = float[kRows + 1];
  uint32_t warps[kWarps][kRows];
  uint32_t sums[kWarps / kGroups][RowSeen::kSums][kRows];
  float added_up[kWarps / kGroups][kRows];
  int exponents[kRows];
  static size_t bytes(const Limbs& limbs) {
    return sizeof(WholeStrip) + static_cast<size_t>(limbs.blocks) * kSliceK * sizeof(Line);
  }
  __device__ __forceinline__ Line* x() { return reinterpret_cast<Line*>(this + 1); }

  // gmem -> smem, zeros where there is nothing; the largest magnitudes of each warp.
  __device__ __forceinline__ void load(const View<const float>& v, int rows, int depth,
                                       int filled) {
    constexpr int kProducerThreads = kRows / 4;  // threads side by side along a strip, 4 rows each
    constexpr int kStep = kDecomposeThreads / kProducerThreads;
    const int thread = threadIdx.x, row = thread % kProducerThreads * 4;
    uint32_t largest[4] = {};
    const auto keep = [&](int k, const float (&y)[4]) {
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        largest[w] = max_of(largest[w], finite_magnitude(y[w]));
        x()[k][row + w] = y[w];
      }
    };
    int k = thread / kProducerThreads;
    if (v.transposed().wide() && rows >= kRows) {
      const float* p = v.ptr(row, k);
#pragma unroll 8
      for (; k < depth; k += kStep, p += kStep * v.cs) {
        float y[4];
        load4(y, p);
        keep(k, y);
      }
    }
#pragma unroll 1
    for (; k < filled; k += kStep) {
      float y[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) y[w] = row + w < rows && k < depth ? v(row + w, k) : 0.f;
      keep(k, y);
    }
#pragma unroll
    for (int w = 0; w < 4; ++w) {
#pragma unroll
      for (int step = kProducerThreads; step < 32; step *= 2)
        largest[w] = max_of(largest[w], __shfl_xor_sync(0xffffffffu, largest[w], step));
      if (thread % 32 < kProducerThreads) warps[thread / 32][row + w] = largest[w];
    }
  }
};

template <EmulationScheme S, int kRows, bool kMayBeShort>
__device__ void decompose_whole_strip(const DecomposeJob& job, int64_t strip) {
  using Whole = WholeStrip<kRows>;
  constexpr int kWarps = Whole::kWarps, kGroups = Whole::kGroups;
  XGEMM_SHARED_DYNAMIC(whole, Whole);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, thread = threadIdx.x;
  const int64_t strips = ceil_div(job.limbs.rows, kRows);
  const int64_t z = job.limbs.matrices > 1 ? strip / strips : 0;
  const int64_t row0 = (strip - z * strips) * kRows;
  const int rows = static_cast<int>(min_of(job.limbs.rows - row0, kRows));
  const int filled = static_cast<int>(job.limbs.blocks) * kSliceK;
  View<const float> v = job.x;
  v.data += z * v.bs + row0 * v.rs;
  whole.load(v, rows, static_cast<int>(job.k), filled);
  __syncthreads();
  if (thread < kRows) {
    uint32_t most = 0;
    for (int w = 0; w < kWarps; ++w) most = max_of(most, whole.warps[w][thread]);
    whole.exponents[thread] = exponent_of(most, kMostTop);
  }
  __syncthreads();

  // smem -> gmem: a warp has 8 rows, a lane 8 neighbours along k of one.
  const int row = warp % kGroups * 8 + lane / 4, at = lane % 4 * 8;
  const int exponent = whole.exponents[row];
  RowSeen seen;
  float sum = 0.f;
  if (row < rows) {
    char* const limbs = static_cast<char*>(job.limbs.data) +
                        (z * job.limbs.rows + row0 + row) * job.limbs.row_bytes(S.limbs);
    for (int k = warp / kGroups * kSliceK; k < filled; k += kWarps / kGroups * kSliceK) {
      const auto x = [&](int e) { return whole.x()[k + at + e][row]; };
      if (job.sums) sum += sum_of_8(x);
      decompose8<S, kMayBeShort>(x, exponent, limbs + k * (2 * S.limbs), at,
                                 static_cast<uint32_t>(k + at), seen, job.limb_of_lo<S>());
    }
  }

  // What is seen of a row: over 4 lanes and the warps that share it.
  uint32_t sums[RowSeen::kSums];
  seen.to(sums, job.k);
#pragma unroll
  for (int i = 0; i < RowSeen::kSums; ++i) {
    sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], 1);
    sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], 2);
    if (lane % 4 == 0) whole.sums[warp / kGroups][i][row] = sums[i];
  }
  sum += __shfl_xor_sync(0xffffffffu, sum, 1);
  sum += __shfl_xor_sync(0xffffffffu, sum, 2);
  if (lane % 4 == 0) whole.added_up[warp / kGroups][row] = sum;
  __syncthreads();
  if (thread >= rows) return;
#pragma unroll
  for (int i = 0; i < RowSeen::kSums; ++i) {
    sums[i] = 0;
    for (int w = 0; w < kWarps / kGroups; ++w) sums[i] += whole.sums[w][i][thread];
  }
  const int64_t at_all = z * job.limbs.rows + row0 + thread;
  job.limbs.scales[at_all] = scale_of(whole.exponents[thread], sums, job.k);
  if (!job.sums) return;
  sum = 0.f;
  for (int w = 0; w < kWarps / kGroups; ++w) sum += whole.added_up[w][thread];
  job.sums[at_all] = sum;
}

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
