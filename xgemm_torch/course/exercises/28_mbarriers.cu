//! title: A producer, consumers, and their barriers
//! kind: fill
//! stage: tma_specialized
//! hint: full[slot] is awaited by consumers, so producers arrive there; empty[slot] the other way
//!   round. Count arrivals, not threads: 32 lanes of one warp, and one lane of each of eight.
//! hint: Producer: wait for empty, store, arrive at full. Consumer: wait for full, multiply,
//!   __syncwarp(), one lane arrives at empty.
//! hint: In the first turn every slot is empty, and nobody has arrived. mbarrier_wait(bar,
//!   parity) returns at once where the phase before has that parity: the producer waits for phase
//!   ^ 1.
// __syncthreads makes all threads wait for all. Where some threads only load and others only
// multiply, each should wait for what it needs: the loaders for a slot that is free, the others for
// a slice that is there. An mbarrier is a counter in shared memory for just that:
//
//   mbarrier_init(bar, n)        a phase ends when n arrivals have come; then the next one begins
//   mbarrier_arrive(bar)         one arrival; what the thread did before is visible to who waits
//   mbarrier_wait(bar, parity)   until the phase of this parity has ended: phases have 0, 1, 0, 1
//
// Each slot of the ring has two: `full`, whose phase ends when a slice has been stored, and
// `empty`, when it has been multiplied. `next.phase` is the parity of the slot's turn, flipped once
// round the ring. A fresh mbarrier counts as if a phase of parity 1 had ended.
//
// One warp stores, eight warps multiply; no __syncthreads stands in the loops. All 32 lanes of the
// producer arrive, each for what it has stored. Of a consumer's warp one lane is enough, and eight
// arrivals are cheaper than 256; but it speaks for 31 others, so __syncwarp() comes first.
//
// Say how many arrive at each barrier, and write the two loops' bodies.

#include "exercise.h"

constexpr int T = 16, kSlots = 2, kConsumers = T * T, kProducers = 32;

#if GIVEN  // deadlock: nobody arrives, and who waits waits forever
constexpr int kFull = 1, kEmpty = 1;  // arrivals that end a phase
#elif WRONG_2  // deadlock: one arrival ends a phase, and 32 come: parities run ahead
constexpr int kFull = 1, kEmpty = kConsumers / 32;
#else
constexpr int kFull = kProducers, kEmpty = kConsumers / 32;
#endif

__global__ void __launch_bounds__(kConsumers + kProducers) kernel(const Gemm g) {
  XGEMM_SHARED(As, float[kSlots][T][T]);
  XGEMM_SHARED(Bs, float[kSlots][T][T]);
  XGEMM_SHARED(full, Mbarrier[kSlots]);
  XGEMM_SHARED(empty, Mbarrier[kSlots]);
  const int t = threadIdx.x, slices = static_cast<int>((g.k + T - 1) / T);
  const int64_t i0 = int64_t{blockIdx.y} * T, j0 = int64_t{blockIdx.x} * T;
  if (t == 0) {
    for (int s = 0; s < kSlots; ++s) {
      mbarrier_init(&full[s], kFull);
      mbarrier_init(&empty[s], kEmpty);
    }
    fence_barrier_init();
  }
  __syncthreads();
  PipelineState<kSlots> next;
  if (t >= kConsumers) {  // the producer's warp
    const auto store = [&](int slice, int slot) {
      for (int e = t - kConsumers; e < T * T; e += kProducers) {
        const int64_t row = e / T, column = e % T, k0 = int64_t{slice} * T;
        As[slot][row][column] =
            i0 + row < g.m && k0 + column < g.k ? g.a(i0 + row, k0 + column) : kPadA;
        Bs[slot][row][column] =
            k0 + row < g.k && j0 + column < g.n ? g.b(k0 + row, j0 + column) : kPadB;
      }
    };
    for (int slice = 0; slice < slices; ++slice, next.advance()) {
#if GIVEN  // deadlock: as said above
      store(slice, next.slot);
#elif WRONG_3  // deadlock: it waits for consumers to leave what was never filled
      mbarrier_wait(&empty[next.slot], next.phase);
      store(slice, next.slot);
      mbarrier_arrive(&full[next.slot]);
#else
      mbarrier_wait(&empty[next.slot], next.phase ^ 1);
      store(slice, next.slot);
      mbarrier_arrive(&full[next.slot]);
#endif
    }
    return;
  }
  const int tx = t % T, ty = t / T;
  float acc = 0.f;
  const auto multiply = [&](int slot) {
    for (int k = 0; k < T; ++k) acc = fmaf(As[slot][ty][k], Bs[slot][k][tx], acc);
  };
  for (int slice = 0; slice < slices; ++slice, next.advance()) {
#if GIVEN  // deadlock: as said above
    mbarrier_wait(&full[next.slot], next.phase);
    multiply(next.slot);
#elif WRONG_1  // race: the slot is given back while other lanes of the warp may read it
    mbarrier_wait(&full[next.slot], next.phase);
    multiply(next.slot);
    if (t % 32 == 0) mbarrier_arrive(&empty[next.slot]);
#else
    mbarrier_wait(&full[next.slot], next.phase);
    multiply(next.slot);
    __syncwarp();
    if (t % 32 == 0) mbarrier_arrive(&empty[next.slot]);
#endif
  }
  g.store(i0 + ty, j0 + tx, acc);
}

void run(const Gemm& g, const Context& context) {
  launch(
      kernel,
      {.grid = dim3((g.n + T - 1) / T, (g.m + T - 1) / T), .block = dim3(kConsumers + kProducers)},
      context, g);
}
