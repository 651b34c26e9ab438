// Narrow and deep products on tensor cores: operands are decomposed into bf16 limbs in registers,
// on their way, read once and nowhere written, and K is cut among blocks.
//
// Splitting in a launch of its own pays where an element serves hundreds of products. In a narrow
// product it serves few: there the split would read, write and read again what is needed once. So
// here each thread reads a small patch of FP32 elements into registers and splits them into three
// bf16 limbs there. wgmma takes one operand from registers, so the longer one stays where it is;
// the shorter one goes back to shared memory, swizzled as wgmma wants it, by warps that do nothing
// else. What an ordinary store wrote wgmma may not read at once: the tensor cores see shared memory
// through another path, so a fence comes before the barrier. While the products of a slice are
// made, the next is split, and the sums of the largest limbs are promoted while those of the others
// run.
//
// How the elements come matters most. When threads asked for them, by loads and by `cp.async`, a
// slice took as long with no product made at all, but a third less with one of the two operands
// alone. So neither memory nor the tensor cores were the limit, but how much of what its threads
// ask for a multiprocessor keeps on its way. What TMA fetches does not count there: one thread asks
// for boxes, five slices ahead, and a slice of both operands takes no longer than one of them alone
// did. What TMA cannot take, because it is not aligned, still comes by `cp.async`, float by float,
// and slower.
//
// There are too few tiles in such a product for a whole GPU, so K is cut. The blocks that
// share a tile are a cluster: they leave their sums in shared memory, where the slices were, meet,
// and each reads the others' of its part of the tile, adds and stores it, all in one launch. What
// comes from another block takes a while: all of it is asked for before any is added. Products so
// deep that eight blocks are too few for a tile take more blocks, which make no cluster, and a
// second launch. Either way the sums are added in one order.
//
// Three bf16 limbs need no scale, so nothing has to be known of a row before it is read. What they
// cannot hold, elements near the ends of FP32's range, a thread notices while it splits, for five
// instructions a pair. Only where a block's operands have such a range are its sums looked at, each
// by its magnitude, and where some are uncertain, the block makes those of its slice of K anew by
// FP32 multiply-adds. An infinity or a NaN adds up right from any number of slices. Only where
// finite elements are so large that their sums may overflow on the way is a tile made by single
// chains: sums of magnitudes along K say whether they may.
//
// Six products of bf16 limbs leave three out, which shows where a row of A or a column of B has one
// nonzero: its results are to be exact. So whoever splits a slice also notes where nonzeros are,
// and stops at a row's second, which most data have in the first slice. What has one nonzero at
// most in a block's share of K gives products of FP32 elements, read once more from memory.
//
// arch: sm_90a
// against: wgmma_bf16x6, as its limbs are the same
// first: multiply_slices in mainloop/fused_emulated.h
// registers: 64 and 192, 64 and 192, 64 and 192, 64 and 192

#include <iterator>

#include "xgemm/device/ptx/cluster.h"
#include "xgemm/mainloop/fused_epilogue.h"

namespace xgemm::XGEMM_FLAVOUR::wgmma_narrow {

// BM rows and kLong columns of D. wgmma has D transposed: columns are its 64 rows.
constexpr Tile tile(int BM, float rate) {
  return {.BM = BM,
          .BN = kLong,
          .BK = kSliceK,
          .WM = BM,
          .WN = 16,
          .TM = BM / 4,
          .TN = 2,
          .buffers = kNarrowBuffers,
          .a_rows = BM,
          .element_bytes = 2 * kNarrowScheme.limbs,
          .b_in_registers = true,
          .producers = kTransformThreads + kProducerThreads,
          .extra = kSlicesAhead * (BM + kLong) * kSliceK * 4 + BM * kSliceK / 8 * 4,
          .rate = rate};
}

constexpr Tile kTiles[] = {tile(8, 18.f), tile(16, 32.f), tile(32, 49.f), tile(64, 60.f)};

// Who takes a tile's sums through the epilogue: the block that has all of K, the blocks of a
// cluster, or those of another launch.
enum Finish : int { kInBlock, kInCluster, kAfter };

template <int kRow, bool kA, bool kB, int kFinish>
__global__ void __launch_bounds__(kNarrowThreads, 1) kernel(const __grid_constant__ SplitKJob job) {
  constexpr int BM = kTiles[kRow].BM;
  XGEMM_SHARED_DYNAMIC(ring, NarrowRing<BM, kA, kB>);
  const Gemm g = job.g.at(blockIdx.z);
  const auto splits = static_cast<unsigned>(job.split_k_slices);
  const unsigned tile = blockIdx.x / splits, split = blockIdx.x % splits;
  const int64_t k0 = split * job.split_k_size, k1 = min_of(k0 + job.split_k_size, g.k);
  const auto origin = [&] { return tile_coord(job, tile, BM); };
  ring.init(NarrowLoad{job}.arrivals());
  take_turn();
  if (threadIdx.x >= kConsumerThreads) {
    registers_down<kTransformRegisters>();
    if (threadIdx.x < kConsumerThreads + kTransformThreads)
      transform_rows(ring, k0, k1, g.m - origin().i);
    else NarrowLoad{job}.run(ring, g, origin(), k0, k1);
  } else {
    registers_up<kNarrowRegisters>();
    float sum[kNarrowSums<BM>] = {};
    Reach reach;
    SingleNonzeros<2> columns;
#pragma unroll
    for (int c = 0; c < 2; ++c)
      columns.begin(c, origin().j + RegisterLimbs<kLong, kB>::first_row() + c < g.n, k1 - k0);
    multiply_slices(sum, reach, columns, ring, k0, k1);
    ring.tell(reach);
    give_singles<BM>(sum, columns, ring, g, origin(), k0);
    named_barrier(1, kConsumerThreads);  // all have, and are done with the ring
    const bool overflow =
        redo_uncertain<BM>(ring, g, origin(), k0, k1, static_cast<int>(splits), sum);
    if constexpr (kFinish == kInBlock) {
      store_sums<BM>(ring.sums(), g, origin(), sum, overflow);
    } else if constexpr (kFinish == kInCluster) {
      leave_sums<BM, NarrowSums<BM>::kPitch>(ring.sums().d[0], sum);
      if (threadIdx.x == 0) ring.told = overflow ? 1.f : 0.f;
      cluster_sync();  // all of the cluster have left theirs
      finish_in_cluster<BM>(ring.sums(), &ring.told, g, origin(), static_cast<int>(split),
                            static_cast<int>(splits));
    } else {
      const int64_t place = job.place(blockIdx.z, tile) + split;
      leave_sums<BM, kLong>(job.sums + place * (BM * kLong), sum);
      if (threadIdx.x == 0) job.overflow[place] = overflow;
    }
  }
}

// Where there are too many slices for a cluster.
template <int kRow>
__global__ void __launch_bounds__(kConsumerThreads) add(const SplitKJob job, int parts) {
  wait_for_launch_before();
  finish_tile<kTiles[kRow].BM>(job, job.g.at(blockIdx.z), blockIdx.x / static_cast<unsigned>(parts),
                               static_cast<int>(blockIdx.x) % parts);
}

size_t workspace(const Gemm& g, const Context& context) {
  return plan_split_k(g, kTiles[context.row], nullptr).bytes;
}

template <int kRow>
void run_row(const Gemm& all, const Context& context) {
  constexpr Tile T = kTiles[kRow];
  constexpr size_t kRing = sizeof(NarrowRing<T.BM, true, true>);  // with its mbarriers
  static_assert((kRing - 1) / 1024 == T.smem() / 1024);
  SplitKJob job = plan_split_k(all, T, context.workspace).job;
  const Gemm g = job.g;
  const Finish finish = job.split_k_slices == 1 ? kInBlock : job.cluster ? kInCluster : kAfter;
  constexpr int kParts = T.BM * T.BN / kConsumerThreads / 4;  // four elements a thread
  if (job.tiles * std::max<int64_t>(job.split_k_slices, kParts) > kMaxGridX)
    throw std::invalid_argument("wgmma_narrow: over 2^31 - 1 blocks");
  for (int64_t z = 0; z < g.batch; z += kMaxGridZ) {
    job.g = g.at(z);
    job.g.batch = std::min(g.batch - z, kMaxGridZ);
    const auto matrices = static_cast<unsigned>(job.g.batch);
    void (*const kernel_of_job)(SplitKJob) = by_major(
        [&](auto a, auto b) {
          job.see<T.BM, a(), b()>();
          return finish == kInBlock     ? kernel<kRow, a(), b(), kInBlock>
                 : finish == kInCluster ? kernel<kRow, a(), b(), kInCluster>
                                        : kernel<kRow, a(), b(), kAfter>;
        },
        job.g);
    launch(kernel_of_job,
           {.grid = dim3(static_cast<unsigned>(job.tiles * job.split_k_slices), 1, matrices),
            .block = dim3(kNarrowThreads),
            .smem = kRing,
            .cluster = finish == kInCluster ? static_cast<unsigned>(job.split_k_slices) : 1,
            .dependent = true},
           context, job);
    if (finish == kAfter)
      launch(add<kRow>,
             {.grid = dim3(static_cast<unsigned>(job.tiles * kParts), 1, matrices),
              .block = dim3(kConsumerThreads),
              .dependent = true},
             context, job, kParts);
  }
}

void run(const Gemm& g, const Context& context) {
  constexpr void (*rows[])(const Gemm&, const Context&) = {run_row<0>, run_row<1>, run_row<2>,
                                                           run_row<3>};
  static_assert(std::size(rows) == std::size(kTiles));
  rows[context.row](g, context);
}

static const Register<run> stage(
    kFlavour, {.name = "wgmma_narrow",
               .idea = "narrow and deep: decomposed in registers on the way, split-K among blocks",
               .source = "this project",
               .tiles = {std::begin(kTiles), std::end(kTiles)},
               .min_sm = 90,
               .max_sm = 90,
               .strict = false,
               .scheme = [](const Gemm&, const Context&) { return kBf16x6Words; },
               .turns = has_more_rows,
               .workspace = workspace});

}  // namespace xgemm::XGEMM_FLAVOUR::wgmma_narrow
