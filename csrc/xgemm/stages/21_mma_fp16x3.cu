// FP32 accuracy from the tensor cores of sm_80 and later: each operand in two fp16 limbs, three
// products by mma.sync, fed by cp.async.
#include <algorithm>
#include <iterator>
#include <utility>

#include "xgemm/epilogue/emulated.h"
#include "xgemm/mainloop/emulated_mma.h"
#include "xgemm/mainloop/recompute.h"

namespace xgemm::XGEMM_FLAVOUR::mma_fp16x3 {

constexpr EmulationScheme S = kFp16x3;

constexpr Tile kTiles[] = {
    mma_tile(S, 128, 128, 64, 4, 1, 140.f),
    mma_tile(S, 64, 128, 64, 4, 2, 135.f),
    mma_tile(S, 64, 64, 32, 4, 3, 105.f),
};

struct Job {
  Gemm g;
  Limbs a, b;
  RecomputeMap map;
  int64_t z = 0;  // the launch's first matrix
};

template <Tile T>
struct Shared {
  LimbRing<T> ring;
  TileScales<T.threads(), T.BM, T.BN> scales;
};

template <int kRow>
__global__ void __launch_bounds__(kTiles[kRow].threads(), kTiles[kRow].min_blocks)
    kernel(const Job job) {
  constexpr Tile T = kTiles[kRow];
  XGEMM_SHARED_DYNAMIC(shared, Shared<T>);
  const uint32_t z = static_cast<uint32_t>(job.z) + blockIdx.z;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int ty = warp / (T.BN / T.WN) * T.WM, tx = warp % (T.BN / T.WN) * T.WN;

  float sum[T.WM / 16][T.WN / 2] = {};
  multiply_limbs<S, T>(sum, shared.ring, job.a, job.b, z, swizzled_tile<T>(blockIdx.x, job.g), ty,
                       tx);

  const TileCoord o = swizzled_tile<T>(opaque(blockIdx.x), job.g);
  const Gemm g = job.g.at(z);
  const RowScale *rows = job.a.scales + job.a.first_row(z),
                 *columns = job.b.scales + job.b.first_row(z);
  auto& scales = shared.scales;
  scales.put(scales.fetch(g, rows, columns, o.i, o.j, threadIdx.x), g.k, g.m - o.i, g.n - o.j,
             threadIdx.x);
  __syncthreads();
  const int column = tx + lane % 4 * 2;
  const uint32_t flags = scales.flags();
  const auto epilogue = [&](int i) {
    return EmulatedEpilogue<S, T.WN / 8>{.g = g,
                                         .rows = rows,
                                         .columns = columns,
                                         .i = o.i + ty + 16 * i + lane / 4,
                                         .j = o.j + column,
                                         .undo_rows = scales.rows + ty + 16 * i + lane / 4,
                                         .undo_columns = scales.columns + column,
                                         .flags = flags};
  };
  // A tile's units are made anew together.
  Fate worst = flags & kGivenFlags ? Fate::given : Fate::stands;
  if (flags & (kLossy | kFar | kInfinities)) [[unlikely]] {
    uint32_t count = 0;
    if (flags & kLossy)
#pragma unroll
      for (int i = 0; i < T.WM / 16; ++i)
        count += epilogue(i).uncertain(sum[i], scales.row_doubts + ty + 16 * i + lane / 4,
                                       scales.column_doubts + column) != 0;
    scales.vote(flags, g, rows, columns, o.i, o.j, count, threadIdx.x);
    __syncthreads();
    if (scales.needs_chains(flags)) worst = Fate::chained;
    else if (scales.all_uncertain() > 0) worst = Fate::recomputed;
  }
  if (threadIdx.x < T.BM / kUnitRows)
    job.map.mark(g, z, o.i + threadIdx.x * kUnitRows, o.j, T.BN, worst);
  if (worst >= Fate::recomputed || ((flags & kGivenFlags) && scales.all_given())) return;
#pragma unroll
  for (int i = 0; i < T.WM / 16; ++i) epilogue(i).store(sum[i]);
}

constexpr int kCluster = 1;  // of the decomposition: sm_80 has none

RecomputePlan plan_room(const Gemm& g, const DecomposePlan& plan, const Context& context) {
  return plan_recompute(g, plan, kTiles[context.row].BN, 0, 0, context);
}

size_t workspace(const Gemm& g, const Context& context) {
  return plan_room(g, plan_decompose(g, S.limbs, nullptr, context.packed_b), context).bytes;
}

template <int... kRow>
void run_row(Job job, const Context& context, std::integer_sequence<int, kRow...>) {
  static_assert(((sizeof(LimbRing<kTiles[kRow]>) == kTiles[kRow].smem()) && ...));
  constexpr void (*kernels[])(Job) = {kernel<kRow>...};
  constexpr size_t smem[] = {sizeof(Shared<kTiles[kRow]>)...};
  const Tile& t = kTiles[context.row];
  const int64_t tiles = tile_count(job.g, t.BM, t.BN);
  if (tiles > kMaxGridX) throw std::invalid_argument("mma_fp16x3: more than 2^31 - 1 tiles");
  for (; job.z < job.g.batch; job.z += kMaxGridZ) {
    const auto matrices = static_cast<unsigned>(std::min(job.g.batch - job.z, kMaxGridZ));
    launch(kernels[context.row],
           {.grid = dim3(static_cast<unsigned>(tiles), 1, matrices),
            .block = dim3(t.threads()),
            .smem = smem[context.row]},
           context, job);
  }
}

void run(const Gemm& g, const Context& context) {
  const DecomposePlan plan = plan_decompose(g, S.limbs, context.workspace, context.packed_b);
  const RecomputePlan room = plan_room(g, plan, context);
  decompose<S, kCluster>(g, plan, context, room.clear);
  run_row({.g = g, .a = plan.a, .b = plan.b, .map = room.job.map}, context,
          std::make_integer_sequence<int, std::size(kTiles)>());
  kTiles[context.row].BN == 128 ? launch_recompute<128>(room.job, context)
                                : launch_recompute<64>(room.job, context);
}

static const Register<run> stage(
    kFlavour, {.name = "mma_fp16x3",
               .rung = 21,
               .idea = "operands in two fp16 limbs, three products by mma.sync, added up in FP32",
               .source = "this project",
               .tiles = {std::begin(kTiles), std::end(kTiles)},
               .min_sm = 80,
               .strict = false,
               .unit_rows = kUnitRows,
               .scheme = [](const Gemm&, const Context&) { return kFp16x3Words; },
               .can_implement = can_decompose,
               .workspace = workspace,
               .packed_bytes = packed_bytes,
               .pack = pack<kCluster>});

}  // namespace xgemm::XGEMM_FLAVOUR::mma_fp16x3
