//! title: The shape of a warp
//! kind: fill
//! stage: warp_tiled
//! budget: 64x64x64: shared_load.per_request <= 2; a warp's tile must be nearly square, and lanes
//!   l and l ^ 1 read the same vector of one operand
//! hint: A warp's 32 threads, 4 x 4 results each, can be 2 x 16, 4 x 8, 8 x 4 or 16 x 2 of them.
//!   Count the different floats of A and B that the warp reads for one k.
//! hint: 4 x 8 reads 16 + 32 floats. Eight warps of 16 x 32 results fill a tile of 64 x 64 as 4
//!   rows of 2.
//! hint: lane_row(lane) and lane_column(lane) of fragment.h deal lanes out over 4 x 8 so that
//!   lanes l and l ^ 1 are in one column: a vector read that is shared so needs half as many
//!   wavefronts.
// A warp's read of shared memory is one request, and what it costs is the different words that its
// lanes ask for: a word that several lanes want is sent to all of them at once. So a block's tile
// is shared out among warps first, then among their lanes.
//
//   threads counted row by row, t / 16 and t % 16:   a warp is 2 x 16 threads, 8 x 64 results
//     reads for one k: 8 floats of A, 64 of B
//   a warp of 4 x 8 threads, 16 x 32 results:        16 floats of A, 32 of B
//
// A vector read of 16 bytes a lane is served in quarters of a warp, 8 lanes and 128 bytes at a
// time. There is one more rule: if lanes l and l ^ 1 (or l and l ^ 2) read the same vector, halves
// of a warp are served at once. So it matters which lane is where: lane_row and lane_column of
// xgemm/device/fragment.h lay lanes 0 1 / 2 3 / ... over columns, two in each.
//
// Say where a thread's 4 x 4 results begin in the tile of 64 x 64: row ty and column tx.

#include "exercise.h"

constexpr int BM = 64, BN = 64, BK = 8, TM = 4, TN = 4, kThreads = 256;

__global__ void __launch_bounds__(kThreads) kernel(const Gemm g) {
  XGEMM_SHARED(As, float[BK][BM + 4]);
  XGEMM_SHARED(Bs, float[BK][BN]);
  const int t = threadIdx.x;
#if GIVEN  // budget: a warp is 2 x 16 threads
  const int ty = t / 16 * TM, tx = t % 16 * TN;
#elif WRONG_1  // budget: 4 x 8 threads, but neighbours share nothing of B
  const int warp = t / 32, lane = t % 32;
  const int ty = warp / 2 * 16 + lane / 8 * TM, tx = warp % 2 * 32 + lane % 8 * TN;
#elif WRONG_2  // race: two warps have one tile
  const int warp = t / 32, lane = t % 32;
  const int ty = warp / 4 * 16 + lane_row(lane) * TM, tx = warp % 2 * 32 + lane_column(lane) * TN;
#elif WRONG_3  // uninitialised: warps are put a tile too far down
  const int warp = t / 32, lane = t % 32;
  const int ty = warp * 16 + lane_row(lane) * TM, tx = warp % 2 * 32 + lane_column(lane) * TN;
#else
  const int warp = t / 32, lane = t % 32;
  const int ty = warp / 2 * 16 + lane_row(lane) * TM, tx = warp % 2 * 32 + lane_column(lane) * TN;
#endif
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
      load4(a, &As[0][0] + k * (BM + 4) + ty);
      load4(b, &Bs[k][tx]);
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
