// A stage's block tile as a value: what it states, what follows from it, and the one place that
// says whether it is legal.
#pragma once

namespace xgemm {

struct Tile {
  int BM, BN, BK;       // block tile: BM x BN elements of D, in slices of BK along K
  int WM = 0, WN = 0;   // warp tile, 0 where a stage has none
  int TM = 1, TN = 1;   // thread tile
  int width = 1;        // floats a gmem access moves
  int buffers = 1;  // slices of A and B in shared memory at once; 0 where a stage stages nothing
  int pad_a = 0;  // floats added to a row of A's slice against bank conflicts
  int pad_b = 0;  // the same for B's
  int a_rows = 0;  // rows of A's slice as it lies in shared memory: BM (row-major) or BK (K-major)
  int min_blocks = 1;  // blocks that must fit on one SM (the second argument of __launch_bounds__)
  int element_bytes = 4;  // of an operand's element as it is multiplied, all its parts
  bool b_in_registers = false;  // B's slices never lie in shared memory
  int producers = 0;  // threads of a block that hold no results
  int cluster = 1;  // blocks, one below the other, that share their slices of B
  int extra = 0;  // bytes of a block's shared memory besides those slices
  int group = 8;  // tile rows that are rasterized together, so that their slices of A stay in L2
  float rate =
      0.f;  // TFLOP/s measured at 4096^3 NN on an H200; auto goes by it where it has no table

  constexpr int threads() const { return (BM / TM) * (BN / TN); }
  constexpr int accumulators() const { return TM * TN; }
  constexpr int smem() const {
    const int a = a_rows == BM ? BM * (BK + pad_a) : BK * (BM + pad_a);
    const int b = b_in_registers ? 0 : BK * (BN + pad_b);
    return buffers * (a + b) * element_bytes + extra;
  }

  // The rules that a row of a tile table must meet. Everybody asks here: static_assert, select,
  // tests.
  constexpr bool legal() const {
    if (BM <= 0 || BN <= 0 || BK <= 0 || TM <= 0 || TN <= 0) return false;
    if (BM % TM || BN % TN) return false;  // whole thread tiles
    if (threads() + producers > 1024 || threads() % 32 || producers % 32)
      return false;  // whole warps
    if (WM && (BM % WM || BN % WN || WM % TM || WN % TN)) return false;  // whole warp tiles
    if (WM && (WM / TM) * (WN / TN) != 32) return false;  // one lane a thread tile
    if (width != 1 && width != 4) return false;  // LDG.32 or LDG.128
    if (buffers && (a_rows != BM && a_rows != BK)) return false;
    if (buffers && (BM * BK % (width * threads()) || BN * BK % (width * threads())))
      return false;  // equal shares
    if (buffers && (pad_a % width || pad_b % width)) return false;  // aligned smem vectors
    if (accumulators() > 128) return false;  // 255 registers a thread
    if (min_blocks * (threads() + producers) > 2048) return false;  // threads of an SM
    return min_blocks * (smem() + 1024) <= 228 * 1024 && smem() <= 227 * 1024;
  }
};

}  // namespace xgemm
