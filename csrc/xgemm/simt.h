// The two flavours of a stage's source: nvcc for the GPU, or g++ with fibers in place of CUDA
// threads (host/simt_host.h).
#pragma once

#include "xgemm/stage.h"

#ifdef __CUDACC__

#include <cuda_runtime.h>

#include <stdexcept>

// A shared-memory array of a block: XGEMM_SHARED(As, float[BM][BK]);
#define XGEMM_SHARED(name, ...) __shared__ __align__(128)::xgemm::simt::Type<__VA_ARGS__> name
// The same from the launch's dynamic shared memory, for what is over 48 KiB.
#define XGEMM_SHARED_DYNAMIC(name, ...)                          \
  extern __shared__ __align__(1024) char xgemm_dynamic_shared[]; \
  auto& name = *reinterpret_cast<::xgemm::simt::Type<__VA_ARGS__>*>(xgemm_dynamic_shared)
// Puts a stage's symbols into its flavour: namespace xgemm::XGEMM_FLAVOUR::naive.
#undef XGEMM_FLAVOUR
#define XGEMM_FLAVOUR cuda

namespace xgemm {
inline constexpr Flavour kFlavour = Flavour::cuda;
}

namespace xgemm::simt {
template <class T>
using Type = T;

inline void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess)
    throw std::runtime_error(std::string("xgemm: ") + what + ": " + cudaGetErrorString(status));
}

__device__ __forceinline__ void expect_aligned(const void*, int) {}

// Where a call stands in the source, for the host flavour's reports.
struct Site {};
__device__ __forceinline__ constexpr Site here() { return {}; }
}  // namespace xgemm::simt

#else

#include "xgemm/host/simt_host.h"

#undef XGEMM_FLAVOUR
#define XGEMM_FLAVOUR host

namespace xgemm {
inline constexpr Flavour kFlavour = Flavour::host;
}

#endif

namespace xgemm {

// A launch's shape. `smem` is dynamic shared memory in bytes, beyond what XGEMM_SHARED declares;
// `cluster` is a thread block cluster's (1: none).
struct LaunchConfig {
  dim3 grid, block;
  size_t smem = 0;
  unsigned cluster = 1;
};

// The only way to start a kernel, the same for both flavours.
template <class... P>
void launch(void (*kernel)(P...), const LaunchConfig& config, const Context& context, P... args) {
#ifdef __CUDACC__
  if (config.smem > 48 * 1024)
    simt::check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     static_cast<int>(config.smem)),
                "shared memory");
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = config.cluster;
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t c{};
  c.gridDim = config.grid;
  c.blockDim = config.block;
  c.dynamicSmemBytes = config.smem;
  c.stream = static_cast<cudaStream_t>(context.stream);
  c.attrs = &cluster;
  c.numAttrs = config.cluster > 1 ? 1 : 0;
  simt::check(cudaLaunchKernelEx(&c, kernel, args...), "launch");
#else
  static_cast<void>(context);
  simt::launch(kernel, config.grid, config.block, config.smem, config.cluster, args...);
#endif
}

}  // namespace xgemm
