//! title: Adding up in a warp
//! kind: fill
//! stage: gemv
//! cases: 3x5x64 1x1x1 2x3x0 4x2x130 3x3x77/TN+3 5x2x33*2,0.5 2x2x65!special
//! budget: 8x4x64: shared_store.requests <= 0; lanes hand registers to each other, without memory
//! hint: __shfl_xor_sync(mask, x, s) gives the x of the lane whose number differs from one's own
//!   in bit s. All 32 lanes call it: the mask is 0xffffffff.
//! hint: Five steps, s = 16, 8, 4, 2, 1; in each acc = acc + what the other lane has. Afterwards
//!   all lanes have the sum.
// A product with one row or column is a reading of the matrix and little else, so each element of D
// gets a whole warp: lane l adds up the terms l, l + 32, l + 64, ... Neighbouring lanes load
// neighbouring elements of A's row: 4 sectors a request.
//
// Then 32 partial sums are to become one. Through shared memory that is a store, a barrier and
// reads for each step. Lanes can read each other's registers by one instruction in place of these:
//
//   step 16:   lane 0 adds lane 16's, lane 1 lane 17's, ..., lane 16 lane 0's
//   step 8, 4, 2, 1
//
// 31 additions become 5 steps of about 25 cycles. With "xor" every lane ends with the whole sum, in
// the same bits: x + y is y + x. A sum's bits depend on its order, and this order depends on
// nothing but K: `expected` has it.

#include "exercise.h"

constexpr unsigned kAll = 0xffffffffu;

float expected(const Gemm& g, int64_t i, int64_t j) {
  float sum[32] = {}, next[32];
  for (int64_t k = 0; k < g.k; ++k) sum[k % 32] = fmaf(g.a(i, k), g.b(k, j), sum[k % 32]);
  for (int s = 16; s > 0; s /= 2) {
    for (int l = 0; l < 32; ++l) next[l] = sum[l] + sum[l ^ s];
    for (int l = 0; l < 32; ++l) sum[l] = next[l];
  }
  return g.finish(sum[0], g.beta == 0.f ? 0.f : g.c(i, j));
}

__global__ void __launch_bounds__(128) kernel(const Gemm g) {
  const int lane = threadIdx.x % 32;
  const int64_t i = int64_t{blockIdx.x} * 4 + threadIdx.x / 32, j = blockIdx.y;
  if (i >= g.m) return;  // a whole warp
  float acc = 0.f;
  for (int64_t k = lane; k < g.k; k += 32) acc = fmaf(g.a(i, k), g.b(k, j), acc);
#if GIVEN  // bits: every lane keeps its part to itself
  // Add up the 32 lanes' acc.
  static_cast<void>(kAll);
#elif WRONG_1  // deadlock: lanes that have nothing to add do not come
  for (int s = 16; s > 0; s /= 2)
    if (lane < s) acc += __shfl_down_sync(kAll, acc, s);
#elif WRONG_2  // bits: the upper half of the warp is left out
  for (int s = 8; s > 0; s /= 2) acc += __shfl_xor_sync(kAll, acc, s);
#elif WRONG_3  // warp: the mask leaves out lanes that call
  for (int s = 16; s > 0; s /= 2) acc += __shfl_xor_sync(0xffffu, acc, s);
#else
  for (int s = 16; s > 0; s /= 2) acc += __shfl_xor_sync(kAll, acc, s);
#endif
  if (lane == 0) g.store(i, j, acc);
}

void run(const Gemm& g, const Context& context) {
  launch(kernel, {.grid = dim3((g.m + 3) / 4, g.n), .block = dim3(128)}, context, g);
}
