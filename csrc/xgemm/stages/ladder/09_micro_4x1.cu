// A thread computes four elements: one of A, read once into a register, serves four products with
// neighbours of B.
//
// Four results a thread. Each element of one operand, once in a register, serves four products, so
// the reads of shared memory for a multiply-add fall from two towards one. A quarter of the threads
// do the same work.
//
// Three things of the code are new since the rung before, and stay. A `Loader` (`gmem.h`) is a
// thread's share of a slice: `fetch` loads it into registers and knows the operand's edges,
// `store_rows` and `store_columns` put it into shared memory. The template's two booleans say which
// way each operand is contiguous, so that lanes load neighbours in all four layouts; the launch
// chooses one of the four kernels. And the rows of a slice are padded by four floats again, as in
// rung 5; rungs 6 to 8 do without, to show the banks. What is turned on its way in then does not
// meet one bank, and reads of 16 bytes stay aligned.

#include "xgemm/device/copy/gmem.h"
#include "xgemm/device/launch.h"

namespace xgemm::XGEMM_FLAVOUR::micro_4x1 {

// The four are neighbours along a row of C; in the column-major system that this stage comes from
// they are neighbours down a column.
constexpr Tile kTile{.BM = 32,
                     .BN = 32,
                     .BK = 32,
                     .TN = 4,
                     .buffers = 1,
                     .pad_a = 4,
                     .pad_b = 4,
                     .a_rows = 32,
                     .min_blocks = 4,
                     .group = 16,
                     .rate = 12.7f};
constexpr int BM = kTile.BM, BN = kTile.BN, BK = kTile.BK, TN = kTile.TN;

template <bool kA, bool kB>  // whether A, B transposed are walked along k
__global__ void __launch_bounds__(kTile.threads(), kTile.min_blocks) kernel(const Gemm batch) {
  XGEMM_SHARED(As, float[BM][BK + kTile.pad_a]);
  XGEMM_SHARED(Bs, float[BK][BN + kTile.pad_b]);
  const Gemm g = batch.at(blockIdx.z);
  const TileCoord o = swizzled_tile<kTile>(blockIdx.x, g);
  const int tx = threadIdx.x % (BN / TN) * TN, ty = threadIdx.x / (BN / TN);

  Loader<kTile.threads(), BM, BK, 1, kA> a(g.a, o.i, g.m, g.k, kPadA);
  Loader<kTile.threads(), BN, BK, 1, kB> b(g.b.transposed(), o.j, g.n, g.k, kPadB);
  float acc[TN] = {};
  for (int64_t k0 = 0; k0 < g.k; k0 += BK) {
    a.fetch();
    b.fetch();
    a.store_rows(As);
    b.store_columns(Bs);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < BK; ++k) {
      const float ak = As[ty][k];
#pragma unroll
      for (int j = 0; j < TN; ++j) acc[j] = fmaf(ak, Bs[k][tx + j], acc[j]);
    }
    __syncthreads();
  }
#pragma unroll
  for (int j = 0; j < TN; ++j) g.store(o.i + ty, o.j + tx + j, acc[j]);
}

void run(const Gemm& g, const Context& context) {
  launch_tiles_by_major([](auto a, auto b) { return kernel<a(), b()>; }, g, kTile, context);
}

static const Register<run> stage(
    kFlavour, {.name = "micro_4x1",
               .rung = 9,
               .idea = "four results a thread; the element that they share stays in a register",
               .source = "S v4",
               .tiles = {kTile},
               .auto_choice = false});

}  // namespace xgemm::XGEMM_FLAVOUR::micro_4x1
