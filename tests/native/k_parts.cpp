// How K is cut by N and K alone: the pure functions of k_parts.h, walked exhaustively.
#include "xgemm/core/k_parts.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "check.h"
#include "xgemm/core/stage.h"

namespace xgemm {
namespace {

void test_parts() {
  int cut = 0;
  for (int64_t n = 1; n <= 20000; n += n < 300 ? 1 : 97)
    for (int64_t slices = 1; slices <= 1000; slices += slices < 70 ? 1 : 13) {
      const KParts p = parts_of_k(n, slices);
      const int64_t tiles = ceil_div(n, kPartColumns);
      const std::string name =
          std::to_string(n) + " columns, " + std::to_string(slices) + " slices: ";
      const int64_t before_last = int64_t{p.count - 1} * p.length;
      expect(p.count >= 1 && before_last < slices && before_last + p.length >= slices,
             name + "parts that are not all of K, or an empty one");
      if (p.count == 1) {
        expect(p.length == slices, name + "one part is all");
        continue;
      }
      ++cut;
      expect(p.count <= kMostParts && p.count * tiles <= kPartsAtATime && p.length >= kLeastPart,
             name + "too many parts");
    }
  expect(cut > 10000, "some are cut");
  const KParts deep = parts_of_k(256, 512), wide = parts_of_k(4096, 128),
               far = parts_of_k(1, 1 << 27);
  expect(deep.count == 16 && deep.length == 32, "K of 16384 by 256 columns");
  expect(wide.count == 4 && wide.length == 32, "K of 4096 by 4096 columns");
  expect(far.count == 16, "the deepest K");
  expect(parts_of_k(8193, 1 << 20).count == 1, "columns that keep a GPU busy");
}

// What is wrong with the walks of all clusters, in words; nothing: "".
std::string fault_of(const PartsWalk& r) {
  constexpr int kNobody = -1;
  std::vector<std::vector<int>> by(r.tiles, std::vector<int>(r.parts.count, kNobody));
  for (uint32_t c = 0; c < r.clusters; ++c) {
    PartOfTile p, before{{r.tiles, 0, 0}, 0};
    uint32_t step = 0;
    bool waited = false;
    for (; r.work_tile(c, step, p); ++step) {
      if (p.tile >= r.tiles || p.part >= r.parts.count) return "a part that there is not";
      const auto first = static_cast<int64_t>(p.part) * r.parts.length;
      if (p.first != first || p.last != std::min<int64_t>(first + r.parts.length, r.blocks) ||
          p.first >= p.last)
        return "other slices";
      if (by[p.tile][p.part] != kNobody) return "a part twice";
      by[p.tile][p.part] = static_cast<int>(c);
      if (waited) return "work after a wait";
      if (r.shared(p.tile)) {
        if (before.tile < r.alone && !r.is_last(before)) return "a tile without an end";
        waited = r.is_last(p);
      } else if (p.tile == before.tile ? p.part != before.part + 1 : p.part != 0) {
        return "a sum that is not the one so far";
      }
      before = p;
    }
    if (step == 0) return "a cluster without work";
    if (!r.shared(before.tile) && !r.is_last(before)) return "a tile without an end";
    if (r.work_tile(c, step + 1, p)) return "a part after the last";
  }
  for (uint32_t tile = 0; tile < r.tiles; ++tile) {
    const std::vector<int>& parts = by[tile];
    if (std::find(parts.begin(), parts.end(), kNobody) != parts.end()) return "a part left out";
    // Who waits comes after those it waits for, of which none is one who waits.
    if (std::count_if(parts.begin(), parts.end(), [&](int c) { return c > parts.back(); }))
      return "a wait for a cluster behind";
    if (!r.shared(tile) &&
        std::count(parts.begin(), parts.end(), parts[0]) < int64_t{r.parts.count})
      return "a tile of several clusters";
  }
  return "";
}

int64_t longest(const PartsWalk& r) {
  int64_t most = 0;
  for (uint32_t c = 0; c < r.clusters; ++c) {
    PartOfTile p;
    uint32_t steps = 0;
    while (r.work_tile(c, steps, p)) ++steps;
    most = std::max<int64_t>(most, int64_t{steps} * r.parts.length);
  }
  return most;
}

void test_walks() {
  int shared = 0, alone = 0, both = 0;
  for (int64_t clusters = 1; clusters <= 40; ++clusters)
    for (int64_t tiles = 1; tiles <= 90; ++tiles)
      for (uint32_t count = 1; count <= 16; ++count) {
        const KParts parts{count, 5};
        const int64_t blocks = count * 5 - (tiles % 2 ? 0 : 3), rest = tiles % clusters;
        const PartsWalk r = plan_parts(tiles, parts, blocks, clusters);
        const std::string name = std::to_string(tiles) + " tiles of " + std::to_string(count) +
                                 " parts among " + std::to_string(clusters) + " clusters: ";
        const std::string fault = fault_of(r);
        expect(fault.empty(), name + fault);
        expect(r.clusters <= clusters, name + "more clusters than there are");
        expect(r.longest() == longest(r), name + "the time");
        expect(r.longest() <= ceil_div(tiles, clusters) * count * 5, name + "no gain");
        expect(r.shared() == (count > 1 && rest > 0 && 2 * rest <= clusters),
               name + "shared or not");
        expect(r.shared_tiles() == (r.shared() ? rest : 0), name + "other tiles are shared");
        if (count > 1) (!r.shared() ? alone : r.alone ? both : shared) += 1;
        for (int64_t most = clusters; r.shared() && most <= clusters + 9; ++most) {
          const PartsRoom room = parts_room(tiles, parts, most);
          expect(rest * (count - 1) <= room.sums && rest <= room.flags, name + "no room");
        }
      }
  expect(shared > 1000 && alone > 1000 && both > 1000, "some are shared, some are not");
}

// Of few rows tiles of 64 are taken, and no clusters of two that are half empty; of many those of
// the greatest rate.
void test_rows() {
  const Stage* const stage = find_stage(Flavour::host, "wgmma_fp16x3");
  if (!stage) return;
  const auto tile_of = [&](int64_t m, int64_t n, int64_t k) {
    Gemm g;
    g.m = m, g.n = n, g.k = k;
    const int row = stage->invariant_row(g, {.sm = 90, .sm_count = 132});
    return stage->tiles[static_cast<size_t>(row)];
  };
  for (int64_t k : {768, 4096, 16384})
    for (int64_t n : {256, 768, 4096})
      for (int64_t m : {1, 16, 64}) expect(tile_of(m, n, k).BM == 64, "64 rows of few");
  expect(tile_of(256, 256, 16384).BM == 64, "64 rows, of which there are units for all");
  expect(tile_of(128, 4096, 4096).BM * tile_of(128, 4096, 4096).cluster == 128, "no half cluster");
  expect(tile_of(8192, 4096, 4096).cluster == 2, "clusters of two");
}

}  // namespace

void test_k_parts() {
  test_parts();
  test_walks();
  test_rows();
}

}  // namespace xgemm
