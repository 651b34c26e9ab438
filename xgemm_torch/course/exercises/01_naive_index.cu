//! title: One thread, one element
//! kind: fill
//! stage: naive
//! hint: Threads of a block are numbered by threadIdx, blocks by blockIdx. The block's first
//!   element is its index times the threads that it has in that direction.
//! hint: blockDim.x = 32 threads walk along a row of D here, blockDim.y = 8 from row to row: j
//!   comes from x, i from y. Multiply in 64 bits: int64_t{blockIdx.x} * blockDim.x.
//! hint: The grid is rounded up to whole blocks, so some threads have no element: they return
//!   before they load anything.
// Every thread runs the same function; what differs is threadIdx, its place in the block, and
// blockIdx, the block's place in the grid. The first thing that a kernel does is to turn these into
// the element of D that the thread is to compute.
//
//   blocks of 32 x 8 threads, D is 20 x 50:
//   the grid has ceil(50 / 32) = 2 blocks along x and ceil(20 / 8) = 3 along y, 1536 threads in all
//   D has 1000 elements: 536 threads have none
//
// A thread without an element must load nothing: A(i, k) with i = 22 of 20 rows is somebody else's
// memory. On a GPU it may be a fault, or a number; here it is reported with the line.
//
// What is left of the kernel is the definition of a product: a chain of fused multiply-adds in the
// order of k. fmaf(a, b, c) rounds a * b + c once, where a * b + c would round twice.

#include "exercise.h"

__global__ void kernel(const Gemm g) {
#if GIVEN  // race: every thread stores the same element
  const int64_t i = 0, j = 0;
#elif WRONG_1  // race: each block begins at the first element again
  const int64_t i = threadIdx.y, j = threadIdx.x;
  if (i >= g.m || j >= g.n) return;
#elif WRONG_2  // stray: threads without an element load all the same
  const int64_t i = int64_t{blockIdx.y} * blockDim.y + threadIdx.y;
  const int64_t j = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
#elif WRONG_3  // bits: blocks of 8 rows are put 32 rows apart
  const int64_t i = int64_t{blockIdx.y} * blockDim.x + threadIdx.y;
  const int64_t j = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= g.m || j >= g.n) return;
#else
  const int64_t i = int64_t{blockIdx.y} * blockDim.y + threadIdx.y;
  const int64_t j = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= g.m || j >= g.n) return;
#endif
  float acc = 0.f;
  for (int64_t k = 0; k < g.k; ++k) acc = fmaf(g.a(i, k), g.b(k, j), acc);
  g.store(i, j, acc);
}

void run(const Gemm& g, const Context& context) {
  launch(kernel, {.grid = dim3((g.n + 31) / 32, (g.m + 7) / 8), .block = dim3(32, 8)}, context, g);
}
