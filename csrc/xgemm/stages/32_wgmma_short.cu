// With a short K a product is a matter of writing D, if tensor cores make it: operands are
// decomposed into bf16 limbs on their way, and D is stored while the next tile is multiplied.

// arch: sm_90a

#include <iterator>

#include "xgemm/mainloop/fused_emulated_short_k.h"

namespace xgemm::XGEMM_FLAVOUR::wgmma_short {

// Of B, `buffers` slices are there in limbs, of A kShortStay.
constexpr Tile tile(int BM, int BN, int buffers, float rate) {
  return {.BM = BM,
          .BN = BN,
          .BK = kSliceK,
          .WM = 16,
          .WN = BN,
          .TM = 2,
          .TN = BN / 4,
          .buffers = buffers,
          .a_rows = BM,
          .element_bytes = 2 * kShortScheme.limbs,
          .producers = kTransformThreads + kStorers,
          .extra = kShortAhead * BM * kSliceK * 4 +
                   BM / 64 * static_cast<int>(sizeof(ShortSums<128>::d)) -
                   (buffers - kShortStay) * BM * kSliceK * 2 * kShortScheme.limbs,
          .rate = rate};
}
constexpr Tile kTiles[] = {tile(128, 128, 3, 60.f)};

constexpr int threads(const Tile& t) { return t.threads() + t.producers; }

template <int kRow, bool kA, bool kB>
__global__ void __launch_bounds__(threads(kTiles[kRow]), 1)
    kernel(const __grid_constant__ ShortJob job) {
  constexpr Tile T = kTiles[kRow];
  static_assert(registers_suffice(1, T.threads(), kShortRegisters, T.producers, kShortOthers));
  XGEMM_SHARED_DYNAMIC(ring, ShortRing<T, kA, kB>);
  ring.init(job);
  take_turn();
  if (threadIdx.x < T.threads()) {
    registers_up<kShortRegisters>();
    multiply_tiles(ring, job);
  } else {
    registers_down<kShortOthers>();
    if (threadIdx.x < T.threads() + kTransformThreads) transform_tiles(ring, job);
    else store_tiles(ring, job);
  }
}

template <int kRow>
void run_row(const Gemm& all, const Context& context) {
  constexpr Tile T = kTiles[kRow];
  constexpr size_t kRing = sizeof(ShortRing<T, true, true>);  // with its mbarriers
  static_assert((kRing - 1) / 4096 == T.smem() / 4096);
  // D's rows are those that lie in one piece.
  const Gemm g = all.d.cs != 1 && all.d.rs == 1 ? transposed(all) : all;
  const int64_t tiles = tile_count(g, T.BM, T.BN);
  if (tiles > kMaxGridX || tiles * g.batch > kMaxGridX)
    throw std::invalid_argument("wgmma_short: over 2^31 - 1 tiles");
  const int64_t blocks = std::min<int64_t>(tiles * g.batch, context.device.sm_count);
  ShortJob job{.g = g,
               .tiles_m = static_cast<uint32_t>(ceil_div(g.m, T.BM)),
               .tiles_n = static_cast<uint32_t>(ceil_div(g.n, T.BN)),
               .each = static_cast<uint32_t>(tiles * g.batch / blocks),
               .extra = static_cast<uint32_t>(tiles * g.batch % blocks)};
  void (*const kernel_of_job)(ShortJob) = by_major(
      [&](auto a, auto b) {
        job.a = RawLoader<kTransformThreads, T.BM, a()>::map(g.a, g.m, g.k, g.batch);
        job.b = RawLoader<kTransformThreads, T.BN, b()>::map(g.b.transposed(), g.n, g.k, g.batch);
        return kernel<kRow, a(), b()>;
      },
      g);
  launch(kernel_of_job,
         {.grid = dim3(static_cast<unsigned>(blocks)),
          .block = dim3(threads(T)),
          .smem = kRing,
          .dependent = true},
         context, job);
}

void run(const Gemm& g, const Context& context) {
  constexpr void (*rows[])(const Gemm&, const Context&) = {run_row<0>};
  static_assert(std::size(rows) == std::size(kTiles));
  rows[context.row](g, context);
}

static const Register<run> stage(
    kFlavour,
    {.name = "wgmma_short",
     .rung = 32,
     .idea = "a short K on tensor cores: decomposed on the way, stored behind the next tile",
     .source = "this project",
     .tiles = {std::begin(kTiles), std::end(kTiles)},
     .min_sm = 90,
     .max_sm = 90,
     .strict = false,
     .auto_choice = false,  // what range it cannot certify are chains: up to 88 times the time
     .scheme = [](const Gemm&, const Context&) { return kBf16x6Words; }});

}  // namespace xgemm::XGEMM_FLAVOUR::wgmma_short
