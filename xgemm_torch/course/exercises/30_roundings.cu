//! title: What a float forgets
//! kind: predict
//! ask ones: A and B hold ones, K = 2^24 + 2. What is D(0, 0), a chain of FP32?
//! truth ones: int(value("1x1x16777218", "ones"))
//! wrong ones: 16777218; from 2^24 on floats are 2 apart
//! wrong ones: 0; nothing overflows
//! because ones: 2^24 + 1 lies between two floats and goes to the even one, 2^24: the chain has
//!   stopped there.
//! ask spacing: How far apart are floats near 1000? Give 1 / that distance.
//! truth spacing: 1 / (2 ** -23 * 2 ** 9)
//! wrong spacing: 8388608; that is at 1; at 1000 = 2^9 x 1.95 they are 2^9 times as far apart
//! because spacing: 2^9 x 2^-23 = 2^-14 apart.
//! ask fused: x = 1 + 2^-12. What is 2^24 times fmaf(x, x, -(1 + 2^-11))?
//! truth fused: 2 ** 24 * float32((1 + 2 ** -12) ** 2 - (1 + 2 ** -11))
//! wrong fused: 0; that is with two roundings: x * x alone loses the 2^-24
//! because fused: x * x = 1 + 2^-11 + 2^-24 exactly, and the only rounding comes after the sum.
//! ask twice: And 2^24 times x * x - (1 + 2^-11), rounded after each operation?
//! truth twice: 2 ** 24 * float32(float32((1 + 2 ** -12) ** 2) - (1 + 2 ** -11))
//! wrong twice: 1; 1 + 2^-11 + 2^-24 is no float: it is half way, and goes to the even one
//! because twice: All that was left of the difference is rounded away before it is taken.
//! ask tenths: A and B hold 0.1f, K = 64. By how many ulps is D(0, 0) off from the exact sum of
//!   the products of these floats? (Two figures will do: run it if you like, the check does.)
//! truth tenths: ulps(value("1x1x64", "tenths"), 64 * Fraction(float32(0.1)) ** 2)
//! wrong tenths: 0; each of 64 additions rounds
//! wrong tenths: 32; that is the bound, 64 times half an ulp
//! because tenths: 64 roundings of at most half an ulp each. The same number is added again and
//!   again, so that they do not cancel as those of random numbers would.
//! hint: A float has 24 bits: between 2^e and 2^(e + 1) floats are 2^(e - 23) apart.
//! hint: Halfway cases go to the neighbour whose last bit is 0. fmaf rounds once, a * b + c
//!   twice.
//! hint: The last one cannot be guessed: sum it up by a program, numpy's float32 with an exact
//!   product (in float64) and one rounding for each step. --solution has it otherwise.
// A float has 24 bits of significance. One ulp, the unit in the last place, is the distance to its
// neighbour: 2^-23 at 1, twice as much at 2, 2 at 2^24. A result that is rounded once is at most
// half an ulp off. The bits of a sum depend on its order, and on whether products are rounded
// before they are added.
//
// By hand: 1 + 2^-24 lies half way between 1 and 1 + 2^-23, and becomes 1, the even one. 2^24 + 1
// lies half way between 2^24 and 2^24 + 2, and becomes 2^24.
//
// The chain below is what `precision="ieee"` gives on every machine. The check runs it, and
// computes what is exact with fractions.

#include "exercise.h"

__global__ void kernel(const Gemm g) {
  float acc = 0.f;
  for (int64_t k = 0; k < g.k; ++k) acc = fmaf(g.a(0, k), g.b(k, 0), acc);
  g.store(0, 0, acc);
}

void run(const Gemm& g, const Context& context) {
  launch(kernel, {.grid = dim3(1), .block = dim3(1)}, context, g);
}
