// smem -> registers -> bf16 limbs: operands are decomposed on their way to the tensor cores, one
// into registers and one into shared memory, all 24 bits of an element, whatever its row. The range
// of what has been decomposed decides which results need a certificate (range_certificate.h).
#pragma once

#include "xgemm/device/copy/tma_slice.h"
#include "xgemm/emulation/limbs.h"

namespace xgemm {
inline namespace XGEMM_FLAVOUR {

// Of the elements that a thread has seen: the smallest magnitude but zero, less one, without the
// sign's bit; and of their first limbs the largest, in both halves. Elements may be so small that
// their limbs are zeros.
struct Reach {
  uint32_t least = 0xffffffffu, most = 0;

  // Two elements, and their first limbs.
  __device__ __forceinline__ void see(float x0, float x1, uint32_t limbs) {
    const uint32_t a = float_to_bits(x0), b = float_to_bits(x1);
    least = min3_u32(a + a - 1, b + b - 1, least);
    most = max_u16x2(limbs & 0x7fff7fffu, most);
  }
  // Whether some element's first limb may be zero without the element's being so.
  __device__ __forceinline__ bool subnormal() const { return least < 2u * 0x00800000u - 1u; }
  // As a Range's half: FP32's exponent fields of the largest, rounded up, and of the smallest.
  __device__ __forceinline__ uint32_t half_range() const {
    const uint32_t high = most >> 16 > (most & 0xffffu) ? most >> 16 : most & 0xffffu;
    const uint32_t low = least == 0xffffffffu ? 255u : (least + 1) >> 24;
    return high >> 7 << 8 | (255u - low);
  }
};

// The range of both operands' elements, A's in the lower half: a byte for the largest's exponent
// field, 255 if some are not finite, and one for 255 less the smallest's, zeros apart. So ranges
// are joined by each byte's maximum.
__device__ __forceinline__ uint32_t join_ranges_of_warp(uint32_t x) {
  uint32_t joint = 0;
#pragma unroll
  for (int byte = 0; byte < 32; byte += 8)
    joint |= __reduce_max_sync(0xffffffffu, x >> byte & 255u) << byte;
  return joint;
}

// Two neighbours along k into their limbs, p0 first.
__device__ __forceinline__ void decompose_pair(uint32_t (&limbs)[3], float x0, float x1,
                                               Reach& reach) {
#pragma unroll
  for (int p = 0; p < 3; ++p) {
    limbs[p] = pack_half2<Half::bf16>(x0, x1);
    if (p == 0) reach.see(x0, x1, limbs[p]);
    if (p == 2) continue;
    float y0, y1;
    unpack_half2<Half::bf16>(limbs[p], y0, y1);
    x0 -= y0, x1 -= y1;
  }
}

// wgmma's operand in registers: 64 rows a warpgroup, of which thread t has 16 (t / 32) +
// 2 (t % 32 / 4) and the next, as rows t % 32 / 4 and 8 more of the instruction's. Of 8 k it has
// 2 (t % 4) and the next. Two slices are there: one is multiplied while the next is decomposed.
template <int kL, bool kAlongK>
struct RegisterLimbs {
  static constexpr int kGroups = kSliceK / 16;
  using Slice = NativeSlice<kL, kAlongK>;
  uint32_t limbs[2][kGroups][3][4];

  __device__ static int first_row() { return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 * 2; }
  // Of the thread's first row at its first k. Both are even, so its next row, and its next k, are
  // `^ kNext` where those lie along lines.
  __device__ static int first() {
    return Slice::place(first_row(), static_cast<int>(threadIdx.x) % 4 * 2);
  }
  static constexpr int kNext = 32 | 4;

  __device__ __forceinline__ void decompose(int s, const Slice& slice, int first, Reach& reach) {
#pragma unroll
    for (int c = 0; c < kSliceK / 8; ++c) {
      const int here = kAlongK ? first ^ c * 8 : first + c * 8 * 32;
      float x[2][2];  // two rows, or two of k, by two
      load2(x[0], slice.x + here);
      load2(x[1], slice.x + (here ^ kNext));
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        uint32_t pair[3];
        decompose_pair(pair, kAlongK ? x[row][0] : x[0][row], kAlongK ? x[row][1] : x[1][row],
                       reach);
#pragma unroll
        for (int p = 0; p < 3; ++p) limbs[s][c / 2][p][c % 2 * 2 + row] = pair[p];
      }
    }
  }
  // 0 where all first limbs of a slice's row are.
  __device__ __forceinline__ uint32_t any_of_row(int s, int row) const {
    uint32_t any = 0;
#pragma unroll
    for (const auto& group : limbs[s]) any |= group[0][row] | group[0][2 + row];
    return any & 0x7fff7fffu;
  }
};

// The other one in shared memory, kL rows: limb after limb, lines of kSliceK, swizzled as wgmma
// wants them. Of each kThreads threads one has kRows rows by 8 k, as far as they go round.
template <int kThreads, int kL, bool kAlongK>
struct SharedLimbs {
  static constexpr int kChunks = kSliceK / 8;
  static constexpr int kRows = kL * kChunks > kThreads ? kL * kChunks / kThreads : 1;
  static constexpr int kLines = kL / kRows, kLineBytes = kSliceK * 2;
  static_assert(kLines * kChunks <= kThreads && (kRows == 1 || kLines % 32 == 0));
  using Slice = char[3][kL * kLineBytes];
  using Native = NativeSlice<kL, kAlongK>;

  __device__ static __forceinline__ int thread() {
    return static_cast<int>(threadIdx.x) % kThreads;
  }
  __device__ static __forceinline__ bool has_part() {
    return kLines * kChunks == kThreads || thread() < kLines * kChunks;
  }
  // The thread's first row, kLines before its next, and which 8 k it has.
  __device__ static __forceinline__ int line() {
    return kAlongK ? thread() / kChunks : thread() % kLines;
  }
  __device__ static __forceinline__ int chunk() {
    return kAlongK ? thread() % kChunks : thread() / kLines;
  }
  __device__ static __forceinline__ void load(float (&x)[8], const Native& native, int r,
                                              int chunk) {
    if constexpr (kAlongK) {
      const int at = Native::place(r, chunk * 8);
      load4(x, native.x + at);
      load4(x + 4, native.x + (at ^ 4));
    } else {
#pragma unroll
      for (int e = 0; e < 8; ++e) x[e] = native.x[Native::place(r, chunk * 8 + e)];
    }
  }

  // Limb p of a row's chunk.
  __device__ static __forceinline__ float* place(Slice& slice, int p, int r, int chunk) {
    return reinterpret_cast<float*>(slice[p] + r * kLineBytes + (chunk ^ r / 2 % 4) * 16);
  }
  // 0 where all first limbs of it are.
  __device__ static __forceinline__ uint32_t any_of_row(Slice& slice, int r, int chunk) {
    float pairs[4];
    load4(pairs, place(slice, 0, r, chunk));
    uint32_t any = 0;
#pragma unroll
    for (const float pair : pairs) any |= float_to_bits(pair);
    return any & 0x7fff7fffu;
  }

  // A slice as it came into limbs. Neighbours are such as meet no bank twice.
  __device__ static __forceinline__ void decompose(Slice& slice, const Native& native,
                                                   Reach& reach) {
    if (!has_part()) return;
    const int line = SharedLimbs::line(), chunk = SharedLimbs::chunk();
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int r = line + i * kLines;
      float x[8];
      load(x, native, r, chunk);
      uint32_t pairs[4][3];
#pragma unroll
      for (int e = 0; e < 4; ++e) decompose_pair(pairs[e], x[2 * e], x[2 * e + 1], reach);
#pragma unroll
      for (int p = 0; p < 3; ++p)
        store4(place(slice, p, r, chunk),
               make_float4(bits_to_float(pairs[0][p]), bits_to_float(pairs[1][p]),
                           bits_to_float(pairs[2][p]), bits_to_float(pairs[3][p])));
    }
  }
};

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
