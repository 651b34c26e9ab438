// Who makes which chains of a product with few rows, and where they meet: in the shared memory of a
// cluster, which has all the warps of a group of columns, or, where there are too many chains for
// that, in the workspace.
#pragma once

#include "xgemm/device/ptx/cluster.h"
#include "xgemm/epilogue/split_k_chains.h"
#include "xgemm/mainloop/gemv.h"

namespace xgemm {
inline namespace XGEMM_FLAVOUR {

constexpr int kMostChains = 8;  // of a warp that leaves them in shared memory
constexpr int kMostGemvBlocks = 8;  // of a cluster

struct GemvJob : ChainJob {
  int warps = 1;  // of a block, for each of its groups of columns
  int64_t blocks = 1;  // that share a group's chains: a cluster, if they meet there
  int64_t each = 1;  // chains of a warp
  bool in_cluster = false;  // they stay in shared memory

  // Chain number `chain` of an element in matrix g, where it does not stay: into the workspace, or
  // past it where it is the only one.
  __device__ __forceinline__ void leave(const Gemm& g_z, int64_t chain, int64_t i, int64_t j,
                                        float x) const {
    if (!sums) return g_z.store(i, j, x);
    if (i < g.m && j < g.n) sum(blockIdx.z, chain)[i * pitch + j] = x;
  }
};

struct GemvPlan {
  GemvJob job;
  int side = 1;  // groups of a block
  size_t bytes = 0;
};

// `groups`: of columns, for tile t. Chains meet in shared memory where a cluster has room for two a
// warp; a warp makes as many as let all blocks run at a time. Groups are side by side in a block
// only where each multiprocessor has one such block at most: else few of them would be at work.
inline GemvPlan plan_gemv(const Gemm& all, const Tile& t, int64_t groups, const Device& device,
                          void* workspace) {
  const int warps = t.threads() / 32, most_blocks = may_depend(device) ? kMostGemvBlocks : 1;
  GemvPlan plan{.job = {{.g = rows_first(all)}}};
  GemvJob& job = plan.job;
  job.split_k_slices = split_k_slices(job.g);
  const int64_t room = int64_t{device.sm_count} * t.min_blocks * warps;  // for warps
  const auto team = [&] { return ceil_div(job.split_k_slices, job.each); };
  while (job.each < kMostChains && team() > 1 && groups * all.batch * team() > room) ++job.each;
  const int64_t least = ceil_div(job.split_k_slices, int64_t{warps} * most_blocks);
  job.in_cluster = job.split_k_slices > 1 && least <= 2;
  if (job.in_cluster) job.each = std::max(job.each, least);
  if (job.split_k_slices > 1 && !job.in_cluster) {
    const ChainPlan chains = plan_chains(job.g, workspace);
    static_cast<ChainJob&>(job) = chains.job;
    plan.bytes = chains.bytes;
    job.each = 1;
  }
  job.blocks = ceil_div(team(), warps);
  job.warps = static_cast<int>(ceil_div(team(), job.blocks));
  const int64_t side = ceil_div(groups * all.batch, device.sm_count);
  if (job.blocks == 1 && side * job.warps <= warps) plan.side = static_cast<int>(side);
  return plan;
}

// The warps that share a group of columns, in all blocks of a cluster; a block has one such group,
// or several with a warp or two each.
struct GemvTeam {
  unsigned group, walker;  // of the grid's, and which of the team's warps this one is
  int first;  // of the team's warps in a block
  int thread, threads;  // of the team's

  __device__ GemvTeam(const GemvJob& job, int warps) {
    const int warp = threadIdx.x / 32;
    const auto blocks = static_cast<unsigned>(job.blocks);
    first = warp / job.warps * job.warps;
    group = blockIdx.x / blocks * (warps / job.warps) + warp / job.warps;
    walker = blockIdx.x % blocks * job.warps + warp % job.warps;
    thread = static_cast<int>(walker * 32 + threadIdx.x % 32);
    threads = static_cast<int>(blocks * job.warps * 32);
  }

  // Groups of columns are innermost, so that neighbours read neighbouring memory.
  __device__ GemvPart part(const GemvJob& job, const Gemm& g, int rows, int columns) const {
    const auto across = static_cast<uint32_t>(ceil_div(g.n, columns));
    const int64_t chain = walker * job.each;
    return {.i0 = static_cast<int64_t>(group / across) * rows,
            .j0 = static_cast<int64_t>(group % across) * columns,
            .k0 = chain * g.split_k_size,
            .k1 = job.split_k_slices > 1 ? min_of((chain + job.each) * g.split_k_size, g.k) : g.k,
            .chain = chain};
  }

  // Adds up all chains of an element in order: at(warp, chain of the warp) is where a block has
  // one. Some are asked for before any is added, without a branch between, where each would be
  // waited for: a chain then took 0.13 us (H100).
  template <bool kOneBlock, class At>
  __device__ __forceinline__ float add(const GemvJob& job, bool& unsure, At at,
                                       simt::Site site) const {
    constexpr int kAhead = 16;
    float sum = -0.f;  // -0 + x is x
    int chain = 0, warp = 0;
    unsigned rank = 0;
#pragma unroll 1
    for (int64_t s = 0; s < job.split_k_slices; s += kAhead) {
      float x[kAhead];
#pragma unroll
      for (int q = 0; q < kAhead; ++q) {  // the last one again where there are no more
        const float* const from = at(first + warp, chain);
        x[q] = kOneBlock ? *from : load_from_block(from, rank, site);
        const bool more = s + q + 1 < job.split_k_slices, warp_ends = chain + 1 == job.each,
                   block_ends = warp_ends && warp + 1 == job.warps;
        chain = !more ? chain : warp_ends ? 0 : chain + 1;
        warp = !more ? warp : block_ends ? 0 : warp + warp_ends;
        rank += more && block_ends;
      }
#pragma unroll
      for (int q = 0; q < kAhead; ++q) {
        if (s + q >= job.split_k_slices) x[q] = -0.f;
        unsure |= is_unsure(x[q]), sum += x[q];
      }
    }
    return sum;
  }

  // Takes the team's elements into D, each by one of its threads: `at` is told the element's
  // number, too.
  template <int kRows, int kColumns, class At>
  __device__ __forceinline__ void store(const GemvJob& job, const Gemm& g, const GemvPart& part,
                                        At at, simt::Site site = simt::here()) const {
    if (part.i0 < g.m)
      for (int e = thread; e < kRows * kColumns; e += threads) {
        const int64_t i = part.i0 + e / kColumns, j = part.j0 + e % kColumns;
        if (i < g.m && j < g.n) {
          bool unsure = false;
          const auto of_e = [&](int warp, int chain) { return at(warp, chain, e); };
          const float sum = job.blocks == 1 ? add<true>(job, unsure, of_e, site)
                                            : add<false>(job, unsure, of_e, site);
          g.store(i, j, result_of(g, i, j, sum, unsure));
        }
      }
  }
};

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
