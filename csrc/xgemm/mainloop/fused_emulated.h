// The main loop of narrow products: a block's share of a tile. wgmma has D transposed, so that the
// longer side of D is its 64 rows, and takes that operand from registers.
#pragma once

#include <type_traits>

#include "xgemm/device/pipeline.h"
#include "xgemm/device/ptx/mbarrier.h"
#include "xgemm/device/ptx/wgmma.h"
#include "xgemm/emulation/register_limbs.h"
#include "xgemm/emulation/single_nonzeros.h"
#include "xgemm/mainloop/fused_split_k.h"

namespace xgemm {
inline namespace XGEMM_FLAVOUR {

constexpr EmulationScheme kNarrowScheme = kBf16x6;
// In slices, after which the sums of the smaller products are added to the others.
constexpr int kNarrowSegment = kNarrowScheme.segment / kSliceK;
// A thread's, of a tile with BM rows.
template <int BM>
constexpr int kNarrowSums = BM * kLong / kConsumerThreads;
// Element e of a thread's sums in its tile, from the thread's first on: elements 4 p to 4 p + 3 are
// two by two neighbours, in rows 8 p and the next; down first.
__device__ __forceinline__ constexpr int sum_row(int e) { return e / 4 * 8 + e % 2; }
__device__ __forceinline__ constexpr int sum_column(int e) { return e / 2 % 2; }
// Registers of a thread that multiplies, and of one that decomposes or loads.
constexpr int kNarrowRegisters = 192, kTransformRegisters = 64;
static_assert(registers_suffice(1, kConsumerThreads, kNarrowRegisters,
                                kTransformThreads + kProducerThreads, kTransformRegisters));
constexpr int kRangeWarps = (kConsumerThreads + kTransformThreads) / 32;
constexpr int kNarrowThreads = kConsumerThreads + kTransformThreads + kProducerThreads;
// Slices in limbs; and those on their way from gmem.
constexpr int kNarrowBuffers = 4, kSlicesAhead = 5;

// A block's shared memory. Slices lie as they are for those who decompose them: D's columns for
// those who multiply, D's rows for others, which leave them in limbs for these.
template <int BM, bool kA, bool kB>
struct NarrowRing {
  using Rows = SharedLimbs<kTransformThreads, BM, kA>;
  using Columns = RegisterLimbs<kLong, kB>;
  typename Columns::Slice columns[kSlicesAhead];
  typename Rows::Native rows[kSlicesAhead];
  typename Rows::Slice slices[kNarrowBuffers];
  Mbarrier full[kNarrowBuffers], empty[kNarrowBuffers];  // of slices in limbs
  Mbarrier landed[kSlicesAhead], taken[kSlicesAhead];  // of slices as they are
  uint32_t ranges[kRangeWarps];  // of what each warp has decomposed: see join_ranges_of_warp
  uint32_t places[BM][Rows::kChunks];  // of nonzeros in D's rows, by thread: see NonzeroPlace ...
  uint32_t looking[kTransformThreads / 32];  // ... whose warps have rows that may be single
  uint32_t uncertain[kConsumerThreads / 32];  // of a warp's sums: see redo_uncertain ...
  float told;  // ... and what it gives, for the cluster

  // Where slices have been.
  __device__ __forceinline__ NarrowSums<BM>& sums() {
    static_assert(sizeof(NarrowSums<BM>) <= sizeof slices);
    return *reinterpret_cast<NarrowSums<BM>*>(&slices);
  }

  // The range of a warp's elements: D's rows are A's, its columns B's.
  __device__ __forceinline__ void tell(const Reach& reach) {
    const int warp = threadIdx.x / 32;
    const uint32_t range = reach.half_range() << (warp < kConsumerThreads / 32 ? 16 : 0);
    const uint32_t joint = join_ranges_of_warp(range);
    if (threadIdx.x % 32 == 0) ranges[warp] = joint;
  }
  // Where the nonzeros of D's rows are, if a warp knows a row that may have one at most.
  __device__ __forceinline__ void tell(const SingleNonzeros<Rows::kRows>& singles) {
    const bool any = __any_sync(0xffffffffu, singles.looking());
    const int warp = static_cast<int>(threadIdx.x - kConsumerThreads) / 32;
    if (threadIdx.x % 32 == 0) looking[warp] = any;
    if (!Rows::has_part()) return;
#pragma unroll
    for (int i = 0; i < Rows::kRows; ++i)
      places[Rows::line() + i * Rows::kLines][Rows::chunk()] = singles.rows[i].place;
  }
  // Of so many warps, once all have told.
  __device__ __forceinline__ uint32_t range(int warps) const {
    const int warp = threadIdx.x % 32;
    return join_ranges_of_warp(warp < warps ? ranges[warp] : 0);
  }

  // By all threads of the block. `loading`: those that arrive when a slice lands.
  __device__ __forceinline__ void init(int loading) {
    if (threadIdx.x == 0) {
      for (int s = 0; s < kNarrowBuffers; ++s) {
        mbarrier_init(&full[s], kTransformThreads);
        mbarrier_init(&empty[s], kConsumerThreads / 128);
      }
      for (int s = 0; s < kSlicesAhead; ++s) {
        mbarrier_init(&landed[s], loading);
        mbarrier_init(&taken[s], kConsumerThreads + kTransformThreads);
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

// gmem -> smem: slices from k0 to k1. What TMA takes, one thread asks for; the rest all copy. By
// loads and cp.async of all operands a slice of 64 rows took 1.2 us, tensor cores or not, and 0.75
// with one operand alone; by TMA 0.74 (H200, 2026-11-23). Nobody who decomposes asks for anything:
// that needs a fence a slice, and a fence waits for whatever its thread has asked for.
struct NarrowLoad {
  const SplitKJob& job;
  __device__ __forceinline__ bool copies() const { return !job.a.by_tma || !job.b.by_tma; }
  __device__ __forceinline__ bool tma() const { return job.a.by_tma || job.b.by_tma; }
  // How many arrive when a slice lands.
  __device__ __forceinline__ int arrivals() const {
    return (copies() ? kProducerThreads : 0) + tma();
  }

  template <int BM, bool kA, bool kB>
  __device__ __forceinline__ void run(NarrowRing<BM, kA, kB>& ring, const Gemm& g,
                                      const TileCoord& o, int64_t k0, int64_t k1) const {
    const int thread = static_cast<int>(threadIdx.x) % kProducerThreads,
              z = static_cast<int>(blockIdx.z);
    const bool first = thread == 0 && tma();
    if (!first && !copies()) return;
    const NativeLoader<kProducerThreads, BM, kA> rows{g.a,   o.i, g.m, k1, job.a, g.a.bs ? z : 0,
                                                      thread};
    const NativeLoader<kProducerThreads, kLong, kB> columns{g.b.transposed(), o.j,   g.n, k1, job.b,
                                                            g.b.bs ? z : 0,   thread};
    const int bytes = (job.a.by_tma ? rows.kBytes : 0) + (job.b.by_tma ? columns.kBytes : 0);
    PipelineState<kSlicesAhead> at;
#pragma unroll 1
    for (int left = slices_between(k0, k1); left > 0; --left, k0 += kSliceK, at.advance()) {
      Mbarrier* const landed = &ring.landed[at.slot];
      mbarrier_wait(&ring.taken[at.slot], at.phase ^ 1);
      if (first) {
        mbarrier_expect(landed, bytes);
        if (job.a.by_tma) rows.by_tma(ring.rows[at.slot], landed, k0);
        if (job.b.by_tma) columns.by_tma(ring.columns[at.slot], landed, k0);
      }
      if (!copies()) continue;
      if (!job.a.by_tma) rows.by_copies(ring.rows[at.slot], k0);
      if (!job.b.by_tma) columns.by_copies(ring.columns[at.slot], k0);
      mbarrier_arrive_after_copies(landed);
    }
  }
};

// D's rows, of which there are so many, into limbs. Their range, and where their nonzeros are, is
// told before the last slice is handed over, so that who multiplies it knows that to be there.
template <int BM, bool kA, bool kB>
__device__ __forceinline__ void transform_rows(NarrowRing<BM, kA, kB>& ring, int64_t k0, int64_t k1,
                                               int64_t inside) {
  using Rows = SharedLimbs<kTransformThreads, BM, kA>;
  Reach reach;
  SingleNonzeros<Rows::kRows> singles;
#pragma unroll
  for (int i = 0; i < Rows::kRows; ++i)
    singles.begin(i, Rows::has_part() && Rows::line() + i * Rows::kLines < inside, k1 - k0);
  uint32_t k = 0;
  PipelineState<kSlicesAhead> from;
  PipelineState<kNarrowBuffers> to;
#pragma unroll 1
  for (int left = slices_between(k0, k1); left > 0;
       --left, k += kSliceK, from.advance(), to.advance()) {
    mbarrier_wait(&ring.landed[from.slot], from.phase);
    mbarrier_wait(&ring.empty[to.slot], to.phase ^ 1);
    Rows::decompose(ring.slices[to.slot], ring.rows[from.slot], reach);
    if (singles.looking())
      note_rows<Rows>(singles, ring.slices[to.slot], ring.rows[from.slot], k, reach);
    mbarrier_arrive(&ring.taken[from.slot]);
    if (left == 1) ring.tell(reach), ring.tell(singles);
    fence_for_wgmma();
    mbarrier_arrive(&ring.full[to.slot]);
  }
}

// The products of a slice: main = those of the first limbs, rest += the others, smallest first.
template <int BM, int kSums>
__device__ __forceinline__ void multiply_main(float (&main)[kSums],
                                              const uint32_t (&columns)[2][3][4], uint64_t rows) {
#pragma unroll
  for (int k = 0; k < 2; ++k)
    wgmma<kNarrowScheme.type>(main, columns[k][0], rows + k * kDescriptorK16, k > 0);
}
template <int BM, int kSums>
__device__ __forceinline__ void multiply_rest(float (&rest)[kSums],
                                              const uint32_t (&columns)[2][3][4], uint64_t rows,
                                              bool accumulate) {
  constexpr uint64_t kNext = BM * kSliceK * 2 >> 4;
  struct Product {
    int column, row;  // limbs
  };
  constexpr Product kProducts[] = {{0, 2}, {1, 1}, {2, 0}, {0, 1}, {1, 0}};
#pragma unroll
  for (int n = 0; n < 5; ++n)
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const auto [column, row] = kProducts[n];
      wgmma<kNarrowScheme.type>(rest, columns[k][column], rows + row * kNext + k * kDescriptorK16,
                                accumulate || n > 0 || k > 0);
    }
}

// sum = the products of k0 to k1. While those of a slice are made, the next is decomposed; main is
// promoted while the rest is made.
template <int BM, bool kA, bool kB>
__device__ __forceinline__ void multiply_slices(float (&sum)[kNarrowSums<BM>], Reach& reach,
                                                SingleNonzeros<2>& singles,
                                                NarrowRing<BM, kA, kB>& ring, int64_t k0,
                                                int64_t k1) {
  using Columns = RegisterLimbs<kLong, kB>;
  constexpr int kSums = kNarrowSums<BM>;
  const int count = slices_between(k0, k1), first = Columns::first();
  Columns columns;
  float main[kSums], rest[kSums];
  PipelineState<kNarrowBuffers> at, done;
  PipelineState<kSlicesAhead> next;
  const auto transform = [&](auto number, int s) {
    mbarrier_wait(&ring.landed[next.slot], next.phase);
    columns.decompose(number(), ring.columns[next.slot], first, reach);
    if (singles.looking())
      note_columns(singles, columns, number(), ring.columns[next.slot], first,
                   static_cast<uint32_t>(s) * kSliceK, reach);
    mbarrier_arrive(&ring.taken[next.slot]);
    next.advance();
  };
  const auto release = [&] {
    if (threadIdx.x % 128 == 0) mbarrier_arrive(&ring.empty[done.slot]);
    done.advance();
  };
  // Slice s, of limbs `number`; the others are free once the slice before is done, and are made of
  // the slice after, if there is one.
  const auto multiply = [&](auto number, auto more, int s) {
    mbarrier_wait(&ring.full[at.slot], at.phase);
    const uint64_t rows = wgmma_descriptor<kSliceK * 2>(ring.slices[at.slot]);
    const bool accumulate = s % kNarrowSegment != 0;
    wgmma_fence();
    multiply_main<BM>(main, columns.limbs[number()], rows);
    wgmma_commit();
    multiply_rest<BM>(rest, columns.limbs[number()], rows, accumulate);
    wgmma_commit();
    at.advance();
    if (accumulate) wgmma_wait<2>(), release();
    if constexpr (more()) transform(std::integral_constant<int, 1 - number()>(), s + 1);
    wgmma_wait<1>();
    wgmma_settled(main);
#pragma unroll
    for (int e = 0; e < kSums; ++e) sum[e] += main[e];
    if (more() && (s + 1) % kNarrowSegment != 0) return;
    wgmma_wait<0>();
    wgmma_settled(rest);
    release();
#pragma unroll
    for (int e = 0; e < kSums; ++e) sum[e] += rest[e];
  };
  const std::integral_constant<int, 0> even;
  const std::integral_constant<int, 1> odd;
  const std::true_type more;
  const std::false_type last;
  transform(even, 0);
#pragma unroll 1
  for (int s = 0;; s += 2) {
    if (s + 1 == count) return multiply(even, last, s);
    multiply(even, more, s);
    if (s + 2 == count) return multiply(odd, last, s + 1);
    multiply(odd, more, s + 1);
  }
}

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
