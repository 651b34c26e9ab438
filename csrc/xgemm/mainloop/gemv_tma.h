// A few rows: what a warp does where TMA brings both operands. It has a ring of its own, which its
// first lane fills; it waits for no other warp.
#pragma once

#include <algorithm>

#include "xgemm/device/copy/tma_slice.h"
#include "xgemm/device/fragment.h"
#include "xgemm/device/pipeline.h"
#include "xgemm/device/ptx/mbarrier.h"
#include "xgemm/mainloop/gemv.h"

namespace xgemm {
inline namespace XGEMM_FLAVOUR {

constexpr int kStreamColumns = 32;  // of a warp
// Slices of a ring. A third of each makes large products 5% slower (12 warps a multiprocessor, 8
// rows, H200): so many bytes on their way are more than memory serves in a good order.
constexpr int kStreamBuffers = 2;
static_assert(kSplitKStep % kSliceK == 0);  // no slice is of two chains

struct StreamMaps {
  OperandMap a, b;
  __device__ __forceinline__ bool tma() const { return a.by_tma || b.by_tma; }
  __device__ __forceinline__ bool copies() const { return !a.by_tma || !b.by_tma; }
};

// A warp's slices of B and of A's TM rows. kA, kB: whether A, B transposed are contiguous along k.
template <int TM, bool kA, bool kB>
struct StreamRing {
  NativeSlice<kStreamColumns, kB> b[kStreamBuffers];
  NativeSlice<TM, kA> a[kStreamBuffers];
};

template <int TM, bool kA, bool kB>
struct GemvStream {
  // Of a lane. Columns are neighbours where they lie so, else as far apart as lanes are many.
  static constexpr int kColumns = TM < 4 ? TM : 4, kRows = TM / kColumns;
  static constexpr int kAcross = kStreamColumns / kColumns;
  static constexpr bool kSeesAll = TM == 1;  // of its column, as it multiplies
  using Sums = float[kRows][kColumns];
  using SliceA = NativeSlice<TM, kA>;
  using SliceB = NativeSlice<kStreamColumns, kB>;

  StreamRing<TM, kA, kB>& ring;
  Mbarrier (&landed)[kStreamBuffers];
  const Gemm& g;
  const GemvPart& part;
  const StreamMaps& maps;

  __device__ static int row(int r) {
    return kAcross == 32 ? r : lane_row(threadIdx.x % 32) * kRows + r;
  }
  __device__ static int column(int c) {
    const int lane = threadIdx.x % 32, across = kAcross == 32 ? lane : lane_column(lane);
    return kB ? across + c * kAcross : across * kColumns + c;
  }

  __device__ __forceinline__ void init() const {
    const int lane = threadIdx.x % 32;
    if (lane < kStreamBuffers) {
      mbarrier_init(&landed[lane], maps.tma() + (maps.copies() ? 32 : 0));
      fence_barrier_init();
    }
    __syncwarp();
  }

  // What TMA cannot take, float by float: rows from l0 on, of `length`. Outside there are zeros.
  template <int kL, bool kAlongK>
  __device__ __forceinline__ void copy(NativeSlice<kL, kAlongK>& slice,
                                       const View<const float>& rows, int64_t l0, int64_t length,
                                       int64_t k0) const {
#pragma unroll 1
    for (int e = threadIdx.x % 32; e < kL * kSliceK; e += 32) {
      const int l = kAlongK ? e / kSliceK : e % kL, k = kAlongK ? e % kSliceK : e / kL;
      cp_async_some<4>(Smem(slice.x + slice.place(l, k)), rows.ptr(l0 + l, k0 + k),
                       l0 + l < length && k0 + k < part.k1 ? 4 : 0);
    }
  }

  // The slice at k, if there is one, is on its way.
  __device__ __forceinline__ void ask(int buffer, int64_t k) const {
    if (k >= part.k1) return;
    const View<const float> columns = g.b.transposed();
    Mbarrier* const bar = &landed[buffer];
    if (threadIdx.x % 32 == 0 && maps.tma()) {
      const int z = static_cast<int>(blockIdx.z);
      const NativeLoader<32, TM, kA> a{g.a, part.i0, g.m, part.k1, maps.a, g.a.bs ? z : 0, 0};
      const NativeLoader<32, kStreamColumns, kB> b{columns, part.j0,        g.n, part.k1,
                                                   maps.b,  g.b.bs ? z : 0, 0};
      mbarrier_expect(bar, (maps.a.by_tma ? a.kBytes : 0) + (maps.b.by_tma ? b.kBytes : 0));
      if (maps.b.by_tma) b.by_tma(ring.b[buffer], bar, k);
      if (maps.a.by_tma) a.by_tma(ring.a[buffer], bar, k);
    }
    if (!maps.copies()) return;
    if (!maps.a.by_tma) copy(ring.a[buffer], g.a, part.i0, g.m, k);
    if (!maps.b.by_tma) copy(ring.b[buffer], columns, part.j0, g.n, k);
    mbarrier_arrive_after_copies(bar);
  }

  // What the lane multiplies of a slice, kCount of k from k on.
  template <int kCount>
  __device__ __forceinline__ void load(float (&a)[kRows][kCount], float (&b)[kColumns][kCount],
                                       int buffer, int k) const {
    const float* const from_a = ring.a[buffer].x;
    const float* const from_b = ring.b[buffer].x;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if constexpr (kA && kCount == 4) {
        load4(a[r], from_a + SliceA::place(row(r), k));
      } else {
#pragma unroll
        for (int q = 0; q < kCount; ++q) a[r][q] = from_a[SliceA::place(row(r), k + q)];
      }
    }
    if constexpr (kB && kCount == 4) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) load4(b[c], from_b + SliceB::place(column(c), k));
    } else if constexpr (!kB && kColumns == 4) {
#pragma unroll
      for (int q = 0; q < kCount; ++q) {
        float line[4];
        load4(line, from_b + SliceB::place(column(0), k + q));
#pragma unroll
        for (int c = 0; c < 4; ++c) b[c][q] = line[c];
      }
    } else {
#pragma unroll
      for (int c = 0; c < kColumns; ++c)
#pragma unroll
        for (int q = 0; q < kCount; ++q) b[c][q] = from_b[SliceB::place(column(c), k + q)];
    }
  }

  template <int kCount>
  __device__ __forceinline__ void add(Sums& sums, GemvRange& range, int buffer, int k) const {
    float a[kRows][kCount], b[kColumns][kCount];
    load<kCount>(a, b, buffer, k);
#pragma unroll
    for (int q = 0; q < kCount; ++q)
#pragma unroll
      for (int r = 0; r < kRows; ++r)
#pragma unroll
        for (int c = 0; c < kColumns; ++c) sums[r][c] = fmaf(a[r][q], b[c][q], sums[r][c]);
    if constexpr (kSeesAll) {
#pragma unroll
      for (int q = 0; q < kCount; ++q) range.see_a(a[0][q]), range.see_b(b[0][q]);
    }
  }

  // All of a slice: each lane a column of B, and of A every 32nd k. A pass of its own, so that the
  // products keep their registers.
  __device__ __forceinline__ void see(GemvRange& range, int buffer) const {
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int k = 0; k < kSliceK; k += 4) {
      float b[4];
      const float* const from = ring.b[buffer].x;
      if constexpr (kB) load4(b, from + SliceB::place(lane, k));
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        if constexpr (!kB) b[q] = from[SliceB::place(lane, k + q)];
        range.see_b(b[q]);
      }
    }
#pragma unroll 1
    for (int r = 0; r < TM; ++r) range.see_a(ring.a[buffer].x[SliceA::place(r, lane)]);
  }

  // leave(chain, sums, sure) for each chain; sure: of which columns, a bit each, the sums are far
  // from the end of FP32's range.
  template <class Leave>
  __device__ __forceinline__ void multiply(int64_t share, const Leave& leave) const {
    init();
#pragma unroll 1
    for (int s = 0; s < kStreamBuffers; ++s) ask(s, part.k0 + s * kSliceK);
    PipelineState<kStreamBuffers> at;
    int64_t chain = part.chain, k = part.k0;
#pragma unroll 1
    do {
      const int64_t begin = k, end = min_of(k + share, part.k1);
      Sums sums = {};
      GemvRange range;
#pragma unroll 1
      for (; k < end; k += kSliceK, at.advance()) {
        mbarrier_wait(&landed[at.slot], at.phase);
        if (end - k >= kSliceK) {
#pragma unroll 4
          for (int q = 0; q < kSliceK; q += 4) add<4>(sums, range, at.slot, q);
        } else {
#pragma unroll 1
          for (int q = 0; q < end - k; ++q) add<1>(sums, range, at.slot, q);
        }
        if (!kSeesAll && g.match_single_chain_overflow) see(range, at.slot);
        __syncwarp();  // all lanes have read it
        ask(at.slot, k + kStreamBuffers * kSliceK);
      }
      uint32_t sure = 0xffffffffu;
      if (g.match_single_chain_overflow && share < g.k) {
        const int column = static_cast<int>(threadIdx.x) % 32;
        range = range.of_warp();
        sure = __ballot_sync(sure, range.sure<TM, 1>(g, part, begin, end, column, 1));
      }
      leave(chain++, sums, sure);
    } while (k < part.k1);
  }
};

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
