// Slices of operands in two 16-bit limbs, 32 deep, in shared memory: how cp.async fills a ring of
// them and how ldmatrix reads the tensor core's operands. Rows are A's, or B's columns.
#pragma once

#include "xgemm/core/tile_scheduler.h"
#include "xgemm/device/ptx/mma.h"
#include "xgemm/emulation/limbs.h"

namespace xgemm {

// A row of a slice is 8 chunks of 16 bytes, the first limb's 4 and the other's 4; chunk c lies at
// c ^ (row % 8), so that chunks c of 8 rows are in all 32 banks. It is counted in floats, as
// cp.async counts.
constexpr int kRowFloats = kSliceK, kChunkFloats = 4, kChunks = kRowFloats / kChunkFloats;
constexpr int kHi = 0, kLo = kChunks / 2;  // the limbs' first chunks
using LimbsRow = float[kRowFloats];

// Warp tiles are WM x 32, in fragments of 16 x 8, of which a lane has 2 rows and 2 columns.
constexpr Tile mma_tile(EmulationScheme s, int BM, int BN, int WM, int buffers, int min_blocks,
                        float rate) {
  return {.BM = BM,
          .BN = BN,
          .BK = kSliceK,
          .WM = WM,
          .WN = 32,
          .TM = WM / 8,
          .TN = 8,
          .width = 4,
          .buffers = buffers,
          .a_rows = BM,
          .min_blocks = min_blocks,
          .element_bytes = 2 * s.limbs,
          .rate = rate};
}

template <Tile T>
struct LimbRing {
  LimbsRow a[T.buffers][T.BM];
  LimbsRow b[T.buffers][T.BN];
};

// One thread's share of an operand's L rows of each slice: a chunk of every kStep-th row. In place
// of a row beyond the operand one that exists is copied again; its results are not stored.
template <int kThreads, int L>
struct LimbCopies {
  static constexpr int kStep = kThreads / kChunks;
  static_assert(kThreads % kChunks == 0 && L % kStep == 0 && kStep % 8 == 0);

  const float* p;  // the thread's first chunk of the next slice
  int64_t step;  // from a chunk of the thread to its next
  int place;  // of the first chunk in shared memory
  int more;  // how much further down the operand has rows

  // Slices of matrix z of the batch, whose rows begin at l0.
  __device__ LimbCopies(const Limbs& limbs, int64_t z, int64_t l0) {
    const int row = threadIdx.x / kChunks, chunk = threadIdx.x % kChunks;
    const int last = static_cast<int>(limbs.rows - l0 < L ? limbs.rows - l0 : L) - 1;
    const int first = row < last ? row : last;
    const int64_t floats = limbs.blocks * kRowFloats;  // of a row
    p = static_cast<const float*>(limbs.data) + (limbs.first_row(z) + l0 + first) * floats +
        chunk * kChunkFloats;
    step = floats * kStep;
    place = row * kRowFloats + (chunk ^ row % 8) * kChunkFloats;
    more = last - first;
  }

  __device__ __forceinline__ void copy(LimbsRow (&slice)[L]) {
    const Smem to = Smem(slice[0]) + place;
    const float* from = p;
#pragma unroll
    for (int l = 0; l < L; l += kStep) {
      cp_async<16>(to + l * kRowFloats, from);
      if (l + kStep <= more) from += step;
    }
    p += kRowFloats;
  }
};

// One limb of 16 rows of A: operands of two mma, one for each 16 of k.
__device__ __forceinline__ void load_a(uint32_t (&a)[2][4], const LimbsRow* rows, int limb) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half)
    ldmatrix4(a[half], &rows[lane % 16][((limb + 2 * half + lane / 16) ^ lane % 8) * kChunkFloats]);
}

// The same of 8 columns of B, for kN times 8 of them.
template <int kN>
__device__ __forceinline__ void load_b(uint32_t (&b)[kN][2][2], const LimbsRow* columns, int limb) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int j = 0; j < kN; ++j) {
    uint32_t r[4];
    ldmatrix4(r, &columns[8 * j + lane % 8][((limb + lane / 8) ^ lane % 8) * kChunkFloats]);
#pragma unroll
    for (int q = 0; q < 4; ++q) b[j][q / 2][q % 2] = r[q];
  }
}

// acc += A B over the 32 of k, for 16 rows and kN times 8 columns.
template <Half kType, int kN>
__device__ __forceinline__ void multiply(float (&acc)[kN][4], const uint32_t (&a)[2][4],
                                         const uint32_t (&b)[kN][2][2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int j = 0; j < kN; ++j) mma<kType>(acc[j], a[half], b[j][half]);
}

}  // namespace xgemm
