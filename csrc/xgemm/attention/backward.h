// The backward pass, in two kernels, so that each gradient is summed by one block in one order:
//
//   keys     a block has 64 keys and goes over the queries: dV = P^T dO, dK = dS^T Q
//   queries  a block has kGroups x 64 queries and goes over the keys: dQ = dS K
//
// with P = 2^(S - lse), dP = dO V^T, dS = P (dP - delta), delta_i = dO_i O_i. S and dP are made in
// both: seven products in place of five, no atomic additions, and P^T and dS never leave registers.
// Dropout takes P out of dV, and dP out of dS, where it took P out of the result.
#pragma once

#include "xgemm/attention/forward.h"

namespace xgemm {
inline namespace XGEMM_FLAVOUR {

struct BackwardJob {
  TensorMap q, k, v, grad, stats_map;
  const float *undo_q, *undo_k, *undo_v;
  Stats stats;
  Attention a;
  float base2;  // |scale| log2(e): Q has its sign
  int query_tiles, key_tiles;  // those that are seen
  int whole_queries, whole_keys;  // those of them that are not short
  int blocks;  // of a head
  KeptBits kept;  // of dropout
};

// Blocks of keys have one warpgroup each: two blocks on a multiprocessor, with a ring each, take 1
// to 6% less than one of two warpgroups (H200, 2026-11-28). Of 128 columns there is room for one.
template <int kWidth>
constexpr int kKeysBlocks = kWidth <= kTile ? 2 : 1;
template <int kWidth>
constexpr int kQueriesGroups = kWidth <= kTile ? 3 : 1;  // as in the forward pass
constexpr int kBackwardBuffers = 4;

// What a block goes over comes in pairs: Q's and dO's tiles, or K's and V's.
template <int kWidth>
struct KeysRing {
  TileSlot<kWidth> k, v;
  TileSlot<kWidth> slots[kBackwardBuffers];
  float stats[kBackwardBuffers / 2][kStats][kTile];  // come with dO
  RingBarriers<kBackwardBuffers> barriers;
};
template <int kWidth>
struct QueriesRing {
  TileSlot<kWidth> q[kQueriesGroups<kWidth>], grad[kQueriesGroups<kWidth>];
  TileSlot<kWidth> slots[kBackwardBuffers];
  RingBarriers<kBackwardBuffers> barriers;
};

// += `undo` times A B; meanwhile() as in multiply_blocks.
template <int kWidth, int kColumns, class Meanwhile>
__device__ __forceinline__ void accumulate(float (&to)[blocks_of(kWidth)][kSums],
                                           const Fragments<kColumns>& f, const TileSlot<kWidth>& b,
                                           const float (&undo)[2], const Meanwhile& meanwhile) {
  const auto add = [&](int block, const auto& part) {
#pragma unroll
    for (int e = 0; e < part.kCount; ++e)
      to[block][e] = fmaf(part.at(e), undo[half_of(e)], to[block][e]);
  };
  multiply_blocks(f, b, add, meanwhile);
}

// The second of a pair of slots: none wraps around.
template <int kBuffers>
__device__ __forceinline__ PipelineState<kBuffers> second_of(PipelineState<kBuffers> at) {
  static_assert(kBuffers % 2 == 0);
  ++at.slot;
  return at;
}

// Between P and dP, P's sign says which weights dropout takes: its bit is set. |P| is P.
template <int kCount, class Kept>
__device__ __forceinline__ void mark_dropped(float (&p)[kCount], const Kept& kept) {
#pragma unroll
  for (int e = 0; e < kCount; ++e) p[e] = kept.at(e) ? p[e] : -p[e];
}
__device__ __forceinline__ float factor_of(float p, float factor) {
  return float_to_bits(p) >> 31 ? 0.f : factor;
}
template <int kCount>
__device__ __forceinline__ void drop(SumsOf<kCount>& u, const float (&p)[kCount], float factor) {
#pragma unroll
  for (int e = 0; e < kCount; ++e) {
    const float its = factor_of(p[e], factor);
    u.hi[e] *= its, u.corr[e] *= its;
  }
}

// Of 128 columns a launch each makes dV and dK: a thread has no registers for the sums of both.
template <int kWidth, bool kBias, bool kDv, bool kDk>
__global__ void __launch_bounds__(threads_for(1), kKeysBlocks<kWidth>)
    attention_keys(const __grid_constant__ BackwardJob job) {
  XGEMM_SHARED_DYNAMIC(ring, KeysRing<kWidth>);
  const Attention& a = job.a;
  if (threadIdx.x == 0) ring.barriers.init(1);
  __syncthreads();
  take_turn();
  const int head = static_cast<int>(blockIdx.x) / job.blocks;
  const int tile = static_cast<int>(blockIdx.x) % job.blocks;
  const int begin = a.causal ? tile : 0;  // queries that see none of these keys come first
  PipelineState<kBackwardBuffers> at;
  if (warpgroup() == 1) {  // producer
    registers_for_fetching<1, kKeysBlocks<kWidth>>();
    if (threadIdx.x % kGroup > 0 || begin >= job.query_tiles) return;
    mbarrier_expect(&ring.barriers.first, 2 * TileSlot<kWidth>::kBytes);
    fetch_tile(ring.k, job.k, head, tile, &ring.barriers.first);
    fetch_tile(ring.v, job.v, head, tile, &ring.barriers.first);
    for (int t = begin; t < job.query_tiles; ++t) {
      Mbarrier* full = ring.barriers.begin(at, TileSlot<kWidth>::kBytes);
      fetch_tile(ring.slots[at.slot], job.q, head, t, full);
      at.advance();
      full = ring.barriers.begin(at,
                                 TileSlot<kWidth>::kBytes + static_cast<int>(sizeof ring.stats[0]));
      fetch_tile(ring.slots[at.slot], job.grad, head, t, full);
      tma_load(ring.stats[at.slot / 2], job.stats_map, full, t * kTile, 0, head);
      at.advance();
    }
    return;
  }
  registers_for_math<1, kKeysBlocks<kWidth>>();
  const int heads = static_cast<int>(a.heads), b = head / heads, h = head % heads;
  const int j = tile * kTile;
  const Place place;
  float dk[blocks_of(kWidth)][kSums], dv[blocks_of(kWidth)][kSums];
#pragma unroll
  for (int block = 0; block < blocks_of(kWidth); ++block)
#pragma unroll
    for (int e = 0; e < kSums; ++e) dk[block][e] = dv[block][e] = 0.f;
  const auto store = [&] {
    const float of_dk[2] = {fabsf(a.scale), fabsf(a.scale)}, of_dv[2] = {1.f, 1.f};
    if constexpr (kDk) store_rows<kWidth>(a.dk.head(b, h), j, a.keys, a.width, dk, of_dk);
    if constexpr (kDv) store_rows<kWidth>(a.dv.head(b, h), j, a.keys, a.width, dv, of_dv);
  };
  if (begin >= job.query_tiles) return store();
  const int its_tile = head * job.key_tiles + tile, first_query = head * job.query_tiles;
  const float base2 = job.base2 * job.undo_k[its_tile], undo_v = job.undo_v[its_tile];
  mbarrier_wait(&ring.barriers.first, 0);
  const auto go_over = [&]<int kColumns>(int from, int to) {
#pragma unroll 1
    for (int t = from; t < to; ++t) {
      constexpr int kCount = kColumns / 2;
      const float undo_q = job.undo_q[first_query + t];
      const TileSlot<kWidth>& q = ring.slots[at.slot];
      SumsOf<kCount> s;
      ring.barriers.wait(at);
      multiply(s, ring.k, q);
      KeysKept<kColumns> kept;
      if (a.dropout.on) {
        if constexpr (kDv) kept.draw(a, job.kept, head, t * kTile, tile);
        else kept.load(job.kept, head, t * kTile, tile);
      }
      const PipelineState<kBackwardBuffers> second = second_of(at);
      const TileSlot<kWidth>& grad = ring.slots[second.slot];
      const auto& stats = ring.stats[second.slot / 2];
      [[maybe_unused]] SumsOf<kCount> u;
      ring.barriers.wait(second);
      // Whether dP's products run while P is made: a bias takes the registers for it.
      constexpr bool kBoth = kDk && !kBias;
      if constexpr (kBoth) multiply(u, ring.v, grad);
      wgmma_wait<kBoth ? 1 : 0>();
      s.settle();

      // Rows are keys here, columns queries.
      [[maybe_unused]] const int i = t * kTile;
      float p[kCount], scale = base2 * undo_q;
#pragma unroll
      for (int e = 0; e < kCount; ++e) p[e] = s.at(e);
      if constexpr (kBias) {
        const int row = i + place.column, column = j + place.row;
        const View<const float> bias = a.bias.head(b, h);
        add_bias(p, scale, bias.ptr(row, column), bias.cs, bias.rs, left_of(a.keys, column),
                 left_of(a.queries, row));
        scale = 1.f;
      }
      scale = scale < 0x1p-100f ? 0x1p-100f : scale;
      if (a.causal && t == tile) {
#pragma unroll
        for (int e = 0; e < kCount; ++e)
          if (place.column + column_of(e) < place.row + 8 * half_of(e)) p[e] = -INFINITY;
      }
#pragma unroll
      for (int e = 0; e < kCount; e += 4) {
        float lse[2];
        load2(lse, &stats[kLse2][place.column + column_of(e)]);
#pragma unroll
        for (int x = 0; x < 4; ++x) p[e + x] = exp2_approximate(fmaf(p[e + x], scale, -lse[x % 2]));
      }
      if (a.dropout.on) mark_dropped(p, kept);
      if constexpr (kDk && !kBoth) multiply(u, ring.v, grad);
      if constexpr (kDk) {
        wgmma_wait<0>(), u.settle();
        if (a.dropout.on) drop(u, p, a.dropout.factor);
      }
      [[maybe_unused]] float ds[kCount], undo_p[2], undo_ds[2];
#pragma unroll
      for (int e = 0; e < kCount; e += 4) {
        [[maybe_unused]] float delta[2];
        float undo_grad[2];
        load2(undo_grad, &stats[kUndo][place.column + column_of(e)]);
        if constexpr (kDk) load2(delta, &stats[kDelta][place.column + column_of(e)]);
#pragma unroll
        for (int x = 0; x < 4; ++x) {
          if constexpr (kDk) {
            const float dp = u.at(e + x) * undo_v;
            ds[e + x] = fabsf(p[e + x]) * fmaf(dp, undo_grad[x % 2], -delta[x % 2]);
          }
          if constexpr (kDv) p[e + x] *= undo_grad[x % 2];
        }
      }
      [[maybe_unused]] Fragments<kColumns> of_p, of_ds;
      if (kDv && a.dropout.on) {
#pragma unroll
        for (int e = 0; e < kCount; ++e) p[e] = fabsf(p[e]) * factor_of(p[e], a.dropout.factor);
      }
      const auto split_ds = [&] {
        split_rows(of_ds, ds, undo_ds);
        undo_ds[0] *= undo_q, undo_ds[1] *= undo_q;
      };
      if constexpr (kDv) {
        split_rows(of_p, p, undo_p);
        accumulate(dv, of_p, grad, undo_p, [&] {
          if constexpr (kDk) split_ds();
        });
      } else {
        split_ds();
      }
      if constexpr (kDk) accumulate(dk, of_ds, q, undo_ds, [] {});
      ring.barriers.give_back(at);
      ring.barriers.give_back(at);
    }
  };
  const int whole = kShort<kWidth, kBias> ? job.whole_queries : job.query_tiles;
  go_over.template operator()<kTile>(begin, whole);
  if constexpr (kShort<kWidth, kBias>)
    go_over.template operator()<kShortTile>(whole, job.query_tiles);
  store();
}

template <int kWidth, bool kBias>
__global__ void __launch_bounds__(threads_for(kQueriesGroups<kWidth>), 1)
    attention_queries(const __grid_constant__ BackwardJob job) {
  XGEMM_SHARED_DYNAMIC(ring, QueriesRing<kWidth>);
  constexpr int kGroups = kQueriesGroups<kWidth>;
  const Attention& a = job.a;
  const int group = warpgroup();
  if (threadIdx.x == 0) ring.barriers.init(kGroups);
  __syncthreads();
  take_turn();
  const QueriesBlock<kGroups> block(job);
  PipelineState<kBackwardBuffers> at;
  if (group == kGroups) {  // producer
    registers_for_fetching<kGroups, 1>();
    if (threadIdx.x % kGroup > 0) return;
    const int tiles = block.last - block.first;
    mbarrier_expect(&ring.barriers.first, 2 * tiles * TileSlot<kWidth>::kBytes);
    for (int g = 0; g < tiles; ++g) {
      fetch_tile(ring.q[g], job.q, block.head, block.first + g, &ring.barriers.first);
      fetch_tile(ring.grad[g], job.grad, block.head, block.first + g, &ring.barriers.first);
    }
    block.fetch_keys(ring, job, at);
    return;
  }
  registers_for_math<kGroups, 1>();
  const int tile = block.first + group;
  const int head = static_cast<int>(block.head), heads = static_cast<int>(a.heads);
  const int b = head / heads, h = head % heads;
  const int i = tile * kTile;
  const int mine = tile < block.last ? tiles_seen(a, tile, job.key_tiles) : 0;
  if (!mine) return skip_pairs(ring, at, block.steps);
  const View<const float> bias = a.bias.head(b, h);
  const Place place;
  float dq[blocks_of(kWidth)][kSums], lse[2], delta[2], undo_grad[2];
#pragma unroll
  for (int n = 0; n < blocks_of(kWidth); ++n)
#pragma unroll
    for (int e = 0; e < kSums; ++e) dq[n][e] = 0.f;
#pragma unroll
  for (int x = 0; x < 2; ++x) {
    const int64_t row = i + place.row + 8 * x;
    const auto stat = [&](Stat which) {
      return row < a.queries ? *job.stats.at(head, which, row) : 0.f;
    };
    lse[x] = stat(kLse2), delta[x] = stat(kDelta), undo_grad[x] = stat(kUndo);
  }
  const float base2 = job.base2 * job.undo_q[block.first_query + group];
  mbarrier_wait(&ring.barriers.first, 0);
  const auto go_over = [&]<int kColumns>(int from, int to) {
#pragma unroll 1
    for (int t = from; t < to; ++t) {
      constexpr int kCount = kColumns / 2;
      const float undo_k = job.undo_k[block.first_key + t],
                  undo_v = job.undo_v[block.first_key + t];
      constexpr bool kBoth = kGroups == 1 && !kBias;  // else they have not the registers
      const TileSlot<kWidth>& k = ring.slots[at.slot];
      SumsOf<kCount> s, u;
      QueriesKept<kColumns> kept;
      if (a.dropout.on) kept.load(job.kept, head, i, t);
      ring.barriers.wait(at);
      multiply(s, ring.q[group], k);
      if (a.dropout.on) kept.exchange();
      const PipelineState<kBackwardBuffers> second = second_of(at);
      const TileSlot<kWidth>& v = ring.slots[second.slot];
      ring.barriers.wait(second);
      if constexpr (kBoth) multiply(u, ring.grad[group], v);
      wgmma_wait<kBoth ? 1 : 0>();
      s.settle();
      float p[kCount], undo[2], scale = base2 * undo_k;
      make_logits<kBias>(p, s, scale, bias, a, i, t * kTile);
#pragma unroll
      for (int e = 0; e < kCount; ++e) p[e] = exp2_approximate(fmaf(p[e], scale, -lse[half_of(e)]));
      if (a.dropout.on) mark_dropped(p, kept);
      if constexpr (!kBoth) multiply(u, ring.grad[group], v);
      wgmma_wait<0>();
      u.settle();
      if (a.dropout.on) drop(u, p, a.dropout.factor);
#pragma unroll
      for (int e = 0; e < kCount; ++e) {
        p[e] = fabsf(p[e]) * fmaf(u.at(e), undo_v * undo_grad[half_of(e)], -delta[half_of(e)]);
      }
      Fragments<kColumns> f;
      split_rows(f, p, undo);
      undo[0] *= undo_k, undo[1] *= undo_k;
      accumulate(dq, f, k, undo, [] {});
      ring.barriers.give_back(at);
      ring.barriers.give_back(at);
    }
  };
  const int whole = kShort<kWidth, kBias> && job.whole_keys < mine ? job.whole_keys : mine;
  go_over.template operator()<kTile>(0, whole);
  if constexpr (kShort<kWidth, kBias>) go_over.template operator()<kShortTile>(whole, mine);
  skip_pairs(ring, at, block.steps - mine);
  const float of_dq[2] = {a.scale, a.scale};
  store_rows<kWidth>(a.dq.head(b, h), i, a.queries, a.width, dq, of_dq);
}

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
