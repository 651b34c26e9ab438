// What was measured of the stages, for the choice among them: the types of select_table.inc.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace xgemm {

// How the operands lie, as a kernel sees it: +2 where A, +1 where B transposed, is contiguous along
// k. So NN is 2, NT 3, TN 0, TT 1.
constexpr int kLayouts = 4;
constexpr int kTableRows = 80;

// A tile of a stage, named by what it is rather than by its place, and the numbers of its model
// (select.cpp) that fit the measurements best.
struct TableRow {
  const char* stage;
  int BM, BN, BK, WM, WN, TM, TN, buffers, min_blocks, cluster;
  float fixed;      // microseconds of any launch
  float prologue;   // of a block, in elements of k
  float alone;      // an SM with a part x of its blocks runs at x^alone of its rate
  float even;       // how evenly the SMs share the work: 0, whole blocks; 1, to the last flop
  float memory;     // microseconds for a million elements of both operands: to split them, say
  std::array<float, kLayouts> per_sm;   // GFLOP/s of a full SM, by layout; 0: not measured
};

struct TablePoint {
  int64_t m, n, k;
  int layout;
  int wide;         // +2 where A, +1 where B could be moved as 16-byte vectors
  std::array<float, kTableRows> us;     // microseconds, by TableRow; 0: not measured
};

struct Table {
  const char* gpu = "";
  const char* date = "";
  int sm = 0, sm_count = 0;
  float skipped = 0.f;  // what a point lacks was expected to be slow: so many times the least
  std::vector<TableRow> rows;
  std::vector<TablePoint> points;
};

// The one of select_table.inc. What it is copied from is constant, since a sanitizer takes minutes
// to compile a thousand numbers that a program makes a table of.
const Table& measured_table();

}  // namespace xgemm
