// The forward pass: a block has kGroups x 64 queries of a head, and goes over its keys, 64 at a
// time. One thread fetches, each warpgroup multiplies and keeps softmax's running maximum and sum.
//
// Logits are in base 2, S = (Q K^T) scale log2(e) + bias log2(e). P is 2^(S - max + 15), so that
// its two limbs have all that counts: 22 bits down to 2^-29, then an error of 2^-51.
#pragma once

#include "xgemm/attention/dropout.h"

namespace xgemm {
inline namespace XGEMM_FLAVOUR {

struct ForwardJob {
  TensorMap q, k, v;
  const float *undo_q, *undo_k, *undo_v;
  Attention a;
  float base2;  // |scale| log2(e): Q has its sign
  int query_tiles, key_tiles;
  int whole_keys;  // tiles of keys that are not short
  int blocks;  // of a head
};

// Three warpgroups of 160 registers hide more of each other's softmax than two of 240 that begin
// the next tile's logits before this one's: 171 and 160 TFLOP/s at 8192 keys (H100, 2026-11-27).
template <int kWidth>
constexpr int kForwardGroups = kWidth <= kTile ? 3 : 2;
constexpr int kForwardBuffers = 4;
// Whether what goes over a short tile multiplies no more than it has: the others have not the
// registers for it.
template <int kWidth, bool kBias>
constexpr bool kShort = kWidth <= kTile && !kBias;

template <int kWidth>
struct ForwardRing {
  TileSlot<kWidth> q[kForwardGroups<kWidth>];
  TileSlot<kWidth> slots[kForwardBuffers];  // K's and V's tiles in turn
  RingBarriers<kForwardBuffers> barriers;
};

// How many tiles of keys a tile of queries sees.
__device__ __forceinline__ int tiles_seen(const Attention& a, int query_tile, int key_tiles) {
  return a.causal && query_tile + 1 < key_tiles ? query_tile + 1 : key_tiles;
}

// A block's tiles of queries, the longest blocks of a head first where they differ, and what it
// goes over: as many tiles of keys as any of them sees.
template <int kGroups>
struct QueriesBlock {
  int64_t head;
  int first, last, steps;
  int first_query, first_key;  // among all heads' tiles

  template <class Job>
  __device__ __forceinline__ explicit QueriesBlock(const Job& job) {
    head = blockIdx.x / job.blocks;
    first = (job.blocks - 1 - static_cast<int>(blockIdx.x) % job.blocks) * kGroups;
    last = first + kGroups < job.query_tiles ? first + kGroups : job.query_tiles;
    steps = tiles_seen(job.a, last - 1, job.key_tiles);
    first_query = static_cast<int>(head * job.query_tiles + first);
    first_key = static_cast<int>(head * job.key_tiles);
  }
  // By the thread that fetches: K's and V's tiles in turn.
  template <class Ring, class Job, class State>
  __device__ __forceinline__ void fetch_keys(Ring& ring, const Job& job, State& at) const {
    for (int t = 0; t < 2 * steps; ++t, at.advance()) {
      Mbarrier* const full = ring.barriers.begin(at, ring.slots[0].kBytes);
      fetch_tile(ring.slots[at.slot], t % 2 ? job.v : job.k, head, t / 2, full);
    }
  }
};

// Pairs of tiles that other warpgroups need, and this one not.
template <class Ring, class State>
__device__ __forceinline__ void skip_pairs(Ring& ring, State& at, int pairs) {
  for (int t = 0; t < 2 * pairs; ++t) ring.barriers.wait(at), ring.barriers.give_back(at);
}

// A tile's logits from (i, j) on. Without a bias they are yet to be multiplied by `scale`, which is
// not negative; with one they are made in base 2, and `scale` is 1 then.
template <bool kBias, int kCount>
__device__ __forceinline__ void make_logits(float (&logits)[kCount], const SumsOf<kCount>& s,
                                            float& scale, const View<const float>& bias,
                                            const Attention& a, int i, int j) {
  const Place place;
#pragma unroll
  for (int e = 0; e < kCount; ++e) logits[e] = s.at(e);
  if constexpr (kBias) {
    const int64_t row = i + place.row, column = j + place.column;
    add_bias(logits, scale, bias.ptr(row, column), bias.rs, bias.cs, left_of(a.queries, row),
             left_of(a.keys, column));
    scale = 1.f;
  }
  // -inf times 0 would be NaN; below, all logits are 0 but for rounding.
  scale = scale < 0x1p-100f ? 0x1p-100f : scale;
  // Keys that are not there, and those behind a query.
  if (j + kTile > a.keys || (a.causal && j + kTile > i + 1)) {
    const int there = static_cast<int>(a.keys - j < kTile ? a.keys - j : kTile);
    const int behind = a.causal ? static_cast<int>(i - j) : kTile;
#pragma unroll
    for (int e = 0; e < kCount; ++e) {
      const int column = place.column + column_of(e);
      if (column >= there || column > behind + place.row + 8 * half_of(e)) logits[e] = -INFINITY;
    }
  }
}

template <int kWidth, bool kBias>
__global__ void __launch_bounds__(threads_for(kForwardGroups<kWidth>), 1)
    attention_forward(const __grid_constant__ ForwardJob job) {
  XGEMM_SHARED_DYNAMIC(ring, ForwardRing<kWidth>);
  const Attention& a = job.a;
  constexpr int kGroups = kForwardGroups<kWidth>;
  const int group = warpgroup();
  if (threadIdx.x == 0) ring.barriers.init(kGroups);
  __syncthreads();
  take_turn();
  const QueriesBlock<kGroups> block(job);
  PipelineState<kForwardBuffers> at;
  if (group == kGroups) {  // producer
    registers_for_fetching<kGroups, 1>();
    if (threadIdx.x % kGroup > 0) return;
    mbarrier_expect(&ring.barriers.first, (block.last - block.first) * TileSlot<kWidth>::kBytes);
    for (int g = 0; g < block.last - block.first; ++g)
      fetch_tile(ring.q[g], job.q, block.head, block.first + g, &ring.barriers.first);
    block.fetch_keys(ring, job, at);
    return;
  }
  registers_for_math<kGroups, 1>();
  const int tile = block.first + group;
  const int64_t head = block.head;
  const int b = static_cast<int>(head / a.heads), h = static_cast<int>(head % a.heads);
  const int i = tile * kTile;
  const int mine = tile < block.last ? tiles_seen(a, tile, job.key_tiles) : 0;
  if (!mine) return skip_pairs(ring, at, block.steps);
  const View<const float> bias = a.bias.head(b, h);
  const float base2 = job.base2 * job.undo_q[block.first_query + group];
  float out[blocks_of(kWidth)][kSums], most[2] = {-INFINITY, -INFINITY}, sum[2] = {0.f, 0.f};
#pragma unroll
  for (int n = 0; n < blocks_of(kWidth); ++n)
#pragma unroll
    for (int e = 0; e < kSums; ++e) out[n][e] = 0.f;
  mbarrier_wait(&ring.barriers.first, 0);
  const auto go_over = [&]<int kColumns>(int from, int to) {
#pragma unroll 1
    for (int t = from; t < to; ++t) {
      constexpr int kCount = kColumns / 2;
      const float undo_k = job.undo_k[block.first_key + t],
                  undo_v = job.undo_v[block.first_key + t];
      SumsOf<kCount> s;
      ring.barriers.wait(at);
      multiply(s, ring.q[group], ring.slots[at.slot]);
      QueriesKept<kColumns> kept;
      if (a.dropout.on) kept.draw(a, head, i, t * kTile);
      wgmma_wait<0>();
      s.settle();
      ring.barriers.give_back(at);
      float p[kCount], before[2], scale = base2 * undo_k;
      make_logits<kBias>(p, s, scale, bias, a, i, t * kTile);
      float shift[2];
#pragma unroll
      for (int x = 0; x < 2; ++x) {
        float largest = -INFINITY;
#pragma unroll
        for (int e = 0; e < kCount; ++e)
          if (half_of(e) == x) largest = fmaxf(largest, p[e]);
        largest = fmaxf(most[x], largest_of_row(largest) * scale);
        // Of a row that has seen no key yet, 2^(-inf - 0) = 0 and not NaN.
        shift[x] = largest == -INFINITY ? 0.f : largest - 15.f;
        before[x] = exp2_approximate(most[x] - 15.f - shift[x]);
        most[x] = largest;
        sum[x] *= before[x];
      }
      // fma's product is exact, the largest one's is rounded: of large logits they are apart.
      if (fmaxf(fabsf(shift[0]), fabsf(shift[1])) > kLargeLogit) [[unlikely]] {
#pragma unroll
        for (int e = 0; e < kCount; ++e) p[e] *= scale;
        scale = 1.f;
      }
#pragma unroll
      for (int e = 0; e < kCount; ++e) {
        p[e] = exp2_approximate(fmaf(p[e], scale, -shift[half_of(e)]));
        sum[half_of(e)] += p[e];
      }
      if (a.dropout.on) {
#pragma unroll
        for (int e = 0; e < kCount; ++e) p[e] *= kept.at(e) ? 1.f : 0.f;
      }
      Fragments<kColumns> f;
      f.split(p);
      ring.barriers.wait(at);
      const auto add = [&](int n, const auto& part) {
#pragma unroll
        for (int e = 0; e < part.kCount; ++e)
          out[n][e] = fmaf(out[n][e], before[half_of(e)], part.at(e) * undo_v);
      };
      multiply_blocks(f, ring.slots[at.slot], add, [] {});
      ring.barriers.give_back(at);
    }
  };
  const int whole = kShort<kWidth, kBias> && job.whole_keys < mine ? job.whole_keys : mine;
  go_over.template operator()<kTile>(0, whole);
  if constexpr (kShort<kWidth, kBias>) go_over.template operator()<kShortTile>(whole, mine);
  skip_pairs(ring, at, block.steps - mine);

  float scales[2];
  const Place place;
#pragma unroll
  for (int x = 0; x < 2; ++x) {
    const float all = sum_of_row(sum[x]);
    // NaN, too, is no 0.
    scales[x] = all == 0.f ? 0.f : a.dropout.factor / all;
    const int64_t row = i + place.row + 8 * x;
    if (place.column == 0 && row < a.lse_stride)
      a.lse[head * a.lse_stride + row] =
          all == 0.f || row >= a.queries ? INFINITY : (most[x] - 15.f + log2f(all)) * kLn2;
  }
  store_rows<kWidth>(a.out.head(b, h), i, a.queries, a.width, out, scales);
}

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
