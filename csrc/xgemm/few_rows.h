// Products with few rows: how K and the columns are shared out, and what a block does. Bits are a
// function of the problem and of the tile's rows, never of the machine.
#pragma once

#include <algorithm>
#include <utility>

#include "xgemm/copy.h"
#include "xgemm/launch.h"
#include "xgemm/split.h"

namespace xgemm {
inline namespace XGEMM_FLAVOUR {

constexpr int kFewThreads = 256;
constexpr int kFewColumnsAlongK = 32;  // of a block whose lanes walk k: 4 for each warp
// Of k, at least, for a block, when lanes walk k and when they don't: a whole number of passes.
constexpr int kFewAlongK = 512, kFewAlongN = 64;

// Partial sums [share][row][column], and with them the largest magnitudes of A's rows [share][row]
// and B's columns [share][column], by which sums that might overflow are known. One after another
// for each matrix of a launch.
struct FewJob {
  Gemm g;
  bool along_k = false;  // B's columns run along k, and lanes with them
  int64_t shares = 1, share = 0;  // of k
  int64_t row_groups = 1, column_groups = 1;
  float *sums = nullptr, *rows = nullptr, *columns = nullptr;

  XGEMM_HD int64_t blocks() const { return row_groups * column_groups * shares; }
  XGEMM_HD float& sum(int64_t z, int64_t s, int64_t i, int64_t j) const {
    return sums[((z * shares + s) * g.m + i) * g.n + j];
  }
  XGEMM_HD float& row(int64_t z, int64_t s, int64_t i) const {
    return rows[(z * shares + s) * g.m + i];
  }
  XGEMM_HD float& column(int64_t z, int64_t s, int64_t j) const {
    return columns[(z * shares + s) * g.n + j];
  }
};

struct FewPlan {
  FewJob job;
  size_t bytes = 0;
};

inline FewPlan plan_few(const Gemm& g, int tile_rows, void* workspace) {
  FewPlan plan;
  FewJob& job = plan.job;
  job.g = g;
  job.along_k = along_k(g.b.transposed(), g.n, g.k);
  job.row_groups = ceil_div(g.m, tile_rows);
  job.column_groups = ceil_div(g.n, job.along_k ? kFewColumnsAlongK : kFewThreads);
  // Enough blocks to keep a large GPU's memory busy.
  constexpr int64_t kBlocks = 2048;
  const int64_t others = job.row_groups * job.column_groups;
  const int64_t least = job.along_k ? kFewAlongK : kFewAlongN;
  job.shares = std::clamp<int64_t>(kBlocks / others, 1, std::max<int64_t>(1, g.k / least));
  job.share = ceil_div(std::max<int64_t>(g.k, 1), job.shares * least) * least;
  job.shares = ceil_div(std::max<int64_t>(g.k, 1), job.share);
  Layout all{workspace};
  const auto place = [&](int64_t floats) {
    return static_cast<float*>(all.place(static_cast<size_t>(floats) * sizeof(float)));
  };
  const int64_t matrices = std::min(g.batch, kMaxGridZ) * job.shares;
  job.sums = place(matrices * g.m * g.n);
  job.rows = place(matrices * g.m);
  job.columns = place(matrices * g.n);
  plan.bytes = all.bytes;
  return plan;
}

// A block's rows, columns and share of k. Columns are innermost, so that blocks side by side read
// side by side.
struct FewBlock {
  int64_t i0, j0, k0, k1, share;
  __device__ FewBlock(const FewJob& job, int rows, int columns) {
    const int64_t b = blockIdx.x;
    j0 = b % job.column_groups * columns;
    share = b / job.column_groups % job.shares;
    i0 = b / job.column_groups / job.shares * rows;
    k0 = share * job.share;
    k1 = min_of(k0 + job.share, job.g.k);
  }
};

__device__ __forceinline__ float sum_of_warp(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}
__device__ __forceinline__ float most_of_warp(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
  return x;
}

// What a thread's sums begin with. The chain begins with +0, and so does one of an element's sums;
// -0 adds nothing to the others, so that a result of -0 keeps its sign.
template <int kRows, int kColumns>
__device__ __forceinline__ void begin_sums(float (&acc)[kRows][kColumns], bool first) {
#pragma unroll
  for (int i = 0; i < kRows; ++i)
#pragma unroll
    for (int j = 0; j < kColumns; ++j) acc[i][j] = first ? 0.f : -0.f;
}

// 4 neighbours along k of row i; `pad` from `end` on. Rows from `rows` on are the last one again.
__device__ __forceinline__ void load_k4(float (&x)[4], const View<const float>& v, int64_t i,
                                        int64_t rows, int64_t k, int64_t end, float pad,
                                        bool wide) {
  i = i < rows ? i : rows - 1;
  if (wide && k + 4 <= end) load4(x, v.ptr(i, k));
  else
#pragma unroll
    for (int e = 0; e < 4; ++e) x[e] = k + e < end ? v(i, k + e) : pad;
}

// Lanes walk k, a warp has 4 columns.
template <int kRows>
__device__ void few_along_k(const FewJob& job, const Gemm& g, const FewBlock& at) {
  constexpr int kColumns = 4;
  const int lane = threadIdx.x % 32;
  const int64_t j0 = at.j0 + threadIdx.x / 32 * kColumns;
  const View<const float> bt = g.b.transposed();
  const bool wide_a = g.a.wide(), wide_b = bt.wide();
  float acc[kRows][kColumns], row[kRows] = {}, column[kColumns] = {};
  if (j0 >= g.n) return;
  begin_sums(acc, at.share == 0 && lane == 0);
#pragma unroll 1
  for (int64_t k = at.k0 + 4 * lane; k < at.k1; k += 128) {
    float b[kColumns][4];
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      load_k4(b[j], bt, j0 + j, g.n, k, at.k1, kPadB, wide_b);
#pragma unroll
      for (int e = 0; e < 4; ++e) column[j] = fmaxf(column[j], fabsf(b[j][e]));
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      float a[4];
      load_k4(a, g.a, at.i0 + i, g.m, k, at.k1, kPadA, wide_a);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        row[i] = fmaxf(row[i], fabsf(a[e]));
#pragma unroll
        for (int j = 0; j < kColumns; ++j) acc[i][j] = fmaf(a[e], b[j][e], acc[i][j]);
      }
    }
  }
  const int64_t z = blockIdx.z;
#pragma unroll
  for (int j = 0; j < kColumns; ++j) {
    const float most = most_of_warp(column[j]);
    if (lane == 0 && j0 + j < g.n && at.i0 == 0) job.column(z, at.share, j0 + j) = most;
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const float most = most_of_warp(row[i]);
    if (lane == 0 && at.i0 + i < g.m && j0 == 0) job.row(z, at.share, at.i0 + i) = most;
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      const float sum = sum_of_warp(acc[i][j]);
      if (lane == 0 && at.i0 + i < g.m && j0 + j < g.n)
        job.sum(z, at.share, at.i0 + i, j0 + j) = sum;
    }
  }
}

// Lanes walk n: a thread has 4 columns, and with the threads of the other three quarters of the
// block shares out k.
template <int kRows>
__device__ void few_along_n(const FewJob& job, const Gemm& g, const FewBlock& at) {
  constexpr int kQuarters = 4, kColumns = 4, kWidth = kFewThreads / kQuarters;
  XGEMM_SHARED(left, float[kQuarters][kWidth * kColumns]);
  const int quarter = threadIdx.x / kWidth, place = threadIdx.x % kWidth * kColumns;
  const int64_t j0 = at.j0 + place, z = blockIdx.z;
  const bool wide_a = g.a.wide(), wide_b = g.b.wide() && j0 + kColumns <= g.n;
  float acc[kRows][kColumns], row[kRows] = {}, column[kColumns] = {};
  begin_sums(acc, at.share == 0 && quarter == 0);
#pragma unroll 1
  for (int64_t k = at.k0 + 4 * quarter; k < at.k1; k += 4 * kQuarters) {
    float b[4][kColumns];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (wide_b && k + e < at.k1) load4(b[e], g.b.ptr(k + e, j0));
      else
#pragma unroll
        for (int j = 0; j < kColumns; ++j)
          b[e][j] = k + e < at.k1 && j0 + j < g.n ? g.b(k + e, j0 + j) : kPadB;
#pragma unroll
      for (int j = 0; j < kColumns; ++j) column[j] = fmaxf(column[j], fabsf(b[e][j]));
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      float a[4];
      load_k4(a, g.a, at.i0 + i, g.m, k, at.k1, kPadA, wide_a);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        row[i] = fmaxf(row[i], fabsf(a[e]));
#pragma unroll
        for (int j = 0; j < kColumns; ++j) acc[i][j] = fmaf(a[e], b[e][j], acc[i][j]);
      }
    }
  }
  // One value of each column, from the four quarters.
  const auto meet = [&](const float (&x)[kColumns], auto combine, auto keep) {
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kColumns; ++j) left[quarter][place + j] = x[j];
    __syncthreads();
    const int64_t j = at.j0 + threadIdx.x;
    if (j < g.n)
      keep(j, combine(combine(left[0][threadIdx.x], left[1][threadIdx.x]),
                      combine(left[2][threadIdx.x], left[3][threadIdx.x])));
  };
  const auto most = [](float x, float y) { return fmaxf(x, y); };
  const auto plus = [](float x, float y) { return x + y; };
  meet(column, most, [&](int64_t j, float x) {
    if (at.i0 == 0) job.column(z, at.share, j) = x;
  });
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    if (at.j0 == 0) {
      const float same[kColumns] = {row[i], row[i], row[i], row[i]};
      meet(same, most, [&](int64_t j, float x) {
        if (j == 0 && at.i0 + i < g.m) job.row(z, at.share, at.i0 + i) = x;
      });
    }
    meet(acc[i], plus, [&](int64_t j, float x) {
      if (at.i0 + i < g.m) job.sum(z, at.share, at.i0 + i, j) = x;
    });
  }
}

// The product's element (i, j): the shares' sums in order, or, where some sum might overflow on its
// way, the chain that must tell.
__device__ __forceinline__ float few_sum(const FewJob& job, const Gemm& g, int64_t z, int64_t i,
                                         int64_t j) {
  float sum = -0.f, row = 0.f, column = 0.f;
  for (int64_t s = 0; s < job.shares; ++s) {
    sum += job.sum(z, s, i, j);
    row = fmaxf(row, job.row(z, s, i)), column = fmaxf(column, job.column(z, s, j));
  }
  const int top =
      static_cast<int>((float_to_bits(row) >> 23) + (float_to_bits(column) >> 23)) - 254;
  if (top + depth_of(g.k) < kOverflow) return sum;
  float acc = 0.f;
#pragma unroll 1
  for (int64_t k = 0; k < g.k; ++k) acc = fmaf(g.a(i, k), g.b(k, j), acc);
  return acc;
}

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
