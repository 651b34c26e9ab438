// Operands of attention as tensor cores read them: each element in two fp16 limbs, tiles of 64 rows
// by 64 columns for each limb, all of one scale or of one for each row.
//
// The second limb is scaled by 2^11 more, as in kFp16x3. With a tile's largest element between 2^14
// and 2^15 elements down to 2^-29 of it have 22 bits; smaller ones have an error of 2^-51 of it. A
// tile one of whose rows or columns has but elements below 2^-22 of the largest, and not zeros, is
// too wide: its `undo` is negative, and its head is made anew (plain.h). So is one of dO where a
// query's logits are large, for P must not come to more than 1.
// Limbs lie plain, [head][block of 64 columns][limb][row][64]: TMA swizzles, and fills a head's
// last tile up with zeros.
#pragma once

#include "xgemm/core/attention.h"
#include "xgemm/core/workspace.h"
#include "xgemm/device/launch.h"
#include "xgemm/device/ptx/base.h"
#include "xgemm/device/tensor_map.h"
#include "xgemm/emulation/certificate.h"

namespace xgemm {
inline namespace XGEMM_FLAVOUR {

constexpr int kTile = 64;  // rows, and columns of a block
constexpr int kTileBytes = kTile * kTile * 2;  // of one limb of a block

// Of so many columns.
constexpr int blocks_of(int width) { return (width + kTile - 1) / kTile; }
// Of a head's rows.
XGEMM_HD int64_t tiles_of(int64_t rows) { return ceil_div(rows, kTile); }
// The last tile is short where it has at most so many rows, as of an image's patches and a class
// token (197 = 3 x 64 + 5): what goes over it multiplies no more of them.
constexpr int kShortTile = 16;
// Tiles that are not short.
XGEMM_HD int64_t whole_tiles_of(int64_t rows) { return (rows + kTile - 1 - kShortTile) / kTile; }

// An operand's limbs.
struct Tiles {
  void* data = nullptr;
  float* undo = nullptr;  // [head][tile]: what a tile's products are multiplied by
  int64_t heads = 0, rows = 0;  // of a head
  int blocks = 1;

  XGEMM_HD int64_t tiles() const { return tiles_of(rows); }
};
inline Tiles place_tiles(Layout& all, int64_t heads, int64_t rows, int blocks) {
  Tiles t{.heads = heads, .rows = rows, .blocks = blocks};
  t.data = all.place(times(times(static_cast<size_t>(heads), static_cast<size_t>(rows)),
                           static_cast<size_t>(blocks) * 2 * 2 * kTile));
  t.undo = static_cast<float*>(all.place(static_cast<size_t>(heads * t.tiles()) * sizeof(float)));
  return t;
}
inline TensorMap map_of(const Tiles& t) {
  return make_tensor_map({.data = t.data,
                          .size = {kTile, static_cast<uint64_t>(t.rows),
                                   static_cast<uint64_t>(t.heads * 2 * t.blocks)},
                          .stride = {2 * kTile, static_cast<uint64_t>(t.rows) * 2 * kTile},
                          .box = {kTile, kTile, 1},
                          .swizzle = 128});
}

// What the backward pass needs of each query beside limbs, [head][stat][row]. kUndo is what
// products with its row of dO are multiplied by. Of rows that are not there TMA makes zeros, which
// give dS = 0 and take P out of dV.
enum Stat { kLse2, kDelta, kUndo, kStats };
struct Stats {
  float* data = nullptr;
  int64_t heads = 0, rows = 0;
  XGEMM_HD int64_t stride() const { return (rows + 3) / 4 * 4; }  // TMA's: 16 bytes
  XGEMM_HD float* at(int64_t head, Stat s, int64_t row) const {
    return data + (head * kStats + s) * stride() + row;
  }
};
inline TensorMap map_of(const Stats& s) {
  const auto stride = static_cast<uint64_t>(s.stride()) * sizeof(float);
  return make_tensor_map(
      {.data = s.data,
       .size = {static_cast<uint64_t>(s.rows), kStats, static_cast<uint64_t>(s.heads)},
       .stride = {stride, stride * kStats},
       .box = {kTile, kStats, 1},
       .element = 4});
}

// In base 2: an exact product and a rounded one differ by up to 2^-8 yet.
constexpr float kLargeLogit = 65536.f;
constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

// 2^e for elements that are at most `largest`, whose bits these are: it comes to 2^14 to 2^15.
__device__ __forceinline__ int exponent_for(uint32_t largest) {
  const int e = 141 - static_cast<int>(largest >> 23);
  return e < 126 ? e : 126;
}
// The bits of |x|, but those of 0 of what is not finite.
__device__ __forceinline__ uint32_t finite_size(float x) {
  const uint32_t bits = float_to_bits(x) & 0x7fffffffu;
  return bits < 0x7f800000u ? bits : 0;
}
__device__ __forceinline__ uint32_t larger(uint32_t x, uint32_t y) { return x > y ? x : y; }

// Two elements, scaled, in their limbs.
__device__ __forceinline__ void split2(float x0, float x1, uint32_t& hi, uint32_t& lo) {
  hi = take_limb<kFp16x3>(x0, x1);
  lo = pack_half2<kFp16x3.type>(x0, x1);
}

// Exponents that a tile of one scale can do with: from its largest element to that of any row or
// column.
constexpr uint32_t kMostBelow = 22;
__device__ __forceinline__ bool far_below(uint32_t largest, uint32_t of_all) {
  return largest != 0 && (largest >> 23) + kMostBelow < of_all >> 23;
}

// One operand's part of a launch; `grid` blocks of it, a tile each.
struct TilesJob {
  Heads<const float> x;
  Tiles tiles;
  int64_t heads = 1, rows = 0, width = 0;  // heads of a sequence
  int columns = 0;  // that are multiplied: behind `width` they are zeros
  bool vectors = false;  // four columns are 16 bytes, aligned
  float factor = 1.f;  // of all elements
  // Of dO: rows have a scale each, in `stats`, which also gets these rows' other numbers.
  bool by_row = false;
  Heads<const float> out;
  bool out_vectors = false;
  const float* lse = nullptr;
  int64_t lse_stride = 0;
  Stats stats;

  XGEMM_HD int64_t grid() const { return tiles.heads * tiles.tiles(); }
};
constexpr int kMostOperands = 4;
struct TilesJobs {
  TilesJob job[kMostOperands];
  int count = 0;

  void add(const TilesJob& j) { job[count++] = j; }
};

// A thread has four columns of each of kPasses rows. All loads are under way before the first is
// used: 64 registers, so that a multiprocessor has 64 KiB of them. Of twice as many rows a thread
// has 122 registers, and what comes is 8 to 20% less on an H200.
constexpr int kPasses = 4;
constexpr int tiles_threads(int blocks) { return blocks * kTile / 4 * (kTile / kPasses); }

template <int kBlocks>
__global__ void __launch_bounds__(tiles_threads(kBlocks), 1024 / tiles_threads(kBlocks))
    decompose_tiles(const __grid_constant__ TilesJobs jobs) {
  constexpr int kLanes = kBlocks * kTile / 4, kRows = kTile / kPasses;
  constexpr int kWarps = tiles_threads(kBlocks) / 32;
  bool wide = false;
  XGEMM_SHARED(largest_of_warp, uint32_t[kWarps]);
  XGEMM_SHARED(wide_of_warp, uint32_t[kWarps]);
  XGEMM_SHARED(largest_of_column, uint32_t[kWarps][kBlocks * kTile]);
  take_turn();
  int64_t block = blockIdx.x;
  int which = 0;
  for (; block >= jobs.job[which].grid(); ++which) block -= jobs.job[which].grid();
  const TilesJob& job = jobs.job[which];
  const int64_t head = block / job.tiles.tiles(), first = block % job.tiles.tiles() * kTile;
  const int64_t b = head / job.heads, h = head % job.heads;
  const int thread = threadIdx.x, lane = thread % kLanes, line = thread / kLanes;
  const int column = lane * 4;
  const int left = static_cast<int>(min_of(job.rows - first, kTile)) - line;
  const auto fetch = [&](const Heads<const float>& from, bool vectors, float (&to)[kPasses][4]) {
    const float* its = from.head(b, h).ptr(first + line, column);
    const int64_t step = kRows * from.rs;
    if (vectors) {
      const bool in = column < job.width;
#pragma unroll
      for (int p = 0; p < kPasses; ++p, its += step) {
        to[p][0] = to[p][1] = to[p][2] = to[p][3] = 0.f;
        if (in && p * kRows < left) load4(to[p], its);
      }
      return;
    }
#pragma unroll
    for (int p = 0; p < kPasses; ++p, its += step)
#pragma unroll
      for (int c = 0; c < 4; ++c)
        to[p][c] = p * kRows < left && column + c < job.width ? its[c * from.cs] : 0.f;
  };
  float x[kPasses][4], o[kPasses][4];
  uint32_t largest[kPasses], of_column[4] = {}, largest_of_all = 0;  // of rows, of columns, of all
  fetch(job.x, job.vectors, x);
  if (job.by_row) fetch(job.out, job.out_vectors, o);
#pragma unroll
  for (int p = 0; p < kPasses; ++p) {
#pragma unroll
    for (int c = 0; c < 4; ++c) x[p][c] *= job.factor;
    largest[p] = 0;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const uint32_t size = finite_size(x[p][c]);
      largest[p] = larger(largest[p], size), of_column[c] = larger(of_column[c], size);
    }
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2)
      largest[p] = larger(largest[p], __shfl_xor_sync(0xffffffffu, largest[p], step));
    largest_of_all = larger(largest_of_all, largest[p]);
  }
  if (job.by_row) {
#pragma unroll
    for (int p = 0; p < kPasses; ++p) {
      const int64_t row = first + line + p * kRows;
      float delta = 0.f;
#pragma unroll
      for (int c = 0; c < 4; ++c) delta = fmaf(x[p][c], o[p][c], delta);
#pragma unroll
      for (int step = kLanes / 2; step > 0; step /= 2)
        delta += __shfl_xor_sync(0xffffffffu, delta, step);
      if (lane == 0 && row < job.rows) {
        float lse = job.lse[head * job.lse_stride + row] * kLog2E;
        if (lse == -INFINITY) lse = INFINITY;  // torch's, of a query that sees no key
        wide = wide || (fabsf(lse) > kLargeLogit && lse < INFINITY);
        *job.stats.at(head, kLse2, row) = lse;
        *job.stats.at(head, kDelta, row) = delta;
        *job.stats.at(head, kUndo, row) = power_of_2(-exponent_for(largest[p]));
      }
    }
  }
  largest_of_all = __reduce_max_sync(0xffffffffu, largest_of_all);
  if (thread % 32 == 0) largest_of_warp[thread / 32] = largest_of_all;
  if (!job.by_row) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      if constexpr (kLanes < 32)
        of_column[c] = larger(of_column[c], __shfl_xor_sync(0xffffffffu, of_column[c], kLanes));
      if (thread % 32 < kLanes) largest_of_column[thread / 32][column + c] = of_column[c];
    }
  }
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kWarps; ++w) largest_of_all = larger(largest_of_all, largest_of_warp[w]);
  const int of_all = exponent_for(largest_of_all);
  if (!job.by_row) {
#pragma unroll
    for (int p = 0; p < kPasses; ++p) wide = wide || far_below(largest[p], largest_of_all);
    if (thread < kBlocks * kTile) {
      uint32_t its = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) its = larger(its, largest_of_column[w][thread]);
      wide = wide || far_below(its, largest_of_all);
    }
  }
  wide = __any_sync(0xffffffffu, wide);
  if (thread % 32 == 0) wide_of_warp[thread / 32] = wide;
  __syncthreads();
  if (thread == 0) {
    uint32_t any = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) any |= wide_of_warp[w];
    job.tiles.undo[block] = any ? -power_of_2(-of_all) : power_of_2(-of_all);
  }
  float* const to = static_cast<float*>(job.tiles.data) + column % kTile / 2;
  const int64_t plane = head * (2 * kBlocks) + column / kTile * 2;
#pragma unroll
  for (int p = 0; p < kPasses; ++p) {
    const int64_t row = first + line + p * kRows;
    if (row >= job.rows || column >= job.columns) continue;
    const float scale = power_of_2(job.by_row ? exponent_for(largest[p]) : of_all);
    uint32_t hi[2], lo[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) split2(x[p][2 * c] * scale, x[p][2 * c + 1] * scale, hi[c], lo[c]);
    const int64_t at = plane * job.rows + row;
    store2(to + at * (kTile / 2), bits_to_float(hi[0]), bits_to_float(hi[1]));
    store2(to + (at + job.rows) * (kTile / 2), bits_to_float(lo[0]), bits_to_float(lo[1]));
  }
}

inline bool in_vectors(const Heads<const float>& x, int64_t width) {
  return x.cs == 1 && width % 4 == 0 && reinterpret_cast<uintptr_t>(x.data) % 16 == 0 &&
         x.bs % 4 == 0 && x.hs % 4 == 0 && x.rs % 4 == 0;
}

inline TilesJob job_of(const Attention& a, const Heads<const float>& x, const Tiles& tiles,
                       int64_t rows) {
  return {.x = x,
          .tiles = tiles,
          .heads = a.heads,
          .rows = rows,
          .width = a.width,
          .columns = static_cast<int>(ceil_div(a.width, 32) * 32),
          .vectors = in_vectors(x, a.width)};
}

template <int kBlocks>
void launch_tiles_of(const TilesJobs& jobs, const Context& context) {
  int64_t blocks = 0;
  for (int i = 0; i < jobs.count; ++i) blocks += jobs.job[i].grid();
  if (blocks > kMaxGridX) throw std::invalid_argument("xgemm: too many rows of attention");
  launch(decompose_tiles<kBlocks>,
         {.grid = dim3(static_cast<unsigned>(blocks)),
          .block = dim3(tiles_threads(kBlocks)),
          .dependent = may_take_turn(context.device, blocks)},
         context, jobs);
}

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
