// Problem and device -> the stage that `auto` runs. A pure function of its arguments: no GPU, no
// global state.
#pragma once

#include <string>
#include <vector>

#include "xgemm/stage.h"

namespace xgemm {

// What one stage would cost. `microseconds` is an estimate good enough to rank stages, not a
// promise.
struct Candidate {
  const Stage* stage = nullptr;
  std::string why_not;       // empty when legal
  int64_t blocks = 0;
  double waves = 0;          // blocks / (SMs * resident blocks), before rounding up
  double microseconds = 0;
};

struct Choice {
  const Stage* stage = nullptr;
  std::string why;
  std::vector<Candidate> candidates;   // every stage, by rung
};

// Chooses among `all` (stages(flavour), or a table of a test).
Choice select(const std::vector<Stage>& all, const Gemm& g, const Device& device);

}  // namespace xgemm
