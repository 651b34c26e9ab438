// gmem -> smem past the registers: how the threads of a block copy one slice of one operand by
// cp.async, in parts, so that the copies of a later slice spread over the products of this one.
#pragma once

#include "xgemm/core/tile_scheduler.h"
#include "xgemm/device/ptx/base.h"

namespace xgemm {

// One thread's share of an L x BK slice that lies K-major in shared memory, S[k][l]. kAlongK says
// which way the operand is contiguous: along k it is transposed on its way, 4 bytes at a time;
// along l it moves 16 bytes at a time where its alignment allows. The parts of a slice, BK / kParts
// deep or L / kParts long, are copied in order. Addresses are kept, not computed: a part costs its
// copies and a few additions.
template <int kThreads, int L, int BK, int kRow, int kParts, bool kAlongK>
struct AsyncLoader {
  using Slice = float[BK][kRow];
  // Along k: a warp copies 8 k of 4 rows, whole sectors of gmem, 32 banks where the rows of S are
  // padded by 4. Rows between a thread's copies, and how many steps of them make a part:
  static constexpr int kDepth = 8, kLong = kThreads / kDepth, kRows = L / kLong / kParts;
  // Along l, by vectors and by floats: threads side by side, k between a thread's copies, how many
  // steps of them make a part.
  static constexpr int kLanes4 = L / 4, kStep4 = kThreads / kLanes4, kEach4 = BK / kStep4 / kParts;
  static constexpr int kLanes1 = L < kThreads ? L : kThreads, kStep1 = kThreads / kLanes1;
  static constexpr int kEach1 = BK / kStep1 / kParts;
  static constexpr int kPart = kAlongK ? L / kParts : BK / kParts * kRow;  // floats, in S
  static_assert(kAlongK ? kRows * kLong * kParts == L && BK % kDepth == 0
                        : kEach4 * kStep4 * kParts == BK && kEach1 * kStep1 * kParts == BK &&
                              kStep4 * kLanes4 == kThreads && L % kLanes1 == 0);

  const float* p;  // the thread's first element of the next part
  int64_t step;    // from a copy (or a run of them) of the thread to the next, in floats
  int64_t back;    // along k: from a slice's end to the next slice's start
  int place;       // of the thread's first element in S, in floats
  int rows;        // rows of the operand that the slices hold, at most L
  int ahead;       // of them from the thread's first one on
  int whole;       // slices without an edge along k, of an operand that is contiguous in its way
  bool wide;       // 16-byte copies are aligned

  // `rows_of` is the operand with rows along k, K long; its slices' rows begin at l0 of `length`.
  // `thread` is the number of this one of the kThreads.
  __device__ AsyncLoader(const View<const float>& rows_of, int64_t l0, int64_t length, int64_t K,
                         int thread) {
    rows = static_cast<int>(length - l0 < L ? length - l0 : L);
    const bool contiguous = (kAlongK ? rows_of.cs : rows_of.rs) == 1;
    whole = contiguous ? static_cast<int>(K / BK) : 0;
    wide = !kAlongK && rows_of.transposed().wide();
    const int lanes = wide ? kLanes4 : kLanes1;
    const int l = kAlongK ? thread / kDepth : thread % lanes * (wide ? 4 : 1);
    const int k = kAlongK ? thread % kDepth : thread / lanes;
    place = k * kRow + l;
    ahead = rows - l;
    step = kAlongK ? rows_of.rs * kLong : rows_of.cs * (wide ? kStep4 : kStep1);
    back = kAlongK ? BK - rows_of.rs * L : 0;
    p = rows_of.ptr(l0 + l, k);
  }

  // Whether copy_plain does: all rows are there, and 16 bytes move at a time where the operand is
  // not transposed.
  __device__ __forceinline__ bool plain() const { return rows == L && (kAlongK || wide); }

  // Issues the next part of a slice without an edge; `to` is the part's place of the thread.
  __device__ __forceinline__ void copy_plain(Smem to) {
    if constexpr (kAlongK) {
#pragma unroll
      for (int e = 0; e < kRows; ++e, p += step)
#pragma unroll
        for (int q = 0; q < BK; q += kDepth) cp_async<4>(to + (q * kRow + e * kLong), p + q);
    } else {
#pragma unroll
      for (int e = 0; e < kEach4; ++e, p += step) cp_async<16>(to + e * kStep4 * kRow, p);
    }
  }
  // The same at any alignment, of the rows that there are; the others are zero. `part` is the
  // number of the part.
  __device__ __forceinline__ void copy(Smem to, int part) {
    if (plain()) return copy_plain(to);
    if constexpr (kAlongK) {
      const int left = ahead - part * (kRows * kLong);
#pragma unroll
      for (int e = 0; e < kRows; ++e, p += step)
#pragma unroll
        for (int q = 0; q < BK; q += kDepth)
          cp_async_some<4>(to + (q * kRow + e * kLong), p + q, e * kLong < left ? 4 : 0);
    } else if (wide) {
      const int bytes = ahead < 0 ? 0 : ahead < 4 ? ahead * 4 : 16;
#pragma unroll
      for (int e = 0; e < kEach4; ++e, p += step)
        cp_async_some<16>(to + e * kStep4 * kRow, p, bytes);
    } else {
#pragma unroll
      for (int e = 0; e < kEach1; ++e, p += step)
#pragma unroll
        for (int r = 0; r < L; r += kLanes1)
          cp_async_some<4>(to + (e * kStep1 * kRow + r), p + r, r < ahead ? 4 : 0);
    }
  }
  // After the last part.
  __device__ __forceinline__ void next_slice() { p += back; }

  // The same for any operand and any slice, float by float; outside the operand S holds `pad`.
  // rows_of, l0, K and thread are the constructor's.
  __device__ __forceinline__ void copy_edge(Slice& S, const View<const float>& rows_of, int64_t l0,
                                            int64_t K, int slice, int part, float pad,
                                            int thread) const {
    const int64_t left = K - static_cast<int64_t>(slice) * BK;
    constexpr int kSpan = kAlongK ? L / kParts : BK / kParts;  // of a part, along its direction
    constexpr int kWidth = kAlongK ? BK : L;
    if (left <= 0 && slice > 0) return;  // slice 0 is read even when K is 0
#pragma unroll 1
    for (int t = thread; t < kSpan * kWidth; t += kThreads) {
      const int run = t % kWidth, line = t / kWidth + part * kSpan;
      const int l = kAlongK ? line : run, k = kAlongK ? run : line;
      // cp.async can fill with +0 only, and A is padded with -0: a store does it.
      if (l < rows && k < left) cp_async<4>(&S[k][l], rows_of.ptr(l0 + l, K - left + k));
      else S[k][l] = pad;
    }
  }
};

// T.buffers slices of both operands in shared memory, K-major.
template <Tile T>
struct Ring {
  float a[T.buffers][T.BK][T.BM + T.pad_a];
  float b[T.buffers][T.BK][T.BN + T.pad_b];
};

// Both operands' way into a ring.
template <Tile T, int kParts, bool kA, bool kB>
struct AsyncCopies {
  AsyncLoader<T.threads(), T.BM, T.BK, T.BM + T.pad_a, kParts, kA> a;
  AsyncLoader<T.threads(), T.BN, T.BK, T.BN + T.pad_b, kParts, kB> b;
  int whole;  // slices without an edge in either operand

  __device__ AsyncCopies(const Gemm& g, const TileCoord& o)
      : a(g.a, o.i, g.m, g.k, threadIdx.x),
        b(g.b.transposed(), o.j, g.n, g.k, threadIdx.x),
        whole(a.whole < b.whole ? a.whole : b.whole) {}

  // Whether part<true> does for whole slices.
  __device__ bool plain() const { return a.plain() && b.plain(); }

  // Issues part `number` of a slice into a buffer of the ring. kPlain: the slice is known to be
  // whole, and all copies are the widest that their layout has.
  template <bool kPlain>
  __device__ __forceinline__ void part(Ring<T>& ring, const Gemm& g, const TileCoord& o, int slice,
                                       int buffer, int number) {
    const Smem to_a = Smem(&ring.a[buffer][0][0]) + (a.place + number * a.kPart);
    const Smem to_b = Smem(&ring.b[buffer][0][0]) + (b.place + number * b.kPart);
    if constexpr (kPlain) {
      a.copy_plain(to_a), b.copy_plain(to_b);
    } else if (slice < whole) {
      a.copy(to_a, number), b.copy(to_b, number);
    } else {
      a.copy_edge(ring.a[buffer], g.a, o.i, g.k, slice, number, kPadA, threadIdx.x);
      b.copy_edge(ring.b[buffer], g.b.transposed(), o.j, g.k, slice, number, kPadB, threadIdx.x);
    }
    if (number + 1 == kParts) a.next_slice(), b.next_slice();
  }
};

}  // namespace xgemm
