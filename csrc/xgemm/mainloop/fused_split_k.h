// Narrow and deep products: K is cut among blocks, and what each has for a tile of D is
// added up in a fixed order. Bits are a function of the problem and of the tile, never of the
// machine.
#pragma once

#include <algorithm>

#include "xgemm/core/workspace.h"
#include "xgemm/device/launch.h"
#include "xgemm/device/ptx/base.h"
#include "xgemm/emulation/register_limbs.h"
#include "xgemm/epilogue/cluster_reduce.h"

namespace xgemm {
inline namespace XGEMM_FLAVOUR {

// Of a block: those that have its results, those that decompose D's rows, those that load.
constexpr int kConsumerThreads = 256, kTransformThreads = 128, kProducerThreads = 128;
constexpr int kLong = 128;  // rows of a tile along the longer side of D

// What a block has of a tile.
template <int BM>
using NarrowSums = SharedSums<BM, kLong>;

// D is seen with at least as many columns as rows: tiles have BM of its rows, kLong of its columns.
struct SplitKJob {
  Gemm g;
  OperandMap a, b;
  int64_t tiles_m = 1, tiles = 1;
  int64_t split_k_slices = 1, split_k_size = 0;
  bool cluster = false;  // the blocks of a tile are one, and need no workspace
  float* sums = nullptr;  // [matrix][tile][slice][row][column]
  uint32_t* overflow = nullptr;  // [matrix][tile][slice]: whether sums may have, on their way

  XGEMM_HD int64_t place(int64_t z, int64_t tile) const {
    return (z * tiles + tile) * split_k_slices;
  }

  // What TMA knows of its operands.
  template <int BM, bool kA, bool kB>
  void see() {
    a = NativeLoader<kProducerThreads, BM, kA>::map(g.a, g.m, g.k, g.batch);
    b = NativeLoader<kProducerThreads, kLong, kB>::map(g.b.transposed(), g.n, g.k, g.batch);
  }
};

// Of a tile; the row tiles of one column of them are neighbours.
XGEMM_HD TileCoord tile_coord(const SplitKJob& job, unsigned tile, int BM) {
  const auto tiles_m = static_cast<unsigned>(job.tiles_m);
  return {static_cast<int64_t>(tile % tiles_m) * BM, static_cast<int64_t>(tile / tiles_m) * kLong};
}

// Split-K: into how many parts the slices of so many tiles, those of all matrices, are cut: those
// for which a large GPU is done first, a block a multiprocessor; clusters leave some of those
// places empty. A block is worth some slices more than its own. A block that has all of K stores
// what it has. The blocks of a cluster add up what they have themselves, each its part of the tile;
// others leave that to a launch more. Fits what was measured of narrow products (H200, 2026-11-22).
struct SplitK {
  int64_t count = 1;
  bool cluster = true;
};
inline SplitK split_k_slices_of(int64_t tiles, int64_t slices) {
  constexpr int64_t kBlock = 3, kLaunch = 1, kAdds = 8, kStores = 2;
  SplitK best;
  int64_t least = INT64_MAX;
  const auto consider = [&](SplitK s, int64_t room, int64_t more) {
    const int64_t cost =
        ceil_div(tiles * s.count, room) * (ceil_div(slices, s.count) + kBlock) + more;
    if (s.count >= 1 && s.count <= slices && cost < least) best = s, least = cost;
  };
  consider({1, true}, kSms, kStores);
  for (int64_t s = 2; s <= kClusterSlices; ++s) consider({s, true}, cluster_room(s), kAdds / s);
  const auto apart = [&](int64_t s) { consider({s, false}, kSms, kLaunch + s / kAdds); };
  for (int64_t s = 2; s <= kClusterSlices; ++s) apart(s);
  for (int64_t s = 2 * kClusterSlices; s <= slices / 2 && s <= 256; s *= 2)
    apart(s * 3 / 4), apart(s);
  for (int64_t waves = 1; waves <= 3; ++waves) apart(std::max<int64_t>(1, waves * kSms / tiles));
  return best;
}

struct SplitKPlan {
  SplitKJob job;
  size_t bytes = 0;
};

inline SplitKPlan plan_split_k(const Gemm& all, const Tile& t, void* workspace) {
  SplitKPlan plan;
  SplitKJob& job = plan.job;
  const Gemm& g = job.g = rows_first(all);
  job.tiles_m = ceil_div(g.m, t.BM);
  job.tiles = tile_count(g, t.BM, kLong);
  const int64_t slices = std::max<int64_t>(1, ceil_div(g.k, t.BK));
  const SplitK split =
      split_k_slices_of(job.tiles * std::clamp<int64_t>(g.batch, 1, kMaxGridZ), slices);
  const int64_t each = ceil_div(slices, split.count);
  job.split_k_slices = ceil_div(slices, each);
  job.cluster = split.cluster || job.split_k_slices == 1;
  job.split_k_size = each * t.BK;
  if (job.cluster) return plan;
  Layout layout{workspace};
  const auto room = [&](int64_t words) {
    const int64_t places = std::min(g.batch, kMaxGridZ) * job.tiles * job.split_k_slices;
    return layout.place(static_cast<size_t>(places * words) * sizeof(float));
  };
  job.sums = static_cast<float*>(room(int64_t{t.BM} * kLong));
  job.overflow = static_cast<uint32_t*>(room(1));
  plan.bytes = layout.bytes;
  return plan;
}

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
