// gmem -> smem: slices of an operand as it lies, in floats, where other threads read them without
// bank conflicts. TMA brings them, with more on their way than threads can ask for; or cp.async,
// float by float, what TMA cannot take.
#pragma once

#include "xgemm/core/tile_scheduler.h"
#include "xgemm/device/operand_map.h"
#include "xgemm/device/ptx/mbarrier.h"
#include "xgemm/device/ptx/tma.h"

namespace xgemm {
inline namespace XGEMM_FLAVOUR {

// kL rows by kSliceK of k. kAlongK: the way in which the operand is contiguous; along k a box is
// all of a slice, else the slice is boxes of at most 32 rows, k by k. Lines of 64 or 128 bytes are
// swizzled.
template <int kL, bool kAlongK>
struct alignas(1024) NativeSlice {
  static constexpr int kRun = kL < 32 ? kL : 32;  // rows of a box that is not along k
  static constexpr int kBoxRows = kAlongK ? kL : kSliceK, kBoxLength = kAlongK ? kSliceK : kRun;
  static constexpr int kBoxes = kAlongK ? 1 : kL / kRun;
  static constexpr int kSwizzle = kBoxLength >= 16 ? kBoxLength * 4 : 0;  // bytes, of TMA
  float x[kL * kSliceK];

  // Of row r at k.
  __device__ static constexpr int place(int r, int k) {
    if constexpr (kAlongK) return r * kSliceK + ((k / 4) ^ r % 8) * 4 + k % 4;
    const int chunk = r % kRun / 4;
    const int to = kRun == 32 ? chunk ^ k % 8 : kRun == 16 ? chunk ^ k / 2 % 4 : chunk;
    return (r / kRun * kSliceK + k) * kRun + to * 4 + r % 4;
  }
};

// Its way there, of the rows from l0 on, by kThreads threads.
template <int kThreads, int kL, bool kAlongK>
struct NativeLoader {
  using Slice = NativeSlice<kL, kAlongK>;
  static constexpr int kBytes = sizeof(Slice::x);

  View<const float> rows_of;  // matrix z: rows along k
  int64_t l0, length, depth;  // the first row, how many there are, and k
  const OperandMap& from;
  int z, thread;

  static OperandMap map(const View<const float>& rows_of, int64_t length, int64_t k,
                        int64_t batch) {
    return operand_map(kAlongK ? rows_of : rows_of.transposed(), kAlongK ? length : k,
                       kAlongK ? k : length, batch, Slice::kBoxRows, Slice::kBoxLength,
                       Slice::kSwizzle);
  }

  // By one thread: the slice at k has landed when kBytes have at `landed`.
  __device__ __forceinline__ void by_tma(Slice& slice, Mbarrier* landed, int64_t k) const {
    const int at_k = static_cast<int>(k), at_l = static_cast<int>(l0);
#pragma unroll
    for (int box = 0; box < Slice::kBoxes; ++box) {
      float* const to = slice.x + box * (Slice::kBoxRows * Slice::kBoxLength);
      if constexpr (kAlongK) tma_load(to, from.map, landed, at_k, at_l, z);
      else tma_load(to, from.map, landed, at_l + box * Slice::kRun, at_k, z);
    }
  }

  // By all of them, to be waited for. Outside the operand there are zeros. Lanes walk lines; a
  // thread's copies are kStep lines apart, which swizzling treats alike every kPeriod of them.
  __device__ __forceinline__ void by_copies(Slice& slice, int64_t k) const {
    constexpr int kLine = Slice::kBoxLength, kLanes = kAlongK ? kSliceK : kL;
    constexpr int kLines = kAlongK ? kL : kSliceK, kStep = kThreads / kLanes;
    constexpr int kPeriod = kStep < 8 ? 8 / kStep : 1;
    static_assert(kThreads % kLanes == 0 && kLines % (kStep * kPeriod) == 0);
    static_assert(kAlongK || kPeriod == 1 || kL >= 32);  // shorter lines are swizzled otherwise
    const int lane = thread % kLanes, first = thread / kLanes;
    const int rows = static_cast<int>(min_of(length - l0, kL));
    const int left = static_cast<int>(min_of(depth - k, kSliceK));
    const int lines = lane < (kAlongK ? left : rows) ? (kAlongK ? rows : left) : 0;
    const float* p =
        kAlongK ? rows_of.ptr(l0 + first, k + lane) : rows_of.ptr(l0 + lane, k + first);
    const int64_t step = kStep * (kAlongK ? rows_of.rs : rows_of.cs);
    const int place = kAlongK ? Slice::place(first, lane) : Slice::place(lane, first);
#pragma unroll 1
    for (int line = first; line < kLines; line += kStep * kPeriod)
#pragma unroll
      for (int u = 0; u < kPeriod; ++u, p += step)
        cp_async_some<4>(
            Smem(slice.x) + ((place ^ u * kStep * 4) + (line - first + u * kStep) * kLine), p,
            line + u * kStep < lines ? 4 : 0);
  }
};

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
