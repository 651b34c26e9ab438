// How many chains of fused multiply-adds make an element of the strict product: a function of the
// problem's sizes alone, so that every machine gives the same bits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "xgemm/core/tile_scheduler.h"

namespace xgemm {

// Chains are a multiple of this long, but for the last.
constexpr int64_t kSplitKStep = 32;

// Of k, in a chain; 0 where one chain is all of K. More are made where D has too few tiles to keep
// a large GPU busy: as many as cost least by this model of one, in nanoseconds. On an H200 its
// answers take 2.5% longer than the best cut of those measured (benchmarks/split_k.py,
// 2026-11-22).
inline int64_t split_k_size(int64_t m, int64_t n, int64_t k, int64_t batch) {
  constexpr int64_t kLong = 64, kLeastK = 640, kLeastSplit = 64, kMostAnSm = 18;
  // Up to so many rows: a tile's rows, how many tiles an SM works on at a time, what all of them
  // take for each k; and how much longer than by that it takes without a cut, in hundredths: less
  // where the stages that then run are quicker, more where they are far from it.
  struct Kind {
    int64_t up_to, rows, at_once, per_k, one_chain;
  };
  constexpr Kind kKinds[] = {{4, 16, 12, 25, 200},
                             {16, 16, 6, 60, 120},
                             {32, 32, 4, 70, 100},
                             {INT64_MAX, 64, 10, 120, 80}};
  // Of a full SM's time, in hundredths, that so many eighths of its tiles take.
  constexpr int64_t kPart[] = {0, 35, 50, 61, 71, 79, 87, 94, 100};
  if (k < kLeastK || m == 0 || n == 0 || batch == 0) return 0;
  const int64_t rows = std::min(m, n), columns = std::max(m, n);
  const Kind& kind =
      *std::find_if(kKinds, std::end(kKinds), [&](const Kind& x) { return rows <= x.up_to; });
  constexpr int64_t kMostTiles = kMostAnSm * kSms / 2;  // which a cut into two would double
  const int64_t down = ceil_div(rows, kind.rows), across = ceil_div(columns, kLong);
  if (down > kMostTiles || across > kMostTiles || batch > kMostTiles) return 0;
  const int64_t tiles = down * across * batch;
  if (tiles > kMostTiles) return 0;
  const auto cost = [&](int64_t splits, int64_t size) {
    const int64_t of_an_sm = ceil_div(tiles * splits, kSms);
    const int64_t part = kPart[ceil_div(of_an_sm % kind.at_once * 8, kind.at_once)];
    const int64_t waves = of_an_sm / kind.at_once * 100 + part;
    // The sums' way to memory and back, and another launch.
    const int64_t adding = splits > 1 ? 3000 + rows * columns * batch * splits / 300 : 0;
    return waves * min_of(size, int64_t{1} << 40) * kind.per_k / 100 + adding;
  };
  int64_t best = 0, least = cost(1, k) * kind.one_chain / 100;
  // So many tiles an SM: few enough ways to ask in every call.
  for (const int64_t of_an_sm : {1, 2, 3, 4, 6, 8, 12, static_cast<int>(kMostAnSm)}) {
    const int64_t splits = std::min(of_an_sm * kSms / tiles, k / kLeastSplit);
    if (splits < 2) continue;
    const int64_t size = ceil_div(ceil_div(k, splits), kSplitKStep) * kSplitKStep;
    if (size >= k) continue;
    if (const int64_t c = cost(ceil_div(k, size), size); c < least) best = size, least = c;
  }
  return best;
}

// Whether stages that make several chains are the ones for a single chain, too: nothing else is
// made for so few rows.
inline bool is_narrow(int64_t m, int64_t n) { return std::min(m, n) <= 32; }

// Whether "fp32" may make several chains, too: a matter of memory, where one chain an element is
// slow.
inline bool is_few(int64_t m, int64_t n) { return std::min(m, n) <= 4; }

XGEMM_HD int64_t split_k_slices(const Gemm& g) {
  return g.split_k_size > 0 && g.k > g.split_k_size ? ceil_div(g.k, g.split_k_size) : 1;
}

}  // namespace xgemm
