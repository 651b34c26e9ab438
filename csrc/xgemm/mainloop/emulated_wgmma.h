// The tensor-core main loop of sm_90a for operands in limbs: TMA fills a ring of slices, warpgroups
// multiply them.
//
// Three sums for each element of D, in registers:
//   acc_hi    products of the first limbs over one slice: the tensor core truncates what it adds,
//             so this sum is short (32 products), and then added, rounded to nearest, to
//   acc       the sum so far
//   acc_corr  all the other products, smaller by 2^8 and more, whose truncation errors are as
//             small; added to acc at the end of a segment of K.
// The products of acc_corr run while acc_hi is added to acc, so that the tensor cores never wait.
//
// The grid is persistent: each cluster takes tile after tile, and of the last ones a share along K
// (stream_k.h). The partials then are acc. Where K is cut depends on the problem and on
// how many clusters run at a time, and bits with it, but never on time.
//
// Where clusters have several tiles of many slices, those but the last are staged
// (epilogue/staged.h): a tile's main loop runs while the one before is stored.
#pragma once

#include "xgemm/core/stream_k.h"
#include "xgemm/device/pipeline.h"
#include "xgemm/device/ptx/cluster.h"
#include "xgemm/device/ptx/mbarrier.h"
#include "xgemm/device/ptx/tma.h"
#include "xgemm/device/ptx/wgmma.h"
#include "xgemm/emulation/slabs.h"
#include "xgemm/epilogue/emulated.h"
#include "xgemm/epilogue/staged.h"
#include "xgemm/mainloop/recompute.h"

namespace xgemm {
inline namespace XGEMM_FLAVOUR {

// Threads of a warpgroup; math warpgroups have 64 rows of D each, the last one fetches.
constexpr int kWarpgroup = 128;
// Warps of the last one that store what the others have staged.
constexpr int kStoreWarps = kWarpgroup / 32 - 1;

// A tile of BM x 128, a slot of the ring being 32 deep; limbs_of_a: where they are fewer.
constexpr Tile wgmma_tile(EmulationScheme s, int BM, int cluster, int buffers, float rate = 0.f,
                          int limbs_of_a = 0) {
  return {.BM = BM,
          .BN = 128,
          .BK = kSliceK,
          .WM = 16,
          .WN = 128,
          .TM = 2,
          .TN = 32,
          .width = 4,
          .buffers = buffers,
          .a_rows = BM,
          .element_bytes = 2 * s.limbs,
          .element_bytes_a = 2 * limbs_of_a,
          .producers = kWarpgroup,
          .cluster = cluster,
          .group = 16 / cluster,
          .rate = rate};
}

struct StagedJob;

struct WgmmaJob {
  Gemm g;
  TensorMap a, b;
  Limbs a_limbs, b_limbs;
  RecomputeMap map;
  int group = 1;  // of a cluster's tiles, down, that are walked column by column
  StreamK stream_k;
  float* sums = nullptr;  // [block][warpgroup][element / 4][thread][4]
  uint32_t* flags = nullptr;  // [block][warpgroup], cleared by the decomposition

  // What follows differs where tiles of D are staged (epilogue/staged.h) ...
  static constexpr bool kStaged = false;
  using Staged = StagedJob;  // the same, staged
  // ... where A has 16-bit floats (mixed_wgmma.h) ...
  static constexpr bool kHalfA = false;
  // ... where each result is seen to by itself (invariant_wgmma.h) ...
  static constexpr bool kAlone = false;
  // ... and where the products are of groups (grouped_wgmma.h).
  using Work = WorkTile;
  static constexpr bool kShared = true;  // some tiles are cut along K

  // Of matrix z: the product, its scales, and where its limbs begin.
  __device__ __forceinline__ Gemm problem(int64_t z) const { return g.at(z); }
  __device__ __forceinline__ const RowScale* row_scales(int64_t z) const {
    return a_limbs.scales + a_limbs.first_row(z);
  }
  __device__ __forceinline__ const RowScale* column_scales(int64_t z) const {
    return b_limbs.scales + b_limbs.first_row(z);
  }
  __device__ __forceinline__ int64_t first_row(int64_t z) const { return a_limbs.first_row(z); }
  __device__ __forceinline__ int64_t first_column(int64_t z) const { return b_limbs.first_row(z); }
  __device__ __forceinline__ int first_slice(int64_t) const { return 0; }
  __device__ __forceinline__ int64_t unit_at(int64_t z, int64_t i, int64_t j, int columns) const {
    return map.unit_at(z, i, j, columns);
  }
  // Tiles of a cluster, of a matrix; what a cluster does in its step 0, 1, ...; where that is.
  template <Tile T>
  __device__ __forceinline__ uint32_t tiles() const {
    return static_cast<uint32_t>(tile_count(g, T.BM * T.cluster, T.BN));
  }
  template <Tile T>
  __device__ __forceinline__ bool work_tile(uint32_t, uint32_t cluster, uint32_t step,
                                            Work& work) const {
    return stream_k.work_tile(cluster, step, work);
  }
  __device__ __forceinline__ uint32_t matrix(uint32_t tiles, const Work& work) const {
    return work.tile / tiles;
  }
  template <Tile T>
  __device__ __forceinline__ TileCoord origin(uint32_t tiles, const Work& work) const {
    return swizzled_tile<uint32_t>(work.tile % tiles, g.m, g.n, T.BM * T.cluster, T.BN, group);
  }
};

// Bytes of a row of a slot that lie together: fp16's hi and lo in one row of 128, bf16's limbs one
// after another in rows of 64.
constexpr int row_of(EmulationScheme s) { return s.limbs == 2 ? 128 : 64; }
constexpr int boxes_of(EmulationScheme s) { return row_of(s) == 128 ? 1 : s.limbs; }

struct StagedJob : WgmmaJob {
  static constexpr bool kStaged = true;
};

// The same tile with slots that leave room for itself: staged, or sums of parts of K.
constexpr Tile staged_tile(Tile t) {
  const int slot = (t.smem() - t.extra) / t.buffers, rest = 2816;  // mbarriers, scales
  t.extra = t.BM * t.BN * static_cast<int>(sizeof(float));
  t.buffers = (227 * 1024 - rest - t.extra) / slot;
  return t.checked();
}

// A warpgroup has 64 rows of a tile.
template <Tile T>
using GroupScales = TileScales<kWarpgroup, 64, T.BN>;

// The scheme of a job, and A's, which may have fewer limbs.
template <Half kType, class Job>
constexpr EmulationScheme kSchemeOf = Job::kHalfA ? kFp16x2 : scheme_of(kType);
template <Half kType, class Job>
constexpr EmulationScheme kSchemeOfA =
    Job::kHalfA ? one_limb(kSchemeOf<kType, Job>) : kSchemeOf<kType, Job>;

template <EmulationScheme SA, EmulationScheme S, Tile T>
struct WgmmaRing {
  char a[T.buffers][T.BM * kSliceK * 2 * SA.limbs];
  char b[T.buffers][T.BN * kSliceK * 2 * S.limbs];
  Mbarrier full[T.buffers], empty[T.buffers];
  GroupScales<T> scales[T.BM / 64];
};
template <EmulationScheme SA, EmulationScheme S, Tile T>
struct StagedRing : WgmmaRing<SA, S, T> {
  StagedUnit<64, T.BN> units[T.BM / 64];
};
// Sums that the main loop's registers have no room for, where K is made in parts: of each
// warpgroup [element / 4][thread][4].
template <EmulationScheme SA, EmulationScheme S, Tile T>
struct PartsRing : WgmmaRing<SA, S, T> {
  alignas(16) float sums[T.BM / 64][64 * T.BN];
};
template <EmulationScheme SA, EmulationScheme S, Tile T, class Job>
using RingOf =
    std::conditional_t<Job::kStaged, StagedRing<SA, S, T>,
                       std::conditional_t<Job::kAlone, PartsRing<SA, S, T>, WgmmaRing<SA, S, T>>>;

// gmem -> a slot of the ring, signalled at its `full`: a box for the limbs that lie together. In a
// cluster each block fetches its share of B's rows for all.
template <EmulationScheme SA, EmulationScheme S, Tile T, class Job>
__device__ __forceinline__ void fetch(WgmmaRing<SA, S, T>& ring, const Job& job, int slot, int row,
                                      int column, int k, int rank) {
  constexpr int kRowA = row_of(SA), kBoxesA = boxes_of(SA);
  constexpr int kRow = row_of(S), kBoxes = boxes_of(S), kShare = T.BN / T.cluster;
#pragma unroll
  for (int box = 0; box < kBoxes; ++box) {
    if (box < kBoxesA)
      tma_load(ring.a[slot] + box * (T.BM * kRowA), job.a, &ring.full[slot], 0, row,
               k * kBoxesA + box);
    const int depth = k * kBoxes + box;
    char* const b = ring.b[slot] + box * (T.BN * kRow) + rank * (kShare * kRow);
    if constexpr (T.cluster > 1)
      tma_load_multicast(b, job.b, &ring.full[slot], 0, column + rank * kShare, depth,
                         (1u << T.cluster) - 1);
    else tma_load(b, job.b, &ring.full[slot], 0, column, depth);
  }
}

// The products of one slice for 64 rows of D, in two groups of wgmma: acc_hi = those of the first
// limbs, acc_corr += the others, smallest first, as far as A has such limbs. a and b are
// descriptors of the first ones.
template <EmulationScheme SA, EmulationScheme S, Tile T>
__device__ __forceinline__ void multiply(float (&acc_hi)[64], float (&acc_corr)[64], uint64_t a,
                                         uint64_t b, bool accumulate) {
  constexpr bool kTogether = row_of(S) == 128;
  constexpr uint64_t kNextA = (kTogether ? kSliceK * 2 : T.BM * kSliceK * 2) >> 4;
  constexpr uint64_t kNextB = (kTogether ? kSliceK * 2 : T.BN * kSliceK * 2) >> 4;
  wgmma_fence();
#pragma unroll
  for (int half = 0; half < 2; ++half)
    wgmma<S.type>(acc_hi, a + half * kDescriptorK16, b + half * kDescriptorK16, half > 0);
  wgmma_commit();
#pragma unroll
  for (int order = S.limbs - 1; order > 0; --order)
#pragma unroll
    for (int limb = 0; limb <= order && limb < SA.limbs; ++limb)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        wgmma<S.type>(acc_corr, a + limb * kNextA + half * kDescriptorK16,
                      b + (order - limb) * kNextB + half * kDescriptorK16,
                      accumulate || order < S.limbs - 1 || limb > 0 || half > 0);
  wgmma_commit();
}

// A thread's share of the scales of the 64 rows that `group` has of a tile, and of its columns.
template <Tile T, class Job>
__device__ __forceinline__ typename GroupScales<T>::Share fetch_scales(const Job& job, int64_t z,
                                                                       const TileCoord& o,
                                                                       int group) {
  return GroupScales<T>::fetch(job.problem(z), job.row_scales(z), job.column_scales(z),
                               o.i + group * 64, o.j, threadIdx.x % kWarpgroup);
}

// The epilogue of one tile: `group` has 64 rows of it, which are a unit of the map. They are stored
// only if all of them stand: what is made anew reads the C that was there before, which may be D.
// A staged one is left in `unit`, in whose phase it is found filled or not.
template <EmulationScheme S, Tile T, class Job, class Unit>
__device__ __forceinline__ void store_tile(const Job& job, GroupScales<T>& scales,
                                           const typename GroupScales<T>::Share& share, int64_t z,
                                           const TileCoord& o, int group, const float (&acc)[64],
                                           Unit* unit, int parity) {
  const Gemm g = job.problem(z);
  const int lane = threadIdx.x % 32, thread = threadIdx.x % kWarpgroup, tx = lane % 4 * 2;
  const int row = thread / 32 * 16 + lane / 4;
  named_barrier(1 + group, kWarpgroup);  // all have read the scales of the tile before
  scales.put(share, g.k, g.m - o.i - group * 64, g.n - o.j, thread);
  named_barrier(1 + group, kWarpgroup);
  const EmulatedEpilogue<S, T.BN / 8> epilogue{.g = g,
                                               .rows = job.row_scales(z),
                                               .columns = job.column_scales(z),
                                               .i = o.i + group * 64 + row,
                                               .j = o.j + tx,
                                               .undo_rows = scales.rows + row,
                                               .undo_columns = scales.columns + tx,
                                               .flags = scales.flags()};
  const uint32_t flags = epilogue.flags;
  const RecomputeMap& map = job.map;
  const auto place = [&](int e) {
    return unit->at(row + epilogue.row_of(e), tx + epilogue.column_of(e));
  };
  const auto fill = [&](Staged holds) {
    if (thread > 0) return;
    unit->i = static_cast<int32_t>(o.i + group * 64), unit->j = static_cast<int32_t>(o.j);
    unit->z = static_cast<uint32_t>(z), unit->holds = holds;
  };
  if constexpr (Job::kStaged)
    if (flags == 0) [[likely]] {
      mbarrier_wait(&unit->empty, parity ^ 1);
      epilogue.template stage<true>(acc, place);
      if (thread == 0 && o.i + group * 64 < g.m)
        map.mark(job.unit_at(z, o.i + group * 64, o.j, T.BN), Fate::stands, false);
      return fill(Staged::sums);
    }
  Fate worst = flags & kGivenFlags ? Fate::given : Fate::stands;
  uint32_t listed = 0;
  if (flags & (kLossy | kFar | kInfinities)) [[unlikely]] {
    uint64_t uncertain = 0;
    if (flags & kLossy)
      uncertain = epilogue.uncertain(acc, scales.row_doubts + row, scales.column_doubts + tx);
    const auto count = static_cast<uint32_t>(__popcll(uncertain));
    scales.vote(flags, g, epilogue.rows, epilogue.columns, o.i + group * 64, o.j, count, thread);
    named_barrier(1 + group, kWarpgroup);
    const uint32_t all = scales.all_uncertain();
    if (scales.needs_chains(flags)) {
      worst = Fate::chained;
    } else if (all > most_listed(g.k) || (all > 0 && g.beta != 0.f)) {
      worst = Fate::recomputed;
    } else if (all > 0) {
      worst = Fate::listed, listed = all;
      uint32_t at = scales.uncertain_before(count, thread);
#pragma unroll 1
      for (; uncertain; uncertain &= uncertain - 1) {
        const int e = __ffsll(static_cast<long long>(uncertain)) - 1;
        map.list(job.unit_at(z, o.i + group * 64, o.j, T.BN))[at++] =
            static_cast<uint16_t>((row + epilogue.row_of(e)) * T.BN + tx + epilogue.column_of(e));
      }
    }
  }
  if (thread == 0 && o.i + group * 64 < g.m)
    map.mark(job.unit_at(z, o.i + group * 64, o.j, T.BN), worst, flags & kGivenFlags, listed);
  const bool stands = worst < Fate::recomputed;
  if constexpr (!Job::kStaged) {
    if (!stands) return;
    if (!(flags & kGivenFlags) || !scales.all_given()) [[likely]]
      epilogue.store(acc);
  } else {
    mbarrier_wait(&unit->empty, parity ^ 1);
    const bool some = stands && (!(flags & kGivenFlags) || !scales.all_given());
    fill(some && epilogue.stage_rare(acc, place) ? Staged::sums : Staged::nothing);
  }
}

// Stores what is staged, by warp number `warp` of those who do.
template <class Job, class Unit, int kGroups>
__device__ __forceinline__ void store_units(const Job& job, Unit (&units)[kGroups], int warp) {
  for (int parity = 0;; parity ^= 1)
#pragma unroll 1
    for (Unit& unit : units) {
      mbarrier_wait(&unit.full, parity);
      if (unit.holds == Staged::ended) return;
      unit.template store<kStoreWarps>(job.problem(unit.z), warp);
      __syncwarp();
      if (threadIdx.x % 32 == 0) mbarrier_arrive(&unit.empty);
    }
}

// Leaves the sums of `group` of a block for the owner of their tile, which is block `owner`.
template <Tile T>
__device__ __forceinline__ void store_partials(const WgmmaJob& job, uint32_t owner, int group,
                                               const float (&acc)[64]) {
  constexpr int kMath = T.BM / 64;
  const int thread = threadIdx.x % kWarpgroup;
  float* const to =
      job.sums + (static_cast<int64_t>(blockIdx.x * kMath + group) * 16 * kWarpgroup + thread) * 4;
#pragma unroll
  for (int e = 0; e < 64; e += 4)
    store4(to + e * kWarpgroup, make_float4(acc[e], acc[e + 1], acc[e + 2], acc[e + 3]));
  named_barrier(1 + group, kWarpgroup);
  if (thread == 0) signal(&job.flags[owner * kMath + group]);
}

// Adds what `count` clusters before this one have left, the nearest first.
template <Tile T>
__device__ __forceinline__ void fixup(const WgmmaJob& job, uint32_t count, int group,
                                      float (&acc)[64]) {
  constexpr int kMath = T.BM / 64;
  const int thread = threadIdx.x % kWarpgroup;
  if (thread == 0) wait_for_signals(&job.flags[blockIdx.x * kMath + group], count);
  named_barrier(1 + group, kWarpgroup);
  const float* from =
      job.sums + (static_cast<int64_t>(blockIdx.x * kMath + group) * 16 * kWarpgroup + thread) * 4;
#pragma unroll 1
  for (; count > 0; --count) {
    from -= T.cluster * kMath * 64 * kWarpgroup;
#pragma unroll
    for (int e = 0; e < 64; e += 4) {
      float x[4];
      load4(x, from + e * kWarpgroup);
#pragma unroll
      for (int i = 0; i < 4; ++i) acc[e + i] += x[i];
    }
  }
}

// One thread of the last warpgroup is the producer: it waits until a slot is `empty`, announces the
// slot's bytes at `full`, and asks TMA for them. The others are consumers, 64 rows of D each: they
// wait for `full`, multiply, and when the slice's last wgmma is over arrive at `empty` of every
// block of the cluster, since B's slice is multicast into all of them. `empty` counts one arrival
// of each consumer warpgroup of the cluster, `full` the producer's own and the bytes.
template <Half kType, int BM, int kCluster, int kBuffers, class Job>
__global__ void __launch_bounds__(BM * 2 + kWarpgroup, 1)
    wgmma_kernel(const __grid_constant__ Job job) {
  constexpr EmulationScheme S = kSchemeOf<kType, Job>, SA = kSchemeOfA<kType, Job>;
  constexpr Tile T = wgmma_tile(S, BM, kCluster, kBuffers, 0.f, SA.limbs);
  constexpr int kMath = BM / 64, kRowA = row_of(SA), kRow = row_of(S);
  constexpr int kSlotBytes = (T.BM * SA.limbs + T.BN * S.limbs) * kSliceK * 2;
  XGEMM_SHARED_DYNAMIC(ring, RingOf<SA, S, T, Job>);
  const int group = threadIdx.x / kWarpgroup;
  const int rank = kCluster > 1 ? static_cast<int>(cluster_rank()) : 0;
  if (threadIdx.x == 0) {
    for (int s = 0; s < kBuffers; ++s) {
      mbarrier_init(&ring.full[s], 1);
      mbarrier_init(&ring.empty[s], kMath * kCluster);
    }
    if constexpr (Job::kStaged)
      for (auto& unit : ring.units) unit.init(kWarpgroup / 32, kStoreWarps);
    fence_barrier_init();
    tma_prefetch(job.a);
    tma_prefetch(job.b);
  }
  if constexpr (kCluster > 1) cluster_sync(Relaxed());
  else __syncthreads();
  take_turn();

  // A cluster's tiles lie below each other and share their slices of B.
  const uint32_t tiles = job.template tiles<T>();
  typename Job::Work work;
  const auto origin = [&] {
    TileCoord o = job.template origin<T>(tiles, work);
    o.i += rank * T.BM;
    return o;
  };
  const uint32_t cluster = blockIdx.x / kCluster;
  PipelineState<kBuffers> at;
  // A consumer keeps three sums of 64; of 65536 registers a block of 384 threads has 168 a thread.
  constexpr int kMathRegisters = Job::kStaged ? 224 : 232;
  constexpr int kFetchRegisters = Job::kStaged ? 56 : 40;
  static_assert(kMath == 1 || registers_suffice(1, kMath * kWarpgroup, kMathRegisters, kWarpgroup,
                                                kFetchRegisters));
  if (group == kMath) {  // producer
    if constexpr (kMath > 1) registers_down<kFetchRegisters>();
    if (threadIdx.x == kMath * kWarpgroup) {
      for (uint32_t step = 0; job.template work_tile<T>(tiles, cluster, step, work); ++step) {
        const uint32_t z = job.matrix(tiles, work);
        const TileCoord o = origin();
        const int row = static_cast<int>(job.first_row(z) + o.i);
        const int column = static_cast<int>(job.first_column(z) + o.j);
        const int slice = job.first_slice(z);
        for (int k = work.first; k < work.last; ++k, at.advance()) {
          mbarrier_wait(&ring.empty[at.slot], at.phase ^ 1);
          mbarrier_expect(&ring.full[at.slot], kSlotBytes);
          fetch<SA, S, T>(ring, job, at.slot, row, column, slice + k, rank);
        }
      }
    }
    if constexpr (Job::kStaged) {
      const int warp = static_cast<int>(threadIdx.x) / 32 - kMath * (kWarpgroup / 32);
      if (warp > 0) store_units(job, ring.units, warp - 1);
    }
  } else {  // consumer
    if constexpr (kMath > 1) registers_up<kMathRegisters>();
    float acc[64], acc_hi[64], acc_corr[64];
    StagedUnit<64, T.BN>* unit = nullptr;
    if constexpr (Job::kStaged) unit = &ring.units[group];
    int parity = 0;
    bool last = false;
    const auto release = [&](int slot) {
      const unsigned thread = threadIdx.x % kWarpgroup;
      if constexpr (kCluster > 1) {
        if (thread < kCluster) mbarrier_arrive_at(&ring.empty[slot], thread);
      } else if (thread == 0) {
        mbarrier_arrive(&ring.empty[slot]);
      }
    };
    for (uint32_t step = 0; job.template work_tile<T>(tiles, cluster, step, work); ++step) {
      const uint32_t z = job.matrix(tiles, work);
      const TileCoord o = origin();
      const auto scales = fetch_scales<T>(job, z, o, group);
#pragma unroll
      for (int e = 0; e < 64; ++e) acc[e] = 0.f;
      // Or its registers would be kept till here: who adds up parts needs them.
      if constexpr (Job::kAlone)
#pragma unroll
        for (int e = 0; e < 64; ++e) acc_corr[e] = 0.f;
      for (int first = work.first; first < work.last; first += S.segment / kSliceK) {
        const int last =
            first + S.segment / kSliceK < work.last ? first + S.segment / kSliceK : work.last;
#pragma unroll 1
        for (int k = first; k < last; ++k) {
          mbarrier_wait(&ring.full[at.slot], at.phase);
          const uint64_t a = wgmma_descriptor<kRowA>(ring.a[at.slot] + group * (64 * kRowA));
          const uint64_t b = wgmma_descriptor<kRow>(ring.b[at.slot]);
          multiply<SA, S, T>(acc_hi, acc_corr, a, b, k > first);
          wgmma_wait<1>();
          wgmma_settled(acc_hi);
#pragma unroll
          for (int e = 0; e < 64; ++e) acc[e] += acc_hi[e];
          // The products of the slice before have all been made; those of this one have not.
          if (k > first) release(at.slot ? at.slot - 1 : kBuffers - 1);
          at.advance();
        }
        wgmma_wait<0>();
        wgmma_settled(acc_corr);
        release(at.slot ? at.slot - 1 : kBuffers - 1);
#pragma unroll
        for (int e = 0; e < 64; ++e) acc[e] = fmaf(acc_corr[e], 1.f / S.lo_scale, acc[e]);
      }
      if constexpr (Job::kShared) {
        if (work.last < static_cast<int>(job.stream_k.blocks)) {
          store_partials<T>(job, job.stream_k.owner(work.tile) * kCluster + rank, group, acc);
          continue;
        }
        if (work.first > 0) fixup<T>(job, cluster - job.stream_k.starter(work.tile), group, acc);
      }
      if constexpr (Job::kAlone) {
        if (!job.template end_part<T>(work, o, rank, group, ring.sums[group], acc)) continue;
        job.template store_tile<S, T>(ring.scales[group], scales, z, o, group, acc);
      } else {
        store_tile<S, T>(job, ring.scales[group], scales, z, o, group, acc, unit, parity);
      }
      if constexpr (Job::kStaged) {
        parity ^= 1;
        last = !job.template work_tile<T>(tiles, cluster, step + 1, work);
        if (last) break;
        __syncwarp();
        if (threadIdx.x % 32 == 0) mbarrier_arrive(&unit->full);
      }
    }
    if constexpr (Job::kStaged) {
      // No main loop is behind the last tile: its own warps store it. A block ends with one, or has
      // none, for tiles are cut in two at most.
      if (last) {
        named_barrier(1 + group, kWarpgroup);
        unit->template store<kWarpgroup / 32>(job.problem(unit->z), threadIdx.x % kWarpgroup / 32);
        named_barrier(1 + group, kWarpgroup);
      }
      if (threadIdx.x % kWarpgroup == 0) unit->holds = Staged::ended;
      if (threadIdx.x % 32 == 0) mbarrier_arrive(&unit->full);
    }
  }
  // A block's shared memory is to outlive what the other of the cluster sends there.
  if constexpr (kCluster > 1) cluster_sync(Relaxed());
}

// Where sums are handed over, flags first among the words that the decomposition clears, and what
// is made anew: in the workspace, behind what `plan` has of it.
struct WgmmaRoom : RecomputePlan {
  uint32_t* flags = nullptr;
};
inline WgmmaRoom plan_room(const Tile& t, const Gemm& g, const DecomposePlan& plan,
                           const Context& context) {
  const int64_t clusters = std::max(1, context.device.sm_count / t.cluster);
  const int64_t room =
      t.cluster * stream_k_room(tile_count(g, t.BM * t.cluster, t.BN) * g.batch,
                                std::max<int64_t>(1, ceil_div(g.k, kSliceK)), clusters);
  WgmmaRoom r{plan_recompute(g, plan, t.BN, static_cast<size_t>(room * t.BM * t.BN) * sizeof(float),
                             static_cast<int>(room * t.BM / 64), context)};
  r.flags = r.clear.words;
  return r;
}

// plan_stream_k's: on an H100 16 to 68% at 2.7 to 5.8 waves, 7% at 31 (2026-11-27). Of tiles fewer
// than clusters, on an H200: cut alike, with shares that are 10% longer, 640x640x20000 takes 0.95
// times as long, with 22% longer ones 768x768x12608 1.04 times (2026-11-29).
constexpr int kApart = 25, kApartOfFew = 15;

// A group's limbs of A: what of them L2 keeps is not read again for the next columns. On an H100
// 16384^3 takes 0.86 to 0.91 times as long in groups of four as in groups of eight, 12288^3 0.92 to
// 0.97 times.
constexpr int64_t kPanelBytes = int64_t{64} << 20;
inline int group_of(const Tile& t, int64_t row_bytes) {
  return static_cast<int>(
      std::clamp<int64_t>(kPanelBytes / (t.BM * t.cluster * row_bytes), 1, t.group));
}

// An operand's limbs, as boxes of `rows` by a slice.
template <EmulationScheme S>
TensorMap limb_map(const Limbs& p, int rows) {
  constexpr int kRow = row_of(S), kBoxes = boxes_of(S);
  return make_tensor_map({.data = p.data,
                          .size = {kRow / 2, static_cast<uint64_t>(p.rows * p.matrices),
                                   static_cast<uint64_t>(p.blocks * kBoxes)},
                          .stride = {static_cast<uint64_t>(p.row_bytes(S.limbs)), kRow},
                          .box = {kRow / 2, static_cast<uint32_t>(rows), 1},
                          .swizzle = kRow});
}

// A tile that is staged is written to shared memory and read again, whose bandwidth the main loop
// needs itself, and takes the place of two slots. It gains where a main loop is behind it that is
// long enough, and where nothing but a bias is added: those who store have few loads under way and
// few registers. On an H200 (2026-11-28), of 8192 x 8192: K = 256 1.2 times as long, K = 512 0.97
// times; of K = 768 0.87 to 0.97, with a bias 0.80 to 0.94, of 50257 columns 0.79 and 0.69.
constexpr int64_t kLeastStagedK = 512;
inline bool gains_by_staging(const Tile& t, const Gemm& g, const Context& context) {
  return g.k >= kLeastStagedK && g.act == Act::none && (g.beta == 0.f || g.c.rs == 0) &&
         tile_count(g, t.BM, t.BN) * g.batch > context.device.sm_count;
}

template <EmulationScheme S, Tile T, class Job>
void launch_wgmma_of(const Gemm& g, const DecomposePlan& plan, const WgmmaRoom& room,
                     const Context& context, Job job) {
  constexpr EmulationScheme SA = kSchemeOfA<S.type, Job>;
  job.g = g;
  job.a = limb_map<SA>(plan.a, T.BM), job.b = limb_map<S>(plan.b, T.BN / T.cluster);
  job.a_limbs = plan.a, job.b_limbs = plan.b;
  job.map = room.job.map;
  job.group = group_of(T, plan.a.row_bytes(SA.limbs));
  job.sums = room.sums, job.flags = room.flags;
  LaunchConfig config{.grid = dim3(static_cast<unsigned>(T.cluster)),
                      .block = dim3(static_cast<unsigned>(T.threads() + T.producers)),
                      .smem = sizeof(RingOf<SA, S, T, Job>),
                      .cluster = static_cast<unsigned>(T.cluster),
                      .dependent = true};
  constexpr void (*kernel)(Job) = wgmma_kernel<S.type, T.BM, T.cluster, T.buffers, Job>;
  int clusters = context.device.sm_count;
  if constexpr (T.cluster > 1) clusters = clusters_at_a_time<kernel>(config, context.device);
  const int64_t tiles = tile_count(g, T.BM * T.cluster, T.BN) * g.batch;
  const auto walk = [&] {
    if constexpr (Job::kAlone) return job.walk = job.plan(tiles, plan.a.blocks, clusters);
    else
      return job.stream_k = plan_stream_k(tiles, plan.a.blocks, clusters,
                                          tiles < clusters ? kApartOfFew : kApart);
  }();
  config.grid.x *= walk.clusters;
  config.in_order = walk.shared() > 0;
  launch(kernel, config, context, job);
}

template <EmulationScheme S, Tile T, class Job = WgmmaJob>
void launch_wgmma(const Gemm& g, const DecomposePlan& plan, const WgmmaRoom& room,
                  const Context& context, const Job& job = {}) {
  if constexpr (Job::kAlone) {
    launch_wgmma_of<S, staged_tile(T)>(g, plan, room, context, job);
  } else {
    if constexpr (T.BM == 128 && S.limbs == 2)
      if (gains_by_staging(T, g, context))
        return launch_wgmma_of<S, staged_tile(T)>(g, plan, room, context,
                                                  typename Job::Staged{job});
    launch_wgmma_of<S, T>(g, plan, room, context, job);
  }
}

constexpr Wave wave_of(const Tile& t, const Device& device) {
  return {t.BM * t.cluster, t.BN, std::max(1, device.sm_count / t.cluster)};
}

// Of each slab: decomposition, product, and what is made anew.
template <EmulationScheme S, int kDecomposeCluster, Tile T>
void run_wgmma(const Gemm& g, const Context& context) {
  for_each_slab(g, S.limbs, wave_of(T, context.device), context,
                [](const Gemm& part, const DecomposePlan& plan, const Context& its) {
                  const WgmmaRoom room = plan_room(T, part, plan, its);
                  decompose<S, kDecomposeCluster>(part, plan, its, room.clear);
                  launch_wgmma<S, T>(part, plan, room, its);
                  launch_recompute<T.BN>(room.job, its);
                });
}

// Bytes for it.
inline size_t wgmma_workspace(EmulationScheme s, const Tile& t, const Gemm& g,
                              const Context& context) {
  return workspace_of_slabs(g, s.limbs, wave_of(t, context.device), context,
                            [&](const Gemm& part, const DecomposePlan& plan) {
                              return plan_room(t, part, plan, context).bytes;
                            });
}

// Coordinates of TMA are 32-bit numbers.
inline Status can_implement_wgmma(const Gemm& g) {
  const int64_t most = INT32_MAX - 1024;
  return g.m * g.batch > most || g.n * g.batch > most ? "has over 2^31 rows or columns in all"
                                                      : can_decompose(g);
}

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
