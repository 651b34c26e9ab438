//! problems: 64x64x8 128x64x40 64x128x0
#include "exercise.h"

// M and N are multiples of 64, K of 8. Blocks of 512 threads: 64 x 64 results, 8 a thread.
__global__ void block_tile_1d(const float* A, const float* B, float* C, int M, int N, int K) {
  XGEMM_SHARED(As, float[64][8]);
  XGEMM_SHARED(Bs, float[8][64]);
  const int t = threadIdx.x, x = t % 64, y = t / 64 * 8;
  A += blockIdx.y * 64 * K, B += blockIdx.x * 64, C += blockIdx.y * 64 * N + blockIdx.x * 64;
  float acc[8] = {};
  for (int k0 = 0; k0 < K; k0 += 8) {
    As[t / 8][t % 8] = A[t / 8 * K + k0 + t % 8];
    Bs[t / 64][x] = B[(k0 + t / 64) * N + x];
    __syncthreads();
    for (int k = 0; k < 8; ++k) {
      const float b = Bs[k][x];  // read once, multiplied 8 times
      for (int r = 0; r < 8; ++r) acc[r] = fmaf(As[y + r][k], b, acc[r]);
    }
    __syncthreads();
  }
  for (int r = 0; r < 8; ++r) C[(y + r) * N + x] = acc[r];
}

void run(const Gemm& g, const Context& context) {
  const int M = static_cast<int>(g.m), N = static_cast<int>(g.n), K = static_cast<int>(g.k);
  launch(block_tile_1d, {.grid = dim3(N / 64, M / 64), .block = dim3(512)}, context, g.a.ptr(0, 0),
         g.b.ptr(0, 0), g.d.ptr(0, 0), M, N, K);
}
