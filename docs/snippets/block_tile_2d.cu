//! problems: 64x64x8 128x64x40 64x128x0
#include "exercise.h"

// M and N are multiples of 64, K of 8. Blocks of 64 threads: 64 x 64 results, 8 x 8 a thread.
__global__ void block_tile_2d(const float* A, const float* B, float* C, int M, int N, int K) {
  XGEMM_SHARED(As, float[64][8]);
  XGEMM_SHARED(Bs, float[8][64]);
  const int t = threadIdx.x, x = t % 8, y = t / 8;  // every eighth row and column is a thread's
  A += blockIdx.y * 64 * K, B += blockIdx.x * 64, C += blockIdx.y * 64 * N + blockIdx.x * 64;
  float acc[8][8] = {}, a[8], b[8];
  for (int k0 = 0; k0 < K; k0 += 8) {
    for (int e = t; e < 512; e += 64) As[e / 8][e % 8] = A[e / 8 * K + k0 + e % 8];
    for (int e = t; e < 512; e += 64) Bs[e / 64][e % 64] = B[(k0 + e / 64) * N + e % 64];
    __syncthreads();
    for (int k = 0; k < 8; ++k) {
      for (int r = 0; r < 8; ++r) a[r] = As[y + 8 * r][k], b[r] = Bs[k][x + 8 * r];
      for (int r = 0; r < 8; ++r)  // 16 reads, 64 multiply-adds
        for (int c = 0; c < 8; ++c) acc[r][c] = fmaf(a[r], b[c], acc[r][c]);
    }
    __syncthreads();
  }
  for (int r = 0; r < 8; ++r)
    for (int c = 0; c < 8; ++c) C[(y + 8 * r) * N + x + 8 * c] = acc[r][c];
}

void run(const Gemm& g, const Context& context) {
  const int M = static_cast<int>(g.m), N = static_cast<int>(g.n), K = static_cast<int>(g.k);
  launch(block_tile_2d, {.grid = dim3(N / 64, M / 64), .block = dim3(64)}, context, g.a.ptr(0, 0),
         g.b.ptr(0, 0), g.d.ptr(0, 0), M, N, K);
}
