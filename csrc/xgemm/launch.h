// One block a tile of D: the launch that every stage without a schedule of its own uses.
#pragma once

#include <algorithm>
#include <stdexcept>
#include <type_traits>

#include "xgemm/schedule.h"
#include "xgemm/simt.h"

namespace xgemm {

constexpr int64_t kMaxGridX = 2147483647, kMaxGridZ = 65535;

inline namespace XGEMM_FLAVOUR {

// Tiles along grid.x (2^31 - 1 of them fit), problems of the batch along grid.z, in as many
// launches as that takes. `smem`: dynamic shared memory of a block, in bytes.
inline void launch_tiles(void (*kernel)(Gemm), const Gemm& g, const Tile& t, dim3 block,
                         const Context& context, size_t smem = 0) {
  const int64_t tiles = tile_count(g, t.BM, t.BN);
  if (tiles > kMaxGridX)
    throw std::invalid_argument("xgemm: more than 2^31 - 1 tiles in one matrix");
  for (int64_t z = 0; z < g.batch; z += kMaxGridZ) {
    Gemm part = g.at(z);
    part.batch = std::min(g.batch - z, kMaxGridZ);
    launch(kernel,
           {.grid = dim3(static_cast<unsigned>(tiles), 1, static_cast<unsigned>(part.batch)),
            .block = block,
            .smem = smem},
           context, part);
  }
}

// What `kernels` gives for this problem: called with two std::bool_constants, whether A, and B
// transposed, are walked along k.
template <class Kernels>
auto by_major(const Kernels& kernels, const Gemm& g) {
  using std::false_type, std::true_type;
  const bool a = along_k(g.a, g.m, g.k), b = along_k(g.b.transposed(), g.n, g.k);
  return a ? (b ? kernels(true_type(), true_type()) : kernels(true_type(), false_type()))
           : (b ? kernels(false_type(), true_type()) : kernels(false_type(), false_type()));
}

// launch_tiles of the kernel that `kernels` gives.
template <class Kernels>
void launch_tiles_by_major(const Kernels& kernels, const Gemm& g, const Tile& t,
                           const Context& context, size_t smem = 0) {
  void (*const kernel)(Gemm) = by_major(kernels, g);
  launch_tiles(kernel, g, t, dim3(t.threads()), context, smem);
}

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
