//! title: A reduction from the days when warps marched in step
//! kind: bug
//! cases: 3x5x64 1x1x1 2x3x0 4x2x130 3x3x77/TN+3 2x2x65!special
//! hint: The report names two lines of the loop, and two threads of one warp.
//! hint: "They are in one warp, so they run together" was true of GPUs before 2017. Since then
//!   lanes have program counters of their own, and what orders them is __syncwarp().
//! hint: __syncthreads() is for all threads of the block, __syncwarp() for all lanes of the warp:
//!   neither may stand where only some of them come to.
// Two warps of 64 threads add up a dot product: each thread every 64th term, then a tree in shared
// memory. In step s thread t < s adds S[t + s] to S[t], s = 32, 16, 8, 4, 2, 1.
//
//   after the loads   64 sums
//   s = 32            thread 0 .. 31 read S[32 .. 63]: written by the other warp, a barrier is
//   between s = 16            thread 0 .. 15 read S[16 .. 31]: written by lanes of the same warp
//
// The kernel is from a tutorial of 2010, which leaves barriers out as soon as one warp is alone:
// lanes of a warp executed one instruction at a time, together. From Volta on each lane may be
// elsewhere, and the compiler may keep S[t] in a register across steps. It mostly works.
//
// Mend it. `expected` says which sum is asked for: the tree's, step by step.

#include "exercise.h"

constexpr int kThreads = 64;

float expected(const Gemm& g, int64_t i, int64_t j) {
  float sum[kThreads] = {};
  for (int64_t k = 0; k < g.k; ++k)
    sum[k % kThreads] = fmaf(g.a(i, k), g.b(k, j), sum[k % kThreads]);
  for (int s = kThreads / 2; s > 0; s /= 2)
    for (int t = 0; t < s; ++t) sum[t] += sum[t + s];
  return g.finish(sum[0], 0.f);
}

__global__ void __launch_bounds__(kThreads) kernel(const Gemm g) {
  XGEMM_SHARED(S, float[kThreads]);
  const int64_t i = blockIdx.y, j = blockIdx.x;
  const int t = threadIdx.x;
  float acc = 0.f;
  for (int64_t k = t; k < g.k; k += kThreads) acc = fmaf(g.a(i, k), g.b(k, j), acc);
  S[t] = acc;
#if WRONG_3  // uninitialised: the first step reads what the other warp has yet to store
#else
  __syncthreads();
#endif
#if GIVEN  // race: lanes are not in step
  for (int s = kThreads / 2; s > 0; s /= 2)
    if (t < s) S[t] += S[t + s];
#elif WRONG_1  // deadlock: lanes above s never come to the barrier of their warp
  for (int s = kThreads / 2; s > 0; s /= 2)
    if (t < s) {
      S[t] += S[t + s];
      __syncwarp();
    }
#elif WRONG_2  // deadlock: half of the threads never come to the barrier
  for (int s = kThreads / 2; s > 0; s /= 2)
    if (t < s) {
      S[t] += S[t + s];
      __syncthreads();
    }
#else
  for (int s = kThreads / 2; s > 0; s /= 2) {
    if (t < s) S[t] += S[t + s];
    __syncthreads();
  }
#endif
  if (t == 0) g.store(i, j, S[0]);
}

void run(const Gemm& g, const Context& context) {
  launch(kernel, {.grid = dim3(g.n, g.m), .block = dim3(kThreads)}, context, g);
}
