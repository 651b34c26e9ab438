// A ring of slices in shared memory, between threads that fill it and threads that read it: a slice
// is handed over at its mbarrier `full` and given back at its `empty`.
#pragma once

#include "xgemm/core/tile.h"
#include "xgemm/device/ptx/mbarrier.h"

namespace xgemm {

// Which slot of the ring is next, and the parity of its phase.
template <int kBuffers>
struct PipelineState {
  int slot = 0, phase = 0;
  __device__ __forceinline__ void advance() {
    if (++slot == kBuffers) slot = 0, phase ^= 1;
  }
};

// T.buffers slices of both operands, K-major. Rows of an operand that is transposed on its way are
// padded; TMA brings boxes without gaps.
template <Tile T, bool kA, bool kB>  // whether A, B transposed are contiguous along k
struct SliceRing {
  static constexpr int kRowA = T.BM + (kA ? T.pad_a : 0), kRowB = T.BN + (kB ? T.pad_b : 0);
  float a[T.buffers][T.BK][kRowA];
  float b[T.buffers][T.BK][kRowB];
  Mbarrier full[T.buffers], empty[T.buffers];

  // By all threads of the block.
  __device__ __forceinline__ void init() {
    if (threadIdx.x == 0) {
      for (int s = 0; s < T.buffers; ++s) {
        mbarrier_init(&full[s], T.producers);
        mbarrier_init(&empty[s], T.threads());
      }
      fence_barrier_init();
    }
    __syncthreads();
  }
};

}  // namespace xgemm
