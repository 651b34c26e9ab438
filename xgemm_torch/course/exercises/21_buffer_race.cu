//! title: Two buffers, and still a race
//! kind: bug
//! stage: smem_double_buffered
//! barriers: 2; one before the loop and one in it
//! hint: The report names a store and a read: of which slices, in which buffer? Write down one
//!   turn of the loop for a fast thread, and where a slow one may be at that time.
//! hint: Slice k0 + 2 T goes into the buffer that holds slice k0. Who may still read that?
//! hint: The barrier belongs between the reads of a buffer and the stores to it. The turn after
//!   next reads what is stored here; is there a barrier in between? Count.
// This kernel runs two slices ahead: both buffers are filled before the loop, and each turn stores
// slice k0 + 2 T in the buffer that it has just multiplied. That is a turn more for the loads to
// arrive than in the usual scheme, and one barrier a turn, as there.
//
//   turn 0:   read slice 0 in buffer 0      store slice 2 in buffer 0
//   turn 1:   read slice 1 in buffer 1      store slice 3 in buffer 1
//   turn 2:   read slice 2 in buffer 0      ...
//
// One barrier a turn is right, but it must stand where it separates. Here it follows the stores,
// which looks natural: "wait till all is stored, then read". But a warp that is fast stores slice 2
// in buffer 0 while a slow one still multiplies slice 0 there. Tests pass, on one GPU, for most
// sizes: a barrier in the wrong place costs as much as one in the right place, and is harder to see
// than one that is missing.
//
// Mend it, with one barrier a turn.

#include "exercise.h"

constexpr int T = 16;

__global__ void __launch_bounds__(T* T) kernel(const Gemm g) {
  XGEMM_SHARED(As, float[2][T][T]);
  XGEMM_SHARED(Bs, float[2][T][T]);
  const int tx = threadIdx.x, ty = threadIdx.y;
  const int64_t i = int64_t{blockIdx.y} * T + ty, j = int64_t{blockIdx.x} * T + tx;
  float acc = 0.f;
  const auto load = [&](int64_t k0, int buffer) {
    As[buffer][ty][tx] = i < g.m && k0 + tx < g.k ? g.a(i, k0 + tx) : kPadA;
    Bs[buffer][ty][tx] = k0 + ty < g.k && j < g.n ? g.b(k0 + ty, j) : kPadB;
  };
  load(0, 0);
  load(T, 1);
  __syncthreads();
  int buffer = 0;
  for (int64_t k0 = 0; k0 < g.k; k0 += T, buffer ^= 1) {
    for (int k = 0; k < T; ++k) acc = fmaf(As[buffer][ty][k], Bs[buffer][k][tx], acc);
#if GIVEN  // race: others still read what is stored over
    load(k0 + 2 * T, buffer);
    __syncthreads();
#elif WRONG_1  // race: a warp waits for itself alone
    __syncwarp();
    load(k0 + 2 * T, buffer);
#elif WRONG_2  // deadlock: threads outside D do not come to the barrier
    if (i >= g.m || j >= g.n) break;
    __syncthreads();
    load(k0 + 2 * T, buffer);
#elif WRONG_3  // race: over the slice that the next turn reads
    __syncthreads();
    load(k0 + 2 * T, buffer ^ 1);
#elif WRONG_4  // budget: a barrier on either side
    __syncthreads();
    load(k0 + 2 * T, buffer);
    __syncthreads();
#else
    __syncthreads();
    load(k0 + 2 * T, buffer);
#endif
  }
  g.store(i, j, acc);
}

void run(const Gemm& g, const Context& context) {
  launch(kernel, {.grid = dim3((g.n + T - 1) / T, (g.m + T - 1) / T), .block = dim3(T, T)}, context,
         g);
}
