// The two flavours of a stage's source: nvcc for the GPU, or g++ with fibers in place of CUDA
// threads (platform_host.h).
#pragma once

#include <algorithm>
#include <climits>

#include "xgemm/core/stage.h"

#ifdef __CUDACC__

#include <cuda_runtime.h>

#include <map>
#include <mutex>
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
  if (status == cudaSuccess) return;
  cudaGetLastError();  // it is told here, not by the next call that asks
  throw std::runtime_error(std::string("xgemm: ") + what + ": " + cudaGetErrorString(status));
}

__device__ __forceinline__ void expect_aligned(const void*, int) {}

// Where a call stands in the source, for the emulator's reports.
struct Site {};
__device__ __forceinline__ constexpr Site here() { return {}; }
}  // namespace xgemm::simt

#else

#include "xgemm/device/platform_host.h"

#undef XGEMM_FLAVOUR
#define XGEMM_FLAVOUR host

namespace xgemm {
inline constexpr Flavour kFlavour = Flavour::host;
}

#endif

namespace xgemm {

// Blocks of a cluster that every GPU with clusters runs; an H100 or H200 runs 16.
constexpr int kPortableCluster = 8;

// A launch's shape. `smem` is dynamic shared memory in bytes, beyond what XGEMM_SHARED declares;
// `cluster` is a thread block cluster's (1: none). A `dependent` launch may begin when the one
// before it in the stream says so: its kernel calls wait_for_launch_before(). In one that is
// `in_order` blocks may wait for signals (base.h) of blocks before them; a GPU begins blocks so
// anyway.
struct LaunchConfig {
  dim3 grid, block;
  size_t smem = 0;
  unsigned cluster = 1;
  bool dependent = false;
  bool in_order = false;
};

// The only way to start a kernel, the same for both flavours. What stages share and is not compiled
// to the same code in both is kept apart by the flavour's name: both are linked into one library.
inline namespace XGEMM_FLAVOUR {
#ifdef __CUDACC__
struct LaunchAttributes {
  cudaLaunchAttribute all[2]{};
  cudaLaunchConfig_t config{};
  LaunchAttributes(const LaunchConfig& c, void* stream) {
    config.gridDim = c.grid;
    config.blockDim = c.block;
    config.dynamicSmemBytes = c.smem;
    config.stream = static_cast<cudaStream_t>(stream);
    config.attrs = all;
    if (c.cluster > 1) {
      cudaLaunchAttribute& cluster = all[config.numAttrs++];
      cluster.id = cudaLaunchAttributeClusterDimension;
      cluster.val.clusterDim.x = c.cluster;
      cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    }
    if (c.dependent) {
      cudaLaunchAttribute& dependent = all[config.numAttrs++];
      dependent.id = cudaLaunchAttributeProgrammaticStreamSerialization;
      dependent.val.programmaticStreamSerializationAllowed = 1;
    }
  }
};

// What a kernel is not given unless it is asked for.
inline void allow(const void* kernel, const LaunchConfig& config) {
  if (config.smem > 48 * 1024)
    simt::check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     static_cast<int>(config.smem)),
                "shared memory");
  if (config.cluster > unsigned{kPortableCluster})
    simt::check(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
                "a cluster of 16");
}
#endif

template <class... P>
void launch(void (*kernel)(P...), const LaunchConfig& config, const Context& context, P... args) {
#ifdef __CUDACC__
  allow(reinterpret_cast<const void*>(kernel), config);
  LaunchAttributes attributes(config, context.stream);
  simt::check(cudaLaunchKernelEx(&attributes.config, kernel, args...), "launch");
#else
  simt::launch(
      kernel,
      {config.grid, config.block, config.smem, config.cluster, config.dependent, config.in_order},
      args...);
  static_cast<void>(context);
#endif
}

// How many clusters of such a launch run at a time on the current GPU: not all of its
// multiprocessors need have a partner. A GPU is asked once; the emulator has room for all.
template <auto kKernel>
int clusters_at_a_time(const LaunchConfig& config, const Device& device) {
  int clusters = INT_MAX;
#ifdef __CUDACC__
  static std::mutex mutex;
  static std::map<int, int> known;  // by the GPU's index
  int index = 0;
  simt::check(cudaGetDevice(&index), "device");
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = known.find(index);
  if (found == known.end()) {
    allow(reinterpret_cast<const void*>(kKernel), config);
    LaunchAttributes attributes(config, nullptr);
    simt::check(cudaOccupancyMaxActiveClusters(&clusters, kKernel, &attributes.config), "clusters");
    known[index] = clusters;
  } else {
    clusters = found->second;
  }
#endif
  return std::clamp(clusters, 1, std::max(1, device.sm_count / static_cast<int>(config.cluster)));
}

}  // namespace XGEMM_FLAVOUR

}  // namespace xgemm
