//! problems: 32x32x8 33x65x17 1x1x1 5x7x0
#include "exercise.h"

// C = A B, row by row in memory: A is M x K, B is K x N. Blocks of 32 x 32 threads.
__global__ void naive(const float* A, const float* B, float* C, int M, int N, int K) {
  const int row = blockIdx.x * 32 + threadIdx.x;  // the lanes of a warp differ in threadIdx.x
  const int column = blockIdx.y * 32 + threadIdx.y;
  if (row >= M || column >= N) return;
  float acc = 0.f;
  for (int k = 0; k < K; ++k) acc = fmaf(A[row * K + k], B[k * N + column], acc);
  C[row * N + column] = acc;
}

void run(const Gemm& g, const Context& context) {
  const int M = static_cast<int>(g.m), N = static_cast<int>(g.n), K = static_cast<int>(g.k);
  launch(naive, {.grid = dim3((M + 31) / 32, (N + 31) / 32), .block = dim3(32, 32)}, context,
         g.a.ptr(0, 0), g.b.ptr(0, 0), g.d.ptr(0, 0), M, N, K);
}
