// Loads from global memory that are to be under way together.
#pragma once

#include "xgemm/device/platform.h"

namespace xgemm {

// By whole warps, between loads and what waits for them: the compiler mixes them otherwise, and a
// warp waits several times.
__device__ __forceinline__ void loads_together() {
#ifdef __CUDACC__
  asm volatile("bar.warp.sync 0xffffffff;" ::: "memory");
#endif
}

}  // namespace xgemm
