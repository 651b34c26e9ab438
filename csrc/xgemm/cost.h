// What the time of a row of a tile table is made of: terms, of which a problem has so many, each at
// a cost in microseconds that was fitted to measurements, row by row (select_table.inc). Work hides
// behind memory and the other way round: they are added up as the legs of a right triangle, which
// fitted better than their sum and than the greater of the two (H200, 2026-11-24).
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "xgemm/chains.h"
#include "xgemm/schedule.h"
#include "xgemm/stage.h"

namespace xgemm {

// K is counted in thousands, elements in millions. A block's K is that of one chain.
enum Term : int {
  kLaunch,  // one
  kSeveral,  // one, for several chains
  kWork,  // the first term of work
  kRounds = kWork,  // of blocks that run at once, whole ones
  kShare,  // the same, as a fraction: where multiprocessors share out work evenly
  kDepth,  // a block's K
  kRoundsDepth,
  kShareDepth,
  kFirstA,  // a block's K, at least for a round, where A lies as 1, 2, 3 (Side)
  kFirstB = kFirstA + 3,  // the same for B
  kMemory = kFirstB + 3,  // the first term of memory
  kResults = kMemory,  // elements of D
  kOddResults,  // of a D whose rows do not all begin at 16 bytes
  kTurnedResults,  // of a D that is seen from the other side
  kFirstElements,  // of operands, where they lie as 0, 1, 2, 3 (Side)
  kSums = kFirstElements + 4,  // of several chains, elements
  kTerms,
};

constexpr const char* kTermWords[kTerms] = {
    "launch",       "several chains", "rounds",        "share",    "depth",
    "rounds depth", "share depth",    "A along, odd",  "A across", "A across, odd",
    "B along, odd", "B across",       "B across, odd", "D",        "D odd",
    "D turned",     "along",          "along, odd",    "across",   "across, odd",
    "sums",
};

using Costs = std::array<float, kTerms>;

// How an operand lies: +2 across k, +1 where it cannot be moved as 16-byte vectors.
struct Side {
  double rows = 0, millions = 0;
  int lie = 0;
};

// A problem as the terms see it.
struct Asked {
  double k = 0, batch = 1, chains = 1, results = 0;
  Side a, b;
  bool odd = false;

  explicit Asked(const Gemm& g) {
    const auto side = [&](const View<const float>& x, int64_t rows) {
      const bool along = along_k(x, rows, g.k), wide = along ? x.wide() : x.transposed().wide();
      // What all matrices of a batch share counts once.
      const double matrices = x.bs ? static_cast<double>(g.batch) : 1.;
      const auto r = static_cast<double>(rows);
      return Side{r, r * static_cast<double>(g.k) * matrices * 1e-6, 2 * !along + !wide};
    };
    batch = static_cast<double>(g.batch);
    chains = static_cast<double>(chain_count(g));
    k = static_cast<double>(g.k) * 1e-3;
    a = side(g.a, g.m), b = side(g.b.transposed(), g.n);
    results = a.rows * b.rows * batch * 1e-6;
    odd = g.n % 4 != 0;
  }

  // What wide access and layout are to tuned problems (tuned.h).
  int layout() const { return 2 * !(a.lie & 2) + !(b.lie & 2); }
  int wide() const { return 2 * !(a.lie & 1) + !(b.lie & 1); }
};

// add(term, how much of it) for the terms that are not 0. `turned`: rows of D are its columns.
template <class Add>
void each_term(const Asked& p, const Stage& s, const Tile& t, bool turned, int sm_count, Add add) {
  const Side &a = turned ? p.b : p.a, &b = turned ? p.a : p.b;
  const double chains = s.splits ? p.chains : 1, depth = p.k / chains;
  const double blocks = std::ceil(a.rows / t.BM) * std::ceil(b.rows / t.BN) * p.batch * chains;
  const double share = blocks / (sm_count * t.min_blocks), rounds = std::ceil(share);
  add(kLaunch, 1.);
  add(kRounds, rounds);
  add(kShare, share);
  add(kDepth, depth);
  add(kRoundsDepth, rounds * depth);
  add(kShareDepth, share * depth);
  const double walked = std::max(share, 1.) * depth;
  if (a.lie) add(kFirstA + a.lie - 1, walked);
  if (b.lie) add(kFirstB + b.lie - 1, walked);
  add(kResults, p.results);
  if (p.odd) add(kOddResults, p.results);
  if (turned) add(kTurnedResults, p.results);
  add(kFirstElements + a.lie, a.millions);
  add(kFirstElements + b.lie, b.millions);
  if (chains > 1) add(kSeveral, 1.), add(kSums, p.results * chains);
}

// The time of a row whose terms have these costs, in microseconds.
inline double time_of(const Costs& costs, const Asked& p, const Stage& s, const Tile& t,
                      bool turned, int sm_count) {
  double once = 0, work = 0, memory = 0;
  each_term(p, s, t, turned, sm_count, [&](int term, double of) {
    double& sum = term < kWork ? once : term < kMemory ? work : memory;
    sum += static_cast<double>(costs[static_cast<size_t>(term)]) * of;
  });
  return once + std::sqrt(work * work + memory * memory);
}

}  // namespace xgemm
