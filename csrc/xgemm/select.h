// Problem and device -> the stage that `auto` runs and the row of its tile table. Pure functions of
// their arguments: no GPU, no global state.
#pragma once

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "xgemm/select_table.h"
#include "xgemm/stage.h"
#include "xgemm/tuned.h"

namespace xgemm {

// What runs: a stage (null: none can), and which of its tiles.
struct Pick {
  const Stage* stage = nullptr;
  int row = 0;
};

constexpr size_t kAnyWorkspace = SIZE_MAX;

// What the time of a candidate rests on.
enum class Basis {
  tuned,  // this problem on this GPU, by its user
  measured,  // this problem on such a GPU
  estimated,  // the row's model, corrected by the nearest measured problems
  slow,  // as estimated; not measured near here, for it was expected to be slow
  rate,  // Tile::rate: nothing was measured of the row
};

// What one row of one stage would cost.
struct Candidate {
  const Stage* stage = nullptr;
  int row = 0;
  std::string why_not;  // empty when legal
  bool able = true;  // whether it can run, if asked for by its name; legal rows are able
  int64_t blocks = 0;
  double waves = 0;  // blocks / (SMs * resident blocks), before rounding up
  double microseconds = 0;
  Basis basis = Basis::rate;
  size_t workspace = 0;  // in bytes, legal or not
  bool by_name = false;  // whether this row runs when the stage is called by its name

  const Tile& tile() const { return stage->tiles[static_cast<size_t>(row)]; }
};

struct Choice {
  Pick pick;
  std::string why;
  std::vector<Candidate> candidates;  // every row of every stage, by rung and row
};

// Chooses among `all` (stages(flavour), or a list of a test) by what `table` says; both must
// outlive it. `strict` leaves only the stages that keep the bits of the chains, `workspace` only
// the rows that need no more bytes of it.
//
// A row's time is that of its model times a correction: how much longer than by the model the
// nearest measured problems took, nearness being that of log m, log n, log k in the same layout. At
// a measured problem that is the measured time. A row that the table does not know has a model
// from Tile::rate alone, and the correction of the best row that it does know.
//
// `tuned` is what the user has measured on the device, or null. A problem that it has is given the
// row of the least time there, of those that may be taken; the estimates are for all others.
class Selector {
 public:
  explicit Selector(std::span<const Stage> all, const Table& table = measured_table());

  Pick pick(const Gemm& g, const Device& device, bool strict, size_t workspace = kAnyWorkspace,
            const TunedGpu* tuned = nullptr) const;
  // The row for a stage that is called by its name, one of `all`. Of a tuned problem, its least
  // time.
  int row(const Stage& stage, const Gemm& g, const Device& device, bool strict = false,
          const TunedGpu* tuned = nullptr) const;
  // The same choice as pick's, with all that it was made from.
  Choice weigh(const Gemm& g, const Device& device, bool strict, size_t workspace = kAnyWorkspace,
               const TunedGpu* tuned = nullptr) const;

 private:
  struct Row {
    const Stage* stage;
    int row;
    const TableRow* known;  // null where the table does not know it
    std::vector<float> rest;  // by number of blocks left over: their time, of a round's
  };
  // A problem as the choice sees it: sizes as log2, the batch shared out between m and n.
  struct Place {
    float m, n, k;
    int layout, wide;
  };
  using Rows = std::bitset<kTableRows>;
  struct Measured {
    Place place;
    const TablePoint* point;
    Rows rows;  // i: rows_[i] was measured
  };
  struct Near {
    static constexpr size_t kMost = 4;
    std::array<size_t, kMost> at{};  // into measured_
    std::array<float, kMost> distance{}, weight{};
    size_t count = 0;
    Rows rows;  // measured at one of them
  };
  struct Estimate {
    double microseconds;
    Basis basis;
    bool legal;
  };
  using Estimates = std::array<Estimate, kTableRows>;

  void add(const TablePoint& p);
  static const Tile& tile_of(const Row& r);
  static Place place(const Gemm& g);
  Near near(const Place& p) const;
  bool is(const Gemm& g, const Device& device, const Near& near) const;
  double model(const Row& r, const Gemm& g, const Device& device, int layout) const;
  double correction(const Near& near, size_t row) const;
  template <class Use>
  Near estimate(size_t first, size_t last, const Gemm& g, const Device& device, size_t workspace,
                Use use, Estimates& out) const;
  size_t least(size_t first, size_t last, const Estimates& of) const;
  std::string why(const std::vector<Candidate>& all, size_t chosen, const Near& near) const;

  std::span<const Stage> all_;
  const Table& table_;
  std::vector<Row> rows_;  // of all stages, by rung and row
  std::vector<size_t> first_;  // of each stage, into rows_
  std::vector<Measured> measured_;  // by layout
  std::array<size_t, kLayouts + 1> by_layout_{};  // where each begins in measured_
  std::vector<float> excess_;  // log2(measured / model), by measured_ and rows_
};

}  // namespace xgemm
