// gmem -> smem -> registers -> bf16 parts: operands are split on their way to the tensor cores, one
// into registers and one into shared memory, all 24 bits of an element, whatever its row. What
// three parts cannot hold is told by Reach.
#pragma once

#include "xgemm/ptx.h"
#include "xgemm/split.h"

namespace xgemm {

// Magnitudes between which nothing can go wrong: products of such numbers and sums of as many as
// there can be, 2^33, are far within the range of FP32, and so are all parts.
constexpr int kLeastExponent = -50, kMostExponent = 45;

// Of the elements that a thread has seen: the smallest magnitude but zero, less one, without the
// sign's bit; and of their first parts the largest, in both halves. Elements may be so small that
// their parts are zeros.
struct Reach {
  // kShort is of a product, not of an element.
  static constexpr uint32_t kLow = 1, kHigh = 2, kShort = 4;
  uint32_t least = 0xffffffffu, most = 0;

  // Two elements, and their first parts.
  __device__ __forceinline__ void see(float x0, float x1, uint32_t parts) {
    const uint32_t a = float_to_bits(x0), b = float_to_bits(x1);
    least = min3_u32(a + a - 1, b + b - 1, least);
    most = max_u16x2(parts & 0x7fff7fffu, most);
  }
  // Whether some were below, and above, what is safe for any product.
  __device__ __forceinline__ uint32_t strange() const {
    constexpr uint32_t kLeast = (127 + kLeastExponent) << 24, kMost = (127 + kMostExponent) << 7;
    const bool low = least < kLeast - 1;
    const bool high = (most & 0xffffu) >= kMost || most >> 16 >= kMost;
    return (low ? kLow : 0) | (high ? kHigh : 0);
  }
};

// Two neighbours along k into their parts, p0 first.
__device__ __forceinline__ void split_pair(uint32_t (&parts)[3], float x0, float x1, Reach& reach) {
#pragma unroll
  for (int p = 0; p < 3; ++p) {
    parts[p] = pack_half2<Half::bf16>(x0, x1);
    if (p == 0) reach.see(x0, x1, parts[p]);
    if (p == 2) continue;
    float y0, y1;
    unpack_half2<Half::bf16>(parts[p], y0, y1);
    x0 -= y0, x1 -= y1;
  }
}

constexpr int kSliceK = 32;  // of k, a slice

// Slices of an operand as it lies (rows along k): from row l0 of `length` and k0 to k1 on. kL rows
// a slice, of which a thread has kRows, neighbours, from `first` on, and kDepth of k from `k`: of k
// the j-th in runs of kRun that lie kStride apart. kAlongK: the way in which the operand is
// contiguous. Each thread copies to shared memory what it reads itself: there, many slices can be
// on their way.
template <int kL, int kRows, int kDepth, int kRun, int kStride, bool kAlongK, int kThreads>
struct Walk {
  static constexpr int kWidth = kAlongK ? 4 : kRows, kPieces = kRows * kDepth / kWidth;
  static_assert(!kAlongK || kRun % 4 == 0);
  using Raw = float[kPieces][kThreads][kWidth];

  const float* p;  // the thread's first element of the next slice
  int64_t row, step;  // from a row, from a k to the next, in floats
  int64_t left;  // how much of k there is from the next slice on
  int whole;  // slices from the next one on that have no edge and move in vectors
  int rows;  // of the operand from the thread's first one on
  int k;

  __device__ Walk(const View<const float>& rows_of, int64_t l0, int64_t length, int64_t k0,
                  int64_t k1, int first, int k_)
      : row(rows_of.rs), step(rows_of.cs), left(k1 - k0), k(k_) {
    const int64_t here = length - l0;
    const bool by_row = kAlongK || kRows == 1;  // a row that does not exist is left out by itself
    const bool wide = kAlongK ? rows_of.wide() : kRows == 1 || rows_of.transposed().wide();
    whole = wide && (by_row || here >= kL) ? static_cast<int>(left / kSliceK) : 0;
    rows = static_cast<int>(here < kL ? here : kL) - first;
    p = rows_of.ptr(l0 + (rows > 0 ? first : 0), k0 + k);
  }

  // gmem -> smem, then on to the next slice. To be committed and waited for.
  __device__ __forceinline__ void copy(Raw& raw, int thread) {
    const Smem to(raw[0][thread]);
    pass([&] { copy_whole(to); }, [&](int real) { copy_edge(to, real); });
  }

  // gmem -> registers, then on to the next slice: for whole slices in vectors, too.
  __device__ __forceinline__ void load(float (&x)[kRows][kDepth]) {
    pass([&] { load_whole(x); }, [&](int real) { load_edge(x, real); });
  }

  // Run `run` of a slice.
  __device__ static __forceinline__ void take(float (&x)[kRows][kRun], const Raw& raw, int thread,
                                              int run) {
    if constexpr (kAlongK) {
#pragma unroll
      for (int i = 0; i < kRows; ++i)
#pragma unroll
        for (int j = 0; j < kRun; j += 4)
          load4(x[i] + j, raw[(i * kDepth + run * kRun + j) / 4][thread]);
    } else {
#pragma unroll
      for (int j = 0; j < kRun; ++j) {
        const float* const from = raw[run * kRun + j][thread];
        if constexpr (kRows == 2) {
          float y[2];
          load2(y, from);
          x[0][j] = y[0], x[1][j] = y[1];
        } else {
          x[0][j] = *from;
        }
      }
    }
  }

 private:
  static constexpr int at(int j) { return j / kRun * kStride + j % kRun; }

  // A slice by one of its two ways, then on to the next.
  template <class Whole, class Edge>
  __device__ __forceinline__ void pass(const Whole& whole_slice, const Edge& edge) {
    if (whole > 0) [[likely]]
      whole_slice();
    else edge(left < kSliceK ? static_cast<int>(left) - k : kSliceK);
    p += kSliceK * step;
    left -= kSliceK;
    --whole;
  }

  // `real` of k, from the thread's first on, exist.
  __device__ __forceinline__ void copy_edge(Smem to, int real) const {
#pragma unroll 4
    for (int e = 0; e < kRows * kDepth; ++e) {
      const int i = kAlongK ? e / kDepth : e % kRows, j = kAlongK ? e % kDepth : e / kRows;
      cp_async_some<4>(to + (e / kWidth * (kThreads * kWidth) + e % kWidth),
                       p + i * row + at(j) * step, i < rows && at(j) < real ? 4 : 0);
    }
  }

  __device__ __forceinline__ void load_edge(float (&x)[kRows][kDepth], int real) const {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float* from = p + i * row;
#pragma unroll
      for (int j = 0; j < kDepth; ++j) {
        x[i][j] = i < rows && at(j) < real ? *from : 0.f;
        from += (j + 1) % kRun ? step : (kStride - kRun + 1) * step;
      }
    }
  }

  __device__ __forceinline__ void load_whole(float (&x)[kRows][kDepth]) const {
    if constexpr (kAlongK) {
#pragma unroll
      for (int i = 0; i < kRows; ++i)
#pragma unroll
        for (int j = 0; j < kDepth; j += 4) {
          if (i < rows) {
            load4(x[i] + j, p + i * row + at(j));
          } else {
#pragma unroll
            for (int e = 0; e < 4; ++e) x[i][j + e] = 0.f;
          }
        }
    } else {
#pragma unroll
      for (int j = 0; j < kDepth; ++j) {
        static_assert(kRows == 2);
        float y[2];
        load2(y, p + at(j) * step);
        x[0][j] = y[0], x[1][j] = y[1];
      }
    }
  }

  __device__ __forceinline__ void copy_whole(Smem to) const {
#pragma unroll
    for (int c = 0; c < kPieces; ++c) {
      const Smem place = to + c * (kThreads * kWidth);
      if constexpr (kAlongK) {
        const int i = c / (kDepth / 4), j = c % (kDepth / 4) * 4;
        cp_async_some<16>(place, p + i * row + at(j), i < rows ? 16 : 0);
      } else if constexpr (kRows == 2) {
        cp_async<8>(place, p + at(c) * step);
      } else {
        cp_async_some<4>(place, p + at(c) * step, rows > 0 ? 4 : 0);
      }
    }
  }
};

// wgmma's operand in registers: 64 rows a warpgroup, of which thread t has 16 (t / 32) +
// 2 (t % 32 / 4) and the next, as rows t % 32 / 4 and 8 more of the instruction's. Of 16 k it has
// 4 (t % 4) and the three after it; which k stands where does not matter to a product, as long as
// both operands agree. Two slices are there: one is multiplied while the next is split.
template <int kThreads, bool kAlongK>
struct RegisterParts {
  static constexpr int kGroups = kSliceK / 16;
  using Rows = Walk<kThreads / 2, 2, 4 * kGroups, 4, 16, kAlongK, kThreads>;
  using Raw = typename Rows::Raw;
  Rows walk;
  uint32_t parts[2][kGroups][3][4];

  __device__ static int first_row() { return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 * 2; }

  __device__ RegisterParts(const View<const float>& rows_of, int64_t l0, int64_t length, int64_t k0,
                           int64_t k1)
      : walk(rows_of, l0, length, k0, k1, first_row(), static_cast<int>(threadIdx.x) % 4 * 4) {}

  __device__ __forceinline__ void copy(Raw& raw) { walk.copy(raw, threadIdx.x); }

  // 16 of k, from shared memory, or from the registers where a slice has come.
  __device__ __forceinline__ void split(int s, int group, const Raw& raw, Reach& reach) {
    float x[2][4];
    Rows::take(x, raw, threadIdx.x, group);
    split(parts[s][group], x[0], x[1], reach);
  }
  __device__ __forceinline__ void split(int s, int group, Reach& reach) {
    split(parts[s][group], loaded[s][0] + 4 * group, loaded[s][1] + 4 * group, reach);
  }

  __device__ __forceinline__ void load(int s) { walk.load(loaded[s]); }

 private:
  float loaded[2][2][4 * kGroups];

  __device__ static __forceinline__ void split(uint32_t (&parts)[3][4], const float* x,
                                               const float* y, Reach& reach) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const float* const from = (r % 2 ? y : x) + r / 2 * 2;
      uint32_t pair[3];
      split_pair(pair, from[0], from[1], reach);
#pragma unroll
      for (int p = 0; p < 3; ++p) parts[p][r] = pair[p];
    }
  }
};

// The other one in shared memory, L rows: part after part, rows of kSliceK, swizzled as wgmma wants
// them. Of each 16 k the first 8 places are k 0, 1, 4, 5, 8, 9, 12, 13, which is RegisterParts'
// order. Of each kThreads threads one has kRows rows by 8 k, as far as they go round.
template <int kThreads, int L, bool kAlongK>
struct SharedParts {
  static constexpr int kChunks = kSliceK / 8;
  static constexpr int kRows = L * kChunks > kThreads ? L * kChunks / kThreads : 1;
  static constexpr int kLines = L / kRows, kRowBytes = kSliceK * 2;
  static_assert(kLines * kChunks <= kThreads && kRows <= 2);
  using Slice = char[3][L * kRowBytes];
  using Rows = Walk<L, kRows, 8, 8, 8, kAlongK, kThreads>;
  using Raw = typename Rows::Raw;

  __device__ static int thread() { return static_cast<int>(threadIdx.x) % kThreads; }
  __device__ static int line() { return kAlongK ? thread() / kChunks : thread() % kLines; }
  __device__ static int chunk() { return kAlongK ? thread() % kChunks : thread() / kLines; }
  // Whether the thread has any of it.
  __device__ static bool mine() {
    return kLines * kChunks == kThreads || thread() < kLines * kChunks;
  }

  // A slice as it came into parts.
  __device__ static __forceinline__ void split(Slice& slice, const Raw& raw, Reach& reach) {
    if (!mine()) return;
    float x[kRows][8];
    Rows::take(x, raw, thread(), 0);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      uint32_t pairs[4][3];
#pragma unroll
      for (int e = 0; e < 4; ++e) split_pair(pairs[e], x[i][2 * e], x[i][2 * e + 1], reach);
      const int r = line() * kRows + i, place = chunk() & ~1, half = chunk() % 2 * 8;
#pragma unroll
      for (int p = 0; p < 3; ++p)
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
          char* to = slice[p] + r * kRowBytes + ((place + odd) ^ r / 2 % 4) * 16 + half;
          store2(reinterpret_cast<float*>(to), bits_to_float(pairs[odd][p]),
                 bits_to_float(pairs[odd + 2][p]));
        }
    }
  }
};

// Its way there, by as many threads.
template <int kThreads, int L, bool kAlongK>
struct SharedRows {
  using Parts = SharedParts<kThreads, L, kAlongK>;
  typename Parts::Rows walk;

  __device__ SharedRows(const View<const float>& rows_of, int64_t l0, int64_t length, int64_t k0,
                        int64_t k1)
      : walk(rows_of, l0, length, k0, k1, Parts::mine() ? Parts::line() * Parts::kRows : L,
             Parts::mine() ? Parts::chunk() * 8 : 0) {}

  __device__ __forceinline__ void copy(typename Parts::Raw& raw) {
    if (Parts::mine()) walk.copy(raw, Parts::thread());
  }
};

}  // namespace xgemm
