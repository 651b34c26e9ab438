// Warps that only fetch fill a ring of slices, by TMA where the operand lies as its slices do; the
// others only multiply, and nobody waits for the whole block.

// arch: sm_90a

#include <iterator>
#include <utility>

#include "xgemm/fetch.h"
#include "xgemm/pipelined.h"

namespace xgemm::XGEMM_FLAVOUR::tma_specialized {

constexpr int kProducers = 128;  // a warpgroup, of which registers are taken; half for each operand

constexpr Tile tile(int BM, int BN, int TM, int TN, int min_blocks, float rate) {
  Tile t = pipelined_tile(BM, BN, 32, TM, TN, 4, min_blocks, rate);
  t.producers = kProducers;
  return t;
}

// One block of the large tile on a multiprocessor, or two of the small one, which leaves fewer of
// them idle where tiles are few.
constexpr Tile kTiles[] = {tile(128, 256, 8, 16, 1, 49.6f), tile(64, 128, 8, 8, 2, 46.6f)};

// The main loop unrolls so many products along k: less than 20 KB of code.
constexpr int kBody = 8;

// Registers of a thread that fetches, and of one that multiplies: together what the launch has.
constexpr int kFetchRegisters[] = {88, 80}, kMathRegisters[] = {208, 176};

constexpr bool registers_fit(int row) {
  return kFetchRegisters[row] * kProducers + kMathRegisters[row] * kTiles[row].threads() <=
         65536 / kTiles[row].min_blocks;
}
static_assert(registers_fit(0) && registers_fit(1));

// kA, kB: whether A, B transposed are contiguous along k. kShared: whether tiles are shared out.
template <int kRow, bool kA, bool kB, bool kShared>
__global__ void __launch_bounds__(kTiles[kRow].threads() + kProducers, kTiles[kRow].min_blocks)
    kernel(const __grid_constant__ FetchJob job) {
  constexpr Tile T = kTiles[kRow];
  constexpr int TM = T.TM, TN = T.TN, kParts = T.BK / kBody;
  constexpr Order kOrder = TN > TM ? Order::columns_split : Order::columns_halves;
  using Ring = SliceRing<T, kA, kB>;
  XGEMM_SHARED_DYNAMIC(ring, Ring);
  ring.init();
  if (threadIdx.x >= T.threads()) {
    registers_down<kFetchRegisters[kRow]>();
    return fetch_pieces<T, kA, kB, kShared>(ring, job);
  }
  registers_up<kMathRegisters[kRow]>();
  constexpr int kStrideM = kLanesM * 4, kStrideN = kLanesN * 4;
  constexpr int kRowA = Ring::kRowA, kRowB = Ring::kRowB;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int ty = warp / (T.BN / T.WN) * T.WM + lane_row(lane) * 4;
  const int tx = warp % (T.BN / T.WN) * T.WN + lane_column(lane) * 4;
  const Smem first_a(&ring.a[0][0][ty]), first_b(&ring.b[0][0][tx]);
  float ra[2][TM], rb[2][TN];
  RingPlace<T.buffers> at;
  Piece piece, next;
  mbarrier_wait(&ring.full[at.stage], at.parity);
  Smem as = first_a, bs = first_b;
  load_fragment<kStrideM>(ra[0], as);
  load_fragment<kStrideN>(rb[0], bs);
  for (uint32_t step = 0; job.piece<kShared>(step, piece); ++step) {
    float acc[TM][TN] = {};
    if constexpr (kShared)
      if (piece.first > 0) take_over<T>(job.relay, acc);
    // What the main loop carries of a piece: its tile, with a bit that says that it has no end.
    const bool hands_over = kShared && piece.last < job.slices;
    const uint32_t tile = piece.tile | (hands_over ? 1u << 31 : 0);
    const int last = job.piece<kShared>(step + 1, next) ? 0 : 1;  // slices left at the end
#pragma unroll 1
    for (int left = piece.last - piece.first; left > 0; --left) {
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
                mbarrier_arrive(&ring.empty[at.stage]);
                at.advance();
                mbarrier_wait(&ring.full[at.stage], at.parity);
              }
              as = first_a + at.stage * (T.BK * kRowA), bs = first_b + at.stage * (T.BK * kRowB);
            }
          }
          load_fragment<kStrideM>(ra[(k + 1) % 2], as + (k + 1) % kBody * kRowA);
          load_fragment<kStrideN>(rb[(k + 1) % 2], bs + (k + 1) % kBody * kRowB);
          outer_product<kOrder>(acc, ra[k % 2], rb[k % 2]);
        }
      } while (!slice_ends);
    }
    if (kShared && tile >> 31) {
      hand_over<T>(job.relay, acc);
      continue;
    }
    const Origin o = job.origin<T, kShared>(tile);
    const Gemm g = job.g.at(job.matrix<kShared>(tile));
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
      for (int j = 0; j < TN; j += 4)
        store_row4(g, o.i + ty + i % 4 + i / 4 * kStrideM, o.j + tx + j / 4 * kStrideN, &acc[i][j]);
  }
}

template <int kRow, bool kA, bool kB>
void launch_row(const Gemm& g, const Context& context) {
  launch_fetching<kTiles[kRow], kA, kB>(kernel<kRow, kA, kB, false>, kernel<kRow, kA, kB, true>, g,
                                        context);
}

template <int... kRow>
void run_row(const Gemm& g, const Context& context, std::integer_sequence<int, kRow...>) {
  const auto launches = [&](auto a, auto b) {
    constexpr void (*rows[])(const Gemm&, const Context&) = {launch_row<kRow, a(), b()>...};
    return rows[context.row];
  };
  by_major(launches, g)(g, context);
}

size_t workspace(const Gemm& g, const Context& context) {
  const Tile& t = kTiles[context.row];
  return plan_chain_relay(g, t, slice_count(g.k, t.BK), context).bytes;
}

void run(const Gemm& g, const Context& context) {
  run_row(g, context, std::make_integer_sequence<int, std::size(kTiles)>());
}

static const Register stage(
    kFlavour,
    {.name = "tma_specialized",
     .rung = 20,
     .idea = "warps that only fetch, by TMA or cp.async, and warps that only multiply; persistent",
     .source = "beyond the seeds",
     .tiles = {std::begin(kTiles), std::end(kTiles)},
     .min_sm = 90,
     .max_sm = 90,
     .workspace = workspace,
     .run = run});

}  // namespace xgemm::XGEMM_FLAVOUR::tma_specialized
