// Rows of A and columns of B that have one nonzero at most: their results are single products, and
// exact but for their rounding, where products of limbs that are left out would show. Whoever
// decomposes a slice notes them; two nonzeros in each of a thread's rows, and it looks no more: of
// dense data that is after the first slice. Rows of zeros are looked at for ever, by their limbs.
#pragma once

#include "xgemm/emulation/register_limbs.h"

namespace xgemm {
inline namespace XGEMM_FLAVOUR {

// What is known of a row's nonzeros: none was seen; one, at a place along k, counted from 1; or
// more than one, as also rows have that are not looked at.
struct NonzeroPlace {
  static constexpr uint32_t kNone = 0, kMany = 0xffffffffu;
  uint32_t place = kNone;

  __device__ __forceinline__ bool single() const { return place - 1 < kMany - 1; }
  __device__ __forceinline__ uint32_t k() const { return place - 1; }
  // What two threads know of one row.
  __device__ __forceinline__ NonzeroPlace joined(NonzeroPlace other) const {
    return {place == kNone ? other.place : other.place == kNone ? place : kMany};
  }
};

// Of the kRows rows of which a thread decomposes a part.
template <int kRows>
struct SingleNonzeros {
  NonzeroPlace rows[kRows];

  // A share of K that 32 bits cannot count is not looked at.
  __device__ __forceinline__ void begin(int row, bool inside, int64_t depth) {
    rows[row].place =
        inside && depth < NonzeroPlace::kMany ? NonzeroPlace::kNone : NonzeroPlace::kMany;
  }
  __device__ __forceinline__ bool looking(int row) const {
    return rows[row].place != NonzeroPlace::kMany;
  }
  // Whether some row may have one nonzero at most.
  __device__ __forceinline__ bool looking() const {
    uint32_t all = rows[0].place;
#pragma unroll
    for (int r = 1; r < kRows; ++r) all &= rows[r].place;
    return all != NonzeroPlace::kMany;
  }
  // Of a slice at k, `nonzero` has a bit for each of its k.
  __device__ __forceinline__ void see(int row, uint32_t nonzero, uint32_t k) {
    if (nonzero == 0) return;
    const bool first = rows[row].place == NonzeroPlace::kNone && (nonzero & (nonzero - 1)) == 0;
    rows[row].place = first ? k + __ffs(static_cast<int>(nonzero)) : NonzeroPlace::kMany;
  }
};

// A bit, at the place of each, for those of eight elements that are not zero.
template <class Place>
__device__ __forceinline__ uint32_t nonzeros_of(const float (&x)[8], const Place& place) {
  uint32_t bits = 0;
#pragma unroll
  for (int e = 0; e < 8; ++e)
    if (x[e] != 0.f) bits |= 1u << place(e);
  return bits;
}

// What RegisterLimbs::decompose has made the limbs `number` of, a slice at k.
template <int kL, bool kAlongK>
__device__ __forceinline__ void note_columns(SingleNonzeros<2>& singles,
                                             const RegisterLimbs<kL, kAlongK>& columns, int number,
                                             const NativeSlice<kL, kAlongK>& slice, int first,
                                             uint32_t k, const Reach& reach) {
  using Columns = RegisterLimbs<kL, kAlongK>;
  uint32_t any = reach.subnormal();
#pragma unroll
  for (int row = 0; row < 2; ++row)
    if (singles.looking(row)) any |= columns.any_of_row(number, row);
  if (any == 0) return;
  first = static_cast<int>(opaque(static_cast<uint32_t>(first)));  // read anew: no room for both
  float x[2][8];  // two rows
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    float pair[2][2];
    const int here = kAlongK ? first ^ c * 8 : first + c * 8 * 32;
    load2(pair[0], slice.x + here);
    load2(pair[1], slice.x + (here ^ Columns::kNext));
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int row = kAlongK ? e / 2 : e % 2;
      x[row][2 * c + (kAlongK ? e % 2 : e / 2)] = pair[e / 2][e % 2];
    }
  }
#pragma unroll
  for (int row = 0; row < 2; ++row)
    singles.see(row,
                nonzeros_of(x[row], [](int e) { return e / 2 * 8 + e % 2; }) << threadIdx.x % 4 * 2,
                k);
}

// What SharedLimbs::decompose has made `slice` of.
template <class Rows>
__device__ __forceinline__ void note_rows(SingleNonzeros<Rows::kRows>& singles,
                                          typename Rows::Slice& slice,
                                          const typename Rows::Native& native, uint32_t k,
                                          const Reach& reach) {
  const int chunk = Rows::chunk();
#pragma unroll
  for (int i = 0; i < Rows::kRows; ++i) {
    const int r = Rows::line() + i * Rows::kLines;
    if (!singles.looking(i) || !(Rows::any_of_row(slice, r, chunk) | reach.subnormal())) continue;
    float x[8];
    Rows::load(x, native, r, chunk);
    singles.see(i, nonzeros_of(x, [](int e) { return e; }) << chunk * 8, k);
  }
}

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
