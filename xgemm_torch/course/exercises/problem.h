// A problem as check.py asks for it, `M N K LAYOUT GAP ALPHA BETA DATA`, and its result beside what
// is expected: the same for the emulator (grade.cpp) and for a GPU (gpu.cpp).
//
// LAYOUT: NN, NT, TN or TT. GAP: floats that belong to nobody behind each line of every operand.
// DATA: normal; special, with infinities and NaN among them; wide, over many binades; integers;
// ones; tenths.
#pragma once

#include <sys/mman.h>

#include <bit>
#include <cmath>
#include <cstdio>
#include <random>
#include <stdexcept>
#include <string>

#include "xgemm/core/stage.h"

// The learner's, of exercise.h.
void run(const xgemm::Gemm& g, const xgemm::Context& context);
[[gnu::weak]] float expected(const xgemm::Gemm& g, int64_t i, int64_t j);
[[gnu::weak]] size_t workspace(const xgemm::Gemm& g, const xgemm::Context& context);

namespace xgemm {
namespace {

constexpr uint32_t kUnstored = 0x7fc0beef;  // a NaN

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out + '"';
}

struct Random {
  std::mt19937 bits;
  std::normal_distribution<float> normal;

  float operator()(const std::string& data) {
    if (data == "ones") return 1.f;
    if (data == "tenths") return .1f;
    if (data == "integers") return static_cast<float>(bits() % 9) - 4.f;
    const float x = normal(bits);
    if (data == "wide") return std::ldexp(x, static_cast<int>(bits() % 24) - 12);
    if (data != "special" || bits() % 16) return x;
    constexpr float kSpecial[] = {INFINITY, -INFINITY, NAN, 0.f, -0.f, 1e-39f, 3e38f, -3e38f};
    return kSpecial[bits() % std::size(kSpecial)];
  }
};

// A problem whose operands lie in one room, A, B, D and C. Pages are there once they are touched,
// so that lines may lie gigabytes apart.
class Problem {
 public:
  Gemm g;

  Problem(int64_t m, int64_t n, int64_t k, const std::string& layout, int64_t gap, float alpha,
          float beta, const std::string& data) {
    if (layout.size() != 2) throw std::invalid_argument("a layout is NN, NT, TN or TT");
    g.m = m, g.n = n, g.k = k, g.alpha = alpha, g.beta = beta;
    View<float> a, b, c, d;
    size_t bytes = 0;
    const auto place = [&](View<float>& v, int64_t rows, int64_t columns, bool transposed) {
      const int64_t lines = transposed ? columns : rows, line = (transposed ? rows : columns) + gap;
      v.data = reinterpret_cast<float*>(bytes);
      v.rs = transposed ? 1 : line, v.cs = transposed ? line : 1;
      bytes += (static_cast<size_t>(lines * line) * sizeof(float) / 4096 + 2) * 4096;
    };
    place(a, m, k, layout[0] == 'T');
    place(b, k, n, layout[1] == 'T');
    place(d, m, n, false);
    place(c, m, n, false);
    room_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room_ == MAP_FAILED) throw std::runtime_error("no address space for this problem");
    bytes_ = bytes;
    Random random{std::mt19937(static_cast<unsigned>(m * 1000003 + n * 1009 + k)), {}};
    const auto fill = [&](View<float>& v, int64_t rows, int64_t columns, const auto& value) {
      v.data =
          reinterpret_cast<float*>(static_cast<char*>(room_) + reinterpret_cast<uintptr_t>(v.data));
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < columns; ++j) v(i, j) = value();
    };
    const auto drawn = [&] { return random(data); };
    const float nan = std::bit_cast<float>(kUnstored);
    fill(a, m, k, drawn);
    fill(b, k, n, drawn);
    fill(d, m, n, [&] { return nan; });
    if (beta != 0.f) fill(c, m, n, drawn);
    else fill(c, m, n, [&] { return nan; });
    g.a = {a.data, a.rs, a.cs, 0}, g.b = {b.data, b.rs, b.cs, 0}, g.c = {c.data, c.rs, c.cs, 0};
    g.d = d;
  }
  Problem(const Problem&) = delete;
  ~Problem() { munmap(room_, bytes_); }

  // Reads the words that stand at the head of this file. Without a stream: in a library that is
  // linked with a libstdc++ of its own, beside Python's, a stream's locale is none.
  static Problem read(const char* words) {
    long long m, n, k, gap;
    char layout[3], data[16];
    float alpha, beta;
    if (std::sscanf(words, "%lld %lld %lld %2s %lld %f %f %15s", &m, &n, &k, layout, &gap, &alpha,
                    &beta, data) != 8)
      throw std::invalid_argument(std::string("no problem: ") + words);
    return Problem(m, n, k, layout, gap, alpha, beta, data);
  }

  char* room() const { return static_cast<char*>(room_); }
  size_t bytes() const { return bytes_; }

  // The same problem with its operands in another room, a GPU's.
  Gemm in_room(char* other) const {
    const auto moved = [&](auto* p) {
      return reinterpret_cast<decltype(p)>(other + (reinterpret_cast<const char*>(p) - room()));
    };
    Gemm there = g;
    there.a.data = moved(g.a.data), there.b.data = moved(g.b.data);
    there.c.data = moved(g.c.data), there.d.data = moved(g.d.data);
    return there;
  }

  // Whether a report is of a read of C, which is no operand where beta is 0.
  bool reads_c(const std::string& report) const {
    const size_t at = report.find("bytes from the start of D");
    if (at == std::string::npos || g.beta != 0.f) return false;
    const size_t number = report.rfind(' ', at - 2) + 1;
    const int64_t offset = std::stoll(report.substr(number));
    const int64_t c = (g.c.data - g.d.data) * static_cast<int64_t>(sizeof(float));
    return offset >= c && offset < c + ((g.m - 1) * g.c.rs + g.n) * 4;
  }

 private:
  void* room_;
  size_t bytes_;
};

float chain(const Gemm& g, int64_t i, int64_t j) {
  float acc = 0.f;
  for (int64_t k = 0; k < g.k; ++k) acc = fmaf(g.a(i, k), g.b(k, j), acc);
  return g.finish(acc, g.beta == 0.f ? 0.f : g.c(i, j));
}

bool is_nan(float x) { return x != x; }

// D as it is beside D as it is to be.
std::string compare(const Gemm& g) {
  int64_t wrong = 0, unstored = 0, first_i = 0, first_j = 0, rows[] = {g.m, -1},
          columns[] = {g.n, -1};
  float got = 0.f, want = 0.f;
  bool near = true;
  for (int64_t i = 0; i < g.m; ++i)
    for (int64_t j = 0; j < g.n; ++j) {
      const float x = g.d(i, j), y = (expected ? expected : chain)(g, i, j);
      const bool missing = std::bit_cast<uint32_t>(x) == kUnstored;
      const bool same = std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y);
      if (!missing && (same || (is_nan(x) && is_nan(y)))) continue;
      if (!wrong++) first_i = i, first_j = j, got = x, want = y;
      unstored += missing;
      near = near && std::fabs(x - y) <= 1e-4f * (1.f + std::fabs(y));
      rows[0] = std::min(rows[0], i), rows[1] = std::max(rows[1], i);
      columns[0] = std::min(columns[0], j), columns[1] = std::max(columns[1], j);
    }
  if (!wrong) return R"({"kind": "good"})";
  char text[640];
  std::snprintf(text, sizeof text,
                R"({"kind": "bits", "wrong": %lld, "of": %lld, "unstored": %lld, "i": %lld, )"
                R"("j": %lld, "got": "%.9g", "want": "%.9g", "near": %s, "rows": [%lld, %lld], )"
                R"("columns": [%lld, %lld]})",
                static_cast<long long>(wrong), static_cast<long long>(g.m * g.n),
                static_cast<long long>(unstored), static_cast<long long>(first_i),
                static_cast<long long>(first_j), double{got}, double{want}, near ? "true" : "false",
                static_cast<long long>(rows[0]), static_cast<long long>(rows[1]),
                static_cast<long long>(columns[0]), static_cast<long long>(columns[1]));
  return text;
}

}  // namespace
}  // namespace xgemm
