//! title: Four floats in one load
//! kind: fill
//! stage: vec4_64x64
//! budget: 64x64x64: global_load.requests <= 64; a slice of either operand is one vector a thread
//! hint: x.wide() says whether the view allows vectors: neighbours along a row (a stride of 1), a
//!   base and rows that begin at multiples of 16 bytes. `column` is a multiple of 4 here.
//! hint: Three cases: all four inside and the view wide: load4(v, x.ptr(row, column)). Else,
//!   element by element, x(row, column + w) where that is inside, and pad where it is not.
// One load instruction can move 4, 8 or 16 bytes a lane. Sectors are the same; instructions are a
// quarter, and a warp has 512 bytes on their way in place of 128. That matters where a kernel waits
// for memory, or has no issue slots left.
//
// A vector has conditions. Its address must be a multiple of 16 bytes: the operand begins at one,
// and rows are a multiple of 4 floats long, or only every fourth row begins at one. With K = 17 row
// 1 of A begins 68 bytes behind row 0. Also all four must exist: the last vector of a row of 13
// columns has one element inside and three outside.
//
// By hand: 64 x 16 floats of A by 256 threads are 4 loads each, or one vector each. 8 warps, two
// operands and 4 slices of a product of 64: 64 requests in place of 256.
//
// Write load_row4: v = x(row, column .. column + 3), `pad` where an element is outside; as one
// vector wherever that is allowed, right everywhere.

#include "exercise.h"

constexpr int BM = 64, BN = 64, BK = 16, TM = 4, TN = 4, kThreads = 256;

// x is rows x columns; column % 4 == 0.
__device__ void load_row4(float (&v)[4], const View<const float>& x, int64_t row, int64_t column,
                          int64_t rows, int64_t columns, float pad) {
#if GIVEN  // bits: all is padding
  for (int w = 0; w < 4; ++w) v[w] = pad;
#elif WRONG_1  // misaligned: nobody asks where rows begin
  if (row < rows && column + 4 <= columns && x.cs == 1) return load4(v, x.ptr(row, column));
  for (int w = 0; w < 4; ++w) v[w] = row < rows && column + w < columns ? x(row, column + w) : pad;
#elif WRONG_2  // stray: the first is inside, the fourth need not be
  if (row < rows && column < columns && x.wide()) return load4(v, x.ptr(row, column));
  for (int w = 0; w < 4; ++w) v[w] = row < rows && column + w < columns ? x(row, column + w) : pad;
#elif WRONG_3  // budget: right, one by one
  for (int w = 0; w < 4; ++w) v[w] = row < rows && column + w < columns ? x(row, column + w) : pad;
#else
  if (row < rows && column + 4 <= columns && x.wide()) return load4(v, x.ptr(row, column));
  for (int w = 0; w < 4; ++w) v[w] = row < rows && column + w < columns ? x(row, column + w) : pad;
#endif
}

__global__ void __launch_bounds__(kThreads) kernel(const Gemm g) {
  XGEMM_SHARED(As, float[BM][BK]);
  XGEMM_SHARED(Bs, float[BK][BN]);
  const int t = threadIdx.x, ty = t / 16 * TM, tx = t % 16 * TN;
  const int64_t i0 = int64_t{blockIdx.y} * BM, j0 = int64_t{blockIdx.x} * BN;
  float acc[TM][TN] = {}, v[4];
  for (int64_t k0 = 0; k0 < g.k; k0 += BK) {
    load_row4(v, g.a, i0 + t / 4, k0 + t % 4 * 4, g.m, g.k, kPadA);
    store4(&As[t / 4][t % 4 * 4], make_float4(v[0], v[1], v[2], v[3]));
    load_row4(v, g.b, k0 + t / 16, j0 + t % 16 * 4, g.k, g.n, kPadB);
    store4(&Bs[t / 16][t % 16 * 4], make_float4(v[0], v[1], v[2], v[3]));
    __syncthreads();
    for (int k = 0; k < BK; ++k) {
      float b[TN];
      load4(b, &Bs[k][tx]);
      for (int r = 0; r < TM; ++r) {
        const float a = As[ty + r][k];
        for (int c = 0; c < TN; ++c) acc[r][c] = fmaf(a, b[c], acc[r][c]);
      }
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
