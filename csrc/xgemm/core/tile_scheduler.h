// Which tile of D a block computes (the rasterization), and which way it walks its operands. Pure;
// tests/native walks it exhaustively.
#pragma once

#include <cstdint>
#include <utility>

#include "xgemm/core/gemm.h"
#include "xgemm/core/tile.h"

namespace xgemm {

// Multiprocessors of the GPU that K is cut for, an H200, whatever runs it: bits rest on some
// of these shares.
constexpr int64_t kSms = 132;

// First element of a block's tile of D.
struct TileCoord {
  int64_t i, j;
};

XGEMM_HD int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
XGEMM_HD int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }

XGEMM_HD int64_t tile_count(const Gemm& g, int BM, int BN) {
  return ceil_div(g.m, BM) * ceil_div(g.n, BN);
}

// The same problem seen from the other side: rows of D are its columns.
inline Gemm transposed(const Gemm& g) {
  Gemm t = g;
  std::swap(t.m, t.n);
  t.a = g.b.transposed(), t.b = g.a.transposed(), t.c = g.c.transposed(), t.d = g.d.transposed();
  return t;
}

// The same problem with at least as many columns as rows.
inline bool has_more_rows(const Gemm& g, const Tile& = {}) { return g.m > g.n; }
inline Gemm rows_first(const Gemm& g) { return has_more_rows(g) ? transposed(g) : g; }

// Whether neighbouring lanes should walk an operand along k. `rows` is A as it is or B transposed:
// its rows run along k.
XGEMM_HD bool along_k(const View<const float>& rows, int64_t length, int64_t k) {
  if (rows.cs == rows.rs) return k >= length;
  return k > 1 && (length <= 1 || rows.cs < rows.rs);
}

// Groups of `group` tile rows, walked column by column: while a group lasts, its slices of A stay
// in L2 and each slice of B is read once for `group` tiles. The last group may be shorter. Count
// holds the tiles of a group: a kernel that asks for many tiles divides by 32 bits at less cost.
template <class Count = uint64_t>
XGEMM_HD TileCoord swizzled_tile(uint32_t block, int64_t m, int64_t n, int BM, int BN, int group) {
  const uint32_t tiles_m = static_cast<uint32_t>(ceil_div(m, BM)),
                 tiles_n = static_cast<uint32_t>(ceil_div(n, BN));
  const uint32_t rows =
      static_cast<uint32_t>(group) < tiles_m ? static_cast<uint32_t>(group) : tiles_m;
  const Count in_group = static_cast<Count>(rows) * tiles_n;
  const uint32_t first = static_cast<uint32_t>(block / in_group) * rows;
  const uint32_t height = tiles_m - first < rows ? tiles_m - first : rows;
  const uint32_t rest = static_cast<uint32_t>(block % in_group);
  return {static_cast<int64_t>(first + rest % height) * BM,
          static_cast<int64_t>(rest / height) * BN};
}

template <Tile T>
XGEMM_HD TileCoord swizzled_tile(uint32_t block, const Gemm& g) {
  return swizzled_tile(block, g.m, g.n, T.BM, T.BN, T.group);
}

// The tiles of a batch that one of `blocks` blocks computes, one after the other: they are numbered
// matrix by matrix, and a block has every blocks-th of them. It counts on without a division.
struct BatchWalk {
  uint32_t z, tile;  // matrix, and tile of it, as swizzled_tile() counts them
  uint32_t tiles;    // of a matrix
  uint32_t step_z, step_tile;

  XGEMM_HD BatchWalk(uint32_t block, uint32_t blocks, uint32_t tiles_)
      : z(block / tiles_),
        tile(block % tiles_),
        tiles(tiles_),
        step_z(blocks / tiles_),
        step_tile(blocks % tiles_) {}

  XGEMM_HD void next() {
    z += step_z, tile += step_tile;
    if (tile >= tiles) ++z, tile -= tiles;
  }
};

}  // namespace xgemm
