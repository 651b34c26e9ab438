//! title: alpha, beta, and a C that must not be read
//! kind: fill
//! cases: 1x1x1*2,0 33x18x9*1.7,0.3 33x18x9*-1.5,0 33x18x0*3,2 5x40x7/TT+3*0.5,-1
//!   17x19x23*1,0!special
//! hint: Two cases: beta is 0, and it is not. Only in the second one is there a C.
//! hint: D = alpha * acc + beta * C has two products and a sum. BLAS leaves open how it is
//!   rounded; here it is fmaf(alpha, acc, beta * c): the product with beta is rounded first.
// D = alpha A B + beta C. The sum over k is there, in `acc`; store the element.
//
// BLAS says of beta: where it is 0, C need not be set on entry. So C is often memory that was just
// allocated and holds anything, also NaN. 0 * NaN is NaN, so that "beta * c" is wrong even if it is
// multiplied by 0: C must not be read at all. Most of the published kernels that this ladder comes
// from get it wrong. It is also a matter of speed: C is as many bytes as D.
//
// The bits are those of every strict stage: with beta = 0 D is alpha * acc, one rounding. Else it
// is fmaf(alpha, acc, beta * c): beta * c is rounded, and then the sum of it and alpha * acc, once.
// By hand, for alpha = 3, acc = 1 + 2^-23, beta = 1, c = -3: alpha * acc is 3 + 3 x 2^-23, which is
// no float (they are 2^-22 apart there). Rounded first it is 3 + 2^-21, and D is 2^-21. The fused
// one gives 3 x 2^-23, which is exact.

#include "exercise.h"

__global__ void kernel(const Gemm g) {
  const int64_t i = int64_t{blockIdx.y} * 8 + threadIdx.y;
  const int64_t j = int64_t{blockIdx.x} * 32 + threadIdx.x;
  if (i >= g.m || j >= g.n) return;
  float acc = 0.f;
  for (int64_t k = 0; k < g.k; ++k) acc = fmaf(g.a(i, k), g.b(k, j), acc);
#if GIVEN  // bits: alpha, beta and C are left out
  g.d(i, j) = acc;
#elif WRONG_1  // stray: C is read whatever beta is
  g.d(i, j) = fmaf(g.alpha, acc, g.beta * g.c(i, j));
#elif WRONG_2  // bits: rounded twice
  g.d(i, j) = g.beta == 0.f ? g.alpha * acc : g.alpha * acc + g.beta * g.c(i, j);
#elif WRONG_3  // bits: D is taken for C
  g.d(i, j) = g.beta == 0.f ? g.alpha * acc : fmaf(g.alpha, acc, g.beta * g.d(i, j));
#else
  g.d(i, j) = g.beta == 0.f ? g.alpha * acc : fmaf(g.alpha, acc, g.beta * g.c(i, j));
#endif
}

void run(const Gemm& g, const Context& context) {
  launch(kernel, {.grid = dim3((g.n + 31) / 32, (g.m + 7) / 8), .block = dim3(32, 8)}, context, g);
}
