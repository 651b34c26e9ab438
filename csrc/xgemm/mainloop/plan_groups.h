// The table of groups (core/groups.h), of where they end: by one block, which others wait for.
#pragma once

#include "xgemm/core/groups.h"
#include "xgemm/core/workspace.h"
#include "xgemm/device/launch.h"

namespace xgemm {

// A table of so many groups, in a workspace.
inline GroupTable place_table(Layout& room, int64_t groups, bool of_k) {
  const auto numbers = [&] {
    return static_cast<int32_t*>(room.place(static_cast<size_t>(groups + 1) * sizeof(int32_t)));
  };
  GroupTable table{.count = static_cast<int32_t>(groups), .of_k = of_k};
  table.first = numbers(), table.tiles = numbers(), table.units = numbers();
  return table;
}

inline namespace XGEMM_FLAVOUR {

// What the table is made of.
struct GroupsJob {
  const int32_t* ends = nullptr;
  bool from_zero = true;  // else the group before ends where the first one begins
  int64_t all = 0;  // rows, or K, of all groups
  int64_t rows = 0;  // of D, where groups are of K: of each group's
  int tile_rows = 1, unit_rows = 1;
  GroupTable table;
};

// A warp reads kWarp ends at a time.
template <int kWarp>
__global__ void __launch_bounds__(kWarp) plan_groups(const GroupsJob job) {
  take_turn();
  const GroupTable& t = job.table;
  const int lane = threadIdx.x;
  const auto within = [&](int64_t x) {
    return static_cast<int32_t>(x < 0 ? 0 : min_of(x, job.all));
  };
  const auto join = [&](int32_t x, auto&& of) {
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int32_t other = __shfl_up_sync(0xffffffffu, x, step);
      if (lane >= step) x = of(x, other);
    }
    return x;
  };
  const auto last = [](int32_t x) { return __shfl_sync(0xffffffffu, x, 31); };
  int32_t first = job.from_zero ? 0 : within(job.ends[-1]), tiles = 0, units = 0;
  if (lane == 0) t.first[0] = first, t.tiles[0] = t.units[0] = 0;
  for (int32_t z = 0; z < t.count; z += 32) {
    const bool mine = z + lane < t.count;
    int32_t end = mine ? within(job.ends[z + lane]) : 0;
    end = join(end > first ? end : first, [](int32_t x, int32_t y) { return x > y ? x : y; });
    const int32_t before = __shfl_up_sync(0xffffffffu, end, 1);
    const int64_t rows = t.of_k ? job.rows : end - (lane ? before : first);
    const auto add = [](int32_t x, int32_t y) { return x + y; };
    const auto count = [&](int size) {
      return mine ? static_cast<int32_t>(ceil_div(rows, size)) : 0;
    };
    const int32_t of_tiles = tiles + join(count(job.tile_rows), add);
    const int32_t of_units = units + join(count(job.unit_rows), add);
    if (mine) {
      t.first[z + lane + 1] = end;
      t.tiles[z + lane + 1] = of_tiles;
      t.units[z + lane + 1] = of_units;
    }
    first = last(end), tiles = last(of_tiles), units = last(of_units);
  }
}

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
