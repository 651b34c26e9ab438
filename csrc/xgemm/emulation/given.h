// Results that FP32 elements give themselves, limbs or not: of a row of A, or a column of B, with
// one element but zeros they are single products, exact but for their rounding; an infinity is left
// by all finite products as it is; a NaN by all.
#pragma once

#include <limits>

#include "xgemm/device/copy/gmem.h"
#include "xgemm/device/ptx/base.h"
#include "xgemm/emulation/certificate.h"

namespace xgemm {
inline namespace XGEMM_FLAVOUR {

// The element that gives a row's results.
struct GivenBy {
  static constexpr uint32_t kNone = 0xffffffffu;  // no place along k (can_decompose): not given
  uint32_t at;  // its place along k
  float x;

  __device__ __forceinline__ bool given() const { return at != kNone; }
  __device__ __forceinline__ bool finite() const {
    return fabsf(x) <= std::numeric_limits<float>::max();
  }
};

// What gives a row's results, whose elements begin at p; if anything does. A NaN stands for all
// that it makes of a row, wherever in it: any of the others times it, or plus it, is one.
__device__ __forceinline__ GivenBy given_by(const RowScale& s, const float* p, int64_t step) {
  if (!(s.flags & kGivenFlags)) return {GivenBy::kNone, 0.f};
  if (s.flags & kNan) return {0, std::numeric_limits<float>::quiet_NaN()};
  return {s.at, p[s.at * step]};
}

// A unit of D, by kThreads threads.
template <int kThreads, int kRows, int kColumns>
struct GivenUnit {
  GivenBy rows[kRows], columns[kColumns];  // in shared memory

  // Of the unit at (i, j) of g: one matrix of a batch, as the scales. The threads meet between the
  // two.
  __device__ __forceinline__ void find(const Gemm& g, const RowScale* row_scales,
                                       const RowScale* column_scales, int64_t i, int64_t j) {
#pragma unroll 1
    for (int r = threadIdx.x; r < kRows; r += kThreads) {
      const int64_t row = min_of(i + r, g.m - 1);
      rows[r] = given_by(row_scales[row], g.a.ptr(row, 0), g.a.cs);
    }
#pragma unroll 1
    for (int c = threadIdx.x; c < kColumns; c += kThreads) {
      const int64_t column = min_of(j + c, g.n - 1);
      columns[c] = given_by(column_scales[column], g.b.ptr(0, column), g.b.rs);
    }
  }

  // Through the epilogue. A warp has 4 rows by 32 columns at a time, so that rows of D are stored
  // line by line and columns of A that lie so are read by halves of sectors; a thread asks for
  // kAtOnce rows' elements before it stores any. Code is short: where it is rare it is fetched from
  // memory first.
  __device__ __forceinline__ void store(const Gemm& g, int64_t i, int64_t j) const {
    store(g, i, j, [](int, int) { return 0u; });
  }
  // ... but for those that others(row, column) has a bit of, of four from there on. `thread`: the
  // number of this one of the kThreads.
  template <class Others>
  __device__ __forceinline__ void store(const Gemm& g, int64_t i, int64_t j, const Others& others,
                                        int thread = static_cast<int>(threadIdx.x)) const {
    constexpr int kAcross = kColumns / 32, kStep = 4 * (kThreads / 32 / kAcross), kAtOnce = 4;
    static_assert(kThreads / 32 % kAcross == 0 && kRows % (kStep * kAtOnce) == 0);
    const int warp = thread / 32, lane = thread % 32;
    const int column = warp % kAcross * 32 + lane % 8 * 4;
    const int64_t j0 = j + column;
    const int width = static_cast<int>(min_of(g.n - j0, 4));
    const bool whole = width == 4 && g.d.wide() && g.beta == 0.f && g.act == Act::none;
    // Of the thread's columns, a bit each: those that are given, by what is not finite.
    uint32_t of_columns = 0, not_finite = 0;
    float of_column[4];
    const float* by_column[4];  // the other factor, in row 0
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const GivenBy by = columns[column + w];
      of_columns |= static_cast<uint32_t>(by.given()) << w;
      not_finite |= static_cast<uint32_t>(!by.finite()) << w;
      of_column[w] = by.x;
      by_column[w] = g.a.ptr(0, by.given() ? by.at : 0);
    }
#pragma unroll 1
    for (int first = warp / kAcross * 4 + lane / 8; first < kRows; first += kStep * kAtOnce) {
      float z[kAtOnce][4];  // at first the other factor
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        const GivenBy by_row = rows[first + n * kStep];
        const uint32_t of_row = those_of(by_row, not_finite);
        const int64_t r = min_of(i + first + n * kStep, g.m - 1) * g.a.rs;
        const float* const b = g.b.ptr(by_row.given() ? by_row.at : 0, j0);
#pragma unroll
        for (int w = 0; w < 4; ++w)
          if (w < width && (of_row | of_columns) >> w & 1)
            z[n][w] = *(of_row >> w & 1 ? b + w * g.b.cs : by_column[w] + r);
      }
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        const GivenBy by_row = rows[first + n * kStep];
        const uint32_t of_row = those_of(by_row, not_finite);
        const uint32_t given = (of_row | of_columns) & ~others(first + n * kStep, column);
        const int64_t r = i + first + n * kStep;
        if (given == 0 || r >= g.m) continue;
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          z[n][w] = fmaf(of_row >> w & 1 ? by_row.x : of_column[w], z[n][w], 0.f);
          if (g.k > 1) z[n][w] += 0.f;  // a product of -0 is followed, or led, by others of 0
        }
        if (not_finite && of_row && !by_row.finite()) [[unlikely]] {
#pragma unroll
          for (int w = 0; w < 4; ++w) {
            const uint32_t at = columns[column + w].at;
            const bool nan = of_column[w] != of_column[w];  // wherever it is
            if (not_finite >> w & 1 && (nan || at != by_row.at))
              z[n][w] += g.a(r, at) * of_column[w];
          }
        }
        if (whole && given == 15) {
          float* const d = g.d.ptr(r, j0);
          simt::expect_aligned(d, 16);
          __stcg(reinterpret_cast<float4*>(d),
                 make_float4(g.without_c(z[n][0]), g.without_c(z[n][1]), g.without_c(z[n][2]),
                             g.without_c(z[n][3])));
          continue;
        }
        // The four rotate, so that no index is dynamic.
#pragma unroll 1
        for (int w = 0; w < width; ++w) {
          if (given >> w & 1) g.store(r, j0 + w, z[n][0]);
          z[n][0] = z[n][1], z[n][1] = z[n][2], z[n][2] = z[n][3];
        }
      }
    }
  }

 private:
  // Which of four results the row gives, and not the column: what is not finite goes before what
  // is.
  __device__ static __forceinline__ uint32_t those_of(const GivenBy& row, uint32_t not_finite) {
    return !row.given() ? 0u : row.finite() ? 15u & ~not_finite : 15u;
  }
};

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
