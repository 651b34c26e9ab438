// With a short K a product is a matter of writing D: many small blocks, each a few runs of rows,
// are on their way to memory at a time.
//
// With a K of 1 a product is an outer product: each element is one multiplication, and all there is
// to do is to write D. The gradient of a weight for one row of data is just that, and the tiled
// stages write it at half the speed of memory. They load, wait, multiply, and store at the end of a
// block, with two or three blocks to a multiprocessor; and each of their stores goes through an
// epilogue that asks, for each row, whether there is a C, an activation, an edge.
//
// Here blocks are small and many, B's few rows stay in a thread's registers, a block's slice of A
// is read once, and the epilogue asks its questions once for all of a thread's rows. What then
// remains is four multiplications and a 16-byte store. With a K of 1 it is as quick as filling D
// with zeros.
//
// against: block_tile_1d, as both keep an element of B in a register for a column of results
// first: kernel

#include <iterator>

#include "xgemm/device/launch.h"
#include "xgemm/device/ptx/base.h"
#include "xgemm/mainloop/rank_k.h"

namespace xgemm::XGEMM_FLAVOUR::outer {

constexpr int kRows = 8;  // of a thread
constexpr Tile tile(int BM, int BN, int min_blocks, float rate) {
  return {.BM = BM,
          .BN = BN,
          .BK = 1,
          .TM = kRows,
          .TN = kColumns,
          .width = 4,
          .buffers = 0,
          .min_blocks = min_blocks,
          .rate = rate};
}
constexpr Tile kTiles[] = {tile(8, 512, 4, 8.f), tile(32, 256, 2, 10.f)};

// kDepth: of k, at a time in registers.
constexpr int kSlice = 16;
template <int kRow, int kDepth, bool kWide>
__global__ void __launch_bounds__(kTiles[kRow].threads(), kTiles[kRow].min_blocks)
    kernel(const Gemm batch) {
  constexpr Tile T = kTiles[kRow];
  using Part = ThreadPart<T.BN / kColumns, kRows, T.BM, kWide>;
  XGEMM_SHARED(As, float[kSlice][T.BM]);
  const Gemm g = batch.at(blockIdx.z);
  const Part part(g);
  take_turn();
  float acc[kRows][kColumns] = {};
#pragma unroll 1
  for (int64_t k0 = 0; k0 < g.k; k0 += kDepth) {
    float b[kDepth][kColumns];
    load_b<Part::kStep>(b, g, k0, part.j, part.vectors);
    if (k0 % kSlice == 0) {
      if (k0 > 0) __syncthreads();  // all have read the slice before
      load_a<T.threads()>(As, g, part.i0, k0);
    }
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
      float a[kRows];
      load4(a, &As[k0 % kSlice + k][part.row]);
      load4(a + 4, &As[k0 % kSlice + k][part.row + 4]);
      outer_product<Order::rows>(acc, a, b[k]);
    }
  }
  store<Part::kStep>(g, acc, part.i0 + part.row, part.j, part.whole);
}

// K within kStripDepth: a block has a strip of kTall times as many rows, and B's part of it stays
// in registers, which leave room for kAtOnce rows at a time.
constexpr int kStripDepth = 8, kTall = 4, kAtOnce = 4;
template <int kRow, bool kWide>
__global__ void __launch_bounds__(kTiles[kRow].threads(), kTiles[kRow].min_blocks)
    strip(const Gemm batch) {
  constexpr Tile T = kTiles[kRow];
  constexpr int BM = T.BM * kTall, kMine = kRows * kTall;
  using Part = ThreadPart<T.BN / kColumns, kMine, BM, kWide>;
  XGEMM_SHARED(As, float[kStripDepth][BM]);
  const Gemm g = batch.at(blockIdx.z);
  const Part part(g);
  take_turn();
  float b[kStripDepth][kColumns];
  load_b<Part::kStep>(b, g, 0, part.j, part.vectors);
  load_a<T.threads()>(As, g, part.i0, 0);
#pragma unroll 1
  for (int row = part.row; row < part.row + kMine; row += kAtOnce) {
    float acc[kAtOnce][kColumns] = {};
#pragma unroll
    for (int k = 0; k < kStripDepth; ++k) {
      float a[kAtOnce];
      load4(a, &As[k][row]);
      outer_product<Order::rows>(acc, a, b[k]);
    }
    store<Part::kStep>(g, acc, part.i0 + row, part.j, part.whole);
  }
}

template <int kRow>
void run_row(const Gemm& all, const Context& context) {
  constexpr Tile T = kTiles[kRow];
  // D's rows are those that lie in one piece.
  const Gemm g = all.d.cs != 1 && all.d.rs == 1 ? transposed(all) : all;
  // Strips, where they are enough for half of the multiprocessors.
  Tile t = T;
  t.BM *= kTall;
  const bool strips = g.k > 1 && g.k <= kStripDepth &&
                      tile_count(g, t.BM, t.BN) * g.batch * 2 >= context.device.sm_count;
  if (!strips) t.BM = T.BM;
  const bool wide = g.d.wide();
  launch_tiles(strips    ? (wide ? strip<kRow, true> : strip<kRow, false>)
               : g.k > 1 ? (wide ? kernel<kRow, 8, true> : kernel<kRow, 8, false>)
                         : (wide ? kernel<kRow, 1, true> : kernel<kRow, 1, false>),
               g, t, dim3(T.threads()), context, 0, true);
}

void run(const Gemm& g, const Context& context) {
  constexpr void (*rows[])(const Gemm&, const Context&) = {run_row<0>, run_row<1>};
  static_assert(std::size(rows) == std::size(kTiles));
  rows[context.row](g, context);
}

static const Register<run> stage(
    kFlavour, {.name = "outer",
               .idea = "a short K: D is written at the speed of memory, from registers",
               .source = "this project",
               .tiles = {std::begin(kTiles), std::end(kTiles)}});

}  // namespace xgemm::XGEMM_FLAVOUR::outer
