// 16-bit floating point numbers: to nearest even, subnormals kept.
#include "xgemm/device/half.h"

#include "emulator/simt_control.h"

namespace xgemm::simt {
namespace {

// A float's upper bits, rounded: bf16 is a float of 16 bits.
uint16_t to_bf16(uint32_t x) { return static_cast<uint16_t>((x + 0x7fff + (x >> 16 & 1)) >> 16); }

// A magnitude, finite.
uint16_t to_fp16(uint32_t x) {
  if (x >= 0x477ff000) return 0x7c00;  // 65520, half way from the greatest to 2^16
  if (x >= 0x38800000) return static_cast<uint16_t>((x + 0xfff + (x >> 13 & 1) - 0x38000000) >> 13);
  // A multiple of 2^-24: adding 2^-1, whose last bit that is, rounds to one.
  const float sum = std::bit_cast<float>(x) + 0.5f;
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(sum) - 0x3f000000);
}

}  // namespace

uint16_t to_half(Half type, float value) {
  const auto x = std::bit_cast<uint32_t>(value);
  if ((x & 0x7fffffff) > 0x7f800000) return 0x7fff;  // NaN, as the GPU's conversion gives it
  if (type == Half::bf16) return to_bf16(x);
  return static_cast<uint16_t>(x >> 16 & 0x8000) | to_fp16(x & 0x7fffffff);
}

float from_half(Half type, uint16_t x) {
  if (type == Half::bf16) return std::bit_cast<float>(uint32_t{x} << 16);
  const uint32_t sign = (x & 0x8000u) << 16, magnitude = x & 0x7fffu;
  if (magnitude >= 0x7c00) return std::bit_cast<float>(sign | 0x7f800000 | magnitude << 13);
  // The exponent's bias is 112 less than a float's; of a subnormal the same product is exact.
  const float value = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(value));
}

std::vector<uint16_t> to_halves(bool bf16, const std::vector<float>& x) {
  std::vector<uint16_t> y;
  for (float value : x) y.push_back(to_half(bf16 ? Half::bf16 : Half::fp16, value));
  return y;
}

std::vector<float> from_halves(bool bf16, const std::vector<uint16_t>& x) {
  std::vector<float> y;
  for (uint16_t value : x) y.push_back(from_half(bf16 ? Half::bf16 : Half::fp16, value));
  return y;
}

}  // namespace xgemm::simt
