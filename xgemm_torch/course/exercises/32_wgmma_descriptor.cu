//! title: Where a tensor core finds its operand
//! kind: fill
//! stage: wgmma_fp16x3
//! cases: 64x16x64!integers 1x1x1!integers 40x9x50!integers 70x20x130/TN+3!integers
//!   5x7x0!integers
//! hint: Addresses and distances go into the descriptor in units of 16 bytes: shift right by 4.
//! hint: Eight rows of 128 bytes are 1024 bytes: 64 in units of 16, from bit 32 on. The swizzle
//!   of 128 bytes is 1 in bits 62 and 63; bits 16 and on, which it does not use, are 1 by
//!   convention.
//! hint: (address & 0x3ffff) >> 4 | 1ull << 16 | uint64_t{1024 >> 4} << 32 | 1ull << 62, and 16
//!   elements further along k are 32 bytes: 2.
// wgmma multiplies 64 x 16 of A by 16 x N of B, both read straight from shared memory by the tensor
// core. No thread loads them: a thread gives a descriptor, 64 bits that say where an operand lies.
//
//   bits  0 .. 13    address in shared memory, in units of 16 bytes
//   bits 16 .. 29    distance between columns of chunks; not used where rows are swizzled: 1
//   bits 32 .. 45    from a group of eight rows to the next, in units of 16 bytes
//   bits 62 and 63   swizzle: 0 none, 1 of 128 bytes, 2 of 64, 3 of 32
//
// Here a row is 64 halves along k, 128 bytes, and its eight chunks of 16 bytes are permuted: chunk
// c of row r lies at c ^ (r % 8), so that eight rows' chunk c, which the tensor core reads at once,
// are in 32 different banks. Rows follow one another: eight of them are 1024 bytes.
//
// One wgmma takes 16 of k, 32 bytes of each row. The next one's operand begins 32 bytes further:
// add that to the descriptor's address, in its units; the swizzle is applied to the sum.
//
// Write the descriptor and the step. Data are small integers here: all sums are exact.

#include "exercise.h"

constexpr int BM = 64, BN = 16, BK = 64;

#if GIVEN  // stray: an address alone is no descriptor
__device__ uint64_t descriptor(uint64_t address) { return address >> 4; }
constexpr uint64_t kStep = 0;
#elif WRONG_1  // stray: the address in bytes
__device__ uint64_t descriptor(uint64_t address) {
  return (address & 0x3fff) | 1ull << 16 | uint64_t{1024 >> 4} << 32 | 1ull << 62;
}
constexpr uint64_t kStep = 32;
#elif WRONG_2  // bits: each step multiplies the first 16 of k again
__device__ uint64_t descriptor(uint64_t address) {
  return (address & 0x3ffff) >> 4 | 1ull << 16 | uint64_t{1024 >> 4} << 32 | 1ull << 62;
}
constexpr uint64_t kStep = 0;
#elif WRONG_3  // stray: a step of 32 units, past all rows
__device__ uint64_t descriptor(uint64_t address) {
  return (address & 0x3ffff) >> 4 | 1ull << 16 | uint64_t{1024 >> 4} << 32 | 1ull << 62;
}
constexpr uint64_t kStep = 32;
#else
__device__ uint64_t descriptor(uint64_t address) {
  return (address & 0x3ffff) >> 4 | 1ull << 16 | uint64_t{1024 >> 4} << 32 | 1ull << 62;
}
constexpr uint64_t kStep = 32 >> 4;
#endif

// Two halves a word, rows of 32 words, swizzled.
struct Tiles {
  uint32_t a[BM][BK / 2], b[BN][BK / 2];
};
__device__ int swizzled(int row, int word) { return (word / 4 ^ row % 8) * 4 + word % 4; }

__global__ void __launch_bounds__(128) kernel(const Gemm g) {
  XGEMM_SHARED_DYNAMIC(tiles, Tiles);
  const int t = threadIdx.x;
  const int64_t i0 = int64_t{blockIdx.y} * BM, j0 = int64_t{blockIdx.x} * BN;
  float acc[BN / 2] = {};
  for (int64_t k0 = 0; k0 < g.k; k0 += BK) {
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
    fence_for_wgmma();
    __syncthreads();
    const uint64_t at_a = descriptor(address_in_shared(tiles.a));
    const uint64_t at_b = descriptor(address_in_shared(tiles.b));
    wgmma_fence();
    for (int step = 0; step < BK / 16; ++step)
      wgmma<Half::fp16>(acc, at_a + step * kStep, at_b + step * kStep, true);
    wgmma_commit();
    wgmma_wait<0>();
    __syncthreads();
  }
  for (int e = 0; e < BN / 2; ++e)
    g.store(i0 + t / 32 * 16 + t % 32 / 4 + e / 2 % 2 * 8, j0 + e / 4 * 8 + t % 4 * 2 + e % 2,
            acc[e]);
}

void run(const Gemm& g, const Context& context) {
  launch(kernel,
         {.grid = dim3((g.n + BN - 1) / BN, (g.m + BM - 1) / BM),
          .block = dim3(128),
          .smem = sizeof(Tiles)},
         context, g);
}
