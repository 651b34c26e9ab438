//! title: Still being read
//! kind: bug
//! stage: wgmma_fp16x3
//! cases: 64x16x64!integers 1x1x1!integers 40x9x50!integers 70x20x200/TN+3!integers
//!   5x7x0!integers
//! hint: The report names the wgmma and the store. How many turns of the loop lie between the
//!   two?
//! hint: wgmma_wait<n> waits until at most n of the youngest groups are unfinished. Two slots:
//!   how many groups may be unfinished when the next slot is stored?
//! hint: At the end of turn s, slot (s + 1) % 2 was last read by the group of turn s - 1. That
//!   must be done; the group of turn s may go on.
// wgmma is asynchronous twice over. The instruction returns at once; the tensor core then reads
// both operands from shared memory and adds to the accumulators, which are registers of all 128
// threads. Until a wait says that it is done
//
//   the operands must not be overwritten, and
//   the accumulators must not be looked at.
//
// With two slots the stores of a slice overlap with the product of the slice before: that is what
// the second slot is for. At the end of turn s the groups of turns s - 1 and s may be unfinished.
// The next turn stores slot (s + 1) % 2, which is the one that group s - 1 reads.
//
// Here somebody has counted slots, not groups: two slots, so two may be in flight. On a GPU it is
// often right, since a product takes less time than the loads of a slice; then comes a GPU, or a
// clock, where it is not, and some sums are made of halves of two slices.
//
// Mend it so that stores and products still overlap.

#include "exercise.h"

constexpr int BM = 64, BN = 16, BK = 64;

// Two halves a word, rows of 32 words, swizzled.
struct Tiles {
  uint32_t a[BM][BK / 2], b[BN][BK / 2];
};
__device__ int swizzled(int row, int word) { return (word / 4 ^ row % 8) * 4 + word % 4; }

__global__ void __launch_bounds__(128) kernel(const Gemm g) {
  XGEMM_SHARED_DYNAMIC(slots, Tiles[2]);
  const int t = threadIdx.x;
  const int64_t i0 = int64_t{blockIdx.y} * BM, j0 = int64_t{blockIdx.x} * BN;
  // The first product begins the sums: zeros would be writes to registers that products in flight
  // may have, and nvcc would serialize these.
  float acc[BN / 2];
  int slot = 0;
  for (int64_t k0 = 0; k0 < g.k; k0 += BK, slot ^= 1) {
    Tiles& tiles = slots[slot];
    const auto a = [&](int64_t i, int64_t k) { return i < g.m && k < g.k ? g.a(i, k) : 0.f; };
    const auto b = [&](int64_t k, int64_t j) { return k < g.k && j < g.n ? g.b(k, j) : 0.f; };
    for (int e = t; e < BM * BK / 2; e += 128) {
      const int row = e / (BK / 2), word = e % (BK / 2);
      const int64_t i = i0 + row, k = k0 + 2 * word;
      tiles.a[row][swizzled(row, word)] = pack_half2<Half::fp16>(a(i, k), a(i, k + 1));
    }
    for (int e = t; e < BN * BK / 2; e += 128) {
      const int row = e / (BK / 2), word = e % (BK / 2);
      const int64_t j = j0 + row, k = k0 + 2 * word;
      tiles.b[row][swizzled(row, word)] = pack_half2<Half::fp16>(b(k, j), b(k + 1, j));
    }
#if WRONG_2  // unfinished: the tensor core may not see what threads have stored
#else
    fence_for_wgmma();
#endif
#if WRONG_3  // uninitialised: others have not stored their part
#else
    __syncthreads();
#endif
    const uint64_t at_a = wgmma_descriptor<128>(tiles.a);
    const uint64_t at_b = wgmma_descriptor<128>(tiles.b);
    wgmma_fence();
    for (int step = 0; step < BK / 16; ++step)
      wgmma<Half::fp16>(acc, at_a + step * kDescriptorK16, at_b + step * kDescriptorK16,
                        k0 + step > 0);
    wgmma_commit();
#if GIVEN  // unfinished: two products may be in flight, and both slots with them
    wgmma_wait<2>();
#else
    wgmma_wait<1>();
#endif
  }
#if WRONG_1  // unfinished: the sums are read before the last product is done
  wgmma_wait<1>();
#else
  wgmma_wait<0>();
#endif
  for (int e = 0; e < BN / 2; ++e)
    g.store(i0 + t / 32 * 16 + t % 32 / 4 + e / 2 % 2 * 8, j0 + e / 4 * 8 + t % 4 * 2 + e % 2,
            g.k > 0 ? acc[e] : 0.f);
}

void run(const Gemm& g, const Context& context) {
  launch(kernel,
         {.grid = dim3((g.n + BN - 1) / BN, (g.m + BM - 1) / BM),
          .block = dim3(128),
          .smem = 2 * sizeof(Tiles)},
         context, g);
}
