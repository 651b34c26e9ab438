//! problems: 32x32x32 64x96x64 32x64x0
#include "exercise.h"

// M, N and K are multiples of 32. Blocks of 32 x 32 threads.
__global__ void smem_tiled(const float* A, const float* B, float* C, int M, int N, int K) {
  XGEMM_SHARED(As, float[32][32]);  // __shared__ float As[32][32];
  XGEMM_SHARED(Bs, float[32][32]);
  const int x = threadIdx.x, y = threadIdx.y;
  const int row = blockIdx.y * 32 + y, column = blockIdx.x * 32 + x;
  float acc = 0.f;
  for (int k0 = 0; k0 < K; k0 += 32) {
    As[y][x] = A[row * K + k0 + x];  // one element of each slice a thread
    Bs[y][x] = B[(k0 + y) * N + column];
    __syncthreads();  // all have stored before anybody reads
    for (int k = 0; k < 32; ++k) acc = fmaf(As[y][k], Bs[k][x], acc);
    __syncthreads();  // all have read before anybody stores the next slice
  }
  C[row * N + column] = acc;
}

void run(const Gemm& g, const Context& context) {
  const int M = static_cast<int>(g.m), N = static_cast<int>(g.n), K = static_cast<int>(g.k);
  launch(smem_tiled, {.grid = dim3(N / 32, M / 32), .block = dim3(32, 32)}, context, g.a.ptr(0, 0),
         g.b.ptr(0, 0), g.d.ptr(0, 0), M, N, K);
}
