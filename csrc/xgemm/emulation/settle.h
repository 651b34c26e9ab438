// The certificate of results whose operands were decomposed on their way, without a scale: three
// bf16 limbs hold an FP32 number's 24 bits, so only the ends of the exponents' range are in
// question. What is not certain is settled by a warp, which has neighbours of one row of D.
#pragma once

#include <limits>

#include "xgemm/emulation/register_limbs.h"

namespace xgemm {
inline namespace XGEMM_FLAVOUR {

// Whether the range of the operands alone makes every result certain, or what magnitude does.
// Exponents: of the largest and smallest elements of A and B.
struct Certainty {
  bool finite, overflow;  // all elements are; a sum may, on its way
  int least;  // exponent from which a result is certain, or kAlways

  static constexpr int kAlways = -1000;
  // Below it limbs are cut off at 2^-134, and below 2^-121 a product's at 2^-149, a dozen of them:
  // by less than half a unit of the last place above.
  static constexpr int kWhole = -110, kLeastProduct = -121;

  __device__ __forceinline__ Certainty(uint32_t range, int64_t k) {
    const int low_a = 128 - static_cast<int>(range & 255u);
    const int top_a = static_cast<int>(range >> 8 & 255u) - 127;
    const int low_b = 128 - static_cast<int>(range >> 16 & 255u);
    const int top_b = static_cast<int>(range >> 24) - 127;
    const int exponent_of_k = static_cast<int>(float_to_bits(static_cast<float>(k)) >> 23) - 127;
    const int depth = max_of(exponent_of_k + 1, 0);  // at least log2 k
    finite = top_a < 128 && top_b < 128;
    overflow = finite && top_a + top_b + 2 + depth >= 126;
    least = kAlways;
    if (low_a + low_b < kLeastProduct) least = kLeastProduct + depth;
    if (low_a < kWhole) least = max_of(least, top_b + 1 - 134 + 25 + depth);
    if (low_b < kWhole) least = max_of(least, top_a + 1 - 134 + 25 + depth);
  }
  __device__ __forceinline__ bool always() const { return finite && !overflow && least == kAlways; }
  __device__ __forceinline__ bool of(float sum) const {
    const int exponent = static_cast<int>(float_to_bits(sum) >> 23 & 255u) - 127;
    return !overflow && exponent < (finite ? 128 : 100) && exponent >= least;
  }

 private:
  __device__ static __forceinline__ int max_of(int x, int y) { return x > y ? x : y; }
};

// What a warp finds in a row along k.
struct Found {
  bool zero, nan;
  uint32_t infinities;
  int64_t at;  // the only infinity's k
};
__device__ __forceinline__ Found look_along(const float* p, int64_t step, int64_t k) {
  uint32_t any = 0, nan = 0, infinities = 0;
  int64_t at = 0;
#pragma unroll 4
  for (int64_t i = threadIdx.x % 32; i < k; i += 32) {
    const uint32_t size = float_to_bits(p[i * step]) & 0x7fffffffu;
    any |= size;
    nan |= size > 0x7f800000u;
    if (size == 0x7f800000u) ++infinities, at = i;
  }
  Found found;
  found.zero = __reduce_or_sync(0xffffffffu, any) == 0;
  found.nan = __reduce_or_sync(0xffffffffu, nan) != 0;
  found.infinities = __reduce_add_sync(0xffffffffu, infinities);
  const uint32_t with = __ballot_sync(0xffffffffu, infinities > 0);
  int lane = 0;
  while (lane < 31 && !(with >> lane & 1)) ++lane;
  found.at = static_cast<int64_t>(__shfl_sync(0xffffffffu, static_cast<uint64_t>(at), lane));
  return found;
}

// Of four neighbours, those that are not certain, a bit each.
__device__ __forceinline__ uint32_t doubts_of(const Gemm& g, int64_t j, const float (&sum)[4],
                                              const Certainty& certain) {
  uint32_t doubts = 0;
#pragma unroll
  for (int w = 0; w < 4; ++w)
    if (j + w < g.n && !certain.of(sum[w])) doubts |= 1u << w;
  return doubts;
}

// A result by the chain.
__device__ __forceinline__ float chain_of(const Gemm& g, int64_t i, int64_t j) {
  float chain = 0.f;
#pragma unroll 1
  for (int64_t k = 0; k < g.k; ++k) chain = fmaf(g.a(i, k), g.b(k, j), chain);
  return chain;
}

// Those in doubt by chains side by side.
__device__ __forceinline__ void chain4(const Gemm& g, int64_t i, int64_t j, float (&sum)[4],
                                       uint32_t doubts) {
  if (!doubts) return;
  float chain[4] = {};
  const float *a = g.a.ptr(i, 0), *b = g.b.ptr(0, j);
  const int64_t step = g.b.cs, last = min_of(g.n - j, 4) - 1;
#pragma unroll 4
  for (int64_t k = 0; k < g.k; ++k, a += g.a.cs, b += g.b.rs) {
    const float x = *a;
#pragma unroll
    for (int w = 0; w < 4; ++w) chain[w] = fmaf(x, b[min_of(w, last) * step], chain[w]);
  }
#pragma unroll
  for (int w = 0; w < 4; ++w)
    if (doubts >> w & 1) sum[w] = chain[w];
}

// Makes results certain that are not: four neighbours a lane of row i, from j on, of which limbs
// gave `sum`; by all of a warp. A row or a column that is zero or not finite says what comes of it;
// what is left is the chain.
__device__ __forceinline__ void settle(const Gemm& g, int64_t i, int64_t j, float (&sum)[4],
                                       uint32_t range) {
  if (i >= g.m) return;
  const Certainty certain(range, g.k);
  if (certain.always()) return;
  uint32_t doubts = doubts_of(g, j, sum, certain);
  if (!__reduce_or_sync(0xffffffffu, doubts)) return;
  const Found row = look_along(g.a.ptr(i, 0), g.a.cs, g.k);
  if (certain.finite && row.zero) return;  // so is what limbs gave
  const bool of_b = range >> 24 == 255u;  // some element of B is not finite
  // A column is looked at where it may decide: where a result is zero, or not finite.
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    uint32_t asking =
        __ballot_sync(0xffffffffu, (doubts >> w & 1) && (!certain.finite || sum[w] == 0.f));
#pragma unroll 1
    for (int lane = 0; asking; ++lane, asking >>= 1) {
      if (!(asking & 1)) continue;
      const int64_t from = j + (lane - static_cast<int>(threadIdx.x % 32)) * 4 + w;
      Found column{false, false, 0, 0};
      if (certain.finite || of_b) column = look_along(g.b.ptr(0, from), g.b.rs, g.k);
      if (static_cast<int>(threadIdx.x % 32) != lane) continue;
      float x = 0.f;
      if (row.nan || column.nan) {
        x = std::numeric_limits<float>::quiet_NaN();
      } else if (row.infinities + column.infinities == 0) {
        if (!row.zero && !column.zero) continue;
      } else if (row.infinities > 1 || column.infinities > 1) {
        continue;
      } else {
        if (row.infinities) x = g.a(i, row.at) * g.b(row.at, from);
        if (column.infinities && !(row.infinities && row.at == column.at))
          x += g.a(i, column.at) * g.b(column.at, from);
      }
      sum[w] = x;
      doubts &= ~(1u << w);
    }
  }
  chain4(g, i, j, sum, doubts);
}

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
