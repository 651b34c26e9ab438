// The larger operand's limbs by slabs of its rows, one slab after another in the same room: limbs
// take as many bytes as the floats they stand for, and a whole gradient of logits of them is the
// peak of a training step's memory. The other operand is decomposed once, with the first slab.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

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

  int64_t first(int64_t slab) const { return slab * rows; }
  // The problem of a slab by its sizes; where its operands lie is left as it was.
  Gemm sizes(const Gemm& g, int64_t slab) const {
    Gemm part = g;
    int64_t& its = of_b ? part.n : part.m;
    its = slab + 1 < count ? rows : its - first(slab);
    return part;
  }
  // Waves of all slabs.
  double waves(const Gemm& g, const Wave& wave) const {
    const auto of = [&](const Gemm& part) {
      return std::ceil(static_cast<double>(ceil_div(part.m, wave.rows)) *
                       static_cast<double>(ceil_div(part.n, wave.columns)) *
                       static_cast<double>(g.batch) / static_cast<double>(wave.tiles));
    };
    return static_cast<double>(count - 1) * of(sizes(g, 0)) + of(sizes(g, count - 1));
  }
};
// In slabs of `most` bytes or less, half of it at least where that saves waves. As if no B were
// kept: what is packed is to give the bits of what is not. An operand of one value stays whole,
// since the order it is walked in depends on how many rows it has. `of_a`: A is cut, and not B,
// which is then decomposed in the same way for any M.
inline Slabs plan_slabs(const Gemm& g, int limbs, size_t most, const Wave& wave,
                        bool of_a = false) {
  const DecomposePlan whole = plan_decompose(g, limbs, nullptr);
  const size_t a = whole.a.bytes(limbs), b = of_a ? 0 : whole.b.bytes(limbs);
  Slabs best{.of_b = b > a, .rows = b > a ? g.n : g.m};
  const View<const float>& x = best.of_b ? g.b : g.a;
  if (std::max(a, b) <= most || x.rs == x.cs || best.rows < 2 * kSlabRows) return best;
  const Limbs& larger = best.of_b ? whole.b : whole.a;
  const size_t of_step = times(times(kSlabRows, static_cast<size_t>(larger.matrices)),
                               static_cast<size_t>(larger.row_bytes(limbs)));
  const auto steps = std::max<int64_t>(1, static_cast<int64_t>(most / of_step));
  double least = std::numeric_limits<double>::infinity();
  for (int64_t n = steps; n > steps / 2; --n) {
    Slabs s{.of_b = best.of_b, .rows = n * kSlabRows};
    s.count = std::max<int64_t>(1, ceil_div(larger.rows + 1 - kSlabRows, s.rows));
    if (const double waves = s.waves(g, wave); waves < least) least = waves, best = s;
  }
  return best;
}

// Calls of(problem, plan, context) of each slab, in order: what of D it gives, and where its limbs
// and the other operand's are.
template <class Of>
void for_each_slab(const Gemm& g, int limbs, const Wave& wave, const Context& context, Of&& of) {
  const Slabs slabs = plan_slabs(g, limbs, context.slab_bytes, wave, context.invariant);
  Limbs packed;
  if (context.packed_b) packed = plan_packed(g, context.packed_b).limbs;
  for (int64_t s = 0; s < slabs.count; ++s) {
    const int64_t first = slabs.first(s);
    Gemm part = slabs.sizes(g, s);
    Context its = context;
    if (slabs.of_b) {
      part.b.data += first * g.b.cs, part.d.data += first * g.d.cs;
      if (g.beta != 0.f) part.c.data += first * g.c.cs;
      if (s > 0) its.row_sums = nullptr;
    } else {
      part.a.data += first * g.a.rs, part.d.data += first * g.d.rs;
      if (g.beta != 0.f) part.c.data += first * g.c.rs;
      if (its.row_sums) its.row_sums += first;
    }
    Limbs kept;
    if (context.packed_b) kept = packed.slab(slabs.of_b ? first : 0, part.n, limbs);
    DecomposePlan plan = plan_decompose(part, limbs, context.workspace,
                                        context.packed_b ? &kept : nullptr, slabs.of_b);
    if (s > 0) (slabs.of_b ? plan.a_is_kept : plan.b_is_kept) = true;
    plan.invariant = context.invariant;
    of(part, plan, its);
  }
}

// Bytes of workspace for all slabs, of which bytes(problem, plan) asks some: the last one has other
// sizes than the others. However many they are: sizes may be beyond all memory here.
template <class Bytes>
size_t workspace_of_slabs(const Gemm& g, int limbs, const Wave& wave, const Context& context,
                          Bytes&& bytes) {
  const Slabs slabs = plan_slabs(g, limbs, context.slab_bytes, wave, context.invariant);
  const Limbs kept;
  const auto of = [&](int64_t s) {
    const Gemm part = slabs.sizes(g, s);
    return bytes(part, plan_decompose(part, limbs, nullptr, context.packed_b ? &kept : nullptr));
  };
  return std::max(of(0), of(slabs.count - 1));
}

}  // namespace xgemm
