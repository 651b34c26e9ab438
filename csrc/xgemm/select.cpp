#include "xgemm/select.h"

#include <cmath>
#include <cstdio>

#include "xgemm/schedule.h"

namespace xgemm {
namespace {

constexpr int kMeasuredSms = 132;   // Tile::rate was measured with so many

// An SM that holds a part x of the blocks that fit runs at this share of its full rate: a block
// alone has the pipes to itself. Fits what was measured at 1024^3 (H200, 2026-11-21): vec4_128x128,
// 1 of 2 blocks, 0.74; block_tile_1d, 2 of 3, 0.90.
double share_of_rate(double x) { return std::pow(x, 0.4); }

int64_t blocks_of(const Tile& t, const Gemm& g) { return tile_count(g, t.BM, t.BN) * g.batch; }

// Microseconds. The busiest SM's time: whole rounds of its resident blocks, then a rest at a lower
// rate.
double estimate(const Tile& t, const Gemm& g, const Device& device) {
  if (t.rate <= 0) return INFINITY;
  const int resident = t.min_blocks;
  const int64_t on_one_sm = ceil_div(blocks_of(t, g), device.sm_count);
  const int64_t rounds = on_one_sm / resident, rest = on_one_sm % resident;
  const double flops = 2.0 * t.BM * t.BN * static_cast<double>(g.k);  // of a block
  const double rate = t.rate * 1e6 / kMeasuredSms;  // of an SM, a microsecond
  const double round_time = static_cast<double>(resident) * flops / rate;
  const double part = static_cast<double>(rest) / resident;
  const double rest_time = rest ? round_time * part / share_of_rate(part) : 0.0;
  return static_cast<double>(rounds) * round_time + rest_time;
}

// Calls f(row, microseconds) for each row of a stage.
template <class F>
void each_row(const Stage& s, const Gemm& g, const Device& device, F f) {
  for (size_t row = 0; row < s.tiles.size(); ++row)
    f(static_cast<int>(row), estimate(s.tiles[row], g, device));
}

// The least of what it was shown. Ties go to what came last, the higher rung, so that without
// measurements the ladder itself is the order.
struct Least {
  Pick pick;
  double microseconds = INFINITY;
  void see(const Stage& s, int row, double us) {
    if (us > microseconds) return;
    pick = {&s, row};
    microseconds = us;
  }
};

}  // namespace

Pick Selector::pick(const Gemm& g, const Device& device, bool strict) const {
  Least least;
  for (const Stage& s : all_)
    if ((s.strict || !strict) && takes(s, g, device))
      each_row(s, g, device, [&](int row, double us) { least.see(s, row, us); });
  return least.pick;
}

int Selector::row(const Stage& stage, const Gemm& g, const Device& device) const {
  if (stage.tiles.size() < 2) return 0;
  Least least;
  each_row(stage, g, device, [&](int row, double us) { least.see(stage, row, us); });
  return least.pick.row;
}

Choice Selector::weigh(const Gemm& g, const Device& device, bool strict) const {
  Choice choice;
  Least least;
  for (const Stage& s : all_) {
    std::string why_not = refusal(s, g, device);
    if (strict && !s.strict) why_not = "does not keep the bits of the chain";
    each_row(s, g, device, [&](int row, double us) {
      Candidate c{.stage = &s, .row = row, .why_not = why_not};
      if (why_not.empty()) {
        const Tile& t = c.tile();
        c.blocks = blocks_of(t, g);
        c.waves =
            static_cast<double>(c.blocks) / (static_cast<double>(device.sm_count) * t.min_blocks);
        c.microseconds = us;
        least.see(s, row, us);
      }
      choice.candidates.push_back(c);
    });
  }
  choice.pick = least.pick;
  for (const Candidate& c : choice.candidates) {
    if (c.stage != choice.pick.stage || c.row != choice.pick.row) continue;
    char text[160];
    std::snprintf(text, sizeof text,
                  "least estimated time: %lld blocks of %dx%d in %.0f waves, %.1f us",
                  static_cast<long long>(c.blocks), c.tile().BM, c.tile().BN, std::ceil(c.waves),
                  c.microseconds);
    choice.why = text;
  }
  return choice;
}

}  // namespace xgemm
