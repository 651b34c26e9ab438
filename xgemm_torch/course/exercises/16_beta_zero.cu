//! title: Zero times whatever is there
//! kind: bug
//! cases: 8x16x5*1,0 8x16x5*2,0.5 7x13x9*1.5,0 7x13x9*1.5,-2 33x64x17*1,1 33x66x17+2*0.7,0.3
//! hint: In the problem that fails beta is 0. Which line reads C all the same?
//! hint: Choosing afterwards is too late: the load itself must not happen.
//! hint: float4 c = make_float4(0, 0, 0, 0); if (g.beta != 0.f) c = load4(...): then beta * c is
//!   +0, or -0, and adds nothing to a product, unless that is a zero itself. Better: without_c
//!   and with_c.
// The end of a kernel, with vectors: four results of a row leave as one store of 16 bytes, and four
// elements of C come as one load. It is right wherever C holds numbers.
//
// Where beta is 0, BLAS says that C need not be set, and callers rely on it: they pass memory that
// was just allocated. If it happens to hold a NaN, 0 * NaN is NaN, and D is full of it. It shows
// once in a thousand runs, since fresh memory is mostly zero. It costs time, too: of 4096 x 4096
// results C is 64 MiB, 14 us of an H200's memory, read for nothing.
//
// g.finish(acc, c) has both cases: alpha * acc where beta is 0, which does not look at c, else
// fmaf(alpha, acc, beta * c). What it cannot do is to undo a load.
//
// Mend it, for the vectors and for what is left of a row.

#include "exercise.h"

__global__ void kernel(const Gemm g) {
  const int64_t i = int64_t{blockIdx.y} * 8 + threadIdx.y;
  const int64_t j = (int64_t{blockIdx.x} * 32 + threadIdx.x) * 4;
  if (i >= g.m || j >= g.n) return;
  float acc[4] = {};
  for (int w = 0; w < 4 && j + w < g.n; ++w)
    for (int64_t k = 0; k < g.k; ++k) acc[w] = fmaf(g.a(i, k), g.b(k, j + w), acc[w]);
  const bool vectors = j + 4 <= g.n && g.d.wide() && (g.beta == 0.f || g.c.wide());
#if GIVEN  // stray: C is loaded before anybody asks for beta
  float c[4] = {};
  if (vectors) load4(c, g.c.ptr(i, j));
#elif WRONG_1  // stray: it asks for the other factor
  float c[4] = {};
  if (vectors && g.alpha != 0.f) load4(c, g.c.ptr(i, j));
#elif WRONG_2  // bits: C is never read
  float c[4] = {};
#else
  float c[4] = {};
  if (vectors && g.beta != 0.f) load4(c, g.c.ptr(i, j));
#endif
  if (vectors) {
    store4(g.d.ptr(i, j), make_float4(g.finish(acc[0], c[0]), g.finish(acc[1], c[1]),
                                      g.finish(acc[2], c[2]), g.finish(acc[3], c[3])));
    return;
  }
  for (int w = 0; w < 4 && j + w < g.n; ++w) {
#if GIVEN  // stray: here as well
    g.d(i, j + w) = g.finish(acc[w], g.c(i, j + w));
#elif WRONG_3  // stray: the vectors alone were mended
    g.d(i, j + w) = fmaf(g.alpha, acc[w], g.beta * g.c(i, j + w));
#else
    g.store(i, j + w, acc[w]);
#endif
  }
}

void run(const Gemm& g, const Context& context) {
  launch(kernel, {.grid = dim3((g.n + 127) / 128, (g.m + 7) / 8), .block = dim3(32, 8)}, context,
         g);
}
