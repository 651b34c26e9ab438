// FP32 operands as sums of 16-bit limbs for tensor cores: where they lie in the workspace. Pure;
// the kernel is in decompose.h, what limbs can hold in certificate.h.
#pragma once

#include <cstdint>

#include "xgemm/core/stage.h"
#include "xgemm/core/tile_scheduler.h"
#include "xgemm/core/workspace.h"
#include "xgemm/emulation/certificate.h"

namespace xgemm {

// The limbs of one operand: [row][k / 32][limb][32], rows along k, matrix after matrix of the
// batch. For B, rows are its columns.
struct Limbs {
  void* data = nullptr;
  RowScale* scales = nullptr;
  int64_t rows = 0;  // of a matrix
  int64_t matrices = 1;
  int64_t blocks = 0;  // slices of k

  // Matrix z of the batch begins at this row; a broadcast operand is stored once.
  XGEMM_HD int64_t first_row(int64_t z) const { return matrices == 1 ? 0 : z * rows; }
  XGEMM_HD int64_t row_bytes(int limbs) const { return blocks * kSliceK * 2 * limbs; }

  // Of so many limbs of all elements, scales apart.
  size_t bytes(int limbs) const {
    return times(times(static_cast<size_t>(rows), static_cast<size_t>(matrices)),
                 static_cast<size_t>(row_bytes(limbs)));
  }
  // `count` rows from `first` on, of a batch of one.
  Limbs slab(int64_t first, int64_t count, int limbs) const {
    Limbs part = *this;
    part.data = static_cast<char*>(data) + first * row_bytes(limbs);
    part.scales += first;
    part.rows = count;
    return part;
  }
};

// An element's place along K is told in 32 bits.
inline Status can_decompose(const Gemm& g) {
  return g.k > int64_t{UINT32_MAX} ? "decomposes rows of fewer than 2^32 elements of K" : nullptr;
}

// Slices of k: at least one, the last filled up with zeros.
XGEMM_HD int64_t slices_of(int64_t k) { return k > kSliceK ? ceil_div(k, kSliceK) : 1; }

// Room for so many limbs of `slices` slices of rows * matrices rows, which have `scales` each.
inline Limbs place_slices(Layout& all, int64_t rows, int64_t matrices, int64_t slices,
                          int64_t scales, int limbs) {
  Limbs p;
  p.rows = rows;
  p.matrices = matrices;
  p.blocks = slices;
  p.data = all.place(p.bytes(limbs));
  const size_t of_all = times(times(static_cast<size_t>(rows), static_cast<size_t>(matrices)),
                              static_cast<size_t>(scales) * sizeof(RowScale));
  p.scales = static_cast<RowScale*>(all.place(of_all));
  return p;
}

// Of each of rows * matrices * k elements.
inline Limbs place_limbs(Layout& all, int64_t rows, int64_t matrices, int64_t k, int limbs) {
  return place_slices(all, rows, matrices, slices_of(k), 1, limbs);
}

// A matrix B that is decomposed once and kept: its limbs by kFp16x3.
struct PackedB {
  Limbs limbs;
  size_t bytes = 0;
};
inline PackedB plan_packed(const Gemm& g, void* packed) {
  Layout all{packed};
  PackedB plan;
  plan.limbs = place_limbs(all, g.n, 1, g.k, kFp16x3.limbs);
  plan.bytes = all.bytes;
  return plan;
}

// Where the limbs of A and B lie, in a workspace of `bytes` as far as they are not kept.
struct DecomposePlan {
  Limbs a, b;
  bool a_is_kept = false, b_is_kept = false;  // and needs no decomposition
  // What is made of a row rests on neither M nor the batch: A's are walked along k, however they
  // lie, and B is partitioned as one matrix is.
  bool invariant = false;
  size_t bytes = 0;
};

// With room for so many limbs of an element; B's only if none of it are kept. `a_first`: A's place
// is to be the same whatever B's rows.
inline DecomposePlan plan_decompose(const Gemm& g, int limbs, void* workspace,
                                    const Limbs* kept_b = nullptr, bool a_first = false) {
  DecomposePlan plan;
  Layout all{workspace};
  const auto operand = [&](int64_t rows, int64_t stride) {
    return place_limbs(all, rows, g.batch > 1 && stride != 0 ? g.batch : 1, g.k, limbs);
  };
  if (a_first) plan.a = operand(g.m, g.a.bs);
  if (kept_b) plan.b = *kept_b, plan.b_is_kept = true;
  else plan.b = operand(g.n, g.b.bs);
  if (!a_first) plan.a = operand(g.m, g.a.bs);
  plan.bytes = all.bytes;
  return plan;
}

}  // namespace xgemm
