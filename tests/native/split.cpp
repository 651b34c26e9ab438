// What the split says of rows, and where it puts them: the pure functions of split.h.
#include "xgemm/split.h"

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "check.h"
#include "xgemm/split_kernel.h"

namespace xgemm {
namespace {

constexpr Scheme kSchemes[] = {kFp16x3, kBf16x6};

std::string name_of(const Scheme& s) { return s.type == Half::fp16 ? "fp16x3" : "bf16x6"; }

// A row of k elements, `low` of them below the scheme's low and `tiny` of these below its tiny.
RowScale row_of_counts(const Scheme& s, int64_t low, int64_t tiny, int64_t k) {
  return {0, 0, risk_of(s, static_cast<uint32_t>(low), static_cast<uint32_t>(tiny), k, 0)};
}

// The most that a product with an element below `tiny` can be wrong, in units of its partner: what
// the last part rounds away, and what is lost of products below the least FP32 number.
double error_of_tiny(const Scheme& s) {
  return s.type == Half::fp16 ? 0x1p-36 : 0x1p-133 + s.parts * s.parts * 0x1p-149;
}

// However the tiny elements of a row meet those of a column, what they lose is at most half a unit
// in the last place of |A| |B|, where the two are said to suffice. Of that sum at least the
// products count in which neither factor is low.
void test_tiny_elements() {
  int allowed = 0;
  for (const Scheme& s : kSchemes) {
    Scheme any = s;
    any.least = 0;  // the shares count here, not how many they are of
    for (int64_t k = 1; k <= 20; ++k)
      for (int64_t low_a = 0; low_a <= k; ++low_a)
        for (int64_t tiny_a = 0; tiny_a <= low_a; ++tiny_a)
          for (int64_t low_b = 0; low_b <= k; ++low_b)
            for (int64_t tiny_b = 0; tiny_b <= low_b; ++tiny_b) {
              const RowScale a = row_of_counts(any, low_a, tiny_a, k),
                             b = row_of_counts(any, low_b, tiny_b, k);
              const bool suffice = parts_suffice(a, b, 0);
              expect(suffice == parts_suffice(b, a, 0), "rows and columns are alike");
              if (!suffice || tiny_a + tiny_b == 0) continue;
              ++allowed;
              const double lost = static_cast<double>(tiny_a + tiny_b) * error_of_tiny(s) * 0x1p15;
              const double sum = static_cast<double>(k - low_a - low_b) * s.low * s.low;
              if (lost > 0x1p-25 * sum) {
                expect(false, name_of(s) + ": of " + std::to_string(k) + " elements " +
                                  std::to_string(low_a) + " and " + std::to_string(low_b) +
                                  " low, " + std::to_string(tiny_a) + " and " +
                                  std::to_string(tiny_b) + " tiny");
                return;
              }
            }
  }
  expect(allowed > 1000, "some tiny elements are allowed");
}

// Elements that are not tiny have products that the tensor core's FP32 sums hold to the last part,
// and parts that hold all but 2^-23 of them.
void test_what_is_not_tiny() {
  for (const Scheme& s : kSchemes) {
    // 2^-149 is the unit of the least FP32 numbers; the products' last bits are 2^-24 of them.
    expect(static_cast<double>(s.tiny) * s.tiny * 0x1p-24 >= 0x1p-149,
           name_of(s) + ": the products of elements that are not tiny are FP32 numbers");
    for (float least = s.tiny; least < 0x1p15f; least *= 2)
      for (int step = 0; step < 4096; ++step) {
        const float t = least * (1.f + static_cast<float>(step * 2047) * 0x1p-23f);
        float rest = t;
        for (int part = 0; part < s.parts; ++part) {
          float x0, x1;
          if (s.type == Half::fp16)
            unpack_half2<Half::fp16>(pack_half2<Half::fp16>(rest, 0.f), x0, x1);
          else unpack_half2<Half::bf16>(pack_half2<Half::bf16>(rest, 0.f), x0, x1);
          rest = (rest - x0) * s.lo_scale;
        }
        // After the last part the remainder has been scaled once more than the parts.
        const double lost = std::fabs(rest) / std::pow(static_cast<double>(s.lo_scale), s.parts);
        const double allowed = s.type == Half::fp16 ? 0x1p-23 * static_cast<double>(t) : 0.0;
        if (lost > allowed)
          return expect(false, name_of(s) + ": a part is lost of what is not tiny");
      }
  }
}

// Where parts are taken, no sum can overflow on its way; what is not finite never takes them.
void test_tops() {
  const auto row = [](int top) { return RowScale{0, static_cast<int16_t>(top), 0.f}; };
  for (int a = -149; a <= 127; ++a)
    for (int b = -149; b <= 127; ++b)
      for (int depth : {0, 1, 5, 16, 31}) {
        // Terms below 2^(a + 1 + b + 1), 2^depth of them.
        if (parts_suffice(row(a), row(b), depth) && a + b + 2 + depth > 127)
          return expect(false, "a sum may overflow");
      }
  expect(parts_suffice(row(0), row(0), 31), "ordinary rows take parts");
  expect(parts_suffice(row(100), row(-100), 31), "and large ones with small columns");
  for (int other : {kAllZero, kNotFinite, -149, 0, 127})
    expect(!parts_suffice(row(kNotFinite), row(other), 0) &&
               !parts_suffice(row(other), row(kNotFinite), 0),
           "what is not finite takes the chain");
  expect(parts_suffice(row(kAllZero), row(127), 60), "zeros meet anything that is finite");
  for (int64_t k = 0; k <= 5000; ++k) {
    const int depth = depth_of(k);
    if ((int64_t{1} << depth) < k || (depth > 0 && int64_t{1} << (depth - 1) >= k))
      return expect(false, "depth is ceil(log2 k)");
  }
}

// Rows of few elements that count suffice with none, whatever the others are; zeros with all.
void test_sparse_rows() {
  const RowScale ordinary{0, 0, 0.f};
  for (const Scheme& s : kSchemes)
    for (int64_t k : {1, 20, 63, 64, 65, 1000, 100000})
      for (int64_t count = 0; count <= 70 && count <= k; ++count) {
        const auto low = static_cast<uint32_t>(k - count);
        const RowScale row{0, 0, risk_of(s, low, 0, k, 0)};
        expect(parts_suffice(row, ordinary, 0) == (count >= s.least) &&
                   parts_suffice(ordinary, row, 0) == (count >= s.least),
               name_of(s) + ": a row with " + std::to_string(count) + " elements that count");
        expect(risk_of(s, low, 0, k, kAllZero) == 0.f, "zeros have no risk");
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
  for (int parts : {2, 3})
    for (int64_t m : {1, 31, 1000})
      for (int64_t n : {1, 64, 777})
        for (int64_t k : {0, 1, 32, 33, 4097})
          for (int64_t batch : {1, 3})
            for (int shared = 0; shared < 4; ++shared) {
              const Gemm g = problem_of(m, n, k, batch, shared & 1, shared & 2);
              const SplitPlan plan = plan_split(g, parts, const_cast<char*>(start));
              const int64_t matrices[] = {batch > 1 && !(shared & 1) ? batch : 1,
                                          batch > 1 && !(shared & 2) ? batch : 1};
              expect(plan.a.matrices == matrices[0] && plan.b.matrices == matrices[1],
                     "what is shared by a batch is split once");
              expect(plan.a.rows == m && plan.b.rows == n, "rows of A, columns of B");
              expect(plan.a.blocks == plan.b.blocks && plan.a.blocks * kSplitK >= k &&
                         (plan.a.blocks - 1) * kSplitK < std::max<int64_t>(k, 1),
                     "as many blocks as k fills");
              expect(plan_split(g, parts, nullptr).bytes == plan.bytes, "a plan before its place");
              struct Range {
                const char *first, *last;
              };
              std::vector<Range> ranges;
              const auto add = [&](const void* p, int64_t bytes) {
                const auto* const first = static_cast<const char*>(p);
                ranges.push_back({first, first + bytes});
              };
              for (const Parts* p : {&plan.a, &plan.b}) {
                const int64_t rows = p->rows * p->matrices;
                expect(reinterpret_cast<uintptr_t>(p->data) % 128 == 0, "TMA's alignment");
                add(p->data, rows * p->row_bytes(parts));
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

// A B that is kept has its parts where they were packed, and leaves its room in the workspace.
void test_kept_parts() {
  auto* const packed = reinterpret_cast<char*>(uintptr_t{1} << 30);
  for (int64_t m : {0, 1, 1000})
    for (int64_t n : {1, 777})
      for (int64_t k : {1, 33, 4097})
        for (int64_t batch : {1, 3}) {
          const Gemm g = problem_of(m, n, k, batch, false, true);
          const PackedB b = plan_packed(g, packed);
          const SplitPlan whole = plan_split(g, kFp16x3.parts, nullptr);
          const SplitPlan kept = plan_split(g, kFp16x3.parts, nullptr, packed);
          expect(!whole.b_is_kept && kept.b_is_kept, "it says so");
          expect(kept.b.data == b.parts.data && kept.b.scales == b.parts.scales &&
                     kept.b.rows == n && kept.b.blocks == kept.a.blocks && kept.b.matrices == 1,
                 "all of the batch takes the one B");
          const auto parts = static_cast<size_t>(n * kept.b.row_bytes(kFp16x3.parts));
          expect(whole.bytes >= kept.bytes + parts, "no room for what is kept");
          const auto place = [&](const void* p) {
            return static_cast<size_t>(static_cast<const char*>(p) - packed);
          };
          expect(place(b.parts.scales) >= place(b.parts.data) + parts &&
                     place(b.verdict) >= place(b.parts.scales) + sizeof(RowScale) * n &&
                     b.bytes >= place(b.verdict) + sizeof(Verdict),
                 "each has room of its own");
        }
}

}  // namespace

void test_split() {
  test_tiny_elements();
  test_what_is_not_tiny();
  test_tops();
  test_sparse_rows();
  test_places();
  test_kept_parts();
}

}  // namespace xgemm
