// Products of attention's tiles by wgmma, for a warpgroup that has 64 rows of the result.
//
// Two sums for each element, as elsewhere: acc_hi of the first limbs, acc_corr of the others, which
// is smaller by 2^11. A left operand is in shared memory, or comes from registers, where its rows
// have been made: they get a scale each, from their own largest element, before they are split.
// What a product sums over lies along columns of both operands (Q K^T), or along the right one's
// rows (P V), which wgmma then reads MN-major: no operand is transposed.
#pragma once

#include <type_traits>

#include "xgemm/attention/tiles.h"
#include "xgemm/device/pipeline.h"
#include "xgemm/device/ptx/mbarrier.h"
#include "xgemm/device/ptx/tma.h"
#include "xgemm/device/ptx/wgmma.h"

namespace xgemm {
inline namespace XGEMM_FLAVOUR {

constexpr int kGroup = 128;  // threads of a warpgroup

// One warpgroup more than multiply: a thread of it fetches, and it leaves the others its registers,
// but where they have as many as there can be.
constexpr int threads_for(int groups) { return (groups + 1) * kGroup; }
constexpr int kFetchRegisters = 24;
constexpr int math_registers(int groups, int blocks) {
  const int launched = 65536 / blocks / threads_for(groups) / 8 * 8;
  return (launched * (groups + 1) - kFetchRegisters) / groups / 8 * 8;
}
template <int kGroups, int kBlocks>
__device__ __forceinline__ void registers_for_math() {
  constexpr int kEach = math_registers(kGroups, kBlocks);
  static_assert(registers_suffice(kBlocks, kGroups * kGroup, kEach, kGroup, kFetchRegisters));
  if constexpr (kGroups * kBlocks > 1) registers_up<kEach>();
}
template <int kGroups, int kBlocks>
__device__ __forceinline__ void registers_for_fetching() {
  if constexpr (kGroups * kBlocks > 1) registers_down<kFetchRegisters>();
}

// A tile in shared memory: [block of columns][limb][row][64], swizzled. kWidth columns are
// multiplied, of which the last block may have 32 alone.
template <int kWidth>
struct TileSlot {
  static_assert(kWidth % 32 == 0);
  static constexpr int kBlocks = blocks_of(kWidth), kBytes = kBlocks * 2 * kTileBytes;
  static constexpr int columns(int block) {
    return kWidth - block * kTile < kTile ? kWidth - block * kTile : kTile;
  }
  char limbs[kBlocks][2][kTileBytes];
};

// gmem -> a slot, signalled at `bar`, which expects it. Rows that a head has not are zeros.
template <int kWidth>
__device__ __forceinline__ void fetch_tile(TileSlot<kWidth>& to, const TensorMap& map, int64_t head,
                                           int tile, Mbarrier* bar) {
  constexpr int kPlanes = 2 * blocks_of(kWidth);
  const int first = static_cast<int>(head) * kPlanes;
#pragma unroll
  for (int plane = 0; plane < kPlanes; ++plane)
    tma_load(to.limbs[plane / 2][plane % 2], map, bar, 0, tile * kTile, first + plane);
}

// The calling thread's warpgroup, from its warp's first lane, so that the compiler knows it to be
// the same for the warp: descriptors then are computed once a warp, in uniform registers.
__device__ __forceinline__ int warpgroup() {
  return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kGroup, 0);
}

// 64 x 64 numbers over a warpgroup: thread t has number 4 j + 2 h + c in row row_of(h), column
// column_of(j) + c.
struct Place {
  int row, column;  // the first
  __device__ __forceinline__ Place() {
    const int t = static_cast<int>(threadIdx.x) % kGroup;
    row = t / 32 * 16 + t % 32 / 4, column = t % 4 * 2;
  }
};
constexpr int kSums = 32;
__device__ __forceinline__ constexpr int half_of(int e) { return e / 2 % 2; }  // rows 0 and 8
__device__ __forceinline__ constexpr int column_of(int e) { return e / 4 * 8 + e % 2; }

template <int kEach>
struct SumsOf {
  static constexpr int kCount = kEach;
  float hi[kEach], corr[kEach];
  __device__ __forceinline__ float at(int e) const {
    return fmaf(corr[e], 1.f / kFp16x3.lo_scale, hi[e]);
  }
  __device__ __forceinline__ void settle() { wgmma_settled(hi), wgmma_settled(corr); }
};

// = A B^T, of the first 2 kCount rows of B, in one group of wgmmas.
template <int kWidth, int kCount>
__device__ __forceinline__ void multiply(SumsOf<kCount>& sums, const TileSlot<kWidth>& a,
                                         const TileSlot<kWidth>& b) {
  constexpr uint64_t kLimb = kTileBytes >> 4;
  const uint64_t at_a = wgmma_descriptor<128>(&a), at_b = wgmma_descriptor<128>(&b);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < kWidth / 16; ++k) {
    const uint64_t step = static_cast<uint64_t>(k / 4) * 2 * kLimb + k % 4 * kDescriptorK16;
    wgmma<Half::fp16>(sums.hi, at_a + step, at_b + step, k > 0);
  }
#pragma unroll
  for (int k = 0; k < kWidth / 16; ++k) {
    const uint64_t step = static_cast<uint64_t>(k / 4) * 2 * kLimb + k % 4 * kDescriptorK16;
    wgmma<Half::fp16>(sums.corr, at_a + step + kLimb, at_b + step, k > 0);
    wgmma<Half::fp16>(sums.corr, at_a + step, at_b + step + kLimb, true);
  }
  wgmma_commit();
}

// A left operand in registers: limbs of 64 rows by kColumns.
template <int kColumns>
struct Fragments {
  static constexpr int kSteps = kColumns / 16;
  uint32_t hi[kSteps][4], lo[kSteps][4];
  // Of elements that are less than 2^16.
  __device__ __forceinline__ void split(const float (&x)[kColumns / 2]) {
#pragma unroll
    for (int e = 0; e < kColumns / 2; e += 2)
      split2(x[e], x[e + 1], hi[e / 8][e / 2 % 4], lo[e / 8][e / 2 % 4]);
  }
};

// The largest of a row, of which four neighbouring threads have a part each.
__device__ __forceinline__ float largest_of_row(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ __forceinline__ float sum_of_row(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// Rows of any size: each is multiplied by a power of two, which undo[half] takes back.
template <int kColumns, int kCount>
__device__ __forceinline__ void split_rows(Fragments<kColumns>& to, float (&x)[kCount],
                                           float (&undo)[2]) {
  float largest[2] = {0.f, 0.f}, scale[2];
#pragma unroll
  for (int e = 0; e < kCount; ++e) largest[half_of(e)] = fmaxf(largest[half_of(e)], fabsf(x[e]));
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int n = exponent_for(float_to_bits(largest_of_row(largest[h])));
    scale[h] = power_of_2(n), undo[h] = power_of_2(-n);
  }
#pragma unroll
  for (int e = 0; e < kCount; ++e) x[e] *= scale[half_of(e)];
  to.split(x);
}

// = A B, of one block of B's columns and as many of its rows as A has columns, in one group of
// wgmmas.
template <int kCount, int kColumns>
__device__ __forceinline__ void multiply(SumsOf<kCount>& sums, const Fragments<kColumns>& a,
                                         const char (&b)[2][kTileBytes]) {
  const uint64_t hi = wgmma_descriptor<128>(b[0]), lo = wgmma_descriptor<128>(b[1]);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < a.kSteps; ++k)
    wgmma_mn_major<Half::fp16>(sums.hi, a.hi[k], hi + k * kDescriptorRows16, k > 0);
#pragma unroll
  for (int k = 0; k < a.kSteps; ++k) {
    wgmma_mn_major<Half::fp16>(sums.corr, a.lo[k], hi + k * kDescriptorRows16, k > 0);
    wgmma_mn_major<Half::fp16>(sums.corr, a.hi[k], lo + k * kDescriptorRows16, true);
  }
  wgmma_commit();
}

// `add(block, part)` of each block of A B's columns. meanwhile() is called when the first one's
// products have begun.
template <int kWidth, int kColumns, class Add, class Meanwhile>
__device__ __forceinline__ void multiply_blocks(const Fragments<kColumns>& a,
                                                const TileSlot<kWidth>& b, const Add& add,
                                                const Meanwhile& meanwhile) {
  using Slot = TileSlot<kWidth>;
  const auto block = [&](auto number) {
    SumsOf<Slot::columns(number()) / 2> part;
    multiply(part, a, b.limbs[number()]);
    if constexpr (number() == 0) meanwhile();
    wgmma_wait<0>();
    part.settle();
    add(number(), part);
  };
  block(std::integral_constant<int, 0>());
  if constexpr (Slot::kBlocks > 1) block(std::integral_constant<int, 1>());
}

// Of `all`, from `first` on, at most a tile's.
__device__ __forceinline__ int left_of(int64_t all, int64_t first) {
  return all - first < kTile ? static_cast<int>(all - first) : kTile;
}

// + the bias in base 2 where it is inside `rows` and `columns`; `at` is the thread's first element
// of it, `down` and `right` its strides.
template <int kCount>
__device__ __forceinline__ void add_bias(float (&logits)[kCount], float scale, const float* at,
                                         int64_t down, int64_t right, int rows, int columns) {
#pragma unroll
  for (int e = 0; e < kCount; e += 4, at += 8 * right) {
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      const bool inside = 8 * half_of(x) < rows && column_of(e) + x % 2 < columns;
      const float its = inside ? at[half_of(x) * 8 * down + x % 2 * right] : 0.f;
      logits[e + x] = fmaf(logits[e + x], scale, its * kLog2E);
    }
    if (e % 8 == 4) keep_order();  // all loads at once would need registers for all
  }
}

// Rows of a result, `scale` times the sums, two at a time where they lie so.
template <int kWidth>
__device__ __forceinline__ void store_rows(const View<float>& to, int64_t row, int64_t rows,
                                           int64_t width,
                                           const float (&sums)[blocks_of(kWidth)][kSums],
                                           const float (&scale)[2]) {
  const Place place;
  const bool pairs = to.cs == 1 && width % 2 == 0 && to.rs % 2 == 0 &&
                     reinterpret_cast<uintptr_t>(to.data) % 8 == 0;
#pragma unroll
  for (int block = 0; block < blocks_of(kWidth); ++block)
#pragma unroll
    for (int e = 0; e < kSums; e += 2) {
      if (e >= TileSlot<kWidth>::columns(block) / 2) continue;
      const int h = half_of(e);
      const int64_t i = row + place.row + 8 * h;
      const int j = block * kTile + place.column + column_of(e);
      if (i >= rows || j >= width) continue;
      const float x = sums[block][e] * scale[h], y = sums[block][e + 1] * scale[h];
      if (pairs) {
        store2(to.ptr(i, j), x, y);
      } else {
        to(i, j) = x;
        if (j + 1 < width) to(i, j + 1) = y;
      }
    }
}

// Of a ring of tiles that all of `groups` warpgroups read, each in the same order.
template <int kBuffers>
struct RingBarriers {
  Mbarrier full[kBuffers], empty[kBuffers], first;  // `first`: of what stays
  // By one thread.
  __device__ __forceinline__ void init(int groups) {
    for (int s = 0; s < kBuffers; ++s)
      mbarrier_init(&full[s], 1), mbarrier_init(&empty[s], groups * kGroup / 32);
    mbarrier_init(&first, 1);
    fence_barrier_init();
  }
  // By all threads that read: until a slot is there.
  __device__ __forceinline__ void wait(const PipelineState<kBuffers>& at) {
    mbarrier_wait(&full[at.slot], at.phase);
  }
  // ... and when a warp is done with it, whose lanes may have read it themselves.
  __device__ __forceinline__ void give_back(PipelineState<kBuffers>& at) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(&empty[at.slot]);
    at.advance();
  }
  // By the thread that fetches: until it is free, announcing so many bytes.
  __device__ __forceinline__ Mbarrier* begin(const PipelineState<kBuffers>& at, int bytes) {
    mbarrier_wait(&empty[at.slot], at.phase ^ 1);
    mbarrier_expect(&full[at.slot], bytes);
    return &full[at.slot];
  }
};

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
