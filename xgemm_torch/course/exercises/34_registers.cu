//! title: Registers that are not yet yours
//! kind: bug
//! stage: wgmma_fp16x3
//! cases: 64x16x64!integers 1x1x1!integers 40x9x50!integers 70x20x130/TN+3!integers
//!   5x7x0!integers
//! hint: A's 16 columns of a step are in the array a. When is it written again, and has the wgmma
//!   that was given it been waited for?
//! hint: A wait in each step mends it, and leaves the tensor core idle while the next registers
//!   are loaded. Two sets of registers, taken in turns, need a wait only for the step before
//!   last.
//! hint: uint32_t a[2][4]; in step s use a[s % 2]; after its commit, wgmma_wait<1>.
// wgmma can take A from registers in place of shared memory: the fused kernels decompose floats to
// limbs there, and save the way through shared memory. Four registers of each thread hold 64 x 16
// halves of A.
//
// The instruction is asynchronous all the same. It returns before the tensor core has read these
// registers, and a compiler knows nothing of it: to it they were read by the instruction, and are
// free. The next step's loads go to the same registers.
//
//   step 0:   a = A(., 0 .. 15)     wgmma(acc, a, b)     commit
//   step 1:   a = A(., 16 .. 31)    ...                  is step 0's product done?
//
// nvcc sees some such cases and serializes all wgmma of a function, with a warning that few read:
// right results, at a third of the speed. Where it does not see them, they are wrong.
//
// Mend it so that a step's loads overlap with the product of the step before.

#include "exercise.h"

constexpr int BM = 64, BN = 16, BK = 64;

// Two halves a word, rows of 32 words, swizzled.
struct TileB {
  uint32_t b[BN][BK / 2];
};
__device__ int swizzled(int row, int word) { return (word / 4 ^ row % 8) * 4 + word % 4; }

__global__ void __launch_bounds__(128) kernel(const Gemm g) {
  XGEMM_SHARED_DYNAMIC(tile, TileB);
  const int t = threadIdx.x;
  const int64_t i0 = int64_t{blockIdx.y} * BM + t / 32 * 16 + t % 32 / 4,
                j0 = int64_t{blockIdx.x} * BN;
  const auto element_a = [&](int64_t i, int64_t k) { return i < g.m && k < g.k ? g.a(i, k) : 0.f; };
  const auto element_b = [&](int64_t k, int64_t j) { return k < g.k && j < g.n ? g.b(k, j) : 0.f; };
  float acc[BN / 2] = {};
  for (int64_t k0 = 0; k0 < g.k; k0 += BK) {
    for (int e = t; e < BN * BK / 2; e += 128) {
      const int row = e / (BK / 2), word = e % (BK / 2);
      const int64_t j = j0 + row, k = k0 + 2 * word;
      tile.b[row][swizzled(row, word)] =
          pack_half2<Half::fp16>(element_b(k, j), element_b(k + 1, j));
    }
    fence_for_wgmma();
    __syncthreads();
    const uint64_t at_b = wgmma_descriptor<128>(tile.b);
#if GIVEN  // unfinished: the registers are loaded anew while they are read
    uint32_t a[1][4];
    constexpr int kSets = 1;
#else
    uint32_t a[2][4];
    constexpr int kSets = 2;
#endif
#pragma unroll
    for (int step = 0; step < BK / 16; ++step) {
      uint32_t (&now)[4] = a[step % kSets];
      for (int r = 0; r < 4; ++r) {
        const int64_t i = i0 + r % 2 * 8, k = k0 + step * 16 + r / 2 * 8 + t % 4 * 2;
        now[r] = pack_half2<Half::fp16>(element_a(i, k), element_a(i, k + 1));
      }
#if WRONG_3  // unfinished: registers that were just written, and no fence
      if (step == 0) wgmma_fence();
#else
      wgmma_fence();
#endif
      wgmma<Half::fp16>(acc, now, at_b + step * kDescriptorK16, true);
      wgmma_commit();
#if WRONG_1  // unfinished: two sets, and three products in flight
      wgmma_wait<2>();
#else
      wgmma_wait<1>();
#endif
    }
#if WRONG_2  // unfinished: B is stored again while the last step reads it
    __syncthreads();
  }
  wgmma_wait<0>();
#else
    wgmma_wait<0>();
    __syncthreads();
  }
#endif
  for (int e = 0; e < BN / 2; ++e)
    g.store(i0 + e / 2 % 2 * 8, j0 + e / 4 * 8 + t % 4 * 2 + e % 2, acc[e]);
}

void run(const Gemm& g, const Context& context) {
  launch(kernel,
         {.grid = dim3((g.n + BN - 1) / BN, (g.m + BM - 1) / BM),
          .block = dim3(128),
          .smem = sizeof(TileB)},
         context, g);
}
