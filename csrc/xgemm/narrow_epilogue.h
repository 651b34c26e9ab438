// From the sums that the shares of a tile have to D: by the block that has all of K, by the blocks
// of a cluster, or by those of another launch.
#pragma once

#include "xgemm/narrow_gemm.h"

namespace xgemm {
inline namespace XGEMM_FLAVOUR {

// Takes four neighbours from (i, j) on through the epilogue.
__device__ __forceinline__ void store_sums4(const Gemm& g, int64_t i, int64_t j, float (&sum)[4],
                                            uint32_t strange) {
  if (i >= g.m || j >= g.n) return;
  if (strange) [[unlikely]] {
#pragma unroll 1
    for (int w = 0; w < 4; ++w) {  // they go round, and have no number that is known only here
      const float x = j + w < g.n ? walk_again(g, i, j + w, sum[0], strange) : 0.f;
      sum[0] = sum[1], sum[1] = sum[2], sum[2] = sum[3], sum[3] = x;
    }
  }
  store_row4(g, i, j, sum);
}

// The blocks of a cluster add up what they have of a tile, each its part of it, once all have left
// it. told: what is strange of a block's, as bits.
template <int BM>
__device__ __forceinline__ void finish_in_cluster(const NarrowSums<BM>& here, const float* told,
                                                  const Gemm& g, const Origin& o, int share,
                                                  int shares) {
  const int lane = threadIdx.x % 32;
  const auto strange = [&] {
    const float of_block = load_from_block(told, lane < shares ? lane : share);
    return __reduce_or_sync(0xffffffffu, float_to_bits(of_block));
  };
  add_in_cluster<kShareThreads>(here, share, shares, [&](int row, int column, float (&sum)[4]) {
    store_sums4(g, o.i + row, o.j + column, sum, strange());
  });
  cluster_sync();  // nobody reads this block's any more
}

// Part `part` of a tile whose shares are in the workspace: four elements a thread.
template <int BM>
__device__ __forceinline__ void finish_tile(const ShareJob& job, const Gemm& g, unsigned tile,
                                            int part) {
  constexpr int kAhead = 16;
  const Origin o = origin_of(job, tile, BM);
  const int64_t place = job.place(blockIdx.z, tile);
  const int e = (part * kShareThreads + static_cast<int>(threadIdx.x)) * 4;
  const int shares = static_cast<int>(job.shares);
  const float* const sums = job.sums + place * (BM * kLong) + e;
  float sum[4] = {-0.f, -0.f, -0.f, -0.f};  // -0 + x is x
  uint32_t strange = 0;
#pragma unroll 1
  for (int first = 0; first < shares; first += kAhead) {
    const int share = first + static_cast<int>(threadIdx.x) % kAhead;
    if (share < shares) strange |= job.strange[place + share];
    add_shares<kAhead>(sum, first, shares,
                       [&](float (&x)[4], int s) { load4(x, sums + int64_t{s} * (BM * kLong)); });
  }
  store_sums4(g, o.i + e / kLong, o.j + e % kLong, sum, __reduce_or_sync(0xffffffffu, strange));
}

// Leaves a share's sums in a tile whose rows are kPitch apart.
template <int BM, int kPitch>
__device__ __forceinline__ void leave_sums(float* tile, const float (&sum)[kNarrowSums<BM>]) {
  float* const sums =
      tile + threadIdx.x % 4 * 2 * kPitch + RegisterParts<kShareThreads, false>::first_row();
#pragma unroll
  for (int e = 0; e < kNarrowSums<BM>; e += 4)
#pragma unroll
    for (int c = 0; c < 2; ++c) store2(sums + (e / 4 * 8 + c) * kPitch, sum[e + c], sum[e + 2 + c]);
}

// Takes the sums of a tile through the epilogue, from the registers of those who have them; they
// leave for themselves what is walked again.
template <int BM>
__device__ __forceinline__ void store_sums(NarrowSums<BM>& here, const Gemm& g, const Origin& o,
                                           const float (&sum)[kNarrowSums<BM>], uint32_t strange) {
  const int row = threadIdx.x % 4 * 2, column = RegisterParts<kShareThreads, false>::first_row();
  const int64_t i = o.i + row, j = o.j + column;
  // Elements 4 p to 4 p + 3 are two by two neighbours, in rows i + 8 p and the next; down first.
  const auto in_row = [](int e) { return e / 4 * 8 + e % 2; };
  const auto in_column = [](int e) { return e / 2 % 2; };
  if (strange) [[unlikely]] {
    leave_sums<BM, NarrowSums<BM>::kPitch>(here.d[0], sum);
#pragma unroll 1
    for (int e = 0; e < kNarrowSums<BM>; ++e) {
      const int64_t r = i + in_row(e), c = j + in_column(e);
      if (r < g.m && c < g.n)
        g.store(r, c, walk_again(g, r, c, here.d[row + in_row(e)][column + in_column(e)], strange));
    }
    return;
  }
  const bool whole = o.i + BM <= g.m && o.j + kLong <= g.n;
  const bool even = whole && reinterpret_cast<uintptr_t>(g.d.data) % 8 == 0;
  const bool across = even && g.d.cs == 1 && g.d.rs % 2 == 0;
  const bool down = even && g.d.rs == 1 && g.d.cs % 2 == 0;
  const auto exists = [&](int64_t r, int64_t c) { return whole || (r < g.m && c < g.n); };
#pragma unroll
  for (int e = 0; e < kNarrowSums<BM>; e += 4) {
    const int64_t r = i + in_row(e);
    float x[4];
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const bool reads = g.beta != 0.f && exists(r + w % 2, j + w / 2);
      x[w] = g.finish(sum[e + w], reads ? g.c(r + w % 2, j + w / 2) : 0.f);
    }
    if (across) {
      store2(g.d.ptr(r, j), x[0], x[2]);
      store2(g.d.ptr(r + 1, j), x[1], x[3]);
    } else if (down) {
      store2(g.d.ptr(r, j), x[0], x[1]);
      store2(g.d.ptr(r, j + 1), x[2], x[3]);
    } else {
#pragma unroll
      for (int w = 0; w < 4; ++w)
        if (exists(r + w % 2, j + w / 2)) g.d(r + w % 2, j + w / 2) = x[w];
    }
  }
}

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
