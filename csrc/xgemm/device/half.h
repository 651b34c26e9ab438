// 16-bit floating point numbers, two to a register, as the split writes them and tensor cores read
// them. Rounding is to nearest even, subnormals are kept.
#pragma once

#include <cstdint>

#include "xgemm/device/platform.h"

namespace xgemm {

enum class Half : int { fp16, bf16 };

// The bits of a float, and back.
__device__ __forceinline__ uint32_t float_to_bits(float x) {
#ifdef __CUDACC__
  return __float_as_uint(x);
#else
  return std::bit_cast<uint32_t>(x);
#endif
}
__device__ __forceinline__ float bits_to_float(uint32_t bits) {
#ifdef __CUDACC__
  return __uint_as_float(bits);
#else
  return std::bit_cast<float>(bits);
#endif
}

// 2^n for n from -126 to 127.
__device__ __forceinline__ float power_of_2(int n) {
  return bits_to_float(static_cast<uint32_t>(n + 127) << 23);
}

// Two numbers in one register, x0 in its low half.
template <Half kType>
__device__ __forceinline__ uint32_t pack_half2(float x0, float x1) {
#ifdef __CUDACC__
  uint32_t packed;
  if constexpr (kType == Half::fp16)
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(x1), "f"(x0));
  else asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(x1), "f"(x0));
  return packed;
#else
  return simt::to_half(kType, x0) | static_cast<uint32_t>(simt::to_half(kType, x1)) << 16;
#endif
}

// The numbers of such a register.
template <Half kType>
__device__ __forceinline__ void unpack_half2(uint32_t packed, float& x0, float& x1) {
#ifdef __CUDACC__
  if constexpr (kType == Half::fp16)
    asm("{\n.reg .b16 low, high;\n"
        "mov.b32 {low, high}, %2;\n"
        "cvt.f32.f16 %0, low;\ncvt.f32.f16 %1, high;\n}"
        : "=f"(x0), "=f"(x1)
        : "r"(packed));
  else x0 = __uint_as_float(packed << 16), x1 = __uint_as_float(packed & 0xffff0000u);
#else
  x0 = simt::from_half(kType, static_cast<uint16_t>(packed));
  x1 = simt::from_half(kType, static_cast<uint16_t>(packed >> 16));
#endif
}

// One number, as it lies in memory.
template <Half kType>
struct HalfFloat {
  uint16_t bits;

  __device__ __forceinline__ operator float() const {
    float x, none;
    unpack_half2<kType>(bits, x, none);
    return x;
  }
};

// The larger ones of both halves of two registers, as unsigned numbers.
__device__ __forceinline__ uint32_t max_u16x2(uint32_t x, uint32_t y) {
#ifdef __CUDACC__
  return __vmaxu2(x, y);
#else
  const auto half = [&](int shift) {
    const uint32_t a = x >> shift & 0xffffu, b = y >> shift & 0xffffu;
    return (a > b ? a : b) << shift;
  };
  return half(0) | half(16);
#endif
}

}  // namespace xgemm
