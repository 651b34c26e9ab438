// The epilogue of stages that multiply parts: undoing the rows' scales, and the elements that parts
// cannot give.
#pragma once

#include <bit>
#include <type_traits>

#include "xgemm/copy.h"
#include "xgemm/split.h"

namespace xgemm {

// acc * 2^-(a + b), by halves of the exponent, which have one sign: the first product is exact
// unless the result is infinite, or below FP32's normal numbers.
__device__ __forceinline__ float unscale(float acc, int a, int b) {
  int e = -(a + b);
  e = e < -252 ? -252 : e > 252 ? 252 : e;
  return acc * power_of_2(e / 2) * power_of_2(e - e / 2);
}

// What the threads that share a tile, or a part of it, find out about its rows' and columns' scales
// before they undo them; in shared memory, so that nobody asks for a scale but once.
template <int kThreads, int kRows, int kColumns>
struct TileScales {
  float rows[kRows], columns[kColumns];  // 2^-exponent
  uint32_t doubts[kThreads / 32];  // by warp, what is not plain

  // A thread's share of them, on their way: asked for long before they are needed, and left as they
  // come, since whoever takes them apart waits for them.
  static constexpr int kRowsEach = (kRows + kThreads - 1) / kThreads;
  static constexpr int kColumnsEach = (kColumns + kThreads - 1) / kThreads;
  struct Share {
    uint64_t rows[kRowsEach], columns[kColumnsEach];
  };

  // Of [i, i + kRows) x [j, j + kColumns) of g.
  __device__ static __forceinline__ Share fetch(const Gemm& g, const RowScale* rows_,
                                                const RowScale* columns_, int64_t i, int64_t j,
                                                int thread) {
    Share share;
    // What does not exist has the last's, and waits for no comparison.
    const auto of = [](const RowScale* scales, int64_t at, int64_t all) {
      return *reinterpret_cast<const uint64_t*>(scales + min_of(at, all - 1));
    };
#pragma unroll
    for (int n = 0; n < kRowsEach; ++n)
      share.rows[n] = of(rows_, i + (thread + n * kThreads) % kRows, g.m);
#pragma unroll
    for (int n = 0; n < kColumnsEach; ++n)
      share.columns[n] = of(columns_, j + (thread + n * kThreads) % kColumns, g.n);
    return share;
  }

  // The threads meet before all of it is there.
  __device__ __forceinline__ void put(const Share& share, int64_t k, int thread) {
    uint32_t doubt = 0;
#pragma unroll
    for (int n = 0; n < kRowsEach; ++n)
      if (const int r = thread + n * kThreads; r < kRows)
        doubt |= keep(rows[r], std::bit_cast<RowScale>(share.rows[n]));
#pragma unroll
    for (int n = 0; n < kColumnsEach; ++n)
      if (const int c = thread + n * kThreads; c < kColumns)
        doubt |= keep(columns[c], std::bit_cast<RowScale>(share.columns[n]));
    tell(doubt, k, thread);
  }

  // Both, one scale after another: for threads that have no registers to spare.
  __device__ __forceinline__ void load(const Gemm& g, const RowScale* rows_,
                                       const RowScale* columns_, int64_t i, int64_t j, int thread) {
    uint32_t doubt = 0;
#pragma unroll 1
    for (int r = thread; r < kRows; r += kThreads)
      doubt |= keep(rows[r], i + r < g.m ? rows_[i + r] : RowScale{});
#pragma unroll 1
    for (int c = thread; c < kColumns; c += kThreads)
      doubt |= keep(columns[c], j + c < g.n ? columns_[j + c] : RowScale{});
    tell(doubt, g.k, thread);
  }

  // Whether parts suffice for every pair of a row and a column, and two scales' product is exact:
  // parts_suffice for all of them at once, and not for some that are rare.
  __device__ __forceinline__ bool plain() const {
    uint32_t doubt = 0;
#pragma unroll
    for (const uint32_t d : doubts) doubt |= d;
    return !(doubt & kFar) && (doubt & (kTiny | kRisky)) != (kTiny | kRisky);
  }

 private:
  static constexpr uint32_t kFar = 1, kTiny = 2, kRisky = 4;
  static constexpr int kMostExponent = 60, kMostTop = 50, kDepth = 20;
  static constexpr float kMostRisk = 0.5f;  // two such rows have 1, with which parts still suffice
  static_assert(2 * kMostTop + kDepth < kOverflow);

  __device__ static __forceinline__ uint32_t keep(float& undo, const RowScale& scale) {
    undo = power_of_2(-scale.exponent);
    return doubt_of(scale);
  }

  __device__ __forceinline__ void tell(uint32_t doubt, int64_t k, int thread) {
    if (k > int64_t{1} << kDepth) doubt |= kFar;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) doubt |= __shfl_xor_sync(0xffffffffu, doubt, step);
    if (thread % 32 == 0) doubts[thread / 32] = doubt;
  }

  __device__ static uint32_t doubt_of(const RowScale& s) {
    const bool far = s.exponent < -kMostExponent || s.exponent > kMostExponent || s.top > kMostTop;
    return (far ? kFar : 0) | (s.risk < 0.f ? kTiny : 0) | (fabsf(s.risk) > kMostRisk ? kRisky : 0);
  }
};

// How tensor cores hold a tile of D: a thread has, of rows i and i + 8, pairs of neighbours 8
// columns apart, acc[4 p + 2 h + c] being element (i + 8 h, j + 8 p + c). Here they are unscaled,
// go through the epilogue and are stored, as far as parts suffice; the others are computed as the
// strict stages do. j is even.
template <int kPairs>
struct PartsEpilogue {
  const Gemm& g;  // of one matrix of the batch, as the scales
  const RowScale *rows, *columns;
  int64_t i, j;
  const float *undo_rows, *undo_columns;  // 2^-exponent from row i and column j on, if all is plain
  bool plain;  // TileScales

  __device__ __forceinline__ void store(const float (&acc)[4 * kPairs]) const {
    const bool whole = i + 8 < g.m && j + 8 * kPairs - 7 < g.n;
    const bool in_pairs = whole && plain && g.d.cs == 1 && g.d.rs % 2 == 0 &&
                          reinterpret_cast<uintptr_t>(g.d.data) % 8 == 0;
    // The way of most tiles once more, without a jump: its code is fetched as it is run, and what a
    // jump leads to is not, at first.
    if (kStraight && in_pairs && g.act == Act::none) [[likely]] {
      if (g.beta == 0.f) return store_straight(acc, std::false_type());
      if (g.c.cs == 1 && g.c.rs % 2 == 0 && reinterpret_cast<uintptr_t>(g.c.data) % 8 == 0)
        return store_straight(acc, std::true_type());
    }
    uint32_t missing = 0;
#pragma unroll
    for (int run = 0; run < kPairs; run += kRun) {
      const uint32_t exist = whole ? kEvery : existing(run);
      float x[4 * kRun];
#pragma unroll
      for (int e = 0; e < 4 * kRun; ++e) x[e] = acc[4 * run + e];
      const uint32_t right = plain ? exist : exist & unscale_each(x, run, exist);
      if (plain) unscale_all(x, run);
      missing |= exist & ~right;
      finish(x, run, right);
      if (in_pairs) [[likely]]
        store_pairs(x, run);
      else store_each(x, run, right);
    }
    if (!missing) return;
#pragma unroll 1
    for (int h = 0; h < 2; ++h)
#pragma unroll 1
      for (int p = 0; p < kPairs; p += kAnew / 2)
        if (i + 8 * h < g.m) store_anew(i + 8 * h, j + 8 * p);
  }

 private:
  // Pairs of each row that are seen to together: what they need of memory is asked for before any
  // is stored, since the compiler cannot know that D does not lie there. Element e of a run is in
  // row i + e / 2 % 2 * 8, and column j + 8 * run + column_of(e).
  static constexpr int kRun = kPairs < 8 ? kPairs : 8;
  static constexpr bool kStraight = kPairs >= 8;  // else a thread has several of these
  static constexpr uint32_t kEvery = ~0u >> (32 - 4 * kRun);
  __device__ static constexpr int column_of(int e) { return e / 4 * 8 + e % 2; }

  template <class WithC>
  __device__ __forceinline__ void store_straight(const float (&acc)[4 * kPairs], WithC) const {
#pragma unroll
    for (int run = 0; run < kPairs; run += kRun) {
      float x[4 * kRun], c[4 * kRun];
#pragma unroll
      for (int e = 0; e < 4 * kRun; e += 2)
        if constexpr (WithC()) load2(c + e, g.c.ptr(i + e / 2 % 2 * 8, j + 8 * run + column_of(e)));
#pragma unroll
      for (int e = 0; e < 4 * kRun; ++e) x[e] = acc[4 * run + e];
      unscale_all(x, run);
#pragma unroll
      for (int e = 0; e < 4 * kRun; ++e)
        if constexpr (WithC()) x[e] = g.with_c(x[e], c[e]);
        else x[e] = g.without_c(x[e]);
      store_pairs(x, run);
    }
  }

  // Which elements of a run exist, a bit each.
  __device__ __forceinline__ uint32_t existing(int run) const {
    const int64_t height = g.m - i, width = g.n - j - 8 * run;
    uint32_t bits = 0;
#pragma unroll
    for (int e = 0; e < 4 * kRun; ++e)
      if (e / 2 % 2 * 8 < height && column_of(e) < width) bits |= 1u << e;
    return bits;
  }

  __device__ __forceinline__ void unscale_all(float (&x)[4 * kRun], int run) const {
    const float a[2] = {undo_rows[0], undo_rows[8]};
#pragma unroll
    for (int e = 0; e < 4 * kRun; ++e) x[e] *= a[e / 2 % 2] * undo_columns[8 * run + column_of(e)];
  }

  // For which of the `exist`ing ones parts suffice, a bit each.
  __device__ __forceinline__ uint32_t unscale_each(float (&x)[4 * kRun], int run,
                                                   uint32_t exist) const {
    const RowScale row[2] = {rows[min_of(i, g.m - 1)], rows[min_of(i + 8, g.m - 1)]};
    const int depth = depth_of(g.k);
    uint32_t right = 0;
#pragma unroll
    for (int e = 0; e < 4 * kRun; ++e) {
      if (!(exist >> e & 1)) continue;
      const RowScale &a = row[e / 2 % 2], b = columns[j + 8 * run + column_of(e)];
      if (parts_suffice(a, b, depth)) right |= 1u << e;
      x[e] = unscale(x[e], a.exponent, b.exponent);
    }
    return right;
  }

  // Gemm::finish of all elements that are `right`.
  __device__ __forceinline__ void finish(float (&x)[4 * kRun], int run, uint32_t right) const {
    if (g.beta == 0.f) {
#pragma unroll
      for (float& each : x) each = g.without_c(each);
    } else {
      float c[4 * kRun];
#pragma unroll
      for (int e = 0; e < 4 * kRun; ++e)
        c[e] = right >> e & 1 ? g.c(i + e / 2 % 2 * 8, j + 8 * run + column_of(e)) : 0.f;
#pragma unroll
      for (int e = 0; e < 4 * kRun; ++e) x[e] = g.with_c(x[e], c[e]);
    }
    if (g.act == Act::none) return;
#pragma unroll
    for (float& each : x) each = activate(g.act, each);
  }

  __device__ __forceinline__ void store_pairs(const float (&x)[4 * kRun], int run) const {
    float* const d[2] = {g.d.ptr(i, j), g.d.ptr(i + 8, j)};
#pragma unroll
    for (int e = 0; e < 4 * kRun; e += 2)
      store2(d[e / 2 % 2] + 8 * run + column_of(e), x[e], x[e + 1]);
  }

  __device__ __forceinline__ void store_each(const float (&x)[4 * kRun], int run,
                                             uint32_t right) const {
#pragma unroll
    for (int e = 0; e < 4 * kRun; ++e)
      if (right >> e & 1) g.d(i + e / 2 % 2 * 8, j + 8 * run + column_of(e)) = x[e];
  }

  // What parts did not suffice for of kAnew columns of a row, by FP32 chains side by side.
  static constexpr int kAnew = kPairs < 8 ? kPairs : 8;
  __device__ __forceinline__ void store_anew(int64_t r, int64_t c) const {
    const RowScale row = rows[r];
    const float* b[kAnew];
    bool missing[kAnew], any = false;
#pragma unroll
    for (int e = 0; e < kAnew; ++e) {
      const int64_t column = c + e / 2 * 8 + e % 2;
      const bool exists = column < g.n;
      missing[e] = exists && !parts_suffice(row, columns[column], depth_of(g.k));
      any |= missing[e];
      b[e] = g.b.ptr(0, exists ? column : 0);
    }
    if (!any) return;
    float acc[kAnew] = {};
    const float* a = g.a.ptr(r, 0);
#pragma unroll 4
    for (int64_t k = 0; k < g.k; ++k) {
      const float x = a[k * g.a.cs];
#pragma unroll
      for (int e = 0; e < kAnew; ++e) acc[e] = fmaf(x, b[e][k * g.b.rs], acc[e]);
    }
#pragma unroll
    for (int e = 0; e < kAnew; ++e)
      if (missing[e]) g.store(r, c + e / 2 * 8 + e % 2, acc[e]);
  }
};

}  // namespace xgemm
