// K in parts where bits may rest on N and K alone, and not on M, the batch or the device: an
// element is its parts' sums, added in order. Who makes them differs with M and changes no bit.
// Pure; tests/native walks it exhaustively.
//
//   whole waves  a cluster makes a tile's parts one after another, and keeps their sum so far in
//                shared memory while it makes the next: its registers are the main loop's
//   other tiles  where there are two clusters for each, they share it: each leaves its parts' sums
//                in memory, and who has the last part adds them up
#pragma once

#include <algorithm>
#include <cstdint>

#include "xgemm/core/stream_k.h"

namespace xgemm {

struct KParts {
  uint32_t count = 1, length = 1;  // of so many slices each, the last one of fewer
};

// Columns of a tile, as they are counted here; tiles times parts that keep an H200 busy; most
// parts, since one warpgroup adds them up; least slices of a part: by 64 rows they take 5 us, and
// to hand over its sums 1 or 2.
constexpr int64_t kPartColumns = 128, kPartsAtATime = 128, kMostParts = 16, kLeastPart = 16;

inline KParts parts_of_k(int64_t n, int64_t slices) {
  const int64_t tiles = ceil_div(n, kPartColumns);
  const int64_t most = std::min({kMostParts, kPartsAtATime / tiles, slices / kLeastPart});
  const int64_t length = ceil_div(slices, std::max<int64_t>(1, most));
  return {static_cast<uint32_t>(ceil_div(slices, length)), static_cast<uint32_t>(length)};
}

// A tile's part, and the slices that it is.
struct PartOfTile : WorkTile {
  uint32_t part;
};

struct PartsWalk {
  KParts parts;
  uint32_t tiles = 0, blocks = 1;  // slices of a tile
  uint32_t clusters = 1;
  uint32_t alone = 0;  // tiles from the first one on that are a cluster's alone
  uint32_t sharers = 1;  // clusters that share one of the others

  XGEMM_HD bool shared() const { return sharers > 1; }
  XGEMM_HD bool shared(uint32_t tile) const { return tile >= alone; }
  XGEMM_HD uint32_t shared_tiles() const { return tiles - alone; }

  // What a cluster does in its step 0, 1, ...; false: it is done. Sharers of a tile are as many
  // apart as there are such tiles, so that neighbours walk the same k. The last of them has the
  // last part: it waits for clusters before it, which wait for nobody.
  XGEMM_HD bool work_tile(uint32_t cluster, uint32_t step, PartOfTile& p) const {
    p.tile = cluster + step / parts.count * clusters;
    p.part = step % parts.count;
    if (p.tile >= alone) {
      const uint32_t before = alone / clusters * parts.count;
      const uint32_t rank = shared() ? cluster / shared_tiles() : sharers;
      if (rank >= sharers) return false;
      p.tile = alone + cluster % shared_tiles();
      p.part = (parts.count + rank) % sharers + (step - before) * sharers;
      if (p.part >= parts.count) return false;
    }
    const uint32_t first = p.part * parts.length;
    const uint32_t left = blocks - first;
    p.first = static_cast<int>(first);
    p.last = static_cast<int>(first + (left < parts.length ? left : parts.length));
    return true;
  }
  XGEMM_HD bool is_last(const PartOfTile& p) const { return p.part + 1 == parts.count; }

  // Slices that the busiest cluster has, as if all parts were whole.
  int64_t longest() const {
    const int64_t of_shared = shared() ? ceil_div(parts.count, sharers) : 0;
    return (ceil_div(alone, clusters) * parts.count + of_shared) * parts.length;
  }
};

// The fewest sharers that take the least time.
inline PartsWalk plan_parts(int64_t tiles, KParts parts, int64_t blocks, int64_t clusters) {
  PartsWalk r;
  r.parts = parts;
  r.tiles = static_cast<uint32_t>(tiles), r.blocks = static_cast<uint32_t>(blocks);
  const int64_t others = tiles % clusters;
  const int64_t most = others ? std::min<int64_t>(parts.count, clusters / others) : 1;
  if (most > 1)
    r.sharers = static_cast<uint32_t>(ceil_div(parts.count, ceil_div(parts.count, most)));
  r.alone = static_cast<uint32_t>(r.shared() ? tiles - others : tiles);
  r.clusters =
      static_cast<uint32_t>(tiles < clusters ? r.shared() ? others * r.sharers : tiles : clusters);
  return r;
}

// Room for the sums of so many clusters, and for so many tiles' flags, suffices, however many
// clusters there will be up to `clusters`.
struct PartsRoom {
  int64_t sums = 0, flags = 0;
};
inline PartsRoom parts_room(int64_t tiles, KParts parts, int64_t clusters) {
  if (parts.count == 1) return {};
  const int64_t most = std::min(tiles, clusters / 2);
  return {most * (parts.count - 1), most};
}

}  // namespace xgemm
