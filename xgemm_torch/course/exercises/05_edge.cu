//! title: The edge that zeros were to hide
//! kind: bug
//! stage: smem_tiled
//! hint: Run the check: it names the line, and the address relative to an operand. In which row
//!   of A is that?
//! hint: Past the end of a row of A is the next row: nobody notices. What is past the end of the
//!   last one? And what is 0 times infinity?
//! hint: Guard the load of A along k as that of B is guarded, and store kPadA where it is
//!   outside.
// A tiled kernel that somebody has made faster: outside B its tile holds zeros, so whatever A holds
// there is multiplied by zero, and the check of k at the load of A was left out.
//
// For K = 17 and slices of 16 the second slice of A has one column inside and 15 outside. A(i, 20)
// of a row-major A with 17 columns is A(i + 1, 3): a number of another row, times zero. Tests with
// random numbers pass, for most rows.
//
// Two things go wrong, and each waits for a user to meet it. In the last rows the loads are past
// the end of A: where that page is not mapped the kernel faults, and only for sizes whose end is
// the end of an allocation. And if the number that is read is infinite or NaN, zero times it is
// NaN, and a row that has no NaN gets one from its neighbour.
//
// Mend it. Every size must work, and no load may be outside A or B.

#include "exercise.h"

constexpr int T = 16;

__global__ void __launch_bounds__(T* T) kernel(const Gemm g) {
  XGEMM_SHARED(As, float[T][T]);
  XGEMM_SHARED(Bs, float[T][T]);
  const int tx = threadIdx.x, ty = threadIdx.y;
  const int64_t i = int64_t{blockIdx.y} * T + ty, j = int64_t{blockIdx.x} * T + tx;
  float acc = 0.f;
#if WRONG_3  // deadlock: threads outside D are missing at the barriers
  if (i >= g.m || j >= g.n) return;
#endif
  for (int64_t k0 = 0; k0 < g.k; k0 += T) {
#if GIVEN  // stray: A is read past its last column
    As[ty][tx] = i < g.m ? g.a(i, k0 + tx) : kPadA;
#elif WRONG_1  // stray: one column too many
    As[ty][tx] = i < g.m && k0 + tx <= g.k ? g.a(i, k0 + tx) : kPadA;
#elif WRONG_2  // uninitialised: what is outside is not filled
    if (i < g.m && k0 + tx < g.k) As[ty][tx] = g.a(i, k0 + tx);
#else
    As[ty][tx] = i < g.m && k0 + tx < g.k ? g.a(i, k0 + tx) : kPadA;
#endif
    Bs[ty][tx] = k0 + ty < g.k && j < g.n ? g.b(k0 + ty, j) : kPadB;
    __syncthreads();
    for (int k = 0; k < T; ++k) acc = fmaf(As[ty][k], Bs[k][tx], acc);
    __syncthreads();
  }
  g.store(i, j, acc);
}

void run(const Gemm& g, const Context& context) {
  launch(kernel, {.grid = dim3((g.n + T - 1) / T, (g.m + T - 1) / T), .block = dim3(T, T)}, context,
         g);
}
