// The tensor core's arithmetic, to the bit as Hopper does it.
#pragma once

#include <cstdint>

#include "xgemm/device/half.h"

namespace xgemm::simt {

// acc[i * ld + j] += A(i, .) . B(., j) for m x n results, n a multiple of 8: one step of 16
// products. a[i][k] and b[j][k] are operands of 16 bits.
//
// All products and the accumulator are added at once: each is truncated toward zero to 25 fraction
// bits below the largest exponent among them, the sum is exact, and the result is truncated toward
// zero to a float. A product's exponent is the sum of its operands', not normalised; a subnormal
// operand has that of the smallest normal number.
void mma_steps(Half type, int m, int n, const uint16_t (*a)[16], const uint16_t (*b)[16],
               float* acc, int ld);

}  // namespace xgemm::simt
