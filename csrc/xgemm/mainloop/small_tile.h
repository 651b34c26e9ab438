// The strict main loop for small products, of which a GPU has only a few warps: small tiles, so
// that all schedulers have a warp, and nothing on a thread's way but latency. As much of K as fits
// is on its way before the first wait; slices lie as their operands do, so that all copies are 16
// bytes wide; and fragments are read four k at a time, ahead of their products.
//
// Reads of shared memory are what bounds it: they return a float to every lane of one warp in a
// cycle, whatever lanes have in common, which is TM + TN cycles of a multiprocessor for a warp's
// row of products (measured on an H200: 2 x 2 takes 16 cycles for four warps, 4 x 4 some 35).
#pragma once

#include "xgemm/core/tile_scheduler.h"
#include "xgemm/device/fragment.h"
#include "xgemm/device/ptx/base.h"

namespace xgemm {

constexpr int kQuad = 4;  // of k, in a fragment
constexpr int kStepK = 16;  // of k, that the main loop unrolls; K is padded to so many
constexpr int kQuads = kStepK / kQuad;

// One thread's share of an L x BK slice that lies as its operand: S[l][k] where that is contiguous
// along k (kAlongK), else S[k][l]. Lines along k are padded: eight of them lie in different banks.
template <int kThreads, int L, int BK, bool kAlongK>
struct NativeLoader {
  static constexpr int kRun = kAlongK ? BK : L, kLines = kAlongK ? L : BK;
  static constexpr int kRow = kRun + (kAlongK ? 4 : 0);
  static constexpr int kLanes = kRun / 4, kStep = kThreads / kLanes, kEach = kLines / kStep;
  static_assert(kLanes * kStep == kThreads && kEach * kStep == kLines);
  using Slice = float[kLines][kRow];

  View<const float> from;  // rows along k, from the slices' first one on
  int64_t depth;           // K
  const float* p;          // the thread's first element of the next slice
  int64_t step, next;      // from its vector to the next, and from its slice
  int rows;                // that there are, at most L
  int whole;               // slices that have no edge and move in vectors
  bool wide;
  float pad;

  __device__ NativeLoader(const View<const float>& rows_of, int64_t l0, int64_t length, int64_t K,
                          float pad_)
      : from(rows_of), depth(K), pad(pad_) {
    const int line = threadIdx.x / kLanes, run = threadIdx.x % kLanes * 4;
    from.data = rows_of.ptr(l0, 0);
    wide = kAlongK ? rows_of.wide() : rows_of.transposed().wide();
    rows = static_cast<int>(length - l0 < L ? length - l0 : L);
    whole = wide && rows == L ? static_cast<int>(K / BK) : 0;
    step = (kAlongK ? from.rs : from.cs) * kStep;
    next = kAlongK ? BK : from.cs * BK;
    p = kAlongK ? from.ptr(line, run) : from.ptr(run, line);
  }

  // Issues the next slice, which is number `slice`.
  __device__ __forceinline__ void copy(Slice& S, int slice) {
    if (slice < whole) {
      const Smem to(&S[threadIdx.x / kLanes][threadIdx.x % kLanes * 4]);
      const float* q = p;
#pragma unroll
      for (int e = 0; e < kEach; ++e, q += step) cp_async<16>(to + e * kStep * kRow, q);
      p += next;
    } else if (wide) {
      copy_edge<4>(S, slice);
    } else {
      copy_edge<1>(S, slice);
    }
  }

  // Any slice of any operand, kWide floats at a time. Past K S holds `pad` as far as the products
  // go; rows that are not there are of no result, but something is read of them.
  template <int kWide>
  __device__ __forceinline__ void copy_edge(Slice& S, int slice) const {
    constexpr int kAcross = kRun / kWide, kDown = kThreads / kAcross;
    [[maybe_unused]] constexpr int kUnroll = kWide == 1 ? 4 : 1;
    static_assert(kAcross * kDown == kThreads && kLines % kDown == 0);
    const int64_t k0 = static_cast<int64_t>(slice) * BK;
    const int left = slice_depth(depth, k0, BK), padded = (left + kStepK - 1) / kStepK * kStepK;
    const int first = threadIdx.x / kAcross, run = threadIdx.x % kAcross * kWide;
    const float* q = from.ptr(kAlongK ? first : run, k0 + (kAlongK ? run : first));
    const int64_t down = (kAlongK ? from.rs : from.cs) * kDown;
#pragma unroll kUnroll
    for (int line = first; line < kLines; line += kDown, q += down) {
      if ((kAlongK ? run : line) >= padded) continue;
      const int inside = line < (kAlongK ? rows : left) ? (kAlongK ? left : rows) - run : 0;
      if (inside >= kWide) {
        cp_async<kWide * 4>(&S[line][run], q);
      } else {
#pragma unroll
        for (int e = 0; e < kWide; ++e) S[line][run + e] = e < inside ? q[e] : pad;
      }
    }
  }
};

// Four k of a thread's kCount rows of an operand.
template <int kCount, int kLanes, int kRow, bool kAlongK>
struct Quad {
  // The thread's i-th row, from its first: lanes lie side by side between two of its rows, or the
  // rows do, four at most: a warp's 16-byte reads are then of neighbours.
  static constexpr int kSide = kAlongK ? 1 : kCount < 4 ? kCount : 4;
  static constexpr XGEMM_HD int row(int i) { return i / kSide * kSide * kLanes + i % kSide; }
  static constexpr int kNext = kAlongK ? kQuad : kQuad * kRow;  // floats, to the next four k
  float r[kAlongK ? kCount : kQuad][kAlongK ? kQuad : kCount];

  static __device__ __forceinline__ int first_row(int lane) { return lane * kSide; }
  static __device__ __forceinline__ int place(int row) { return kAlongK ? row * kRow : row; }

  __device__ __forceinline__ void load(Smem from) {
    if constexpr (kAlongK) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) load4(r[i], from + i * kLanes * kRow);
    } else {
#pragma unroll
      for (int k = 0; k < kQuad; ++k) {
        const Smem line = from + k * kRow;
        if constexpr (kCount % 4 == 0) {
#pragma unroll
          for (int i = 0; i < kCount; i += 4) load4(r[k] + i, line + row(i));
        } else if constexpr (kCount % 2 == 0) {
#pragma unroll
          for (int i = 0; i < kCount; i += 2) load2(r[k] + i, line + i);
        } else {
#pragma unroll
          for (int i = 0; i < kCount; ++i) load1(r[k] + i, line + i);
        }
      }
    }
  }
  __device__ __forceinline__ float at(int k, int i) const { return kAlongK ? r[i][k] : r[k][i]; }
};

template <Tile T, bool kA, bool kB>
struct NativeRing {
  using A = NativeLoader<T.threads(), T.BM, T.BK, kA>;
  using B = NativeLoader<T.threads(), T.BN, T.BK, kB>;
  typename A::Slice a[T.buffers];
  typename B::Slice b[T.buffers];
};

// kRows of a thread's results from row kFirst on, in the rows of two Quads from (i, j) on: C is
// read before D is written, since they may be one, and all of it at once.
template <class QuadM, class QuadN, int kFirst, int kRows, int TM, int TN>
__device__ __forceinline__ void store_rows(const Gemm& g, int64_t i, int64_t j,
                                           float (&acc)[TM][TN]) {
  const auto each = [&](auto go) {
#pragma unroll
    for (int r = kFirst; r < kFirst + kRows; ++r)
#pragma unroll
      for (int s = 0; s < TN; ++s) go(r, s, i + QuadM::row(r), j + QuadN::row(s));
  };
  const auto exists = [&](int64_t y, int64_t x) { return y < g.m && x < g.n; };
  float c[kRows][TN] = {};
  if (g.beta != 0.f)
    each([&](int r, int s, int64_t y, int64_t x) {
      if (exists(y, x)) c[r - kFirst][s] = g.c(y, x);
    });
  // Gemm::finish, asked once which way it goes: a tile of a short K has few products to hide that.
  if (g.act != Act::none)
    each(
        [&](int r, int s, int64_t, int64_t) { acc[r][s] = g.finish(acc[r][s], c[r - kFirst][s]); });
  else if (g.beta != 0.f)
    each(
        [&](int r, int s, int64_t, int64_t) { acc[r][s] = g.with_c(acc[r][s], c[r - kFirst][s]); });
  else each([&](int r, int s, int64_t, int64_t) { acc[r][s] = g.without_c(acc[r][s]); });
  if (QuadN::kSide == 4 && g.d.wide() && j + QuadN::row(TN - 1) < g.n) {
#pragma unroll
    for (int r = kFirst; r < kFirst + kRows; ++r)
      if (i + QuadM::row(r) < g.m)
#pragma unroll
        for (int s = 0; s < TN; s += 4)
          store4(g.d.ptr(i + QuadM::row(r), j + QuadN::row(s)),
                 make_float4(acc[r][s], acc[r][(s + 1) % TN], acc[r][(s + 2) % TN],
                             acc[r][(s + 3) % TN]));
    return;
  }
  each([&](int r, int s, int64_t y, int64_t x) {
    if (exists(y, x)) g.d(y, x) = acc[r][s];
  });
}

// All of a thread's results; of 8 x 8 half at a time, for there are no registers for as many of C.
template <class QuadM, class QuadN, int TM, int TN>
__device__ __forceinline__ void store_spread(const Gemm& g, int64_t i, int64_t j,
                                             float (&acc)[TM][TN]) {
  constexpr int kRows = TM * TN < 64 ? TM : TM / 2;
  store_rows<QuadM, QuadN, 0, kRows>(g, i, j, acc);
  if constexpr (kRows < TM) store_rows<QuadM, QuadN, kRows, TM - kRows>(g, i, j, acc);
}

template <Tile T, bool kA, bool kB>
__device__ __forceinline__ void multiply_whole_k(NativeRing<T, kA, kB>& ring, const Gemm& g,
                                                 const TileCoord& o) {
  using Ring = NativeRing<T, kA, kB>;
  using QuadA = Quad<T.TM, kLanesM, Ring::A::kRow, kA>;
  using QuadB = Quad<T.TN, kLanesN, Ring::B::kRow, kB>;
  constexpr int TM = T.TM, TN = T.TN, kBuffers = T.buffers;
  constexpr int kSteps = T.BK / kStepK;  // of a slice
  constexpr int kSliceA = sizeof(typename Ring::A::Slice) / 4,
                kSliceB = sizeof(typename Ring::B::Slice) / 4;
  static_assert(kSteps * kStepK == T.BK);
  typename Ring::A from_a(g.a, o.i, g.m, g.k, kPadA);
  typename Ring::B from_b(g.b.transposed(), o.j, g.n, g.k, kPadB);
  const int slices = static_cast<int>(ceil_div(g.k, T.BK));
  const auto copy = [&](int slice, int buffer) {
    if (slice < slices) from_a.copy(ring.a[buffer], slice), from_b.copy(ring.b[buffer], slice);
    cp_async_commit();
  };
  take_turn();
#pragma unroll 1
  for (int s = 0; s < kBuffers; ++s) copy(s, s);

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row = warp / (T.BN / T.WN) * T.WM + QuadA::first_row(lane_row(lane));
  const int column = warp % (T.BN / T.WN) * T.WN + QuadB::first_row(lane_column(lane));
  float acc[TM][TN] = {};
  QuadA qa[2];  // one is multiplied while the next is read: more ahead is slower
  QuadB qb[2];
  const Smem first_a = Smem(&ring.a[0][0][0]) + QuadA::place(row),
             first_b = Smem(&ring.b[0][0][0]) + QuadB::place(column);
  Smem as = first_a, bs = first_b;
  const int steps = static_cast<int>(ceil_div(g.k, kStepK));
  if (steps > 0) {
    cp_async_wait<kBuffers - 1>();
    __syncthreads();
    qa[0].load(as), qb[0].load(bs);
  }
  int now = 0, slice = 0;  // where fragments are read
#pragma unroll 1
  for (int step = 0; step < steps; ++step)
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      if (q + 1 == kQuads && step + 1 < steps) {
        as = as + kQuads * QuadA::kNext, bs = bs + kQuads * QuadB::kNext;
        if ((step + 1) % kSteps == 0) {  // in the next slice
          cp_async_wait<kBuffers - 2>();
          __syncthreads();
          copy(slice + kBuffers, now);
          ++slice, now = now + 1 < kBuffers ? now + 1 : 0;
          as = first_a + now * kSliceA, bs = first_b + now * kSliceB;
        }
      }
      const int to = (q + 1) % kQuads;
      qa[(q + 1) % 2].load(as + to * QuadA::kNext);
      qb[(q + 1) % 2].load(bs + to * QuadB::kNext);
#pragma unroll
      for (int k = 0; k < kQuad; ++k)
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
          for (int s = 0; s < TN; ++s) {
            const int j = i % 2 ? TN - 1 - s : s;  // back and forth, as outer_product
            acc[i][j] = fmaf(qa[q % 2].at(k, i), qb[q % 2].at(k, j), acc[i][j]);
          }
    }
  store_spread<QuadA, QuadB>(g, o.i + row, o.j + column, acc);
}

// Many tiles a block, of one matrix or of several: the ring runs on from tile to tile, so that the
// next one's slices are on their way while this one is multiplied and stored. For tiles of a short
// K, of which a block has little else to do than to wait.
template <Tile T, bool kA, bool kB>
__device__ __forceinline__ void multiply_batch(NativeRing<T, kA, kB>& ring, const Gemm& batch) {
  using Ring = NativeRing<T, kA, kB>;
  using QuadA = Quad<T.TM, kLanesM, Ring::A::kRow, kA>;
  using QuadB = Quad<T.TN, kLanesN, Ring::B::kRow, kB>;
  constexpr int TM = T.TM, TN = T.TN, kBuffers = T.buffers;
  constexpr int kSliceA = sizeof(typename Ring::A::Slice) / 4,
                kSliceB = sizeof(typename Ring::B::Slice) / 4;
  constexpr int kSteps = T.BK / kStepK;  // of a slice
  static_assert(kSteps * kStepK == T.BK && kBuffers > 1);
  const int steps = static_cast<int>(ceil_div(batch.k, kStepK));
  const int slices = steps ? (steps - 1) / kSteps + 1 : 1;
  const auto origin = [&](const BatchWalk& w) {
    return w.tiles == 1 ? TileCoord{0, 0}
                        : swizzled_tile<uint32_t>(w.tile, batch.m, batch.n, T.BM, T.BN, T.group);
  };
  BatchWalk now(blockIdx.x, gridDim.x, static_cast<uint32_t>(tile_count(batch, T.BM, T.BN)));
  BatchWalk ahead = now;  // the tile whose slices are copied
  const auto loader_a = [&] {
    return typename Ring::A(batch.at(ahead.z).a, origin(ahead).i, batch.m, batch.k, kPadA);
  };
  const auto loader_b = [&] {
    const View<const float> b = batch.at(ahead.z).b.transposed();
    return typename Ring::B(b, origin(ahead).j, batch.n, batch.k, kPadB);
  };
  typename Ring::A from_a = loader_a();
  typename Ring::B from_b = loader_b();
  int next = 0;  // slice of that tile
  const auto copy = [&](int buffer) {
    if (ahead.z < batch.batch) {
      from_a.copy(ring.a[buffer], next), from_b.copy(ring.b[buffer], next);
      if (++next == slices) {
        next = 0, ahead.next();
        if (ahead.z < batch.batch) from_a = loader_a(), from_b = loader_b();
      }
    }
    cp_async_commit();
  };
  take_turn();
#pragma unroll 1
  for (int s = 0; s + 1 < kBuffers; ++s) copy(s);

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row = warp / (T.BN / T.WN) * T.WM + QuadA::first_row(lane_row(lane));
  const int column = warp % (T.BN / T.WN) * T.WN + QuadB::first_row(lane_column(lane));
  const Smem first_a = Smem(&ring.a[0][0][0]) + QuadA::place(row),
             first_b = Smem(&ring.b[0][0][0]) + QuadB::place(column);
  int buffer = 0;
#pragma unroll 1
  for (; now.z < batch.batch; now.next()) {
    float acc[TM][TN] = {};
#pragma unroll 1
    for (int left = steps, slice = 0; slice < slices; ++slice) {
      cp_async_wait<kBuffers - 2>();
      __syncthreads();
      copy(buffer ? buffer - 1 : kBuffers - 1);
      QuadA qa[2];  // one is multiplied while the next is read
      QuadB qb[2];
      Smem as = first_a + buffer * kSliceA, bs = first_b + buffer * kSliceB;
      const int in_slice = left < kSteps ? left : kSteps;
      if (in_slice > 0) qa[0].load(as), qb[0].load(bs);
#pragma unroll 1
      for (int step = 0; step < in_slice; ++step)
#pragma unroll
        for (int q = 0; q < kQuads; ++q) {
          if (q + 1 < kQuads || step + 1 < in_slice) {
            as = as + QuadA::kNext, bs = bs + QuadB::kNext;
            qa[(q + 1) % 2].load(as), qb[(q + 1) % 2].load(bs);
          }
#pragma unroll
          for (int k = 0; k < kQuad; ++k)
#pragma unroll
            for (int i = 0; i < TM; ++i)
#pragma unroll
              for (int s = 0; s < TN; ++s) {
                const int j = i % 2 ? TN - 1 - s : s;  // back and forth, as outer_product
                acc[i][j] = fmaf(qa[q % 2].at(k, i), qb[q % 2].at(k, j), acc[i][j]);
              }
        }
      left -= kSteps;
      buffer = buffer + 1 < kBuffers ? buffer + 1 : 0;
    }
    const TileCoord o = origin(now);
    store_spread<QuadA, QuadB>(batch.at(now.z), o.i + row, o.j + column, acc);
  }
}

}  // namespace xgemm
