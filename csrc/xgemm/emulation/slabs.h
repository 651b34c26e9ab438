// The larger operand's limbs by slabs of its rows, one slab after another in the same room: limbs
// take as many bytes as the floats they stand for, and a whole gradient of logits of them is the
// peak of a training step's memory. The other operand is decomposed once, with the first slab.
#pragma once

#include <algorithm>

#include "xgemm/emulation/limbs.h"

namespace xgemm {

// A slab's rows: whole tiles of a cluster, in both directions.
constexpr int64_t kSlabRows = 256;

// Tiles of D, and how many of them the device computes at a time: a wave.
struct Wave {
  int64_t rows, columns, tiles;
};

// How the larger operand is cut; `rows` of a matrix each, the last slab kSlabRows at least.
struct Slabs {
  bool of_b = false;  // and not of A
  int64_t rows = 0, count = 1;

  // Waves of all slabs, if they have so many rows.
  int64_t waves(const Gemm& g, const Wave& wave, int64_t of_slab, int64_t slabs) const {
    const auto one = [&](int64_t its) {
      const int64_t m = of_b ? g.m : its, n = of_b ? its : g.n;
      return ceil_div(ceil_div(m, wave.rows) * ceil_div(n, wave.columns) * g.batch, wave.tiles);
    };
    return (slabs - 1) * one(of_slab) + one((of_b ? g.n : g.m) - (slabs - 1) * of_slab);
  }
};
// In slabs of `most` bytes or less, half of it at least where that saves waves. As if no B were
// kept: what is packed is to give the bits of what is not. An operand of one value stays whole,
// since the order it is walked in depends on how many rows it has.
inline Slabs plan_slabs(const Gemm& g, int limbs, size_t most, const Wave& wave) {
  const DecomposePlan whole = plan_decompose(g, limbs, nullptr);
  const size_t a = whole.a.bytes(limbs), b = whole.b.bytes(limbs);
  Slabs s{.of_b = b > a, .rows = b > a ? g.n : g.m};
  const View<const float>& x = s.of_b ? g.b : g.a;
  if (std::max(a, b) <= most || x.rs == x.cs) return s;
  const Limbs& larger = s.of_b ? whole.b : whole.a;
  const size_t of_step = times(static_cast<size_t>(kSlabRows * larger.matrices),
                               static_cast<size_t>(larger.row_bytes(limbs)));
  const auto steps = std::max<int64_t>(1, static_cast<int64_t>(most / of_step));
  int64_t least = 0;
  for (int64_t n = steps; n > steps / 2; --n) {
    const int64_t rows = n * kSlabRows;
    const int64_t count = std::max<int64_t>(1, ceil_div(larger.rows + 1 - kSlabRows, rows));
    const int64_t waves = s.waves(g, wave, rows, count);
    if (least == 0 || waves < least) least = waves, s.rows = rows, s.count = count;
  }
  if (s.count == 1) s.rows = larger.rows;
  return s;
}

// Calls of(problem, plan, context) of each slab, in order: what of D it gives, and where its limbs
// and the other operand's are.
template <class Of>
void for_each_slab(const Gemm& g, int limbs, const Wave& wave, const Context& context, Of&& of) {
  const Slabs slabs = plan_slabs(g, limbs, context.slab_bytes, wave);
  Limbs packed;
  if (context.packed_b) packed = plan_packed(g, context.packed_b).limbs;
  for (int64_t s = 0; s < slabs.count; ++s) {
    const int64_t first = s * slabs.rows;
    Gemm part = g;
    Context its = context;
    if (slabs.of_b) {
      part.n = s + 1 < slabs.count ? slabs.rows : g.n - first;
      part.b.data += first * g.b.cs, part.d.data += first * g.d.cs;
      if (g.beta != 0.f) part.c.data += first * g.c.cs;
      if (s > 0) its.row_sums = nullptr;
    } else {
      part.m = s + 1 < slabs.count ? slabs.rows : g.m - first;
      part.a.data += first * g.a.rs, part.d.data += first * g.d.rs;
      if (g.beta != 0.f) part.c.data += first * g.c.rs;
      if (its.row_sums) its.row_sums += first;
    }
    Limbs kept;
    if (context.packed_b) kept = packed.slab(slabs.of_b ? first : 0, part.n, limbs);
    DecomposePlan plan = plan_decompose(part, limbs, context.workspace,
                                        context.packed_b ? &kept : nullptr, slabs.of_b);
    if (s > 0) (slabs.of_b ? plan.a_is_kept : plan.b_is_kept) = true;
    of(part, plan, its);
  }
}

}  // namespace xgemm
