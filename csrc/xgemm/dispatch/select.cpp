#include "xgemm/dispatch/select.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <stdexcept>

#include "xgemm/core/limits.h"
#include "xgemm/core/split_k.h"
#include "xgemm/core/tile_scheduler.h"
#include "xgemm/dispatch/cost.h"

#ifndef XGEMM_SELECT_TABLE
#define XGEMM_SELECT_TABLE "xgemm/dispatch/select_table.inc"
#endif

namespace xgemm {
namespace {

constexpr int kRateSms = 132;   // Tile::rate was measured with so many
constexpr int64_t kLeastForRate = 512;  // of m, n and k, from which a rate is an estimate

// An SM that holds a part x of the blocks that fit runs at x^kAlone of its full rate: a block alone
// has the pipes to itself. Fits what was measured at 1024^3 (H200, 2026-11-21): vec4_128x128, 1 of
// 2 blocks, 0.74; block_tile_1d, 2 of 3, 0.90.
constexpr double kAlone = 0.4;

constexpr const char* kNotForAuto = "is a rung that others are faster than everywhere";

int64_t blocks_of(const Tile& t, const Gemm& g) { return tile_count(g, t.BM, t.BN) * g.batch; }

// Microseconds of the busiest SM by Tile::rate alone: whole waves of its resident blocks, then
// those left over at a lower rate.
double by_rate(const Tile& t, const Asked& p, int sm_count) {
  if (t.rate <= 0) return INFINITY;
  const double per_sm = t.rate * 1e6 / kRateSms;
  const double blocks = std::ceil(p.a.rows / t.BM) * std::ceil(p.b.rows / t.BN) * p.batch;
  const double on_one_sm = std::ceil(blocks / sm_count);
  const double waves = std::floor(on_one_sm / t.min_blocks);
  const double left = on_one_sm / t.min_blocks - waves;
  return t.min_blocks * 2. * t.BM * t.BN * p.k * 1e3 / per_sm *
         (waves + (left > 0 ? std::pow(left, 1 - kAlone) : 0));
}

bool describes(const TableRow& r, const Stage& s, const Tile& t) {
  return s.name == r.stage && t.BM == r.BM && t.BN == r.BN && t.BK == r.BK && t.WM == r.WM &&
         t.WN == r.WN && t.TM == r.TM && t.TN == r.TN && t.buffers == r.buffers &&
         t.min_blocks == r.min_blocks && t.cluster == r.cluster;
}

// What makes an element of D: rows of one kind are measured beside each other.
enum class Kind { emulated, chain, chains };
Kind kind_of(const Stage& s) {
  return !s.strict ? Kind::emulated : s.split_k ? Kind::chains : Kind::chain;
}

// The contract of a problem's result.
struct Contract {
  bool strict, several, narrow, few;

  Contract(const Gemm& g, bool strict)
      : strict(strict),
        several(split_k_slices(g) > 1),
        narrow(is_narrow(g.m, g.n)),
        few(is_few(g.m, g.n)) {}

  // Promises are numbered.
  static constexpr size_t kAll = 16;
  explicit Contract(size_t number)
      : strict(number & 1), several(number & 2), narrow(number & 4), few(number & 8) {}
  size_t number() const { return size_t{strict} + 2 * several + 4 * narrow + 8 * few; }
};

// What the stage would break of it, or null.
const char* breaks(const Stage& s, const Contract& p) {
  const Kind kind = kind_of(s);
  if (p.strict && kind == Kind::emulated) return "does not keep the bits of the chain";
  if (p.strict && p.several && kind == Kind::chain)
    return "makes one chain of an element, not several";
  if (kind != Kind::chains) return nullptr;
  if (!p.several && !p.narrow) return "is for elements of several chains, or for few rows";
  // What is not finite is to be so just where it is in one chain.
  if (!p.strict && p.several && !(s.matches_single_chain_overflow && p.few))
    return "may be infinite elsewhere than one chain is";
  return nullptr;
}

// Whether auto may take the stage; `all`: one that it does not consider, too.
bool use(const Stage& s, const Gemm& g, const Device& device, const Contract& contract, bool all) {
  return (all || s.auto_choice) && !breaks(s, contract) && can_implement(s, g, device);
}

// Whether there is code of the stage for the device: can_implement wants it, too.
bool has_code(const Stage& s, int sm) {
  return !sm || (s.min_sm <= sm && (!s.max_sm || sm <= s.max_sm));
}

// Whether a row that could run at all has room: shared memory for a block, and a workspace.
bool has_room(const Stage& s, int row, const Gemm& g, const Device& device, size_t workspace) {
  return fits(s.tiles[static_cast<size_t>(row)], device) &&
         (workspace == kAnyWorkspace ||
          workspace_of(s, g, {.device = device, .row = row}) <= workspace);
}

const TunedProblem* find(const TunedGpu* tuned, const Gemm& g, bool strict) {
  if (!tuned) return nullptr;
  const Asked how(g);
  return tuned->find(g, how.layout(), how.wide(), strict);
}

// The least time of a row that may be taken, or null. A file is believed about times alone: what
// breaks the contract or cannot run is passed over.
const TunedTime* least_of(const TunedProblem* problem, const Gemm& g, const Device& device,
                          bool strict, size_t workspace) {
  if (!problem) return nullptr;
  const Contract contract(g, strict);
  for (const TunedTime& t : problem->times)
    if (!breaks(*t.stage, contract) && can_implement(*t.stage, g, device) &&
        has_room(*t.stage, t.row, g, device, workspace))
      return &t;
  return nullptr;
}

// Whether the user has measured the row on this problem: then auto considers it, whatever it is.
bool has_time(const TunedProblem* problem, const Stage& s, int row) {
  return problem && std::any_of(problem->times.begin(), problem->times.end(),
                                [&](const auto& t) { return t.stage == &s && t.row == row; });
}

// What came next after a candidate: of those that time decides among, the one of the least.
std::string next_to(const Candidate& c, const std::vector<Candidate>& all) {
  const Candidate* next = nullptr;
  for (const Candidate& other : all)
    if (&other != &c && other.why_not.empty() &&
        (c.basis != Basis::tuned || other.basis == Basis::tuned) &&
        (!next || other.microseconds <= next->microseconds))
      next = &other;
  if (!next || c.microseconds <= 0 || !std::isfinite(next->microseconds)) return "";
  char text[160];
  std::snprintf(text, sizeof text, "; next %s %dx%dx%d, %.1f%% more", next->stage->name.c_str(),
                next->tile().BM, next->tile().BN, next->tile().BK,
                100 * (next->microseconds / c.microseconds - 1));
  return text;
}

// Gives the candidates their tuned times, and says of the chosen one what it rests on.
std::string take_times(const TunedProblem& problem, const std::string& gpu, const TunedTime& chosen,
                       std::vector<Candidate>& all) {
  const Candidate* its = nullptr;
  for (const TunedTime& t : problem.times)
    for (Candidate& c : all) {
      if (c.stage != t.stage || c.row != t.row || !c.why_not.empty()) continue;
      c.microseconds = t.us, c.basis = Basis::tuned;
      if (&t == &chosen) its = &c;
    }
  char head[64];
  std::snprintf(head, sizeof head, "tuned %.1f us on ", chosen.us);
  std::string text = head + gpu;
  if (!problem.date.empty()) text += ", " + problem.date;
  return its ? text + next_to(*its, all) : text;
}

}  // namespace

const Table& measured_table() {
#include XGEMM_SELECT_TABLE
  return table;
}

Selector::Selector(std::span<const Stage> all, const Table& table) : all_(all), table_(table) {
  for (const Stage& s : all) {
    first_.push_back(rows_.size());
    for (size_t i = 0; i < s.tiles.size(); ++i) {
      const auto known = std::find_if(table.rows.begin(), table.rows.end(), [&](const TableRow& r) {
        return describes(r, s, s.tiles[i]);
      });
      const Spread spread(s, s.tiles[i]);
      rows_.push_back({&s, static_cast<int>(i), nullptr, spread, {}, s.tiles[i].smem()});
      if (known == table.rows.end()) continue;
      rows_.back().known = &*known;
      rows_.back().bound = Bound(known->costs, spread);
    }
  }
  first_.push_back(rows_.size());
  candidates_.resize(Contract::kAll);
  for (size_t i = 0; i < rows_.size(); ++i) {
    all_rows_.push_back(i);
    const Stage& s = *rows_[i].stage;
    for (size_t number = 0; number < Contract::kAll; ++number)
      if (s.auto_choice && !breaks(s, Contract(number))) candidates_[number].push_back(i);
  }
}

bool Selector::turned(const Row& r, const Gemm& g) {
  return r.stage->turns && r.stage->turns(g, tile_of(r));
}

const Tile& Selector::tile_of(const Row& r) { return r.stage->tiles[static_cast<size_t>(r.row)]; }

size_t Selector::number_of(const Pick& p) const {
  return first_[static_cast<size_t>(p.stage - all_.data())] + static_cast<size_t>(p.row);
}

// The legal row of least time of [first, last), or `last`; see(row, microseconds, basis) for all
// legal ones. `use` says which stages are let through, `workspace` how much of it a row may need.
// Ties go to what comes last, of the ladder the higher rung, so that without measurements the
// ladder itself is the order.
template <class Use, class See>
size_t Selector::least(size_t first, size_t last, const Gemm& g, const Device& device,
                       size_t workspace, Use use, See see) const {
  const Asked asked(g);
  const int room = smem_of_block(device.sm);
  const auto fits = [&](const Row& r) {
    return (!device.sm || r.smem <= room) &&
           (workspace == kAnyWorkspace ||
            workspace_of(*r.stage, g, {.device = device, .row = r.row}) <= workspace);
  };
  size_t best = last;
  double least = INFINITY;
  const auto offer = [&](size_t i, double us, Basis basis) {
    see(i, us, basis);
    if (best == last || us < least || (us == least && i > best)) best = i, least = us;
  };
  bool taken = false, unknown = false;
  for (size_t i = first; i < last; ++i) {
    const Row& r = rows_[i];
    if (i == first || r.row == 0) taken = use(*r.stage);
    if (!taken || !fits(r)) continue;
    if (!r.known) {
      unknown = true;
      continue;
    }
    offer(i, time_of(r.known->costs, asked, r.spread, turned(r, g), device.sm_count),
          Basis::estimated);
  }
  // A new row is set beside the best known one: their rates' ratio, at that one's time. Rates are
  // of 4096^3: of few rows or a short K they say nothing.
  const bool square = std::min({g.m, g.n, g.k}) >= kLeastForRate;
  if (!unknown || (best != last && !square)) return best;
  const double its = best == last ? 0 : by_rate(tile_of(rows_[best]), asked, device.sm_count);
  const double scale = its > 0 && std::isfinite(its) ? least / its : 1;
  for (size_t i = first; i < last; ++i) {
    const Row& r = rows_[i];
    if (i == first || r.row == 0) taken = use(*r.stage);
    if (!r.known && taken && fits(r))
      offer(i, scale * by_rate(tile_of(r), asked, device.sm_count), Basis::rate);
  }
  return best;
}

// The same row sooner, of those that are numbered in `some`, in rising order, or rows_.size():
// nobody is to see the others, and of most of them a bound says enough. `early` is asked of all
// rows' stages and lets through what `use` does; `use`, and how much workspace a row needs, only
// where a row would be the best.
template <class Early, class Use>
size_t Selector::quickest(std::span<const size_t> some, const Gemm& g, const Device& device,
                          size_t workspace, Early early, Use use) const {
  constexpr size_t kMost = 128;
  if (some.empty()) return rows_.size();
  const auto one_by_one = [&] {
    const size_t last = some.back() + 1;
    const size_t best =
        least(some.front(), last, g, device, workspace, use, [](size_t, double, Basis) {});
    return best < last ? best : rows_.size();
  };
  if (some.size() > kMost) return one_by_one();
  const Asked asked(g);
  const int room = device.sm ? smem_of_block(device.sm) : INT_MAX;
  const double per_sm = 1. / device.sm_count;
  size_t rows[kMost], count = 0;
  double bounds[kMost], least_bound = INFINITY;
  for (const size_t i : some) {
    const Row& r = rows_[i];
    if (r.smem > room || !early(*r.stage)) continue;
    // Of those that the table does not know there is no bound.
    if (!r.known) return one_by_one();
    const double bound = r.bound.of(asked, r.spread, turned(r, g), device.sm_count, per_sm);
    rows[count] = i, bounds[count] = bound;
    least_bound = std::min(bound, least_bound);
    ++count;
  }
  // The row of the least bound comes first, so that most others need not be looked at.
  size_t first = 0;
  while (first + 1 < count && bounds[first] != least_bound) ++first;
  if (count) std::swap(rows[0], rows[first]), std::swap(bounds[0], bounds[first]);
  size_t best = rows_.size();
  double least = INFINITY;
  for (size_t at = 0; at < count; ++at) {
    if (bounds[at] > least) continue;
    const size_t i = rows[at];
    const Row& r = rows_[i];
    const double us = time_of(r.known->costs, asked, r.spread, turned(r, g), device.sm_count);
    if (best < rows_.size() && !(us < least || (us == least && i > best))) continue;
    if (use(*r.stage) && (workspace == kAnyWorkspace ||
                          workspace_of(*r.stage, g, {.device = device, .row = r.row}) <= workspace))
      best = i, least = us;
  }
  return best;
}

Pick Selector::pick(const Gemm& g, const Device& device, bool strict, size_t workspace,
                    const TunedGpu* tuned) const {
  if (const TunedTime* t = least_of(find(tuned, g, strict), g, device, strict, workspace))
    return {t->stage, t->row};
  const Contract contract(g, strict);
  size_t best = quickest(
      candidates_[contract.number()], g, device, workspace,
      [sm = device.sm](const Stage& s) { return has_code(s, sm); },
      [&](const Stage& s) { return use(s, g, device, contract, false); });
  if (best == rows_.size())
    best = least(
        0, rows_.size(), g, device, workspace,
        [&](const Stage& s) { return use(s, g, device, contract, true); },
        [](size_t, double, Basis) {});
  return best < rows_.size() ? Pick{rows_[best].stage, rows_[best].row} : Pick{};
}

int Selector::row(const Stage& stage, const Gemm& g, const Device& device, bool strict,
                  const TunedGpu* tuned) const {
  if (stage.tiles.size() < 2) return 0;
  if (const TunedProblem* const problem = find(tuned, g, strict))
    for (const TunedTime& t : problem->times)
      if (t.stage == &stage && has_room(stage, t.row, g, device, kAnyWorkspace)) return t.row;
  const auto number = static_cast<size_t>(&stage - all_.data());
  const size_t first = first_[number], count = first_[number + 1] - first;
  const auto any = [](const Stage&) { return true; };
  const size_t best =
      quickest(std::span(all_rows_).subspan(first, count), g, device, kAnyWorkspace, any, any);
  return best < rows_.size() ? rows_[best].row : 0;  // none fits: the stage is refused there
}

double Selector::estimate(const Pick& pick, const Gemm& g, const Device& device) const {
  const Row& r = rows_[number_of(pick)];
  const Asked asked(g);
  return r.known ? time_of(r.known->costs, asked, r.spread, turned(r, g), device.sm_count)
                 : by_rate(tile_of(r), asked, device.sm_count);
}

Choice Selector::weigh(const Gemm& g, const Device& device, bool strict, size_t workspace,
                       const TunedGpu* tuned) const {
  Choice choice;
  const Contract contract(g, strict);
  const Pick pick = this->pick(g, device, strict, workspace, tuned);
  const TunedProblem* const problem = find(tuned, g, strict);
  const TunedTime* const its_time = least_of(problem, g, device, strict, workspace);
  // Where nothing for auto can run, all others are.
  const bool some = its_time || !pick.stage || pick.stage->auto_choice;
  for (const Stage& s : all_) {
    const std::string why = why_not(s, g, device);
    const char* const broken = breaks(s, contract);
    const int by_name = row(s, g, device, strict, tuned);
    for (size_t i = 0; i < s.tiles.size(); ++i) {
      std::string why_not_row = why;
      const size_t needed = workspace_of(s, g, {.device = device, .row = static_cast<int>(i)});
      if (why.empty() && !fits(s.tiles[i], device))
        why_not_row = "needs " + std::to_string(s.tiles[i].smem() / 1024) +
                      " KiB of shared memory for a block, this device has " +
                      std::to_string(smem_of_block(device.sm) / 1024);
      if (why_not_row.empty() && needed > workspace)
        why_not_row = "needs " + std::to_string(needed) +
                      " bytes of workspace, there is memory for " + std::to_string(workspace);
      const bool able = why_not_row.empty();
      if (broken) why_not_row = broken;
      else if (some && !s.auto_choice && !has_time(problem, s, static_cast<int>(i)))
        why_not_row = kNotForAuto;
      choice.candidates.push_back({.stage = &s,
                                   .row = static_cast<int>(i),
                                   .why_not = why_not_row,
                                   .able = able,
                                   .workspace = needed,
                                   .by_name = by_name == static_cast<int>(i)});
    }
  }
  least(
      0, rows_.size(), g, device, workspace,
      [&](const Stage& s) { return use(s, g, device, contract, !some); },
      [&](size_t i, double us, Basis basis) {
        choice.candidates[i].microseconds = us, choice.candidates[i].basis = basis;
      });
  for (Candidate& c : choice.candidates) {
    if (!c.able) continue;
    c.blocks = c.stage->split_k ? blocks_of(c.tile(), rows_first(g)) * split_k_slices(g)
                                : blocks_of(c.tile(), g);
    c.waves = static_cast<double>(c.blocks) /
              (static_cast<double>(device.sm_count) * c.tile().min_blocks);
  }
  choice.pick = pick;
  if (its_time) choice.why = take_times(*problem, tuned->name, *its_time, choice.candidates);
  else if (pick.stage) choice.why = why(choice.candidates, number_of(pick));
  return choice;
}

// One sentence on the chosen candidate: what its time rests on, and what came next.
std::string Selector::why(const std::vector<Candidate>& all, size_t chosen) const {
  const Candidate& c = all[chosen];
  char text[320];
  if (c.basis == Basis::estimated) {
    std::snprintf(text, sizeof text, "estimated %.1f us from measurements on %s, %s",
                  c.microseconds, table_.gpu, table_.date);
  } else {
    std::snprintf(text, sizeof text,
                  "least estimated time: %lld blocks of %dx%d in %.0f waves, %.1f us",
                  static_cast<long long>(c.blocks), c.tile().BM, c.tile().BN, std::ceil(c.waves),
                  c.microseconds);
  }
  return text + next_to(c, all);
}

}  // namespace xgemm
