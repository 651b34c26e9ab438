//! title: A tile in shared memory
//! kind: fill
//! stage: smem_tiled
//! budget: 64x64x64: global_load.words_per_fma <= 0.13; each float of a tile is to be loaded once
//!   by the block, and used 16 times from shared memory
//! budget: 64x64x64: shared_load.conflicts <= 0; a row of As is a broadcast, a row of Bs is 16
//!   neighbours
//! hint: Two loads a thread and slice: As[ty][tx] = A(i, k0 + tx), Bs[ty][tx] = B(k0 + ty, j).
//! hint: Whoever reads a tile reads what others have stored: a barrier stands between the stores
//!   and the loop over k. A second one stands between that loop and the next slice's stores.
//! hint: No thread may return early, or it is missing at the barrier. An element outside A is
//!   kPadA, one outside B is kPadB: their product adds nothing to a sum.
// One thread for one element of D loads 2 floats for each multiply-add, and every float of A is
// loaded by as many threads as D has columns. A block of T x T threads can share them:
//
//   for each slice of T along k:   the block stores T x T of A and T x T of B in shared memory
//                                  each thread multiplies a row of one by a column of the other
//
// By hand, with T = 16: a thread loads 2 floats a slice and does 16 multiply-adds with them, so
// 2 / 16 = 0.125 floats come from global memory for one multiply-add, in place of 2. The price is a
// store and 2 reads in shared memory, which is some 10 times nearer, and barriers: who reads a
// tile reads what 255 other threads have stored.
//
// Sizes are arbitrary. In the last tile some threads have no element of D, and in the last slice
// some have none of A or B; they still take part in the loads and barriers. Outside A and B store
// kPadA and kPadB, whose product adds nothing to any sum.
//
// Fill in the body of the loop over slices. Sums are chains of fmaf in the order of k: your bits
// are compared with those of such a chain.

#include "exercise.h"

constexpr int T = 16;

__global__ void __launch_bounds__(T* T) kernel(const Gemm g) {
  XGEMM_SHARED(As, float[T][T]);
  XGEMM_SHARED(Bs, float[T][T]);
  const int tx = threadIdx.x, ty = threadIdx.y;
  const int64_t i = int64_t{blockIdx.y} * T + ty, j = int64_t{blockIdx.x} * T + tx;
  float acc = 0.f;
  for (int64_t k0 = 0; k0 < g.k; k0 += T) {
#if GIVEN  // bits: nothing is multiplied
    // Store this slice of A and B, then multiply it.
#else
#if WRONG_2  // uninitialised: what edges leave out is not filled
    if (i < g.m && k0 + tx < g.k) As[ty][tx] = g.a(i, k0 + tx);
#else
    As[ty][tx] = i < g.m && k0 + tx < g.k ? g.a(i, k0 + tx) : kPadA;
#endif
#if WRONG_3  // stray: rows of B past the last are read
    Bs[ty][tx] = j < g.n ? g.b(k0 + ty, j) : kPadB;
#else
    Bs[ty][tx] = k0 + ty < g.k && j < g.n ? g.b(k0 + ty, j) : kPadB;
#endif
    __syncthreads();
    for (int k = 0; k < T; ++k) acc = fmaf(As[ty][k], Bs[k][tx], acc);
#if WRONG_1  // race: the next slice is stored while others still read this one
#else
    __syncthreads();
#endif
#endif
  }
  g.store(i, j, acc);
}

void run(const Gemm& g, const Context& context) {
  launch(kernel, {.grid = dim3((g.n + T - 1) / T, (g.m + T - 1) / T), .block = dim3(T, T)}, context,
         g);
}
