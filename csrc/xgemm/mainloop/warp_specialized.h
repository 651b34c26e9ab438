// The strict main loop with warps that only fetch and warps that only multiply: a block's pieces,
// one after another, while the slices of the next are on their way.
#pragma once

#include <iterator>
#include <type_traits>

#include "xgemm/device/fragment.h"
#include "xgemm/device/ptx/mbarrier.h"
#include "xgemm/mainloop/multistage.h"
#include "xgemm/mainloop/producer.h"

namespace xgemm {
inline namespace XGEMM_FLAVOUR {

constexpr int kProducers = 128;  // a warpgroup, of which registers are taken; half for each operand

// One block of the large tile on a multiprocessor, or two of the small one, which leaves fewer of
// them idle where tiles are few.
constexpr Tile specialized_tile(int BM, int BN, int TM, int TN, int min_blocks, float rate) {
  Tile t = pipelined_tile(BM, BN, 32, TM, TN, 4, min_blocks, rate);
  t.producers = kProducers;
  return t.checked();
}

// Of every stage with this loop.
constexpr Tile kSpecializedTiles[] = {specialized_tile(128, 256, 8, 16, 1, 49.6f),
                                      specialized_tile(64, 128, 8, 8, 2, 46.6f)};

// The main loop unrolls so many products along k: less than 20 KB of code.
constexpr int kSpecializedBody = 8;

// Registers of a thread that fetches, and of one that multiplies: together what the launch has.
constexpr int fetch_registers(const Tile& t) { return t.min_blocks == 1 ? 88 : 80; }
constexpr int math_registers(const Tile& t) { return t.min_blocks == 1 ? 208 : 176; }

// What the block has of the job (producer.h). kA, kB: whether A, B transposed are contiguous along
// k.
template <Tile T, bool kA, bool kB, class Job>
__device__ __forceinline__ void multiply_work_tiles(SliceRing<T, kA, kB>& ring, const Job& job) {
  static_assert(registers_suffice(T.min_blocks, T.threads(), math_registers(T), T.producers,
                                  fetch_registers(T)));
  constexpr bool kShared = Job::kShared;
  constexpr int TM = T.TM, TN = T.TN, kBody = kSpecializedBody, kParts = T.BK / kBody;
  constexpr Order kOrder = TN > TM ? Order::columns_split : Order::columns_halves;
  using Ring = SliceRing<T, kA, kB>;
  ring.init();
  if constexpr (!kShared) take_turn();
  if (threadIdx.x >= T.threads()) {
    registers_down<fetch_registers(T)>();
    return fetch_pieces<T, kA, kB>(ring, job);
  }
  registers_up<math_registers(T)>();
  constexpr int kRowA = Ring::kRowA, kRowB = Ring::kRowB;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int ty = warp / (T.BN / T.WN) * T.WM + lane_row(lane) * 4;
  const int tx = warp % (T.BN / T.WN) * T.WN + lane_column(lane) * 4;
  const Smem first_a(&ring.a[0][0][ty]), first_b(&ring.b[0][0][tx]);
  float ra[2][TM], rb[2][TN];
  PipelineState<T.buffers> at;
  WorkTile work, next;
  mbarrier_wait(&ring.full[at.slot], at.phase);
  Smem as = first_a, bs = first_b;
  load_fragment<kStrideM>(ra[0], as);
  load_fragment<kStrideN>(rb[0], bs);
  for (uint32_t step = 0; job.work_tile(step, work); ++step) {
    float acc[TM][TN] = {};
    if constexpr (kShared)
      if (work.first > 0) fixup<T>(job.stream_k, acc);
    // What the main loop carries of a work tile: its number, with a bit that says that it has no
    // end.
    const bool stores_partials = kShared && work.last < job.slices;
    const uint32_t tile = work.tile | (stores_partials ? 1u << 31 : 0);
    const int last = job.work_tile(step + 1, next) ? 0 : 1;  // slices left at the end
#pragma unroll 1
    for (int left = work.last - work.first; left > 0; --left) {
      int part = 0;
      bool slice_ends;
#pragma unroll 1
      do {
        slice_ends = ++part == kParts;
#pragma unroll
        for (int k = 0; k < kBody; ++k) {
          if (k + 1 == kBody) {
            as = as + kBody * kRowA, bs = bs + kBody * kRowB;
            if (slice_ends) {  // the next k is in the next slice, if there is one
              if (left != last) {
                mbarrier_arrive(&ring.empty[at.slot]);
                at.advance();
                mbarrier_wait(&ring.full[at.slot], at.phase);
              }
              as = first_a + at.slot * (T.BK * kRowA), bs = first_b + at.slot * (T.BK * kRowB);
            }
          }
          load_fragment<kStrideM>(ra[(k + 1) % 2], as + (k + 1) % kBody * kRowA);
          load_fragment<kStrideN>(rb[(k + 1) % 2], bs + (k + 1) % kBody * kRowB);
          outer_product<kOrder>(acc, ra[k % 2], rb[k % 2]);
        }
      } while (!slice_ends);
    }
    if constexpr (kShared) {
      if (tile >> 31) {
        store_partials<T>(job.stream_k, acc);
        continue;
      }
    }
    const TileCoord o = job.template origin<T>(tile);
    const Gemm g = job.result(tile);
    store_fragment<kStrideM, kStrideN>(g, o.i + ty, o.j + tx, acc);
  }
}

// launch(row, kA, kB), as constants, for the row of kSpecializedTiles that the context names.
template <class Launch>
void launch_specialized(const Launch& launch, const Gemm& g, const Context& context) {
  static_assert(std::size(kSpecializedTiles) == 2);
  const auto of_row = [&](auto row) { by_major([&](auto a, auto b) { launch(row, a, b); }, g); };
  if (context.row == 0) of_row(std::integral_constant<int, 0>());
  else of_row(std::integral_constant<int, 1>());
}

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
