// The strict product in several chains: where they are left, and how they are added up.
#pragma once

#include <algorithm>
#include <cfloat>
#include <iterator>

#include "xgemm/chains.h"
#include "xgemm/launch.h"
#include "xgemm/split.h"

namespace xgemm {
inline namespace XGEMM_FLAVOUR {

constexpr int kAddThreads = 128;

// Whether a launch on this device may be `dependent`: code for older ones, from which another GPU
// may make its own, does not wait there.
inline bool may_depend(const Device& device) {
#ifdef __CUDA_ARCH_LIST__
  constexpr int kMade[] = {__CUDA_ARCH_LIST__};
  return device.sm == 90 && std::find(std::begin(kMade), std::end(kMade), 900) != std::end(kMade);
#else
  static_cast<void>(device);
  return true;  // the host flavour
#endif
}

// D is seen with at least as many columns as rows.
struct ChainJob {
  Gemm g;
  int64_t shares = 1;  // of k: chains of an element
  int64_t pitch = 0;  // from row to row of the sums: a multiple of 4
  float* sums = nullptr;  // [matrix][share][row][column]

  XGEMM_HD float* sum(int64_t z, int64_t s) const { return sums + (z * shares + s) * g.m * pitch; }
  // Share s of matrix z as a problem of its own, whose result is that chain.
  XGEMM_HD Gemm share(int64_t z, int64_t s) const {
    Gemm part = g.at(z);
    if (shares == 1) return part;
    const int64_t k = s * g.share;
    part.a.data += k * g.a.cs;
    part.b.data += k * g.b.rs;
    part.k = min_of(g.share, g.k - k);
    part.d = {sum(z, s), pitch, 1, 0};
    part.alpha = 1.f, part.beta = 0.f, part.act = Act::none;
    return part;
  }
};

struct ChainPlan {
  ChainJob job;
  size_t bytes = 0;
};

inline ChainPlan plan_chains(const Gemm& all, void* workspace) {
  ChainPlan plan{.job = {.g = rows_first(all)}};
  ChainJob& job = plan.job;
  job.shares = chain_count(job.g);
  if (job.shares == 1) return plan;
  job.pitch = ceil_div(job.g.n, 4) * 4;
  const int64_t matrices = std::min(all.batch, kMaxGridZ);
  Layout layout{workspace};
  job.sums = static_cast<float*>(layout.place(
      static_cast<size_t>(matrices * job.shares * job.g.m * job.pitch) * sizeof(float)));
  plan.bytes = layout.bytes;
  return plan;
}

// The chain of an element's products of k0 to k1.
__device__ __forceinline__ float chain_of(const Gemm& g, int64_t i, int64_t j, int64_t k0,
                                          int64_t k1) {
  float chain = 0.f;
#pragma unroll 4
  for (int64_t k = k0; k < k1; ++k) chain = fmaf(g.a(i, k), g.b(k, j), chain);
  return chain;
}

// Element (i, j), given the sum of its chains: that is not finite where one of them is not, or was
// marked as far from sure to be.
__device__ __forceinline__ void store_sum(const Gemm& g, int64_t i, int64_t j, float sum) {
  if (g.as_one && !(fabsf(sum) <= FLT_MAX)) [[unlikely]]
    sum = chain_of(g, i, j, 0, g.k);
  g.store(i, j, sum);
}

// Adds up an element's chains, in order, and takes them through the epilogue. A thread asks for
// some of them before it adds.
__device__ __forceinline__ void add_chains(const ChainJob& job) {
  constexpr int kAhead = 16;
  const Gemm g = job.g.at(blockIdx.z);
  const int64_t e = static_cast<int64_t>(blockIdx.x) * kAddThreads + threadIdx.x;
  const int64_t i = e / g.n, j = e - i * g.n;
  if (i >= g.m) return;
  const float* from = job.sum(blockIdx.z, 0) + i * job.pitch + j;
  const int64_t step = g.m * job.pitch;
  float sum = -0.f;  // -0 + x is x
#pragma unroll 1
  for (int64_t s = 0; s < job.shares; s += kAhead) {
    float x[kAhead];
#pragma unroll
    for (int q = 0; q < kAhead; ++q, from += step) x[q] = s + q < job.shares ? *from : -0.f;
#pragma unroll
    for (int q = 0; q < kAhead; ++q) sum += x[q];
  }
  store_sum(g, i, j, sum);
}

// `kernel` for all chains, then `add`, which calls add_chains, where they have been left in the
// workspace. config: of the first, but for the matrices along grid.z.
template <class Job>
void launch_chains(void (*kernel)(Job), LaunchConfig config, void (*add)(Job), Job job,
                   const Context& context) {
  const Gemm g = job.g;
  const int64_t adders = ceil_div(g.m * g.n, kAddThreads);
  if (job.sums && adders > kMaxGridX)
    throw std::invalid_argument("xgemm: more than 2^31 - 1 blocks to add up chains");
  for (int64_t z = 0; z < g.batch; z += kMaxGridZ) {
    job.g = g.at(z);
    config.grid.z = static_cast<unsigned>(std::min(g.batch - z, kMaxGridZ));
    launch(kernel, config, context, job);
    if (job.sums)
      launch(add,
             {.grid = dim3(static_cast<unsigned>(adders), 1, config.grid.z),
              .block = dim3(kAddThreads),
              .dependent = may_depend(context.device)},
             context, job);
  }
}

// Element (i, j), its chains made one after another by one thread: the same bits.
__device__ __forceinline__ void chains_in_turn(const Gemm& g, int64_t i, int64_t j) {
  if (i >= g.m || j >= g.n) return;
  const int64_t share = chain_count(g) > 1 ? g.share : g.k;
  float sum = -0.f;
  int64_t k = 0;
  do {
    sum += chain_of(g, i, j, k, min_of(k + share, g.k));
    k += share;
  } while (k < g.k);
  g.store(i, j, sum);
}

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
