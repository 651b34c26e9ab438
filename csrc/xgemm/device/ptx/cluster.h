// Clusters of sm_90: blocks that run together and reach each other's shared memory. In code for
// older architectures a block is a cluster of its own.
#pragma once

#include "xgemm/device/ptx/mbarrier.h"

namespace xgemm {

__device__ __forceinline__ unsigned cluster_rank() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  return 0;
#elif defined(__CUDACC__)
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
#else
  return simt::cluster_rank();
#endif
}

// All threads of the cluster meet; what they wrote before, gmem included, all can read after.
__device__ __forceinline__ void cluster_sync([[maybe_unused]] simt::Site site = simt::here()) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  __syncthreads();
#elif defined(__CUDACC__)
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
#else
  simt::cluster_sync(site);
#endif
}

// They meet without that: after fence_barrier_init, which does what it has to, or where nothing is
// read after. Nobody waits for stores to gmem.
struct Relaxed {};
__device__ __forceinline__ void cluster_sync(Relaxed,
                                             [[maybe_unused]] simt::Site site = simt::here()) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  __syncthreads();
#elif defined(__CUDACC__)
  asm volatile(
      "barrier.cluster.arrive.relaxed.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
#else
  simt::cluster_sync(site);
#endif
}

// What block `rank` of the cluster has in shared memory where `smem` lies here, one float or four:
// between two cluster_sync, the second of which keeps that block there.
__device__ __forceinline__ float load_from_block(const float* smem, unsigned rank,
                                                 [[maybe_unused]] simt::Site site = simt::here()) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  static_cast<void>(rank);
  return *smem;
#elif defined(__CUDACC__)
  float x;
  asm volatile(
      "{\n.reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %1, %2;\n"
      "ld.shared::cluster.f32 %0, [there];\n}"
      : "=f"(x)
      : "r"(shared_address(smem)), "r"(rank)
      : "memory");
  return x;
#else
  float x;
  simt::load_from_block(&x, smem, sizeof x, rank, site);
  return x;
#endif
}

__device__ __forceinline__ void load4_from_block(float (&x)[4], const float* smem, unsigned rank,
                                                 [[maybe_unused]] simt::Site site = simt::here()) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  static_cast<void>(rank);
  for (int w = 0; w < 4; ++w) x[w] = smem[w];
#elif defined(__CUDACC__)
  asm volatile(
      "{\n.reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %4, %5;\n"
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];\n}"
      : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
      : "r"(shared_address(smem)), "r"(rank)
      : "memory");
#else
  simt::load_from_block(x, smem, sizeof x, rank, site);
#endif
}

}  // namespace xgemm
