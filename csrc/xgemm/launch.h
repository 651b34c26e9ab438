// One block a tile of D: the launch that every stage without a schedule of its own uses.
#pragma once

#include <algorithm>
#include <stdexcept>
#include <type_traits>

#include "xgemm/schedule.h"
#include "xgemm/simt.h"

namespace xgemm {

constexpr int64_t kMaxGridX = 2147483647, kMaxGridZ = 65535;

// Tiles along grid.x (2^31 - 1 of them fit), problems of the batch along grid.z, in as many
// launches as that takes.
inline void launch_tiles(void (*kernel)(Gemm), const Gemm& g, const Tile& t, dim3 block,
                         const Context& context) {
  const int64_t tiles = tile_count(g, t.BM, t.BN);
  if (tiles > kMaxGridX)
    throw std::invalid_argument("xgemm: more than 2^31 - 1 tiles in one matrix");
  for (int64_t z = 0; z < g.batch; z += kMaxGridZ) {
    Gemm part = g.at(z);
    part.batch = std::min(g.batch - z, kMaxGridZ);
    launch(kernel,
           {.grid = dim3(static_cast<unsigned>(tiles), 1, static_cast<unsigned>(part.batch)),
            .block = block},
           context, part);
  }
}

// Calls f(bool_constant a, bool_constant b): run-time facts as template arguments.
template <class F>
void dispatch(bool a, bool b, F f) {
  using std::bool_constant;
  if (a)
    b ? f(bool_constant<true>(), bool_constant<true>())
      : f(bool_constant<true>(), bool_constant<false>());
  else
    b ? f(bool_constant<false>(), bool_constant<true>())
      : f(bool_constant<false>(), bool_constant<false>());
}

}  // namespace xgemm
