//! title: Padding that two accesses like
//! kind: fill
//! stage: smem_transposed
//! budget: 64x64x64: shared_store.conflicts <= 0; 8 lanes along k and 4 along i must be in 32
//!   banks
//! budget: 64x64x64: shared_load.conflicts <= 0; rows are read as vectors
//! hint: A store of lane l goes to row l % 8, column l / 8 of As: word (l % 8) * (T + kPad) + l /
//!   8. Write down the banks of lanes 0 to 7 for kPad = 0: how far apart are they?
//! hint: Columns take 4 neighbouring banks. So rows must begin 4 banks apart: (T + kPad) % 32 =
//!   4.
//! hint: A vector of 4 floats begins at a multiple of 16 bytes, so rows must be a multiple of 4
//!   long.
// A's slice is kept K-major, As[k][i], so that a thread reads 4 neighbours of a column of A as one
// vector. But A is row-major in memory: lanes that load neighbours along k store them below each
// other, in rows of T words. Here a warp loads 8 k of 4 rows, which are whole sectors:
//
//   lane l stores to As[l % 8][l / 8], which is word (l % 8) * (T + kPad) + l / 8
//   T = 64, kPad = 0:   banks 0 0 0 0 0 0 0 0  1 1 1 1 1 1 1 1  2 ...: 4 banks of 32, 8 wavefronts
//
// Padding makes rows longer than what they hold, and moves each one's first bank. Two accesses want
// something of it: the stores, that 32 lanes be in 32 banks, and the vector reads, that a row begin
// at a multiple of 16 bytes. kPad = 1, the cure of the textbook, is wrong for the second.
//
// Choose kPad, as little as does for both.

#include "exercise.h"

constexpr int T = 64, kDepth = 8;
#if GIVEN  // budget: rows begin in one bank
constexpr int kPad = 0;
#elif WRONG_1  // misaligned: rows are no multiple of 16 bytes
constexpr int kPad = 1;
#elif WRONG_2  // budget: rows begin 8 banks apart, and there are 8 of them
constexpr int kPad = 8;
#elif WRONG_3  // budget: once around the banks
constexpr int kPad = 32;
#else
constexpr int kPad = 4;
#endif

__global__ void __launch_bounds__(256) kernel(const Gemm g) {
  XGEMM_SHARED(As, float[kDepth][T + kPad]);
  XGEMM_SHARED(Bs, float[kDepth][T]);
  const int t = threadIdx.x, ty = t / 16 * 4, tx = t % 16 * 4;
  const int64_t i0 = int64_t{blockIdx.y} * T, j0 = int64_t{blockIdx.x} * T;
  float acc[4][4] = {};
  for (int64_t k0 = 0; k0 < g.k; k0 += kDepth) {
    for (int e = t; e < T * kDepth; e += 256) {
      const int64_t i = i0 + e / kDepth, k = k0 + e % kDepth;
      As[e % kDepth][e / kDepth] = i < g.m && k < g.k ? g.a(i, k) : kPadA;
    }
    for (int e = t; e < T * kDepth; e += 256) {
      const int64_t k = k0 + e / T, j = j0 + e % T;
      Bs[e / T][e % T] = k < g.k && j < g.n ? g.b(k, j) : kPadB;
    }
    __syncthreads();
    for (int k = 0; k < kDepth; ++k) {
      float a[4], b[4];
      load4(a, &As[k][ty]);
      load4(b, &Bs[k][tx]);
      for (int r = 0; r < 4; ++r)
        for (int c = 0; c < 4; ++c) acc[r][c] = fmaf(a[r], b[c], acc[r][c]);
    }
    __syncthreads();
  }
  for (int r = 0; r < 4; ++r)
    for (int c = 0; c < 4; ++c) g.store(i0 + ty + r, j0 + tx + c, acc[r][c]);
}

void run(const Gemm& g, const Context& context) {
  launch(kernel, {.grid = dim3((g.n + T - 1) / T, (g.m + T - 1) / T), .block = dim3(256)}, context,
         g);
}
