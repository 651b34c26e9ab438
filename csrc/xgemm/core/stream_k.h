// How a persistent grid of clusters shares out tiles that make no whole rounds: along K, in equal
// runs of slices, as runners share out a distance. Pure; tests/native walks it exhaustively.
//
// A run may cover the beginning of a tile, whole tiles, and the end of one. A cluster walks it from
// its last tile to its first: what it has of the beginning or the middle of a tile it sums up
// before all else and hands over, to the cluster that has the tile's end, which adds up last and
// stores. So nobody waits but for clusters before it, and those it waits for have waited for none.
#pragma once

#include <algorithm>
#include <cstdint>

#include "xgemm/core/tile_scheduler.h"

namespace xgemm {

// Slices [first, last) of a tile.
struct Piece {
  uint32_t tile;
  int first, last;
};

struct Relay {
  uint32_t clusters = 1;
  uint32_t tiles = 0, whole = 0;  // the first so many of them are taken whole: 0, c, 2c, ...
  uint32_t rounds = 0;  // in which that is done, if any tile is left
  uint32_t blocks = 1;  // slices of a tile
  uint32_t share = 1;  // slices that each cluster has of the tiles left, the last one fewer

  XGEMM_HD uint32_t shared() const { return (tiles - whole) * blocks; }

  // What a cluster does in its step 0, 1, ...; false: it is done.
  XGEMM_HD bool piece(uint32_t cluster, uint32_t step, Piece& p) const {
    const uint32_t tile = cluster + step * clusters;
    if (tile < whole) {
      p = {tile, 0, static_cast<int>(blocks)};
      return true;
    }
    const uint32_t all = shared(), begin = cluster * share;
    if (begin >= all) return false;
    const uint32_t end = all - begin < share ? all : begin + share;
    const uint32_t low = begin / blocks, top = (end - 1) / blocks, back = step - rounds;
    if (back > top - low) return false;
    const uint32_t n = top - back;
    p = {whole + n, static_cast<int>(n == low ? begin - low * blocks : 0),
         static_cast<int>(n == top ? end - top * blocks : blocks)};
    return true;
  }

  // Of a shared tile: who has its first slice, and who its last, and stores it.
  XGEMM_HD uint32_t starter(uint32_t tile) const { return (tile - whole) * blocks / share; }
  XGEMM_HD uint32_t owner(uint32_t tile) const { return ((tile - whole + 1) * blocks - 1) / share; }
};

// In slices' time: the least share, and what it takes to hand sums over once (a store, a signal and
// a load of 32 or 64 KiB), and for each further part that a tile's owner adds.
constexpr uint32_t kLeastShare = 8, kHandOver = 4, kAddPart = 1;

// Every tile is taken whole.
inline Relay plan_whole(int64_t tiles, int64_t blocks, int64_t clusters) {
  Relay r;
  r.tiles = r.whole = static_cast<uint32_t>(tiles);
  r.blocks = static_cast<uint32_t>(blocks);
  r.clusters = static_cast<uint32_t>(std::min(tiles, clusters));
  return r;
}

// At most two last rounds are shared out: tiles that make no whole round, and a round before. Each
// cluster then has more than a tile, and no tile more than two clusters. Where tiles are fewer than
// clusters, a share is at least so long that adding up a tile's parts takes no longer.
inline Relay plan_relay(int64_t tiles, int64_t blocks, int64_t clusters) {
  Relay r = plan_whole(tiles, blocks, clusters);
  const int64_t rounds = tiles / clusters, left = tiles % clusters;
  const int64_t shared = rounds ? clusters + left : left, all = shared * blocks;
  if (left == 0 || all > INT32_MAX) return r;
  int64_t share = ceil_div(all, clusters);
  if (!rounds) {
    share = std::max<int64_t>(share, kLeastShare);
    while (share * share < blocks * kAddPart) ++share;
  }
  const int64_t alone = rounds ? 2 * blocks : blocks;
  if (share + kHandOver + ceil_div(blocks, share) * kAddPart >= alone) return r;
  r.share = static_cast<uint32_t>(share);
  r.whole = static_cast<uint32_t>(tiles - shared);
  r.rounds = rounds ? static_cast<uint32_t>(rounds - 1) : 0;
  if (!r.rounds) r.clusters = static_cast<uint32_t>(ceil_div(all, share));  // nobody is idle
  return r;
}

// The same for sums that nobody can add up, since they are chains: who has a tile's end goes on
// with the chain that the one before has begun. So a tile may be cut once, and where tiles are
// fewer than clusters none is. Nor is one where that would save less than the time of `least`
// slices.
inline Relay plan_cut_once(int64_t tiles, int64_t blocks, int64_t clusters, int64_t least) {
  const Relay r = plan_relay(tiles, blocks, clusters);
  return r.share >= blocks && r.share + least <= 2 * blocks ? r
                                                            : plan_whole(tiles, blocks, clusters);
}

// Room for the sums of so many clusters suffices, however many there will be up to `clusters`.
inline int64_t relay_room(int64_t tiles, int64_t blocks, int64_t clusters) {
  if (blocks <= kHandOver + kAddPart) return 0;
  return std::min(clusters, std::max(tiles, ceil_div(tiles * blocks, kLeastShare)));
}

}  // namespace xgemm
