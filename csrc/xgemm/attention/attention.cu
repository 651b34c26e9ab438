// FP32 attention by tensor cores: limbs of all operands, one launch of the forward pass or two of
// the backward pass.
//
// arch: sm_90a

#include "xgemm/attention/backward.h"

namespace xgemm::XGEMM_FLAVOUR {
namespace {

// What both passes decompose, and where.
struct Plan {
  Tiles q, k, v, grad;
  Stats stats;
  size_t bytes = 0;
};
Plan plan_tiles(const Attention& a, bool backward, void* workspace) {
  const int blocks = a.width <= kTile ? 1 : 2;
  Layout all{workspace};
  Plan p;
  p.q = place_tiles(all, a.all_heads(), a.queries, blocks);
  p.k = place_tiles(all, a.all_heads(), a.keys, blocks);
  p.v = place_tiles(all, a.all_heads(), a.keys, blocks);
  if (backward) {
    p.grad = place_tiles(all, a.all_heads(), a.queries, blocks);
    p.stats.rows = p.q.rows();
    p.stats.data = static_cast<float*>(
        all.place(times(static_cast<size_t>(p.stats.rows), kStats * sizeof(float))));
  }
  p.bytes = all.bytes;
  return p;
}

// Rows are TMA's coordinates, of 32 bits.
void require_rows(const Plan& p) {
  if (p.q.rows() > INT32_MAX - 1024 || p.k.rows() > INT32_MAX - 1024)
    throw std::invalid_argument("xgemm: attention has over 2^31 rows in all");
}

dim3 grid_of(const Attention& a, int blocks) {
  if (a.all_heads() * blocks > kMaxGridX)
    throw std::invalid_argument("xgemm: attention has over 2^31 - 1 tiles");
  return {static_cast<unsigned>(a.all_heads() * blocks)};
}

void decompose(const Attention& a, const Plan& p, bool backward, const Context& context) {
  TilesJobs jobs;
  jobs.add(job_of(a, a.q, p.q, a.queries));
  jobs.add(job_of(a, a.k, p.k, a.keys));
  jobs.add(job_of(a, a.v, p.v, a.keys));
  if (backward) {
    TilesJob grad = job_of(a, a.grad, p.grad, a.queries);
    grad.by_row = true;
    grad.out = {a.out.data, a.out.bs, a.out.hs, a.out.rs, a.out.cs};
    grad.lse = a.lse, grad.lse_stride = a.lse_stride;
    grad.stats = p.stats;
    jobs.add(grad);
  }
  if (p.q.blocks == 1) launch_tiles_of<1>(jobs, context);
  else launch_tiles_of<2>(jobs, context);
}

template <int kBlocks>
void run_forward_of(const Attention& a, const Plan& p, const Context& context) {
  ForwardJob job{.q = map_of(p.q),
                 .k = map_of(p.k),
                 .v = map_of(p.v),
                 .undo_q = p.q.undo,
                 .undo_k = p.k.undo,
                 .undo_v = p.v.undo,
                 .a = a,
                 .query_tiles = static_cast<int>(p.q.tiles),
                 .key_tiles = static_cast<int>(p.k.tiles),
                 .blocks = static_cast<int>(ceil_div(p.q.tiles, kForwardGroups))};
  launch(attention_forward<kBlocks>,
         {.grid = grid_of(a, job.blocks),
          .block = dim3(threads_for(kForwardGroups)),
          .smem = sizeof(ForwardRing<kBlocks>),
          .dependent = may_depend(context.device)},
         context, job);
}

template <int kBlocks>
void run_backward_of(const Attention& a, const Plan& p, const Context& context) {
  BackwardJob job{.q = map_of(p.q),
                  .k = map_of(p.k),
                  .v = map_of(p.v),
                  .grad = map_of(p.grad),
                  .stats_map = map_of(p.stats),
                  .undo_q = p.q.undo,
                  .undo_k = p.k.undo,
                  .undo_v = p.v.undo,
                  .stats = p.stats,
                  .a = a,
                  .query_tiles = static_cast<int>(p.q.tiles),
                  .key_tiles = static_cast<int>(p.k.tiles),
                  .blocks = static_cast<int>(ceil_div(p.k.tiles, kBackwardGroups<kBlocks>))};
  const auto enqueue = [&](void (*kernel)(BackwardJob), size_t smem) {
    launch(kernel,
           {.grid = grid_of(a, job.blocks),
            .block = dim3(threads_for(kBackwardGroups<kBlocks>)),
            .smem = smem,
            .dependent = may_depend(context.device)},
           context, job);
  };
  if constexpr (kBlocks == 1) {
    enqueue(attention_keys<kBlocks, true, true>, sizeof(KeysRing<kBlocks>));
  } else {
    enqueue(attention_keys<kBlocks, true, false>, sizeof(KeysRing<kBlocks>));
    enqueue(attention_keys<kBlocks, false, true>, sizeof(KeysRing<kBlocks>));
  }
  job.blocks = static_cast<int>(ceil_div(p.q.tiles, kBackwardGroups<kBlocks>));
  enqueue(attention_queries<kBlocks>, sizeof(QueriesRing<kBlocks>));
}

size_t forward_workspace(const Attention& a) { return plan_tiles(a, false, nullptr).bytes; }
void run_forward(const Attention& a, const Context& context) {
  const Plan p = plan_tiles(a, false, context.workspace);
  require_rows(p);
  decompose(a, p, false, context);
  if (p.q.blocks == 1) run_forward_of<1>(a, p, context);
  else run_forward_of<2>(a, p, context);
}

size_t backward_workspace(const Attention& a) { return plan_tiles(a, true, nullptr).bytes; }
void run_backward(const Attention& a, const Context& context) {
  const Plan p = plan_tiles(a, true, context.workspace);
  require_rows(p);
  decompose(a, p, true, context);
  if (p.q.blocks == 1) run_backward_of<1>(a, p, context);
  else run_backward_of<2>(a, p, context);
}

const RegisterAttention registered(kFlavour, {.forward = {forward_workspace, run_forward},
                                              .backward = {backward_workspace, run_backward},
                                              .min_sm = 90,
                                              .max_sm = 90});

}  // namespace
}  // namespace xgemm::XGEMM_FLAVOUR
