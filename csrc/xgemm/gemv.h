// One to four rows: what a warp does. Nothing is used twice but A, so the large operand passes by
// once, and what counts is how much of it is on its way.
#pragma once

#include "xgemm/chain_sums.h"
#include "xgemm/copy.h"
#include "xgemm/ptx.h"

namespace xgemm {

constexpr int kGemvK = 32;  // of a slice of a warp's ring
static_assert(kShareStep % kGemvK == 0);  // no slice is of two chains

// A warp's part of the product: its rows and columns, and the chains it makes of them, which lie
// together along k.
struct GemvPart {
  int64_t i0, j0, k0, k1, chain;
};

// What has been seen of a chain's operands: where the product of the largest stays below `most`,
// no sum of such chains is anywhere near the end of FP32's range, whatever its order.
struct GemvRange {
  float a = 0.f, b = 0.f;
  __device__ __forceinline__ void see_a(float x) { a = fmaxf(a, fabsf(x)); }
  __device__ __forceinline__ void see_b(float x) { b = fmaxf(b, fabsf(x)); }
  // With what all lanes have seen of A.
  __device__ __forceinline__ GemvRange of_warp() const {
    float most = a;
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
    return {most, b};
  }
  __device__ __forceinline__ bool within(int64_t k) const {
    return a * b <= 0x1p126f / static_cast<float>(k);
  }
};

// A warp's ring. Lanes read their rows of `b`, 16 bytes at a time: those lie in another order in
// each of 8 rows, so that no bank is met twice.
template <int TM, int kBuffers>
struct GemvRing {
  float b[kBuffers][32][kGemvK];
  float a[kBuffers][TM][kGemvK];

  __device__ static constexpr int place(int row, int k) { return k ^ row % 8 * 4; }
};

// Columns that lie along k: they pass through shared memory, a lane has one of 32.
template <int TM, int kBuffers>
struct GemvAlongK {
  GemvRing<TM, kBuffers>& ring;
  const Gemm& g;
  const GemvPart& part;
  bool wide;

  __device__ __forceinline__ void copy(int slice) const {
    const int lane = threadIdx.x % 32, buffer = slice % kBuffers;
    const int64_t k0 = part.k0 + int64_t{slice} * kGemvK, left = part.k1 - k0;
    const View<const float> columns = g.b.transposed();
    float (&b)[32][kGemvK] = ring.b[buffer];
    if (wide && left >= kGemvK) {
      constexpr int kChunks = kGemvK / 4, kStep = 32 / kChunks;
      const int chunk = lane % kChunks * 4;
#pragma unroll
      for (int r = lane / kChunks; r < 32; r += kStep)
        cp_async<16>(&b[r][ring.place(r, chunk)],
                     columns.ptr(min_of(part.j0 + r, g.n - 1), k0 + chunk));
    } else {
#pragma unroll 4
      for (int r = 0; r < 32; ++r)
        if (float* const to = &b[r][ring.place(r, lane)]; lane < left)
          cp_async<4>(to, columns.ptr(min_of(part.j0 + r, g.n - 1), k0 + lane));
        else *to = kPadB;
    }
#pragma unroll
    for (int i = 0; i < TM; ++i)
      if (lane < left)
        cp_async<4>(&ring.a[buffer][i][lane], g.a.ptr(min_of(part.i0 + i, g.m - 1), k0 + lane));
      else ring.a[buffer][i][lane] = kPadA;
  }

  // leave(chain, sums, range) for each chain; the sums are of the lane's column.
  template <class Leave>
  __device__ __forceinline__ void multiply(int64_t share, Leave leave) const {
    const int lane = threadIdx.x % 32;
    const int slices = static_cast<int>(ceil_div(part.k1 - part.k0, kGemvK)) + (g.k == 0);
    const int each = static_cast<int>(ceil_div(share, kGemvK));
    for (int s = 0; s + 1 < kBuffers; ++s) {
      if (s < slices) copy(s);
      cp_async_commit();
    }
    float acc[TM][1] = {};
    GemvRange range;
    int64_t chain = part.chain;
#pragma unroll 1
    for (int s = 0, left = each; s < slices; ++s) {
      cp_async_wait<kBuffers - 2>();
      __syncwarp();  // every lane's copies of slice s are here, and slice s - 1 has been read
      if (s + kBuffers - 1 < slices) copy(s + kBuffers - 1);
      cp_async_commit();
      const int buffer = s % kBuffers;
#pragma unroll
      for (int k = 0; k < kGemvK; k += 4) {
        float b[4], a[4];
        load4(b, &ring.b[buffer][lane][ring.place(lane, k)]);
#pragma unroll
        for (int e = 0; e < 4; ++e) range.see_b(b[e]);
#pragma unroll
        for (int i = 0; i < TM; ++i) {
          load4(a, &ring.a[buffer][i][k]);
#pragma unroll
          for (int e = 0; e < 4; ++e) acc[i][0] = fmaf(a[e], b[e], acc[i][0]), range.see_a(a[e]);
        }
      }
      if (--left > 0 && s + 1 < slices) continue;
      leave(chain++, acc, range);
      left = each, range = {};
#pragma unroll
      for (int i = 0; i < TM; ++i) acc[i][0] = 0.f;
    }
  }

  // Of the group's, the lane's.
  __device__ static int column(int) { return threadIdx.x % 32; }
};

// Columns that lie side by side: past shared memory, a lane has kWidth of them, neighbours if they
// move as one vector (kWide). Of A a lane has every 32nd k, and tells the others.
template <int TM, int kWidth, bool kWide>
struct GemvAlongN {
  // Rows of B that are asked for at a time.
  static constexpr int kAhead = kWidth == 1 ? 64 : TM == 1 ? 32 : 16;
  static constexpr int kStep = kWide ? 1 : 32;  // from a lane's column to its next

  const Gemm& g;
  const GemvPart& part;

  // sums += the products of k to k + kCount.
  template <int kCount>
  __device__ __forceinline__ void add(float (&acc)[TM][kWidth], GemvRange& range,
                                      const float* (&b_at)[kWidth], int64_t k) const {
    constexpr int kEach = (kCount + 31) / 32;
    const int lane = threadIdx.x % 32;
    float b[kCount][kWidth], a[kEach][TM];
#pragma unroll
    for (int q = 0; q < kCount; ++q) {
      if constexpr (kWide) {
        load4(b[q], b_at[0]), b_at[0] += g.b.rs;
      } else {
#pragma unroll
        for (int c = 0; c < kWidth; ++c) b[q][c] = *b_at[c], b_at[c] += g.b.rs;
      }
    }
#pragma unroll
    for (int e = 0; e < kEach; ++e)
#pragma unroll
      for (int i = 0; i < TM; ++i) {
        a[e][i] = g.a(min_of(part.i0 + i, g.m - 1), k + e * 32 + (lane < kCount ? lane : 0));
        range.see_a(a[e][i]);
      }
#pragma unroll
    for (int q = 0; q < kCount; ++q) {
#pragma unroll
      for (int c = 0; c < kWidth; ++c) range.see_b(b[q][c]);
#pragma unroll
      for (int i = 0; i < TM; ++i) {
        const float x = __shfl_sync(0xffffffffu, a[q / 32][i], q % 32);
#pragma unroll
        for (int c = 0; c < kWidth; ++c) acc[i][c] = fmaf(x, b[q][c], acc[i][c]);
      }
    }
  }

  template <class Leave>
  __device__ __forceinline__ void multiply(int64_t share, Leave leave) const {
    const float* b_at[kWidth];  // the first only if kWide
#pragma unroll
    for (int c = 0; c < kWidth; ++c)
      b_at[c] = g.b.ptr(part.k0, min_of(part.j0 + column(c), g.n - 1));
    int64_t chain = part.chain, k = part.k0;
#pragma unroll 1
    do {
      const int64_t end = min_of(k + share, part.k1);
      float acc[TM][kWidth] = {};
      GemvRange range;
#pragma unroll 1
      for (; k + kAhead <= end; k += kAhead) add<kAhead>(acc, range, b_at, k);
#pragma unroll 1
      for (; k + 4 <= end; k += 4) add<4>(acc, range, b_at, k);
#pragma unroll 1
      for (; k < end; ++k) add<1>(acc, range, b_at, k);
      leave(chain++, acc, range.of_warp());
    } while (k < part.k1);
  }

  // Of the group's, number c of the lane's.
  __device__ static int column(int c) {
    return threadIdx.x % 32 * (kWide ? kWidth : 1) + c * kStep;
  }
};

}  // namespace xgemm
