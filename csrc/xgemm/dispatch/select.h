// Problem and device -> the stage that `auto` runs and the row of its tile table. Pure functions of
// their arguments: no GPU, no global state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "xgemm/core/stage.h"
#include "xgemm/dispatch/select_table.h"
#include "xgemm/dispatch/tuned.h"

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
  estimated,  // the row's terms at costs that were fitted to measurements
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
  std::vector<Candidate> candidates;  // every row of every stage, in their order
};

// Chooses among `all` (stages(flavour), or a list of a test) by what `table` says; both must
// outlive it, and keep their tiles and what they say of bits. `strict` leaves only the stages that
// keep the bits of the chains, `workspace` only the rows that need no more bytes of it.
//
// A row's time is the sum of its terms at the costs that the table has for it (cost.h). A row that
// the table does not know has a time from Tile::rate alone, set beside the best row that it does
// know. Stages that are not for auto are taken where no other can run.
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
  // What a row takes by its costs, or by Tile::rate where the table does not know it, in
  // microseconds.
  double estimate(const Pick& pick, const Gemm& g, const Device& device) const;
  // The same choice as pick's, with all that it was made from.
  Choice weigh(const Gemm& g, const Device& device, bool strict, size_t workspace = kAnyWorkspace,
               const TunedGpu* tuned = nullptr) const;

 private:
  struct Row {
    const Stage* stage;
    int row;
    const TableRow* known;  // null where the table does not know it
    Spread spread;
    Bound bound;
    int smem;  // of a block, in bytes
  };
  static const Tile& tile_of(const Row& r);
  static bool turned(const Row& r, const Gemm& g);
  size_t number_of(const Pick& p) const;  // in rows_
  template <class Use, class See>
  size_t least(size_t first, size_t last, const Gemm& g, const Device& device, size_t workspace,
               Use use, See see) const;
  template <class Early, class Use>
  size_t quickest(std::span<const size_t> some, const Gemm& g, const Device& device,
                  size_t workspace, Early early, Use use) const;
  std::string why(const std::vector<Candidate>& all, size_t chosen) const;

  std::span<const Stage> all_;
  const Table& table_;
  std::vector<Row> rows_;  // of all stages, in their order
  std::vector<size_t> first_;  // of each stage, into rows_
  std::vector<size_t> all_rows_;  // 0, 1, ...
  std::vector<std::vector<size_t>> candidates_;  // by contract, those that auto may take
};

}  // namespace xgemm
