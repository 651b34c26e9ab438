//! title: A swizzle in place of padding
//! kind: fill
//! budget: 64x64x32: shared_load.conflicts <= 0; 32 lanes that read one column must be in 32
//!   banks
//! budget: 64x64x32: shared_store.conflicts <= 0; and 32 lanes that store one row
//! hint: The function must send each row's 32 columns to 32 different places, or two elements
//!   share one; and each column's 32 rows to 32 different banks.
//! hint: Exclusive or does both: for a fixed row, column ^ row takes every value once; for a
//!   fixed column it does, too.
// A tile without padding, 32 x 32 floats: a row is 32 banks, a column is one bank 32 times. Stores
// go by rows and reads by columns, which is a 32-way conflict. Padding by one word cures it and
// costs 128 bytes, and TMA brings boxes that have none. What TMA does instead is to permute the
// columns within each row, differently from row to row: a swizzle.
//
// Element (row, column) is kept at S[row][swizzled(row, column)], and read there again, by the same
// function. It is free of conflicts if
//   for each row the columns go to 32 different banks (or two elements would share a place), and
//   for each column the rows go to 32 different banks.
//
// By hand, with 4 columns and exclusive or:   row 0: 0 1 2 3    row 1: 1 0 3 2    row 2: 2 3 0 1
// row 3: 3 2 1 0. Each row has every place once, and so has each column.
//
// wgmma reads operands that were swizzled so, by 16 bytes: chunk c of row r is at c ^ (r % 8).

#include "exercise.h"

constexpr int T = 32;

__device__ int swizzled(int row, int column) {
#if GIVEN  // budget: as it is
  static_cast<void>(row);
  return column;
#elif WRONG_1  // budget: two rows each have the same order
  return column ^ (row / 2);
#elif WRONG_2  // race: two elements of a row share a place
  return column & ~row;
#elif WRONG_3  // stray: it leaves the row, which is padding, not a permutation
  return column + row;
#else
  return column ^ row;
#endif
}

__global__ void __launch_bounds__(T* T) kernel(const Gemm g) {
  XGEMM_SHARED(As, float[T][T]);
  const int lane = threadIdx.x, warp = threadIdx.y;
  const int64_t i0 = int64_t{blockIdx.y} * T, j = int64_t{blockIdx.x} * T + warp;
  float acc = 0.f;
  for (int64_t k0 = 0; k0 < g.k; k0 += T) {
    // A warp loads a row of A, lanes along k ...
    As[warp][swizzled(warp, lane)] =
        i0 + warp < g.m && k0 + lane < g.k ? g.a(i0 + warp, k0 + lane) : kPadA;
    __syncthreads();
    // ... and multiplies a column of it, lanes along i.
    for (int k = 0; k < T; ++k)
      acc =
          fmaf(As[lane][swizzled(lane, k)], k0 + k < g.k && j < g.n ? g.b(k0 + k, j) : kPadB, acc);
    __syncthreads();
  }
  g.store(i0 + lane, j, acc);
}

void run(const Gemm& g, const Context& context) {
  launch(kernel, {.grid = dim3((g.n + T - 1) / T, (g.m + T - 1) / T), .block = dim3(T, T)}, context,
         g);
}
