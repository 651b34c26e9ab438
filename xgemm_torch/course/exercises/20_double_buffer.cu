//! title: Two buffers, one barrier
//! kind: fill
//! stage: smem_double_buffered
//! barriers: 2; one before the loop and one in it
//! hint: Before the loop: the first slice into buffer 0, and a barrier. In the loop: the next
//!   slice into the other buffer while this one is multiplied, then one barrier.
//! hint: load(k0 + T, buffer ^ 1) where k0 + T < g.k; multiply(buffer); __syncthreads(); buffer
//!   ^= 1.
//! hint: One barrier suffices: it is behind both the stores into one buffer and the reads of the
//!   other, and the next turn exchanges the two.
// With one buffer a slice costs two barriers: one between its stores and its reads, one between its
// reads and the stores of the next. With two buffers the next slice is stored in one while the
// other is read, and a single barrier separates both from the next turn:
//
//   turn 0:   store slice 1 in buffer 1     read slice 0 in buffer 0     barrier
//   turn 1:   store slice 2 in buffer 0     read slice 1 in buffer 1     barrier
//
// In turn 1 buffer 0 is stored: it was read in turn 0, before the barrier. Buffer 1 is read: it was
// stored before the barrier, too. And the loads of the next slice are on their way while this one
// is multiplied, some 500 cycles of latency in which there is work.
//
// load(k0, buffer) stores the slice from k0 on in a buffer, multiply(buffer) multiplies what is in
// one. Write the loop over slices, with one barrier a turn.

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
  const auto multiply = [&](int buffer) {
    for (int k = 0; k < T; ++k) acc = fmaf(As[buffer][ty][k], Bs[buffer][k][tx], acc);
  };
#if GIVEN  // bits: nothing is multiplied
  static_cast<void>(load);
  static_cast<void>(multiply);
#else
  int buffer = 0;
  load(0, 0);
#if WRONG_1  // uninitialised: the first slice is read before all of it is there
#else
  __syncthreads();
#endif
  for (int64_t k0 = 0; k0 < g.k; k0 += T, buffer ^= 1) {
#if WRONG_2  // race: into the buffer that is being read
    multiply(buffer);
    if (k0 + T < g.k) load(k0 + T, buffer);
#elif WRONG_3  // deadlock: the last turn's barrier is for some of the threads
    if (k0 + T < g.k) load(k0 + T, buffer ^ 1);
    multiply(buffer);
    if (i >= g.m || j >= g.n) break;
#elif WRONG_4  // budget: right, at the price of one buffer's barriers
    if (k0 + T < g.k) load(k0 + T, buffer ^ 1);
    __syncthreads();
    multiply(buffer);
#else
    if (k0 + T < g.k) load(k0 + T, buffer ^ 1);
    multiply(buffer);
#endif
    __syncthreads();
  }
#endif
  g.store(i, j, acc);
}

void run(const Gemm& g, const Context& context) {
  launch(kernel, {.grid = dim3((g.n + T - 1) / T, (g.m + T - 1) / T), .block = dim3(T, T)}, context,
         g);
}
