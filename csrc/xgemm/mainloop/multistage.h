// The strict main loop with cp.async: a ring of slices, of which some are on their way past the
// registers while one is multiplied; a slice costs one barrier.
#pragma once

#include <type_traits>

#include "xgemm/device/copy/cp_async.h"
#include "xgemm/device/fragment.h"
#include "xgemm/device/ptx/base.h"

namespace xgemm {

constexpr Tile pipelined_tile(int BM, int BN, int BK, int TM, int TN, int buffers, int min_blocks,
                              float rate) {
  return {.BM = BM,
          .BN = BN,
          .BK = BK,
          .WM = kLanesM * TM,
          .WN = kLanesN * TN,
          .TM = TM,
          .TN = TN,
          .width = 4,
          .buffers = buffers,
          .pad_a = 4,
          .pad_b = 4,
          .a_rows = BK,
          .min_blocks = min_blocks,
          .rate = rate};
}

// A slice is copied in parts, one for each run of kBody products along k that the main loop
// unrolls: less than 20 KB of code, and copies between products.
constexpr int body_of(const Tile& t) { return t.accumulators() > 16 ? 8 : 16; }

// From a thread's row to its next four, and from a column.
constexpr int kStrideM = kLanesM * 4, kStrideN = kLanesN * 4;

// The block's tile of D at `o`: finish(sums, row, column) is told where in the tile a thread's sums
// begin. kA, kB: whether A, B transposed are contiguous along k.
template <Tile T, bool kA, bool kB, class Finish>
__device__ __forceinline__ void multiply_pipelined(Ring<T>& ring, const Gemm& g, const TileCoord& o,
                                                   const Finish& finish) {
  constexpr int TM = T.TM, TN = T.TN, kBuffers = T.buffers, kBody = body_of(T),
                kParts = T.BK / kBody;
  constexpr Order kOrder = TM > TN ? Order::columns_halves : Order::columns;
  constexpr int kRowA = T.BM + T.pad_a, kRowB = T.BN + T.pad_b;
  constexpr int kSliceA = T.BK * kRowA, kSliceB = T.BK * kRowB;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int ty = warp / (T.BN / T.WN) * T.WM + lane_row(lane) * 4;
  const int tx = warp % (T.BN / T.WN) * T.WN + lane_column(lane) * 4;

  AsyncCopies<T, kParts, kA, kB> copies(g, o);
  const int slices = static_cast<int>(ceil_div(g.k, T.BK));
  take_turn();
#pragma unroll 1
  for (int s = 0; s + 1 < kBuffers; ++s) {
#pragma unroll 1
    for (int part = 0; part < kParts; ++part) copies.template part<false>(ring, g, o, s, s, part);
    cp_async_commit();
  }
  float acc[TM][TN] = {}, ra[2][TM], rb[2][TN];
  cp_async_wait<kBuffers - 2>();
  __syncthreads();
  const Smem first_a(&ring.a[0][0][ty]), first_b(&ring.b[0][0][tx]);
  Smem as = first_a, bs = first_b;
  load_fragment<kStrideM>(ra[0], as);
  load_fragment<kStrideN>(rb[0], bs);
  int slice = 0, now = 0, next = kBuffers - 1;  // the buffers that are read and copied to
  // Multiplies slices up to `end` and copies those that come kBuffers - 1 later.
  const auto multiply = [&](auto plain, int end) {
#pragma unroll 1
    for (; slice < end; ++slice)
#pragma unroll 1
      for (int part = 0; part < kParts; ++part) {
        copies.template part<plain()>(ring, g, o, slice + kBuffers - 1, next, part);
        if (part + 1 == kParts) cp_async_commit();
#pragma unroll
        for (int k = 0; k < kBody; ++k) {
          if (k + 1 == kBody) {
            as = as + kBody * kRowA, bs = bs + kBody * kRowB;
            if (part + 1 == kParts) {  // the next k is in the next slice, if there is one
              cp_async_wait<kBuffers - 2>();
              __syncthreads();
              next = now;
              if (slice + 1 < slices) now = now + 1 < kBuffers ? now + 1 : 0;
              as = first_a + now * kSliceA, bs = first_b + now * kSliceB;
            }
          }
          load_fragment<kStrideM>(ra[(k + 1) % 2], as + (k + 1) % kBody * kRowA);
          load_fragment<kStrideN>(rb[(k + 1) % 2], bs + (k + 1) % kBody * kRowB);
          outer_product<kOrder>(acc, ra[k % 2], rb[k % 2]);
        }
      }
  };
  if (copies.plain()) multiply(std::true_type(), copies.whole + 1 - kBuffers);
  multiply(std::false_type(), slices);
  finish(acc, ty, tx);
}

// ... and into D.
template <Tile T, bool kA, bool kB>
__device__ __forceinline__ void multiply_pipelined(Ring<T>& ring, const Gemm& g,
                                                   const TileCoord& o) {
  multiply_pipelined<T, kA, kB>(ring, g, o, [&](const auto& sums, int row, int column) {
    store_fragment<kStrideM, kStrideN>(g, o.i + row, o.j + column, sums);
  });
}

}  // namespace xgemm
