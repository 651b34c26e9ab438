// The tensor-core main loop of sm_80: cp.async fills a ring of slices of limbs, mma.sync multiplies
// them. The sums are those of emulated_wgmma.h. Here acc_hi is made for 16 rows
// at a time, so that it takes a few registers and not as many as a tile.
#pragma once

#include "xgemm/mainloop/limb_ring.h"

namespace xgemm {
inline namespace XGEMM_FLAVOUR {

// acc += the warp's tile, which begins at (ty, tx) of the block's at `o`, of matrix z of the batch.
template <EmulationScheme S, Tile T>
__device__ __forceinline__ void multiply_limbs(float (&acc)[T.WM / 16][T.WN / 2], LimbRing<T>& ring,
                                               const Limbs& a_limbs, const Limbs& b_limbs,
                                               int64_t z, const TileCoord& o, int ty, int tx) {
  constexpr int kM = T.WM / 16, kN = T.WN / 8, kSegment = S.segment / kSliceK;
  LimbCopies<T.threads(), T.BM> copies_a(a_limbs, z, o.i);
  LimbCopies<T.threads(), T.BN> copies_b(b_limbs, z, o.j);
  const int blocks = static_cast<int>(a_limbs.blocks);
  const auto copy = [&](int slice, int buffer) {
    if (slice < blocks) copies_a.copy(ring.a[buffer]), copies_b.copy(ring.b[buffer]);
    cp_async_commit();
  };
#pragma unroll 1
  for (int s = 0; s < T.buffers; ++s) copy(s, s);

  float acc_corr[kM][kN][4] = {};
  const auto add_rest = [&] {
#pragma unroll
    for (int i = 0; i < kM; ++i)
#pragma unroll
      for (int e = 0; e < 4 * kN; ++e) {
        acc[i][e] = fmaf(acc_corr[i][e / 4][e % 4], 1.f / S.lo_scale, acc[i][e]);
        acc_corr[i][e / 4][e % 4] = 0.f;
      }
  };
  uint32_t a[kM][2][4], a_lo[2][2][4], b[kN][2][2], b_lo[kN][2][2];
  int now = 0;  // the buffer that is read
  cp_async_wait<T.buffers - 1>();
  __syncthreads();
  load_a(a_lo[0], &ring.a[now][ty], kLo);
  load_b(b, &ring.b[now][tx], kHi);
#pragma unroll 1
  for (int s = 0; s < blocks; ++s) {
#pragma unroll
    for (int i = 0; i < kM; ++i) {
      if (i + 1 < kM) load_a(a_lo[(i + 1) % 2], &ring.a[now][ty + 16 * (i + 1)], kLo);
      load_a(a[i], &ring.a[now][ty + 16 * i], kHi);
      multiply<S.type>(acc_corr[i], a_lo[i % 2], b);
    }
    load_b(b_lo, &ring.b[now][tx], kLo);
#pragma unroll
    for (int i = 0; i < kM; ++i) {
      float acc_hi[kN][4] = {};
      multiply<S.type>(acc_hi, a[i], b);
#pragma unroll
      for (int e = 0; e < 4 * kN; ++e) acc[i][e] += acc_hi[e / 4][e % 4];
    }
    // All of this slice is in registers: its buffer is free, and the next slice can begin, the last
    // one with itself.
    cp_async_wait<T.buffers - 2>();
    __syncthreads();
    copy(s + T.buffers, now);
    if (s + 1 < blocks) now = now + 1 < T.buffers ? now + 1 : 0;
    load_a(a_lo[0], &ring.a[now][ty], kLo);
    load_b(b, &ring.b[now][tx], kHi);
#pragma unroll
    for (int i = 0; i < kM; ++i) multiply<S.type>(acc_corr[i], a[i], b_lo);
    if ((s + 1) % kSegment == 0) add_rest();
  }
  add_rest();
}

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
