// cp.async fills a ring of slices: some are on their way past the registers while one is
// multiplied, and a slice costs one barrier.
//
// `cp.async` copies from global to shared memory without a stop in a register. Several slices are
// on their way at once; a wait says how many may still be missing. The timeline shows how far ahead
// the copies run: that distance, times the time of a slice, is the latency that is hidden. The
// copies of a slice are dealt out over the products of an earlier one, and the loop that does so
// has no edge in it: slices with an edge have a loop of their own.
//
// first: multiply_pipelined in mainloop/multistage.h
// origin: This project, after what CUTLASS does on sm_80 and later: a main loop of several stages
//   of `cp.async`.

#include <iterator>
#include <utility>

#include "xgemm/device/copy/aligned.h"
#include "xgemm/device/launch.h"
#include "xgemm/mainloop/multistage.h"

namespace xgemm::XGEMM_FLAVOUR::cp_async_pipelined {

constexpr Tile kTiles[] = {
    pipelined_tile(128, 256, 32, 8, 16, 4, 1, 48.8f),
    pipelined_tile(256, 128, 32, 16, 8, 4, 1, 50.1f),
    pipelined_tile(128, 128, 16, 8, 8, 4, 2, 48.0f),
    pipelined_tile(64, 128, 16, 8, 8, 4, 4, 47.7f),
    pipelined_tile(64, 64, 16, 8, 4, 4, 6, 42.8f),
    pipelined_tile(32, 64, 32, 4, 4, 3, 4, 37.8f),
};

template <int kRow, bool kA, bool kB>  // whether A, B transposed are contiguous along k
__global__ void __launch_bounds__(kTiles[kRow].threads(), kTiles[kRow].min_blocks)
    kernel(const Gemm batch) {
  constexpr Tile T = kTiles[kRow];
  XGEMM_SHARED_DYNAMIC(ring, Ring<T>);
  const Gemm g = batch.at(blockIdx.z);
  multiply_pipelined<T, kA, kB>(ring, g, swizzled_tile<T>(blockIdx.x, g));
}

template <int... kRow>
void run_row(const Gemm& g, const Context& context, std::integer_sequence<int, kRow...>) {
  static_assert(((sizeof(Ring<kTiles[kRow]>) == kTiles[kRow].smem()) && ...));
  const Tile& t = kTiles[context.row];
  launch_tiles_by_major(
      [&](auto a, auto b) {
        constexpr void (*kernels[])(Gemm) = {kernel<kRow, a(), b()>...};
        return kernels[context.row];
      },
      g, t, context, static_cast<size_t>(t.smem()), true);
}

void run_tiles(const Gemm& g, const Context& context) {
  run_row(g, context, std::make_integer_sequence<int, std::size(kTiles)>());
}

void run(const Gemm& g, const Context& context) { run_aligned(run_tiles, g, context); }

static const Register<run> stage(
    kFlavour, {.name = "cp_async_pipelined",
               .rung = 19,
               .idea = "cp.async fills a ring of slices past the registers; one barrier a slice",
               .source = "this project",
               .tiles = {std::begin(kTiles), std::end(kTiles)},
               .min_sm = 80,
               .workspace = aligned_bytes});

}  // namespace xgemm::XGEMM_FLAVOUR::cp_async_pipelined
