// Heads that tiles of one scale cannot hold (tiles.h), by FP32 operations: what the other kernels
// have made of such a head is written over. Two blocks a multiprocessor share them;
// where there is none, a block looks at all scales and ends.
//
// A block has 32 rows, queries or keys, a warp four of them; what they meet comes 64 at a time, two
// a lane. Products with those are summed by lanes that have columns of the result.
#pragma once

#include "xgemm/attention/dropout.h"

namespace xgemm {
inline namespace XGEMM_FLAVOUR {

constexpr int kPlainRows = 32, kPlainThreads = 256, kEachRows = 4;
constexpr int kEachColumns = static_cast<int>(kMostWidth) / 32;
constexpr int kPitch = static_cast<int>(kMostWidth) + 4;  // eight lanes' rows lie in all 32 banks

struct PlainJob {
  Attention a;
  Tiles q, k, v, grad;
  Stats stats;
};

struct PlainRoom {
  alignas(16) float rows[2][kPlainRows][kPitch];
  float tile[2][kTile][kPitch];
  float weights[2][kPlainRows][kTile];
  uint32_t wide[kPlainThreads / 32];  // by warp
};

// Rows from `first` on of `all`, zeros behind them and behind their last column, to a multiple of
// four. A row to a warp.
template <int kCount>
__device__ __forceinline__ void load_plain(float (&to)[kCount][kPitch], const View<const float>& x,
                                           int64_t first, int64_t all, int width) {
  const int lane = threadIdx.x % 32;
  for (int i = static_cast<int>(threadIdx.x) / 32; i < kCount; i += kPlainThreads / 32)
    for (int j = lane; j < (width + 3) / 4 * 4; j += 32)
      to[i][j] = first + i < all && j < width ? x(first + i, j) : 0.f;
}

// Of each of a warp's rows the products with two columns.
__device__ __forceinline__ void dot_plain(float (&dots)[kEachRows][2],
                                          const float (&rows)[kPlainRows][kPitch],
                                          const float (&tile)[kTile][kPitch], int width) {
  const int lane = threadIdx.x % 32, first = static_cast<int>(threadIdx.x) / 32 * kEachRows;
#pragma unroll
  for (int r = 0; r < kEachRows; ++r) dots[r][0] = dots[r][1] = 0.f;
#pragma unroll 1
  for (int d = 0; d < width; d += 4) {
    float x[4], y[4];
    load4(x, &tile[lane][d]), load4(y, &tile[lane + 32][d]);
#pragma unroll
    for (int r = 0; r < kEachRows; ++r) {
      float q[4];
      load4(q, &rows[first + r][d]);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        dots[r][0] = fmaf(q[i], x[i], dots[r][0]), dots[r][1] = fmaf(q[i], y[i], dots[r][1]);
    }
  }
}

// sums += weights x tile.
__device__ __forceinline__ void add_plain(float (&sums)[kEachRows][kEachColumns],
                                          const float (&weights)[kPlainRows][kTile],
                                          const float (&tile)[kTile][kPitch], int width) {
  const int lane = threadIdx.x % 32, first = static_cast<int>(threadIdx.x) / 32 * kEachRows;
#pragma unroll 1
  for (int j = 0; j < kTile; j += 4) {
    float w[kEachRows][4];
#pragma unroll
    for (int r = 0; r < kEachRows; ++r) load4(w[r], &weights[first + r][j]);
#pragma unroll
    for (int c = 0; c < kEachColumns; ++c) {
      if (lane + 32 * c >= width) continue;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float x = tile[j + i][lane + 32 * c];
#pragma unroll
        for (int r = 0; r < kEachRows; ++r) sums[r][c] = fmaf(w[r][i], x, sums[r][c]);
      }
    }
  }
}

__device__ __forceinline__ void store_plain(const View<float>& to, int64_t first, int64_t rows,
                                            int64_t width,
                                            const float (&sums)[kEachRows][kEachColumns],
                                            const float (&scale)[kEachRows]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int r = 0; r < kEachRows; ++r)
#pragma unroll
    for (int c = 0; c < kEachColumns; ++c)
      if (first + r < rows && lane + 32 * c < width)
        to(first + r, lane + 32 * c) = sums[r][c] * scale[r];
}

// Whether a tile of any of `heads` from `first` on is too wide: its `undo` is negative then. By all
// threads of the block.
__device__ __forceinline__ bool any_wide(PlainRoom& room, const PlainJob& job, int64_t first,
                                         int64_t heads) {
  uint32_t wide = 0;
  const auto look = [&](const Tiles& t) {
    for (int64_t n = threadIdx.x; n < heads * t.tiles(); n += kPlainThreads)
      wide |= float_to_bits(t.undo[first * t.tiles() + n]) >> 31;
  };
  look(job.q), look(job.k), look(job.v);
  if (job.grad.undo) look(job.grad);
  wide = __any_sync(0xffffffffu, static_cast<int>(wide));
  __syncthreads();  // all have read what was there before
  if (threadIdx.x % 32 == 0) room.wide[threadIdx.x / 32] = wide;
  __syncthreads();
  uint32_t any = 0;
  for (const uint32_t its : room.wide) any |= its;
  return any;
}

// make(head, block) for each of `blocks` of rows of each head that is to be made anew.
template <class Make>
__device__ __forceinline__ void for_wide_heads(PlainRoom& room, const PlainJob& job, int64_t blocks,
                                               const Make& make) {
  if (!any_wide(room, job, 0, job.a.all_heads())) return;
  for (int64_t n = blockIdx.x; n < job.a.all_heads() * blocks; n += gridDim.x)
    if (any_wide(room, job, n / blocks, 1)) make(n / blocks, n % blocks);
}

// A logit in base 2 of a query and a key, of their product.
__device__ __forceinline__ float plain_logit(const PlainJob& job, const View<const float>& bias,
                                             float product, int64_t query, int64_t key) {
  const Attention& a = job.a;
  if (query >= a.queries || key >= a.keys || (a.causal && key > query)) return -INFINITY;
  const float x = product * (a.scale * kLog2E);
  return bias.data ? fmaf(bias(query, key), kLog2E, x) : x;
}

// Of a logit beside lse. Large ones differ by some roundings where they are the same but for those,
// and P is at most 1.
__device__ __forceinline__ float plain_exponent(float logit, float lse) {
  const bool large = fabsf(lse) > kLargeLogit && lse < INFINITY;
  const bool same = logit > lse || (large && logit > lse - fabsf(lse) * 0x1p-21f);
  return same ? 0.f : logit - lse;
}

// Of 32 queries of a head from `block` on.
__device__ __forceinline__ void plain_forward(PlainRoom& room, const PlainJob& job, int64_t head,
                                              int64_t block) {
  const Attention& a = job.a;
  const int64_t b = head / a.heads, h = head % a.heads;
  const auto width = static_cast<int>(a.width);
  const int lane = threadIdx.x % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t first = block + warp * kEachRows;
  const View<const float> bias = a.bias.head(b, h);
  load_plain(room.rows[0], a.q.head(b, h), block, a.queries, width);
  float out[kEachRows][kEachColumns] = {}, most[kEachRows], sum[kEachRows] = {};
#pragma unroll
  for (int r = 0; r < kEachRows; ++r) most[r] = -INFINITY;
  const int64_t keys = a.seen();  // the others may hold NaN, and zero times NaN is NaN
  const int64_t end = a.causal && block + kPlainRows < keys ? block + kPlainRows : keys;
  for (int64_t j = 0; j < end; j += kTile) {
    __syncthreads();
    load_plain(room.tile[0], a.k.head(b, h), j, keys, width);
    load_plain(room.tile[1], a.v.head(b, h), j, keys, width);
    __syncthreads();
    float s[kEachRows][2];
    dot_plain(s, room.rows[0], room.tile[0], width);
#pragma unroll
    for (int r = 0; r < kEachRows; ++r) {
#pragma unroll
      for (int x = 0; x < 2; ++x)
        s[r][x] = plain_logit(job, bias, s[r][x], first + r, j + lane + 32 * x);
      float largest = fmaxf(s[r][0], s[r][1]);
#pragma unroll
      for (int step = 16; step > 0; step /= 2)
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, step));
      largest = fmaxf(largest, most[r]);
      const float shift = largest == -INFINITY ? 0.f : largest;
      const float before = exp2_approximate(most[r] - shift);
      most[r] = largest;
      sum[r] *= before;
#pragma unroll
      for (int c = 0; c < kEachColumns; ++c) out[r][c] *= before;
#pragma unroll
      for (int x = 0; x < 2; ++x) {
        const float p = exp2_approximate(s[r][x] - shift);
        sum[r] += p;
        room.weights[0][warp * kEachRows + r][lane + 32 * x] =
            p * factor_of_weight(a, head, first + r, j + lane + 32 * x);
      }
    }
    __syncwarp();
    add_plain(out, room.weights[0], room.tile[1], width);
  }
  float scale[kEachRows];
#pragma unroll
  for (int r = 0; r < kEachRows; ++r) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], step);
    scale[r] = sum[r] == 0.f ? 0.f : 1.f / sum[r];
    if (lane == 0 && first + r < a.queries)
      a.lse[head * a.lse_stride + first + r] =
          sum[r] == 0.f ? INFINITY : (most[r] + log2f(sum[r])) * kLn2;
  }
  store_plain(a.out.head(b, h), first, a.queries, a.width, out, scale);
}

__global__ void __launch_bounds__(kPlainThreads, 2)
    attention_plain_forward(const __grid_constant__ PlainJob job) {
  XGEMM_SHARED_DYNAMIC(room, PlainRoom);
  take_turn();
  for_wide_heads(room, job, ceil_div(job.a.queries, kPlainRows),
                 [&](int64_t head, int64_t n) { plain_forward(room, job, head, n * kPlainRows); });
}

// dQ of 32 queries from `block` on, or dK and dV of 32 keys.
__device__ __forceinline__ void plain_backward(PlainRoom& room, const PlainJob& job, int64_t head,
                                               bool of_keys, int64_t block) {
  const Attention& a = job.a;
  const int64_t b = head / a.heads, h = head % a.heads;
  const auto width = static_cast<int>(a.width);
  const int lane = threadIdx.x % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t first = block + warp * kEachRows;
  const View<const float> bias = a.bias.head(b, h);
  // Queries' tensors and keys', in that order or the other.
  const View<const float> own[2] = {(of_keys ? a.k : a.q).head(b, h),
                                    (of_keys ? a.v : a.grad).head(b, h)};
  const View<const float> others[2] = {(of_keys ? a.q : a.k).head(b, h),
                                       (of_keys ? a.grad : a.v).head(b, h)};
  const int64_t keys = a.seen();
  const int64_t rows = of_keys ? keys : a.queries, columns = of_keys ? a.queries : keys;
  load_plain(room.rows[0], own[0], block, rows, width);
  load_plain(room.rows[1], own[1], block, rows, width);
  float sums[kEachRows][kEachColumns] = {};  // dQ, or dK ...
  float of_v[kEachRows][kEachColumns] = {};  // ... and dV
  // Of a causal mask keys have the queries from their own place on, queries the keys up to theirs.
  const int64_t begin = a.causal && of_keys ? block / kTile * kTile : 0;
  const int64_t end =
      a.causal && !of_keys && block + kPlainRows < columns ? block + kPlainRows : columns;
  for (int64_t j = begin; j < end; j += kTile) {
    __syncthreads();
    load_plain(room.tile[0], others[0], j, columns, width);
    load_plain(room.tile[1], others[1], j, columns, width);
    __syncthreads();
    float s[kEachRows][2], dp[kEachRows][2];
    dot_plain(s, room.rows[0], room.tile[0], width);
    dot_plain(dp, room.rows[1], room.tile[1], width);
#pragma unroll
    for (int r = 0; r < kEachRows; ++r)
#pragma unroll
      for (int x = 0; x < 2; ++x) {
        const int64_t row = first + r, column = j + lane + 32 * x;
        const int64_t query = of_keys ? column : row, key = of_keys ? row : column;
        const float logit = plain_logit(job, bias, s[r][x], query, key);
        const bool there = query < a.queries && key < a.keys;
        const float lse = there ? *job.stats.at(head, kLse2, query) : 0.f;
        const float p = there ? exp2_approximate(plain_exponent(logit, lse)) : 0.f;
        const float left = factor_of_weight(a, head, query, key);
        const float ds = there ? p * (dp[r][x] * left - *job.stats.at(head, kDelta, query)) : 0.f;
        room.weights[0][warp * kEachRows + r][lane + 32 * x] = ds;
        room.weights[1][warp * kEachRows + r][lane + 32 * x] = p * left;
      }
    __syncwarp();
    add_plain(sums, room.weights[0], room.tile[0], width);
    if (of_keys) add_plain(of_v, room.weights[1], room.tile[1], width);
    __syncwarp();
  }
  float scale[kEachRows], one[kEachRows];
#pragma unroll
  for (int r = 0; r < kEachRows; ++r) scale[r] = a.scale, one[r] = 1.f;
  const int64_t all = of_keys ? a.keys : a.queries;
  store_plain((of_keys ? a.dk : a.dq).head(b, h), first, all, a.width, sums, scale);
  if (of_keys) store_plain(a.dv.head(b, h), first, all, a.width, of_v, one);
}

__global__ void __launch_bounds__(kPlainThreads, 2)
    attention_plain_backward(const __grid_constant__ PlainJob job) {
  XGEMM_SHARED_DYNAMIC(room, PlainRoom);
  take_turn();
  const int64_t of_queries = ceil_div(job.a.queries, kPlainRows);
  const int64_t all = of_queries + ceil_div(job.a.keys, kPlainRows);
  for_wide_heads(room, job, all, [&](int64_t head, int64_t n) {
    const bool of_keys = n >= of_queries;
    plain_backward(room, job, head, of_keys, (of_keys ? n - of_queries : n) * kPlainRows);
  });
}

template <class Kernel>
void launch_plain(const Kernel& kernel, const PlainJob& job, const Context& context) {
  launch(kernel,
         {.grid = dim3(static_cast<unsigned>(std::max(1, 2 * context.device.sm_count))),
          .block = dim3(kPlainThreads),
          .smem = sizeof(PlainRoom),
          .dependent = may_depend(context.device)},
         context, job);
}

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
