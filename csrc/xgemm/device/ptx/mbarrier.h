// mbarriers of sm_90, one instruction a function, each with its host body. A phase ends when so
// many arrivals and so many bytes have come. Phases have parity 0, 1, 0, ...
#pragma once

#include "xgemm/device/ptx/base.h"

namespace xgemm {

#ifdef __CUDACC__
__device__ __forceinline__ unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}
#endif

struct alignas(8) Mbarrier {
  uint64_t state;
};

// By one thread, before fence_barrier_init and a barrier of the block (cluster_sync in a cluster).
__device__ __forceinline__ void mbarrier_init(Mbarrier* bar, int arrivals) {
#ifdef __CUDACC__
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(bar)), "r"(arrivals)
               : "memory");
#else
  simt::mbarrier_init(bar, arrivals);
#endif
}

__device__ __forceinline__ void fence_barrier_init() {
#ifdef __CUDACC__
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

// One arrival, which also announces `bytes` to come in this phase by TMA.
__device__ __forceinline__ void mbarrier_expect(Mbarrier* bar, int bytes,
                                                [[maybe_unused]] simt::Site site = simt::here()) {
#ifdef __CUDACC__
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(bar)),
               "r"(bytes)
               : "memory");
#else
  simt::mbarrier_expect(bar, bytes, site);
#endif
}

__device__ __forceinline__ void mbarrier_arrive(Mbarrier* bar,
                                                [[maybe_unused]] simt::Site site = simt::here()) {
#ifdef __CUDACC__
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(bar)) : "memory");
#else
  simt::mbarrier_arrive(bar, site);
#endif
}

// Arrives once every cp.async that this thread has issued so far has landed; the thread goes on.
__device__ __forceinline__ void mbarrier_arrive_after_copies(
    Mbarrier* bar, [[maybe_unused]] simt::Site site = simt::here()) {
#ifdef __CUDACC__
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(bar))
               : "memory");
#else
  simt::mbarrier_arrive_after_copies(bar, site);
#endif
}

// Arrives at the mbarrier that lies where `bar` does, in block `rank` of the cluster. This orders
// what wgmma and TMA do; plain accesses of the two blocks it does not (with .release.cluster it
// would, by a fence of the whole GPU: a third of the main loop's speed).
__device__ __forceinline__ void mbarrier_arrive_at(
    Mbarrier* bar, unsigned rank, [[maybe_unused]] simt::Site site = simt::here()) {
#ifdef __CUDACC__
  asm volatile(
      "{\n.reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(shared_address(bar)),
      "r"(rank)
      : "memory");
#else
  simt::mbarrier_arrive_at(bar, rank, site);
#endif
}

// Until the phase of this parity has ended. A fresh mbarrier counts as having ended parity 1.
__device__ __forceinline__ void mbarrier_wait(Mbarrier* bar, int parity,
                                              [[maybe_unused]] simt::Site site = simt::here()) {
#ifdef __CUDACC__
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra.uni over;\n"
      "bra.uni again;\n"
      "over:\n}" ::"r"(shared_address(bar)),
      "r"(parity)
      : "memory");
#else
  simt::mbarrier_wait(bar, parity, site);
#endif
}

}  // namespace xgemm
