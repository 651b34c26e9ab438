// What a thread does for its part of D where K is short: rows of A through shared memory, a few
// rows of B in registers, D in vectors where it can be.
#pragma once

#include "xgemm/device/copy/gmem.h"
#include "xgemm/device/fragment.h"

namespace xgemm {
inline namespace XGEMM_FLAVOUR {

constexpr int kColumns = 4;  // of a thread

// Where a thread's part of D is: kMine rows from i0 + row on, and kColumns columns from j on, which
// are neighbours, or as far apart as there are threads side by side. kWide: whether D's rows are
// stored in vectors.
template <int kAcross, int kMine, int BM, bool kWide>
struct ThreadPart {
  static constexpr int kStep = kWide ? 1 : kAcross;
  int row;  // its first, in the block's
  int64_t i0, j;  // the block's first row, and the thread's first column
  bool whole, vectors;  // D's columns, and B's, exist and move as a vector

  // Blocks side by side write side by side.
  __device__ __forceinline__ explicit ThreadPart(const Gemm& g) {
    const int tx = threadIdx.x % kAcross;
    const auto blocks = static_cast<uint32_t>(ceil_div(g.n, kAcross * kColumns));
    row = threadIdx.x / kAcross * kMine;
    i0 = static_cast<int64_t>(blockIdx.x / blocks) * BM;
    j = static_cast<int64_t>(blockIdx.x % blocks) * (kAcross * kColumns) +
        (kWide ? tx * kColumns : tx);
    whole = kWide && j + 3 < g.n;
    vectors = whole && g.b.wide();
  }
};

// A slice of A, K-major: a thread's rows are neighbours, and all of a warp read the same. K is
// filled up to runs of 8. Then it is there for all of the block.
template <int kThreads, int kSlice, int BM>
__device__ __forceinline__ void load_a(float (&As)[kSlice][BM], const Gemm& g, int64_t i0,
                                       int64_t k0) {
  const int depth = slice_depth(g.k, k0, kSlice);
  for (int e = threadIdx.x; e < BM * ((depth + 7) / 8 * 8); e += kThreads) {
    const int i = e % BM, k = e / BM;
    As[k][i] = i0 + i < g.m && k < depth ? g.a(i0 + i, k0 + k) : kPadA;
  }
  __syncthreads();
}

// The thread's columns of kDepth rows of B.
template <int kStep, int kDepth>
__device__ __forceinline__ void load_b(float (&b)[kDepth][kColumns], const Gemm& g, int64_t k0,
                                       int64_t j, bool vectors) {
#pragma unroll
  for (int k = 0; k < kDepth; ++k)
    if (k0 + k >= g.k) {
      b[k][0] = b[k][1] = b[k][2] = b[k][3] = kPadB;
    } else if (vectors) {
      load4(b[k], g.b.ptr(k0 + k, j));
    } else {
#pragma unroll
      for (int c = 0; c < 4; ++c) b[k][c] = g.b(k0 + k, min_of(j + c * kStep, g.n - 1));
    }
}

// The epilogue of a thread's rows from i on: its choices are made once for all of them, since they
// would be most of the instructions. whole: columns are neighbours, exist, and move as a vector.
template <int kStep, int kCount>
__device__ __forceinline__ void store(const Gemm& g, float (&acc)[kCount][kColumns], int64_t i,
                                      int64_t j, bool whole) {
  const auto exists = [&](int r, int c) { return i + r < g.m && j + c * kStep < g.n; };
  const auto each = [&](auto change) {
#pragma unroll
    for (int r = 0; r < kCount; ++r)
#pragma unroll
      for (int c = 0; c < 4; ++c) acc[r][c] = change(r, c, acc[r][c]);
  };
  if (g.beta == 0.f) each([&](int, int, float x) { return g.without_c(x); });
  else
    each([&](int r, int c, float x) {
      return g.with_c(x, exists(r, c) ? g.c(i + r, j + c * kStep) : 0.f);
    });
  if (g.act != Act::none) each([&](int, int, float x) { return activate(g.act, x); });
  float* d = g.d.ptr(i, j);
  const int rows = static_cast<int>(min_of(g.m - i, kCount));
  if (whole) {
#pragma unroll
    for (int r = 0; r < kCount; ++r, d += g.d.rs)
      if (r < rows) {  // no plain assignment: that would be taken apart, as store_row4's
        simt::expect_aligned(d, 16);
        __stcg(reinterpret_cast<float4*>(d),
               make_float4(acc[r][0], acc[r][1], acc[r][2], acc[r][3]));
      }
  } else if (g.d.cs == 1) {
    const int columns = static_cast<int>(min_of(g.n - j, 4 * kStep));
#pragma unroll
    for (int r = 0; r < kCount; ++r, d += g.d.rs)
#pragma unroll
      for (int c = 0; c < 4; ++c)
        if (r < rows && c * kStep < columns) d[c * kStep] = acc[r][c];
  } else {
#pragma unroll
    for (int r = 0; r < kCount; ++r)
#pragma unroll
      for (int c = 0; c < 4; ++c)
        if (exists(r, c)) g.d(i + r, j + c * kStep) = acc[r][c];
  }
}

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
