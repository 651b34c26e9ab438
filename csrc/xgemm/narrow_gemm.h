// The main loop of narrow products: a block's share of a tile. wgmma has D transposed, so that the
// longer side of D is its 64 rows, and takes that operand from registers.
#pragma once

#include <type_traits>

#include "xgemm/register_split.h"
#include "xgemm/ring.h"
#include "xgemm/shares.h"

namespace xgemm {
inline namespace XGEMM_FLAVOUR {

constexpr Scheme kNarrowScheme = kBf16x6;
// In slices, after which the sums of the smaller products are added to the others.
constexpr int kNarrowSegment = kNarrowScheme.segment / kSliceK;
// A thread's, of a tile with BM rows.
template <int BM>
constexpr int kNarrowSums = BM * kLong / kShareThreads;
// Registers of a thread that multiplies, and on average of one that splits or loads D's rows.
constexpr int kNarrowRegisters = 208, kSplitterRegisters = 56, kLoaderRegisters = 40;
static_assert(kSplitters == kLoaders &&
              registers_suffice(1, kShareThreads, kNarrowRegisters, kSplitters + kLoaders,
                                (kSplitterRegisters + kLoaderRegisters) / 2));
constexpr int kShareWarps = (kShareThreads + kSplitters) / 32;
constexpr int kNarrowThreads = kShareThreads + kSplitters + kLoaders;
// Slices in parts; and those on their way from gmem, of columns and of rows.
constexpr int kNarrowBuffers = 4, kColumnsAhead = 6, kRowsAhead = 4;

// Whether columns come in registers, two slices at a time. With many rows wgmma itself reads shared
// memory half of the time; with few, more must be on its way than registers hold.
template <int BM>
constexpr bool kInRegisters = BM >= 64;

// A block's shared memory. D's rows go as they are from the threads that load them to those that
// split them, and in parts from these to those that multiply.
template <int BM, bool kA, bool kB>
struct NarrowRing {
  using Rows = SharedParts<kSplitters, BM, kA>;
  using Columns = RegisterParts<kShareThreads, kB>;
  typename Rows::Slice slices[kNarrowBuffers];
  typename Columns::Raw columns[kInRegisters<BM> ? 1 : kColumnsAhead];
  typename Rows::Raw rows[kRowsAhead];
  Mbarrier full[kNarrowBuffers], empty[kNarrowBuffers];  // of slices
  Mbarrier landed[kRowsAhead], taken[kRowsAhead];  // of rows
  uint32_t strange[kShareWarps];  // what each warp has seen: see Reach ...
  float told;  // ... and all of them, as bits, for the cluster

  // Where slices have been.
  __device__ __forceinline__ NarrowSums<BM>& sums() {
    static_assert(sizeof(NarrowSums<BM>) <= sizeof slices);
    return *reinterpret_cast<NarrowSums<BM>*>(&slices);
  }

  // What is strange of a warp's elements.
  __device__ __forceinline__ void tell(const Reach& reach) {
    const uint32_t seen = __reduce_or_sync(0xffffffffu, reach.strange());
    if (threadIdx.x % 32 == 0) strange[threadIdx.x / 32] = seen;
  }
  // Of all of the block, once all have told.
  __device__ __forceinline__ uint32_t all_told() const {
    const int warp = threadIdx.x % 32;
    return __reduce_or_sync(0xffffffffu, warp < kShareWarps ? strange[warp] : 0);
  }

  // By all threads of the block.
  __device__ __forceinline__ void init() {
    if (threadIdx.x == 0) {
      for (int s = 0; s < kNarrowBuffers; ++s) {
        mbarrier_init(&full[s], kSplitters);
        mbarrier_init(&empty[s], kShareThreads / 128);
      }
      for (int s = 0; s < kRowsAhead; ++s) {
        mbarrier_init(&landed[s], kLoaders);
        mbarrier_init(&taken[s], kSplitters);
      }
      fence_barrier_init();
    }
    __syncthreads();
  }
};

// How many slices a share has: one at least, of zeros where there is no k.
__device__ __forceinline__ int slices_between(int64_t k0, int64_t k1) {
  return k1 > k0 ? static_cast<int>((k1 - k0 + kSliceK - 1) / kSliceK) : 1;
}

// Asks for the slice of D's columns at k to come to L2: a thread for 32 floats, if they lie
// together.
template <bool kB>
__device__ __forceinline__ void fetch_ahead(const Gemm& g, const Origin& o, int64_t k, int64_t k1) {
  static_assert(kLong == kLoaders && kSliceK * kLong == 32 * kLoaders);
  const int thread = static_cast<int>(threadIdx.x) % kLoaders;
  const int64_t column = o.j + (kB ? thread : thread % 4 * 32), at = k + (kB ? 0 : thread / 4);
  if (column < g.n && at < k1) prefetch_to_l2(g.b.ptr(at, column));
}

// gmem -> smem: D's rows from k0 to k1. Not by the threads that split them: those need a fence a
// slice, and a fence waits for whatever its thread has asked for.
template <int BM, bool kA, bool kB>
__device__ __forceinline__ void load_rows(NarrowRing<BM, kA, kB>& ring, const Gemm& g,
                                          const Origin& o, int64_t k0, int64_t k1) {
  const int count = slices_between(k0, k1);
  SharedRows<kLoaders, BM, kA> rows(g.a, o.i, g.m, k0, k1);
  RingPlace<kRowsAhead> at;
#pragma unroll 1
  for (int s = 0; s < count; ++s, at.advance()) {
    mbarrier_wait(&ring.taken[at.stage], at.parity ^ 1);
    rows.copy(ring.rows[at.stage]);
    mbarrier_arrive_after_copies(&ring.landed[at.stage]);
    // Registers do not hold enough of the columns to cover memory's latency.
    if (kInRegisters<BM> && s > 1) fetch_ahead<kB>(g, o, k0 + int64_t{s} * kSliceK, k1);
  }
}

// The same rows into parts. What is strange of them is told before the last slice is handed over,
// so that who multiplies it knows that to be there.
template <int BM, bool kA, bool kB>
__device__ __forceinline__ void split_rows(NarrowRing<BM, kA, kB>& ring, int64_t k0, int64_t k1) {
  Reach reach;
  RingPlace<kRowsAhead> from;
  RingPlace<kNarrowBuffers> to;
#pragma unroll 1
  for (int left = slices_between(k0, k1); left > 0; --left, from.advance(), to.advance()) {
    mbarrier_wait(&ring.landed[from.stage], from.parity);
    mbarrier_wait(&ring.empty[to.stage], to.parity ^ 1);
    SharedParts<kSplitters, BM, kA>::split(ring.slices[to.stage], ring.rows[from.stage], reach);
    mbarrier_arrive(&ring.taken[from.stage]);
    if (left == 1) ring.tell(reach);
    fence_for_wgmma();
    mbarrier_arrive(&ring.full[to.stage]);
  }
}

// The products of a slice: main = those of the first parts, rest += the others, smallest first.
// Half of them, of which 12 are.
template <int BM, int kHalf, int kSums>
__device__ __forceinline__ void multiply_half(float (&main)[kSums], float (&rest)[kSums],
                                              const uint32_t (&columns)[2][3][4], uint64_t rows,
                                              bool accumulate) {
  constexpr Scheme S = kNarrowScheme;
  constexpr uint64_t kNext = BM * kSliceK * 2 >> 4;
  struct Product {
    int column, row;  // parts
  };
  constexpr Product kProducts[] = {{0, 0}, {0, 2}, {1, 1}, {2, 0}, {0, 1}, {1, 0}};
#pragma unroll
  for (int n = kHalf * 3; n < kHalf * 3 + 3; ++n)
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const auto [column, row] = kProducts[n];
      const uint64_t at = rows + row * kNext + k * kDescriptorK16;
      if (n == 0) wgmma<S.type>(main, columns[k][column], at, k > 0);
      else wgmma<S.type>(rest, columns[k][column], at, accumulate || n > 1 || k > 0);
    }
}

// sum = the products of k0 to k1 for the tile at `o`. While those of a slice are made, the next is
// split.
template <int BM, bool kA, bool kB>
__device__ __forceinline__ void multiply_share(float (&sum)[kNarrowSums<BM>], Reach& reach,
                                               NarrowRing<BM, kA, kB>& ring, const Gemm& g,
                                               const Origin& o, int64_t k0, int64_t k1) {
  constexpr int kSums = kNarrowSums<BM>;
  const int count = slices_between(k0, k1);
  RegisterParts<kShareThreads, kB> columns(g.b.transposed(), o.j, g.n, k0, k1);
  if constexpr (kInRegisters<BM>) {
    columns.load(0);
    if (count > 1) columns.load(1);
  } else {
#pragma unroll 1
    for (int s = 0; s < kColumnsAhead; ++s) {
      if (s < count) columns.copy(ring.columns[s]);
      cp_async_commit();
    }
  }
  float main[kSums], rest[kSums];
  RingPlace<kNarrowBuffers> at;
  RingPlace<kColumnsAhead> next;
  const auto here = [&] { return wgmma_descriptor<kSliceK * 2>(ring.slices[at.stage]); };
  const auto begin = [&](auto number, int s) {
    mbarrier_wait(&ring.full[at.stage], at.parity);
    wgmma_fence();
    multiply_half<BM, 0>(main, rest, columns.parts[number()], here(), s % kNarrowSegment != 0);
  };
  const auto end = [&](auto number, int s) {
    wgmma_fence();
    multiply_half<BM, 1>(main, rest, columns.parts[number()], here(), s % kNarrowSegment != 0);
    wgmma_commit();
  };
  const auto add = [&](int s) {
    wgmma_wait<0>();
    wgmma_settled(main);
    wgmma_settled(rest);
    if (threadIdx.x % 128 == 0) mbarrier_arrive(&ring.empty[at.stage]);
    at.advance();
#pragma unroll
    for (int e = 0; e < kSums; ++e) sum[e] += main[e];
    if (s + 1 == count || (s + 1) % kNarrowSegment == 0) {
#pragma unroll
      for (int e = 0; e < kSums; ++e) sum[e] += rest[e];
    }
  };
  const auto come = [&] {
    if constexpr (!kInRegisters<BM>) cp_async_wait<kColumnsAhead - 1>();
  };
  const auto split = [&](auto number, int group) {
    if constexpr (kInRegisters<BM>) columns.split(number(), group, reach);
    else columns.split(number(), group, ring.columns[next.stage], reach);
  };
  const auto go = [&](auto number, int s) {
    if constexpr (kInRegisters<BM>) {
      if (s + 2 < count) columns.load(number());
    } else {
      if (s + kColumnsAhead < count) columns.copy(ring.columns[next.stage]);
      cp_async_commit();
      next.advance();
    }
  };
  const auto step = [&](auto number, int s) {
    const std::integral_constant<int, 1 - number()> other;
    begin(number, s);
    come(), split(other, 0);
    end(number, s);
    split(other, 1), go(other, s + 1);
    add(s);
  };
  const std::integral_constant<int, 0> even;
  const std::integral_constant<int, 1> odd;
  come(), split(even, 0), split(even, 1), go(even, 0);
#pragma unroll 1
  for (int s = 0;; s += 2) {
    if (s + 1 == count) {
      begin(even, s), end(even, s), add(s);
      break;
    }
    step(even, s);
    if (s + 2 == count) {
      begin(odd, s + 1), end(odd, s + 1), add(s + 1);
      break;
    }
    step(odd, s + 1);
  }
}

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
