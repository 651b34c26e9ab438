#include "xgemm/select.h"

#include <cmath>
#include <cstdio>
#include <stdexcept>

#include "xgemm/schedule.h"

namespace xgemm {
namespace {

constexpr int kMeasuredSms = 132;   // Tile::rate was measured with so many

// Time of the partial or whole waves that the grid takes. An SM runs its resident blocks at the
// tile's measured rate together; with fewer of them it is slower than that in proportion, which
// rounding the waves up expresses.
void estimate(Candidate& c, const Gemm& g, const Device& device) {
  const Tile& t = c.stage->tiles.front();
  const int slots = device.sm_count * t.min_blocks;
  c.blocks = tile_count(g, t.BM, t.BN) * g.batch;
  c.waves = static_cast<double>(c.blocks) / slots;
  const double flops = 2.0 * t.BM * t.BN * static_cast<double>(g.k) * slots;
  const double rate = t.rate * 1e6 * device.sm_count / kMeasuredSms;   // flops a microsecond
  c.microseconds = rate > 0 ? std::ceil(c.waves) * flops / rate : INFINITY;
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
