//! title: Beyond two thousand million
//! kind: bug
//! cases: 33x18x9 17x19x23/TT 5x7x0 9x5x3+536870912 9x3x9/TN+536870912
//! hint: In the problem that fails, rows are 536870915 floats apart. Compute the offset of row 4,
//!   and compare it with 2^31 - 1.
//! hint: int * int is an int, whatever it is then assigned to: widen a factor, not the product.
//! hint: unsigned moves the limit to 2^32, which row 8 reaches. int64_t for rows and strides, in
//!   A, B and D.
// An int holds numbers up to 2147483647. An operand of 50257 x 65536 (the logits of a language
// model) has 3293642752 elements: the offset of its last rows is no int. Nobody's tests have such
// an operand, since it takes 13 GB; users have.
//
//   row 32768 of 65536 columns: 32768 * 65536 = 2^31, as an int -2^31: 8 GiB in front of the
//   operand
//
// It is not the size alone. A view's rows may be far apart: nine rows of a matrix of 2^29 columns
// are enough, and only 27 of its elements. So it can be tested without memory: the check lays out
// an operand whose pages are not there until they are touched.
//
// The kernel computes its addresses by itself, in ints, because "they are faster": one more integer
// operation here and there. On a GPU addresses are 64 bits anyway.
//
// Mend it. Every stride and size must work, in both directions.

#include "exercise.h"

#if GIVEN  // stray: an int overflows
using Offset = int;
#elif WRONG_2  // stray: twice as far, and over as well
using Offset = unsigned;
#else
using Offset = int64_t;
#endif

__global__ void kernel(const Gemm g) {
  const int row = blockIdx.y * 8 + threadIdx.y, column = blockIdx.x * 32 + threadIdx.x;
  if (row >= g.m || column >= g.n) return;
#if WRONG_1  // stray: the product overflows before it is widened
  const int64_t a0 = row * static_cast<int>(g.a.rs), b0 = column * static_cast<int>(g.b.cs);
#else
  const Offset a0 = row * static_cast<Offset>(g.a.rs), b0 = column * static_cast<Offset>(g.b.cs);
#endif
  const Offset a_step = static_cast<Offset>(g.a.cs), b_step = static_cast<Offset>(g.b.rs);
  float acc = 0.f;
  for (Offset k = 0; k < static_cast<Offset>(g.k); ++k)
    acc = fmaf(g.a.data[a0 + k * a_step], g.b.data[b0 + k * b_step], acc);
#if WRONG_3  // stray: D was forgotten
  const int d0 = row * static_cast<int>(g.d.rs);
#else
  const Offset d0 = row * static_cast<Offset>(g.d.rs);
#endif
  g.d.data[d0 + column] = g.finish(acc, 0.f);
}

void run(const Gemm& g, const Context& context) {
  launch(kernel, {.grid = dim3((g.n + 31) / 32, (g.m + 7) / 8), .block = dim3(32, 8)}, context, g);
}
