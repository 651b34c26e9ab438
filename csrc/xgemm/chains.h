// How many chains of fused multiply-adds make an element of the strict product: a function of the
// problem's sizes alone, so that every machine gives the same bits.
#pragma once

#include <algorithm>

#include "xgemm/schedule.h"

namespace xgemm {

// Chains are a multiple of this long, but for the last.
constexpr int64_t kShareStep = 32;

// Of k, in a chain; 0 where one chain is all of K. More are made where D has too few tiles to keep
// a large GPU busy: as many as cost least by this model of one, in nanoseconds. It fits what was
// measured (H200, 2026-11-22), but is no measurement: what it gives must never change.
inline int64_t chain_share(int64_t m, int64_t n, int64_t k, int64_t batch) {
  constexpr int64_t kSms = 132, kLong = 64, kLeastK = 512, kLeastShare = 64;
  // A tile's rows, how many tiles an SM works on at a time, and what all of them take for each k.
  struct Kind {
    int64_t rows, at_once, per_k;
  };
  constexpr Kind kKinds[] = {{16, 6, 50}, {32, 4, 70}, {64, 6, 165}};
  // Of a full SM's time, in hundredths, that so many eighths of its tiles take.
  constexpr int64_t kPart[] = {0, 30, 44, 56, 66, 75, 84, 92, 100};
  if (k < kLeastK || m == 0 || n == 0 || batch == 0) return 0;
  const int64_t rows = std::min(m, n), columns = std::max(m, n);
  const Kind& kind = kKinds[rows <= 16 ? 0 : rows <= 32 ? 1 : 2];
  const int64_t tiles = ceil_div(rows, kind.rows) * ceil_div(columns, kLong) * batch;
  const auto cost = [&](int64_t shares, int64_t share) {
    const int64_t of_an_sm = ceil_div(tiles * shares, kSms);
    const int64_t part = kPart[ceil_div(of_an_sm % kind.at_once * 8, kind.at_once)];
    const int64_t rounds = of_an_sm / kind.at_once * 100 + part;
    // The sums' way to memory and back, and another launch.
    const int64_t adding = shares > 1 ? 2500 + rows * columns * batch * shares / 400 : 0;
    return rounds * (share + kShareStep) * kind.per_k / 100 + adding;
  };
  int64_t best = 0, least = cost(1, k);
  // So many tiles an SM: few enough ways to ask in every call.
  for (const int64_t of_an_sm : {1, 2, 3, 4, 6, 8, 12, 18}) {
    const int64_t shares = std::min(of_an_sm * kSms / tiles, k / kLeastShare);
    if (shares < 2) continue;
    const int64_t share = ceil_div(ceil_div(k, shares), kShareStep) * kShareStep;
    if (const int64_t c = cost(ceil_div(k, share), share); c < least) best = share, least = c;
  }
  return best;
}

XGEMM_HD int64_t chain_count(const Gemm& g) {
  return g.share > 0 && g.k > g.share ? ceil_div(g.k, g.share) : 1;
}

}  // namespace xgemm
