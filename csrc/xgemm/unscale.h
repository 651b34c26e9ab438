// The epilogue of stages that multiply parts: undoing the rows' scales, and the elements that parts
// cannot give.
#pragma once

#include "xgemm/copy.h"
#include "xgemm/split.h"

namespace xgemm {

// acc * 2^-(a + b), rounded once. Halves of the exponent: acc is no smaller than 2^-60 (or zero),
// so that the first product is exact unless the second is zero or infinite anyway.
__device__ __forceinline__ float unscale(float acc, int a, int b) {
  int e = -(a + b);
  e = e < -252 ? -252 : e > 252 ? 252 : e;
  return acc * power_of_2(e / 2) * power_of_2(e - e / 2);
}

// How tensor cores hold a tile of D: a thread has, of rows i and i + 8, pairs of neighbours 8
// columns apart, acc[4 p + 2 h + c] being element (i + 8 h, j + 8 p + c). Here they are unscaled,
// go through the epilogue and are stored, as far as parts suffice; the others are computed as the
// strict stages do. j is even.
template <int kPairs>
struct PartsEpilogue {
  const Gemm& g;  // of one matrix of the batch, as the scales
  const RowScale *rows, *columns;
  int64_t i, j;
  int depth;
  bool wide;  // pairs of D can move as 8 bytes

  __device__ PartsEpilogue(const Gemm& g_, const RowScale* rows_, const RowScale* columns_,
                           int64_t i_, int64_t j_)
      : g(g_), rows(rows_), columns(columns_), i(i_), j(j_), depth(depth_of(g_.k)) {
    wide = g.d.cs == 1 && reinterpret_cast<uintptr_t>(g.d.data) % 8 == 0 && g.d.rs % 2 == 0;
  }

  __device__ __forceinline__ void store(const float (&acc)[4 * kPairs]) const {
    if (plain()) [[likely]]
      return store_plain(acc);
    bool all = true;
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int p = 0; p < kPairs; ++p)
        if (i + 8 * h < g.m)
          all &= store_pair(i + 8 * h, j + 8 * p, acc[4 * p + 2 * h], acc[4 * p + 2 * h + 1]);
    if (all) return;
#pragma unroll 1
    for (int h = 0; h < 2; ++h)
#pragma unroll 1
      for (int p = 0; p < kPairs; p += kAnew / 2)
        if (i + 8 * h < g.m) store_anew(i + 8 * h, j + 8 * p);
  }

 private:
  // Whether all of the thread's elements exist, move in pairs, have parts that suffice, and scales
  // that can be undone one by one.
  __device__ __forceinline__ bool plain() const {
    if (!wide || i + 8 >= g.m || j + 8 * kPairs - 7 >= g.n) return false;
    constexpr int kFar = 60;
    const RowScale a = rows[i], b = rows[i + 8];
    int top = -kFar, least = a.exponent < b.exponent ? a.exponent : b.exponent;
    int most = a.exponent < b.exponent ? b.exponent : a.exponent;
    float risk = 0.f, tiny = fminf(a.risk, b.risk);
#pragma unroll
    for (int e = 0; e < 2 * kPairs; ++e) {
      const RowScale c = columns[j + e / 2 * 8 + e % 2];
      top = c.top > top ? c.top : top;
      least = c.exponent < least ? c.exponent : least;
      most = c.exponent > most ? c.exponent : most;
      risk = fmaxf(risk, fabsf(c.risk)), tiny = fminf(tiny, c.risk);
    }
    const int top_a = a.top < b.top ? b.top : a.top;
    risk += fmaxf(fabsf(a.risk), fabsf(b.risk));
    return least >= -kFar && most <= kFar && top + top_a + depth < kOverflow &&
           (tiny >= 0.f || risk <= 1.f);
  }

  __device__ __forceinline__ void store_plain(const float (&acc)[4 * kPairs]) const {
    float* const d0 = g.d.ptr(i, j);
    float* const d1 = g.d.ptr(i + 8, j);
    const float *c0 = nullptr, *c1 = nullptr;
    if (g.beta != 0.f) c0 = g.c.ptr(i, j), c1 = g.c.ptr(i + 8, j);
    const float a0 = power_of_2(-rows[i].exponent), a1 = power_of_2(-rows[i + 8].exponent);
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
      const float b0 = power_of_2(-columns[j + 8 * p].exponent);
      const float b1 = power_of_2(-columns[j + 8 * p + 1].exponent);
      float c[4] = {};
      if (g.beta != 0.f) {
        c[0] = c0[8 * p * g.c.cs], c[1] = c0[(8 * p + 1) * g.c.cs];
        c[2] = c1[8 * p * g.c.cs], c[3] = c1[(8 * p + 1) * g.c.cs];
      }
      store2(d0 + 8 * p, g.finish(acc[4 * p] * a0 * b0, c[0]),
             g.finish(acc[4 * p + 1] * a0 * b1, c[1]));
      store2(d1 + 8 * p, g.finish(acc[4 * p + 2] * a1 * b0, c[2]),
             g.finish(acc[4 * p + 3] * a1 * b1, c[3]));
    }
  }

  // Elements (r, c) and (r, c + 1); whether parts suffice for those of them that exist.
  __device__ __forceinline__ bool store_pair(int64_t r, int64_t c, float acc0, float acc1) const {
    bool all = true;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      if (c + e >= g.n) continue;
      const RowScale a = rows[r], b = columns[c + e];
      const bool right = parts_suffice(a, b, depth);
      if (right) g.store(r, c + e, unscale(e ? acc1 : acc0, a.exponent, b.exponent));
      all &= right;
    }
    return all;
  }

  // What store_pair left out of kAnew columns of a row, by FP32 chains side by side.
  static constexpr int kAnew = kPairs < 8 ? kPairs : 8;
  __device__ __forceinline__ void store_anew(int64_t r, int64_t c) const {
    const RowScale row = rows[r];
    const float* b[kAnew];
    bool missing[kAnew], any = false;
#pragma unroll
    for (int e = 0; e < kAnew; ++e) {
      const int64_t column = c + e / 2 * 8 + e % 2;
      const bool exists = column < g.n;
      missing[e] = exists && !parts_suffice(row, columns[column], depth);
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
