// Probes of sm_90's asynchronous instructions: a product of 16-bit numbers by TMA, mbarriers and
// wgmma, in rings and clusters.
#include "xgemm/host/probes.h"
#include "xgemm/launch.h"
#include "xgemm/ptx_hopper.h"
#include "xgemm/ptx_mma.h"

namespace xgemm::simt {
namespace {

// A block multiplies 64 rows of X by 128 columns of Y, both stored along k, of the workspace. The
// workspace is the operand B of the probe: any memory will do.
constexpr int kM = 64, kN = 128, kDepth = 64, kSlices = 6, kBuffers = 2, kK = kSlices * kDepth;
constexpr int kRowBytes = 2 * kDepth, kBytes = (kM + kN) * kRowBytes;
constexpr int kBoxes = 2;  // of Y's rows, as a cluster of two blocks shares them

// What a product kernel leaves out or does wrong.
enum class Fault {
  none,
  no_full_wait,
  no_empty_wait,
  too_few_bytes,
  too_many_bytes,
  wrong_parity,
  no_wgmma_wait,
  no_commit,
  released_before_the_wait,
  left_behind,
  misaligned_box,
  wrong_stride,
  wrong_step,
  too_many_arrivals,
  no_init,
  no_barrier_after_init,
  no_cluster_sync_at_first,
  no_cluster_sync_at_last,
  one_mask_short,
};

struct Ring {
  uint16_t x[kBuffers][kM][kDepth];
  uint16_t y[kBuffers][kN][kDepth];
};

// Warp 4 copies, warps 0 to 3 multiply.
template <Fault kFault, int kCluster>
__device__ __forceinline__ void multiply(const Gemm& g, const TensorMap& x, const TensorMap& y) {
  XGEMM_SHARED_DYNAMIC(ring, Ring);
  XGEMM_SHARED(full, Mbarrier[kBuffers]);
  XGEMM_SHARED(empty, Mbarrier[kBuffers]);
  const int t = threadIdx.x;
  if (t == 0 && kFault != Fault::no_init) {
    for (int s = 0; s < kBuffers; ++s) {
      mbarrier_init(&full[s], 1);
      mbarrier_init(&empty[s], kFault == Fault::too_many_arrivals ? kCluster - 1 : kCluster);
    }
    fence_barrier_init();
  }
  if (kCluster == 1 || kFault == Fault::no_cluster_sync_at_first) {
    if (kFault != Fault::no_barrier_after_init) __syncthreads();
  } else {
    cluster_sync();
  }
  const int rank = static_cast<int>(cluster_rank());
  float acc[kN / 2] = {}, sum[kN / 2] = {};
  if (t == 128) {
    for (int slice = 0; slice < kSlices; ++slice) {
      const int s = slice % kBuffers, round = slice / kBuffers;
      if (kFault != Fault::no_empty_wait)
        mbarrier_wait(&empty[s], round % 2 ^ (kFault == Fault::wrong_parity ? 0 : 1));
      mbarrier_expect(&full[s], kFault == Fault::too_few_bytes    ? kBytes - kM * kRowBytes
                                : kFault == Fault::too_many_bytes ? kBytes + 16
                                                                  : kBytes);
      auto* to_x = &ring.x[s][kFault == Fault::misaligned_box ? 1 : 0][0];
      tma_load(to_x, x, &full[s], slice * kDepth, 0, 0);
      for (int box = 0; box < kBoxes; ++box) {
        const int row = box * kN / kBoxes;
        if (kCluster == 1)
          tma_load(&ring.y[s][row][0], y, &full[s], slice * kDepth, row, 0);
        else if (box == rank)
          tma_load_multicast(&ring.y[s][row][0], y, &full[s], slice * kDepth, row, 0,
                             kFault == Fault::one_mask_short && rank == 1 ? 2 : 3);
      }
    }
  } else if (t < 128) {
    for (int slice = 0; slice < kSlices; ++slice) {
      const int s = slice % kBuffers, round = slice / kBuffers;
      if (kFault != Fault::no_full_wait) mbarrier_wait(&full[s], round % 2);
      uint64_t a = wgmma_descriptor<kRowBytes>(&ring.x[s]);
      uint64_t b = wgmma_descriptor<kRowBytes>(&ring.y[s]);
      if (kFault == Fault::wrong_stride) b ^= 96ull << 32;
      wgmma_fence();
      for (int step = 0; step < kDepth / 16; ++step) {
        const uint64_t k = step * kDescriptorK16 * (kFault == Fault::wrong_step ? 2 : 1);
        wgmma<Half::fp16>(acc, a + k, b + (kFault == Fault::wrong_step ? k / 2 : k), step > 0);
      }
      if (kFault != Fault::no_commit) wgmma_commit();
      const auto release = [&] {
        if (t < kCluster) mbarrier_arrive_at(&empty[s], t);
      };
      if (kFault == Fault::released_before_the_wait) release();
      if (kFault == Fault::no_wgmma_wait) wgmma_wait<1>();
      else if (kFault != Fault::left_behind) wgmma_wait<0>();
      wgmma_settled(acc);
      if (kFault != Fault::released_before_the_wait) release();
      if (kFault != Fault::left_behind)
        for (int i = 0; i < kN / 2; ++i) sum[i] += acc[i];
    }
  }
  if (kCluster > 1 && kFault != Fault::no_cluster_sync_at_last) cluster_sync();
  if (t >= 128) return;
  for (int i = 0; i < kN / 2; ++i) {
    const int row = 16 * (t / 32) + t % 32 / 4 + i / 2 % 2 * 8;
    g.store(blockIdx.x * kM + row, i / 4 * 8 + 2 * (t % 4) + i % 2, sum[i]);
  }
}

}  // namespace
}  // namespace xgemm::simt
