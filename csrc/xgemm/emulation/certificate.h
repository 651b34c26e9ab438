// When a product of 16-bit limbs may stand: the certificate. What limbs lose of an operand is known
// while it is decomposed; whether that matters is decided in the epilogue, of each result, by its
// own magnitude. Pure; tests/native checks it against exact arithmetic.
//
// A row of A (a column of B) is scaled by a power of two so that its largest element lies in
// [2^14, 2^15), or, where that is guessed of a few (decompose_strips.h), in [2^12, 2^15).
// t = x * 2^exponent is then split:
//   fp16x3  t = hi + lo / 2048, fp16 each: 23 bits if |t| >= 2^-13, else all but 2^-36
//   bf16x6  t = p0 + p1 + p2, bf16 each: all 24 bits if |t| >= 2^-62, else all but 2^-133
//   fp16x2  B as in fp16x3; A, whose elements have 16 bits, t = hi, exact if |t| >= 2^-14
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "xgemm/device/half.h"

namespace xgemm {

// How an FP32 product is made of products of 16-bit limbs.
struct EmulationScheme {
  Half type;
  int limbs;
  float lo_scale;  // of the limbs after the first: what they were multiplied by
  float tiny;  // of |t|: below, a limb is cut off at `lost`
  float lost;  // standard deviation of what is cut off: 2^-36 / sqrt(3), 2^-133, 2^-25 / sqrt(3)
  int segment;  // of k, after which the sum of the corrections is added to an FP32 register
};
constexpr EmulationScheme kFp16x3{Half::fp16, 2, 2048.f, 0x1p-13f, 0x1.27ap-37f, 8192};
constexpr EmulationScheme kBf16x6{Half::bf16, 3, 1.f, 0x1p-62f, 0x1p-133f, 1024};
// A in one limb, which loses more than B's two: `lost` is its.
constexpr EmulationScheme kFp16x2{Half::fp16, 2, 2048.f, 0x1p-13f, 0x1.27ap-26f, 8192};
constexpr EmulationScheme one_limb(EmulationScheme s) {
  s.limbs = 1;
  return s;
}
constexpr const char* kFp16x3Words = "fp16x3: two fp16 limbs of each operand, three products";
constexpr const char* kBf16x6Words = "bf16x6: three bf16 limbs of each operand, six products";
constexpr EmulationScheme scheme_of(Half type) { return type == Half::fp16 ? kFp16x3 : kBf16x6; }

// The next limb of two numbers t, packed; they become what is left for the limbs after it.
template <EmulationScheme S>
__device__ __forceinline__ uint32_t take_limb(float& t0, float& t1) {
  const uint32_t limb = pack_half2<S.type>(t0, t1);
  float y0, y1;
  unpack_half2<S.type>(limb, y0, y1);
  t0 = (t0 - y0) * S.lo_scale, t1 = (t1 - y1) * S.lo_scale;
  return limb;
}

// Why a row may need more than the plain epilogue.
enum RangeFlags : uint32_t {
  kLossy = 1,  // has elements below EmulationScheme::tiny, but zeros
  kSingle = 2,  // has one element but zeros, at RowScale::at
  kInfinite = 4,  // has one infinity, at RowScale::at, and no NaN
  kInfinities = 8,  // has several
  kNan = 16,
  kFar = 32,  // its scale leaves [kLeastExponent, kMostExponent]
};

// What is known of a row besides its limbs; 16 bytes, read as one.
struct alignas(16) RowScale {
  int32_t exponent = 0;  // t = x * 2^exponent
  uint16_t flags = 0;  // RangeFlags
  uint16_t doubt = 0;  // doubt_bits
  float norm = 0.f;  // 2-norm of its finite t: an upper bound, a few percent above
  uint32_t at = 0;  // the k of its only element (kSingle) or infinity (kInfinite)
};

// Rows whose results FP32 elements give.
constexpr uint32_t kGivenFlags = kSingle | kInfinite | kNan;

// Exponents of rows that undo their scales by one multiplication each. From the least on no sum
// overflows: |t| < 2^15, K up to 2^24. Up to the most, a sum that 2^-exponent makes smaller than a
// normal number was below 2^-26, where |A||B| is 2^24 or more: rounding it loses nothing of that.
constexpr int kLeastExponent = -34, kMostExponent = 100;
constexpr int64_t kMostDepth = int64_t{1} << 24;
XGEMM_HD bool is_far(int exponent) { return exponent < kLeastExponent || exponent > kMostExponent; }

// What becomes of one result, and of the worst of a unit's.
enum class Fate : int {
  stands,  // the product of limbs
  given,  // by one or two products of FP32 elements, or a NaN: see given.h
  listed,  // of a unit: few are to be recomputed, each for itself; some may be given
  recomputed,  // limbs may be off by too much
  chained,  // ... or the sum may overflow on its way, which only the chain itself can tell
};

// The certificate. The n elements of A's row below EmulationScheme::tiny each lose a rounding of
// standard deviation `lost`, B's column weighs them by its elements: as roundings are independent,
// the result loses lost times the 2-norm of those n elements of the column, which is at most the
// column's and at most sqrt(n) times its largest element, that is sqrt(n) * 2^15. Likewise the
// other way round. Where the sum of both is at most a unit in the last place of |C|, which is at
// most |A||B|, five standard deviations are five units, within the contract's eight. What all other
// elements lose is in proportion to each product. So of each row two numbers make a threshold. A
// row that is given has neither.
struct Doubt {
  float norm;
  float weight;  // of what its lossy elements meet: at most this; 0 of a row that has none
};

// What a tile needs of a row for it, in 16 bits, 0 of a row that is given. With the exponent and
// the flags it is one load of 8 bytes, and two registers until the tile's end. The low 12: the
// norm, in [1, 2^32) or zero, as a bf16 number rounded up, less the one below 1. The high 4: 0 of a
// row that is not lossy, else 1 more than n's logarithm of base 4, rounded up, or kManyLossy.
constexpr uint32_t kDoubtOfOne = (127u << 7) - 1, kManyNorms = 1 << 12, kManyLossy = 15;
XGEMM_HD uint16_t doubt_bits(const RowScale& s, uint32_t lossy) {
  if (s.flags & kGivenFlags) return 0;
  uint32_t bits, weight = lossy > 0;
  memcpy(&bits, &s.norm, sizeof bits);
  for (uint32_t n = 1; n < lossy && weight < kManyLossy; n *= 4) ++weight;
  return static_cast<uint16_t>((bits ? ((bits + 0xffffu) >> 16) - kDoubtOfOne : 0) | weight << 12);
}
XGEMM_HD Doubt doubt_of(uint32_t bits) {
  const uint32_t norm = bits % kManyNorms, weight = bits / kManyNorms;
  const uint32_t norm_bits = norm ? (norm + kDoubtOfOne) << 16 : 0;
  const uint32_t weight_bits =
      weight ? (weight + 127 + 14 + (weight == kManyLossy ? 4 : 0)) << 23 : 0;
  Doubt d;
  memcpy(&d.norm, &norm_bits, sizeof d.norm);
  memcpy(&d.weight, &weight_bits, sizeof d.weight);
  return d;
}
// What a result must reach.
XGEMM_HD float threshold(const EmulationScheme& s, const Doubt& a, const Doubt& b) {
  return s.lost * 0x1p24f * (fminf(a.norm, b.weight) + fminf(b.norm, a.weight));
}

// How far a row's products reach: with a column's, and one more, at least the exponent of any
// partial sum, since by Cauchy-Schwarz none exceeds |a||b|. The most of a tile's rows and of its
// columns are a pair of it.
constexpr int kNoReach = -(1 << 20);
XGEMM_HD int reach_of(const RowScale& s) {
  return (s.flags & kNan) || s.norm == 0.f ? kNoReach : std::ilogb(s.norm) - s.exponent;
}
XGEMM_HD bool may_overflow(int reach_a, int reach_b) { return reach_a + reach_b + 1 >= 126; }

// Whether only the chain can tell. `deep`: K is beyond kMostDepth.
XGEMM_HD bool needs_chain(const RowScale& a, const RowScale& b, bool deep = false) {
  const uint32_t any = a.flags | b.flags | (deep ? kFar : 0u);
  if (any & kNan) return false;
  return (any & kInfinities) || ((any & kFar) && may_overflow(reach_of(a), reach_of(b)));
}

// `acc`: the product of limbs, still scaled.
XGEMM_HD Fate fate_of(const EmulationScheme& s, const RowScale& a, const RowScale& b, float acc,
                      bool deep = false) {
  if (needs_chain(a, b, deep)) return Fate::chained;
  if ((a.flags | b.flags) & kGivenFlags) return Fate::given;
  return fabsf(acc) >= threshold(s, doubt_of(a.doubt), doubt_of(b.doubt)) ? Fate::stands
                                                                          : Fate::recomputed;
}

}  // namespace xgemm
