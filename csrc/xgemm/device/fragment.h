// From shared memory to products: where a warp's lanes lie over its tile, a thread's fragments, and
// one k of its products.
#pragma once

#include "xgemm/device/ptx/base.h"

namespace xgemm {

// Lanes lie 4 x 8 over a warp tile, lane i and i ^ 1 in one column. A 16-byte read is served half a
// warp at a time if i and i ^ 1, or i and i ^ 2, read the same 16 bytes, else a quarter: lanes
// counted row by row take 4 wavefronts for a row of B, these take 2, as for A (ncu, H200).
__device__ __forceinline__ int lane_row(int lane) { return lane % 2 + lane / 16 * 2; }
__device__ __forceinline__ int lane_column(int lane) { return lane / 2 % 8; }
constexpr int kLanesM = 4, kLanesN = 8;

// kCount floats in vectors of 4 that lie kStride apart: a thread's part of a row of a K-major
// slice.
template <int kStride, int kCount, class Place>  // const float* or Smem
__device__ __forceinline__ void load_fragment(float (&r)[kCount], Place s) {
#pragma unroll
  for (int v = 0; v < kCount / 4; ++v) load4(r + v * 4, s + v * kStride);
}

// In which order a thread tile is multiplied. Each product reads its accumulator and one new
// element from the two register banks; the order decides how often ptxas can't place both in
// different ones. Each way goes back and forth, so that the element that ends a line begins the
// next from the operand cache.
enum class Order {
  rows,  // row by row
  columns,  // column by column
  columns_split,  // column by column, the even rows of each before its odd ones
  columns_halves,  // column by column, rows of its upper and lower half in turn
};

// One k: acc += ra x rb.
template <Order kOrder, int TM, int TN>
__device__ __forceinline__ void outer_product(float (&acc)[TM][TN], const float (&ra)[TM],
                                              const float (&rb)[TN]) {
  constexpr bool kRows = kOrder == Order::rows;
  constexpr int kLines = kRows ? TM : TN, kSteps = kRows ? TN : TM, kHalf = kSteps / 2;
#pragma unroll
  for (int line = 0; line < kLines; ++line)
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int t = line % 2 ? kSteps - 1 - s : s;
      const int step = kOrder == Order::columns_split    ? t % kHalf * 2 + t / kHalf
                       : kOrder == Order::columns_halves ? t / 2 + t % 2 * kHalf
                                                         : t;
      const int i = kRows ? line : step, j = kRows ? step : line;
      acc[i][j] = fmaf(ra[i], rb[j], acc[i][j]);
    }
}

}  // namespace xgemm
