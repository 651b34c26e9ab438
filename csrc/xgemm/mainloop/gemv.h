// One to four rows: what a warp does. Nothing is used twice but A, so the large operand passes by
// once, and what counts is how much of it is on its way.
#pragma once

#include <cfloat>

#include "xgemm/device/copy/gmem.h"
#include "xgemm/device/half.h"
#include "xgemm/device/ptx/base.h"
#include "xgemm/epilogue/split_k_chains.h"

namespace xgemm {

static_assert(kSplitKStep % kSliceK == 0);  // no slice is of two chains

// A warp's part of the product: its rows and columns, and the chains it makes of them, which lie
// together along k.
struct GemvPart {
  int64_t i0, j0, k0, k1, chain;
};

// The largest finite magnitude of every 32nd of k from the lane's on. Few loads at a time: they
// would take registers of those that multiply.
__device__ __forceinline__ float finite_most(const float* p, int64_t step, int64_t k) {
  constexpr int kAhead = 4;
  float most = 0.f;
  int64_t left = k - threadIdx.x % 32;
  p += threadIdx.x % 32 * step;
#pragma unroll 1
  for (; left > 0; left -= 32 * kAhead) {
    float x[kAhead];
#pragma unroll
    for (int q = 0; q < kAhead; ++q, p = opaque(p + 32 * step)) x[q] = 32 * q < left ? *p : 0.f;
#pragma unroll
    for (const float each : x) most = fabsf(each) <= FLT_MAX ? fmaxf(most, fabsf(each)) : most;
  }
  return most;
}
__device__ __forceinline__ float most_of_warp(float most) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
  return most;
}

// What has been seen of a chain's operands, NaN apart: where the product of the largest stays below
// `most`, no sum of such chains is anywhere near the end of FP32's range, whatever its order.
struct GemvRange {
  float a = 0.f, b = 0.f;
  __device__ __forceinline__ void see_a(float x) { a = fmaxf(a, fabsf(x)); }
  __device__ __forceinline__ void see_b(float x) { b = fmaxf(b, fabsf(x)); }
  // With what all lanes have seen of A.
  __device__ __forceinline__ GemvRange of_warp() const { return {most_of_warp(a), b}; }
  __device__ __forceinline__ bool within(int64_t k) const {
    return a * b <= 0x1p126f / static_cast<float>(k);
  }
  // Whether a chain of k0 to k1 is sure, by all of a warp: that of kRows rows, of which all lanes
  // know the range, and of a lane's columns, from the part's `column` on, `step` apart. An infinity
  // stays what it is in any number of chains: where there are some, only finite elements count.
  template <int kRows, int kColumns>
  __device__ __forceinline__ bool sure(const Gemm& g, const GemvPart& part, int64_t k0, int64_t k1,
                                       int column, int step) {
    constexpr uint32_t kAll = 0xffffffffu;
    if (__all_sync(kAll, within(g.k))) [[likely]]
      return true;
    if (a > FLT_MAX) {
      a = 0.f;
#pragma unroll 1
      for (int r = 0; r < kRows; ++r)
        a = fmaxf(a, finite_most(g.a.ptr(min_of(part.i0 + r, g.m - 1), k0), g.a.cs, k1 - k0));
      a = most_of_warp(a);
    }
    uint32_t left = __ballot_sync(kAll, b > FLT_MAX);
#pragma unroll 1
    for (int lane = 0; left; ++lane, left >>= 1) {
      if (!(left & 1)) continue;
      float most = 0.f;
      const int first = __shfl_sync(kAll, column, lane);
#pragma unroll 1
      for (int c = 0; c < kColumns; ++c) {
        const int64_t j = min_of(part.j0 + first + c * step, g.n - 1);
        most = fmaxf(most, finite_most(g.b.ptr(k0, j), g.b.rs, k1 - k0));
      }
      most = most_of_warp(most);
      if (static_cast<int>(threadIdx.x % 32) == lane) b = most;
    }
    return within(g.k);
  }
};

// Floats of a sector of memory, the least that moves: where a row of columns along k begins within
// one is its shift.
constexpr int kSector = 8;

// A warp's ring. Rows of `b` lie as in memory, from a sector's start on, so that 16 bytes move at a
// time and no sector twice. Lanes read their rows, 16 bytes at a time: those lie in another order
// in each of 8 rows, so that no bank is met twice. A row of `b` begins up to a sector before the
// slice's k: `a`, k by k, has as much before its own.
template <int TM, int kBuffers>
struct GemvRing {
  static constexpr int kDepthA = kSector + kSliceK;
  float b[kBuffers][32][kSliceK];
  float a[kBuffers][kDepthA * TM];

  __device__ static constexpr int place(int row, int k) { return k ^ row % 8 * 4; }
};

// Columns that lie along k: they pass through shared memory, a lane has one of 32. Each has slices
// of its own k, which begin at its sectors: in the first and the last slice of a chain some are
// before or past it, and padding.
template <int TM, int kBuffers>
struct GemvAlongK {
  GemvRing<TM, kBuffers>& ring;
  const Gemm& g;
  const GemvPart& part;

  // Of a column that begins at p.
  __device__ __forceinline__ int shift_of(const float* p) const {
    return g.b.rs == 1 ? static_cast<int>(reinterpret_cast<uintptr_t>(p) / sizeof(float) % kSector)
                       : 0;
  }

  // Slice t, counted from 0, of the chain of `length` that begins at k0.
  __device__ __forceinline__ void copy(int buffer, int64_t k0, int t, int64_t length) const {
    constexpr int kChunks = kSliceK / 4, kStep = 32 / kChunks;
    const int lane = threadIdx.x % 32, chunk = lane % kChunks * 4, first = lane / kChunks;
    const int64_t at = int64_t{t} * kSliceK;
    const View<const float> columns = g.b.transposed();
    float (&b)[32][kSliceK] = ring.b[buffer];
    const float* p = columns.ptr(part.j0 + first, k0);
    if (t > 0 && at + kSliceK <= length && part.j0 + 32 <= g.n && columns.cs == 1) {
#pragma unroll
      for (int r = 0; r < 32; r += kStep, p += columns.rs * kStep)
        cp_async<16>(&b[first + r][ring.place(first + r, chunk)], p - shift_of(p) + (at + chunk));
    } else {
      // How many k there are before and from the slice's first on, as far as anybody asks.
      const int before = t > 0 ? kSector : 0;
      const int left = static_cast<int>(min_of(length - at, 2 * kSliceK));
#pragma unroll 4
      for (int r = first; r < 32; r += kStep, p += columns.rs * kStep) {
        const int k = chunk - shift_of(p);  // of the four's first, in the slice
        const int skip = k + before < 0 ? -(k + before) : 0;
        const int inside = part.j0 + r < g.n && skip < 4 ? left - k : 0;
        const int count = inside < 0 ? 0 : inside < 4 ? inside : 4;
        float* const to = &b[r][ring.place(r, chunk)];
        if (columns.cs == 1 && (skip == 0 || count == 0)) {
          cp_async_some<16>(Smem(to), p + (at + k), count * 4);
        } else {
#pragma unroll
          for (int q = 0; q < 4; ++q)
            if (q >= skip && q < count) cp_async<4>(to + q, p + (at + k + q) * columns.cs);
            else to[q] = kPadB;
        }
      }
    }
#pragma unroll
    for (int e = lane; e < ring.kDepthA * TM; e += 32) {
      const int64_t k = at - kSector + e / TM;
      float* const to = &ring.a[buffer][e];
      if (k >= 0 && k < length) cp_async<4>(to, g.a.ptr(min_of(part.i0 + e % TM, g.m - 1), k0 + k));
      else *to = kPadA;
    }
  }

  // acc += the lane's products of a slice.
  __device__ __forceinline__ void add(float (&acc)[TM][1], GemvRange& range, int buffer,
                                      int shift) const {
    const int lane = threadIdx.x % 32;
    const float* const a_at = &ring.a[buffer][(kSector - shift) * TM];
#pragma unroll
    for (int k = 0; k < kSliceK; k += 4) {
      float b[4], a[TM];
      load4(b, &ring.b[buffer][lane][ring.place(lane, k)]);
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        range.see_b(b[q]);
        if constexpr (TM == 4) load4(a, a_at + (k + q) * TM);
        else a[0] = a_at[k + q];
#pragma unroll
        for (int i = 0; i < TM; ++i) acc[i][0] = fmaf(a[i], b[q], acc[i][0]);
      }
    }
#pragma unroll
    for (int e = lane; e < kSliceK * TM; e += 32) range.see_a(ring.a[buffer][kSector * TM + e]);
  }

  // leave(chain, sums, range) for each chain; the sums are of the lane's column.
  template <class Leave>
  __device__ __forceinline__ void multiply(int64_t share, Leave leave) const {
    static_assert(TM == 1 || TM == 4);
    const int64_t column = min_of(part.j0 + threadIdx.x % 32, g.n - 1);
    const int shift = shift_of(g.b.ptr(part.k0, column));  // of all chains: whole sectors long
    const int more = __any_sync(0xffffffffu, shift > 0) ? kSector - 1 : 0;
    // The slice that is asked for next, and the one that is multiplied.
    int64_t ask_k = part.k0, k = part.k0, chain = part.chain;
    int ask_t = 0, ask_buffer = 0, buffer = 0;
    const auto ask = [&] {
      if (ask_k < part.k1) {
        const int64_t length = min_of(share, part.k1 - ask_k);
        copy(ask_buffer, ask_k, ask_t, length);
        if (int64_t{++ask_t} * kSliceK >= length + more) ask_k += share, ask_t = 0;
      }
      cp_async_commit();
      if (++ask_buffer == kBuffers) ask_buffer = 0;
    };
#pragma unroll 1
    for (int s = 0; s + 1 < kBuffers; ++s) ask();
#pragma unroll 1
    do {
      const int64_t end = min_of(share, part.k1 - k) + more;
      float acc[TM][1] = {};
      GemvRange range;
      int64_t at = 0;
#pragma unroll 1
      do {
        cp_async_wait<kBuffers - 2>();
        __syncwarp();  // every lane's copies of the slice are here, and the one before was read
        ask();
        add(acc, range, buffer, shift);
        if (++buffer == kBuffers) buffer = 0;
        at += kSliceK;
      } while (at < end);
      leave(chain++, acc, range.of_warp());
      k += share;
    } while (k < part.k1);
  }

  // Of the group's, the lane's.
  static constexpr int kStep = 1;
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

  // acc += the products of kAhead k from k on, or (!kAll) of the first `left`, padded: a chain's
  // rest waits for memory once, as what comes before it does.
  template <bool kAll>
  __device__ __forceinline__ void add(float (&acc)[TM][kWidth], GemvRange& range,
                                      const float* (&b_at)[kWidth], int64_t k, int left) const {
    constexpr int kEach = (kAhead + 31) / 32;
    const int lane = threadIdx.x % 32;
    float b[kAhead][kWidth], a[kEach][TM];
#pragma unroll
    for (int q = 0; q < kAhead; ++q) {
      if (!kAll && q >= left) {
#pragma unroll
        for (int c = 0; c < kWidth; ++c) b[q][c] = kPadB;
        continue;
      }
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
        const int at = e * 32 + lane;
        const bool inside = at < (kAll ? kAhead : left);
        a[e][i] = inside ? g.a(min_of(part.i0 + i, g.m - 1), k + at) : kPadA;
        range.see_a(a[e][i]);
      }
#pragma unroll
    for (int q = 0; q < kAhead; ++q) {
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
      for (; k + kAhead <= end; k += kAhead) add<true>(acc, range, b_at, k, kAhead);
      if (k < end) add<false>(acc, range, b_at, k, static_cast<int>(end - k)), k = end;
      leave(chain++, acc, range.of_warp());
    } while (k < part.k1);
  }

  // Of the group's, number c of the lane's.
  __device__ static int column(int c) {
    return threadIdx.x % 32 * (kWide ? kWidth : 1) + c * kStep;
  }
};

}  // namespace xgemm
