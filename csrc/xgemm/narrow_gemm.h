// The main loop of narrow products: a block's share of a tile. wgmma has D transposed, so that the
// longer side of D is its 64 rows, and takes that operand from registers.
#pragma once

#include <type_traits>

#include "xgemm/register_split.h"
#include "xgemm/shares.h"

namespace xgemm {
inline namespace XGEMM_FLAVOUR {

constexpr Scheme kNarrowScheme = kBf16x6;
// In slices, after which the sums of the smaller products are added to the others.
constexpr int kNarrowSegment = kNarrowScheme.segment / kSliceK;
// A thread's, of a tile with BM rows.
template <int BM>
constexpr int kNarrowSums = BM * kLong / kShareThreads;
// D's rows of a slice, in parts.
template <int BM>
using NarrowSlice = typename SharedParts<kShareThreads, BM, false>::Slice;

// The products of a slice: main = those of the first parts, rest += the others, smallest first.
template <int BM, int kSums, class Columns>
__device__ __forceinline__ void multiply_slice(float (&main)[kSums], float (&rest)[kSums],
                                               const Columns& columns, uint64_t rows,
                                               bool accumulate) {
  constexpr Scheme S = kNarrowScheme;
  constexpr uint64_t kNext = BM * kSliceK * 2 >> 4;
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < Columns::kGroups; ++k)
    wgmma<S.type>(main, columns.parts[k][0], rows + k * kDescriptorK16, k > 0);
#pragma unroll
  for (int order = S.parts - 1; order > 0; --order)
#pragma unroll
    for (int part = 0; part <= order; ++part)
#pragma unroll
      for (int k = 0; k < Columns::kGroups; ++k)
        wgmma<S.type>(rest, columns.parts[k][part],
                      rows + (order - part) * kNext + k * kDescriptorK16,
                      accumulate || order < S.parts - 1 || part > 0 || k > 0);
  wgmma_commit();
}

// sum = the products of k0 to k1 for the tile at `o`. Two slices are under way in registers.
template <int BM, bool kA, bool kB>
__device__ __forceinline__ void multiply_share(float (&sum)[kNarrowSums<BM>], Reach& reach,
                                               NarrowSlice<BM> (&slices)[2], const Gemm& g,
                                               const Origin& o, int64_t k0, int64_t k1) {
  using Rows = SharedParts<kShareThreads, BM, kA>;
  constexpr int kSums = kNarrowSums<BM>;
  const int count = k1 > k0 ? static_cast<int>((k1 - k0 + kSliceK - 1) / kSliceK) : 1;
  RegisterParts<kB> columns(g.b.transposed(), o.j, g.n, k0, k1);
  Rows rows(g.a, o.i, g.m, k0, k1);
  float main[kSums], rest[kSums];
  // Multiplies slice s, which is in registers number s % 2, and lets slice s + 2 come there.
  const auto multiply = [&](auto number, int s) {
    constexpr int kNumber = number();
    columns.split(kNumber, reach), rows.store(slices[kNumber], kNumber, reach);
    if (s + 2 < count) columns.load(kNumber), rows.load(kNumber);
    fence_for_wgmma();
    __syncthreads();
    multiply_slice<BM>(main, rest, columns, wgmma_descriptor<Rows::kRowBytes>(slices[kNumber]),
                       s % kNarrowSegment != 0);
    wgmma_wait<0>();
    wgmma_settled(main);
    wgmma_settled(rest);
#pragma unroll
    for (int e = 0; e < kSums; ++e) sum[e] += main[e];
    if (s + 1 == count || (s + 1) % kNarrowSegment == 0) {
#pragma unroll
      for (int e = 0; e < kSums; ++e) sum[e] += rest[e];
    }
  };
  columns.load(0), rows.load(0);
  if (count > 1) columns.load(1), rows.load(1);
#pragma unroll 1
  for (int s = 0; s < count; s += 2) {
    multiply(std::integral_constant<int, 0>(), s);
    if (s + 1 < count) multiply(std::integral_constant<int, 1>(), s + 1);
  }
}

// Leaves a share's sums, and what is strange of its elements, at its place of the workspace.
template <int BM, bool kB>
__device__ __forceinline__ void leave_share(const ShareJob& job, int64_t place,
                                            const float (&sum)[kNarrowSums<BM>],
                                            const Reach& reach) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float* const sums =
      job.sums + place * (BM * kLong) + lane % 4 * 2 * kLong + RegisterParts<kB>::first_row();
#pragma unroll
  for (int e = 0; e < kNarrowSums<BM>; e += 4)
#pragma unroll
    for (int c = 0; c < 2; ++c) store2(sums + (e / 4 * 8 + c) * kLong, sum[e + c], sum[e + 2 + c]);
  uint32_t strange = reach.strange();
#pragma unroll
  for (int step = 16; step > 0; step /= 2) strange |= __shfl_xor_sync(0xffffffffu, strange, step);
  if (lane == 0) job.strange[place * kShareWarps + warp] = strange;
}

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
