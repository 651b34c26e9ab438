//! title: Loads for a multiply-add
//! kind: predict
//! stage: block_tile_2d
//! ask shared: How many floats do threads read from shared memory for one multiply-add?
//! truth shared: count("64x64x32").shared_load.words_per_fma
//! wrong shared: 2; that is one result a thread; here what is read serves several
//! wrong shared: 0.75; 8 and 4 elements are read for one k, but for 8 x 4 multiply-adds
//! because shared: (8 + 4) / (8 x 4): a thread's tile is read by its edges and multiplied by its
//!   area.
//! ask global: And how many from global memory?
//! truth global: count("64x64x32").global_load.words_per_fma
//! wrong global: 0.375; that is the thread's tile; it is the block's that is loaded once
//! wrong global: 0.0234375; both operands are loaded, and the block's tile is not square
//! because global: (64 + 32) / (64 x 32) for each k: the same rule, for the block's tile.
//! ask square: Of tiles of a thread with 32 results, 32 x 1, 16 x 2, 8 x 4: the last is the best.
//!   What would 8 x 8 need, with 64 results?
//! truth square: (8 + 8) / (8 * 8)
//! wrong square: 0.375; more results, and not in proportion more edge
//! because square: 16 / 64. Twice the registers for two thirds of the reads; 16 x 16 would be
//!   0.125, in 256 registers that no thread has.
//! hint: For one k a thread reads TM elements of A and TN of B, and makes TM x TN multiply-adds
//!   of them.
//! hint: A block loads BM + BN floats for one k, for BM x BN multiply-adds.
// A tile is read by its edges and multiplied by its area. That is all of the ladder's first half:
// tiles of a block in shared memory so that global memory is read less, tiles of a thread in
// registers so that shared memory is.
//
// By hand, with a column of 8 results (TM = 8, TN = 1): for one k 8 + 1 reads and 8 multiply-adds,
// 1.125 reads each. A multiprocessor makes 128 multiply-adds a cycle and reads 32 floats of shared
// memory, so that it is fed in time with 0.25 reads each, without vectors and broadcasts.
//
// Below a block has BM x BN = 64 x 32 results, and a thread 8 x 4. Predict the loads for one
// multiply-add, for whole tiles. The check runs it and counts.

#include "exercise.h"

constexpr int BM = 64, BN = 32, BK = 8, TM = 8, TN = 4, kThreads = BM / TM * (BN / TN);

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
    for (int k = 0; k < BK; ++k) {
      float a[TM], b[TN];
      for (int r = 0; r < TM; ++r) a[r] = As[k][ty + r];
      for (int c = 0; c < TN; ++c) b[c] = Bs[k][tx + c];
      for (int r = 0; r < TM; ++r)
        for (int c = 0; c < TN; ++c) acc[r][c] = fmaf(a[r], b[c], acc[r][c]);
    }
    __syncthreads();
  }
  for (int r = 0; r < TM; ++r)
    for (int c = 0; c < TN; ++c) g.store(i0 + ty + r, j0 + tx + c, acc[r][c]);
}

void run(const Gemm& g, const Context& context) {
  launch(kernel, {.grid = dim3((g.n + BN - 1) / BN, (g.m + BM - 1) / BM), .block = dim3(kThreads)},
         context, g);
}
