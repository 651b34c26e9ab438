//! title: An outer product in registers
//! kind: fill
//! stage: block_tile_2d
//! budget: 64x64x64: shared_load.words_per_fma <= 0.51; 4 + 4 reads make 16 multiply-adds
//! budget: 64x64x64: global_load.words_per_fma <= 0.032; slices come from global memory once, for
//!   all threads
//! hint: Two small arrays, a[TM] and b[TN], are registers as long as every index is known when
//!   the loops are unrolled. Fill both for one k, then multiply each with each.
//! hint: for k: a[r] = As[k][ty + r]; b[c] = Bs[k][tx + c]; acc[r][c] = fmaf(a[r], b[c],
//!   acc[r][c]).
// A thread with TM x TN results reads TM elements of A and TN of B for one k, into registers, and
// multiplies each with each: an outer product.
//
//             b[0]    b[1]    b[2]    b[3]
//   a[0]    acc 00  acc 01  acc 02  acc 03
//   a[1]    acc 10   ...
//   ...
//
// With 4 x 4: 8 reads and 16 multiply-adds, 0.5 reads each; 8 x 8, which the ladder has, needs 0.25
// and 64 registers for sums alone. More is not better without end: a thread has 255 registers, and
// what they are short of goes to memory.
//
// A's slice lies K-major here, As[k][i]: a thread's elements of one k are neighbours, as B's are.
// Fill in the loop over the slice.

#include "exercise.h"

constexpr int BM = 64, BN = 64, BK = 8, TM = 4, TN = 4, kThreads = BM / TM * (BN / TN);

__global__ void __launch_bounds__(kThreads) kernel(const Gemm g) {
  XGEMM_SHARED(As, float[BK][BM]);
  XGEMM_SHARED(Bs, float[BK][BN]);
  const int t = threadIdx.x, ty = t / (BN / TN) * TM, tx = t % (BN / TN) * TN;
  const int64_t i0 = int64_t{blockIdx.y} * BM, j0 = int64_t{blockIdx.x} * BN;
  float acc[TM][TN] = {};
  for (int64_t k0 = 0; k0 < g.k; k0 += BK) {
    for (int e = t; e < BM * BK; e += kThreads) {
      const int64_t i = i0 + e / BK, k = k0 + e % BK;
      As[e % BK][e / BK] = i < g.m && k < g.k ? g.a(i, k) : kPadA;
    }
    for (int e = t; e < BN * BK; e += kThreads) {
      const int64_t k = k0 + e / BN, j = j0 + e % BN;
      Bs[e / BN][e % BN] = k < g.k && j < g.n ? g.b(k, j) : kPadB;
    }
    __syncthreads();
#if GIVEN  // bits: nothing is multiplied
    // For each k of the slice: TM + TN reads, TM x TN multiply-adds.
#elif WRONG_1  // budget: a dot product at a time reads all again
    for (int r = 0; r < TM; ++r)
      for (int c = 0; c < TN; ++c)
        for (int k = 0; k < BK; ++k) acc[r][c] = fmaf(As[k][ty + r], Bs[k][tx + c], acc[r][c]);
#elif WRONG_2  // bits: the slice backwards
    for (int k = BK - 1; k >= 0; --k) {
      float a[TM], b[TN];
      for (int r = 0; r < TM; ++r) a[r] = As[k][ty + r];
      for (int c = 0; c < TN; ++c) b[c] = Bs[k][tx + c];
      for (int r = 0; r < TM; ++r)
        for (int c = 0; c < TN; ++c) acc[r][c] = fmaf(a[r], b[c], acc[r][c]);
    }
#elif WRONG_3  // stray: a thread's tile is counted twice in the index
    for (int k = 0; k < BK; ++k) {
      float a[TM], b[TN];
      for (int r = 0; r < TM; ++r) a[r] = (&As[0][0])[k * BM + ty * TM + r];
      for (int c = 0; c < TN; ++c) b[c] = Bs[k][tx + c];
      for (int r = 0; r < TM; ++r)
        for (int c = 0; c < TN; ++c) acc[r][c] = fmaf(a[r], b[c], acc[r][c]);
    }
#else
    for (int k = 0; k < BK; ++k) {
      float a[TM], b[TN];
      for (int r = 0; r < TM; ++r) a[r] = As[k][ty + r];
      for (int c = 0; c < TN; ++c) b[c] = Bs[k][tx + c];
      for (int r = 0; r < TM; ++r)
        for (int c = 0; c < TN; ++c) acc[r][c] = fmaf(a[r], b[c], acc[r][c]);
    }
#endif
    __syncthreads();
  }
  for (int r = 0; r < TM; ++r)
    for (int c = 0; c < TN; ++c) g.store(i0 + ty + r, j0 + tx + c, acc[r][c]);
}

void run(const Gemm& g, const Context& context) {
  launch(kernel, {.grid = dim3((g.n + BN - 1) / BN, (g.m + BM - 1) / BM), .block = dim3(kThreads)},
         context, g);
}
