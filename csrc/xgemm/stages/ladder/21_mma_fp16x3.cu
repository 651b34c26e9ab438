// FP32 accuracy from the tensor cores of sm_80 and later: each operand in two fp16 limbs, three
// products by mma.sync, fed by cp.async.
//
// Tensor cores multiply 16-bit floats many times faster than FMA units multiply FP32, and they add
// up in FP32. So a float is written as the sum of two fp16 numbers: `hi` is the float rounded to
// fp16, `lo` is what that left, times two to the eleventh, so that it does not fall below what fp16
// can hold. Of the four products of limbs three matter, since lo times lo is below FP32's last bit.
//
// fp16 has a short range of exponents. Every row of A and every column of B is therefore scaled
// first, by a power of two that brings its largest element to the top of that range, which costs no
// bit; the epilogue takes the scales back out. A launch before the product does all this, once, and
// writes the limbs to a workspace; what is multiplied is read from there.
//
// Tensor cores truncate where FP32 arithmetic rounds, always toward zero, and over a long sum that
// adds up. So no long sum is left to them. `acc_hi`, the products hi x hi of one slice, is short,
// and is added to `acc` by an ordinary FP32 addition, which rounds to nearest. `acc_corr`, the two
// products with a `lo`, is two thousand times smaller, and so are its errors: it may run on for a
// whole segment of K.
//
// Of elements far smaller than their row's largest, two fp16 limbs cut off the last bits. Whether
// that matters is asked of the result: what was cut off are roundings, whose sum is bounded by
// their number and by the norms of the row and the column, and where it may show beside the
// result's own magnitude, the unit of 64 rows that the result is in is not stored but marked. A
// launch behind the product makes marked units anew by FP32 operations; mostly there are none, and
// it ends at once.
//
// against: cp_async_pipelined, as it has the same ring of slices, of other elements
// first: multiply_limbs
// origin: This project. Two fp16 limbs and sums that leave the tensor cores early are Ootomo's and
//   Yokota's ([arXiv:2203.03341](https://arxiv.org/abs/2203.03341)).

#include <algorithm>
#include <iterator>
#include <utility>

#include "xgemm/device/ptx/mma.h"
#include "xgemm/emulation/slabs.h"
#include "xgemm/epilogue/emulated.h"
#include "xgemm/mainloop/recompute.h"

namespace xgemm::XGEMM_FLAVOUR::mma_fp16x3 {

// Slices of operands in two 16-bit limbs, 32 deep, in shared memory: how cp.async fills a ring of
// them and how ldmatrix reads the tensor core's operands. Rows are A's, or B's columns.

// A row of a slice is 8 chunks of 16 bytes, the first limb's 4 and the other's 4; chunk c lies at
// c ^ (row % 8), so that chunks c of 8 rows are in all 32 banks. It is counted in floats, as
// cp.async counts.
constexpr int kRowFloats = kSliceK, kChunkFloats = 4, kChunks = kRowFloats / kChunkFloats;
constexpr int kHi = 0, kLo = kChunks / 2;  // the limbs' first chunks
using LimbsRow = float[kRowFloats];

// Warp tiles are WM x 32, in fragments of 16 x 8, of which a lane has 2 rows and 2 columns.
constexpr Tile mma_tile(EmulationScheme s, int BM, int BN, int WM, int buffers, int min_blocks,
                        float rate) {
  return {.BM = BM,
          .BN = BN,
          .BK = kSliceK,
          .WM = WM,
          .WN = 32,
          .TM = WM / 8,
          .TN = 8,
          .width = 4,
          .buffers = buffers,
          .a_rows = BM,
          .min_blocks = min_blocks,
          .element_bytes = 2 * s.limbs,
          .rate = rate};
}

template <Tile T>
struct LimbRing {
  LimbsRow a[T.buffers][T.BM];
  LimbsRow b[T.buffers][T.BN];
};

// One thread's share of an operand's L rows of each slice: a chunk of every kStep-th row. In place
// of a row beyond the operand one that exists is copied again; its results are not stored.
template <int kThreads, int L>
struct LimbCopies {
  static constexpr int kStep = kThreads / kChunks;
  static_assert(kThreads % kChunks == 0 && L % kStep == 0 && kStep % 8 == 0);

  const float* p;  // the thread's first chunk of the next slice
  int64_t step;  // from a chunk of the thread to its next
  int place;  // of the first chunk in shared memory
  int more;  // how much further down the operand has rows

  // Slices of matrix z of the batch, whose rows begin at l0.
  __device__ LimbCopies(const Limbs& limbs, int64_t z, int64_t l0) {
    const int row = threadIdx.x / kChunks, chunk = threadIdx.x % kChunks;
    const int last = static_cast<int>(limbs.rows - l0 < L ? limbs.rows - l0 : L) - 1;
    const int first = row < last ? row : last;
    const int64_t floats = limbs.blocks * kRowFloats;  // of a row
    p = static_cast<const float*>(limbs.data) + (limbs.first_row(z) + l0 + first) * floats +
        chunk * kChunkFloats;
    step = floats * kStep;
    place = row * kRowFloats + (chunk ^ row % 8) * kChunkFloats;
    more = last - first;
  }

  __device__ __forceinline__ void copy(LimbsRow (&slice)[L]) {
    const Smem to = Smem(slice[0]) + place;
    const float* from = p;
#pragma unroll
    for (int l = 0; l < L; l += kStep) {
      cp_async<16>(to + l * kRowFloats, from);
      if (l + kStep <= more) from += step;
    }
    p += kRowFloats;
  }
};

// One limb of 16 rows of A: operands of two mma, one for each 16 of k.
__device__ __forceinline__ void load_a(uint32_t (&a)[2][4], const LimbsRow* rows, int limb) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half)
    ldmatrix4(a[half], &rows[lane % 16][((limb + 2 * half + lane / 16) ^ lane % 8) * kChunkFloats]);
}

// The same of 8 columns of B, for kN times 8 of them.
template <int kN>
__device__ __forceinline__ void load_b(uint32_t (&b)[kN][2][2], const LimbsRow* columns, int limb) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int j = 0; j < kN; ++j) {
    uint32_t r[4];
    ldmatrix4(r, &columns[8 * j + lane % 8][((limb + lane / 8) ^ lane % 8) * kChunkFloats]);
#pragma unroll
    for (int q = 0; q < 4; ++q) b[j][q / 2][q % 2] = r[q];
  }
}

// acc += A B over the 32 of k, for 16 rows and kN times 8 columns.
template <Half kType, int kN>
__device__ __forceinline__ void multiply(float (&acc)[kN][4], const uint32_t (&a)[2][4],
                                         const uint32_t (&b)[kN][2][2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int j = 0; j < kN; ++j) mma<kType>(acc[j], a[half], b[j][half]);
}

// The main loop. The sums are those of emulated_wgmma.h; acc_hi is made for 16 rows at a time, so
// that it takes a few registers and not as many as a tile.
//
// acc += the warp's tile, which begins at (ty, tx) of the block's at `o`, of matrix z of the batch.
template <EmulationScheme S, Tile T>
__device__ __forceinline__ void multiply_limbs(float (&acc)[T.WM / 16][T.WN / 2], LimbRing<T>& ring,
                                               const Limbs& a_limbs, const Limbs& b_limbs,
                                               int64_t z, const TileCoord& o, int ty, int tx) {
  constexpr int kM = T.WM / 16, kN = T.WN / 8, kSegment = S.segment / kSliceK;
  LimbCopies<T.threads(), T.BM> copies_a(a_limbs, z, o.i);
  LimbCopies<T.threads(), T.BN> copies_b(b_limbs, z, o.j);
  const int blocks = static_cast<int>(a_limbs.blocks);
  const auto copy = [&](int slice, int buffer) {
    if (slice < blocks) copies_a.copy(ring.a[buffer]), copies_b.copy(ring.b[buffer]);
    cp_async_commit();
  };
#pragma unroll 1
  for (int s = 0; s < T.buffers; ++s) copy(s, s);

  float acc_corr[kM][kN][4] = {};
  const auto add_rest = [&] {
#pragma unroll
    for (int i = 0; i < kM; ++i)
#pragma unroll
      for (int e = 0; e < 4 * kN; ++e) {
        acc[i][e] = fmaf(acc_corr[i][e / 4][e % 4], 1.f / S.lo_scale, acc[i][e]);
        acc_corr[i][e / 4][e % 4] = 0.f;
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
      multiply<S.type>(acc_corr[i], a_lo[i % 2], b);
    }
    load_b(b_lo, &ring.b[now][tx], kLo);
#pragma unroll
    for (int i = 0; i < kM; ++i) {
      float acc_hi[kN][4] = {};
      multiply<S.type>(acc_hi, a[i], b);
#pragma unroll
      for (int e = 0; e < 4 * kN; ++e) acc[i][e] += acc_hi[e / 4][e % 4];
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
    for (int i = 0; i < kM; ++i) multiply<S.type>(acc_corr[i], a[i], b_lo);
    if ((s + 1) % kSegment == 0) add_rest();
  }
  add_rest();
}

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
  if (const int64_t i = o.i + threadIdx.x * kUnitRows; threadIdx.x < T.BM / kUnitRows && i < g.m)
    job.map.mark(job.map.unit_at(z, i, o.j, T.BN), worst, flags & kGivenFlags);
  if (worst >= Fate::recomputed || ((flags & kGivenFlags) && scales.all_given())) return;
#pragma unroll
  for (int i = 0; i < T.WM / 16; ++i) epilogue(i).store(sum[i]);
}

constexpr int kCluster = 1;  // of the decomposition: sm_80 has none

RecomputePlan plan_room(const Gemm& g, const DecomposePlan& plan, const Context& context) {
  return plan_recompute(g, plan, kTiles[context.row].BN, 0, 0, context);
}

Wave wave(const Context& context) {
  const Tile& t = kTiles[context.row];
  return {t.BM, t.BN, int64_t{t.min_blocks} * context.device.sm_count};
}

size_t workspace(const Gemm& g, const Context& context) {
  return workspace_of_slabs(g, S.limbs, wave(context), context,
                            [&](const Gemm& part, const DecomposePlan& plan) {
                              return plan_room(part, plan, context).bytes;
                            });
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
  for_each_slab(g, S.limbs, wave(context), context,
                [](const Gemm& part, const DecomposePlan& plan, const Context& its) {
                  const RecomputePlan room = plan_room(part, plan, its);
                  decompose<S, kCluster>(part, plan, its, room.clear);
                  run_row({.g = part, .a = plan.a, .b = plan.b, .map = room.job.map}, its,
                          std::make_integer_sequence<int, std::size(kTiles)>());
                  kTiles[its.row].BN == 128 ? launch_recompute<128>(room.job, its)
                                            : launch_recompute<64>(room.job, its);
                });
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
               .pack = pack<kCluster>,
               .sums_rows = sums_rows});

}  // namespace xgemm::XGEMM_FLAVOUR::mma_fp16x3
