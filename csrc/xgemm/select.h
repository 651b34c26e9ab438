// Problem and device -> the stage that `auto` runs and the row of its tile table. Pure functions of
// their arguments: no GPU, no global state.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "xgemm/stage.h"

namespace xgemm {

// What runs: a stage (null: none can), and which of its tiles.
struct Pick {
  const Stage* stage = nullptr;
  int row = 0;
};

// What one row of one stage would cost. `microseconds` is an estimate good enough to rank rows, not
// a promise.
struct Candidate {
  const Stage* stage = nullptr;
  int row = 0;
  std::string why_not;  // empty when legal
  int64_t blocks = 0;
  double waves = 0;  // blocks / (SMs * resident blocks), before rounding up
  double microseconds = 0;

  const Tile& tile() const { return stage->tiles[static_cast<size_t>(row)]; }
};

struct Choice {
  Pick pick;
  std::string why;
  std::vector<Candidate> candidates;  // every row of every stage, by rung and row
};

// Chooses among `all` (stages(flavour), or a table of a test), which must outlive it. `strict`
// leaves only the stages that keep the bits of the chain.
class Selector {
 public:
  explicit Selector(std::span<const Stage> all) : all_(all) {}

  Pick pick(const Gemm& g, const Device& device, bool strict) const;
  // The row for a stage that is called by its name, one of `all`.
  int row(const Stage& stage, const Gemm& g, const Device& device) const;
  // The same choice as pick's, with all that it was made from.
  Choice weigh(const Gemm& g, const Device& device, bool strict) const;

 private:
  std::span<const Stage> all_;
};

}  // namespace xgemm
