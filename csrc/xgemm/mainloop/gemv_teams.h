// Which warps make the chains of few rows where each has a ring of its own: all warps of a group of
// columns in one block, if that leaves no multiprocessor without work; else in a cluster.
#pragma once

#include "xgemm/epilogue/cluster_reduce.h"
#include "xgemm/mainloop/gemv_plan.h"

namespace xgemm {
inline namespace XGEMM_FLAVOUR {

constexpr int kTeamWarps = 12;  // of a block at most

// Warps of a block: where a group has few, several groups are side by side.
inline int block_warps(const GemvJob& job) { return job.warps <= 2 ? 4 : job.warps; }

// Of `groups` of columns, with so many chains each at a time in a warp at most. What counts is how
// many chains the multiprocessor makes that makes most. Clusters of more than two leave some of
// them empty, and those that must wait for others' places cost a round of all: twice the time.
inline GemvPlan plan_teams(const Gemm& g, int64_t groups, int64_t most_chains, const Device& device,
                           void* workspace) {
  GemvPlan plan{.job = {{.g = g}}};
  GemvJob& job = plan.job;
  const int64_t splits = job.split_k_slices = split_k_slices(g);
  constexpr int64_t kNone = INT64_MAX;
  int64_t least = kNone;
  for (int64_t blocks = 1; blocks <= (may_depend(device) ? kClusterSlices : 1); blocks *= 2) {
    const int64_t each = ceil_div(splits, kTeamWarps * blocks);
    const int64_t warps = ceil_div(splits, each * blocks), room = cluster_room(blocks);
    const bool at_once = groups * blocks <= room * (kTeamWarps / warps);
    const int64_t load = ceil_div(groups * blocks, room) * warps * each;
    if (each > most_chains || load >= least || (blocks > 1 && !at_once)) continue;
    if (ceil_div(splits, each * warps) < blocks) continue;  // some would be idle
    least = load;
    job.warps = static_cast<int>(warps), job.blocks = blocks, job.each = each;
  }
  // A second launch costs less than a third of the multiprocessors.
  job.in_cluster = splits > 1 && least != kNone &&
                   (least <= kTeamWarps || least * kSms * 2 <= groups * splits * 3);
  if (splits == 1 || job.in_cluster) return plan;
  const ChainPlan chains = plan_chains(g, workspace);
  static_cast<ChainJob&>(job) = chains.job;
  plan.bytes = chains.bytes;
  job.warps = static_cast<int>(std::min<int64_t>(splits, 4)), job.each = 1;
  job.blocks = ceil_div(splits, job.warps);
  return plan;
}

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
