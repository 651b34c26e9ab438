// FP32 operands as sums of 16-bit parts for tensor cores: what is stored of a row, where it lies in
// the workspace, and when two elements' rows may meet there. Pure; the kernel is in split_kernel.h.
//
// A row of A (a column of B) is scaled by a power of two so that its largest element lies in
// [2^14, 2^15), or, where that is guessed of a few (split_strips.h), in [2^12, 2^15).
// t = x * 2^exponent is then split:
//   fp16x3  t = hi + lo / 2048, fp16 each: 23 bits, if |t| >= 2^-13
//   bf16x6  t = p0 + p1 + p2, bf16 each: all 24 bits, and products that are FP32 numbers, if |t| >=
//   2^-62
#pragma once

#include <bit>
#include <cstdint>

#include "xgemm/half.h"
#include "xgemm/schedule.h"

namespace xgemm {

// How an FP32 product is made of products of 16-bit parts.
struct Scheme {
  Half type;
  int parts;
  float lo_scale;  // of the parts after the first: what they were multiplied by
  float tiny, low;  // of |t|: see RowScale
  int least;  // elements of a row that must not be low
  int segment;  // of k, after which the sum of the corrections is added to an FP32 register
};
constexpr Scheme kFp16x3{Half::fp16, 2, 2048.f, 0x1p-13f, 0x1p1f, 64, 8192};
constexpr Scheme kBf16x6{Half::bf16, 3, 1.f, 0x1p-62f, 0x1p-43f, 16, 1024};
constexpr const char* kFp16x3Words = "fp16x3: two fp16 parts of each operand, three products";
constexpr const char* kBf16x6Words = "bf16x6: three bf16 parts of each operand, six products";
constexpr Scheme scheme_of(Half type) { return type == Half::fp16 ? kFp16x3 : kBf16x6; }

// What is known of a row besides its parts.
//
// Of an element but 0 with |t| < tiny up to 2^-36 is lost (fp16x3), which is too much for it, and
// matters where its product is no small part of a result. Then all the other products of that
// result are small, too: in each, one factor at least is low. So where at most a share f of A's row
// and g of B's column is low, and a share s and t of them tiny, the tiny ones cost a result less
// than half a unit in the last place of |A||B| as long as f + 4 s + g + 4 t <= 1. That is what
// `risk` holds, for every pair of a row and a column, and with no other row having a say.
//
// A row with few elements that are not low has kSparse for its risk, and suffices with none: what
// few products lose, 2^-23 of each by fp16x3, is more than a short chain's roundings; in a long one
// it vanishes among them.
struct alignas(8) RowScale {
  int16_t exponent;  // t = x * 2^exponent
  int16_t top;  // floor(log2 |largest x|); kNotFinite where there is an infinity or a NaN
  float risk;  // share of low elements + 4 * share of tiny ones; negative if there are tiny ones
};
constexpr float kSparse = 4.f;
constexpr int kNotFinite = 32000, kAllZero = -16000;

// The risk of a row of k elements, so many of them low and tiny.
XGEMM_HD float risk_of(Scheme s, uint32_t low, uint32_t tiny, int64_t k, int top) {
  if (top == kAllZero || top == kNotFinite) return 0.f;
  if (k - low < s.least) return -kSparse;
  const float share =
      (static_cast<float>(low) + 4.f * static_cast<float>(tiny)) / static_cast<float>(k);
  return tiny ? -share : share;
}

// Whether parts give the product of this row of A and this column of B; otherwise it takes the
// chain of FP32 operations. Where that could overflow on its way, the chain itself must tell.
// `depth` is depth_of(k).
constexpr int kOverflow = 124;
XGEMM_HD int depth_of(int64_t k) {
  int depth = 0;
  while (depth < 63 && (int64_t{1} << depth) < k) ++depth;
  return depth;
}
XGEMM_HD bool parts_suffice(const RowScale& a, const RowScale& b, int depth) {
  if (a.top + b.top + depth >= kOverflow) return false;
  return (a.risk >= 0.f && b.risk >= 0.f) || fabsf(a.risk) + fabsf(b.risk) <= 1.f;
}

// Why elements of a row could not be counted in 32 bits, or null.
inline const char* too_deep_to_count(const Gemm& g) {
  return g.k > int64_t{UINT32_MAX} ? "splits rows of fewer than 2^32 elements of K" : nullptr;
}

// What the split finds of all rows together, for a choice of scheme: the largest risks of A and B
// as bits, and whether there are tiny elements. Risks below kUntold are not told: ordinary rows
// have them, and would all wait for one address.
struct Verdict {
  uint32_t risk[2], tiny;
};
constexpr float kUntold = 0.0625f;
XGEMM_HD bool risky(float risk) { return fabsf(risk) >= kUntold; }

// Whether some pair of a row and a column may be beyond fp16x3: by tiny elements, or as it is
// likely to have few k where neither is low. What few products lose is more than a short chain's
// roundings.
constexpr float kLeastShared = 40.f;
XGEMM_HD bool is_wide(const Verdict& v, int64_t k) {
  // Read here and not in std::bit_cast, for the host flavour to name this file where it is too
  // early.
  const uint32_t of_a = v.risk[0], of_b = v.risk[1];
  const auto a = std::bit_cast<float>(of_a), b = std::bit_cast<float>(of_b);
  if (v.tiny && (a > kUntold ? a : kUntold) + (b > kUntold ? b : kUntold) > 1.f) return true;
  return a < 1.f && b < 1.f && (1.f - a) * (1.f - b) * static_cast<float>(k) < kLeastShared;
}

constexpr int kSplitK = 32;  // of k, whose parts lie together: hi, lo, or p0, p1, p2

// The parts of one operand: [row][k / 32][part][32], rows along k, matrix after matrix of the
// batch. For B, rows are its columns.
struct Parts {
  void* data = nullptr;
  RowScale* scales = nullptr;
  int64_t rows = 0;  // of a matrix
  int64_t matrices = 1;
  int64_t blocks = 0;  // of k: at least one, the last filled up with zeros

  // Matrix z of the batch begins at this row; a broadcast operand is stored once.
  XGEMM_HD int64_t first_row(int64_t z) const { return matrices == 1 ? 0 : z * rows; }
  XGEMM_HD int64_t row_bytes(int parts) const { return blocks * kSplitK * 2 * parts; }
};

// More than any memory: what sizes beyond 64 bits come to. Operands with strides of 0 need no
// memory themselves, but all of their elements have parts.
constexpr size_t kNoSuchMemory = SIZE_MAX / 1024 * 1024;
inline size_t times(size_t a, size_t b) {
  size_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? kNoSuchMemory : product;
}

// What lies one after another in memory from `start`, so far so many bytes.
struct Layout {
  void* start;
  size_t bytes = 0;

  void* place(size_t size) {
    void* at = static_cast<char*>(start) + bytes;
    const bool far = size > kNoSuchMemory - 1023 || bytes > kNoSuchMemory - (size + 1023);
    bytes = far ? kNoSuchMemory : bytes + (size + 1023) / 1024 * 1024;
    return at;
  }
  // Room for so many parts of each of rows * matrices * k elements.
  Parts place_parts(int64_t rows, int64_t matrices, int64_t k, int parts) {
    Parts p;
    p.rows = rows;
    p.matrices = matrices;
    p.blocks = k > kSplitK ? ceil_div(k, kSplitK) : 1;
    const size_t all = times(static_cast<size_t>(rows), static_cast<size_t>(matrices));
    p.data = place(times(all, static_cast<size_t>(p.row_bytes(parts))));
    p.scales = static_cast<RowScale*>(place(times(all, sizeof(RowScale))));
    return p;
  }
};

// A matrix B that is split once and kept: its parts by kFp16x3, and what they tell the verdict.
struct PackedB {
  Parts parts;
  Verdict* verdict = nullptr;
  size_t bytes = 0;
};
inline PackedB plan_packed(const Gemm& g, void* packed) {
  Layout all{packed};
  PackedB plan;
  plan.parts = all.place_parts(g.n, 1, g.k, kFp16x3.parts);
  plan.verdict = static_cast<Verdict*>(all.place(sizeof(Verdict)));
  plan.bytes = all.bytes;
  return plan;
}

// Where the parts of A and B lie, in a workspace of `bytes` as far as they are not kept.
struct SplitPlan {
  Parts a, b;
  bool b_is_kept = false;  // and needs no split
  Verdict* verdict = nullptr;
  size_t bytes = 0;

  void keep(const PackedB& packed) {
    b = packed.parts;
    b_is_kept = true;
  }
};

// With room for so many parts of an element; B's only if `packed_b` is null.
inline SplitPlan plan_split(const Gemm& g, int parts, void* workspace, void* packed_b = nullptr) {
  SplitPlan plan;
  Layout all{workspace};
  const auto operand = [&](int64_t rows, int64_t stride) {
    return all.place_parts(rows, g.batch > 1 && stride != 0 ? g.batch : 1, g.k, parts);
  };
  plan.a = operand(g.m, g.a.bs);
  if (packed_b) plan.keep(plan_packed(g, packed_b));
  else plan.b = operand(g.n, g.b.bs);
  plan.verdict = static_cast<Verdict*>(all.place(sizeof(Verdict)));
  plan.bytes = all.bytes;
  return plan;
}

}  // namespace xgemm
