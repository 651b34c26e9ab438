// gmem -> ring: how the threads of a block that do nothing else fetch the operands' slices, by TMA
// where an operand lies as its slices do, else by cp.async. The grid is persistent: each block
// takes tile after tile, and of the last ones a share along K (stream_k_fixup.h).
#pragma once

#include "xgemm/device/copy/cp_async.h"
#include "xgemm/device/launch.h"
#include "xgemm/device/operand_map.h"
#include "xgemm/device/pipeline.h"
#include "xgemm/device/ptx/mbarrier.h"
#include "xgemm/device/ptx/tma.h"
#include "xgemm/mainloop/stream_k_fixup.h"

namespace xgemm {
inline namespace XGEMM_FLAVOUR {

// Slices of an operand: at least one, which holds padding alone when K is 0.
XGEMM_HD int slice_count(int64_t K, int BK) {
  return static_cast<int>(ceil_div(K > 0 ? K : 1, BK));
}

// One operand, as the kThreads threads that fetch it know it.
template <int kThreads, int L, bool kOfA, bool kAlongK>
struct Fetcher {
  View<const float> all;  // with rows along k
  int64_t length, depth;
  const OperandMap& from;
  int thread;

  // A work tile's slices of the rows from l0 on of matrix z, into the ring from `at` on.
  template <int kBuffers, int BK, int kRow>
  __device__ __forceinline__ void fetch(float (&slices)[kBuffers][BK][kRow],
                                        Mbarrier (&full)[kBuffers], Mbarrier (&empty)[kBuffers],
                                        PipelineState<kBuffers>& at, int64_t z, int64_t l0,
                                        const WorkTile& work) const {
    constexpr int kParts = 4;  // a slice is copied by a loop of so many turns
    // The operand from the work tile's first slice on, where counting begins.
    const int64_t first = static_cast<int64_t>(work.first) * BK, K = depth - first;
    View<const float> rows_of = all;
    rows_of.data += z * all.bs + first * all.cs;
    AsyncLoader<kThreads, L, BK, kRow, kParts, kAlongK> copies(rows_of, l0, length, K, thread);
    const int count = work.last - work.first;
    // TMA pads with +0, which the last slice of A must not have.
    const int by_tma = !from.by_tma ? 0 : kOfA ? static_cast<int>(K / BK) : count;
#pragma unroll 1
    for (int slice = 0; slice < count; ++slice, at.advance()) {
      Mbarrier* const landed = &full[at.slot];
      mbarrier_wait(&empty[at.slot], at.phase ^ 1);
      if (!kAlongK && slice < by_tma) {
        if (thread == 0) {
          fence_before_tma();
          mbarrier_expect(landed, L * BK * 4);
          tma_load(slices[at.slot], from.map, landed, static_cast<int>(l0),
                   (work.first + slice) * BK, all.bs ? static_cast<int>(z) : 0);
        } else {
          mbarrier_arrive(landed);
        }
      } else if (slice < copies.whole) {
        const Smem to = Smem(&slices[at.slot][0][0]) + copies.place;
#pragma unroll 1
        for (int part = 0; part < kParts; ++part) copies.copy(to + part * copies.kPart, part);
        copies.next_slice();
        mbarrier_arrive_after_copies(landed);
      } else {
#pragma unroll 1
        for (int part = 0; part < kParts; ++part)
          copies.copy_edge(slices[at.slot], rows_of, l0, K, slice, part, kOfA ? kPadA : kPadB,
                           thread);
        cp_async_commit();
        cp_async_wait<0>();
        mbarrier_arrive(landed);
      }
    }
  }
};

// A problem, and what TMA knows of its operands. What blocks make of it, a work tile at a time, is
// numbered by units: those that derive from this say what a unit is, and where its tile is stored.
struct FetchJob {
  Gemm g;
  OperandMap a, b;
  uint32_t tiles = 1;  // of a matrix
  int slices = 1;  // of a tile

  template <Tile T>
  __device__ __forceinline__ TileCoord origin(uint32_t unit) const {
    return swizzled_tile<uint32_t>(unit % tiles, g.m, g.n, T.BM, T.BN, T.group);
  }
};

// Whole tiles of a matrix, which is the block's z.
struct TilesJob : FetchJob {
  static constexpr bool kShared = false;

  __device__ __forceinline__ bool work_tile(uint32_t step, WorkTile& p) const {
    p = {blockIdx.x + step * gridDim.x, 0, slices};
    return p.tile < tiles;
  }
  template <Tile T>
  __device__ __forceinline__ TileCoord origin(uint32_t tile) const {
    return swizzled_tile<uint32_t>(tile, g.m, g.n, T.BM, T.BN, T.group);
  }
  __device__ __forceinline__ uint32_t matrix(uint32_t) const { return blockIdx.z; }
  __device__ __forceinline__ Gemm result(uint32_t) const { return g.at(blockIdx.z); }
};

// The tiles of all matrices, counted as one, of which some are cut along K.
struct StreamKJob : FetchJob {
  static constexpr bool kShared = true;
  ChainStreamK stream_k;

  __device__ __forceinline__ bool work_tile(uint32_t step, WorkTile& p) const {
    return stream_k.plan.work_tile(blockIdx.x, step, p);
  }
  __device__ __forceinline__ uint32_t matrix(uint32_t tile) const { return tile / tiles; }
  __device__ __forceinline__ Gemm result(uint32_t tile) const { return g.at(matrix(tile)); }
};

// By the threads that fetch: slices of all that the block has to make, half of them A's.
template <Tile T, bool kA, bool kB, class Job>
__device__ __forceinline__ void fetch_pieces(SliceRing<T, kA, kB>& ring, const Job& job) {
  constexpr int kEach = T.producers / 2;
  const Gemm& g = job.g;
  const int thread = threadIdx.x % kEach;
  PipelineState<T.buffers> at;
  WorkTile p{};
  const auto origin = [&] { return job.template origin<T>(p.tile); };
  const auto z = [&] { return job.matrix(p.tile); };
  if (threadIdx.x < T.threads() + kEach) {
    const Fetcher<kEach, T.BM, true, kA> a{g.a, g.m, g.k, job.a, thread};
    for (uint32_t step = 0; job.work_tile(step, p); ++step)
      a.fetch(ring.a, ring.full, ring.empty, at, z(), origin().i, p);
  } else {
    const Fetcher<kEach, T.BN, false, kB> b{g.b.transposed(), g.n, g.k, job.b, thread};
    for (uint32_t step = 0; job.work_tile(step, p); ++step)
      b.fetch(ring.b, ring.full, ring.empty, at, z(), origin().j, p);
  }
}

// What a launch needs to know of `g`, whose batch fits it.
template <Tile T>
FetchJob fetch_job(const Gemm& g) {
  const int64_t tiles = tile_count(g, T.BM, T.BN);
  if (tiles > kMaxGridX)
    throw std::invalid_argument("xgemm: more than 2^31 - 1 tiles in one matrix");
  return {.g = g,
          .a = operand_map(g.a.transposed(), g.k, g.m, g.batch, T.BK, T.BM, 0),
          .b = operand_map(g.b, g.k, g.n, g.batch, T.BK, T.BN, 0),
          .tiles = static_cast<uint32_t>(tiles),
          .slices = slice_count(g.k, T.BK)};
}

// As many blocks as run at a time, or as there are units to make.
template <Tile T, bool kA, bool kB>
LaunchConfig fetch_config(int64_t units, int64_t matrices, const Context& context) {
  const int64_t blocks = std::min(units, int64_t{context.device.sm_count} * T.min_blocks);
  return {.grid = dim3(static_cast<unsigned>(blocks), 1, static_cast<unsigned>(matrices)),
          .block = dim3(static_cast<unsigned>(T.threads() + T.producers)),
          .smem = sizeof(SliceRing<T, kA, kB>),
          .dependent = may_take_turn(context.device, blocks * matrices)};
}

// `shared` for all matrices, where that saves time and there is a workspace for it, else `whole`
// for each.
template <Tile T, bool kA, bool kB>
void launch_fetching(void (*whole)(TilesJob), void (*shared)(StreamKJob), const Gemm& g,
                     const Context& context) {
  const ChainStreamK stream_k = plan_chain_stream_k(g, T, slice_count(g.k, T.BK), context);
  if (stream_k.plan.shared() && stream_k.bytes <= context.workspace_bytes) {
    const uint32_t blocks = stream_k.plan.clusters;
    launch(clear_flags<kClearThreads>, {.grid = dim3(1), .block = dim3(kClearThreads)}, context,
           stream_k.flags, static_cast<int>(blocks));
    LaunchConfig config = fetch_config<T, kA, kB>(blocks, 1, context);
    config.dependent = config.in_order = true;
    return launch(shared, config, context, StreamKJob{fetch_job<T>(g), stream_k});
  }
  for (int64_t z = 0; z < g.batch; z += kMaxGridZ) {
    Gemm part = g.at(z);
    part.batch = std::min(g.batch - z, kMaxGridZ);
    const TilesJob job{fetch_job<T>(part)};
    launch(whole, fetch_config<T, kA, kB>(job.tiles, part.batch, context), context, job);
  }
}

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
