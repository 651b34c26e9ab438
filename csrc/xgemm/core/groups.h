// Products of groups, as those of a model's experts: the groups' rows of D, or their parts of K,
// lie one after another, and where each ends is known on the device alone.
#pragma once

#include "xgemm/core/gemm.h"
#include "xgemm/core/tile_scheduler.h"

namespace xgemm {

// As the host knows them. Gemm's m, or its k, is that of all groups together, batch their number;
// A and D, or A and B, have a batch stride of 0.
struct Groups {
  const int32_t* ends = nullptr;  // on the device, one a group; null: there are none
  bool of_k = false;              // they partition K, and not the rows of D

  explicit operator bool() const { return ends != nullptr; }
};

// As kernels know them, of `ends` as one kernel has read them: ascending, and none beyond m, or k,
// whatever they were.
struct GroupTable {
  int32_t* first = nullptr;  // [count + 1] where each begins; the last is where all end
  int32_t* tiles = nullptr;  // [count + 1] rows of tiles of the groups before
  int32_t* units = nullptr;  // [count + 1] the same of units
  int32_t count = 0;
  bool of_k = false;

  XGEMM_HD int64_t length(int64_t z) const { return first[z + 1] - first[z]; }

  // A group's product by itself.
  XGEMM_HD Gemm problem(const Gemm& all, int64_t z) const {
    Gemm g = all.at(z);
    const int64_t from = first[z];
    if (of_k) {
      g.k = length(z);
      g.a.data += from * g.a.cs, g.b.data += from * g.b.rs;
    } else {
      g.m = length(z);
      g.a.data += from * g.a.rs, g.d.data += from * g.d.rs;
    }
    return g;
  }

  // Whose row number `row` is: `before` are `tiles` or `units`. Groups without rows have none.
  XGEMM_HD int32_t group_of(const int32_t* before, int64_t row) const {
    int32_t low = 0, high = count;
    while (high - low > 1) {
      const int32_t middle = low + (high - low) / 2;
      (before[middle] <= row ? low : high) = middle;
    }
    return low;
  }
};

}  // namespace xgemm
