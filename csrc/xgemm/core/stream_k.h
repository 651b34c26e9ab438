// Stream-K: a persistent grid of clusters takes tiles that make no whole wave in equal runs of
// slices along K. Pure; tests/native walks it exhaustively.
//
// A run may cover the beginning of a tile, whole tiles, and the end of one. A cluster walks it from
// its last tile to its first: what it has of the beginning or the middle of a tile it sums up
// before all else and stores as partials, for the cluster that has the tile's end, which does the
// fixup last and stores D. So nobody waits but for clusters before it, and those it waits for have
// waited for none.
//
// Where clusters are several times as many as tiles, tiles are cut alike: clusters that have the
// same part of different tiles walk the same k side by side, and find in L2 what the others have
// read.
#pragma once

#include <algorithm>
#include <cstdint>

#include "xgemm/core/tile_scheduler.h"

namespace xgemm {

// What a cluster does next: slices [first, last) of a tile.
struct WorkTile {
  uint32_t tile;
  int first, last;
};

struct StreamK {
  uint32_t clusters = 1;
  uint32_t tiles = 0, whole = 0;  // the first so many of them are taken whole: 0, c, 2c, ...
  uint32_t waves = 0;  // in which that is done, if any tile is left
  uint32_t blocks = 1;  // slices of a tile
  // From the first slice of a tile that is left to the next one's, as they are shared out:
  // `blocks`; of tiles that are cut alike, whole shares, in the last of which some are not there.
  uint32_t pitch = 1;
  uint32_t share = 1;  // slices that each cluster has of the tiles left, the last one fewer

  XGEMM_HD uint32_t shared() const { return (tiles - whole) * pitch; }

  // What a cluster does in its step 0, 1, ...; false: it is done.
  XGEMM_HD bool work_tile(uint32_t cluster, uint32_t step, WorkTile& p) const {
    const uint32_t tile = cluster + step * clusters;
    if (tile < whole) {
      p = {tile, 0, static_cast<int>(blocks)};
      return true;
    }
    const uint32_t all = shared(), begin = cluster * share;
    if (begin >= all) return false;
    const uint32_t end = all - begin < share ? all : begin + share;
    const uint32_t low = begin / pitch, top = (end - 1) / pitch, back = step - waves;
    if (back > top - low) return false;
    const uint32_t n = top - back, last = n == top ? end - top * pitch : blocks;
    p = {whole + n, static_cast<int>(n == low ? begin - low * pitch : 0),
         static_cast<int>(last < blocks ? last : blocks)};
    return true;
  }

  // Of a shared tile: who has its first slice, and who its last, and stores it.
  XGEMM_HD uint32_t starter(uint32_t tile) const { return (tile - whole) * pitch / share; }
  XGEMM_HD uint32_t owner(uint32_t tile) const { return ((tile - whole + 1) * pitch - 1) / share; }
};

// In slices' time: the least share, what it takes to store partials and load them once (a store, a
// signal and a load of 32 or 64 KiB), and for each further part that a tile's owner adds.
constexpr uint32_t kLeastShare = 8, kStorePartials = 4, kFixup = 1;

// Every tile is taken whole.
inline StreamK plan_whole(int64_t tiles, int64_t blocks, int64_t clusters) {
  StreamK r;
  r.tiles = r.whole = static_cast<uint32_t>(tiles);
  r.blocks = r.pitch = static_cast<uint32_t>(blocks);
  r.clusters = static_cast<uint32_t>(std::min(tiles, clusters));
  return r;
}

// At most two last waves are cut along K: tiles that make no whole wave, and a wave before. Each
// cluster then has more than a tile, and no tile more than two clusters. Where tiles are fewer than
// clusters, a share is at least so long that adding up a tile's parts takes no longer. `apart`: how
// much longer a slice takes, in percent, where clusters are each at another k and find none of what
// the others have read in L2; whole tiles of a wave they walk side by side, and tiles cut alike.
inline StreamK plan_stream_k(int64_t tiles, int64_t blocks, int64_t clusters, int64_t apart = 0) {
  StreamK r = plan_whole(tiles, blocks, clusters);
  const int64_t waves = tiles / clusters, left = tiles % clusters;
  const int64_t shared = waves ? clusters + left : left;
  if (left == 0 || shared * blocks > INT32_MAX) return r;
  const auto in_time = [&](int64_t slices) { return slices + slices * apart / 100; };
  int64_t share = ceil_div(shared * blocks, clusters), pitch = blocks, time = in_time(share);
  if (!waves) {
    const auto long_enough = [&](int64_t slices) {
      slices = std::max<int64_t>(slices, kLeastShare);
      while (slices * slices < blocks * kFixup) ++slices;
      return slices;
    };
    share = long_enough(share), time = in_time(share);
    const int64_t alike = long_enough(ceil_div(blocks, clusters / tiles));
    if (alike <= time) share = time = alike, pitch = ceil_div(blocks, share) * share;
  }
  const int64_t alone = waves ? 2 * blocks : blocks;
  if (time + kStorePartials + ceil_div(blocks, share) * kFixup >= alone) return r;
  const int64_t all = shared * pitch;
  if (all > INT32_MAX) return r;
  r.share = static_cast<uint32_t>(share), r.pitch = static_cast<uint32_t>(pitch);
  r.whole = static_cast<uint32_t>(tiles - shared);
  r.waves = waves ? static_cast<uint32_t>(waves - 1) : 0;
  if (!r.waves) r.clusters = static_cast<uint32_t>(ceil_div(all, share));  // nobody is idle
  return r;
}

// The same for sums that nobody can add up, since they are chains: who has a tile's end goes on
// with the chain that the one before has begun. So a tile may be cut once, and where tiles are
// fewer than clusters none is. Nor is one where that would save less than the time of `least`
// slices.
inline StreamK plan_cut_once(int64_t tiles, int64_t blocks, int64_t clusters, int64_t least) {
  const StreamK r = plan_stream_k(tiles, blocks, clusters);
  return r.share >= blocks && r.share + least <= 2 * blocks ? r
                                                            : plan_whole(tiles, blocks, clusters);
}

// Room for the sums of so many clusters suffices, however many there will be up to `clusters`.
inline int64_t stream_k_room(int64_t tiles, int64_t blocks, int64_t clusters) {
  if (blocks <= kStorePartials + kFixup) return 0;
  return std::min(clusters, tiles * ceil_div(blocks, kLeastShare));
}

}  // namespace xgemm
