#include "xgemm/select.h"

#include <cmath>
#include <cstdio>
#include <stdexcept>

#include "xgemm/schedule.h"

namespace xgemm {
namespace {

constexpr int kMeasuredSms = 132;   // Tile::rate was measured with so many

// An SM that holds a part x of the blocks that fit runs at this share of its full rate: a block
// alone has the pipes to itself. Fits what was measured at 1024^3 (H200, 2026-11-21): vec4_128x128,
// 1 of 2 blocks, 0.74; block_tile_1d, 2 of 3, 0.90.
double share_of_rate(double x) { return std::pow(x, 0.4); }

// The busiest SM's time: whole rounds of its resident blocks, then a rest at a lower rate.
void estimate(Candidate& c, const Gemm& g, const Device& device) {
  const Tile& t = c.stage->tiles.front();
  const int resident = t.min_blocks;
  c.blocks = tile_count(g, t.BM, t.BN) * g.batch;
  c.waves = static_cast<double>(c.blocks) / (static_cast<double>(device.sm_count) * resident);
  const int64_t on_one_sm = ceil_div(c.blocks, device.sm_count);
  const int64_t rounds = on_one_sm / resident, rest = on_one_sm % resident;
  const double flops = 2.0 * t.BM * t.BN * static_cast<double>(g.k);  // of a block
  const double rate = t.rate * 1e6 / kMeasuredSms;  // of an SM, a microsecond
  const double round_time = static_cast<double>(resident) * flops / rate;
  const double part = static_cast<double>(rest) / resident;
  const double rest_time = rest ? round_time * part / share_of_rate(part) : 0.0;
  c.microseconds = rate > 0 ? static_cast<double>(rounds) * round_time + rest_time : INFINITY;
}

}  // namespace

Choice select(const std::vector<Stage>& all, const Gemm& g, const Device& device) {
  Choice choice;
  const Candidate* best = nullptr;
  choice.candidates.reserve(all.size());
  for (const Stage& s : all) {
    Candidate c;
    c.stage = &s;
    try {
      require(s, g, device);
      estimate(c, g, device);
    } catch (const std::invalid_argument& e) {
      c.why_not = e.what();
    }
    choice.candidates.push_back(c);
    if (!c.why_not.empty()) continue;
    // Ties go to the higher rung, so that without measurements the ladder itself is the order.
    if (!best || c.microseconds <= best->microseconds) best = &choice.candidates.back();
  }
  if (!best) return choice;
  choice.stage = best->stage;
  char text[160];
  std::snprintf(text, sizeof text,
                "least estimated time: %lld blocks of %dx%d in %.0f waves, %.1f us",
                static_cast<long long>(best->blocks), best->stage->tiles.front().BM,
                best->stage->tiles.front().BN, std::ceil(best->waves), best->microseconds);
  choice.why = text;
  return choice;
}

}  // namespace xgemm
