// TMA of sm_90: a box of a tensor (tensor_map.h) into shared memory, by one thread; it has landed
// when the phase of `bar` that expects its bytes has ended. What lies outside the tensor is zero
// and counts as bytes.
#pragma once

#include "xgemm/device/ptx/mbarrier.h"
#include "xgemm/device/tensor_map.h"

namespace xgemm {

// Between what threads have stored in shared memory, by cp.async too, and a TMA of the calling
// thread that overwrites it.
__device__ __forceinline__ void fence_before_tma() {
#ifdef __CUDACC__
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

__device__ __forceinline__ void tma_load(void* smem, const TensorMap& map, Mbarrier* bar, int c0,
                                         int c1, int c2,
                                         [[maybe_unused]] simt::Site site = simt::here()) {
#ifdef __CUDACC__
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(shared_address(smem)),
      "l"(&map), "r"(shared_address(bar)), "r"(c0), "r"(c1), "r"(c2)
      : "memory");
#else
  simt::tma_load(smem, map, bar, c0, c1, c2, 0, site);
#endif
}

// The same into every block of the cluster whose bit is set in `mask`: to where `smem` lies there,
// signalled at where `bar` lies there.
__device__ __forceinline__ void tma_load_multicast(
    void* smem, const TensorMap& map, Mbarrier* bar, int c0, int c1, int c2, unsigned mask,
    [[maybe_unused]] simt::Site site = simt::here()) {
#ifdef __CUDACC__
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(shared_address(smem)),
      "l"(&map), "r"(shared_address(bar)), "r"(c0), "r"(c1), "r"(c2),
      "h"(static_cast<unsigned short>(mask))
      : "memory");
#else
  simt::tma_load(smem, map, bar, c0, c1, c2, mask, site);
#endif
}

__device__ __forceinline__ void tma_prefetch([[maybe_unused]] const TensorMap& map) {
#ifdef __CUDACC__
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
#endif
}

}  // namespace xgemm
