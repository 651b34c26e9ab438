// What the time of a row of a tile table is made of: terms, of which a problem has so many, each at
// a cost in microseconds that was fitted to measurements, row by row (select_table.inc). Work hides
// behind memory and the other way round: they are added up as the legs of a right triangle, which
// fitted better than their sum and than the greater of the two (H200, 2026-11-24).
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "xgemm/core/split_k.h"
#include "xgemm/core/stage.h"
#include "xgemm/core/team.h"
#include "xgemm/core/tile_scheduler.h"

namespace xgemm {

// K is counted in thousands, whole slices of it, elements in millions. A block's K is that of one
// chain. The busiest multiprocessor has so many waves of the blocks that it runs at once; `part`s
// are of such waves, too.
enum Term : int {
  kLaunch,  // one
  kSeveral,  // one, for several chains
  kChains,  // of several, in thousands
  kWork,  // the first term of work
  kWaves = kWork,  // whole waves
  kBusiest,  // waves of the busiest, which may be half empty
  kShare,  // an equal share of all waves, where multiprocessors share out work evenly
  kFill,  // a block's K up to kFilled of it, as a part of that: to fill pipelines takes no longer
  kDepth,  // a block's K
  kWavesDepth,
  kBusiestDepth,
  kShareDepth,
  kFirstA,  // kBusiestDepth where A lies as 1, 2, 3 (Side)
  kFirstB = kFirstA + 3,  // the same for B
  kMemory = kFirstB + 3,  // the first term of memory
  kResults = kMemory,  // elements of D
  kOddResults,  // of a D whose rows do not all begin at 16 bytes
  kTurnedResults,  // of a D that is seen from the other side
  kFirstElements,  // of operands, where they lie as 0, 1, 2, 3 (Side)
  kSums = kFirstElements + 4,  // of several chains, elements
  kTerms,
};
constexpr double kFilled = 0.256;

constexpr const char* kTermWords[kTerms] = {
    "launch",      "several chains", "chains",   "waves",         "busiest",
    "share",       "fill",           "depth",    "waves depth",   "busiest depth",
    "share depth", "A along, odd",   "A across", "A across, odd", "B along, odd",
    "B across",    "B across, odd",  "D",        "D odd",         "D turned",
    "along",       "along, odd",     "across",   "across, odd",   "sums",
};

using Costs = std::array<double, kTerms>;

// std::ceil, but for what is above a whole number by rounding. Where machines need not have an
// instruction for it, std::ceil is a call.
inline double up(double x) {
  const double least = x * (1 - 1e-12);
  if (!(least < 0x1p52)) return std::ceil(least);
  const auto whole = static_cast<double>(static_cast<int64_t>(least));
  return whole + static_cast<double>(whole < least);  // without a branch
}

// How an operand lies: +2 across k, +1 where it cannot be moved as 16-byte vectors.
struct Side {
  double rows = 0, millions = 0;
  int lie = 0;
};

// A problem as the terms see it.
struct Asked {
  double k = 0, chain = 0, batch = 1, chains = 1, results = 0;  // chain: of k, in one
  int64_t k_by_one = 0, results_by_one = 0;  // the same, as team_of counts
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
    chains = static_cast<double>(split_k_slices(g));
    k_by_one = g.k, results_by_one = g.m * g.n * g.batch;
    k = static_cast<double>(g.k) * 1e-3;
    chain = k / chains;
    a = side(g.a, g.m), b = side(g.b.transposed(), g.n);
    results = a.rows * b.rows * batch * 1e-6;
    odd = g.n % 4 != 0;
  }

  // What wide access and layout are to tuned problems (tuned.h).
  int layout() const { return 2 * !(a.lie & 2) + !(b.lie & 2); }
  int wide() const { return 2 * !(a.lie & 1) + !(b.lie & 1); }
};

// What the terms need of a row: divisions are made once.
struct Spread {
  bool split_k, teams;
  double rows, columns, slice, resident;  // of a tile; blocks of a multiprocessor
  double per_row, per_column, per_slice, per_resident;

  Spread(const Stage& s, const Tile& t)
      : split_k(s.split_k),
        teams(s.teams),
        rows(t.BM),
        columns(t.BN),
        slice(t.BK * 1e-3),
        resident(t.min_blocks),
        per_row(1. / t.BM),
        per_column(1. / t.BN),
        per_slice(1e3 / t.BK),
        per_resident(1. / t.min_blocks) {}
};

// What a row makes of a problem: how many blocks, and the K of one.
struct Cut {
  double blocks, k;

  Cut(const Asked& p, const Spread& t, bool turned, int sm_count) {
    const Side &a = turned ? p.b : p.a, &b = turned ? p.a : p.b;
    blocks = up(a.rows * t.per_row) * up(b.rows * t.per_column) * p.batch, k = p.k;
    if (t.split_k) {
      blocks *= p.chains, k = p.chain;
    } else if (t.teams) {
      const int team =
          team_of(p.k_by_one, p.results_by_one, sm_count, kTeamThreads * kMostTeamBlocks);
      blocks *= team / kLeastTeam, k /= team / kLeastTeam;
    }
  }
};

// once, work and memory are called with a term of that part of the time and how much there is of
// it. `turned`: rows of D are its columns.
template <class Once, class Work, class Memory>
[[gnu::always_inline]] inline void each_term(const Asked& p, const Spread& t, bool turned,
                                             int sm_count, Once once, Work work, Memory memory) {
  const Side &a = turned ? p.b : p.a, &b = turned ? p.a : p.b;
  const double chains = t.split_k ? p.chains : 1, per_sm = 1. / sm_count;
  const auto [blocks, k] = Cut(p, t, turned, sm_count);
  const double depth = up(k * t.per_slice) * t.slice;
  const double share = blocks * per_sm * t.per_resident, waves = up(share),
               busiest = up(blocks * per_sm) * t.per_resident;
  once(kLaunch, 1.);
  work(kWaves, waves);
  work(kBusiest, busiest);
  work(kShare, share);
  work(kFill, std::min(depth / kFilled, 1.));
  work(kDepth, depth);
  work(kWavesDepth, waves * depth);
  work(kBusiestDepth, busiest * depth);
  work(kShareDepth, share * depth);
  if (a.lie) work(kFirstA + a.lie - 1, busiest * depth);
  if (b.lie) work(kFirstB + b.lie - 1, busiest * depth);
  memory(kResults, p.results);
  if (p.odd) memory(kOddResults, p.results);
  if (turned) memory(kTurnedResults, p.results);
  memory(kFirstElements + a.lie, a.millions);
  memory(kFirstElements + b.lie, b.millions);
  if (chains > 1) {
    once(kSeveral, 1.);
    once(kChains, chains * 1e-3);
    memory(kSums, p.results * chains);
  }
}

// The time of a row whose terms have these costs, in microseconds.
inline double time_of(const Costs& costs, const Asked& p, const Spread& t, bool turned,
                      int sm_count) {
  double once = 0, work = 0, memory = 0;
  const auto into = [&costs](double& sum) {
    return [&costs, &sum](int term, double of) { sum += costs[static_cast<size_t>(term)] * of; };
  };
  each_term(p, t, turned, sm_count, into(once), into(work), into(memory));
  return once + std::sqrt(work * work + memory * memory);
}

// What a row takes at least, of few of its terms: its launch, and the work of its share of the
// waves, or of a single wave, whichever is more. Memory, and what operands that do not lie along
// k take longer, come on top.
class Bound {
 public:
  Bound() = default;  // 0 microseconds
  Bound(const Costs& costs, const Spread& t) {
    // A term below zero would make sums of some terms no bound.
    for (const double cost : costs)
      if (!(cost >= 0)) return;
    constexpr double kRounded = 1 - 1e-9;  // far more than sums in another order differ by
    const auto its = [&](Term term) { return costs[static_cast<size_t>(term)] * kRounded; };
    once_ = its(kLaunch), of_k_ = its(kDepth);
    all_ = its(kWaves) + its(kBusiest) + its(kShare);
    all_of_k_ = its(kWavesDepth) + its(kBusiestDepth) + its(kShareDepth);
    one_ = its(kWaves) + its(kBusiest) * t.per_resident;
    one_of_k_ = its(kWavesDepth) + its(kBusiestDepth) * t.per_resident;
  }

  // In microseconds; per_sm: 1 / multiprocessors.
  double of(const Asked& p, const Spread& t, bool turned, int sm_count, double per_sm) const {
    const auto [blocks, k] = Cut(p, t, turned, sm_count);
    const double share = blocks * per_sm * t.per_resident;
    return once_ + k * of_k_ + std::max(share * (all_ + k * all_of_k_), one_ + k * one_of_k_);
  }

 private:
  double once_ = 0, of_k_ = 0, all_ = 0, all_of_k_ = 0, one_ = 0, one_of_k_ = 0;
};

// All terms of a problem.
inline std::array<double, kTerms> terms_of(const Asked& p, const Spread& t, bool turned,
                                           int sm_count) {
  std::array<double, kTerms> all{};
  const auto add = [&all](int term, double of) { all[static_cast<size_t>(term)] += of; };
  each_term(p, t, turned, sm_count, add, add, add);
  return all;
}

}  // namespace xgemm
