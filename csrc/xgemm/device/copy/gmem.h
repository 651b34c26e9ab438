// gmem -> registers -> smem: how the threads of a block fill one slice of one operand. The edges
// live here.
#pragma once

#include <type_traits>

#include "xgemm/device/platform.h"

namespace xgemm {

// 16 bytes at once; `p` is aligned to 16 (checked in the emulator).
__device__ __forceinline__ float4 load4(const float* p) {
  simt::expect_aligned(p, 16);
  return *reinterpret_cast<const float4*>(p);
}
__device__ __forceinline__ void load4(float* registers, const float* p) {
  const float4 v = load4(p);
  registers[0] = v.x, registers[1] = v.y, registers[2] = v.z, registers[3] = v.w;
}
__device__ __forceinline__ void store4(float* p, float4 v) {
  simt::expect_aligned(p, 16);
  *reinterpret_cast<float4*>(p) = v;
}

__device__ __forceinline__ void load2(float* registers, const float* p) {
  simt::expect_aligned(p, 8);
  const float2 v = *reinterpret_cast<const float2*>(p);
  registers[0] = v.x, registers[1] = v.y;
}
__device__ __forceinline__ void store2(float* p, float x, float y) {
  simt::expect_aligned(p, 8);
  *reinterpret_cast<float2*>(p) = make_float2(x, y);
}

// How much of K a slice of BK holds that begins at k0.
__device__ __forceinline__ int slice_depth(int64_t k, int64_t k0, int BK) {
  return k - k0 < BK ? static_cast<int>(k - k0) : BK;
}

// One thread's share of an L x BK slice: kEach vectors of W floats. A slice is addressed as (l, k):
// row l of A or of B transposed, so that one loader serves both operands. kAlongK says which way
// the lanes (and the vectors) run: the way in which the operand is contiguous, where it is. Outside
// the operand `pad` is loaded.
template <int kThreads, int L, int BK, int W, bool kAlongK>
struct Loader {
  static constexpr int kLanes = (kAlongK ? BK : L) / W;  // threads side by side along a run
  static constexpr int kStep =
      kThreads / kLanes;  // distance of a thread's vectors, across the runs
  static constexpr int kEach = L * BK / (W * kThreads);
  static_assert(kThreads % kLanes == 0 && kEach * W * kThreads == L * BK && kEach > 0);

  const float* p;  // the thread's first element of the next slice
  int64_t along;   // from an element of a vector to the next
  int64_t across;  // from a vector of the thread to its next
  int64_t slice;   // from a slice to the next
  int64_t left;    // how much of K is from the next slice on
  int l, k;        // the first element's place in the slice
  int rows;        // rows of the operand from the slice's first one on, at most L
  int whole;       // slices from the next one on that have no edge and move in vectors
  float pad;
  float v[kEach][W];

  // `rows_of` is the operand with rows along k, `depth` long; the slices' rows begin at l0 of
  // `length`.
  __device__ Loader(const View<const float>& rows_of, int64_t l0, int64_t length, int64_t depth,
                    float pad_)
      : left(depth), pad(pad_) {
    const int run = threadIdx.x % kLanes * W, line = threadIdx.x / kLanes;
    k = kAlongK ? run : line;
    l = kAlongK ? line : run;
    along = kAlongK ? rows_of.cs : rows_of.rs;
    across = (kAlongK ? rows_of.rs : rows_of.cs) * kStep;
    slice = rows_of.cs * BK;
    rows = static_cast<int>(length - l0 < L ? length - l0 : L);
    const bool wide = W == 1 || (kAlongK ? rows_of.wide() : rows_of.transposed().wide());
    whole = wide && rows == L ? static_cast<int>(depth / BK) : 0;
    p = rows_of.ptr(l0 + l, k);
  }

  // gmem -> registers, then on to the next slice.
  __device__ __forceinline__ void fetch() {
    if (whole-- > 0) [[likely]] {
#pragma unroll
      for (int e = 0; e < kEach; ++e) {
        if constexpr (W == 4) load4(v[e], p + e * across);
        else v[e][0] = p[e * across];
      }
    } else {
      const int64_t run_left = kAlongK ? left - k : rows - l;
#pragma unroll
      for (int e = 0; e < kEach; ++e) {
        const bool inside = kAlongK ? l + e * kStep < rows : k + e * kStep < left;
#pragma unroll
        for (int w = 0; w < W; ++w)
          v[e][w] = inside && w < run_left ? p[e * across + w * along] : pad;
      }
    }
    p += slice;
    left -= BK;
  }

  // registers -> smem, S[l][k] (row-major) ...
  template <int kRow>
  __device__ void store_rows(float (&S)[L][kRow]) const {
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      if constexpr (W == 4 && kAlongK) {
        store4(&S[l + e * kStep][k], make_float4(v[e][0], v[e][1], v[e][2], v[e][3]));
      } else {
#pragma unroll
        for (int w = 0; w < W; ++w)
          (kAlongK ? S[l + e * kStep][k + w] : S[l + w][k + e * kStep]) = v[e][w];
      }
    }
  }

  // ... or S[k][l] (K-major).
  template <int kRow>
  __device__ void store_columns(float (&S)[BK][kRow]) const {
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      if constexpr (W == 4 && !kAlongK) {
        store4(&S[k + e * kStep][l], make_float4(v[e][0], v[e][1], v[e][2], v[e][3]));
      } else {
#pragma unroll
        for (int w = 0; w < W; ++w)
          (kAlongK ? S[k + w][l + e * kStep] : S[k + e * kStep][l + w]) = v[e][w];
      }
    }
  }
};

// Four neighbours of a row of D through the epilogue, as 16 bytes where D (and C, where it is read)
// allow. j % 4 == 0. The vector is no plain assignment: that would be taken apart, since the other
// way ends in stores to the same places.
__device__ __forceinline__ void store_row4(const Gemm& g, int64_t i, int64_t j, const float* acc) {
  if (i < g.m && j + 4 <= g.n && g.d.wide() && (g.beta == 0.f || g.c.wide())) {
    float* d = g.d.ptr(i, j);
    float4 c = make_float4(0.f, 0.f, 0.f, 0.f);
    if (g.beta != 0.f) c = load4(g.c.ptr(i, j));
    simt::expect_aligned(d, 16);
    __stcg(reinterpret_cast<float4*>(d), make_float4(g.finish(acc[0], c.x), g.finish(acc[1], c.y),
                                                     g.finish(acc[2], c.z), g.finish(acc[3], c.w)));
    return;
  }
#pragma unroll
  for (int w = 0; w < 4; ++w) g.store(i, j + w, acc[w]);
}

// A thread's TM x TN results through the epilogue: four rows and four columns at a time, which lie
// kStrideM and kStrideN apart, from (i, j) on. Tiles without an edge, which most are, have straight
// code of their own, as nothing is asked of each four there: of a short K the epilogue is half.
template <int kStrideM, int kStrideN, int TM, int TN>
__device__ __forceinline__ void store_fragment(const Gemm& g, int64_t i, int64_t j,
                                               const float (&acc)[TM][TN]) {
  constexpr int kRows = (TM - 1) / 4 * kStrideM + 4, kColumns = (TN - 1) / 4 * kStrideN + 4;
  const auto row = [](int r) { return r % 4 + r / 4 * kStrideM; };
  const auto column = [](int c) { return c / 4 * kStrideN; };
  const auto store = [&](auto with_c) {
#pragma unroll
    for (int r = 0; r < TM; ++r) {
      float* const d = g.d.ptr(i + row(r), j);
      simt::expect_aligned(d, 16);
#pragma unroll
      for (int c = 0; c < TN; c += 4) {
        const float* const x = &acc[r][c];
        float y[4];
        if constexpr (with_c()) load4(y, g.c.ptr(i + row(r), j + column(c)));
#pragma unroll
        for (int w = 0; w < 4; ++w)
          if constexpr (with_c()) y[w] = g.with_c(x[w], y[w]);
          else y[w] = g.without_c(x[w]);
        __stcg(reinterpret_cast<float4*>(d + column(c)), make_float4(y[0], y[1], y[2], y[3]));
      }
    }
  };
  if (i + kRows <= g.m && j + kColumns <= g.n && g.d.wide() && g.act == Act::none) [[likely]] {
    if (g.beta == 0.f) return store(std::false_type());
    if (g.c.wide()) return store(std::true_type());
  }
#pragma unroll
  for (int r = 0; r < TM; ++r)
#pragma unroll
    for (int c = 0; c < TN; c += 4) store_row4(g, i + row(r), j + column(c), &acc[r][c]);
}

}  // namespace xgemm
