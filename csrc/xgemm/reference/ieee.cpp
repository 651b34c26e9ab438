#include "xgemm/reference/ieee.h"

#include <algorithm>
#include <cstring>

#include "xgemm/core/split_k.h"

namespace xgemm {
namespace {

constexpr int kRows = 4,
              kColumns = 64;   // accumulators of a strip: they stay in vector registers or L1

// D[i .. i + rows) x [j .. j + columns): the k loop is outermost, so a chain's order is that of k.
void strip(const Gemm& g, int64_t i, int rows, int64_t j, int columns) {
  float sum[kRows][kColumns], acc[kRows][kColumns];
  float b[kColumns];
  const int64_t share = split_k_slices(g) > 1 ? g.split_k_size : g.k;
  int64_t k = 0;
  do {
    const int64_t first = k, last = std::min(k + share, g.k);
    std::memset(acc, 0, sizeof acc);
    for (; k < last; ++k) {
      for (int c = 0; c < columns; ++c) b[c] = g.b(k, j + c);
      for (int r = 0; r < rows; ++r) {
        const float a = g.a(i + r, k);
        for (int c = 0; c < columns; ++c) acc[r][c] = fmaf(a, b[c], acc[r][c]);
      }
    }
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < columns; ++c) sum[r][c] = first == 0 ? acc[r][c] : sum[r][c] + acc[r][c];
  } while (k < g.k);
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < columns; ++c) g.store(i + r, j + c, sum[r][c]);
}

}  // namespace

void chain(const Gemm& problem, int64_t first, int64_t last) {
  while (first < last) {
    const Gemm g = problem.at(first / problem.m);
    const int64_t i = first % problem.m;
    const int rows = static_cast<int>(std::min({int64_t{kRows}, problem.m - i, last - first}));
    for (int64_t j = 0; j < g.n; j += kColumns)
      strip(g, i, rows, j, static_cast<int>(std::min(int64_t{kColumns}, g.n - j)));
    first += rows;
  }
}

}  // namespace xgemm
