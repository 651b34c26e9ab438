#include "xgemm/select.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <stdexcept>

#include "xgemm/chains.h"
#include "xgemm/limits.h"
#include "xgemm/schedule.h"

#ifndef XGEMM_SELECT_TABLE
#define XGEMM_SELECT_TABLE "xgemm/select_table.inc"
#endif

namespace xgemm {
namespace {

constexpr int kRateSms = 132;   // Tile::rate was measured with so many

// An SM that holds a part x of the blocks that fit runs at x^kAlone of its full rate: a block alone
// has the pipes to itself. Fits what was measured at 1024^3 (H200, 2026-11-21): vec4_128x128, 1 of
// 2 blocks, 0.74; block_tile_1d, 2 of 3, 0.90.
constexpr float kAlone = 0.4f;

// An operand that can be moved as vectors in one problem and not in the other: so many octaves.
constexpr float kOtherWidth = 2.f;

// Octaves squared: nearer than this makes no difference to a measured problem's weight.
constexpr float kSame = 1e-4f;

int64_t blocks_of(const Tile& t, const Gemm& g) { return tile_count(g, t.BM, t.BN) * g.batch; }

// Microseconds of the busiest SM: whole rounds of its resident blocks, then those left over at a
// lower rate; `even` takes that towards an equal share for all SMs. `per_sm` is in GFLOP/s,
// `rest(count)` the time of so many blocks as part of a round's. In doubles, which divide quicker
// than 64-bit integers and count these as exactly.
template <class Rest>
double time_of(const Tile& t, const Gemm& g, int sm_count, double prologue, double even,
               double per_sm, Rest rest) {
  if (per_sm <= 0) return INFINITY;
  const auto m = static_cast<double>(g.m), n = static_cast<double>(g.n);
  const double blocks = std::ceil(m / t.BM) * std::ceil(n / t.BN) * static_cast<double>(g.batch);
  const double on_one_sm = std::ceil(blocks / sm_count);
  const double rounds = std::floor(on_one_sm / t.min_blocks);
  const int left = static_cast<int>(on_one_sm - rounds * t.min_blocks);
  const double block = 2.0 * t.BM * t.BN * (static_cast<double>(g.k) + prologue);
  const double by_blocks = rounds + rest(left), shared = blocks / (sm_count * t.min_blocks);
  return t.min_blocks * block / (per_sm * 1e3) * (by_blocks + even * (shared - by_blocks));
}

// Elements of both operands, in millions; what all matrices of a batch share counts once.
double millions_of(const Gemm& g) {
  const auto matrices = [&](int64_t stride) { return stride ? static_cast<double>(g.batch) : 1.; };
  const auto m = static_cast<double>(g.m), n = static_cast<double>(g.n);
  return (m * matrices(g.a.bs) + n * matrices(g.b.bs)) * static_cast<double>(g.k) * 1e-6;
}

float rest_of(int left, int resident, float alone) {
  return left ? std::pow(static_cast<float>(left) / static_cast<float>(resident), 1.f - alone) : 0;
}

// By Tile::rate alone.
double plain(const Tile& t, const Gemm& g, const Device& device) {
  return time_of(t, g, device.sm_count, 0, 0, t.rate * 1e3 / kRateSms,
                 [&](int left) { return rest_of(left, t.min_blocks, kAlone); });
}

bool describes(const TableRow& r, const Stage& s, const Tile& t) {
  return s.name == r.stage && t.BM == r.BM && t.BN == r.BN && t.BK == r.BK && t.WM == r.WM &&
         t.WN == r.WN && t.TM == r.TM && t.TN == r.TN && t.buffers == r.buffers &&
         t.min_blocks == r.min_blocks && t.cluster == r.cluster;
}

// What makes an element of D: rows of one kind are measured beside each other.
enum class Kind { parts, chain, chains };
Kind kind_of(const Stage& s) {
  return !s.strict ? Kind::parts : s.splits ? Kind::chains : Kind::chain;
}

// What the stage would break of the promise, or null.
const char* breaks(const Stage& s, const Gemm& g, bool strict) {
  const bool several = chain_count(g) > 1;
  const Kind kind = kind_of(s);
  if (strict && kind == Kind::parts) return "does not keep the bits of the chain";
  if (strict && several && kind == Kind::chain) return "makes one chain of an element, not several";
  if (kind != Kind::chains) return nullptr;
  if (!several && !is_narrow(g.m, g.n)) return "is for elements of several chains, or for few rows";
  // What is not finite is to be so just where it is in one chain.
  if (!strict && several && !(s.splits_as_one && is_few(g.m, g.n)))
    return "may be infinite elsewhere than one chain is";
  return nullptr;
}

// As TablePoint has them.
struct Lay {
  int layout, wide;
};
Lay lay(const Gemm& g) {
  const View<const float> a = g.a, b = g.b.transposed();
  const int ka = along_k(a, g.m, g.k), kb = along_k(b, g.n, g.k);
  const int wa = ka ? a.wide() : a.transposed().wide(), wb = kb ? b.wide() : b.transposed().wide();
  return {2 * ka + kb, 2 * wa + wb};
}

// Whether a row that could run at all has room: shared memory for a block, and a workspace.
bool has_room(const Stage& s, int row, const Gemm& g, const Device& device, size_t workspace) {
  return fits(s.tiles[static_cast<size_t>(row)], device) &&
         (workspace == kAnyWorkspace ||
          workspace_of(s, g, {.device = device, .row = row}) <= workspace);
}

const TunedProblem* find(const TunedGpu* tuned, const Gemm& g, bool strict) {
  if (!tuned) return nullptr;
  const Lay how = lay(g);
  return tuned->find(g, how.layout, how.wide, strict);
}

// The least time of a row that may be taken, or null. A file is believed about times alone: what
// breaks the promise or cannot run is passed over.
const TunedTime* least_of(const TunedProblem* problem, const Gemm& g, const Device& device,
                          bool strict, size_t workspace) {
  if (!problem) return nullptr;
  for (const TunedTime& t : problem->times)
    if (!breaks(*t.stage, g, strict) && takes(*t.stage, g, device) &&
        has_room(*t.stage, t.row, g, device, workspace))
      return &t;
  return nullptr;
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
  if (table.rows.size() > kTableRows) throw std::logic_error("xgemm: more rows than kTableRows");
  for (const Stage& s : all) {
    first_.push_back(rows_.size());
    for (size_t i = 0; i < s.tiles.size(); ++i) {
      const Tile& t = s.tiles[i];
      const auto known = std::find_if(table.rows.begin(), table.rows.end(),
                                      [&](const TableRow& r) { return describes(r, s, t); });
      Row r{&s, static_cast<int>(i), known == table.rows.end() ? nullptr : &*known, {}};
      for (int left = 0; r.known && left < t.min_blocks; ++left)
        r.rest.push_back(rest_of(left, t.min_blocks, r.known->alone));
      rows_.push_back(std::move(r));
    }
  }
  first_.push_back(rows_.size());
  if (rows_.size() > kTableRows)
    throw std::logic_error("xgemm: more tiles than kTableRows in csrc/xgemm/select_table.h");

  for (int layout = 0; layout < kLayouts; ++layout) {
    for (const TablePoint& p : table.points)
      if (p.layout == layout) add(p);
    by_layout_[static_cast<size_t>(layout) + 1] = measured_.size();
  }
}

// A row that the point lacks was expected to take `skipped` times the least; longer, where its
// model times the best row's correction says so: the best of its kind.
void Selector::add(const TablePoint& p) {
  Gemm g;
  g.m = p.m, g.n = p.n, g.k = p.k;
  Measured m{place(g), &p, {}};
  m.place.layout = p.layout, m.place.wide = p.wide;
  std::array<double, kTableRows> by_model{};
  struct {
    double us = INFINITY, excess = 0;
  } least[3];  // by kind
  for (size_t i = 0; i < rows_.size(); ++i) {
    if (!rows_[i].known) continue;
    by_model[i] = model(rows_[i], g, {table_.sm, table_.sm_count}, p.layout);
    const double us = p.us[static_cast<size_t>(rows_[i].known - table_.rows.data())];
    if (us <= 0 || !std::isfinite(by_model[i])) continue;
    m.rows.set(i);
    auto& its = least[static_cast<int>(kind_of(*rows_[i].stage))];
    if (us < its.us) its = {us, std::log2(us / by_model[i])};
  }
  for (size_t i = 0; i < rows_.size(); ++i) {
    double excess = 0;
    const auto& its = least[static_cast<int>(kind_of(*rows_[i].stage))];
    if (m.rows[i])
      excess =
          std::log2(p.us[static_cast<size_t>(rows_[i].known - table_.rows.data())] / by_model[i]);
    else if (rows_[i].known && std::isfinite(its.us) && std::isfinite(by_model[i]))
      excess = std::max(its.excess, std::log2(table_.skipped * its.us / by_model[i]));
    excess_.push_back(static_cast<float>(excess));
  }
  measured_.push_back(m);
}

const Tile& Selector::tile_of(const Row& r) { return r.stage->tiles[static_cast<size_t>(r.row)]; }

Selector::Place Selector::place(const Gemm& g) {
  const auto log = [](int64_t x) { return std::log2(static_cast<float>(std::max<int64_t>(x, 1))); };
  const Lay how = lay(g);
  const float batch = g.batch > 1 ? log(g.batch) / 2 : 0.f;
  return {log(g.m) + batch, log(g.n) + batch, log(g.k), how.layout, how.wide};
}

double Selector::model(const Row& r, const Gemm& g, const Device& device, int layout) const {
  const TableRow& x = *r.known;
  return x.fixed + x.memory * millions_of(g) +
         time_of(tile_of(r), g, device.sm_count, x.prologue, x.even,
                 x.per_sm[static_cast<size_t>(layout)],
                 [&](int left) { return r.rest[static_cast<size_t>(left)]; });
}

Selector::Near Selector::near(const Place& p) const {
  Near near;
  const auto layout = static_cast<size_t>(p.layout);
  for (size_t i = by_layout_[layout]; i < by_layout_[layout + 1]; ++i) {
    const Place& q = measured_[i].place;
    const float m = p.m - q.m, n = p.n - q.n, k = p.k - q.k;
    const auto others = static_cast<float>(std::popcount(static_cast<unsigned>(p.wide ^ q.wide)));
    const float distance = m * m + n * n + k * k + others * kOtherWidth * kOtherWidth;
    size_t slot = near.count;
    if (slot == Near::kMost) {
      if (distance >= near.distance[slot - 1]) continue;
      --slot;
    } else {
      ++near.count;
    }
    for (; slot > 0 && near.distance[slot - 1] > distance; --slot) {
      near.distance[slot] = near.distance[slot - 1];
      near.at[slot] = near.at[slot - 1];
    }
    near.distance[slot] = distance;
    near.at[slot] = i;
  }
  if (near.count && near.distance[0] == 0) near.count = 1;
  for (size_t i = 0; i < near.count; ++i) {
    const float x = 1.f / (near.distance[i] + kSame);
    near.weight[i] = x * x;
    near.rows |= measured_[near.at[i]].rows;
  }
  return near;
}

double Selector::correction(const Near& near, size_t row) const {
  float sum = 0, weights = near.count ? 0.f : 1.f;
  for (size_t i = 0; i < near.count; ++i) {
    sum += near.weight[i] * excess_[near.at[i] * rows_.size() + row];
    weights += near.weight[i];
  }
  return std::exp2(sum / weights);
}

bool Selector::is(const Gemm& g, const Device& device, const Near& near) const {
  if (!near.count || near.distance[0] > 0 || g.batch != 1) return false;
  const TablePoint& p = *measured_[near.at[0]].point;
  return p.m == g.m && p.n == g.n && p.k == g.k && device.sm == table_.sm &&
         device.sm_count == table_.sm_count;
}

// Fills `out` for rows [first, last); `use` says which stages are let through, `workspace` how much
// of it a row may need.
template <class Use>
Selector::Near Selector::estimate(size_t first, size_t last, const Gemm& g, const Device& device,
                                  size_t workspace, Use use, Estimates& out) const {
  const Place at = place(g);
  const Near near = this->near(at);
  const Basis by_near = is(g, device, near) ? Basis::measured : Basis::estimated;
  size_t best = last;
  bool all_known = true, taken = false;
  for (size_t i = first; i < last; ++i) {
    const Row& r = rows_[i];
    Estimate& e = out[i];
    if (i == first || r.stage != rows_[i - 1].stage) taken = use(*r.stage);
    e.legal = taken && has_room(*r.stage, r.row, g, device, workspace);
    e.microseconds = INFINITY;
    e.basis = !r.known ? Basis::rate : near.rows[i] ? by_near : Basis::slow;
    all_known = all_known && r.known;
    if (!e.legal || !r.known) continue;
    e.microseconds = model(r, g, device, at.layout) * correction(near, i);
    if (e.microseconds < (best == last ? INFINITY : out[best].microseconds)) best = i;
  }
  if (all_known) return near;
  const double by_rate = best == last ? 0 : plain(tile_of(rows_[best]), g, device);
  // A new row is set beside the best known one: their rates' ratio, at that one's time.
  const double scale = by_rate > 0 && std::isfinite(by_rate) ? out[best].microseconds / by_rate : 1;
  for (size_t i = first; i < last; ++i)
    if (out[i].legal && !rows_[i].known)
      out[i].microseconds = scale * plain(tile_of(rows_[i]), g, device);
  return near;
}

// The legal row of least time, or `last`. Ties go to what comes last, the higher rung, so that
// without measurements the ladder itself is the order.
size_t Selector::least(size_t first, size_t last, const Estimates& of) const {
  size_t best = last;
  for (size_t i = first; i < last; ++i)
    if (of[i].legal && (best == last || of[i].microseconds <= of[best].microseconds)) best = i;
  return best;
}

Pick Selector::pick(const Gemm& g, const Device& device, bool strict, size_t workspace,
                    const TunedGpu* tuned) const {
  if (const TunedTime* t = least_of(find(tuned, g, strict), g, device, strict, workspace))
    return {t->stage, t->row};
  Estimates of;
  estimate(
      0, rows_.size(), g, device, workspace,
      [&](const Stage& s) { return !breaks(s, g, strict) && takes(s, g, device); }, of);
  const size_t best = least(0, rows_.size(), of);
  return best < rows_.size() ? Pick{rows_[best].stage, rows_[best].row} : Pick{};
}

int Selector::row(const Stage& stage, const Gemm& g, const Device& device, bool strict,
                  const TunedGpu* tuned) const {
  if (stage.tiles.size() < 2) return 0;
  if (const TunedProblem* const problem = find(tuned, g, strict))
    for (const TunedTime& t : problem->times)
      if (t.stage == &stage && has_room(stage, t.row, g, device, kAnyWorkspace)) return t.row;
  const auto number = static_cast<size_t>(&stage - all_.data());
  const size_t first = first_[number], last = first_[number + 1];
  Estimates of;
  estimate(first, last, g, device, kAnyWorkspace, [](const Stage&) { return true; }, of);
  const size_t best = least(first, last, of);
  return best < last ? rows_[best].row : 0;  // none fits: the stage is refused there
}

Choice Selector::weigh(const Gemm& g, const Device& device, bool strict, size_t workspace,
                       const TunedGpu* tuned) const {
  Choice choice;
  for (const Stage& s : all_) {
    const std::string why_not = refusal(s, g, device);
    const char* const broken = breaks(s, g, strict);
    const int by_name = row(s, g, device, strict, tuned);
    for (size_t i = 0; i < s.tiles.size(); ++i) {
      std::string why_not_row = why_not;
      const size_t needed = workspace_of(s, g, {.device = device, .row = static_cast<int>(i)});
      if (why_not.empty() && !fits(s.tiles[i], device))
        why_not_row = "needs " + std::to_string(s.tiles[i].smem() / 1024) +
                      " KiB of shared memory for a block, this device has " +
                      std::to_string(smem_of_block(device.sm) / 1024);
      if (why_not_row.empty() && needed > workspace)
        why_not_row = "needs " + std::to_string(needed) +
                      " bytes of workspace, there is memory for " + std::to_string(workspace);
      const bool able = why_not_row.empty();
      if (broken) why_not_row = broken;
      choice.candidates.push_back({.stage = &s,
                                   .row = static_cast<int>(i),
                                   .why_not = why_not_row,
                                   .able = able,
                                   .workspace = needed,
                                   .by_name = by_name == static_cast<int>(i)});
    }
  }
  Estimates of;
  const auto use = [&](const Stage& s) { return !breaks(s, g, strict) && takes(s, g, device); };
  const Near near = estimate(0, rows_.size(), g, device, workspace, use, of);
  for (size_t i = 0; i < rows_.size(); ++i) {
    Candidate& c = choice.candidates[i];
    if (!c.able) continue;
    c.blocks = c.stage->splits ? blocks_of(c.tile(), rows_first(g)) * chain_count(g)
                               : blocks_of(c.tile(), g);
    c.waves = static_cast<double>(c.blocks) /
              (static_cast<double>(device.sm_count) * c.tile().min_blocks);
    if (!c.why_not.empty()) continue;
    c.microseconds = of[i].microseconds;
    c.basis = of[i].basis;
  }
  const TunedProblem* const problem = find(tuned, g, strict);
  if (const TunedTime* t = least_of(problem, g, device, strict, workspace)) {
    choice.pick = {t->stage, t->row};
    choice.why = take_times(*problem, tuned->name, *t, choice.candidates);
    return choice;
  }
  const size_t best = least(0, rows_.size(), of);
  if (best == rows_.size()) return choice;
  choice.pick = {rows_[best].stage, rows_[best].row};
  choice.why = why(choice.candidates, best, near);
  return choice;
}

// One sentence on the chosen candidate: what its time rests on, and what came next.
std::string Selector::why(const std::vector<Candidate>& all, size_t chosen,
                          const Near& near) const {
  const Candidate& c = all[chosen];
  char text[320];
  if (c.basis == Basis::measured) {
    std::snprintf(text, sizeof text, "measured %.1f us on %s, %s", c.microseconds, table_.gpu,
                  table_.date);
  } else if (c.basis == Basis::estimated) {
    const TablePoint& p = *measured_[near.at[0]].point;
    std::snprintf(text, sizeof text,
                  "estimated %.1f us from measurements on %s, %s, the nearest %lldx%lldx%lld %s",
                  c.microseconds, table_.gpu, table_.date, static_cast<long long>(p.m),
                  static_cast<long long>(p.n), static_cast<long long>(p.k), kLayoutWords[p.layout]);
  } else {
    std::snprintf(text, sizeof text,
                  "least estimated time: %lld blocks of %dx%d in %.0f waves, %.1f us",
                  static_cast<long long>(c.blocks), c.tile().BM, c.tile().BN, std::ceil(c.waves),
                  c.microseconds);
  }
  return text + next_to(c, all);
}

}  // namespace xgemm
