#include "emulator/tensor_core.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <vector>

#include "emulator/simt_control.h"

namespace xgemm::simt {
namespace {

constexpr int kDepth = 16, kLanes = 8, kFraction = 25;
// A significand has 11 bits, those of bf16 three zeros at its end; a product, of A's with kGuard
// more, has its point kFraction bits from the right.
constexpr int kBits = 11, kGuard = kFraction - 2 * (kBits - 1);
constexpr int kNone = -10000, kLeast = -300;  // exponents of zero, and below all others

typedef int32_t Vector __attribute__((vector_size(4 * kLanes), may_alias));

struct Decoded {
  int32_t significand, exponent, sign;  // sign: 0 or all ones
  bool special;                         // infinite or NaN
};

inline Decoded decode(Half type, uint16_t x) {
  const int fraction_bits = type == Half::fp16 ? 10 : 7, bias = type == Half::fp16 ? 15 : 127;
  const int field = (x & 0x7fff) >> fraction_bits, fraction = x & ((1 << fraction_bits) - 1);
  const int significand = (field ? 1 << fraction_bits : 0) | fraction;
  return {significand << (kBits - 1 - fraction_bits),
          significand ? (field ? field : 1) - bias : kNone, -(x >> 15), field == 2 * bias + 1};
}

struct Row {  // of A
  int32_t significand[kDepth], exponent[kDepth], sign[kDepth];
  bool special = false;
};

struct Columns {  // kLanes of B
  Vector significand[kDepth], exponent[kDepth], sign[kDepth];
  bool special[kLanes];
};

// What the sum of such numbers is in IEEE arithmetic: infinite or NaN.
float special_sum(Half type, const uint16_t* a, const uint16_t* b, float acc) {
  double sum = acc;
  for (int k = 0; k < kDepth; ++k)
    sum += static_cast<double>(from_half(type, a[k])) * from_half(type, b[k]);
  if (std::isnan(sum)) return std::bit_cast<float>(0x7fffffff);
  return std::copysign(std::numeric_limits<float>::infinity(), static_cast<float>(sum));
}

// total * 2^(top - kFraction), truncated to a float.
inline float truncated(int64_t total, int top) {
  const auto scale = std::bit_cast<double>(static_cast<uint64_t>(top - kFraction + 1023) << 52);
  const double exact = static_cast<double>(total) * scale;
  if (std::fabs(exact) < 0x1p-126) [[unlikely]]
    return static_cast<float>(std::trunc(exact * 0x1p149) * 0x1p-149);
  return static_cast<float>(
      std::bit_cast<double>(std::bit_cast<uint64_t>(exact) & ~uint64_t{0x1fffffff}));
}

// acc[0 .. kLanes), of one row and kLanes columns; true where one of them is infinite or NaN.
__attribute__((always_inline)) inline bool step(const Row& a, const Columns& b, float* acc) {
  Vector bits, none = {};
  std::memcpy(&bits, acc, sizeof bits);
  const Vector field = bits >> 23 & 0xff, fraction = bits & 0x7fffff;
  const Vector acc_exponent = (field == 0 ? none + 1 : field) - 127;
  const Vector acc_significand = field == 0 ? fraction : fraction | 1 << 23;
  Vector top = acc_significand == 0 ? none + kLeast : acc_exponent;
  for (int k = 0; k < kDepth; ++k) {
    const Vector e = b.exponent[k] + a.exponent[k];
    top = e > top ? e : top;
  }
  Vector sum = {};
  for (int k = 0; k < kDepth; ++k) {
    const Vector away = top - (b.exponent[k] + a.exponent[k]), sign = b.sign[k] ^ a.sign[k];
    const Vector term = b.significand[k] * a.significand[k] >> (away < 31 ? away : none + 31);
    sum += (term ^ sign) - sign;
  }
  const Vector away = top - acc_exponent, sign = bits >> 31;
  const Vector term = acc_significand << (kFraction - 23) >> (away < 31 ? away : none + 31);
  const Vector acc_term = (term ^ sign) - sign;
  bool special = false;
  for (int j = 0; j < kLanes; ++j) {
    special = special || field[j] == 0xff;
    acc[j] = truncated(int64_t{sum[j]} + acc_term[j], top[j]);
  }
  return special;
}

__attribute__((always_inline)) inline void steps(Half type, int m, int n,
                                                 const uint16_t (*a)[kDepth],
                                                 const uint16_t (*b)[kDepth], const Row* rows,
                                                 float* acc, int ld) {
  for (int j = 0; j < n; j += kLanes) {
    Columns columns;
    bool special = false;
    for (int l = 0; l < kLanes; ++l) {
      columns.special[l] = false;
      for (int k = 0; k < kDepth; ++k) {
        const Decoded x = decode(type, b[j + l][k]);
        columns.significand[k][l] = x.significand;
        columns.exponent[k][l] = x.exponent;
        columns.sign[k][l] = x.sign;
        columns.special[l] = columns.special[l] || x.special;
      }
      special = special || columns.special[l];
    }
    for (int i = 0; i < m; ++i) {
      float* const to = acc + static_cast<int64_t>(i) * ld + j;
      float before[kLanes];
      std::memcpy(before, to, sizeof before);
      if (!step(rows[i], columns, to) && !special && !rows[i].special) [[likely]]
        continue;
      for (int l = 0; l < kLanes; ++l)
        if (rows[i].special || columns.special[l] || !std::isfinite(before[l]))
          to[l] = special_sum(type, a[i], b[j + l], before[l]);
    }
  }
}

using Steps = void(Half, int, int, const uint16_t (*)[kDepth], const uint16_t (*)[kDepth],
                   const Row*, float*, int);

#if defined(__x86_64__)
__attribute__((target("avx2"))) void steps_avx2(Half type, int m, int n,
                                                const uint16_t (*a)[kDepth],
                                                const uint16_t (*b)[kDepth], const Row* rows,
                                                float* acc, int ld) {
  steps(type, m, n, a, b, rows, acc, ld);
}
#endif

void steps_plain(Half type, int m, int n, const uint16_t (*a)[kDepth], const uint16_t (*b)[kDepth],
                 const Row* rows, float* acc, int ld) {
  steps(type, m, n, a, b, rows, acc, ld);
}

Steps* best() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return steps_avx2;
#endif
  return steps_plain;
}

}  // namespace

void mma_steps(Half type, int m, int n, const uint16_t (*a)[16], const uint16_t (*b)[16],
               float* acc, int ld) {
  static Steps* const run = best();
  std::vector<Row> rows(static_cast<size_t>(m));
  for (int i = 0; i < m; ++i) {
    Row& row = rows[static_cast<size_t>(i)];
    for (int k = 0; k < kDepth; ++k) {
      const Decoded x = decode(type, a[i][k]);
      row.significand[k] = x.significand << kGuard;
      row.exponent[k] = x.exponent;
      row.sign[k] = x.sign;
      row.special = row.special || x.special;
    }
  }
  run(type, m, n, a, b, rows.data(), acc, ld);
}

std::vector<float> tensor_core_step(bool bf16, const std::vector<uint16_t>& a,
                                    const std::vector<uint16_t>& b, std::vector<float> acc) {
  const size_t m = a.size() / kDepth, n = b.size() / kDepth;
  if (a.size() % kDepth || b.size() % (kDepth * kLanes) || acc.size() != m * n)
    throw std::invalid_argument("simt: m x 16, n x 16 and m x n numbers, n a multiple of 8");
  mma_steps(bf16 ? Half::bf16 : Half::fp16, static_cast<int>(m), static_cast<int>(n),
            reinterpret_cast<const uint16_t (*)[kDepth]>(a.data()),
            reinterpret_cast<const uint16_t (*)[kDepth]>(b.data()), acc.data(),
            static_cast<int>(n));
  return acc;
}

}  // namespace xgemm::simt
