// The epilogue of stages that multiply limbs: the certificate of each result, and undoing the rows'
// scales.
#pragma once

#include <bit>
#include <type_traits>

#include "xgemm/device/ptx/base.h"
#include "xgemm/emulation/limbs.h"

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
  static_assert(kRows % 32 == 0);
  float rows[kRows], columns[kColumns];  // 2^-exponent
  alignas(4) uint16_t row_doubts[kRows], column_doubts[kColumns];  // RowScale::doubt
  uint32_t found[kThreads / 32];  // by warp: RangeFlags
  uint32_t given_rows[kRows / 32], given_columns[kColumns / 32];  // a bit each
  uint32_t uncertain[kThreads / 32];  // by warp: how many results
  int row_reach[kThreads / 32], column_reach[kThreads / 32];  // by warp: the most

  // A thread's share of them, all but the norm and the place, on their way: asked for long before
  // they are needed, and left as they come, since whoever takes them apart waits for them.
  static constexpr int kRowsEach = (kRows + kThreads - 1) / kThreads;
  static constexpr int kColumnsEach = (kColumns + kThreads - 1) / kThreads;
  struct Share {
    uint64_t rows[kRowsEach], columns[kColumnsEach];
  };

  // Of [i, i + kRows) x [j, j + kColumns) of g. Beyond the edge the last one is read again, so that
  // the load needs no branch.
  __device__ static __forceinline__ Share fetch(const Gemm& g, const RowScale* rows_,
                                                const RowScale* columns_, int64_t i, int64_t j,
                                                int thread) {
    Share share;
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

  // Of a tile with so many rows and columns of g, or more than it has. The threads meet before all
  // of it is there.
  __device__ __forceinline__ void put(const Share& share, int64_t k, int64_t rows_left,
                                      int64_t columns_left, int thread) {
    uint32_t flags = k > kMostDepth ? uint32_t{kFar} : 0;
#pragma unroll
    for (int n = 0; n < kRowsEach; ++n)
      if (const int r = thread + n * kThreads; r < kRows) {
        const uint32_t of_row = keep(rows[r], &row_doubts[r], share.rows[n], r < rows_left);
        const uint32_t given = __ballot_sync(0xffffffffu, of_row & kGivenFlags);
        if (thread % 32 == 0) given_rows[r / 32] = given;
        flags |= of_row;
      }
#pragma unroll
    for (int n = 0; n < kColumnsEach; ++n)
      if (const int c = thread + n * kThreads; c < kColumns) {
        const uint32_t of_column =
            keep(columns[c], &column_doubts[c], share.columns[n], c < columns_left);
        const uint32_t given = __ballot_sync(0xffffffffu, of_column & kGivenFlags);
        if (thread % 32 == 0) given_columns[c / 32] = given;
        flags |= of_column;
      }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) flags |= __shfl_xor_sync(0xffffffffu, flags, step);
    if (thread % 32 == 0) found[thread / 32] = flags;
  }

  // Of all rows and columns: 0 means that the plain way is right for every pair.
  __device__ __forceinline__ uint32_t flags() const {
    uint32_t flags = 0;
#pragma unroll
    for (const uint32_t of_warp : found) flags |= of_warp;
    return flags;
  }

  // Whether all results are given, so that no product of limbs is stored.
  __device__ __forceinline__ bool all_given() const {
    uint32_t rows_are = 0xffffffffu, columns_are = 0xffffffffu;
#pragma unroll
    for (const uint32_t of_rows : given_rows) rows_are &= of_rows;
#pragma unroll
    for (const uint32_t of_columns : given_columns) columns_are &= of_columns;
    return rows_are == 0xffffffffu || columns_are == 0xffffffffu;
  }

  // What becomes of the tile at (i, j) where some rows are lossy, or far, or have infinities.
  // `count` of the thread's results are not certain. The threads meet between the two.
  __device__ __forceinline__ void vote(uint32_t flags, const Gemm& g, const RowScale* rows_,
                                       const RowScale* columns_, int64_t i, int64_t j,
                                       uint32_t count, int thread) {
    const uint32_t of_warp = __reduce_add_sync(0xffffffffu, count);
    if (thread % 32 == 0) uncertain[thread / 32] = of_warp;
    if (!(flags & kFar)) return;
    const auto most = [&](const RowScale* scales, int64_t first, int64_t all, int size) {
      int reach = kNoReach;
#pragma unroll 1
      for (int n = thread; n < size; n += kThreads) {
        const int of_row = reach_of(scales[min_of(first + n, all - 1)]);
        reach = of_row > reach ? of_row : reach;
      }
      return __reduce_max_sync(0xffffffffu, reach);
    };
    const int of_rows = most(rows_, i, g.m, kRows), of_columns = most(columns_, j, g.n, kColumns);
    if (thread % 32 == 0) row_reach[thread / 32] = of_rows, column_reach[thread / 32] = of_columns;
  }
  __device__ __forceinline__ uint32_t all_uncertain() const {
    uint32_t all = 0;
#pragma unroll
    for (const uint32_t of_warp : uncertain) all += of_warp;
    return all;
  }
  // How many are other threads' before this one's.
  __device__ __forceinline__ uint32_t uncertain_before(uint32_t count, int thread) const {
    uint32_t before = 0;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const uint32_t other = __shfl_up_sync(0xffffffffu, before + count, step);
      if (thread % 32 >= step) before += other;
    }
    for (int w = 0; w < thread / 32; ++w) before += uncertain[w];
    return before;
  }
  __device__ __forceinline__ bool needs_chains(uint32_t flags) const {
    if (flags & kInfinities) return true;
    if (!(flags & kFar)) return false;
    int of_rows = kNoReach, of_columns = kNoReach;
#pragma unroll
    for (int w = 0; w < kThreads / 32; ++w) {
      of_rows = row_reach[w] > of_rows ? row_reach[w] : of_rows;
      of_columns = column_reach[w] > of_columns ? column_reach[w] : of_columns;
    }
    return may_overflow(of_rows, of_columns);
  }

 private:
  // Its flags. Two neighbours' doubts are one word, stored by the first.
  __device__ static __forceinline__ uint32_t keep(float& undo, uint16_t* doubt, uint64_t scale,
                                                  bool exists) {
    undo = power_of_2(-static_cast<int32_t>(scale));
    const uint32_t own = exists ? static_cast<uint32_t>(scale >> 48) : 0u;
    const uint32_t next = __shfl_xor_sync(0xffffffffu, own, 1);
    if (threadIdx.x % 2 == 0) *reinterpret_cast<uint32_t*>(doubt) = own | next << 16;
    return static_cast<uint32_t>(scale >> 32) & 0xffffu;
  }
};

// How tensor cores hold a tile of D: a thread has, of rows i and i + 8, pairs of neighbours 8
// columns apart, acc[4 p + 2 h + c] being element (i + 8 h, j + 8 p + c). Here they are certified,
// unscaled, go through the epilogue and are stored. j is even.
template <EmulationScheme S, int kPairs>
struct EmulatedEpilogue {
  const Gemm& g;  // of one matrix of the batch, as the scales
  const RowScale *rows, *columns;
  int64_t i, j;
  const float *undo_rows, *undo_columns;  // 2^-exponent from row i and column j on
  uint32_t flags;  // TileScales::flags

  // Which results of the thread's are not certain, a bit each. TileScales from its first row and
  // its first column on.
  __device__ __forceinline__ uint64_t uncertain(const float (&acc)[4 * kPairs],
                                                const uint16_t* row_doubts,
                                                const uint16_t* column_doubts) const {
    static_assert(4 * kPairs <= 64);
    const Doubt row[2] = {doubt_of(row_doubts[0]), doubt_of(row_doubts[8])};
    // First the smallest results against the largest threshold that any of them can have. Columns
    // that have no doubt, zeros or given, have no say.
    uint32_t norm = 0, weight = 0, doubted = 0;
#pragma unroll 4
    for (int p = 0; p < kPairs; ++p) {
      const uint32_t two = *reinterpret_cast<const uint32_t*>(column_doubts + 8 * p);
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const uint32_t column = c ? two >> 16 : two & 0xffffu;
        norm = column % kManyNorms > norm ? column % kManyNorms : norm;
        weight = column > weight ? column : weight;
        doubted |= static_cast<uint32_t>(column != 0) << (2 * p + c);
      }
    }
    const Doubt most = doubt_of(norm | weight / kManyNorms * kManyNorms);
    float least[2] = {INFINITY, INFINITY};
#pragma unroll
    for (int e = 0; e < 4 * kPairs; ++e)
      if (doubted >> (e / 4 * 2 + e % 2) & 1)
        least[e / 2 % 2] = fminf(least[e / 2 % 2], fabsf(acc[e]));
    if (least[0] >= threshold(S, row[0], most) && least[1] >= threshold(S, row[1], most)) return 0;
    uint32_t bits[2] = {};
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
      const uint32_t two = *reinterpret_cast<const uint32_t*>(column_doubts + 8 * p);
#pragma unroll
      for (int e = 4 * p; e < 4 * p + 4; ++e)
        if (!(fabsf(acc[e]) >= threshold(S, row[e / 2 % 2], doubt_of(two >> e % 2 * 16 & 0xffffu))))
          bits[e / 32] |= 1u << e % 32;
    }
    return bits[0] | static_cast<uint64_t>(bits[1]) << 32;
  }
  // The same by the certificate of each alone, whatever else the tile has; of those that exist.
  __device__ __forceinline__ uint64_t uncertain_alone(const float (&acc)[4 * kPairs]) const {
    const RowScale row[2] = {rows[min_of(i, g.m - 1)], rows[min_of(i + 8, g.m - 1)]};
    uint32_t bits[2] = {};
#pragma unroll
    for (int e = 0; e < 4 * kPairs; ++e) {
      if (e % 8 == 0) keep_order();
      const int64_t r = i + row_of(e), c = j + column_of(e);
      const Fate fate =
          fate_of(S, row[e / 2 % 2], columns[min_of(c, g.n - 1)], acc[e], g.k > kMostDepth);
      if (r < g.m && c < g.n && fate >= Fate::recomputed) bits[e / 32] |= 1u << e % 32;
    }
    return bits[0] | static_cast<uint64_t>(bits[1]) << 32;
  }
  // Which of some results exist.
  __device__ __forceinline__ uint64_t existing(uint64_t some) const {
    uint64_t exist = 0;
#pragma unroll 1
    for (; some; some &= some - 1) {
      const int e = __ffsll(static_cast<long long>(some)) - 1;
      if (i + row_of(e) < g.m && j + column_of(e) < g.n) exist |= some & ~(some - 1);
    }
    return exist;
  }
  // Where result e lies, from row i and column j on.
  __device__ static __forceinline__ int row_of(int e) { return e / 2 % 2 * 8; }
  __device__ static constexpr int column_of(int e) { return e / 4 * 8 + e % 2; }

  // Leaves them where `place` has element e, unscaled or as they are.
  template <bool kUnscale, class Place>
  __device__ __forceinline__ void stage(const float (&acc)[4 * kPairs], const Place& place) const {
#pragma unroll
    for (int run = 0; run < kPairs; run += kRun) {
      float x[4 * kRun];
#pragma unroll
      for (int e = 0; e < 4 * kRun; ++e) x[e] = acc[4 * run + e];
      if constexpr (kUnscale) unscale_all(x, run);
#pragma unroll
      for (int e = 0; e < 4 * kRun; e += 2) store2(place(4 * run + e), x[e], x[e + 1]);
    }
  }
  // The same where some may be given, or differ in how they are unscaled, and then are stored
  // instead; whether they are staged. They come back from shared memory, one by one: that is little
  // code, and what lies between the code that all tiles need is fetched with it (a tile took 2.6 us
  // longer where it was 64 times as much).
  template <class Place>
  __device__ __forceinline__ bool stage_rare(const float (&acc)[4 * kPairs],
                                             const Place& place) const {
    if (!(flags & ~uint32_t{kLossy} && (g.beta != 0.f || flags & (kFar | kInfinities)))) {
      stage<true>(acc, place);
      return true;
    }
    stage<false>(acc, place);
#pragma unroll 1
    for (int e = 0; e < 4 * kPairs; ++e) {
      const int64_t r = i + row_of(e), c = j + column_of(e);
      const RowScale &a = rows[min_of(r, g.m - 1)], &b = columns[min_of(c, g.n - 1)];
      if (!((a.flags | b.flags) & kGivenFlags))
        g.store(r, c, unscale(*place(e), a.exponent, b.exponent));
    }
    return false;
  }

  // Those that are not given, and those too where nobody reads what they overwrite: given.h
  // follows.
  __device__ __forceinline__ void store(const float (&acc)[4 * kPairs]) const {
    if (flags & ~uint32_t{kLossy} && (g.beta != 0.f || flags & (kFar | kInfinities))) [[unlikely]]
      return store_some(acc);
    const bool whole = i + 8 < g.m && j + 8 * kPairs - 7 < g.n;
    const bool in_pairs =
        whole && g.d.cs == 1 && g.d.rs % 2 == 0 && reinterpret_cast<uintptr_t>(g.d.data) % 8 == 0;
    // The way of most tiles once more, without a jump: its code is fetched as it is run, and what a
    // jump leads to is not, at first.
    if (kStraight && in_pairs && g.act == Act::none) [[likely]] {
      if (g.beta == 0.f) return store_straight(acc, std::false_type());
      if (g.c.cs == 1 && g.c.rs % 2 == 0 && reinterpret_cast<uintptr_t>(g.c.data) % 8 == 0)
        return store_straight(acc, std::true_type());
    }
#pragma unroll
    for (int run = 0; run < kPairs; run += kRun) {
      const uint32_t exist = whole ? kEvery : existing(run);
      float x[4 * kRun];
#pragma unroll
      for (int e = 0; e < 4 * kRun; ++e) x[e] = acc[4 * run + e];
      unscale_all(x, run);
      finish(x, run, exist);
      if (in_pairs) [[likely]]
        store_pairs(x, run);
      else store_each(x, run, exist);
    }
  }

  // Those that are neither given nor among `others`, each unscaled as its own row and column ask.
  __device__ __forceinline__ void store_alone(const float (&acc)[4 * kPairs],
                                              uint64_t others) const {
    const RowScale row[2] = {rows[min_of(i, g.m - 1)], rows[min_of(i + 8, g.m - 1)]};
    const uint32_t deep = g.k > kMostDepth ? uint32_t{kFar} : 0u;
#pragma unroll
    for (int e = 0; e < 4 * kPairs; ++e) {
      if (e % 8 == 0) keep_order();
      const int64_t r = i + row_of(e), c = j + column_of(e);
      const RowScale &a = row[e / 2 % 2], &b = columns[min_of(c, g.n - 1)];
      const uint32_t any = a.flags | b.flags | deep;
      if (any & kGivenFlags || others >> e & 1) continue;
      g.store(r, c,
              any & kFar ? unscale(acc[e], a.exponent, b.exponent)
                         : acc[e] * undo_rows[row_of(e)] * undo_columns[column_of(e)]);
    }
  }

 private:
  // Pairs of each row that are seen to together: what they need of memory is asked for before any
  // is stored, since the compiler cannot know that D does not lie there. Element e of a run is in
  // row i + row_of(e), and column j + 8 * run + column_of(e).
  static constexpr int kRun = kPairs < 8 ? kPairs : 8;
  static constexpr bool kStraight = kPairs >= 8;  // else a thread has several of these
  static constexpr uint32_t kEvery = ~0u >> (32 - 4 * kRun);

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
    for (int e = 0; e < 4 * kRun; ++e)
      x[e] = x[e] * a[e / 2 % 2] * undo_columns[8 * run + column_of(e)];
  }

  // Where some rows are not plain: element after element.
  __device__ __forceinline__ void store_some(const float (&acc)[4 * kPairs]) const {
    const RowScale row[2] = {rows[min_of(i, g.m - 1)], rows[min_of(i + 8, g.m - 1)]};
#pragma unroll
    for (int e = 0; e < 4 * kPairs; ++e) {
      if (e % 8 == 0) keep_order();  // for want of registers
      const int64_t r = i + e / 2 % 2 * 8, c = j + e / 4 * 8 + e % 2;
      const RowScale &a = row[e / 2 % 2], &b = columns[min_of(c, g.n - 1)];
      if (!((a.flags | b.flags) & kGivenFlags))
        g.store(r, c, unscale(acc[e], a.exponent, b.exponent));
    }
  }

  // Gemm::finish of all elements that `exist`.
  __device__ __forceinline__ void finish(float (&x)[4 * kRun], int run, uint32_t exist) const {
    if (g.beta == 0.f) {
#pragma unroll
      for (float& each : x) each = g.without_c(each);
    } else {
      float c[4 * kRun];
#pragma unroll
      for (int e = 0; e < 4 * kRun; ++e)
        c[e] = exist >> e & 1 ? g.c(i + e / 2 % 2 * 8, j + 8 * run + column_of(e)) : 0.f;
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
                                             uint32_t exist) const {
#pragma unroll
    for (int e = 0; e < 4 * kRun; ++e)
      if (exist >> e & 1) g.d(i + e / 2 % 2 * 8, j + 8 * run + column_of(e)) = x[e];
  }
};

}  // namespace xgemm
