// gmem -> registers -> smem: how the threads of a block fill one slice of one operand. The edges
// live here.
#pragma once

#include "xgemm/simt.h"

namespace xgemm {

// 16 bytes at once; `p` is aligned to 16 (checked in the host flavour).
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

// Column `step` of row i of an outer product, every other row backwards: the element of B that ends
// a row begins the next and stays in the operand cache of the FFMA pipe.
__device__ __forceinline__ constexpr int serpentine(int i, int step, int columns) {
  return i % 2 ? columns - 1 - step : step;
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
  int64_t along;  // from an element of a vector to the next
  int64_t across;  // from a vector of the thread to its next
  int64_t slice;  // from a slice to the next
  int l, k;  // the first element's place in the slice
  int rows;  // rows of the operand from the slice's first one on, at most L
  float pad;
  bool wide;  // vectors may move as 16 bytes
  float v[kEach][W];

  // `rows_of` is the operand with rows along k; the slice's rows begin at l0 of `length`.
  __device__ Loader(const View<const float>& rows_of, int64_t l0, int64_t length, float pad_)
      : pad(pad_) {
    const int run = threadIdx.x % kLanes * W, line = threadIdx.x / kLanes;
    k = kAlongK ? run : line;
    l = kAlongK ? line : run;
    along = kAlongK ? rows_of.cs : rows_of.rs;
    across = (kAlongK ? rows_of.rs : rows_of.cs) * kStep;
    slice = rows_of.cs * BK;
    rows = static_cast<int>(length - l0 < L ? length - l0 : L);
    wide = W == 4 && (kAlongK ? rows_of.wide() : rows_of.transposed().wide());
    p = rows_of.ptr(l0 + l, k);
  }

  // gmem -> registers, then on to the next slice. `depth` is how much of K the slice holds, at most
  // BK.
  __device__ void fetch(int depth) {
    const bool whole = rows == L && depth == BK;
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const float* q = p + e * across;
      const int run_left = kAlongK ? depth - k : rows - l;
      const bool inside = kAlongK ? l + e * kStep < rows : k + e * kStep < depth;
      if constexpr (W == 4) {
        if (wide && (whole || (inside && run_left >= W))) {
          load4(v[e], q);
          continue;
        }
      }
#pragma unroll
      for (int w = 0; w < W; ++w) v[e][w] = whole || (inside && w < run_left) ? q[w * along] : pad;
    }
    p += slice;
  }

  // registers -> smem, S[l][k] (row-major) ...
  template <int kRow>
  __device__ void store_rows(float (&S)[L][kRow]) const {
#pragma unroll
    for (int e = 0; e < kEach; ++e)
#pragma unroll
      for (int w = 0; w < W; ++w)
        (kAlongK ? S[l + e * kStep][k + w] : S[l + w][k + e * kStep]) = v[e][w];
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
// allow. j % 4 == 0.
__device__ __forceinline__ void store_row4(const Gemm& g, int64_t i, int64_t j, const float* acc) {
  if (i < g.m && j + 4 <= g.n && g.d.wide() && (g.beta == 0.f || g.c.wide())) {
    float4 c = make_float4(0.f, 0.f, 0.f, 0.f);
    if (g.beta != 0.f) c = load4(g.c.ptr(i, j));
    store4(g.d.ptr(i, j), make_float4(g.finish(acc[0], c.x), g.finish(acc[1], c.y),
                                      g.finish(acc[2], c.z), g.finish(acc[3], c.w)));
    return;
  }
#pragma unroll
  for (int w = 0; w < 4; ++w) g.store(i, j + w, acc[w]);
}

}  // namespace xgemm
