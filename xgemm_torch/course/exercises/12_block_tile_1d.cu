//! title: A column of results for a thread
//! kind: fill
//! stage: block_tile_1d
//! budget: 64x64x64: shared_load.words_per_fma <= 1.13; eight elements of A and one of B make
//!   eight multiply-adds
//! budget: 64x64x64: global_load.words_per_fma <= 0.032; slices come from global memory once, for
//!   all threads
//! hint: For one k, load the element of B into a register first; then, for each of the TM rows,
//!   load an element of A and multiply it by that register.
//! hint: The thread's rows are ty * TM to ty * TM + TM - 1, its column is tx.
//! hint: k is the outer loop, the rows are the inner one: then B's element serves TM results.
// One result a thread: each multiply-add needs an element of A and one of B, two reads of shared
// memory. But the multiprocessor does 128 multiply-adds a cycle and reads 32 words of shared memory
// in that time. So 2 reads for one multiply-add leave it idle for most of the time.
//
// A thread that computes a column of 8 results reads 8 elements of A and one of B for one k: 9
// reads for 8 multiply-adds, 1.125 each in place of 2. What is read once is kept in a register.
//
//   acc[0]  +=  A(i + 0, k)  *  b
//   acc[1]  +=  A(i + 1, k)  *  b       b = B(k, j), read once
//   ...
//
// The order of the loops decides: with k inside, for each row its 8 k in turn, B's elements are
// read again for every row. Each result remains one chain over k, whichever loop is the outer one.
//
// The slice is in shared memory; multiply it.

#include "exercise.h"

constexpr int BM = 64, BN = 64, BK = 8, TM = 8, kThreads = BM / TM * BN;

__global__ void __launch_bounds__(kThreads) kernel(const Gemm g) {
  XGEMM_SHARED(As, float[BM][BK]);
  XGEMM_SHARED(Bs, float[BK][BN]);
  const int t = threadIdx.x, ty = t / BN, tx = t % BN;
  const int64_t i0 = int64_t{blockIdx.y} * BM, j0 = int64_t{blockIdx.x} * BN;
  float acc[TM] = {};
  for (int64_t k0 = 0; k0 < g.k; k0 += BK) {
    // 512 threads, 512 elements of each slice.
    const int64_t i = i0 + t / BK, ka = k0 + t % BK, kb = k0 + t / BN, j = j0 + t % BN;
    As[t / BK][t % BK] = i < g.m && ka < g.k ? g.a(i, ka) : kPadA;
    Bs[t / BN][t % BN] = kb < g.k && j < g.n ? g.b(kb, j) : kPadB;
    __syncthreads();
#if GIVEN  // bits: nothing is multiplied
    // acc[r] += As[...] * Bs[...] for all k of the slice and all r of the thread's rows
#elif WRONG_1  // budget: an element of B is read again for every row
    for (int r = 0; r < TM; ++r)
      for (int k = 0; k < BK; ++k) acc[r] = fmaf(As[ty * TM + r][k], Bs[k][tx], acc[r]);
#elif WRONG_2  // bits: rows 8 apart, and stored as neighbours
    for (int k = 0; k < BK; ++k) {
      const float b = Bs[k][tx];
      for (int r = 0; r < TM; ++r) acc[r] = fmaf(As[r * TM + ty][k], b, acc[r]);
    }
#elif WRONG_3  // bits: a product and a sum, rounded twice
    for (int k = 0; k < BK; ++k) {
      const float b = Bs[k][tx];
      for (int r = 0; r < TM; ++r) acc[r] += As[ty * TM + r][k] * b;
    }
#else
    for (int k = 0; k < BK; ++k) {
      const float b = Bs[k][tx];
      for (int r = 0; r < TM; ++r) acc[r] = fmaf(As[ty * TM + r][k], b, acc[r]);
    }
#endif
    __syncthreads();
  }
  for (int r = 0; r < TM; ++r) g.store(i0 + ty * TM + r, j0 + tx, acc[r]);
}

void run(const Gemm& g, const Context& context) {
  launch(kernel, {.grid = dim3((g.n + BN - 1) / BN, (g.m + BM - 1) / BM), .block = dim3(kThreads)},
         context, g);
}
