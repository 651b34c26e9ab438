// How tiles are cut along K: the pure functions of stream_k.h, walked exhaustively.
#include "xgemm/core/stream_k.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "check.h"

namespace xgemm {
namespace {

// What is wrong with the walks of all clusters, in words; nothing: "".
std::string fault_of(const StreamK& r) {
  std::vector<std::vector<int64_t>> by(r.tiles, std::vector<int64_t>(r.blocks, -1));
  const int blocks = static_cast<int>(r.blocks);
  for (uint32_t c = 0; c < r.clusters; ++c) {
    WorkTile p;
    uint32_t step = 0, gave = 0, owned = 0;
    for (; r.work_tile(c, step, p); ++step) {
      if (p.tile >= r.tiles || p.first < 0 || p.first >= p.last || p.last > blocks)
        return "a piece that there is not";
      for (int k = p.first; k < p.last; ++k) {
        int64_t& who = by[p.tile][static_cast<size_t>(k)];
        if (who >= 0) return "a slice twice";
        who = c;
      }
      if (owned) return "work after a wait";
      if (p.last < blocks) {
        if (step != r.waves) return "sums handed over late";
        ++gave;
        if (r.owner(p.tile) <= c || r.owner(p.tile) >= r.clusters) return "an owner before";
      } else if (p.first > 0) {
        ++owned;
        if (r.owner(p.tile) != c) return "another owner";
      }
      if (p.tile >= r.whole && p.first == 0 && r.starter(p.tile) != c) return "another starter";
    }
    if (step == 0) return "a cluster without work";
    if (gave > 1) return "two sums handed over";
    if (r.work_tile(c, step + 1, p)) return "a piece after the last";
  }
  for (uint32_t t = 0; t < r.tiles; ++t) {
    for (int64_t who : by[t])
      if (who < 0) return "a slice left out";
    // Owners add what those from the starter to themselves have left: one part each.
    std::vector<int64_t> parts = by[t];
    parts.erase(std::unique(parts.begin(), parts.end()), parts.end());
    if (!std::is_sorted(parts.begin(), parts.end()) ||
        parts.back() - parts.front() + 1 != static_cast<int64_t>(parts.size()))
      return "parts of clusters that are not neighbours";
  }
  return "";
}

int64_t longest(const StreamK& r) {
  int64_t most = 0;
  for (uint32_t c = 0; c < r.clusters; ++c) {
    WorkTile p;
    int64_t sum = 0;
    for (uint32_t step = 0; r.work_tile(c, step, p); ++step) sum += p.last - p.first;
    most = std::max(most, sum);
  }
  return most;
}

void test_walks() {
  int shared = 0;
  for (int64_t clusters = 1; clusters <= 14; ++clusters)
    for (int64_t tiles = 1; tiles <= 44; ++tiles)
      for (int64_t blocks : {1, 2, 5, 6, 7, 8, 15, 16, 31, 33, 64, 100, 333}) {
        // Of an odd number, slices that are read apart take longer.
        const int64_t apart = blocks % 2 ? 25 : 0;
        const StreamK r = plan_stream_k(tiles, blocks, clusters, apart);
        const auto name = [&] {
          return std::to_string(tiles) + " tiles of " + std::to_string(blocks) + " slices among " +
                 std::to_string(clusters) + " clusters: ";
        };
        const std::string fault = fault_of(r);
        expect(fault.empty(), name() + fault);
        expect(r.clusters <= clusters, name() + "more clusters than there are");
        for (int64_t most = clusters; r.shared() && most <= clusters + 20; ++most)
          expect(r.clusters <= stream_k_room(tiles, blocks, most), name() + "no room");
        const int64_t alone = ceil_div(tiles, clusters) * blocks;
        expect(r.shared() ? longest(r) + kStorePartials < alone : longest(r) == alone,
               name() + "no gain");
        // Where a tile is staged the last piece's own warps store it: it ends a tile.
        for (uint32_t c = 0; tiles >= clusters && c < r.clusters; ++c) {
          WorkTile p;
          for (uint32_t step = 0; r.work_tile(c, step, p); ++step) {
          }
          expect(p.last == blocks, name() + "a cluster's last piece ends no tile");
        }
        shared += r.shared() > 0;
      }
  expect(shared > 1000, "some tiles are cut");
}

// What is handed over may be a chain: every tile is begun by one cluster and ended by the next at
// most, which then has been given all of it.
void test_chains() {
  int shared = 0;
  for (int64_t clusters = 1; clusters <= 14; ++clusters)
    for (int64_t tiles = 1; tiles <= 44; ++tiles)
      for (int64_t blocks : {1, 2, 5, 6, 7, 8, 15, 16, 31, 64, 100, 333})
        for (int64_t least : {1, 6, 12}) {
          const StreamK r = plan_cut_once(tiles, blocks, clusters, least);
          const std::string name = std::to_string(tiles) + " tiles of " + std::to_string(blocks) +
                                   " slices, begun by " + std::to_string(clusters) +
                                   " clusters, to save " + std::to_string(least) + ": ";
          const std::string fault = fault_of(r);
          expect(fault.empty(), name + fault);
          // Where no tile is left whole, rounding may leave clusters without work.
          const int64_t at_work =
              r.whole ? std::min(tiles, clusters) : ceil_div(r.shared(), r.share);
          expect(r.clusters == at_work, name + "clusters");
          for (uint32_t t = r.whole; t < r.tiles; ++t)
            expect(r.owner(t) - r.starter(t) <= 1, name + "a tile of more than two clusters");
          const int64_t alone = ceil_div(tiles, clusters) * blocks, gain = alone - longest(r);
          expect(r.shared() ? gain >= least : gain == 0, name + "no gain");
          expect(!r.shared() || tiles > clusters, name + "a chain made side by side");
          // What is left whole would save little, or can't be cut once.
          const StreamK any = plan_stream_k(tiles, blocks, clusters);
          expect(r.shared() || !any.shared() || tiles < clusters || alone - longest(any) < least,
                 name + "left whole");
          shared += r.shared() > 0;
        }
  expect(shared > 1000, "some chains are cut");
}

void test_deep_products() {
  const StreamK r = plan_stream_k(1, int64_t{1} << 15, 132);
  expect(r.clusters == 132 && r.share == 249, "all clusters share a tile");
  const StreamK few = plan_stream_k(1, 64, 132);
  expect(few.clusters == 8 && few.share == 8, "a share of 8 slices at least");
  const StreamK far = plan_stream_k(1, int64_t{1} << 40, 132);
  expect(far.shared() == 0, "a product that cannot be counted in 31 bits");
}

// The slices at which a tile is cut.
std::vector<int> cuts_of(const StreamK& r, uint32_t tile) {
  std::vector<int> cuts;
  for (uint32_t c = 0; c < r.clusters; ++c) {
    WorkTile p;
    for (uint32_t step = 0; r.work_tile(c, step, p); ++step)
      if (p.tile == tile) cuts.push_back(p.first);
  }
  return cuts;
}

// Few tiles are cut alike, unless that leaves so many clusters idle that a share takes longer than
// one that is read apart.
void test_cut_alike() {
  int alike = 0, unlike = 0;
  for (int64_t tiles = 2; tiles <= 65; ++tiles)
    for (int64_t blocks : {64, 333, 2048}) {
      const StreamK r = plan_stream_k(tiles, blocks, 66, 25);
      if (!r.shared()) continue;
      const int64_t least = ceil_div(tiles * blocks, 66);
      bool same = true;
      for (uint32_t t = 1; t < r.tiles; ++t) same = same && cuts_of(r, t) == cuts_of(r, 0);
      // 19 slices: of 333, adding up more parts would take longer.
      if (same) expect(longest(r) <= std::max<int64_t>(least + least / 4, 19), "a share too long");
      else expect(ceil_div(blocks, 66 / tiles) > least + least / 4, "tiles cut each in its way");
      (same ? alike : unlike) += 1;
    }
  expect(alike > 50 && unlike > 20, "some tiles are cut alike, some are not");
  const StreamK deep = plan_stream_k(8, 2048, 66, 25);
  expect(deep.clusters == 64 && deep.share == 256, "8 clusters a tile, 2 of 66 idle");
}

// Nearly whole waves are not cut where slices that clusters read apart take longer, and what
// is cut is so in the same way.
void test_slices_read_apart() {
  for (int64_t tiles = 67; tiles <= 400; ++tiles)
    for (int64_t blocks : {8, 24, 96, 1571}) {
      const StreamK cheap = plan_stream_k(tiles, blocks, 66),
                    dear = plan_stream_k(tiles, blocks, 66, 25);
      const int64_t alone = 2 * blocks;
      if (dear.shared() > 0) {
        expect(dear.shared() == cheap.shared() && dear.share == cheap.share, "the same shares");
        expect(dear.share + dear.share / 4 < alone, "and still a gain");
      } else if (cheap.shared() > 0) {
        const int64_t share = cheap.share;
        expect(share + share / 4 + kStorePartials + ceil_div(blocks, share) >= alone, "no gain");
      }
    }
  expect(plan_stream_k(192, 1571, 66, 25).shared() == 0, "2.9 waves stay whole");
  expect(plan_stream_k(72, 394, 66, 25).shared() > 0, "1.1 waves do not");
}

}  // namespace

void test_stream_k() {
  test_walks();
  test_chains();
  test_deep_products();
  test_cut_alike();
  test_slices_read_apart();
}

}  // namespace xgemm
