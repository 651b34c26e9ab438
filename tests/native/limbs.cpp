// What the decomposition says of rows, when their products may stand, and where limbs lie:
// decompose_rows.h, certificate.h, limbs.h, slabs.h.
#include "xgemm/emulation/limbs.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "xgemm/emulation/decompose_strips.h"
#include "xgemm/emulation/slabs.h"
#include "xgemm/mainloop/recompute.h"

namespace xgemm {
namespace {

constexpr EmulationScheme kSchemes[] = {kFp16x3, kBf16x6};

std::string name_of(const EmulationScheme& s) { return s.type == Half::fp16 ? "fp16x3" : "bf16x6"; }

// A row as the decomposition sees it: its scale, and what its limbs hold of each t.
struct DecomposedRow {
  RowScale scale;
  std::vector<double> t, limbs;
};

template <EmulationScheme S>
DecomposedRow decompose_row(const std::vector<float>& x, int top = kMostTop) {
  DecomposedRow row;
  const auto k = static_cast<int64_t>(x.size());
  uint32_t largest = 0;
  for (const float each : x) largest = max_of(largest, finite_magnitude(each));
  const int exponent = exponent_of(largest, top);
  RowSeen seen;
  for (int64_t first = 0; first < k; first += 8) {
    float t[8] = {};
    const auto at = [&](int e) { return first + e < k ? x[static_cast<size_t>(first + e)] : 0.f; };
    for (int e = 0; e < 8; ++e)
      t[e] = static_cast<float>(std::ldexp(static_cast<double>(at(e)), exponent));
    seen.see_each<S>(t, at, static_cast<uint32_t>(first));
  }
  uint32_t sums[RowSeen::kSums];
  seen.to(sums, k);
  row.scale = scale_of(exponent, sums, k);
  for (const float each : x) {
    const double t = std::ldexp(static_cast<double>(each), exponent);
    auto rest = static_cast<float>(t);
    double held = 0, scale = 1;
    for (int limb = 0; limb < S.limbs; ++limb, scale *= static_cast<double>(S.lo_scale)) {
      float x0, x1;
      unpack_half2<S.type>(pack_half2<S.type>(rest, 0.f), x0, x1);
      held += static_cast<double>(x0) / scale;
      rest = (rest - x0) * S.lo_scale;
    }
    row.t.push_back(t), row.limbs.push_back(held);
  }
  return row;
}

// Elements that are not tiny lose 2^-23 of themselves at most (fp16x3), or nothing; tiny ones what
// EmulationScheme::lost is the standard deviation of, within a factor.
template <EmulationScheme S>
void test_what_limbs_hold() {
  for (float least = 0x1p-149f; least < 0x1p14f; least *= 2)
    for (int step = 0; step < 512; ++step) {
      const float x = least * (1.f + static_cast<float>(step * 16381) * 0x1p-23f);
      const DecomposedRow row = decompose_row<S>({0x1p14f, x});
      const double lost = std::fabs(row.limbs[1] - row.t[1]), size = std::fabs(row.t[1]);
      const double allowed = size < static_cast<double>(S.tiny)
                                 ? 2 * static_cast<double>(S.lost)
                                 : (S.type == Half::fp16 ? 0x1p-23 : 0.0) * size;
      if (lost > allowed) return expect(false, name_of(S) + ": a limb is lost");
      const bool lossy = row.scale.flags & kLossy;
      if (lossy != (size < static_cast<double>(S.tiny)))
        return expect(false, name_of(S) + ": tiny elements are told");
    }
}

// Where the certificate lets limbs stand, they are right: rows of every kind against columns of
// every kind, exact products of limbs beside exact products. Adding up is not in it.
template <EmulationScheme S>
void test_what_stands_is_right() {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> uniform(-1, 1);
  const auto draw = [&](int kind, int64_t k, int sign) {
    std::vector<float> x(static_cast<size_t>(k));
    for (int64_t i = 0; i < k; ++i) {
      const float far = static_cast<float>(sign) * (2 * static_cast<float>(i) / k - 1);
      const float n = normal(random), u = uniform(random);
      x[static_cast<size_t>(i)] = kind == 0   ? n
                                  : kind == 1 ? n * std::exp2(20 * u)
                                  : kind == 2 ? n * std::exp2(30 * far)
                                  : kind == 3 ? (i ? n * 0x1p-30f : 1.f)
                                  : kind == 4 ? (u > 0.9f ? n : 0.f)
                                  : kind == 5 ? (i ? 0x1.fff3p-29f : 1.f)
                                              : std::exp(4 * n);
    }
    return x;
  };
  int stands = 0, refused = 0;
  for (int kind_a = 0; kind_a < 7; ++kind_a)
    for (int kind_b = 0; kind_b < 7; ++kind_b)
      for (const int64_t k : {2, 17, 200, 700})
        for (int repeat = 0; repeat < 40; ++repeat) {
          const DecomposedRow a = decompose_row<S>(draw(kind_a, k, 1));
          const DecomposedRow b = decompose_row<S>(draw(kind_b, k, -1), repeat % 2 ? 12 : kMostTop);
          double exact = 0, size = 0, got = 0;
          for (size_t i = 0; i < a.t.size(); ++i) {
            exact += a.t[i] * b.t[i], got += a.limbs[i] * b.limbs[i];
            size += std::fabs(a.t[i] * b.t[i]);
          }
          const Fate fate = fate_of(S, a.scale, b.scale, static_cast<float>(got));
          if (fate != Fate::stands) {
            ++refused;
            continue;
          }
          ++stands;
          if (std::fabs(got - exact) > 8 * 0x1p-24 * size)
            return expect(false, name_of(S) + ": kinds " + std::to_string(kind_a) + " and " +
                                     std::to_string(kind_b) + ", k " + std::to_string(k) +
                                     ": off by " +
                                     std::to_string(std::fabs(got - exact) / size * 0x1p24));
        }
  expect(stands > 1000, name_of(S) + ": some stand");
  expect(S.type == Half::bf16 || refused > 100, name_of(S) + ": some are refused");
}

// The norm is an upper bound, a few percent above; where nothing is finite it is zero.
void test_norms() {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  for (const int64_t k : {1, 2, 3, 31, 1000, 70000}) {
    std::vector<float> x(static_cast<size_t>(k));
    for (float& each : x) each = normal(random);
    const DecomposedRow row = decompose_row<kFp16x3>(x);
    double squares = 0;
    for (const double t : row.t) squares += t * t;
    const double norm = std::sqrt(squares);
    expect(row.scale.norm >= norm && row.scale.norm <= 1.05 * norm, "a norm");
  }
  const float infinity = std::numeric_limits<float>::infinity();
  expect(decompose_row<kFp16x3>({infinity, std::nanf("")}).scale.norm == 0.f, "no norm");
}

// A threshold covers what the lossy elements of either row meet in the other, and is at most some
// three times the least that their number and the norms allow.
void test_thresholds() {
  constexpr EmulationScheme S = kFp16x3;
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  const auto draw = [&](int64_t k, int64_t lossy) {
    std::vector<float> x(static_cast<size_t>(k));
    for (int64_t i = 0; i < k; ++i)
      x[static_cast<size_t>(i)] = (2 + std::fabs(normal(random))) * (i < lossy ? 0x1p-32f : 1.f);
    std::shuffle(x.begin(), x.end(), random);
    return decompose_row<S>(x);
  };
  // The 2-norm of what the lossy elements of `a` meet; how many they are.
  const auto met = [](const DecomposedRow& a, const DecomposedRow& b, double& squares) {
    int64_t count = 0;
    for (size_t i = 0; i < a.t.size(); ++i)
      if (std::fabs(a.t[i]) < static_cast<double>(S.tiny)) ++count, squares += b.t[i] * b.t[i];
    return count;
  };
  for (const int64_t k : {2, 50, 3000})
    for (int64_t lossy_a = 0; lossy_a < k; lossy_a = 3 * lossy_a + 1)
      for (const int64_t lossy_b : {int64_t{0}, int64_t{1}, k / 2}) {
        const DecomposedRow a = draw(k, lossy_a), b = draw(k, lossy_b);
        double of_a = 0, of_b = 0;
        const int64_t count_a = met(a, b, of_a), count_b = met(b, a, of_b);
        expect(count_a == lossy_a && count_b == lossy_b, "as many lossy elements as were put in");
        const double unit = static_cast<double>(S.lost) * 0x1p24;
        const auto most = [](int64_t count, const RowScale& other) {
          return std::fmin(static_cast<double>(other.norm),
                           std::sqrt(static_cast<double>(count)) * 0x1p15);
        };
        const double got = threshold(S, doubt_of(a.scale.doubt), doubt_of(b.scale.doubt));
        expect(got >= unit * (std::sqrt(of_a) + std::sqrt(of_b)) &&
                   got <= 2.02 * unit * (most(count_a, b.scale) + most(count_b, a.scale)),
               "a threshold at k " + std::to_string(k) + " with " + std::to_string(lossy_a) +
                   " and " + std::to_string(lossy_b) + " lossy elements");
      }
  // What 16 bits hold of a row.
  for (uint32_t lossy = 0; lossy < 1u << 31; lossy = 5 * lossy + 1)
    for (float norm = 1.f; norm < 0x1p31f; norm *= 1.37f) {
      const Doubt d = doubt_of(doubt_bits(RowScale{.norm = norm}, lossy));
      expect(d.norm >= norm && d.norm <= 1.008f * norm, "a norm in 12 bits");
      const double least = std::sqrt(static_cast<double>(lossy)) * 0x1p15;
      expect(lossy ? d.weight >= least && (d.weight <= 2 * least || d.weight >= 0x1p32f)
                   : d.weight == 0.f,
             "a weight in 4 bits");
    }
  const Doubt zero = doubt_of(doubt_bits(RowScale{}, 0));
  expect(zero.norm == 0.f && zero.weight == 0.f, "zeros have no doubt");
  expect(doubt_bits(RowScale{.flags = kSingle, .norm = 5.f}, 1) == 0, "nor has what is given");
}

// Which rows of a strip are decomposed again: where limbs may overflow, and where bits that are not
// used would hold what was cut off.
void test_outgrown() {
  const auto again = [](int exponent, float largest, bool lossy) {
    return outgrown(exponent, finite_magnitude(largest), lossy);
  };
  for (const bool lossy : {false, true}) {
    expect(again(0, 0x1p15f, lossy) && !again(0, 0x1.fffffep14f, lossy), "one that overflows");
    expect(!again(10, 0x1p2f, lossy) && again(10, 0x1p5f, lossy), "as it is scaled");
    expect(!again(0, 0.f, lossy), "zeros");
  }
  expect(!again(0, 1.f, false) && again(0, 1.f, true) && again(0, 0x1p-30f, true), "a low scale");
}

// What a row is found to be, and what becomes of its products.
void test_flags() {
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  const auto of = [](const std::vector<float>& x) { return decompose_row<kFp16x3>(x).scale; };
  const RowScale plain = of({1.f, 2.f}), zero = of({0.f, -0.f, 0.f}), one = of({0.f, 0.f, 5.f});
  const RowScale inf = of({1.f, -infinity}), infs = of({infinity, 1.f, infinity});
  const RowScale not_a_number = of({nan, infinity}), lossy = of({1.f, 0x1p-40f});
  const RowScale huge = of({0x1p127f, 0x1p127f}), small = of({0x1p-149f, 0x1p-140f});
  expect(plain.flags == 0, "a row of its kind");
  expect(zero.flags == 0 && zero.norm == 0.f && zero.exponent == 0, "zeros");
  expect(one.flags == kSingle && one.at == 2, "one element");
  expect((inf.flags & (kInfinite | kInfinities | kNan)) == kInfinite && inf.at == 1, "an infinity");
  expect((infs.flags & (kInfinite | kInfinities | kNan)) == kInfinities, "infinities");
  expect((not_a_number.flags & (kInfinite | kInfinities | kNan)) == kNan, "a NaN");
  expect(lossy.flags == kLossy, "a tiny element");
  expect(huge.flags == kFar && small.flags == kFar, "far scales");
  expect(std::ldexp(1.0, 127 + huge.exponent) == 0x1p14, "the largest at 2^14");
  expect(std::ldexp(1.0, -140 + small.exponent) == 0x1p14, "also of subnormal numbers");

  const auto fate = [](const RowScale& a, const RowScale& b, float acc) {
    const Fate there = fate_of(kFp16x3, a, b, acc);
    expect(there == fate_of(kFp16x3, b, a, acc), "rows and columns are alike");
    return there;
  };
  expect(fate(plain, plain, 0.f) == Fate::stands, "ordinary rows stand, whatever their product");
  expect(fate(lossy, plain, 1.f) == Fate::recomputed, "a small product with a tiny element");
  expect(fate(lossy, plain, 0x1p20f) == Fate::stands, "a large one");
  expect(fate(zero, lossy, 0.f) == Fate::stands && fate(one, lossy, 0.f) == Fate::given, "single");
  for (const RowScale& other : {plain, zero, one, inf, infs, lossy, huge, small})
    expect(fate(not_a_number, other, 1.f) == Fate::given, "a NaN has its own way");
  expect(fate(inf, plain, 1.f) == Fate::given && fate(infs, plain, 1.f) == Fate::chained, "inf");
  expect(fate(huge, huge, 1.f) == Fate::chained, "what may overflow is the chain");
  expect(fate(huge, small, 1.f) == Fate::stands, "what cannot is not");
}

// No sum of which it is said that it cannot overflow does.
void test_overflow() {
  for (int a = -149; a <= 127; ++a)
    for (int b = -149; b <= 127; ++b)
      for (const int depth : {0, 1, 5, 16}) {
        const auto row = [&](int top) {
          const float norm = 0x1p15f * std::exp2(static_cast<float>(depth) / 2);
          return RowScale{.exponent = 14 - top,
                          .flags = is_far(14 - top) ? uint16_t{kFar} : uint16_t{0},
                          .norm = norm};
        };
        if (!needs_chain(row(a), row(b)) && a + b + 2 + depth > 127)
          return expect(false, "a sum may overflow");
      }
}

Gemm problem_of(int64_t m, int64_t n, int64_t k, int64_t batch, bool shared_a, bool shared_b) {
  Gemm g;
  g.m = m, g.n = n, g.k = k, g.batch = batch;
  g.a = {nullptr, k, 1, shared_a ? 0 : m * k + 1};
  g.b = {nullptr, n, 1, shared_b ? 0 : k * n + 1};
  return g;
}

// Everything has room of its own in the workspace, at addresses as TMA wants them.
void test_places() {
  const auto* const start = reinterpret_cast<char*>(uintptr_t{1} << 20);
  for (int limbs : {2, 3})
    for (int64_t m : {1, 31, 1000})
      for (int64_t n : {1, 64, 777})
        for (int64_t k : {0, 1, 32, 33, 4097})
          for (int64_t batch : {1, 3})
            for (int shared = 0; shared < 4; ++shared) {
              const Gemm g = problem_of(m, n, k, batch, shared & 1, shared & 2);
              const DecomposePlan plan = plan_decompose(g, limbs, const_cast<char*>(start));
              const int64_t matrices[] = {batch > 1 && !(shared & 1) ? batch : 1,
                                          batch > 1 && !(shared & 2) ? batch : 1};
              expect(plan.a.matrices == matrices[0] && plan.b.matrices == matrices[1],
                     "what is shared by a batch is decomposed once");
              expect(plan.a.rows == m && plan.b.rows == n, "rows of A, columns of B");
              expect(plan.a.blocks == plan.b.blocks && plan.a.blocks * kSliceK >= k &&
                         (plan.a.blocks - 1) * kSliceK < std::max<int64_t>(k, 1),
                     "as many blocks as k fills");
              expect(plan_decompose(g, limbs, nullptr).bytes == plan.bytes,
                     "a plan before its place");
              struct Range {
                const char *first, *last;
              };
              std::vector<Range> ranges;
              const auto add = [&](const void* p, int64_t bytes) {
                const auto* const first = static_cast<const char*>(p);
                ranges.push_back({first, first + bytes});
              };
              for (const Limbs* p : {&plan.a, &plan.b}) {
                const int64_t rows = p->rows * p->matrices;
                expect(reinterpret_cast<uintptr_t>(p->data) % 128 == 0, "TMA's alignment");
                add(p->data, rows * p->row_bytes(limbs));
                add(p->scales, rows * static_cast<int64_t>(sizeof(RowScale)));
                expect(p->first_row(batch - 1) + p->rows <= rows, "the last matrix has its rows");
              }
              for (size_t i = 0; i < ranges.size(); ++i) {
                expect(ranges[i].first >= start && ranges[i].last <= start + plan.bytes,
                       "all lies in the workspace");
                for (size_t j = 0; j < i; ++j)
                  expect(ranges[i].first >= ranges[j].last || ranges[j].first >= ranges[i].last,
                         "nothing lies in two places");
              }
            }
}

// A B that is kept has its limbs where they were packed, and leaves its room in the workspace.
void test_kept_limbs() {
  auto* const packed = reinterpret_cast<char*>(uintptr_t{1} << 30);
  for (int64_t m : {0, 1, 1000})
    for (int64_t n : {1, 777})
      for (int64_t k : {1, 33, 4097})
        for (int64_t batch : {1, 3}) {
          const Gemm g = problem_of(m, n, k, batch, false, true);
          const PackedB b = plan_packed(g, packed);
          const DecomposePlan whole = plan_decompose(g, kFp16x3.limbs, nullptr);
          const DecomposePlan kept = plan_decompose(g, kFp16x3.limbs, nullptr, &b.limbs);
          expect(!whole.b_is_kept && kept.b_is_kept, "it says so");
          expect(kept.b.data == b.limbs.data && kept.b.scales == b.limbs.scales &&
                     kept.b.rows == n && kept.b.blocks == kept.a.blocks && kept.b.matrices == 1,
                 "all of the batch takes the one B");
          const auto limbs = static_cast<size_t>(n * kept.b.row_bytes(kFp16x3.limbs));
          expect(whole.bytes >= kept.bytes + limbs, "no room for what is kept");
          const auto place = [&](const void* p) {
            return static_cast<size_t>(static_cast<const char*>(p) - packed);
          };
          expect(place(b.limbs.scales) >= place(b.limbs.data) + limbs &&
                     b.bytes >= place(b.limbs.scales) + sizeof(RowScale) * n,
                 "each has room of its own");
        }
}

// Slabs of the larger operand cover it in order, are whole tiles but for the last, and find the
// other operand's limbs where the first one left them.
void test_slabs() {
  auto* const start = reinterpret_cast<char*>(uintptr_t{1} << 30);
  auto* const packed = reinterpret_cast<char*>(uintptr_t{1} << 40);
  for (int64_t m : {1, 255, 511, 512, 513, 1000, 5000})
    for (int64_t n : {1, 255, 511, 512, 513, 1000, 5000})
      for (int64_t k : {33, 4097})
        for (int64_t batch : {1, 3})
          for (const size_t most : {size_t{1}, size_t{1} << 23, kSlabBytes})
            for (bool keep : {false, true}) {
              if (keep && batch > 1) continue;
              Gemm g = problem_of(m, n, k, batch, false, false);
              g.a.data = g.b.data = reinterpret_cast<const float*>(start);
              g.d.data = reinterpret_cast<float*>(start);
              Context context{.workspace = start, .slab_bytes = most};
              std::vector<float> sums(static_cast<size_t>(m));
              context.row_sums = sums.data();
              if (keep) context.packed_b = packed;
              const Limbs all_b = plan_packed(g, packed).limbs;
              const bool of_b = n > m;
              const int64_t all = of_b ? n : m;
              const size_t whole = plan_decompose(g, 2, nullptr).bytes;
              int64_t done = 0, count = 0;
              const void* other = nullptr;
              for_each_slab(
                  g, 2, {256, 128, 66}, context,
                  [&](const Gemm& part, const DecomposePlan& plan, const Context& its) {
                    const int64_t rows = of_b ? part.n : part.m;
                    expect((of_b ? part.m : part.n) == (of_b ? m : n) && part.k == k,
                           "one side is cut");
                    expect(part.a.data - g.a.data == (of_b ? 0 : done * k), "A's rows");
                    expect(part.b.data - g.b.data == (of_b ? done : 0), "B's columns");
                    expect(done + rows == all || rows % kSlabRows == 0, "whole tiles");
                    expect(rows >= std::min(kSlabRows, all), "no slab for a few rows");
                    const Limbs& cut = of_b ? plan.b : plan.a;
                    expect(cut.rows == rows && (rows < 3 * kSlabRows || cut.bytes(2) < 2 * most),
                           "about so many bytes at a time");
                    const Limbs& kept = of_b ? plan.a : plan.b;
                    if (count > 0)
                      expect(kept.data == other, "the other operand stays where it is");
                    other = kept.data;
                    expect(plan.a_is_kept == (of_b && count > 0), "A is decomposed once");
                    expect(plan.b_is_kept == (keep || (!of_b && count > 0)),
                           "B is decomposed once");
                    if (keep)
                      expect(plan.b.data == static_cast<char*>(all_b.data) +
                                                (of_b ? done : 0) * all_b.row_bytes(2) &&
                                 plan.b.scales == all_b.scales + (of_b ? done : 0),
                             "a part of what is packed");
                    expect(its.row_sums ==
                               (of_b ? count > 0 ? nullptr : sums.data() : sums.data() + done),
                           "the sum of each row once");
                    expect(plan.bytes <= whole, "in no more memory");
                    done += rows, ++count;
                  });
              expect(done == all, "all of it");
              if (most == kSlabBytes) expect(count == 1, "what is small stays whole");
              if (most == 1) expect(count == std::max<int64_t>(1, all / kSlabRows), "many slabs");
            }
}

}  // namespace

void test_decompose() {
  test_what_limbs_hold<kFp16x3>();
  test_what_limbs_hold<kBf16x6>();
  test_what_stands_is_right<kFp16x3>();
  test_what_stands_is_right<kBf16x6>();
  test_norms();
  test_thresholds();
  test_outgrown();
  test_flags();
  test_overflow();
  test_places();
  test_kept_limbs();
  test_slabs();
}

}  // namespace xgemm
