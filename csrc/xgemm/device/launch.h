// One block a tile of D: the launch that every stage without a schedule of its own uses.
#pragma once

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <type_traits>

#include "xgemm/core/tile_scheduler.h"
#include "xgemm/device/platform.h"

namespace xgemm {

constexpr int64_t kMaxGridX = 2147483647, kMaxGridZ = 65535;

inline namespace XGEMM_FLAVOUR {

// Whether a launch on this device may be `dependent`: code for older ones, from which another GPU
// may make its own, does not wait there.
inline bool may_depend(const Device& device) {
#ifdef __CUDA_ARCH_LIST__
  constexpr int kMade[] = {__CUDA_ARCH_LIST__};
  return device.sm == 90 && std::find(std::begin(kMade), std::end(kMade), 900) != std::end(kMade);
#else
  static_cast<void>(device);
  return true;  // the emulator
#endif
}

// Whether a launch of so many blocks, several of which fit a multiprocessor, takes turns with the
// one before it. Where that one still runs, blocks go to whatever multiprocessors have room: with
// more blocks than multiprocessors, some got one too many (up to 1.4 times the time on an H200).
inline bool may_take_turn(const Device& device, int64_t blocks) {
  return may_depend(device) && blocks <= device.sm_count;
}

// Tiles along grid.x (2^31 - 1 of them fit), problems of the batch along grid.z, in as many
// launches as that takes. `smem`: dynamic shared memory of a block, in bytes. `takes_turn`: the
// kernel calls take_turn().
inline void launch_tiles(void (*kernel)(Gemm), const Gemm& g, const Tile& t, dim3 block,
                         const Context& context, size_t smem = 0, bool takes_turn = false) {
  const int64_t tiles = tile_count(g, t.BM, t.BN);
  if (tiles > kMaxGridX)
    throw std::invalid_argument("xgemm: more than 2^31 - 1 tiles in one matrix");
  for (int64_t z = 0; z < g.batch; z += kMaxGridZ) {
    Gemm part = g.at(z);
    part.batch = std::min(g.batch - z, kMaxGridZ);
    launch(kernel,
           {.grid = dim3(static_cast<unsigned>(tiles), 1, static_cast<unsigned>(part.batch)),
            .block = block,
            .smem = smem,
            .dependent = takes_turn && may_take_turn(context.device, tiles * part.batch)},
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
                           const Context& context, size_t smem = 0, bool takes_turn = false) {
  void (*const kernel)(Gemm) = by_major(kernels, g);
  launch_tiles(kernel, g, t, dim3(t.threads()), context, smem, takes_turn);
}

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
