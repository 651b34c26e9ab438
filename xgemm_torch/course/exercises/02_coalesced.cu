//! title: Neighbours in a warp, neighbours in memory
//! kind: fill
//! stage: coalesced
//! budget: 64x64x64: global_load.per_request <= 2.6; a load of A is one sector for the whole
//!   warp, one of B four
//! budget: 64x64x64: global_store.per_request <= 4; a warp's 32 results are 128 bytes in a row of
//!   D
//! hint: A warp is 32 threads with neighbouring numbers: tid / 32 is the same for all of them,
//!   tid % 32 is what differs. Which of the two should be the row?
//! hint: Rows of B and D lie in memory one element beside the next. Let tid % 32 be the column.
// Memory moves in sectors of 32 bytes. A load is one instruction of a warp: 32 threads, tid / 32
// the same, ask for 4 bytes each, and the hardware fetches every sector that one of them touches.
//
//   32 lanes, neighbours in a row:       32 x 4 = 128 bytes    4 sectors
//   32 lanes, one below the other:       32 rows, 4 bytes each    32 sectors, 7/8 of them unused
//   32 lanes, all the same element:      1 sector
//
// The kernel as given has lanes one below the other: for one k the load of A takes 32 sectors, that
// of B one, since all lanes have the same column. That is 16.5 a request. Turned round, A's is one
// sector and B's are 4: 2.5 a request, and the store of D 4 in place of 32. Of all steps of the
// ladder it is the one that gains most, by two lines.
//
// Put the lanes of a warp where their loads and stores are neighbours. Which thread computes which
// element is all that changes: each element stays the same chain.

#include "exercise.h"

constexpr int T = 32;

__global__ void __launch_bounds__(T* T) kernel(const Gemm g) {
  const int tid = threadIdx.x;
#if GIVEN  // budget: lanes walk down a column
  const int row = tid % T, column = tid / T;
#elif WRONG_1  // budget: a warp is 8 x 4 elements, half of each sector of B is unused
  const int row = tid / 256 * 8 + tid % 32 / 4, column = tid / 32 % 8 * 4 + tid % 4;
#elif WRONG_2  // race: all lanes of a warp have the same element
  const int row = tid / T, column = tid / T;
#elif WRONG_3  // race: columns two apart run into the next block's
  const int row = tid / T, column = tid % T * 2;
#else
  const int row = tid / T, column = tid % T;
#endif
  const int64_t i = int64_t{blockIdx.y} * T + row, j = int64_t{blockIdx.x} * T + column;
  if (i >= g.m || j >= g.n) return;
  float acc = 0.f;
  for (int64_t k = 0; k < g.k; ++k) acc = fmaf(g.a(i, k), g.b(k, j), acc);
  g.store(i, j, acc);
}

void run(const Gemm& g, const Context& context) {
  launch(kernel, {.grid = dim3((g.n + T - 1) / T, (g.m + T - 1) / T), .block = dim3(T * T)},
         context, g);
}
