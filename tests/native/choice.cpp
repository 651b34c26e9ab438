// The choice of a stage: over the problems of the suite, over random ones, with the table that is
// built in, with none, and with one made from an invented machine whose true times are known.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <random>

#include "check.h"
#include "xgemm/core/limits.h"
#include "xgemm/core/split_k.h"
#include "xgemm/core/tile_scheduler.h"
#include "xgemm/dispatch/cost.h"
#include "xgemm/dispatch/recent.h"
#include "xgemm/dispatch/select.h"
#include "xgemm/dispatch/tuned.h"

namespace xgemm {
namespace {

const Device kH200{.sm = 90, .sm_count = 132};

bool same(const Pick& x, const Pick& y) { return x.stage == y.stage && x.row == y.row; }

// Only strides and alignment are looked at: an address stands for the data.
Gemm contiguous(int64_t m, int64_t n, int64_t k, bool trans_a, bool trans_b, int64_t batch = 1) {
  const auto* somewhere = reinterpret_cast<const float*>(uintptr_t{16});
  Gemm g;
  g.m = m, g.n = n, g.k = k, g.batch = batch;
  g.a = {somewhere, trans_a ? 1 : k, trans_a ? m : 1, batch > 1 ? m * k : 0};
  g.b = {somewhere, trans_b ? 1 : n, trans_b ? k : 1, batch > 1 ? k * n : 0};
  return g;
}

// The problems of benchmarks/shapes.py.
std::vector<Gemm> suite() {
  std::vector<Gemm> all;
  for (int64_t s : {128, 256, 384, 512, 640, 768, 1000, 1023, 1024, 1536, 2048, 3072, 4095, 4096,
                    6144, 8192, 16384})
    for (int layout = 0; layout < 4; ++layout)
      all.push_back(contiguous(s, s, s, layout / 2 != 0, layout % 2 != 0));
  const int64_t layers[][2] = {{768, 2304},   {768, 768},   {768, 3072},   {3072, 768},
                               {1024, 50257}, {4096, 4096}, {4096, 11008}, {4096, 14336},
                               {14336, 4096}, {8192, 28672}};
  for (const auto& [in, out] : layers)
    for (int64_t rows : {1, 8, 64, 512, 2048, 8192}) {
      all.push_back(contiguous(rows, out, in, false, true));
      all.push_back(contiguous(rows, in, out, false, false));
      all.push_back(contiguous(out, in, rows, true, false));
    }
  const int64_t skinny[][3] = {{65536, 64, 64},   {100000, 32, 256}, {64, 64, 1048576},
                               {256, 256, 65536}, {16384, 128, 128}, {20, 20000, 500}};
  for (const auto& [m, n, k] : skinny) all.push_back(contiguous(m, n, k, false, false));
  return all;
}

std::string name_of(const Gemm& g) {
  return std::to_string(g.m) + "x" + std::to_string(g.n) + "x" + std::to_string(g.k);
}

int layout_of(const Gemm& g) {
  return 2 * along_k(g.a, g.m, g.k) + along_k(g.b.transposed(), g.n, g.k);
}
int wide_of(const Gemm& g) {
  const View<const float> b = g.b.transposed();
  const bool ka = along_k(g.a, g.m, g.k), kb = along_k(b, g.n, g.k);
  return 2 * (ka ? g.a.wide() : g.a.transposed().wide()) + (kb ? b.wide() : b.transposed().wide());
}

// Some stages as they might be, with the speeds of an invented machine.
std::vector<Stage> invented_stages() {
  const auto stage = [](const char* name, int rung, std::vector<Tile> tiles) {
    Stage s;
    s.name = name;
    s.rung = rung;
    s.tiles = std::move(tiles);
    return s;
  };
  return {
      stage("slow", 1, {{.BM = 32, .BN = 32, .BK = 1, .buffers = 0, .min_blocks = 2, .rate = 6.f}}),
      stage("small", 2,
            {{.BM = 64, .BN = 64, .BK = 16, .TM = 4, .TN = 4, .min_blocks = 4, .rate = 30.f}}),
      stage("many", 3,
            {{.BM = 128, .BN = 128, .BK = 8, .TM = 8, .TN = 8, .min_blocks = 2, .rate = 47.f},
             {.BM = 128, .BN = 256, .BK = 16, .TM = 8, .TN = 16, .min_blocks = 1, .rate = 52.f},
             {.BM = 64, .BN = 32, .BK = 16, .TM = 4, .TN = 4, .min_blocks = 6, .rate = 26.f}}),
  };
}

// The invented machine's time: a launch, the busiest SM's blocks with a start of their own, memory,
// and scalar loads where vectors do not fit.
double truth(const Tile& t, const Gemm& g, const Device& device) {
  const int64_t blocks = ceil_div(tile_count(g, t.BM, t.BN), device.sm_count);
  const double waves = static_cast<double>(blocks / t.min_blocks),
               left = static_cast<double>(blocks % t.min_blocks) / t.min_blocks;
  const double scalar = wide_of(g) == 3 ? 1 : 1.15;
  const double along = layout_of(g) == 3 ? 1.06 : 1;
  const double per_sm = t.rate * 1e6 / 132 / scalar / along;
  const double k = static_cast<double>(g.k) + 12 * t.BK;
  const double compute =
      (waves + std::pow(left, .75)) * t.min_blocks * 2 * t.BM * t.BN * k / per_sm;
  const double bytes = 4.0 * static_cast<double>(g.m * g.k + g.k * g.n + g.m * g.n);
  return 2.5 + std::hypot(compute, bytes / 4e6);
}

// As benchmarks/select_table.py makes one: the fitted costs are not quite right.
Table invented_table(const std::vector<Stage>& all) {
  Table table;
  table.gpu = "an invented machine";
  table.date = "2000-01-01";
  for (const Stage& s : all)
    for (const Tile& t : s.tiles) {
      const float per_sm = t.rate * 1e6f / 132 * (t.BN > 64 ? .97f : 1.02f);
      const float of_k = static_cast<float>(t.min_blocks * 2 * t.BM * t.BN) / per_sm;
      TableRow row{s.name.c_str(), t.BM, t.BN,      t.BK,         t.WM,      t.WN,
                   t.TM,           t.TN, t.buffers, t.min_blocks, t.cluster, {}};
      row.costs[kLaunch] = 2.5f;
      row.costs[kWaves] = of_k * 2.4f * static_cast<float>(t.BK);
      row.costs[kBusiest] = 4 * row.costs[kWaves];
      row.costs[kWavesDepth] = of_k * 200, row.costs[kBusiestDepth] = of_k * 800;
      for (int lie = 1; lie < 4; ++lie)
        row.costs[static_cast<size_t>(kFirstA + lie - 1)] =
            row.costs[static_cast<size_t>(kFirstB + lie - 1)] = lie & 1 ? of_k * 90 : 0;
      row.costs[kResults] = 1;
      for (int lie = 0; lie < 4; ++lie) row.costs[static_cast<size_t>(kFirstElements + lie)] = 1;
      table.rows.push_back(row);
    }
  return table;
}

// How much longer the chosen row takes than the best, on the invented machine.
double loss(const std::vector<Stage>& all, const Pick& pick, const Gemm& g, const Device& device) {
  double best = INFINITY;
  for (const Stage& s : all)
    for (const Tile& t : s.tiles) best = std::min(best, truth(t, g, device));
  return truth(pick.stage->tiles[static_cast<size_t>(pick.row)], g, device) / best - 1;
}

// For every problem a row of a legal stage, the one of least time, the same every time.
void is_total(const std::vector<Stage>& all, const Table& table) {
  const Selector selector(all, table);
  for (int64_t m : {1, 7, 64, 513, 4096, 100000})
    for (int64_t n : {1, 31, 128, 2048, 50257})
      for (int64_t k : {0, 1, 8, 1000, 1048576})
        for (int layout = 0; layout < 4; ++layout)
          for (Device device : {Device{}, Device{80, 108}, Device{90, 132}, Device{120, 1}}) {
            const Gemm g = contiguous(m, n, k, layout / 2 != 0, layout % 2 != 0, m < 8 ? 70000 : 1);
            const Choice x = selector.weigh(g, device, true);
            const Pick y = selector.pick(g, device, true);
            bool least = y.stage && same(x.pick, y) && !x.why.empty();
            double chosen = -1;
            for (const Candidate& c : x.candidates)
              if (same({c.stage, c.row}, y)) chosen = c.microseconds;
            for (const Candidate& c : x.candidates)
              least = least && (!c.why_not.empty() || chosen <= c.microseconds) &&
                      c.by_name == (selector.row(*c.stage, g, device) == c.row);
            expect(least && chosen >= 0, "a choice for " + name_of(g));
          }
}

// The sum of the terms at their costs is what is said, by the words that it rests on.
void with_measurements() {
  const std::vector<Stage> all = invented_stages();
  const std::vector<Gemm> problems = suite();
  const Table table = invented_table(all);
  const Selector selector(all, table);
  is_total(all, table);
  for (const Gemm& g : problems) {
    const Choice x = selector.weigh(g, kH200, true);
    for (size_t i = 0; i < x.candidates.size(); ++i) {
      const Candidate& c = x.candidates[i];
      const double us =
          time_of(table.rows[i].costs, Asked(g), Spread(*c.stage, c.tile()), false, kH200.sm_count);
      expect(c.basis == Basis::estimated && c.microseconds == us && us > 2.5,
             "the time of " + c.stage->name + " for " + name_of(g));
    }
  }
  expect(
      selector.weigh(problems[0], kH200, true).why.find("estimated ") == 0 &&
          selector.weigh(problems[0], kH200, true)
                  .why.find(" us from measurements on an invented machine, 2000-01-01; next ") > 0,
      "it says estimated");

  // Random problems, on this machine and on one with fewer SMs.
  std::mt19937 random(5);
  std::uniform_real_distribution<double> octaves(0, 1);
  for (Device device : {kH200, Device{80, 108}}) {
    double sum = 0, most = 0;
    constexpr int kProblems = 4000;
    for (int i = 0; i < kProblems; ++i) {
      const auto size = [&](double least, double greatest) {
        return static_cast<int64_t>(std::exp2(least + octaves(random) * (greatest - least)));
      };
      const Gemm g = contiguous(size(3, 14), size(5, 14), size(5, 14), random() % 2, random() % 2);
      const double lost = loss(all, selector.pick(g, device, true), g, device);
      sum += lost;
      most = std::max(most, lost);
    }
    std::printf("select: %.1f%% lost on average, %.0f%% at most\n", 100 * sum / kProblems,
                100 * most);
    expect(sum / kProblems < .02 && most < .4, "sensible for random problems");
  }
}

// What a problem has of each term: its own numbers, and those of its transpose where a stage turns.
void with_terms() {
  Stage s;
  s.split_k = true;
  const Tile t{.BM = 16, .BN = 64, .BK = 32, .min_blocks = 2};
  const auto terms = [&](const Gemm& g, bool turned = false) {
    return terms_of(Asked(g), Spread(s, t), turned, 10);
  };
  // 3 x 2 tiles of 4 chains for 20 places.
  Gemm g = contiguous(40, 100, 2012, false, false);
  g.split_k_size = 512;
  const auto of = terms(g);
  const auto near = [](double x, double y) { return std::fabs(x - y) < 1e-9; };
  expect(of[kLaunch] == 1 && of[kSeveral] == 1 && near(of[kChains], .004) && of[kWaves] == 2 &&
             near(of[kBusiest], 1.5) && near(of[kShare], 1.2),
         "waves of blocks");
  expect(near(of[kDepth], .512) && near(of[kWavesDepth], 1.024) && of[kFill] == 1 &&
             near(of[kBusiestDepth], .768) && near(of[kShareDepth], .6144),
         "whole slices of K");
  expect(near(of[kFirstB + 1], .768) && of[kFirstA] == 0 && of[kFirstA + 1] == 0 &&
             near(of[kFirstElements], .08048) && near(of[kFirstElements + 2], .2012) &&
             near(of[kResults], .004) && near(of[kSums], .016) && of[kOddResults] == 0,
         "terms of operands that lie along k and across");
  Gemm other = transposed(g);
  const auto turned = terms(other, true);
  expect(near(turned[kTurnedResults], .004), "it is seen from the other side");
  for (size_t i = 0; i < kTerms; ++i)
    expect(i == kTurnedResults || near(of[i], turned[i]), "a transpose is the same problem");
  ++g.a.data;
  expect(near(terms(g)[kFirstA], .768) && near(terms(g)[kFirstElements + 1], .08048),
         "and are not moved as vectors");
  expect(terms(contiguous(40, 99, 2000, false, false))[kOddResults] > 0, "rows of an odd length");
  Stage teams;
  teams.teams = true;
  const Tile dot{.BM = 1, .BN = 32, .BK = 1, .TM = 1, .TN = 1, .buffers = 0, .min_blocks = 4};
  const auto of_teams = [&](int64_t n, int64_t k) {
    return terms_of(Asked(contiguous(1, n, k, false, false)), Spread(teams, dot), false, 132);
  };
  const auto deep = of_teams(4, 11868), short_one = of_teams(4, 15);
  expect(near(deep[kDepth], .093) && near(deep[kShare], 128. / 132 / 4),
         "a team of 1024 has so much shorter a K, in so many more blocks");
  expect(near(short_one[kDepth], .015) && near(short_one[kShare], 1. / 132 / 4), "one of 8");
  Gemm batch = contiguous(40, 100, 2000, false, false, 5);
  const auto of_batch = terms(batch);
  batch.b.bs = 0;
  expect(near(of_batch[kResults], .02) && near(of_batch[kFirstElements + 2], 1) &&
             near(terms(batch)[kFirstElements + 2], .2) && of_batch[kSeveral] == 0,
         "what a batch shares counts once");
}

// No row takes less than its bound, whatever its costs; one without a bound is never passed over.
void with_bounds() {
  std::mt19937 random(9);
  std::uniform_real_distribution<double> octaves(0, 1);
  const auto size = [&](double most) {
    return static_cast<int64_t>(std::exp2(octaves(random) * most));
  };
  bool holds = true, is_one = true;
  double near = 0;
  for (int i = 0; i < 20000; ++i) {
    Costs costs;
    for (double& cost : costs) cost = random() % 3 ? std::exp2(10 * octaves(random) - 5) : 0;
    Stage s;
    s.split_k = random() % 2;
    s.teams = !s.split_k && random() % 2;
    const Tile t{.BM = 16 << random() % 5,
                 .BN = 16 << random() % 5,
                 .BK = 8 << random() % 4,
                 .TM = 8,
                 .TN = 8,
                 .buffers = 0,
                 .min_blocks = 1 + static_cast<int>(random() % 2)};
    Gemm g = contiguous(size(16), size(16), size(20), random() % 2, random() % 2, size(6));
    g.split_k_size = random() % 2 ? 32 * size(8) : 0;
    const Spread spread(s, t);
    const bool turned = random() % 2;
    const int sm_count = 1 + static_cast<int>(random() % 150);
    const double us = time_of(costs, Asked(g), spread, turned, sm_count);
    const auto bound_of = [&] {
      return Bound(costs, spread).of(Asked(g), spread, turned, sm_count, 1. / sm_count);
    };
    const double bound = bound_of();
    holds = holds && 0 <= bound && bound <= us;
    if (us > 0) near = std::max(near, bound / us);
    costs[random() % kTerms] = -1e-3;
    is_one = is_one && bound_of() == 0;
  }
  expect(holds, "a bound is no more than the time");
  expect(near > .99, "and sometimes nearly all of it");
  expect(is_one, "costs below zero have none");
}

// Of random problems, the row that is picked is the last of the least time among those that may be.
void is_the_least(const std::vector<Stage>& all, const Table& table) {
  const Selector selector(all, table);
  std::mt19937 random(11);
  std::uniform_real_distribution<double> octaves(0, 14);
  const auto size = [&] { return static_cast<int64_t>(std::exp2(octaves(random))); };
  for (int i = 0; i < 1500; ++i) {
    Gemm g = contiguous(size(), size(), size(), random() % 2, random() % 2,
                        random() % 4 ? 1 : 1 + static_cast<int64_t>(random() % 50));
    if (random() % 4 == 0) ++g.a.data;
    if (random() % 4 == 0) g.b.bs = 0;
    const bool strict = random() % 2;
    if (strict || is_narrow(g.m, g.n)) g.split_k_size = split_k_size(g.m, g.n, g.k, g.batch);
    const Device device = i % 3 ? kH200 : i % 2 ? Device{80, 108} : Device{86, 84};
    const size_t room = random() % 4 ? kAnyWorkspace : size_t{1} << random() % 30;
    Pick least;
    double us = INFINITY;
    const Choice choice = selector.weigh(g, device, strict, room);
    for (const Candidate& c : choice.candidates)
      if (c.why_not.empty() && c.microseconds <= us) least = {c.stage, c.row}, us = c.microseconds;
    expect(same(selector.pick(g, device, strict, room), least), "the least for " + name_of(g));
  }
}

TunedRecord record_of(const Gemm& g, bool strict, std::vector<TunedRecord::Time> times) {
  TunedRecord r;
  r.m = g.m, r.n = g.n, r.k = g.k, r.batch = g.batch;
  r.layout = layout_of(g), r.wide = wide_of(g);
  r.strict = strict;
  r.sm = kH200.sm, r.sm_count = kH200.sm_count, r.gpu = "an invented machine";
  r.date = "2001-01-01", r.torch_mm = 5, r.times = std::move(times);
  return r;
}

// A tuned problem is decided by its times, among the rows that may be taken; no other problem is.
void with_tuned_problems() {
  std::vector<Stage> all = invented_stages();
  Stage parts = all[1];
  parts.name = "parts", parts.rung = 4, parts.strict = false;
  parts.workspace = [](const Gemm&, const Context&) -> size_t { return 4096; };
  all.push_back(parts);
  const std::vector<Gemm> problems = suite();
  const Table table = invented_table(all);
  const Selector selector(all, table);
  const auto named = [&](size_t stage, size_t row) {
    return row_name(all[stage], all[stage].tiles[row]);
  };
  const Gemm g = contiguous(1000, 600, 500, false, true);
  const std::vector<TunedRecord::Time> times = {
      {4, named(2, 0)}, {3, named(0, 0)}, {1, named(3, 0)}, {.5, "gone 64x64x8"}};
  const Tuned tuned(all, {record_of(g, true, times), record_of(g, false, times)});
  const TunedGpu* const gpu = tuned.on(kH200, "an invented machine");
  expect(gpu && gpu == tuned.on(kH200, ""), "the GPU by its name, or by its kind");
  expect(!tuned.on(kH200, "another") && !tuned.on({90, 131}, "") && !tuned.on({80, 132}, ""),
         "no other GPU");

  const auto name = [&](const Gemm& asked, bool strict, size_t room = kAnyWorkspace) {
    const Pick pick = selector.pick(asked, kH200, strict, room, gpu);
    const Choice choice = selector.weigh(asked, kH200, strict, room, gpu);
    expect(same(pick, choice.pick), "weigh picks the same");
    const bool is = choice.why.find("tuned ") == 0;
    expect(is == same(pick, {&all[0], 0}) || pick.stage == &all[3], "it says tuned, if so");
    return pick.stage->name;
  };
  expect(name(g, false) == "parts", "the least time of all");
  expect(name(g, true) == "slow", "the least of those that keep the contract");
  expect(name(g, false, 4095) == "slow", "the least of those that there is memory for");
  expect(selector.weigh(g, kH200, true, kAnyWorkspace, gpu).why ==
             "tuned 3.0 us on an invented machine, 2001-01-01; next many 128x128x8, 33.3% more",
         "and what came next");
  for (const Candidate& c : selector.weigh(g, kH200, false, kAnyWorkspace, gpu).candidates) {
    const bool has = c.stage != &all[1] && !(c.stage == &all[2] && c.row);
    expect((c.basis == Basis::tuned) == has, "the basis of " + c.stage->name);
  }
  const auto untuned = [&](const Gemm& other) {
    return same(selector.pick(other, kH200, true, kAnyWorkspace, gpu),
                selector.pick(other, kH200, true)) &&
           selector.weigh(other, kH200, true, kAnyWorkspace, gpu).why ==
               selector.weigh(other, kH200, true).why;
  };
  expect(untuned(contiguous(1000, 600, 500, false, false)), "not in another layout");
  expect(untuned(contiguous(1001, 600, 500, false, true)), "nor at another size");
  const Gemm batch = contiguous(1000, 600, 500, false, true, 2);
  expect(untuned(batch), "nor for a batch");
  Gemm scalar = g;
  ++scalar.a.data;
  expect(untuned(scalar), "nor where vectors do not fit");

  const Tuned of_batch(all, {record_of(batch, true, times)});
  const TunedGpu* const batches = of_batch.on(kH200, "");
  const auto its_pick = [&](const Gemm& asked) {
    return selector.pick(asked, kH200, true, kAnyWorkspace, batches);
  };
  expect(same(its_pick(batch), {&all[0], 0}), "a batch that was tuned");
  expect(same(its_pick(g), selector.pick(g, kH200, true)), "and no other");

  for (const int row : {0, 1}) {
    const auto numbered = static_cast<size_t>(row);
    const Tuned of_row(all, {record_of(g, true, {{1, named(1, 0)}, {2, named(2, numbered)}})});
    const TunedGpu* const rows = of_row.on(kH200, "");
    expect(selector.row(all[2], g, kH200, true, rows) == row,
           "by its name, the row that was tuned");
    expect(selector.row(all[2], g, kH200, false, rows) == selector.row(all[2], g, kH200),
           "not for the other precision");
    for (const Candidate& c : selector.weigh(g, kH200, true, kAnyWorkspace, rows).candidates)
      if (c.stage == &all[2]) expect(c.by_name == (c.row == row), "and it is said so");
  }

  const Tuned of_limbs(all, {record_of(g, true, {{1, named(3, 0)}, {2, "gone 64x64x8"}})});
  const TunedGpu* const its = of_limbs.on(kH200, "");
  for (const bool strict : {true, false})
    expect(
        same(selector.pick(g, kH200, strict, kAnyWorkspace, its), selector.pick(g, kH200, strict)),
        "without a row that may be taken, by the table");
  all[0].can_implement = [](const Gemm&) -> Status { return "not today"; };
  expect(selector.pick(g, kH200, true, kAnyWorkspace, gpu).stage == &all[2],
         "a refusal gives way to the next");
  const Tuned twice(all, {record_of(g, true, times), record_of(g, true, {{9, named(1, 0)}})});
  expect(selector.pick(g, kH200, true, kAnyWorkspace, twice.on(kH200, "")).stage == &all[1],
         "of two records the later counts");
}

// A recent choice is the choice, and nothing that a choice may depend on is mistaken for it.
void with_recent_choices() {
  const std::vector<Stage> all = invented_stages();
  const std::vector<Gemm> problems = suite();
  const Table table = invented_table(all);
  const Selector selector(all, table);
  Recent recent;
  int anew = 0;
  const auto pick = [&](const Gemm& g, bool strict = true, int64_t first = 0, int64_t second = 0) {
    return recent.pick(g, strict, first, second,
                       [&] { return ++anew, selector.pick(g, kH200, strict); });
  };
  for (const Gemm& g : problems)
    for (int turn = 0; turn < 2; ++turn) {
      anew = 0;
      expect(same(pick(g), selector.pick(g, kH200, true)), "a recent choice for " + name_of(g));
      expect(turn == 0 || !anew, "what was just asked for is found");
    }
  const Gemm g = contiguous(1000, 600, 500, false, true);
  const auto is_another = [&](auto change) {
    Gemm other = g;
    change(other);
    pick(g);
    anew = 0;
    pick(other);
    return anew == 1;
  };
  expect(is_another([](Gemm& x) { ++x.m; }) && is_another([](Gemm& x) { ++x.batch; }) &&
             is_another([](Gemm& x) { x.split_k_size = 64; }),
         "other sizes");
  expect(is_another([](Gemm& x) { ++x.a.rs; }) && is_another([](Gemm& x) { ++x.d.cs; }) &&
             is_another([](Gemm& x) { ++x.b.bs; }),
         "other strides");
  expect(is_another([](Gemm& x) { ++x.a.data; }) && is_another([](Gemm& x) { ++x.d.data; }),
         "other alignments");
  expect(!is_another([](Gemm& x) { x.a.data += 32; }), "another address alike");
  pick(g), anew = 0;
  pick(g, false), pick(g, true, 1), pick(g, true, 0, 1);
  expect(anew == 3, "another contract, and what the numbers stand for");
}

// Printed, not judged: machines differ.
void time_of_a_choice() {
  std::vector<Stage> all;
  for (int copy = 0; copy < 6; ++copy)
    for (Stage s : invented_stages()) {
      s.name += std::to_string(copy);
      all.push_back(s);
    }
  const std::vector<Gemm> problems = suite();
  const Table table = invented_table(all);
  const Selector selector(all, table);
  const auto beside = [](const Gemm& g) {
    return contiguous(g.m + 8, g.n + 8, g.k + 8, layout_of(g) < 2, layout_of(g) % 2 != 0);
  };
  std::vector<TunedRecord> records;
  for (const Gemm& g : problems)
    records.push_back(record_of(g, true, {{1, row_name(all[0], all[0].tiles[0])}}));
  const Tuned tuned(all, records);
  const TunedGpu* const here = tuned.on(kH200, "");
  const struct {
    const char* what;
    bool at;
    const TunedGpu* gpu;
  } cases[] = {{"none", false, nullptr}, {"at", true, here}, {"off", false, here}};
  for (const auto& [what, at, gpu] : cases) {
    std::vector<Gemm> asked;
    for (const Gemm& g : problems) asked.push_back(at ? g : beside(g));
    const auto begin = std::chrono::steady_clock::now();
    constexpr int kTurns = 50;
    size_t rows = 0;
    for (int turn = 0; turn < kTurns; ++turn)
      for (const Gemm& g : asked)
        rows += static_cast<size_t>(selector.pick(g, kH200, true, kAnyWorkspace, gpu).row);
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
    std::printf("select: %.0f ns a choice among %zu rows, tuned problems: %s (%zu)\n",
                took.count() / static_cast<double>(kTurns * asked.size()), table.rows.size(), what,
                rows);
  }
  for (const bool strict : {true, false}) {
    const Selector real(stages(Flavour::host));
    const auto begin = std::chrono::steady_clock::now();
    constexpr int kTurns = 50;
    size_t rows = 0;
    for (int turn = 0; turn < kTurns; ++turn)
      for (const Gemm& g : problems) rows += static_cast<size_t>(real.pick(g, kH200, strict).row);
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
    std::printf("select: %.0f ns a choice of this build, %s (%zu)\n",
                took.count() / static_cast<double>(kTurns * problems.size()),
                strict ? "ieee" : "fp32", rows);
  }
  Recent recent;
  const auto begin = std::chrono::steady_clock::now();
  constexpr int kTurns = 10000;
  size_t rows = 0;
  for (int turn = 0; turn < kTurns; ++turn)
    for (size_t i = 0; i < 16; ++i)
      rows += static_cast<size_t>(recent
                                      .pick(problems[i], true, 0, 0,
                                            [&] { return selector.pick(problems[i], kH200, true); })
                                      .row);
  const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
  std::printf("select: %.0f ns a recent choice (%zu)\n", took.count() / (kTurns * 16.0), rows);
}

// A stage newer than the table, one that the table's winner must give way to, one that refuses.
void with_other_stages() {
  const std::vector<Gemm> problems = suite();
  std::vector<Stage> all = invented_stages();
  const Table table = invented_table(all);
  const Gemm large = contiguous(4096, 4096, 4096, false, false),
             between = contiguous(4000, 4000, 4000, false, false);
  Stage s = all.back();
  s.name = "new";
  s.tiles = {s.tiles[1]};
  for (const Gemm& g : {large, between}) {
    const auto chosen = [&](float rate) {
      std::vector<Stage> more = all;
      s.tiles[0].rate = rate;
      more.push_back(s);
      return Selector(more, table).pick(g, kH200, true).stage->name;
    };
    expect(chosen(60.f) == "new", "a new stage that is faster is taken");
    expect(chosen(50.f) == "many", "a new stage that is slower is not");
    expect(chosen(0.f) == "many", "nor one that says nothing of its speed");
    std::vector<Stage> fewer = all;
    fewer.back().can_implement = [](const Gemm&) -> Status { return "not today"; };
    expect(Selector(fewer, table).pick(g, kH200, true).stage->name == "small",
           "a refusal gives way to the next best");
    fewer[1].strict = false;
    expect(Selector(fewer, table).pick(g, kH200, true).stage->name == "slow",
           "a slow one runs where nothing else can");
    std::vector<Stage> deep = all;
    deep[2].tiles[1].buffers = 8, deep[2].tiles[1].a_rows = 16;  // 192 KiB
    const Device a100{.sm = 80, .sm_count = 132};
    const Tile& tile = deep[2].tiles[1];
    expect(fits(tile, kH200) && fits(tile, {}) && !fits(tile, a100), "192 KiB fit on an H200");
    expect(Selector(deep, Table{}).pick(g, kH200, true).row == 1 &&
               Selector(deep, Table{}).pick(g, a100, true).row == 0 &&
               Selector(deep, Table{}).row(deep[2], g, a100) == 0,
           "a tile without room gives way to the stage's next");
    deep[2].tiles = {tile};
    expect(Selector(deep, Table{}).pick(g, a100, true).stage->name == "small" &&
               !can_implement(deep[2], g, a100) &&
               Selector(deep, Table{}).row(deep[2], g, a100) == 0 &&
               why_not(deep[2], g, a100).find("163 KiB") != std::string::npos,
           "a stage without any such tile gives way to another");
    fewer[0].min_sm = 100;
    expect(!Selector(fewer, table).pick(g, kH200, true).stage, "none where none can");
  }
  const Table none;
  expect(Selector(all, none).pick(large, kH200, true).row == 1, "without a table, by Tile::rate");

  // A stage that is not for auto: never chosen, but where nothing else can run.
  all[2].auto_choice = false;
  for (const Table* known : {&table, &none}) {
    const Selector selector(all, *known);
    const Choice x = selector.weigh(large, kH200, true);
    expect(x.pick.stage == &all[1] && same(x.pick, selector.pick(large, kH200, true)),
           "the best of the others");
    expect(x.candidates[2].able && !x.candidates[2].why_not.empty() &&
               x.candidates[2].by_name == (selector.row(all[2], large, kH200) == 0),
           "it can run, and is said not to be for auto");
  }
  all[0].min_sm = all[1].min_sm = 100;
  const Selector selector(all, table);
  expect(selector.pick(large, kH200, true).stage == &all[2] &&
             selector.weigh(large, kH200, true).candidates[2].why_not.empty(),
         "it runs where nothing else can");
}

}  // namespace

void test_select() {
  is_total(stages(Flavour::host), measured_table());
  is_total(stages(Flavour::host), Table{});
  is_the_least(stages(Flavour::host), measured_table());
  is_the_least(stages(Flavour::host), Table{});
  with_terms();
  with_bounds();
  with_measurements();
  with_other_stages();
  with_tuned_problems();
  with_recent_choices();
  time_of_a_choice();
}

}  // namespace xgemm
