// The certificate of results whose operands were decomposed on their way, without a scale: three
// bf16 limbs hold an FP32 number's 24 bits, so only the ends of the exponents' range are in
// question. What is not certain is made anew by FP32 multiply-adds.
#pragma once

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

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
