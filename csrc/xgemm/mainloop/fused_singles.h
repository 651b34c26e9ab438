// A split-K slice of which a row or a column of D knows one nonzero: its sums are single products
// of FP32 elements, read again, in place of what limbs give. If that is the only one of all K,
// other slices add zeros, and D is exact; else the slice's part is.
#pragma once

#include <limits>

#include "xgemm/emulation/single_nonzeros.h"
#include "xgemm/mainloop/fused_emulated.h"

namespace xgemm {
inline namespace XGEMM_FLAVOUR {

__device__ __forceinline__ bool is_finite(float x) {
  return fabsf(x) <= std::numeric_limits<float>::max();
}

// By all that multiply, of the slice from k0 on, once the last of its products is there: `columns`
// are those of the thread's sums. What is not finite stays, to be made anew: zeros times it count.
template <int BM, bool kA, bool kB>
__device__ __forceinline__ void give_singles(float (&sum)[kNarrowSums<BM>],
                                             SingleNonzeros<2>& columns,
                                             const NarrowRing<BM, kA, kB>& ring, const Gemm& g,
                                             const TileCoord& o, int64_t k0) {
  constexpr uint32_t kAll = 0xffffffffu;
  uint32_t looking = columns.looking();
#pragma unroll
  for (const uint32_t of_warp : ring.looking) looking |= of_warp;
  if (!__any_sync(kAll, looking != 0)) [[likely]]
    return;
  const int row = threadIdx.x % 4 * 2;
  const int64_t i = o.i + row, j = o.j + RegisterLimbs<kLong, false>::first_row();
  const float after = g.k > 1 ? 0.f : -0.f;  // a product of -0 is followed, or led, by others of 0
  const float *a = g.a.ptr(i, k0), *const b = g.b.ptr(k0, j);  // the thread's, at the slice's k
  bool by_column[2];
  float of_column[2];
  int64_t along_a[2];  // to the column's k
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    NonzeroPlace at = columns.rows[c];
#pragma unroll
    for (int lanes = 1; lanes < 4; lanes *= 2)  // those that have the column's other k
      at = at.joined({__shfl_xor_sync(kAll, at.place, lanes)});
    by_column[c] = at.single();
    along_a[c] = at.k() * g.a.cs;
    if (by_column[c]) of_column[c] = b[at.k() * g.b.rs + c * g.b.cs];
  }
  constexpr int kGroups = BM / 8, kAtOnce = kGroups < 4 ? kGroups : 4;
#pragma unroll
  for (int first = 0; first < kGroups; first += kAtOnce) {
    float x[kAtOnce][2], y[kAtOnce][2][2];
    uint32_t by_rows = 0, given = 0;  // a bit for each row, and for each sum
#pragma unroll
    for (int p = 0; p < kAtOnce; ++p)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int down = (first + p) * 8 + r;
        if (i + down >= g.m) continue;
        NonzeroPlace at;
#pragma unroll
        for (const uint32_t place : ring.places[row + down]) at = at.joined({place});
        const float* const of_row = a + down * g.a.rs;
        const float* const others = b + at.k() * g.b.rs;
        if (at.single()) by_rows |= 1u << (2 * p + r), x[p][r] = of_row[at.k() * g.a.cs];
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int e = first * 4 + p * 4 + 2 * c + r;
          if (!(at.single() || by_column[c]) || j + c >= g.n || !is_finite(sum[e])) continue;
          given |= 1u << (e - first * 4);
          y[p][r][c] = *(at.single() ? others + c * g.b.cs : of_row + along_a[c]);
        }
      }
#pragma unroll
    for (int e = 0; e < kAtOnce * 4; ++e) {
      const int p = e / 4, r = e % 2, c = e / 2 % 2;
      const float factor = by_rows >> (2 * p + r) & 1 ? x[p][r] : of_column[c];
      if (given >> e & 1) sum[first * 4 + e] = fmaf(factor, y[p][r][c], 0.f) + after;
    }
  }
}

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
