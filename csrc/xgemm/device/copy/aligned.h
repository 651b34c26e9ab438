// Aligned copies: an operand whose rows do not begin at multiples of 16 bytes (odd sizes, views at
// odd offsets) is copied once to rows that do, ahead of the product. TMA takes no stride that is no
// multiple of 16 bytes, cp.async moves 4 bytes at a time there, and rows along k straddle sectors:
// on an H200 a product of 1023^3 took 73 us, where one of 1024^3 took 53 to 56.
#pragma once

#include "xgemm/core/workspace.h"
#include "xgemm/device/launch.h"
#include "xgemm/device/ptx/base.h"

namespace xgemm {
inline namespace XGEMM_FLAVOUR {

// What is copied of a product's operands.
struct CopyChoice {
  bool a = false, b = false;
};

// Of the operands of which a copy would help, those that are worth it, by a model of a
// multiprocessor's nanoseconds, whatever the stage. It makes 110 products in one where sizes are
// about 1000 (29 of 60 TFLOP/s on an H200), and an aligned operand saves it an eighth of its time;
// it copies four elements in one (32 bytes: 4.2 TB/s in all). An operand for which L2 has no room
// counts three times: DRAM copies it at 3 TB/s, and large products lose half as much (9% at
// 4095^3). So D's other side must be at least 220 long, or 660. The launch takes 2 us.
inline CopyChoice choose_copies(const Gemm& g, const CopyChoice& helps, int sm_count) {
  constexpr double kProducts = 110. * 8., kElements = 4., kInL2 = 1 << 22, kLaunch = 2000.;
  const auto number = [](int64_t x) { return static_cast<double>(x); };
  const double batch = number(g.batch), saved = number(g.m) * number(g.n) * number(g.k) * batch;
  const auto gain = [&](int64_t rows, const View<const float>& v) {
    const double elements = number(rows) * number(g.k) * (v.bs ? batch : 1.);
    return saved / kProducts - elements / kElements * (elements > kInL2 ? 3. : 1.);
  };
  const double of_a = helps.a ? gain(g.m, g.a) : 0., of_b = helps.b ? gain(g.n, g.b) : 0.;
  if (std::max(of_a, 0.) + std::max(of_b, 0.) <= kLaunch * sm_count) return {};
  return {of_a > 0., of_b > 0.};
}

// An operand's lines, along which it is contiguous, and the place of their copies.
struct CopyJob {
  View<const float> from;  // line after line
  int64_t lines = 0, length = 0;  // of a matrix; a line's
  int64_t pitch = 0;  // from line to line of the copy
  int64_t matrices = 1;  // one where all are the same
  float* to = nullptr;
  int64_t blocks = 0;
};

// A warp copies a run of 32 floats at a time and has so many of them under way. The copy's lines
// are runs, too: whole lines of 128 bytes, so that neither way of reading it straddles any.
constexpr int kCopyThreads = 256, kCopyRun = 32, kCopyRuns = 8;
constexpr int kCopyBlock = kCopyThreads / 32 * kCopyRuns;  // runs of a block

// Runs are loaded and stored 4 bytes a lane: their loads touch five sectors in place of
// four, and no thread has an edge of its own.
template <int kThreads>
__global__ void __launch_bounds__(kThreads) copy_aligned(const CopyJob a, const CopyJob b) {
  take_turn();
  const bool first = blockIdx.x < a.blocks;
  const CopyJob job = first ? a : b;
  const int64_t block = first ? blockIdx.x : blockIdx.x - a.blocks;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t in_line = job.pitch / kCopyRun, begin = block * kCopyBlock + warp * kCopyRuns;
  const auto quotient = [](int64_t x, int64_t by) {
    return (x | by) >> 32 ? x / by : static_cast<uint32_t>(x) / static_cast<uint32_t>(by);
  };
  const int64_t line = quotient(begin, in_line), z = quotient(line, job.lines);
  int64_t l = line - z * job.lines, at = (begin - line * in_line) * kCopyRun + lane;
  const int64_t left = job.lines * job.matrices * in_line - begin;  // runs
  const float* from = job.from.data + z * job.from.bs + l * job.from.rs;
  float x[kCopyRuns];
#pragma unroll
  for (int r = 0; r < kCopyRuns; ++r) {
    x[r] = r < left && at < job.length ? from[at] : 0.f;
    at += kCopyRun;
    if (at < job.pitch) continue;
    at = lane, from += job.from.rs;
    if (++l == job.lines) l = 0, from += job.from.bs - job.lines * job.from.rs;
  }
  float* const to = job.to + begin * kCopyRun + lane;
#pragma unroll
  for (int r = 0; r < kCopyRuns; ++r)
    if (r < left) to[r * kCopyRun] = x[r];
}

// The copies that a product is worth, and the product of what they give.
struct AlignedCopies {
  Gemm g;
  CopyJob a, b;
  size_t bytes = 0;  // of workspace, from its beginning on
};

inline AlignedCopies plan_aligned_copies(const Gemm& g, const Context& context) {
  AlignedCopies plan{.g = g};
  const View<const float> rows[] = {g.a, g.b.transposed()};
  const int64_t counts[] = {g.m, g.n};
  CopyJob jobs[2];
  bool along[2], helps[2];
  for (int i = 0; i < 2; ++i) {
    along[i] = along_k(rows[i], counts[i], g.k);
    CopyJob& job = jobs[i];
    job.from = along[i] ? rows[i] : rows[i].transposed();
    job.lines = along[i] ? counts[i] : g.k, job.length = along[i] ? g.k : counts[i];
    job.pitch = ceil_div(job.length, kCopyRun) * kCopyRun;
    job.matrices = rows[i].bs ? g.batch : 1;
    const double floats = static_cast<double>(job.lines) * static_cast<double>(job.pitch) *
                          static_cast<double>(job.matrices);
    helps[i] = job.from.cs == 1 && !job.from.wide() && job.from.rs >= job.length &&
               floats < static_cast<double>(int64_t{1} << 40);  // matrices may be one in memory
  }
  const CopyChoice chosen = choose_copies(g, {helps[0], helps[1]}, context.device.sm_count);
  Layout layout{context.workspace};
  const auto place = [&](CopyJob& job, bool rows_along_k) {
    const int64_t floats = job.lines * job.pitch, all = job.matrices * floats;
    job.blocks = ceil_div(all / kCopyRun, kCopyBlock);
    job.to = static_cast<float*>(layout.place(static_cast<size_t>(all) * sizeof(float)));
    const View<const float> copy{job.to, job.pitch, 1, job.matrices > 1 ? floats : 0};
    return rows_along_k ? copy : copy.transposed();
  };
  if (chosen.a) plan.g.a = place(plan.a = jobs[0], along[0]);
  if (chosen.b) plan.g.b = place(plan.b = jobs[1], along[1]).transposed();
  plan.bytes = layout.bytes;
  if (plan.a.blocks + plan.b.blocks > kMaxGridX) return {.g = g};
  return plan;
}

// Bytes of workspace that run_aligned takes, besides the stage's own.
inline size_t aligned_bytes(const Gemm& g, const Context& context) {
  return plan_aligned_copies(g, context).bytes;
}

// run(g, context), of copies where they are worth it; the workspace behind them is the stage's own.
template <class Run>
void run_aligned(const Run& run, const Gemm& g, const Context& context) {
  const AlignedCopies plan = plan_aligned_copies(g, context);
  if (plan.bytes == 0 || plan.bytes > context.workspace_bytes) return run(g, context);
  launch(copy_aligned<kCopyThreads>,
         {.grid = dim3(static_cast<unsigned>(plan.a.blocks + plan.b.blocks)),
          .block = dim3(kCopyThreads),
          .dependent = may_depend(context.device)},
         context, plan.a, plan.b);
  Context rest = context;
  rest.workspace = static_cast<char*>(context.workspace) + plan.bytes;
  rest.workspace_bytes -= plan.bytes;
  run(plan.g, rest);
}

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
