//! title: One flip too many
//! kind: bug
//! stage: tma_specialized
//! cases: 33x35x17 1x1x1 20x18x64 5x7x0 17x19x130/TN+3 33x20x100*2,0.5
//! hint: Write down slot and phase for slices 0 to 6 with three slots, as they should be and as
//!   they are.
//! hint: All slots of one turn of the ring are in the same phase: the first time round each is in
//!   its phase of parity 0.
//! hint: With two slots, does a flip with every slot do the same as one with every turn? Which
//!   slot has which parity then?
// The ring of producer and consumers again, with three slots. Each mbarrier goes through phases of
// parity 0, 1, 0, 1, ..., one for each time round the ring, and mbarrier_wait(bar, parity) returns
// when the phase of that parity has ended.
//
// The trouble with one bit: it cannot tell the phase before last from the coming one. A wait for
// the parity of the phase that ended last returns at once. So a wrong parity is no deadlock,
// mostly, but a wait that does not wait: the consumer reads a slot that nobody has filled, or which
// still holds the slice of the turn before, in other words numbers that look right.
//
//   slice   0  1  2  3  4  5  6
//   slot    0  1  2  0  1  2  0
//   phase   0  0  0  1  1  1  0
//
// State::advance keeps the two. Mend it.

#include "exercise.h"

constexpr int T = 16, kSlots = 3, kConsumers = T * T, kProducers = 32;

constexpr int kFull = kProducers, kEmpty = kConsumers;

// Which slot is next, and the parity of its phase.
struct State {
  int slot = 0, phase = 0;
  __device__ void advance() {
#if GIVEN  // uninitialised: the parity flips with every slot
    slot = (slot + 1) % kSlots;
    phase ^= 1;
#elif WRONG_1  // deadlock: it never flips
    slot = (slot + 1) % kSlots;
#elif WRONG_2  // uninitialised: it flips one slot too early
    if (++slot == kSlots - 1) phase ^= 1;
    if (slot == kSlots) slot = 0;
#elif WRONG_3  // mbarrier: one slot more than there are
    if (++slot > kSlots) slot = 0, phase ^= 1;
#else
    if (++slot == kSlots) slot = 0, phase ^= 1;
#endif
  }
};

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
  State next;
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
      mbarrier_wait(&empty[next.slot], next.phase ^ 1);
      store(slice, next.slot);
      mbarrier_arrive(&full[next.slot]);
    }
    return;
  }
  const int tx = t % T, ty = t / T;
  float acc = 0.f;
  const auto multiply = [&](int slot) {
    for (int k = 0; k < T; ++k) acc = fmaf(As[slot][ty][k], Bs[slot][k][tx], acc);
  };
  for (int slice = 0; slice < slices; ++slice, next.advance()) {
    mbarrier_wait(&full[next.slot], next.phase);
    multiply(next.slot);
    mbarrier_arrive(&empty[next.slot]);
  }
  g.store(i0 + ty, j0 + tx, acc);
}

void run(const Gemm& g, const Context& context) {
  launch(
      kernel,
      {.grid = dim3((g.n + T - 1) / T, (g.m + T - 1) / T), .block = dim3(kConsumers + kProducers)},
      context, g);
}
