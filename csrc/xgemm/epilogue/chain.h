// Elements made anew from gmem, each as one chain of fused multiply-adds, by a thread. Operands of
// kAhead k are asked for before any is multiplied: else each k would wait for memory. Pointers are
// opaque, or a register would be kept for each of the kAhead steps.
#pragma once

#include "xgemm/core/tile_scheduler.h"
#include "xgemm/device/ptx/base.h"

namespace xgemm {
inline namespace XGEMM_FLAVOUR {

// The chain of an element's products of k0 to k1.
template <int kAhead>
__device__ __forceinline__ float chain_of(const Gemm& g, int64_t i, int64_t j, int64_t k0,
                                          int64_t k1) {
  const float *a = g.a.ptr(i, k0), *b = g.b.ptr(k0, j);
  float chain = 0.f;
#pragma unroll 1
  for (int64_t left = k1 - k0; left > 0; left -= kAhead) {
    float x[kAhead], y[kAhead];
#pragma unroll
    for (int q = 0; q < kAhead; ++q, a = opaque(a + g.a.cs), b = opaque(b + g.b.rs))
      x[q] = q < left ? *a : kPadA, y[q] = q < left ? *b : kPadB;
#pragma unroll
    for (int q = 0; q < kAhead; ++q) chain = fmaf(x[q], y[q], chain);
  }
  return chain;
}

// Four neighbours from (i, j) on as chains side by side, as far as D goes.
template <int kAhead>
__device__ __forceinline__ void chain4(const Gemm& g, int64_t i, int64_t j, float (&chain)[4]) {
  const float *a = g.a.ptr(i, 0), *b = g.b.ptr(0, j);
  const int columns = static_cast<int>(min_of(g.n - j, 4));
#pragma unroll
  for (float& each : chain) each = 0.f;
#pragma unroll 1
  for (int64_t left = g.k; left > 0; left -= kAhead) {
    float x[kAhead], y[kAhead][4];
#pragma unroll
    for (int q = 0; q < kAhead; ++q, a = opaque(a + g.a.cs), b = opaque(b + g.b.rs)) {
      x[q] = q < left ? *a : kPadA;
#pragma unroll
      for (int w = 0; w < 4; ++w) y[q][w] = q < left && w < columns ? b[w * g.b.cs] : kPadB;
    }
#pragma unroll
    for (int q = 0; q < kAhead; ++q)
#pragma unroll
      for (int w = 0; w < 4; ++w) chain[w] = fmaf(x[q], y[q][w], chain[w]);
  }
}

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
