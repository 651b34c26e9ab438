//! title: Which barrier can go?
//! kind: predict
//! stage: smem_tiled
//! ask needless: Which of the four barriers, each alone, can be left out? Write their names.
//! truth needless: needless()
//! wrong needless: first; there is another one without which all is well
//! wrong needless: last; there is another one without which all is well
//! wrong needless: first after last; without (after) a fast thread stores its part of the next
//!   slice while a slow one still reads this one
//! wrong needless: none; look for two stores, or for an end, between which nobody reads what
//!   another one has written
//! because needless: Nobody reads between the two stores, and no shared memory is touched behind
//!   the loop.
//! hint: For each barrier: which accesses to the same array does it separate, one of them a
//!   write?
//! hint: A barrier in a loop separates the lines above it also from those that follow in the next
//!   turn. One whose two sides touch no array in common, or only read, orders nothing.
// A barrier costs: all warps of a block come to a stop until the slowest is there. In the loop
// below there are three, and one follows it.
//
// A barrier is needed where one thread writes to shared memory what another one reads, or the other
// way round, and no other barrier stands between the two. Between (before) and the loop over k
// there is such a pair: As[ty][k] was stored by the thread with tx = k.
//
// Say which of the barriers can be left out, each by itself. The check runs the kernel without each
// of them in turn, threads in order, in reverse and shuffled, and sees whether the emulator reports
// a race or the result changes.

#include "exercise.h"

constexpr int T = 16;

__global__ void __launch_bounds__(T* T) kernel(const Gemm g) {
  XGEMM_SHARED(As, float[T][T]);
  XGEMM_SHARED(Bs, float[T][T]);
  const int tx = threadIdx.x, ty = threadIdx.y;
  const int64_t i = int64_t{blockIdx.y} * T + ty, j = int64_t{blockIdx.x} * T + tx;
  float acc = 0.f;
  for (int64_t k0 = 0; k0 < g.k; k0 += T) {
    As[ty][tx] = i < g.m && k0 + tx < g.k ? g.a(i, k0 + tx) : kPadA;
    __syncthreads();  // (first)
    Bs[ty][tx] = k0 + ty < g.k && j < g.n ? g.b(k0 + ty, j) : kPadB;
    __syncthreads();  // (before)
    for (int k = 0; k < T; ++k) acc = fmaf(As[ty][k], Bs[k][tx], acc);
    __syncthreads();  // (after)
  }
  __syncthreads();  // (last)
  g.store(i, j, acc);
}

void run(const Gemm& g, const Context& context) {
  launch(kernel, {.grid = dim3((g.n + T - 1) / T, (g.m + T - 1) / T), .block = dim3(T, T)}, context,
         g);
}
