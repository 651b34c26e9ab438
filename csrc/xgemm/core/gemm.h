// The whole contract between host and kernels: what a problem is (View, Gemm) and how a result is
// stored (the epilogue).
#pragma once

#include <cmath>
#include <cstdint>

#ifdef __CUDACC__
#define XGEMM_HD __host__ __device__ __forceinline__
#define XGEMM_COLD inline __host__ __device__ __noinline__
#else
#define XGEMM_HD inline
#define XGEMM_COLD inline __attribute__((noinline))
#endif

namespace xgemm {

// Additive identity as a product: padding A with -0 and B with +0 adds (-0)(+0) = -0 to a chain,
// which keeps every accumulator's bits; padding both with +0 would turn an accumulator of -0 into
// +0.
constexpr float kPadA = -0.0f, kPadB = 0.0f;

// A batch of matrices: element (i, j) of matrix z is data[z * bs + i * rs + j * cs]. A transpose
// swaps rs and cs, a broadcast is a stride of 0. Offsets are 64-bit everywhere.
template <class T>
struct View {
  T* data = nullptr;
  int64_t rs = 0, cs = 0, bs = 0;

  XGEMM_HD T* ptr(int64_t i, int64_t j) const { return data + (i * rs + j * cs); }
  XGEMM_HD T& operator()(int64_t i, int64_t j) const { return *ptr(i, j); }
  XGEMM_HD View transposed() const { return {data, cs, rs, bs}; }

  // Whether four neighbours along a row (along a column: transposed().wide()) can move as one
  // 16-byte access, given a column index that is a multiple of 4.
  XGEMM_HD bool wide() const {
    return cs == 1 && reinterpret_cast<uintptr_t>(data) % 16 == 0 && rs % 4 == 0 && bs % 4 == 0;
  }
};

enum class Act : int { none, relu, gelu, gelu_tanh, silu };

// Never inlined: 64 copies of five branches would be nine tenths of a kernel's code.
XGEMM_COLD float activate(Act act, float x) {
  switch (act) {
    case Act::relu:
      return x > 0.f || x != x ? x : 0.f;
    case Act::gelu:
      return 0.5f * x * (1.f + erff(x * 0.70710678118654752f));
    case Act::gelu_tanh:
      return 0.5f * x * (1.f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
    case Act::silu:
      return x / (1.f + expf(-x));
    default:
      return x;
  }
}

// D = act(alpha * A B + beta * C) for each of `batch` problems: A is m x k, B is k x n, C and D are
// m x n.
struct Gemm {
  int64_t m = 0, n = 0, k = 0, batch = 1;
  View<const float> a, b, c;  // c is never read when beta is 0
  View<float> d;
  float alpha = 1.f, beta = 0.f;
  Act act = Act::none;
  // Several chains are to be finite just where a single one is: an element that might not be is
  // made as one chain.
  bool match_single_chain_overflow = false;
  // Of k, in a chain of the strict product: an element is the sum of its chains, in order. 0: one.
  int64_t split_k_size = 0;

  // Matrix z of the batch.
  XGEMM_HD Gemm at(int64_t z) const {
    Gemm g = *this;
    g.a.data += z * a.bs;
    g.b.data += z * b.bs;
    g.d.data += z * d.bs;
    if (beta != 0.f) g.c.data += z * c.bs;
    return g;
  }

  // The epilogue's arithmetic, written with the fused operations it means, so that every compiler
  // gives the same bits.
  XGEMM_HD float without_c(float acc) const { return alpha * acc; }
  XGEMM_HD float with_c(float acc, float c_ij) const { return fmaf(alpha, acc, beta * c_ij); }
  XGEMM_HD float finish(float acc, float c_ij) const {
    const float z = beta == 0.f ? without_c(acc) : with_c(acc, c_ij);
    return act == Act::none ? z : activate(act, z);
  }

  XGEMM_HD void store(int64_t i, int64_t j, float acc) const {
    if (i < m && j < n) d(i, j) = finish(acc, beta == 0.f ? 0.f : c(i, j));
  }
};

}  // namespace xgemm
