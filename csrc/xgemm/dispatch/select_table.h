// What was measured of the stages, for the choice among them: the types of select_table.inc.
#pragma once

#include <vector>

#include "xgemm/dispatch/cost.h"

namespace xgemm {

// A tile of a stage, named by what it is rather than by its place, and what its terms cost.
struct TableRow {
  const char* stage;
  int BM, BN, BK, WM, WN, TM, TN, buffers, min_blocks, cluster;
  Costs costs;
};

struct Table {
  const char* gpu = "";
  const char* date = "";
  std::vector<TableRow> rows;
};

// The one of select_table.inc.
const Table& measured_table();

}  // namespace xgemm
