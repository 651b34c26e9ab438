// Which operands are copied to aligned rows, and where: aligned.h.
#include "xgemm/device/copy/aligned.h"

#include <cstdint>
#include <string>

#include "check.h"

namespace xgemm {
namespace {

constexpr int kMany = 132;

Gemm sizes(int64_t m, int64_t n, int64_t k, int64_t batch = 1) {
  Gemm g;
  g.m = m, g.n = n, g.k = k, g.batch = batch;
  return g;
}

std::string name_of(const Gemm& g) {
  return std::to_string(g.batch) + " x " + std::to_string(g.m) + "x" + std::to_string(g.n) + "x" +
         std::to_string(g.k);
}

// Operands one behind the other at `address`, stored as `layout` says: bit 1 for A, bit 0 for B.
Gemm problem(Gemm g, int layout, uintptr_t address) {
  const auto* const at = reinterpret_cast<const float*>(address);
  const bool many = g.batch > 1;
  g.a = layout & 2 ? View<const float>{at, 1, g.m} : View<const float>{at, g.k, 1};
  g.b = layout & 1 ? View<const float>{at, 1, g.k} : View<const float>{at, g.n, 1};
  g.a.bs = many ? g.m * g.k : 0, g.b.bs = many ? g.k * g.n : 0;
  return g;
}

void test_choice() {
  const auto choose = [](const Gemm& g, int sm_count = kMany) {
    return choose_copies(g, {true, true}, sm_count);
  };
  const int64_t each[] = {1, 7, 63, 127, 219, 255, 511, 659, 1023, 4095, 20001};
  for (const int64_t m : each)
    for (const int64_t n : each)
      for (const int64_t k : each) {
        const Gemm g = sizes(m, n, k);
        const CopyChoice c = choose(g), of_a = choose_copies(g, {true, false}, kMany);
        const std::string name = name_of(g);
        expect(!(c.a || c.b) || m * n * k >= int64_t{1} << 27, name + " is too small for copies");
        expect(!c.a || n >= 220, name + ": too few columns for a copy of A");
        expect(!c.b || m >= 220, name + ": too few rows for a copy of B");
        expect(!c.a || n >= 660 || m * k <= 1 << 22, name + ": too few columns for a large A");
        expect(!of_a.b && (c.a || !of_a.a), name + ": A alone is worth no more than both");
        const CopyChoice t = choose(sizes(n, m, k));
        expect(c.a == t.b && c.b == t.a, name + " is the same from the other side");
        const CopyChoice few = choose(g, 1);
        expect((few.a || !c.a) && (few.b || !c.b), name + ": a launch costs the less the fewer");
      }
  for (const int64_t side : {640, 1023, 2047, 4095}) {
    const CopyChoice c = choose(sizes(side, side, side));
    expect(c.a && c.b, name_of(sizes(side, side, side)) + " is worth both copies");
  }
  const CopyChoice none = choose_copies(sizes(1023, 1023, 1023), {}, kMany);
  expect(!none.a && !none.b, "operands that are aligned are not copied");
  // An operand of all matrices of a batch is copied once.
  Gemm g = sizes(255, 255, 255, 64);
  g.a.bs = g.b.bs = 255 * 255;
  expect(choose(g).a && choose(g).b, "a batch is worth copies of all its operands");
  g = sizes(200, 400, 255, 64);
  g.a.bs = 200 * 255, g.b.bs = 255 * 400;
  expect(choose(g).a && !choose(g).b, "200 rows are too few for a copy of B");
  g.b.bs = 0;
  expect(choose(g).a && choose(g).b, "of a batch they are enough where all share B");
}

void test_plan() {
  const Context context{.device = {.sm = 90, .sm_count = kMany},
                        .workspace = reinterpret_cast<void*>(uintptr_t{1} << 40)};
  int copied = 0;
  for (const Gemm& size : {sizes(1023, 1023, 1023), sizes(1024, 1023, 1024), sizes(1023, 900, 1024),
                           sizes(700, 701, 31, 65), sizes(512, 512, 512, 2)})
    for (int layout = 0; layout < 4; ++layout)
      for (const uintptr_t address : {uintptr_t{1} << 30, (uintptr_t{1} << 30) + 4}) {
        const Gemm g = problem(size, layout, address);
        const AlignedCopies plan = plan_aligned_copies(g, context);
        const std::string name = name_of(g) + ", layout " + std::to_string(layout) +
                                 (address % 16 ? ", at an odd address" : "");
        const auto check = [&](const char* operand, const View<const float>& was,
                               const View<const float>& is, const CopyJob& job, int64_t count) {
          const bool along = along_k(was, count, g.k);
          const View<const float> old = along ? was : was.transposed();
          const View<const float> lines = along ? is : is.transposed();
          const std::string what = name + ": " + operand;
          expect(along == along_k(is, count, g.k), what + " is walked the same way");
          expect(lines.wide(), what + " is aligned");
          expect((lines.data == old.data) == old.wide(), what + " is copied if it was not");
          if (old.wide()) return expect(job.blocks == 0, what + " takes no blocks");
          ++copied;
          expect(lines.rs % 32 == 0 && lines.rs >= job.length && lines.rs < job.length + 32,
                 what + " has rows of whole lines");
          expect(job.lines * job.length == count * g.k && job.matrices == g.batch,
                 what + " is copied whole");
          const int64_t floats = job.matrices * job.lines * job.pitch;
          expect(job.blocks == ceil_div(floats, 32 * kCopyBlock), what + " has its blocks");
          expect(job.to == lines.data && lines.bs == (g.batch > 1 ? job.lines * job.pitch : 0),
                 what + " is where its copy is");
        };
        check("A", g.a, plan.g.a, plan.a, g.m);
        check("B", g.b.transposed(), plan.g.b.transposed(), plan.b, g.n);
        const auto bytes = [](const CopyJob& job) {
          const int64_t all = job.to ? job.matrices * job.lines * job.pitch * 4 : 0;
          return static_cast<size_t>(ceil_div(all, 1024) * 1024);
        };
        expect(plan.bytes == bytes(plan.a) + bytes(plan.b), name + ": the workspace is full");
        expect(!plan.b.to ||
                   reinterpret_cast<uintptr_t>(plan.b.to) == (uintptr_t{1} << 40) + bytes(plan.a),
               name + ": copies lie one after another");
      }
  expect(copied > 40, "some operands are copied");
  // What is contiguous in neither way, rows that overlap, and more than there is memory for.
  const auto bytes = [&](const Gemm& g) { return plan_aligned_copies(g, context).bytes; };
  Gemm g = problem(sizes(1024, 1024, 1024), 0, 1 << 20);
  g.a.rs = 2049, g.a.cs = 2;
  expect(bytes(g) == 0, "an operand that is not contiguous stays where it is");
  g.a.rs = 1, g.a.cs = 1;
  expect(bytes(g) == 0, "and one whose rows overlap");
  g = problem(sizes(1023, 1023, 1023, int64_t{1} << 40), 0, 1 << 20);
  g.a.bs = g.b.bs = 1;
  expect(bytes(g) == 0, "and one of more than 4 TiB");
}

}  // namespace

void test_aligned_copies() {
  test_choice();
  test_plan();
}

}  // namespace xgemm
