// The same four elements a thread with 16-byte accesses: gmem loads, stores to shared memory,
// stores of C.
//
// The data are the same and so are the products, but four neighbours move as one access of 16
// bytes: fewer instructions for the same bytes. A request for 512 bytes takes four wavefronts at
// best, so vectors save issue slots, not the bandwidth of the banks.

#include "xgemm/device/copy/gmem.h"
#include "xgemm/device/launch.h"

namespace xgemm::XGEMM_FLAVOUR::micro_4x1_vec4 {

constexpr Tile kTile{.BM = 32,
                     .BN = 32,
                     .BK = 32,
                     .TN = 4,
                     .width = 4,
                     .buffers = 1,
                     .pad_a = 4,
                     .pad_b = 4,
                     .a_rows = 32,
                     .min_blocks = 4,
                     .group = 16,
                     .rate = 12.9f};
constexpr int BM = kTile.BM, BN = kTile.BN, BK = kTile.BK, TN = kTile.TN;
constexpr int W = kTile.width;

template <bool kA, bool kB>  // whether A, B transposed are contiguous along k
__global__ void __launch_bounds__(kTile.threads(), kTile.min_blocks) kernel(const Gemm batch) {
  XGEMM_SHARED(As, float[BM][BK + kTile.pad_a]);
  XGEMM_SHARED(Bs, float[BK][BN + kTile.pad_b]);
  const Gemm g = batch.at(blockIdx.z);
  const TileCoord o = swizzled_tile<kTile>(blockIdx.x, g);
  const int tx = threadIdx.x % (BN / TN) * TN, ty = threadIdx.x / (BN / TN);

  Loader<kTile.threads(), BM, BK, W, kA> a(g.a, o.i, g.m, g.k, kPadA);
  Loader<kTile.threads(), BN, BK, W, kB> b(g.b.transposed(), o.j, g.n, g.k, kPadB);
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
      float bk[TN];
      load4(bk, &Bs[k][tx]);
#pragma unroll
      for (int j = 0; j < TN; ++j) acc[j] = fmaf(ak, bk[j], acc[j]);
    }
    __syncthreads();
  }
  store_row4(g, o.i + ty, o.j + tx, acc);
}

void run(const Gemm& g, const Context& context) {
  launch_tiles_by_major([](auto a, auto b) { return kernel<a(), b()>; }, g, kTile, context);
}

static const Register<run> stage(
    kFlavour, {.name = "micro_4x1_vec4",
               .rung = 10,
               .idea = "the same with 16-byte loads, stores to shared memory and stores of C",
               .source = "S v5",
               .tiles = {kTile}});

}  // namespace xgemm::XGEMM_FLAVOUR::micro_4x1_vec4
