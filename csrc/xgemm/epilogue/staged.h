// Tiles of D staged in shared memory: the warps that have multiplied one leave it there, unscaled,
// and go on with the next; the fetching warpgroup's other warps multiply it by alpha, add a bias
// and store it meanwhile, behind a main loop, a row's 512 bytes at a time.
#pragma once

#include "xgemm/core/tile.h"
#include "xgemm/device/copy/gmem.h"
#include "xgemm/device/ptx/mbarrier.h"

namespace xgemm {
inline namespace XGEMM_FLAVOUR {

// What a unit holds: nothing that is to be stored; sums; nothing any more.
enum class Staged : int { nothing, sums, ended };

// kRows x kColumns of D, handed over at `full` and given back at `empty`.
template <int kRows, int kColumns>
struct alignas(16) StagedUnit {
  static_assert(kColumns == 128, "a warp stores a row, four elements a lane");
  float x[kRows * kColumns];
  Mbarrier full, empty;
  int32_t i, j;  // where it begins ...
  uint32_t z;  // ... in which matrix of a batch
  Staged holds;

  __device__ __forceinline__ void init(int math_warps, int store_warps) {
    mbarrier_init(&full, math_warps);
    mbarrier_init(&empty, store_warps);
  }
  // Runs of 8 trade places, so that a warp's accesses meet all banks: pairs of 8 rows, and rows.
  __device__ __forceinline__ float* at(int row, int column) {
    return x + row * kColumns + (column ^ row % 4 * 8);
  }

  // By warp number `warp` of kWarps, g being the problem of matrix z: without an activation, and
  // its C, if it has one, is a row.
  template <int kWarps>
  __device__ __forceinline__ void store(const Gemm& g, int warp) {
    if (holds == Staged::nothing) return;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const bool biased = g.beta != 0.f;
    if (i + kRows <= g.m && j + kColumns <= g.n && g.d.wide()) [[likely]] {
      // kAtOnce rows at a time, a run of them beside the other warps'.
      constexpr int kAtOnce = 4;
      float c[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) c[w] = biased ? g.beta * g.c(0, j + lane * 4 + w) : 0.f;
      const int64_t row = g.d.rs;
      float* to = g.d.ptr(i + warp * kAtOnce, j + lane * 4);
      const float* const from[kAtOnce] = {at(0, lane * 4), at(1, lane * 4), at(2, lane * 4),
                                          at(3, lane * 4)};
#pragma unroll 1
      for (int r = warp * kAtOnce; r < kRows; r += kWarps * kAtOnce, to += kWarps * kAtOnce * row) {
        float y[kAtOnce][4];
#pragma unroll
        for (int n = 0; n < kAtOnce; ++n) load4(y[n], from[n] + r * kColumns);
#pragma unroll
        for (int n = 0; n < kAtOnce; ++n) {
#pragma unroll
          for (int w = 0; w < 4; ++w)
            y[n][w] = biased ? fmaf(g.alpha, y[n][w], c[w]) : g.without_c(y[n][w]);
          store4(to + n * row, make_float4(y[n][0], y[n][1], y[n][2], y[n][3]));
        }
      }
      return;
    }
    const int rows = static_cast<int>(min_of(g.m - i, kRows));
    const int columns = static_cast<int>(min_of(g.n - j, kColumns));
#pragma unroll 1
    for (int column = lane; column < columns; column += 32) {
      const float c = biased ? g.beta * g.c(0, j + column) : 0.f;
      float* to = g.d.ptr(i + warp, j + column);
#pragma unroll 4
      for (int r = warp; r < rows; r += kWarps, to += kWarps * g.d.rs) {
        const float y = *at(r, column);
        *to = biased ? fmaf(g.alpha, y, c) : g.without_c(y);
      }
    }
  }
};

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
