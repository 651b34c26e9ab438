// A stage's block tile as a value: what it states, what follows from it, and the one place that
// says whether it is legal.
#pragma once

#include <type_traits>

namespace xgemm {

// Of k, a slice of what tensor cores multiply, and of a warp's ring: 32 floats are a line of 128
// bytes, 32 halves half of one.
constexpr int kSliceK = 32;

// No constant expression: the compiler stops here at a tile that breaks a rule, as it says above.
inline void illegal_tile(const char* /* rule */) {}
struct LegalTile {
  constexpr LegalTile() = default;  // as nvcc writes a tile that is a template's argument: {}
  constexpr LegalTile(const char* /* rule */) {}
};

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
  int element_bytes = 4;  // of an operand's element as it is multiplied, all its limbs
  int element_bytes_a = 0;  // of A's where they are fewer
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
    const int of_a = element_bytes_a ? element_bytes_a : element_bytes;
    return buffers * (a * of_a + b * element_bytes) + extra;
  }

  // The rule of a tile table that this tile breaks, in words, or null. Everybody asks here: the
  // compiler, the registry, tests. A constant that breaks one does not compile, and the error's
  // trace ends at the rule; of a tile that is made at run time the registry says it.
  constexpr const char* violation() const {
    if (BM <= 0 || BN <= 0 || BK <= 0 || TM <= 0 || TN <= 0)
      return broken("BM, BN, BK, TM and TN are positive");
    if (BM % TM || BN % TN) return broken("a block has whole thread tiles: TM | BM, TN | BN");
    if (threads() + producers > 1024) return broken("a block has 1024 threads at most");
    if (threads() % 32 || producers % 32)
      return broken("a block has whole warps: 32 | threads(), producers");
    if (WM && (BM % WM || BN % WN || WM % TM || WN % TN))
      return broken(
          "a block has whole warp tiles, these whole thread tiles: TM | WM | BM, TN | WN | BN");
    if (WM && (WM / TM) * (WN / TN) != 32)
      return broken("a warp tile has one thread tile a lane: WM / TM * WN / TN = 32");
    if (width != 1 && width != 4) return broken("width is 1 or 4 floats: LDG.32 or LDG.128");
    if (buffers && (a_rows != BM && a_rows != BK)) return broken("a_rows is BM or BK");
    if (buffers && (BM * BK % (width * threads()) || BN * BK % (width * threads())))
      return broken("threads load equal shares of a slice: width * threads() | BM * BK, BN * BK");
    if (buffers && (pad_a % width || pad_b % width))
      return broken("vectors in shared memory are aligned: width | pad_a, pad_b");
    if (accumulators() > 128) return broken("TM * TN is 128 at most, of 255 registers a thread");
    if (min_blocks * (threads() + producers) > 2048)
      return broken("min_blocks blocks have 2048 threads at most, all of a multiprocessor's");
    if (smem() > 227 * 1024) return broken("a block's shared memory is 227 KiB at most");
    if (min_blocks * (smem() + 1024) > 228 * 1024)
      return broken("shared memory of min_blocks blocks, 1 KiB more each, is 228 KiB at most");
    return nullptr;
  }
  constexpr bool legal() const { return !violation(); }

  // For a constant that was changed after it was made.
  constexpr Tile checked() const {
    static_cast<void>(violation());
    return *this;
  }

  // Looks at all members above whenever a tile is made. g++, which compiles every stage, too, is
  // asked alone: nvcc 13 takes no `this` here in an array of tiles ("expired storage").
#ifdef __CUDACC__
  LegalTile rules = {nullptr};
#else
  LegalTile rules = {violation()};
#endif

 private:
  static constexpr const char* broken(const char* rule) {
    if (std::is_constant_evaluated()) illegal_tile(rule);
    return rule;
  }
};

}  // namespace xgemm
