// The strict product in several chains: where they are left, and how they are added up.
#pragma once

#include <algorithm>

#include "xgemm/core/split_k.h"
#include "xgemm/core/workspace.h"
#include "xgemm/device/copy/gmem.h"
#include "xgemm/device/half.h"
#include "xgemm/device/launch.h"
#include "xgemm/epilogue/chain.h"

namespace xgemm {
inline namespace XGEMM_FLAVOUR {

constexpr int kAddThreads = 128;

struct ChainJob {
  Gemm g;
  int64_t split_k_slices = 1;  // chains of an element
  int64_t pitch = 0;  // from row to row of the sums: a multiple of 4
  float* sums = nullptr;  // [matrix][slice][row][column]

  XGEMM_HD float* sum(int64_t z, int64_t s) const {
    return sums + (z * split_k_slices + s) * g.m * pitch;
  }
  // Slice s of K of matrix z as a problem of its own, whose result is that chain.
  XGEMM_HD Gemm split_k_slice(int64_t z, int64_t s) const {
    Gemm part = g.at(z);
    if (split_k_slices == 1) return part;
    const int64_t k = s * g.split_k_size;
    part.a.data += k * g.a.cs;
    part.b.data += k * g.b.rs;
    part.k = min_of(g.split_k_size, g.k - k);
    part.d = {sum(z, s), pitch, 1, 0};
    part.alpha = 1.f, part.beta = 0.f, part.act = Act::none;
    return part;
  }
};

inline ChainJob chain_job(const Gemm& g) {
  return {.g = g, .split_k_slices = split_k_slices(g), .pitch = ceil_div(g.n, 4) * 4};
}

// Gives sums a place in the workspace, where there are several of an element; its bytes.
inline size_t place_chains(ChainJob& job, void* workspace) {
  if (job.split_k_slices == 1) return 0;
  const int64_t matrices = std::min(job.g.batch, kMaxGridZ);
  Layout layout{workspace};
  job.sums = static_cast<float*>(layout.place(
      static_cast<size_t>(matrices * job.split_k_slices * job.g.m * job.pitch) * sizeof(float)));
  return layout.bytes;
}

struct ChainPlan {
  ChainJob job;
  size_t bytes = 0;
};

inline ChainPlan plan_chains(const Gemm& g, void* workspace) {
  ChainPlan plan{.job = chain_job(g)};
  plan.bytes = place_chains(plan.job, workspace);
  return plan;
}

// In place of a chain's sum that is not sure to be far from the end of FP32's range: a NaN that no
// arithmetic of a GPU makes. Where an operand's comes so far, as on a CPU, an element is made anew.
constexpr uint32_t kUnsure = 0x7fc0beefu;
__device__ __forceinline__ bool is_unsure(float x) { return float_to_bits(x) == kUnsure; }

// Of element (i, j), what the sum of its chains gives, of which some may be unsure.
__device__ __forceinline__ float result_of(const Gemm& g, int64_t i, int64_t j, float sum,
                                           bool unsure) {
  if (g.match_single_chain_overflow && unsure) [[unlikely]]
    return chain_of<16>(g, i, j, 0, g.k);
  return sum;
}

// The next of a thread's chains, kAhead of them or as many as are `left`, all asked for before any
// is added.
template <int kAhead, int kWidth>
__device__ __forceinline__ void add_some(float (&sum)[kWidth], bool (&unsure)[kWidth],
                                         const float*& from, int64_t step, int64_t left) {
  float x[kAhead][kWidth];
#pragma unroll
  for (int q = 0; q < kAhead; ++q, from += step) {
    if (q < left) {
      if constexpr (kWidth == 4) load4(x[q], from);
      else x[q][0] = *from;
    } else {
#pragma unroll
      for (float& each : x[q]) each = -0.f;
    }
  }
#pragma unroll
  for (int q = 0; q < kAhead; ++q)
#pragma unroll
    for (int w = 0; w < kWidth; ++w) unsure[w] |= is_unsure(x[q][w]), sum[w] += x[q][w];
}

// Adds up the chains of kWidth neighbours in a row, in order, and takes them through the epilogue.
// Four divide the columns. Each time that a thread asks takes an L2's latency, 0.7 us: many chains
// are asked for in large lots.
template <int kWidth>
__device__ __forceinline__ void add_chains(const ChainJob& job) {
  static_assert(kWidth == 1 || kWidth == 4);
  constexpr int kFew = kWidth == 1 ? 16 : 8, kMany = kWidth == 1 ? 64 : 8;
  const Gemm g = job.g.at(blockIdx.z);
  const int64_t e = static_cast<int64_t>(blockIdx.x) * kAddThreads + threadIdx.x;
  const int64_t in_row = g.n / kWidth;
  const int64_t i =
      (e | in_row) >> 32 ? e / in_row : static_cast<uint32_t>(e) / static_cast<uint32_t>(in_row);
  const int64_t j = (e - i * in_row) * kWidth;
  if (i >= g.m) return;
  const float* from = job.sum(blockIdx.z, 0) + i * job.pitch + j;
  const int64_t step = g.m * job.pitch;
  float sum[kWidth];
#pragma unroll
  for (float& each : sum) each = -0.f;  // -0 + x is x
  bool unsure[kWidth] = {};
  int64_t left = job.split_k_slices;
#pragma unroll 1
  for (; left > kFew; left -= kMany) add_some<kMany>(sum, unsure, from, step, left);
  if (left > 0) add_some<kFew>(sum, unsure, from, step, left);
#pragma unroll
  for (int w = 0; w < kWidth; ++w) sum[w] = result_of(g, i, j + w, sum[w], unsure[w]);
  if constexpr (kWidth == 4) store_row4(g, i, j, sum);
  else g.store(i, j, sum[0]);
}

// Of so many elements on, four a thread keep a GPU busy.
constexpr int64_t kWideSums = int64_t{1} << 17;

// `first`(job, matrices) launches what makes all chains of so many matrices; then `one` or `four`,
// which call add_chains, where those have been left in the workspace.
template <class Job, class First>
void launch_chains(const First& first, void (*one)(Job), void (*four)(Job), Job job,
                   const Context& context) {
  const Gemm g = job.g;
  const bool wide = g.n % 4 == 0 && g.m * g.n >= kWideSums;
  const int64_t adders = ceil_div(g.m * g.n / (wide ? 4 : 1), kAddThreads);
  if (job.sums && adders > kMaxGridX)
    throw std::invalid_argument("xgemm: more than 2^31 - 1 blocks to add up chains");
  for (int64_t z = 0; z < g.batch; z += kMaxGridZ) {
    job.g = g.at(z);
    job.g.batch = std::min(g.batch - z, kMaxGridZ);
    const auto matrices = static_cast<unsigned>(job.g.batch);
    first(job, matrices);
    if (job.sums)
      launch(wide ? four : one,
             {.grid = dim3(static_cast<unsigned>(adders), 1, matrices),
              .block = dim3(kAddThreads),
              .dependent = may_depend(context.device)},
             context, job);
  }
}

// Element (i, j), its chains made one after another by one thread: the same bits.
__device__ __forceinline__ void chains_in_turn(const Gemm& g, int64_t i, int64_t j) {
  if (i >= g.m || j >= g.n) return;
  const int64_t length = split_k_slices(g) > 1 ? g.split_k_size : g.k;
  float sum = -0.f;
  int64_t k = 0;
  do {
    sum += chain_of<16>(g, i, j, k, min_of(k + length, g.k));
    k += length;
  } while (k < g.k);
  g.store(i, j, sum);
}

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
