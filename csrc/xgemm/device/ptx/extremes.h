// The larger or smaller of two numbers, in one instruction.
#pragma once

#include "xgemm/device/platform.h"

namespace xgemm {

// The larger one of two, or NaN if one of them is.
__device__ __forceinline__ float max_or_nan(float x, float y) {
#ifdef __CUDACC__
  float z;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
#else
  return x > y || x != x ? x : y;
#endif
}

// The smaller one of x + y, modulo 2^32, and z.
__device__ __forceinline__ uint32_t min_of_sum(uint32_t x, uint32_t y, uint32_t z) {
#ifdef __CUDACC__
  return __viaddmin_u32(x, y, z);
#else
  return x + y < z ? x + y : z;
#endif
}

}  // namespace xgemm
