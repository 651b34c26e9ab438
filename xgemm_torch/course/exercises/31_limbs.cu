//! title: A float in three pieces
//! kind: fill
//! stage: wgmma_bf16x6
//! cases: 33x3x1!wide 1x3x1 65x3x1 200x3x1!wide
//! hint: as_bf16(x) rounds x to 8 bits. What is left, x - as_bf16(x), is a float again, without
//!   any rounding: it has at most 16 bits.
//! hint: limb[0] = as_bf16(x); rest = x - limb[0]; limb[1] = as_bf16(rest); rest -= limb[1];
//!   limb[2] = as_bf16(rest).
// Tensor cores multiply 16-bit numbers some fifteen times as fast as the FP32 units multiply
// floats. A float has 24 bits, a bf16 8 of them, at the same exponents. So a float is the sum of
// three:
//
//   x        = 1.10101010 10110011 0110111       24 bits
//   limb 0   = x rounded to 8 bits               what is left is at most 2^-8 of it
//   limb 1   = the rest, rounded to 8 bits       what is left is at most 2^-16
//   limb 2   = the rest, which has 8 bits at most: exact
//
// The subtractions are exact: x and its rounding are near each other, and their difference needs no
// bit that a float of its size does not have. So x = limb 0 + limb 1 + limb 2 to the last bit, and
// a product of two floats is a sum of nine products of limbs. Six of them are enough: the others
// are below 2^-24 of the whole.
//
// Write decompose. What is checked of each x: the limbs' sum is x, to the bit; each limb is a bf16;
// and each is at most 2^-8 of the one before.

#include "exercise.h"

__device__ float as_bf16(float x) {
  float rounded, other;
  unpack_half2<Half::bf16>(pack_half2<Half::bf16>(x, 0.f), rounded, other);
  return rounded;
}

__device__ void decompose(float x, float (&limb)[3]) {
#if GIVEN  // bits: one limb is not the whole
  limb[0] = as_bf16(x);
  limb[1] = limb[2] = 0.f;
#elif WRONG_1  // bits: two limbs keep 16 bits
  limb[0] = as_bf16(x);
  limb[1] = as_bf16(x - limb[0]);
  limb[2] = 0.f;
#elif WRONG_2  // bits: the third is of the same rest as the second
  limb[0] = as_bf16(x);
  limb[1] = as_bf16(x - limb[0]);
  limb[2] = as_bf16(x - limb[0]);
#elif WRONG_3  // bits: the sum is right, but the last limb is no bf16
  limb[0] = as_bf16(x);
  limb[1] = x - limb[0];
  limb[2] = 0.f;
#else
  limb[0] = as_bf16(x);
  limb[1] = as_bf16(x - limb[0]);
  limb[2] = as_bf16(x - limb[0] - limb[1]);
#endif
}

// Of each element of A: its limbs' sum, and two questions, 1 for yes.
float expected(const Gemm& g, int64_t i, int64_t j) { return j == 0 ? g.a(i, 0) : 1.f; }

__global__ void kernel(const Gemm g) {
  const int64_t i = int64_t{blockIdx.x} * 32 + threadIdx.x;
  if (i >= g.m) return;
  float limb[3];
  decompose(g.a(i, 0), limb);
  bool narrow = true, falling = true;
  for (const float x : limb) narrow = narrow && as_bf16(x) == x;
  for (int l = 1; l < 3; ++l) falling = falling && fabsf(limb[l]) * 256.f <= fabsf(limb[l - 1]);
  g.d(i, 0) = limb[0] + (limb[1] + limb[2]);
  g.d(i, 1) = narrow ? 1.f : 0.f;
  g.d(i, 2) = falling ? 1.f : 0.f;
}

void run(const Gemm& g, const Context& context) {
  launch(kernel, {.grid = dim3((g.m + 31) / 32), .block = dim3(32)}, context, g);
}
