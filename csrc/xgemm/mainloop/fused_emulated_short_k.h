// Products with a short K on tensor cores, tile after tile of a row of D's tiles: A's rows stay in
// shared memory for all of them, B's columns come by. One warpgroup decomposes both into bf16
// limbs, two multiply those, and one stores D: memory, which is what takes longest, never waits.
#pragma once

#include "xgemm/device/ptx/mbarrier.h"
#include "xgemm/device/ptx/wgmma.h"
#include "xgemm/epilogue/chain.h"
#include "xgemm/mainloop/fused_epilogue.h"

namespace xgemm {
inline namespace XGEMM_FLAVOUR {

constexpr EmulationScheme kShortScheme = kBf16x6;
constexpr int kStorers = 128;  // threads
constexpr int kShortAhead = 2;  // slices on their way from gmem
constexpr int kShortStay = 2;  // slices of A in limbs: if they are all of K, they stay
// Registers of a thread that multiplies, and of one of the others.
constexpr int kShortRegisters = 160, kShortOthers = 96;

// A block has some tiles, one after another: matrix after matrix, row after row.
struct ShortJob {
  Gemm g;
  OperandMap a, b;
  uint32_t tiles_m = 1, tiles_n = 1;
  uint32_t each = 1, extra = 0;  // tiles of a block, and how many blocks have one more

  XGEMM_HD bool copies() const { return !a.by_tma || !b.by_tma; }
};

template <Tile T>
struct ShortWalk {
  const ShortJob& job;
  uint32_t left;  // tiles, with this one
  uint32_t z, i, j;  // the matrix, and the tile in it
  bool first = true;

  __device__ __forceinline__ explicit ShortWalk(const ShortJob& of) : job(of) {
    const uint32_t block = blockIdx.x;
    const uint32_t tile = block * job.each + (block < job.extra ? block : job.extra);
    left = job.each + (block < job.extra);
    j = tile % job.tiles_n;
    i = tile / job.tiles_n % job.tiles_m;
    z = tile / job.tiles_n / job.tiles_m;
  }
  __device__ __forceinline__ void next() {
    --left, first = false;
    if (++j < job.tiles_n) return;
    j = 0;
    if (++i < job.tiles_m) return;
    i = 0, ++z;
  }
  __device__ __forceinline__ int64_t i0() const { return int64_t{i} * T.BM; }
  __device__ __forceinline__ int64_t j0() const { return int64_t{j} * T.BN; }
  // Of K: one at least, of zeros where there is no k.
  __device__ __forceinline__ int slices() const {
    return job.g.k > kSliceK ? static_cast<int>((job.g.k - 1) / kSliceK) + 1 : 1;
  }
  __device__ __forceinline__ bool stays() const { return job.g.k <= kShortStay * kSliceK; }
  // Whether this tile's slices of A are not those of the tile before, and whether they are not
  // those of the next.
  __device__ __forceinline__ bool begins() const { return first || j == 0 || !stays(); }
  __device__ __forceinline__ bool ends() const {
    return left == 1 || j + 1 == job.tiles_n || !stays();
  }
};

// Slices of an operand in limbs.
template <int kL, bool kAlongK, int kBuffers>
struct alignas(1024) ShortLimbs {
  using Split = SharedLimbs<kTransformThreads, kL, kAlongK>;
  using Loader = RawLoader<kTransformThreads, kL, kAlongK>;
  typename Split::Slice limbs[kBuffers];
  Mbarrier empty[kBuffers];

  // By one thread.
  __device__ __forceinline__ void init(int readers) {
    for (int s = 0; s < kBuffers; ++s) mbarrier_init(&empty[s], readers);
  }
};

// The sums of a warpgroup's 64 rows of a tile, from those who have them to those who store them.
// Rows are so far apart that a warp's threads meet no bank twice.
template <int BN>
struct alignas(16) ShortSums {
  static constexpr int kPitch = BN + 8;
  static_assert(kPitch % 32 == 8);
  float d[64][kPitch];
  Mbarrier filled, stored;
};

template <Tile T, bool kA, bool kB>
struct ShortRing {
  static constexpr int kGroups = T.BM / 64;
  static_assert(T.BM == T.BN);
  RawSlice<T.BM, true>
      raw[kShortAhead];  // of A and of B, in the order in which they are decomposed
  ShortLimbs<T.BM, kA, kShortStay> a;
  ShortLimbs<T.BN, kB, T.buffers> b;
  // B's slice is there; so is A's, which the same threads decompose before it.
  Mbarrier full[T.buffers];
  ShortSums<T.BN> sums[kGroups];
  // Of a tile's operands, by warps that decompose: see join_ranges. From those who decompose to
  // those who store there are fewer tiles on their way than this has room for: a slice of each in
  // b's ring, one that is multiplied, one that is stored.
  static constexpr uint32_t kRanges = 8;
  static_assert(T.buffers + 2 < kRanges);
  uint32_t ranges[kRanges][kTransformThreads / 32];
  Mbarrier landed[kShortAhead], taken[kShortAhead];

  template <class Operand>
  __device__ __forceinline__ typename Operand::Split::Raw& raw_of(const Operand&, int stage) {
    return reinterpret_cast<typename Operand::Split::Raw&>(raw[stage]);
  }

  // By all threads of the block.
  __device__ __forceinline__ void init(const ShortJob& job) {
    if (threadIdx.x == 0) {
      a.init(kGroups);
      b.init(kGroups);
      for (int s = 0; s < T.buffers; ++s) mbarrier_init(&full[s], kTransformThreads);
      for (int s = 0; s < kShortAhead; ++s) {
        mbarrier_init(&landed[s], job.copies() ? kTransformThreads : 1);
        mbarrier_init(&taken[s], kTransformThreads);
      }
      for (int group = 0; group < kGroups; ++group) {
        mbarrier_init(&sums[group].filled, T.threads() / kGroups);
        mbarrier_init(&sums[group].stored, kStorers);
      }
      fence_barrier_init();
    }
    __syncthreads();
  }
};

// gmem -> smem, by those who decompose: what TMA takes, one of them asks for; the rest all copy.
template <Tile T, bool kA, bool kB>
struct ShortLoad {
  using Ring = ShortRing<T, kA, kB>;
  const ShortJob& job;
  ShortWalk<T> walk{job};
  int slice = 0;  // of the tile
  bool b_next = false;  // else A's, where a row begins
  PipelineState<kShortAhead> at;

  // The next slice of an operand, if there is one, once what was there has been taken.
  __device__ __forceinline__ void next(Ring& ring) {
    const int thread = static_cast<int>(threadIdx.x) % kTransformThreads;
    if (walk.left == 0 || (thread > 0 && !job.copies())) return;
    mbarrier_wait(&ring.taken[at.slot], at.phase ^ 1);
    const bool of_a = !b_next && walk.begins();
    if (of_a) load(ring, ring.a, job.g.a, walk.i0(), job.g.m, job.a, thread);
    else load(ring, ring.b, job.g.b.transposed(), walk.j0(), job.g.n, job.b, thread);
    at.advance();
    b_next = of_a;
    if (!of_a && ++slice == walk.slices()) slice = 0, walk.next();
  }

 private:
  template <class Operand>
  __device__ __forceinline__ void load(Ring& ring, const Operand& operand, View<const float> rows,
                                       int64_t l0, int64_t length, const OperandMap& map,
                                       int thread) const {
    const auto z = static_cast<int>(walk.z);
    rows.data += z * rows.bs;
    const typename Operand::Loader from{rows, l0, length, job.g.k, map, rows.bs ? z : 0, thread};
    auto& raw = ring.raw_of(operand, at.slot);
    Mbarrier* const landed = &ring.landed[at.slot];
    const int64_t k = int64_t{slice} * kSliceK;
    if (!map.by_tma) {
      from.by_copies(raw, k);
      mbarrier_arrive_after_copies(landed);
    } else if (thread > 0) {
      mbarrier_arrive(landed);
    } else {
      mbarrier_expect(landed, from.kBytes);
      from.by_tma(raw, landed, k);
    }
  }
};

// Slices into limbs, by kTransformThreads threads.
template <Tile T, bool kA, bool kB>
__device__ __forceinline__ void transform_tiles(ShortRing<T, kA, kB>& ring, const ShortJob& job) {
  ShortLoad<T, kA, kB> load{job};
#pragma unroll 1
  for (int s = 0; s < kShortAhead; ++s) load.next(ring);
  PipelineState<kShortAhead> from;
  PipelineState<kShortStay> to_a;
  PipelineState<T.buffers> to_b;
  const auto transform = [&](auto& operand, const auto& to, Reach& reach) {
    using Operand = std::remove_reference_t<decltype(operand)>;
    mbarrier_wait(&ring.landed[from.slot], from.phase);
    mbarrier_wait(&operand.empty[to.slot], to.phase ^ 1);
    Operand::Split::decompose(operand.limbs[to.slot], ring.raw_of(operand, from.slot), reach);
    mbarrier_arrive(&ring.taken[from.slot]);
    from.advance();
  };
  Reach of_a;
  uint32_t tile = 0;
  for (ShortWalk<T> walk{job}; walk.left > 0; walk.next(), ++tile) {
    Reach of_b;
    if (walk.begins()) of_a = {};
#pragma unroll 1
    for (int left = walk.slices(); left > 0; --left) {
      if (walk.begins()) {
        transform(ring.a, to_a, of_a);
        to_a.advance();
        load.next(ring);
      }
      transform(ring.b, to_b, of_b);
      if (left == 1) {
        const uint32_t range = join_ranges_of_warp(of_a.half_range() | of_b.half_range() << 16);
        const int warp = static_cast<int>(threadIdx.x) % kTransformThreads / 32;
        if (threadIdx.x % 32 == 0) ring.ranges[tile % ring.kRanges][warp] = range;
      }
      fence_for_wgmma();
      mbarrier_arrive(&ring.full[to_b.slot]);  // A's slice, if there was one, goes with it
      to_b.advance();
      load.next(ring);
    }
  }
}

// part = the products of a slice, for 64 rows of D: those of the first limbs, or the others,
// smallest first. a and b are descriptors of the first limbs.
template <int kSums>
__device__ __forceinline__ void multiply_first(float (&part)[kSums], uint64_t a, uint64_t b) {
#pragma unroll
  for (int half = 0; half < 2; ++half)
    wgmma<kShortScheme.type>(part, a + half * kDescriptorK16, b + half * kDescriptorK16, half > 0);
}
template <Tile T, int kSums>
__device__ __forceinline__ void multiply_others(float (&part)[kSums], uint64_t a, uint64_t b) {
  constexpr uint64_t kNextA = T.BM * kSliceK * 2 >> 4, kNextB = T.BN * kSliceK * 2 >> 4;
#pragma unroll
  for (int order = kShortScheme.limbs - 1; order > 0; --order)
#pragma unroll
    for (int p = 0; p <= order; ++p)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        wgmma<kShortScheme.type>(part, a + p * kNextA + half * kDescriptorK16,
                                 b + (order - p) * kNextB + half * kDescriptorK16,
                                 order < kShortScheme.limbs - 1 || p > 0 || half > 0);
}

// The tiles' products, by warpgroups with 64 rows each.
template <Tile T, bool kA, bool kB>
__device__ __forceinline__ void multiply_tiles(ShortRing<T, kA, kB>& ring, const ShortJob& job) {
  constexpr int kSums = T.BN / 2, kRow = kSliceK * 2, kPitch = ShortSums<T.BN>::kPitch;
  const int group = static_cast<int>(threadIdx.x) / 128, thread = threadIdx.x % 128;
  ShortSums<T.BN>& sums = ring.sums[group];
  float* const mine = &sums.d[thread / 32 * 16 + thread % 32 / 4][thread % 4 * 2];
  float sum[kSums], part[kSums];
  const auto add = [&] {
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_settled(part);
#pragma unroll
    for (int e = 0; e < kSums; ++e) sum[e] += part[e];
  };
  PipelineState<kShortStay> row;
  PipelineState<T.buffers> at;
  PipelineState<1> to;
  for (ShortWalk<T> walk{job}; walk.left > 0; walk.next(), to.advance()) {
    PipelineState<kShortStay> at_a = row;
#pragma unroll
    for (int e = 0; e < kSums; ++e) sum[e] = 0.f;
#pragma unroll 1
    for (int left = walk.slices(); left > 0; --left, at_a.advance(), at.advance()) {
      mbarrier_wait(&ring.full[at.slot], at.phase);
      const uint64_t a = wgmma_descriptor<kRow>(ring.a.limbs[at_a.slot][0] + group * (64 * kRow));
      const uint64_t b = wgmma_descriptor<kRow>(ring.b.limbs[at.slot][0]);
      wgmma_fence();
      multiply_others<T>(part, a, b);
      add();
      wgmma_fence();
      multiply_first(part, a, b);
      add();
      if (thread == 0) {
        if (walk.ends()) mbarrier_arrive(&ring.a.empty[at_a.slot]);
        mbarrier_arrive(&ring.b.empty[at.slot]);
      }
    }
    if (walk.ends()) row = at_a;
    mbarrier_wait(&sums.stored, to.phase ^ 1);
#pragma unroll
    for (int e = 0; e < kSums; e += 2)
      store2(mine + e / 2 % 2 * 8 * kPitch + e / 4 * 8, sum[e], sum[e + 1]);
    mbarrier_arrive(&sums.filled);
  }
}

// What is not certain of the sums that a thread stores, four neighbours in every kStep-th row,
// by the chain: of a short K that is as good as any other way.
template <int kStep, int kPitch>
__device__ __forceinline__ void chain_rows(const Gemm& g, const Certainty& certain, float* sums,
                                           int64_t i, int64_t j, int rows) {
#pragma unroll 1
  for (auto left = static_cast<int>(min_of(g.m - i, rows)); left > 0;
       left -= kStep, i += kStep, sums += kStep * kPitch) {
#pragma unroll 1
    for (int w = 0; w < 4 && j + w < g.n; ++w)
      if (!certain.of(sums[w])) sums[w] = chain_of<8>(g, i, j + w, 0, g.k);
  }
}

// Sums through the epilogue, by kStorers threads: a warp has a row of the tile at a time.
template <Tile T, bool kA, bool kB>
__device__ __forceinline__ void store_tiles(ShortRing<T, kA, kB>& ring, const ShortJob& job) {
  constexpr int kWarps = kStorers / 32, kAtOnce = 4;
  static_assert(T.BN == 128);
  const int first = static_cast<int>(threadIdx.x) % kStorers / 32, column = threadIdx.x % 32 * 4;
  PipelineState<1> at;
  uint32_t tile = 0;
  for (ShortWalk<T> walk{job}; walk.left > 0; walk.next(), at.advance(), ++tile) {
    const Gemm g = job.g.at(walk.z);
#pragma unroll 1
    for (int group = 0; group < ring.kGroups; ++group) {
      ShortSums<T.BN>& sums = ring.sums[group];
      const int64_t i = walk.i0() + group * 64, j = walk.j0() + column;
      mbarrier_wait(&sums.filled, at.phase);
      const uint32_t* const of_warps = ring.ranges[tile % ring.kRanges];
      const Certainty certain(join_ranges_of_warp(of_warps[threadIdx.x % (kTransformThreads / 32)]),
                              g.k);
      if (certain.always() && g.beta == 0.f && g.act == Act::none && i + 64 <= g.m &&
          walk.j0() + T.BN <= g.n && g.d.wide()) [[likely]] {
        float* d = g.d.ptr(i + first, j);
        simt::expect_aligned(d, 16);
#pragma unroll 1
        for (int r = first; r < 64; r += kWarps * kAtOnce) {
          float x[kAtOnce][4];
#pragma unroll
          for (int q = 0; q < kAtOnce; ++q) load4(x[q], &sums.d[r + q * kWarps][column]);
#pragma unroll
          for (int q = 0; q < kAtOnce; ++q, d += kWarps * g.d.rs)
            __stcg(reinterpret_cast<float4*>(d),
                   make_float4(g.without_c(x[q][0]), g.without_c(x[q][1]), g.without_c(x[q][2]),
                               g.without_c(x[q][3])));
        }
      } else {
        if (!certain.always()) [[unlikely]]
          chain_rows<kWarps, sums.kPitch>(g, certain, &sums.d[first][column], i + first, j,
                                          64 - first);
#pragma unroll 1
        for (int r = first; r < 64; r += kWarps) {
          float x[4];
          load4(x, &sums.d[r][column]);
          if (i + r < g.m && j < g.n) store_row4(g, i + r, j, x);
        }
      }
      mbarrier_arrive(&sums.stored);
    }
  }
}

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
