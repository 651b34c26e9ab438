//! title: The last two slices
//! kind: bug
//! stage: cp_async_pipelined
//! hint: Which slice is it that is read too early: the first, one in the middle, or the last?
//! hint: cp_async_wait<1> leaves one group unfinished, the youngest. In the last turn, which
//!   slice is the youngest group's?
//! hint: Commit a group in every turn, an empty one past the end: the youngest is then never the
//!   one that is about to be read.
// The same ring of three slots, by another author: past the last slice there is nothing to fetch,
// so nothing is done there. It is right for all slices but the last one or two.
//
// A wait counts groups, not slices: cp_async_wait<1> waits until at most one of the thread's
// youngest groups is unfinished. Turn s needs slice s. As long as slices s and s + 1 are the two
// youngest groups, leaving one unfinished is right: it is that of s + 1.
//
//   4 slices, turn 3, the last:   groups 0 1 2 3 were committed, and 3 is the youngest
//   cp_async_wait<1>:             0, 1 and 2 are done; 3, which is read now, need not be
//
// On a GPU the copy has mostly landed by then: it was issued two turns ago. With a slower memory,
// a faster loop or a cold cache it has not, and the last 16 terms of each sum are those of slice 0.
//
// Mend it without a turn waiting for more than it needs.

#include "exercise.h"

constexpr int T = 16, kSlots = 3;

__global__ void __launch_bounds__(T* T) kernel(const Gemm g) {
  XGEMM_SHARED(As, float[kSlots][T][T]);
  XGEMM_SHARED(Bs, float[kSlots][T][T]);
  const int tx = threadIdx.x, ty = threadIdx.y, slices = static_cast<int>((g.k + T - 1) / T);
  const int64_t i = int64_t{blockIdx.y} * T + ty, j = int64_t{blockIdx.x} * T + tx;
  float acc = 0.f;
  const auto fetch = [&](int slice) {
#if GIVEN  // unfinished: past the end no group is committed, and the count is off
    if (slice >= slices) return;
#elif WRONG_1  // unfinished: the copies are in the next turn's group
    cp_async_commit();
    if (slice >= slices) return;
#endif
    if (slice < slices) {
      const int64_t ka = int64_t{slice} * T + tx, kb = int64_t{slice} * T + ty;
      const int slot = slice % kSlots;
      cp_async_some<4>(Smem(&As[slot][ty][tx]), g.a.ptr(i, ka), i < g.m && ka < g.k ? 4 : 0);
      cp_async_some<4>(Smem(&Bs[slot][ty][tx]), g.b.ptr(kb, j), kb < g.k && j < g.n ? 4 : 0);
    }
#if WRONG_1
#else
    cp_async_commit();
#endif
  };
  for (int slice = 0; slice < kSlots - 1; ++slice) fetch(slice);
  for (int slice = 0; slice < slices; ++slice) {
#if WRONG_3  // unfinished: the last turn waits, and then goes on without the others
    if (slice + 1 < slices) {
      cp_async_wait<kSlots - 2>();
      __syncthreads();
    } else {
      cp_async_wait<0>();
    }
#elif WRONG_2  // unfinished: two groups may be left, also the one that is read
    cp_async_wait<kSlots - 1>();
    __syncthreads();
#else
    cp_async_wait<kSlots - 2>();
    __syncthreads();
#endif
    const int slot = slice % kSlots;
    for (int k = 0; k < T; ++k) acc = fmaf(As[slot][ty][k], Bs[slot][k][tx], acc);
    fetch(slice + kSlots - 1);
  }
  cp_async_wait<0>();
  g.store(i, j, acc);
}

void run(const Gemm& g, const Context& context) {
  launch(kernel, {.grid = dim3((g.n + T - 1) / T, (g.m + T - 1) / T), .block = dim3(T, T)}, context,
         g);
}
