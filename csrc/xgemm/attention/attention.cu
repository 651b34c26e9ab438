// FP32 attention by tensor cores. A pass is a launch that makes limbs of all operands, one of the
// forward kernel or one each of the backward kernels, and one of what is made anew.
//
// arch: sm_90a

#include <cmath>

#include "xgemm/attention/backward.h"
#include "xgemm/attention/plain.h"

namespace xgemm::XGEMM_FLAVOUR {
namespace {

// What both passes decompose, and where.
struct Plan {
  Tiles q, k, v, grad;
  Stats stats;
  KeptBits kept;
  size_t bytes = 0;
};
Plan plan_tiles(const Attention& a, bool backward, void* workspace) {
  const int blocks = blocks_of(static_cast<int>(a.width));
  Layout all{workspace};
  Plan p;
  p.q = place_tiles(all, a.all_heads(), a.queries, blocks);
  p.k = place_tiles(all, a.all_heads(), a.seen(), blocks);
  p.v = place_tiles(all, a.all_heads(), a.seen(), blocks);
  if (backward) {
    p.grad = place_tiles(all, a.all_heads(), a.queries, blocks);
    p.stats = {.heads = a.all_heads(), .rows = a.queries};
    p.stats.data = static_cast<float*>(all.place(times(static_cast<size_t>(p.stats.heads * kStats),
                                                       static_cast<size_t>(p.stats.stride()) * 4)));
    if (a.dropout.on) {
      p.kept = {.key_tiles = static_cast<int>(p.k.tiles()),
                .query_tiles = static_cast<int>(p.q.tiles())};
      p.kept.data = static_cast<uint32_t*>(
          all.place(times(static_cast<size_t>(p.kept.words(a.all_heads())), sizeof(uint32_t))));
    }
  }
  p.bytes = all.bytes;
  return p;
}

// TMA's coordinates have 32 bits, and so have a head's rows and its tiles among all.
void require_size(const Attention& a) {
  const int64_t rows = std::max(a.queries, a.keys);
  if (rows > INT32_MAX - 1024 || a.all_heads() > INT32_MAX / 4 ||
      a.all_heads() * (4 * tiles_of(rows)) > kMaxGridX)
    throw std::invalid_argument("xgemm: attention has over 2^31 rows, heads or tiles");
}

dim3 grid_of(const Attention& a, int blocks) {
  return {static_cast<unsigned>(a.all_heads() * blocks)};
}

void decompose(const Attention& a, const Plan& p, bool backward, const Context& context) {
  TilesJobs jobs;
  jobs.add(job_of(a, a.q, p.q, a.queries));
  jobs.job[0].factor = std::copysign(1.f, a.scale);  // kernels have its size alone
  jobs.add(job_of(a, a.k, p.k, a.seen()));
  jobs.add(job_of(a, a.v, p.v, a.seen()));
  if (backward) {
    TilesJob grad = job_of(a, a.grad, p.grad, a.queries);
    grad.by_row = true;
    grad.out = {a.out.data, a.out.bs, a.out.hs, a.out.rs, a.out.cs};
    grad.out_vectors = in_vectors(grad.out, a.width);
    grad.lse = a.lse, grad.lse_stride = a.lse_stride;
    grad.stats = p.stats;
    jobs.add(grad);
  }
  if (p.q.blocks == 1) launch_tiles_of<1>(jobs, context);
  else launch_tiles_of<2>(jobs, context);
}

template <int kWidth>
void run_forward_of(const Attention& a, const Plan& p, const Context& context) {
  ForwardJob job{.q = map_of(p.q),
                 .k = map_of(p.k),
                 .v = map_of(p.v),
                 .undo_q = p.q.undo,
                 .undo_k = p.k.undo,
                 .undo_v = p.v.undo,
                 .a = a,
                 .base2 = std::fabs(a.scale) * kLog2E,
                 .query_tiles = static_cast<int>(p.q.tiles()),
                 .key_tiles = static_cast<int>(p.k.tiles()),
                 .whole_keys = static_cast<int>(whole_tiles_of(p.k.rows)),
                 .blocks = static_cast<int>(ceil_div(p.q.tiles(), kForwardGroups<kWidth>))};
  launch(a.bias.data ? attention_forward<kWidth, true> : attention_forward<kWidth, false>,
         {.grid = grid_of(a, job.blocks),
          .block = dim3(threads_for(kForwardGroups<kWidth>)),
          .smem = sizeof(ForwardRing<kWidth>),
          .dependent = may_depend(context.device)},
         context, job);
}

template <int kWidth, bool kBias>
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
                  .base2 = std::fabs(a.scale) * kLog2E,
                  .query_tiles = static_cast<int>(p.q.tiles()),
                  .key_tiles = static_cast<int>(p.k.tiles()),
                  .whole_queries = static_cast<int>(whole_tiles_of(p.q.rows)),
                  .whole_keys = static_cast<int>(whole_tiles_of(p.k.rows)),
                  .blocks = static_cast<int>(tiles_of(a.keys)),
                  .kept = p.kept};
  const auto enqueue = [&](void (*kernel)(BackwardJob), size_t smem) {
    launch(kernel,
           {.grid = grid_of(a, job.blocks),
            .block = dim3(threads_for(1)),
            .smem = smem,
            .dependent = may_depend(context.device)},
           context, job);
  };
  if constexpr (kWidth <= kTile) {
    enqueue(attention_keys<kWidth, kBias, true, true>, sizeof(KeysRing<kWidth>));
  } else {
    enqueue(attention_keys<kWidth, kBias, true, false>, sizeof(KeysRing<kWidth>));
    enqueue(attention_keys<kWidth, kBias, false, true>, sizeof(KeysRing<kWidth>));
  }
  job.blocks = static_cast<int>(ceil_div(p.q.tiles(), kQueriesGroups<kWidth>));
  launch(attention_queries<kWidth, kBias>,
         {.grid = grid_of(a, job.blocks),
          .block = dim3(threads_for(kQueriesGroups<kWidth>)),
          .smem = sizeof(QueriesRing<kWidth>),
          .dependent = may_depend(context.device)},
         context, job);
}

PlainJob plain_job(const Attention& a, const Plan& p) {
  return {.a = a, .q = p.q, .k = p.k, .v = p.v, .grad = p.grad, .stats = p.stats};
}

size_t forward_workspace(const Attention& a) { return plan_tiles(a, false, nullptr).bytes; }
void run_forward(const Attention& a, const Context& context) {
  const Plan p = plan_tiles(a, false, context.workspace);
  require_size(a);
  decompose(a, p, false, context);
  constexpr void (*widths[])(const Attention&, const Plan&, const Context&) = {
      run_forward_of<32>, run_forward_of<64>, run_forward_of<96>, run_forward_of<128>};
  widths[(a.width - 1) / 32](a, p, context);
  launch_plain(attention_plain_forward, plain_job(a, p), context);
}

size_t backward_workspace(const Attention& a) { return plan_tiles(a, true, nullptr).bytes; }
void run_backward(const Attention& a, const Context& context) {
  const Plan p = plan_tiles(a, true, context.workspace);
  require_size(a);
  decompose(a, p, true, context);
  constexpr void (*widths[][2])(const Attention&, const Plan&, const Context&) = {
      {run_backward_of<32, false>, run_backward_of<32, true>},
      {run_backward_of<64, false>, run_backward_of<64, true>},
      {run_backward_of<96, false>, run_backward_of<96, true>},
      {run_backward_of<128, false>, run_backward_of<128, true>}};
  widths[(a.width - 1) / 32][a.bias.data != nullptr](a, p, context);
  launch_plain(attention_plain_backward, plain_job(a, p), context);
}

const RegisterAttention registered(kFlavour, {.forward = {forward_workspace, run_forward},
                                              .backward = {backward_workspace, run_backward},
                                              .min_sm = 90,
                                              .max_sm = 90});

}  // namespace
}  // namespace xgemm::XGEMM_FLAVOUR
