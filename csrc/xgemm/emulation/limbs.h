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
  int64_t blocks = 0;  // of k: at least one, the last filled up with zeros

  // Matrix z of the batch begins at this row; a broadcast operand is stored once.
  XGEMM_HD int64_t first_row(int64_t z) const { return matrices == 1 ? 0 : z * rows; }
  XGEMM_HD int64_t row_bytes(int limbs) const { return blocks * kSliceK * 2 * limbs; }
};

// An element's place along K is told in 32 bits.
inline Status can_decompose(const Gemm& g) {
  return g.k > int64_t{UINT32_MAX} ? "decomposes rows of fewer than 2^32 elements of K" : nullptr;
}

// Room for so many limbs of each of rows * matrices * k elements.
inline Limbs place_limbs(Layout& all, int64_t rows, int64_t matrices, int64_t k, int limbs) {
  Limbs p;
  p.rows = rows;
  p.matrices = matrices;
  p.blocks = k > kSliceK ? ceil_div(k, kSliceK) : 1;
  const size_t elements = times(static_cast<size_t>(rows), static_cast<size_t>(matrices));
  p.data = all.place(times(elements, static_cast<size_t>(p.row_bytes(limbs))));
  p.scales = static_cast<RowScale*>(all.place(times(elements, sizeof(RowScale))));
  return p;
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
  bool b_is_kept = false;  // and needs no decomposition
  size_t bytes = 0;
};

// With room for so many limbs of an element; B's only if `packed_b` is null.
inline DecomposePlan plan_decompose(const Gemm& g, int limbs, void* workspace,
                                    void* packed_b = nullptr) {
  DecomposePlan plan;
  Layout all{workspace};
  const auto operand = [&](int64_t rows, int64_t stride) {
    return place_limbs(all, rows, g.batch > 1 && stride != 0 ? g.batch : 1, g.k, limbs);
  };
  plan.a = operand(g.m, g.a.bs);
  if (packed_b) plan.b = plan_packed(g, packed_b).limbs, plan.b_is_kept = true;
  else plan.b = operand(g.n, g.b.bs);
  plan.bytes = all.bytes;
  return plan;
}

}  // namespace xgemm
