// One to four rows: what a warp does. Nothing is used twice but A, so the large operand passes by
// once, and what counts is how much of it is on its way.
#pragma once

#include <type_traits>

#include "xgemm/chain_sums.h"
#include "xgemm/copy.h"
#include "xgemm/ptx.h"

namespace xgemm {

constexpr int kGemvThreads = 128, kGemvWarps = kGemvThreads / 32;
constexpr int kGemvK = 32, kGemvBuffers = 4;  // slices of a warp's ring along k

// Columns of a warp: those that lie along k pass through shared memory, a lane has one of them;
// of the others it has four.
XGEMM_HD constexpr int gemv_columns(bool along_k) { return along_k ? 32 : 128; }

// A warp's ring. Lanes read rows of `b`, 16 bytes at a time: 36 apart they meet no bank twice.
template <int TM>
struct GemvRing {
  float b[kGemvBuffers][32][kGemvK + 4];
  float a[kGemvBuffers][TM][kGemvK];
};

// The warp's columns from j0 on, which lie along k.
template <int TM>
struct GemvAlongK {
  GemvRing<TM>& ring;
  const Gemm& g;
  int64_t i0, j0;
  bool wide;

  __device__ __forceinline__ void copy(int slice) const {
    const int lane = threadIdx.x % 32, buffer = slice % kGemvBuffers;
    const int64_t k0 = int64_t{slice} * kGemvK, left = g.k - k0;
    const View<const float> columns = g.b.transposed();
    float (&b)[32][kGemvK + 4] = ring.b[buffer];
    if (wide && left >= kGemvK) {
      constexpr int kChunks = kGemvK / 4, kStep = 32 / kChunks;
      const int chunk = lane % kChunks * 4;
#pragma unroll
      for (int r = lane / kChunks; r < 32; r += kStep)
        cp_async<16>(&b[r][chunk], columns.ptr(min_of(j0 + r, g.n - 1), k0 + chunk));
    } else {
#pragma unroll 4
      for (int r = 0; r < 32; ++r)
        if (lane < left) cp_async<4>(&b[r][lane], columns.ptr(min_of(j0 + r, g.n - 1), k0 + lane));
        else b[r][lane] = kPadB;
    }
#pragma unroll
    for (int i = 0; i < TM; ++i)
      if (lane < left)
        cp_async<4>(&ring.a[buffer][i][lane], g.a.ptr(min_of(i0 + i, g.m - 1), k0 + lane));
      else ring.a[buffer][i][lane] = kPadA;
  }

  __device__ __forceinline__ void multiply() const {
    const int lane = threadIdx.x % 32, slices = static_cast<int>(ceil_div(g.k, kGemvK));
    for (int s = 0; s + 1 < kGemvBuffers; ++s) {
      if (s < slices) copy(s);
      cp_async_commit();
    }
    float acc[TM] = {};
#pragma unroll 1
    for (int s = 0; s < slices; ++s) {
      cp_async_wait<kGemvBuffers - 2>();
      __syncwarp();  // every lane's copies of slice s are here, and slice s - 1 has been read
      if (s + kGemvBuffers - 1 < slices) copy(s + kGemvBuffers - 1);
      cp_async_commit();
      const int buffer = s % kGemvBuffers;
#pragma unroll
      for (int k = 0; k < kGemvK; k += 4) {
        float b[4], a[4];
        load4(b, &ring.b[buffer][lane][k]);
#pragma unroll
        for (int i = 0; i < TM; ++i) {
          load4(a, &ring.a[buffer][i][k]);
#pragma unroll
          for (int e = 0; e < 4; ++e) acc[i] = fmaf(a[e], b[e], acc[i]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < TM; ++i) g.store(i0 + i, j0 + lane, acc[i]);
  }
};

// The warp's columns from j0 on, which lie side by side: past shared memory. kWide: 16 bytes at a
// time.
template <int TM, bool kWide>
__device__ __forceinline__ void gemv_along_n(const Gemm& g, int64_t i0, int64_t j0) {
  constexpr int kAhead = TM == 1 ? 16 : 8;  // of k: rows of B that are asked for at a time
  constexpr int kStep = kWide ? 1 : 32;
  const int64_t j = j0 + threadIdx.x % 32 * (kWide ? 4 : 1);
  const float* b_at[4];  // of the thread's columns, the first only if kWide
#pragma unroll
  for (int c = 0; c < 4; ++c) b_at[c] = g.b.ptr(0, kWide ? j : min_of(j + c * kStep, g.n - 1));
  const float* a_at[TM];
#pragma unroll
  for (int i = 0; i < TM; ++i) a_at[i] = g.a.ptr(min_of(i0 + i, g.m - 1), 0);
  float acc[TM][4] = {};
  const auto run = [&](auto ahead, int64_t& k) {
#pragma unroll 1
    for (; k + ahead() <= g.k; k += ahead()) {
      float b[ahead()][4], a[ahead()][TM];
#pragma unroll
      for (int q = 0; q < ahead(); ++q) {
        if constexpr (kWide) {
          load4(b[q], b_at[0]), b_at[0] += g.b.rs;
        } else {
#pragma unroll
          for (int c = 0; c < 4; ++c) b[q][c] = *b_at[c], b_at[c] += g.b.rs;
        }
#pragma unroll
        for (int i = 0; i < TM; ++i) a[q][i] = *a_at[i], a_at[i] += g.a.cs;
      }
#pragma unroll
      for (int q = 0; q < ahead(); ++q)
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
          for (int c = 0; c < 4; ++c) acc[i][c] = fmaf(a[q][i], b[q][c], acc[i][c]);
    }
  };
  int64_t k = 0;
  run(std::integral_constant<int, kAhead>(), k);
  run(std::integral_constant<int, 1>(), k);
#pragma unroll
  for (int i = 0; i < TM; ++i)
#pragma unroll
    for (int c = 0; c < 4; ++c) g.store(i0 + i, j + c * kStep, acc[i][c]);
}

}  // namespace xgemm
