// One PTX instruction, one function, each with its host body. No other file of a stage holds
// assembly.
#pragma once

#include "xgemm/copy.h"

namespace xgemm {

// gmem -> smem past the registers (sm_80): kBytes of 4, 8 or 16, both ends aligned to it; zeros
// where `inside` is false.
template <int kBytes>
__device__ __forceinline__ void cp_async(float* smem, const float* gmem, bool inside) {
#ifdef __CUDACC__
  const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(smem));
  const int source = inside ? kBytes : 0;
  if constexpr (kBytes == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(gmem), "r"(source)
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(gmem), "n"(kBytes),
                 "r"(source)
                 : "memory");
#else
  simt::copy_issue(smem, gmem, kBytes, inside ? kBytes : 0);
#endif
}

__device__ __forceinline__ void cp_async_commit([[maybe_unused]] simt::Site site = simt::here()) {
#ifdef __CUDACC__
  asm volatile("cp.async.commit_group;" ::: "memory");
#else
  simt::copy_commit(site);
#endif
}

// Until at most kGroups of the thread's youngest groups are unfinished.
template <int kGroups>
__device__ __forceinline__ void cp_async_wait([[maybe_unused]] simt::Site site = simt::here()) {
#ifdef __CUDACC__
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
#else
  simt::copy_wait(kGroups, site);
#endif
}

}  // namespace xgemm
