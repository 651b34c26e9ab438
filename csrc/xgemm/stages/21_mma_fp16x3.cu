// FP32 accuracy from the tensor cores of sm_80 and later: each operand in two fp16 parts, three
// products by mma.sync, fed by cp.async.
//
// The sums are those of wgmma_gemm.h. Here P, the products of the first parts over one slice, is
// made for 16 rows at a time, so that it takes a few registers and not as many as a tile.
#include <algorithm>
#include <iterator>
#include <utility>

#include "xgemm/parts_ring.h"
#include "xgemm/split_kernel.h"
#include "xgemm/unscale.h"

namespace xgemm::XGEMM_FLAVOUR::mma_fp16x3 {

constexpr Scheme S = kFp16x3;

constexpr Tile kTiles[] = {
    mma_tile(S, 128, 128, 64, 4, 1, 140.f),
    mma_tile(S, 64, 128, 64, 4, 2, 135.f),
    mma_tile(S, 64, 64, 32, 4, 3, 105.f),
};

struct Job {
  Gemm g;
  Parts a, b;
  int64_t z = 0;  // the launch's first matrix
};

template <Tile T>
struct Shared {
  PartsRing<T> ring;
  TileScales<T.threads(), T.BM, T.BN> scales;
};

template <int kRow>
__global__ void __launch_bounds__(kTiles[kRow].threads(), kTiles[kRow].min_blocks)
    kernel(const Job job) {
  constexpr Tile T = kTiles[kRow];
  constexpr int kM = T.WM / 16, kN = T.WN / 8, kSegment = S.segment / kSplitK;
  XGEMM_SHARED_DYNAMIC(shared, Shared<T>);
  PartsRing<T>& ring = shared.ring;
  const int64_t z = job.z + blockIdx.z;
  const Origin o = raster<T>(blockIdx.x, job.g);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int ty = warp / (T.BN / T.WN) * T.WM, tx = warp % (T.BN / T.WN) * T.WN;

  PartsCopies<T.threads(), T.BM> copies_a(job.a, z, o.i);
  PartsCopies<T.threads(), T.BN> copies_b(job.b, z, o.j);
  const int blocks = static_cast<int>(job.a.blocks);
  const auto copy = [&](int slice, int buffer) {
    if (slice < blocks) copies_a.copy(ring.a[buffer]), copies_b.copy(ring.b[buffer]);
    cp_async_commit();
  };
#pragma unroll 1
  for (int s = 0; s < T.buffers; ++s) copy(s, s);

  float sum[kM][4 * kN] = {}, rest[kM][kN][4] = {};
  const auto add_rest = [&] {
#pragma unroll
    for (int i = 0; i < kM; ++i)
#pragma unroll
      for (int e = 0; e < 4 * kN; ++e) {
        sum[i][e] = fmaf(rest[i][e / 4][e % 4], 1.f / S.lo_scale, sum[i][e]);
        rest[i][e / 4][e % 4] = 0.f;
      }
  };
  uint32_t a[kM][2][4], a_lo[2][2][4], b[kN][2][2], b_lo[kN][2][2];
  int now = 0;  // the buffer that is read
  cp_async_wait<T.buffers - 1>();
  __syncthreads();
  load_a(a_lo[0], &ring.a[now][ty], kLo);
  load_b(b, &ring.b[now][tx], kHi);
#pragma unroll 1
  for (int s = 0; s < blocks; ++s) {
#pragma unroll
    for (int i = 0; i < kM; ++i) {
      if (i + 1 < kM) load_a(a_lo[(i + 1) % 2], &ring.a[now][ty + 16 * (i + 1)], kLo);
      load_a(a[i], &ring.a[now][ty + 16 * i], kHi);
      multiply<S.type>(rest[i], a_lo[i % 2], b);
    }
    load_b(b_lo, &ring.b[now][tx], kLo);
#pragma unroll
    for (int i = 0; i < kM; ++i) {
      float main[kN][4] = {};
      multiply<S.type>(main, a[i], b);
#pragma unroll
      for (int e = 0; e < 4 * kN; ++e) sum[i][e] += main[e / 4][e % 4];
    }
    // All of this slice is in registers: its buffer is free, and the next slice can begin, the last
    // one with itself.
    cp_async_wait<T.buffers - 2>();
    __syncthreads();
    copy(s + T.buffers, now);
    if (s + 1 < blocks) now = now + 1 < T.buffers ? now + 1 : 0;
    load_a(a_lo[0], &ring.a[now][ty], kLo);
    load_b(b, &ring.b[now][tx], kHi);
#pragma unroll
    for (int i = 0; i < kM; ++i) multiply<S.type>(rest[i], a[i], b_lo);
    if ((s + 1) % kSegment == 0) add_rest();
  }
  add_rest();

  const Gemm g = job.g.at(z);
  const RowScale *rows = job.a.scales + job.a.first_row(z),
                 *columns = job.b.scales + job.b.first_row(z);
  shared.scales.load(g, rows, columns, o.i, o.j, threadIdx.x);
  __syncthreads();
  const int column = tx + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < kM; ++i)
    PartsEpilogue<kN>{.g = g,
                      .rows = rows,
                      .columns = columns,
                      .i = o.i + ty + 16 * i + lane / 4,
                      .j = o.j + column,
                      .undo = shared.scales.columns + column,
                      .plain = shared.scales.plain()}
        .store(sum[i]);
}

constexpr int kCluster = 1;  // of the split: sm_80 has none

size_t workspace(const Gemm& g, const Context& context) {
  return plan_split(g, S.parts, nullptr, context.packed_b).bytes;
}

template <int... kRow>
void run_row(Job job, const Context& context, std::integer_sequence<int, kRow...>) {
  static_assert(((sizeof(PartsRing<kTiles[kRow]>) == kTiles[kRow].smem()) && ...));
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
  const SplitPlan plan = plan_split(g, S.parts, context.workspace, context.packed_b);
  split<S, kCluster>(g, plan, context);
  run_row({.g = g, .a = plan.a, .b = plan.b}, context,
          std::make_integer_sequence<int, std::size(kTiles)>());
}

static const Register stage(
    kFlavour, {.name = "mma_fp16x3",
               .rung = 21,
               .idea = "operands in two fp16 parts, three products by mma.sync, added up in FP32",
               .source = "beyond the seeds",
               .tiles = {std::begin(kTiles), std::end(kTiles)},
               .min_sm = 80,
               .strict = false,
               .scheme = [](const Gemm&, const Context&) { return kFp16x3Words; },
               .workspace = workspace,
               .packed_bytes = packed_bytes,
               .pack = pack<kCluster>,
               .run = run});

}  // namespace xgemm::XGEMM_FLAVOUR::mma_fp16x3
