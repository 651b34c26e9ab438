//! title: A ring that copies fill
//! kind: fill
//! stage: cp_async_pipelined
//! barriers: 1; it makes copies known and frees the slot that is filled next
//! hint: In each turn: wait until this slice's group has landed, a barrier, multiply, fetch the
//!   slice kSlots - 1 further on.
//! hint: Groups are finished in order. Before turn s the groups 0 .. s + kSlots - 2 are
//!   committed; group s must be done, so kSlots - 2 may be left.
//! hint: cp_async_wait sees the thread's own copies alone: the barrier behind it is what makes
//!   those of the others known. The same barrier says that all have left the slot which fetch
//!   fills next.
// cp.async copies from global to shared memory past the registers, and the thread goes on at once.
// Copies are committed in groups, and cp_async_wait<n>() waits until at most n of the thread's
// youngest groups are unfinished. With a ring of kSlots slices, kSlots - 1 are on their way while
// one is multiplied:
//
//   slots 0 1 2, before turn 3:   slot 0: slice 3, to be read     slot 1: slice 4, on its way
//                                 slot 2: slice 2, read in the turn before; slice 5 may come here
//
// One barrier a turn does two things: it makes the copies of all threads known, each of whom has
// waited for its own, and it says that all have left the slot that is filled next.
//
// fetch(slice) issues a slice's copies and commits them. Past the last slice it commits a group
// without copies, so that the count of the wait stays right to the end. The first kSlots - 1 slices
// have been fetched; write the loop: multiply(slice) for each, and what must stand around it.

#include "exercise.h"

constexpr int T = 16, kSlots = 3;

__global__ void __launch_bounds__(T* T) kernel(const Gemm g) {
  XGEMM_SHARED(As, float[kSlots][T][T]);
  XGEMM_SHARED(Bs, float[kSlots][T][T]);
  const int tx = threadIdx.x, ty = threadIdx.y, slices = static_cast<int>((g.k + T - 1) / T);
  const int64_t i = int64_t{blockIdx.y} * T + ty, j = int64_t{blockIdx.x} * T + tx;
  float acc = 0.f;
  const auto fetch = [&](int slice) {
    if (slice < slices) {
      const int64_t ka = int64_t{slice} * T + tx, kb = int64_t{slice} * T + ty;
      const int slot = slice % kSlots;
      // 4 bytes, or none, where zeros are stored.
      cp_async_some<4>(Smem(&As[slot][ty][tx]), g.a.ptr(i, ka), i < g.m && ka < g.k ? 4 : 0);
      cp_async_some<4>(Smem(&Bs[slot][ty][tx]), g.b.ptr(kb, j), kb < g.k && j < g.n ? 4 : 0);
    }
    cp_async_commit();
  };
  const auto multiply = [&](int slice) {
    const int slot = slice % kSlots;
    for (int k = 0; k < T; ++k) acc = fmaf(As[slot][ty][k], Bs[slot][k][tx], acc);
  };
  for (int slice = 0; slice < kSlots - 1; ++slice) fetch(slice);
#if GIVEN  // unfinished: nobody waits for the first slices
  for (int slice = 0; slice < slices; ++slice) multiply(slice);
#elif WRONG_1  // unfinished: the wait lets one group too many go
  for (int slice = 0; slice < slices; ++slice) {
    cp_async_wait<kSlots - 1>();
    __syncthreads();
    multiply(slice);
    fetch(slice + kSlots - 1);
  }
  cp_async_wait<0>();
#elif WRONG_2  // uninitialised: a thread has waited for its own copies alone
  for (int slice = 0; slice < slices; ++slice) {
    cp_async_wait<kSlots - 2>();
    multiply(slice);
    __syncthreads();
    fetch(slice + kSlots - 1);
  }
  cp_async_wait<0>();
#elif WRONG_3  // race: copies into a slot that others still read
  for (int slice = 0; slice < slices; ++slice) {
    fetch(slice + kSlots - 1);
    cp_async_wait<kSlots - 1>();
    __syncthreads();
    multiply(slice);
  }
  cp_async_wait<0>();
#elif WRONG_4  // budget: a second barrier says what the first has said
  for (int slice = 0; slice < slices; ++slice) {
    cp_async_wait<kSlots - 2>();
    __syncthreads();
    multiply(slice);
    __syncthreads();
    fetch(slice + kSlots - 1);
  }
  cp_async_wait<0>();
#else
  for (int slice = 0; slice < slices; ++slice) {
    cp_async_wait<kSlots - 2>();
    __syncthreads();
    multiply(slice);
    fetch(slice + kSlots - 1);
  }
  cp_async_wait<0>();
#endif
  g.store(i, j, acc);
}

void run(const Gemm& g, const Context& context) {
  launch(kernel, {.grid = dim3((g.n + T - 1) / T, (g.m + T - 1) / T), .block = dim3(T, T)}, context,
         g);
}
