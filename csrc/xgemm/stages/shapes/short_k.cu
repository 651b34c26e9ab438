// With a short K what is not a product counts: a block copies its operands past the registers, from
// wherever they begin and in long runs, and its choices are made once, not per element.
//
// With K = 16 an element of D is 16 products, and everything else that is done for it weighs as
// much: its share of the copies, of the addresses, of the epilogue's choices. cuBLAS's kernels for
// such problems execute half the instructions of this ladder's rungs, at the same issue rate, and
// that is their lead. So this rung counts instructions. Copies go past the registers, 4 or 16 bytes
// at a time, from wherever operands begin: no launch before makes aligned rows of them. They come
// in runs without an address between, since ptxas sets every run of asynchronous copies apart with
// three instructions; where rows lie along K, the four copies of a row and a chunk differ by a
// constant. Padding is for the last four of K alone.
//
// A chunk is 32 deep, and a block has room for two: one is on its way while the other is
// multiplied. With one chunk of 64, a K of 100 waited twice for all of its copies, and 3442 x 250 x
// 117 took an eighth longer (H100). What remains beside cuBLAS at such sizes is how few blocks
// there are: 108 tiles of 128 x 64 on 132 multiprocessors.
//
// Where D's rows cannot be stored in vectors, a thread's four columns lie apart, so that
// neighbouring lanes write neighbouring floats: four in a row for each thread would write each
// sector four times in parts. The epilogue asks once whether rows are whole, and a column's address
// is a constant away from the row's.
//
// against: outer, as both are for a short K, and have the same epilogue
// first: kernel

#include <algorithm>
#include <iterator>

#include "xgemm/device/fragment.h"
#include "xgemm/device/launch.h"
#include "xgemm/mainloop/rank_k.h"

namespace xgemm::XGEMM_FLAVOUR::short_k {

constexpr int kDepth = 64;  // of K, in shared memory at once ...
constexpr int kChunk = kDepth / 2;  // ... of which half is copied while the other is multiplied
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

// How a block copies one operand, chunk after chunk: L rows from l0 on. Rows past the last are
// another's, or zeros: nobody stores their results. ptxas sets a run of copies apart with three
// instructions: addresses first, then copies together.
template <int kThreads, int L, int kPitch>
class Copies {
  // Rows that lie along k: 8 lanes side by side, a row and a thread's next kStep apart.
  static constexpr int kRun = 8, kStep = kThreads / kRun, kEach = L / kStep;
  // Rows side by side: a thread has W neighbours of every kApart<W>th k.
  template <int W>
  static constexpr int kLanes = L / W;
  template <int W>
  static constexpr int kApart = kThreads / kLanes<W>;

  const View<const float>& rows;
  const float* p;  // the thread's first element of the next chunk
  int left;  // rows from the thread's first on
  bool along, wide;

 public:
  __device__ __forceinline__ Copies(const View<const float>& rows_of, int64_t l0, int64_t length,
                                    int64_t K)
      : rows(rows_of), along(along_k(rows, length, K)), wide(rows.transposed().wide()) {
    const auto thread = static_cast<int>(threadIdx.x);
    const int lanes = wide ? kLanes<4> : kLanes<1>;
    const int l = along ? thread / kRun : thread % lanes * (wide ? 4 : 1);
    left = static_cast<int>(min_of(length - l0, L)) - l;
    // l0 exists, and is aligned where vectors move: not so the last row.
    p = rows.ptr(left > 0 ? l0 + l : l0, along ? thread % kRun : thread / lanes);
  }

  // To to[k * kPitch + l]: the next `depth` of K, and k of padding up to whole slices.
  __device__ __forceinline__ void next(float* to, int depth, float pad) {
    if (along) next_along(to, depth);
    else if (wide) next_across<4>(to, depth);
    else next_across<1>(to, depth);
#pragma unroll 1
    for (int k = depth; k < whole_slices(depth); ++k)
      if (threadIdx.x < L) to[k * kPitch + threadIdx.x] = pad;
  }

 private:
  // kDeep runs of k from p on, `run` floats apart.
  template <int kDeep>
  __device__ __forceinline__ void copy_runs(float* to, int64_t run) const {
    constexpr int kAtOnce = std::min(4, kEach);
    const int64_t far = kStep * rows.rs;
    const float* last = p;
#pragma unroll
    for (int e0 = 0; e0 < kEach; e0 += kAtOnce) {
      const float* from[kAtOnce];
#pragma unroll
      for (int e = 0; e < kAtOnce; ++e) {
        from[e] = last;
        if ((e0 + e + 1) * kStep < left) last += far;  // no further than the last row
      }
#pragma unroll
      for (int e = 0; e < kAtOnce; ++e)
#pragma unroll
        for (int q = 0; q < kDeep; ++q)
          cp_async<4>(to + q * kRun * kPitch + (e0 + e) * kStep, from[e] + q * run);
    }
  }
  __device__ __forceinline__ void next_along(float* to, int depth) {
    int k = threadIdx.x % kRun;
    to += k * kPitch + threadIdx.x / kRun;
    if (depth == kChunk && rows.cs == 1) {
      copy_runs<kChunk / kRun>(to, kRun);
      p += kChunk;
      return;
    }
#pragma unroll 1
    for (; k < depth; k += kRun, to += kRun * kPitch, p += kRun * rows.cs) copy_runs<1>(to, 0);
  }

  template <int W>
  __device__ __forceinline__ void next_across(float* to, int depth) {
    constexpr int kNext = kApart<W>, kAtOnce = std::min(4, kChunk / kNext);
    const auto thread = static_cast<int>(threadIdx.x);
    const int64_t far = kNext * rows.cs;
    int k = thread / kLanes<W>;
    to += k * kPitch + thread % kLanes<W> * W;
    if (W == 1 || left >= W) {
#pragma unroll 1
      for (; k + (kAtOnce - 1) * kNext < depth; k += kAtOnce * kNext) {
        const float* from[kAtOnce];
#pragma unroll
        for (const float*& each : from) each = p, p += far;
#pragma unroll
        for (int q = 0; q < kAtOnce; ++q) cp_async<4 * W>(to + q * kNext * kPitch, from[q]);
        to += kAtOnce * kNext * kPitch;
      }
    }
#pragma unroll 1
    for (; k < depth; k += kNext, to += kNext * kPitch, p += far)
      if (W == 1 || left >= W) cp_async<4 * W>(to, p);
      else cp_async_some<4 * W>(Smem(to), p, left > 0 ? left * 4 : 0);
  }
};

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
  const Mine mine;
  const View<const float> bt = g.b.transposed();
  Copies<T.threads(), T.BM, kPitch> rows(g.a, o.i, g.m, g.k);
  Copies<T.threads(), T.BN, kPitch> columns(bt, o.j, g.n, g.k);
  float acc[T.TM][kColumns] = {};
  take_turn();
  // Copies of a chunk are on their way while the one before is multiplied.
#pragma unroll 1
  for (int64_t k0 = 0;; k0 += kChunk) {
    constexpr int kBuffer = kChunk * kPitch;
    const int buffer = k0 / kChunk % 2 * kBuffer;
    if (k0 < g.k) {
      const int depth = slice_depth(g.k, k0, kChunk);
      rows.next(first.a + buffer, depth, kPadA);
      columns.next(first.b + buffer, depth, kPadB);
    }
    cp_async_commit();
    if (k0 == 0) continue;
    cp_async_wait<1>();
    __syncthreads();  // the chunk before is there
    const int depth = slice_depth(g.k, k0 - kChunk, kChunk), at = kBuffer - buffer;
    const Smem a_at(&first.a[at + mine.row]), b_at(&first.b[at + mine.column]);
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
    if (k0 >= g.k) break;
    __syncthreads();  // all have read it
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
               .idea = "a short K: copies from any alignment, and few instructions besides FFMA",
               .source = "this project",
               .tiles = {std::begin(kTiles), std::end(kTiles)},
               .min_sm = 80});

}  // namespace xgemm::XGEMM_FLAVOUR::short_k
