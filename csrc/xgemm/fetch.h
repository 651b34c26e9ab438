// gmem -> ring: how the threads of a block that do nothing else fetch the operands' slices, by TMA
// where an operand lies as its slices do, else by cp.async. The grid is persistent: each block
// takes tile after tile, and of the last ones a share along K (chain_relay.h).
#pragma once

#include "xgemm/chain_relay.h"
#include "xgemm/copy_async.h"
#include "xgemm/launch.h"
#include "xgemm/ring.h"

namespace xgemm {
inline namespace XGEMM_FLAVOUR {

// Slices of an operand: at least one, which holds padding alone when K is 0.
XGEMM_HD int slice_count(int64_t K, int BK) {
  return static_cast<int>(ceil_div(K > 0 ? K : 1, BK));
}

// What TMA knows of an operand, if it can take it.
struct FetchMap {
  bool by_tma = false;
  TensorMap map{};
};

// Of the operand with rows along k, `length` of them, for slices of BK x L: TMA takes it if it is
// contiguous along its rows' numbers, and aligned.
inline FetchMap fetch_map(const View<const float>& rows_of, int64_t length, int64_t k,
                          int64_t batch, int L, int BK) {
  constexpr int64_t kMostStride = int64_t{1} << 37, kMostSize = INT32_MAX - 1024;
  const View<const float> at_k = rows_of.transposed();
  if (k == 0 || !at_k.wide() || at_k.rs < length || at_k.rs > kMostStride ||
      at_k.bs > kMostStride || length > kMostSize || k > kMostSize)
    return {};
  const auto bytes = [](int64_t floats) { return static_cast<uint64_t>(floats) * 4; };
  const bool many = at_k.bs != 0;
  return {.by_tma = true,
          .map = make_tensor_map({.data = at_k.data,
                                  .size = {static_cast<uint64_t>(length), static_cast<uint64_t>(k),
                                           static_cast<uint64_t>(many ? batch : 1)},
                                  .stride = {bytes(at_k.rs), bytes(many ? at_k.bs : at_k.rs)},
                                  .box = {static_cast<uint32_t>(L), static_cast<uint32_t>(BK), 1},
                                  .element = 4})};
}

// One operand, as the kThreads threads that fetch it know it.
template <int kThreads, int L, bool kOfA, bool kAlongK>
struct Fetcher {
  View<const float> all;  // with rows along k
  int64_t length, depth;
  const FetchMap& from;
  int thread;

  // A piece's slices of the rows from l0 on of matrix z, into the ring from `at` on.
  template <int kBuffers, int BK, int kRow>
  __device__ __forceinline__ void fetch(float (&slices)[kBuffers][BK][kRow],
                                        Mbarrier (&full)[kBuffers], Mbarrier (&empty)[kBuffers],
                                        RingPlace<kBuffers>& at, int64_t z, int64_t l0,
                                        const Piece& piece) const {
    constexpr int kParts = 4;  // a slice is copied by a loop of so many turns
    // The operand from the piece's first slice on, where counting begins.
    const int64_t first = static_cast<int64_t>(piece.first) * BK, K = depth - first;
    View<const float> rows_of = all;
    rows_of.data += z * all.bs + first * all.cs;
    AsyncLoader<kThreads, L, BK, kRow, kParts, kAlongK> copies(rows_of, l0, length, K, thread);
    const int count = piece.last - piece.first;
    // TMA pads with +0, which the last slice of A must not have.
    const int by_tma = !from.by_tma ? 0 : kOfA ? static_cast<int>(K / BK) : count;
#pragma unroll 1
    for (int slice = 0; slice < count; ++slice, at.advance()) {
      Mbarrier* const landed = &full[at.stage];
      mbarrier_wait(&empty[at.stage], at.parity ^ 1);
      if (!kAlongK && slice < by_tma) {
        if (thread == 0) {
          fence_before_tma();
          mbarrier_expect(landed, L * BK * 4);
          tma_load(slices[at.stage], from.map, landed, static_cast<int>(l0),
                   (piece.first + slice) * BK, all.bs ? static_cast<int>(z) : 0);
        } else {
          mbarrier_arrive(landed);
        }
      } else if (slice < copies.whole) {
        const Smem to = Smem(&slices[at.stage][0][0]) + copies.place;
#pragma unroll 1
        for (int part = 0; part < kParts; ++part) copies.copy(to + part * copies.kPart, part);
        copies.next_slice();
        mbarrier_arrive_after_copies(landed);
      } else {
#pragma unroll 1
        for (int part = 0; part < kParts; ++part)
          copies.copy_edge(slices[at.stage], rows_of, l0, K, slice, part, kOfA ? kPadA : kPadB,
                           thread);
        cp_async_commit();
        cp_async_wait<0>();
        mbarrier_arrive(landed);
      }
    }
  }
};

// A problem, what TMA knows of its operands, and who makes which of its tiles: where some are
// shared out, those of all matrices are counted as one; where none is, matrices lie along grid.z.
struct FetchJob {
  Gemm g;
  FetchMap a, b;
  uint32_t tiles = 1;  // of a matrix
  int slices = 1;  // of a tile
  ChainRelay relay;

  template <bool kShared>
  __device__ __forceinline__ bool piece(uint32_t step, Piece& p) const {
    if constexpr (kShared) return relay.plan.piece(blockIdx.x, step, p);
    p = {blockIdx.x + step * gridDim.x, 0, slices};
    return p.tile < tiles;
  }
  template <Tile T, bool kShared>
  __device__ __forceinline__ Origin origin(uint32_t tile) const {
    return raster<uint32_t>(kShared ? tile % tiles : tile, g.m, g.n, T.BM, T.BN, T.group);
  }
  template <bool kShared>
  __device__ __forceinline__ uint32_t matrix(uint32_t tile) const {
    return kShared ? tile / tiles : blockIdx.z;
  }
};

// By the threads that fetch: slices of all that the block has to make, half of them A's.
template <Tile T, bool kA, bool kB, bool kShared>
__device__ __forceinline__ void fetch_pieces(SliceRing<T, kA, kB>& ring, const FetchJob& job) {
  constexpr int kEach = T.producers / 2;
  const Gemm& g = job.g;
  const int thread = threadIdx.x % kEach;
  RingPlace<T.buffers> at;
  Piece p{};
  const auto origin = [&] { return job.origin<T, kShared>(p.tile); };
  const auto z = [&] { return job.matrix<kShared>(p.tile); };
  if (threadIdx.x < T.threads() + kEach) {
    const Fetcher<kEach, T.BM, true, kA> a{g.a, g.m, g.k, job.a, thread};
    for (uint32_t step = 0; job.piece<kShared>(step, p); ++step)
      a.fetch(ring.a, ring.full, ring.empty, at, z(), origin().i, p);
  } else {
    const Fetcher<kEach, T.BN, false, kB> b{g.b.transposed(), g.n, g.k, job.b, thread};
    for (uint32_t step = 0; job.piece<kShared>(step, p); ++step)
      b.fetch(ring.b, ring.full, ring.empty, at, z(), origin().j, p);
  }
}

// As many blocks as run at a time, or as there are tiles: `shared` for all matrices, where that
// saves time and there is a workspace for it, else `whole` for each.
template <Tile T, bool kA, bool kB>
void launch_fetching(void (*whole)(FetchJob), void (*shared)(FetchJob), const Gemm& g,
                     const Context& context) {
  const int64_t tiles = tile_count(g, T.BM, T.BN);
  if (tiles > kMaxGridX)
    throw std::invalid_argument("xgemm: more than 2^31 - 1 tiles in one matrix");
  FetchJob job{.tiles = static_cast<uint32_t>(tiles), .slices = slice_count(g.k, T.BK)};
  const int64_t room = int64_t{context.device.sm_count} * T.min_blocks;
  LaunchConfig config{.block = dim3(static_cast<unsigned>(T.threads() + T.producers)),
                      .smem = sizeof(SliceRing<T, kA, kB>)};
  const auto take = [&](const Gemm& part) {
    job.g = part;
    job.a = fetch_map(part.a, part.m, part.k, part.batch, T.BM, T.BK);
    job.b = fetch_map(part.b.transposed(), part.n, part.k, part.batch, T.BN, T.BK);
  };
  job.relay = plan_chain_relay(g, T, job.slices, context);
  if (job.relay.plan.shared() && job.relay.bytes <= context.workspace_bytes) {
    launch(clear_flags<kClearThreads>, {.grid = dim3(1), .block = dim3(kClearThreads)}, context,
           job.relay.flags, static_cast<int>(job.relay.plan.clusters));
    take(g);
    config.grid = dim3(job.relay.plan.clusters);
    config.dependent = config.in_order = true;
    return launch(shared, config, context, job);
  }
  for (int64_t z = 0; z < g.batch; z += kMaxGridZ) {
    Gemm part = g.at(z);
    part.batch = std::min(g.batch - z, kMaxGridZ);
    take(part);
    config.grid =
        dim3(static_cast<unsigned>(std::min(tiles, room)), 1, static_cast<unsigned>(part.batch));
    launch(whole, config, context, job);
  }
}

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
