// With a short K what is not a product counts: a block copies all that it needs of K at once, past
// the registers and from wherever operands begin, and its choices are made once, not per element.
#include <iterator>
#include <utility>

#include "xgemm/device/fragment.h"
#include "xgemm/device/launch.h"
#include "xgemm/mainloop/rank_k.h"

namespace xgemm::XGEMM_FLAVOUR::short_k {

constexpr int kDepth = 64;  // of K, in shared memory at once
constexpr int kSlice = 4;  // what K is padded to, and what is unrolled

constexpr Tile tile(int BM, int BN, int TM, int min_blocks, float rate) {
  return {.BM = BM,
          .BN = BN,
          .BK = kSlice,
          .TM = TM,
          .TN = kColumns,
          .buffers = kDepth / kSlice,
          .pad_b = 4,
          .a_rows = kSlice,
          .min_blocks = min_blocks,
          .rate = rate};
}
// For few columns, few rows, and small and large D.
constexpr Tile kTiles[] = {tile(128, 32, 8, 5, 20.f), tile(32, 128, 8, 5, 20.f),
                           tile(64, 64, 8, 5, 25.f), tile(128, 64, 16, 3, 30.f)};

// One k of the tile's operands. Rows are 4 banks apart modulo 32, so that 8 k of 4 neighbours, as a
// warp writes them, are in all 32.
template <Tile T>
struct alignas(16) Row {
  float a[T.BM], b[T.BN], pad[T.pad_b];
};

constexpr int whole_slices(int depth) { return (depth + kSlice - 1) / kSlice * kSlice; }

// What a block copies of an operand: `depth` of k from k0 on, of the rows from l0 on. Rows past the
// last are another's, or zeros: nobody stores their results.
struct Slice {
  const View<const float>& rows;
  int64_t l0, length, k0;
  int depth;
};

// kAtOnce copies one after the other: ptxas sets a run of them apart with three instructions.
constexpr int kAtOnce = 4;

// To to[k * kPitch + l], for L rows that lie along k: 8 lanes side by side.
template <int kThreads, int L, int kPitch>
__device__ __forceinline__ void copy_along(float* to, const Slice& s) {
  constexpr int kRun = 8, kStep = kThreads / kRun, kEach = L / kStep;
  const int l = threadIdx.x / kRun;
  int k = threadIdx.x % kRun;
  const float* p[kEach];
#pragma unroll
  for (int e = 0; e < kEach; ++e)
    p[e] = s.rows.ptr(min_of(s.l0 + l + e * kStep, s.length - 1), s.k0 + k);
  to += k * kPitch + l;
#pragma unroll 1
  for (; k < s.depth; k += kRun, to += kRun * kPitch) {
#pragma unroll
    for (int e = 0; e < kEach; ++e) cp_async<4>(to + e * kStep, p[e]);
#pragma unroll
    for (int e = 0; e < kEach; ++e) p[e] += kRun * s.rows.cs;
  }
}

// The same for rows side by side: a thread has W neighbours of every so manieth k.
template <int kThreads, int L, int kPitch, int W>
__device__ __forceinline__ void copy_across(float* to, const Slice& s) {
  constexpr int kLanes = L / W, kStep = kThreads / kLanes;
  const int l = threadIdx.x % kLanes * W;
  int k = threadIdx.x / kLanes;
  const auto left = static_cast<int>(min_of(s.length - s.l0, L)) - l;
  const float* p = s.rows.ptr(s.l0 + (left > 0 ? l : 0), s.k0 + k);
  const int64_t step = kStep * s.rows.cs;
  to += k * kPitch + l;
  if (W == 1 || left >= W) {
#pragma unroll 1
    for (; k + (kAtOnce - 1) * kStep < s.depth; k += kAtOnce * kStep) {
      const float* from[kAtOnce];
#pragma unroll
      for (const float*& each : from) each = p, p += step;
#pragma unroll
      for (int q = 0; q < kAtOnce; ++q) cp_async<4 * W>(to + q * kStep * kPitch, from[q]);
      to += kAtOnce * kStep * kPitch;
    }
  }
#pragma unroll 1
  for (; k < s.depth; k += kStep, to += kStep * kPitch, p += step)
    if (W == 1 || left >= W) cp_async<4 * W>(to, p);
    else cp_async_some<4 * W>(Smem(to), p, left > 0 ? left * 4 : 0);
}

// And k of padding up to whole slices.
template <int kThreads, int L, int kPitch>
__device__ __forceinline__ void copy(float* to, const Slice& s, bool along, float pad) {
  if (along) copy_along<kThreads, L, kPitch>(to, s);
  else if (s.rows.transposed().wide()) copy_across<kThreads, L, kPitch, 4>(to, s);
  else copy_across<kThreads, L, kPitch, 1>(to, s);
#pragma unroll 1
  for (int k = s.depth; k < whole_slices(s.depth); ++k)
    if (threadIdx.x < L) to[k * kPitch + threadIdx.x] = pad;
}

// Where a thread's part of the tile is. kWide: D's rows are stored in vectors, and lanes lie as
// 16-byte reads of shared memory want them; else a thread's columns are kStep apart, so that those
// of neighbouring lanes are neighbours.
template <Tile T, bool kWide>
struct Part {
  static constexpr int kLanes = kWide ? kLanesN : std::min(16, T.BN / kColumns);  // side by side
  static constexpr int kStep = kWide ? 1 : kLanes;
  static constexpr int kWarpRows = 32 / kLanes * T.TM, kWarpColumns = kLanes * kColumns;
  int row, column;

  __device__ __forceinline__ Part() {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    constexpr int kAcross = T.BN / kWarpColumns;
    row = warp / kAcross * kWarpRows + (kWide ? lane_row(lane) : lane / kLanes) * T.TM;
    column = warp % kAcross * kWarpColumns + (kWide ? lane_column(lane) * kColumns : lane % kLanes);
  }
};

template <int kRow, bool kWide>
__global__ void __launch_bounds__(kTiles[kRow].threads(), kTiles[kRow].min_blocks)
    kernel(const Gemm batch) {
  constexpr Tile T = kTiles[kRow];
  using Mine = Part<T, kWide>;
  constexpr int kPitch = sizeof(Row<T>) / sizeof(float);
  static_assert(kPitch % 32 == 4 && sizeof(Row<T>) * kDepth == T.smem());
  XGEMM_SHARED_DYNAMIC(first, Row<T>);  // and so many as K has, up to kDepth
  const Gemm g = batch.at(blockIdx.z);
  const TileCoord o = swizzled_tile<uint32_t>(blockIdx.x, g.m, g.n, T.BM, T.BN, T.group);
  const View<const float> columns = g.b.transposed();
  const bool a_along = along_k(g.a, g.m, g.k), b_along = along_k(columns, g.n, g.k);
  const Mine mine;
  float acc[T.TM][kColumns] = {};
  take_turn();
#pragma unroll 1
  for (int64_t k0 = 0; k0 < g.k; k0 += kDepth) {
    const int depth = slice_depth(g.k, k0, kDepth);
    if (k0 > 0) __syncthreads();  // all have read the slice before
    copy<T.threads(), T.BM, kPitch>(first.a, {g.a, o.i, g.m, k0, depth}, a_along, kPadA);
    copy<T.threads(), T.BN, kPitch>(first.b, {columns, o.j, g.n, k0, depth}, b_along, kPadB);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    const Smem a_at(&first.a[mine.row]), b_at(&first.b[mine.column]);
#pragma unroll 1
    for (int k = 0; k < depth; k += kSlice)
#pragma unroll
      for (int q = 0; q < kSlice; ++q) {
        const int at = (k + q) * kPitch;
        float ra[T.TM], rb[kColumns];
        load_fragment<4>(ra, a_at + at);
        if constexpr (kWide) {
          load4(rb, b_at + at);
        } else {
#pragma unroll
          for (int c = 0; c < kColumns; ++c) load1(&rb[c], b_at + (at + c * Mine::kStep));
        }
        outer_product<Order::columns>(acc, ra, rb);
      }
  }
  const int64_t j = o.j + mine.column;
  store<Mine::kStep>(g, acc, o.i + mine.row, j, kWide && j + 3 < g.n);
}

template <int kRow>
void run_row(const Gemm& all, const Context& context) {
  constexpr Tile T = kTiles[kRow];
  // D's rows are those that lie in one piece.
  const Gemm g = all.d.cs != 1 && all.d.rs == 1 ? transposed(all) : all;
  const int depth = whole_slices(static_cast<int>(min_of(std::max<int64_t>(g.k, 1), kDepth)));
  launch_tiles(g.d.wide() ? kernel<kRow, true> : kernel<kRow, false>, g, T, dim3(T.threads()),
               context, static_cast<size_t>(depth) * sizeof(Row<T>), true);
}

void run(const Gemm& g, const Context& context) {
  constexpr void (*rows[])(const Gemm&, const Context&) = {run_row<0>, run_row<1>, run_row<2>,
                                                           run_row<3>};
  static_assert(std::size(rows) == std::size(kTiles));
  rows[context.row](g, context);
}

static const Register<run> stage(
    kFlavour, {.name = "short_k",
               .rung = 33,
               .idea = "a short K: all of it copied at once, and few instructions besides FFMA",
               .source = "this project",
               .tiles = {std::begin(kTiles), std::end(kTiles)},
               .min_sm = 80});

}  // namespace xgemm::XGEMM_FLAVOUR::short_k
