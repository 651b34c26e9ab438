// Products of an A of 16-bit floats (core/half_operand.h) by the main loop of emulated_wgmma.h. Its
// elements have 8 or 11 bits, which one fp16 limb holds: two products in place of three, half as
// many bytes of A's limbs, and no rounding of A. FP32 operations read floats: where some result is
// given or made anew, and only there, a launch behind the product copies A to floats first.
#pragma once

#include "xgemm/mainloop/emulated_wgmma.h"

namespace xgemm {
inline namespace XGEMM_FLAVOUR {

constexpr int kWidenThreads = 256;
// Blocks of the decomposition on an SM; a thread has 32 elements on their way, two in a register.
constexpr int kHalfBlocks = 4, kHalfItems = 4;

struct StagedMixedJob;

struct MixedJob : WgmmaJob {
  static constexpr bool kHalfA = true;
  using Staged = StagedMixedJob;
};
struct StagedMixedJob : MixedJob {
  static constexpr bool kStaged = true;
};

template <Half kFrom, int kThreads>
__global__ void __launch_bounds__(kDecomposeThreads, kHalfBlocks)
    decompose_half(const DecomposeRows<HalfFloat<kFrom>> job) {
  take_turn();
  decompose_along_k<one_limb(kFp16x2), kThreads, kHalfItems, false>(job, blockIdx.x);
}

// The rows of A as floats, 8 neighbours a thread at a time; rows of `to` are multiples of 8 long.
template <Half kFrom>
__global__ void __launch_bounds__(kWidenThreads)
    widen_half(const DecomposeRows<HalfFloat<kFrom>> job, float* to, uint32_t* worst) {
  take_turn();
  if (static_cast<Fate>(*worst) == Fate::stands) return;
  const bool wide = wide8(job.x);
  const int64_t of_row = ceil_div(job.k, 8), all = job.limbs.rows * of_row;
#pragma unroll 1
  for (int64_t n = blockIdx.x * int64_t{kWidenThreads} + threadIdx.x; n < all;
       n += int64_t{gridDim.x} * kWidenThreads) {
    const int64_t row = n / of_row, k = n % of_row * 8;
    Eight<HalfFloat<kFrom>> x;
    x.load(job.x.ptr(row, k), 1, static_cast<int>(min_of(job.k - k, 8)), wide);
    store4(to + n * 8, make_float4(x(0), x(1), x(2), x(3)));
    store4(to + n * 8 + 4, make_float4(x(4), x(5), x(6), x(7)));
  }
}

// The larger operand is cut where what is made of it is beyond Context::slab_bytes: a row of A has
// limbs of 2 and a copy of 4 bytes an element, a column of B limbs of 4.
struct MixedParts {
  bool of_b = false;
  int64_t each = 0, count = 1;  // rows or columns of a part

  Gemm part(const Gemm& g, int64_t p) const {
    Gemm its = g;
    const int64_t first = p * each;
    if (of_b) {
      its.n = std::min(each, g.n - first);
      its.b.data += first * g.b.cs, its.d.data += first * g.d.cs;
      if (g.beta != 0.f) its.c.data += first * g.c.cs;
    } else {
      its.m = std::min(each, g.m - first);
      its.d.data += first * g.d.rs;
      if (g.beta != 0.f) its.c.data += first * g.c.rs;
    }
    return its;
  }
};
inline MixedParts mixed_parts(const Gemm& g, const Context& context) {
  constexpr int kOfA = 6, kOfB = 4;
  const auto of_row = [&](int bytes) {
    return static_cast<size_t>(slices_of(g.k) * kSliceK * bytes);
  };
  MixedParts r{.of_b = times(of_row(kOfB), static_cast<size_t>(g.n)) >
                       times(of_row(kOfA), static_cast<size_t>(g.m))};
  const int64_t all = r.of_b ? g.n : g.m;
  const auto most = static_cast<int64_t>(context.slab_bytes / of_row(r.of_b ? kOfB : kOfA));
  r.each = std::max<int64_t>(1, std::min(all, std::max(most / kSlabRows, int64_t{1}) * kSlabRows));
  r.count = ceil_div(all, r.each);
  return r;
}

// Where everything is, in a workspace. What all parts share is first.
struct MixedPlan {
  DecomposePlan limbs;
  float* a = nullptr;  // A as floats, rows of so many
  int64_t a_row = 0;
  WgmmaRoom room;
};
template <Tile T>
MixedPlan plan_mixed(const Gemm& g, bool of_b, const Context& context) {
  MixedPlan plan;
  Layout all{context.workspace};
  plan.a_row = ceil_div(g.k, 8) * 8;
  const auto place_a = [&] {
    plan.limbs.a = place_limbs(all, g.m, 1, g.k, one_limb(kFp16x2).limbs);
    plan.a = static_cast<float*>(all.place(
        times(static_cast<size_t>(g.m), static_cast<size_t>(plan.a_row) * sizeof(float))));
  };
  if (of_b) place_a();
  plan.limbs.b = place_limbs(all, g.n, 1, g.k, kFp16x2.limbs);
  if (!of_b) place_a();
  plan.limbs.bytes = all.bytes;
  Gemm its = g;
  its.a = {plan.a, plan.a_row, 1, 0};
  plan.room = plan_room(T, its, plan.limbs, context);
  return plan;
}

template <Tile T>
size_t mixed_workspace(const Gemm& g, const Context& context) {
  const MixedParts parts = mixed_parts(g, context);
  return std::max(plan_mixed<T>(parts.part(g, 0), parts.of_b, context).room.bytes,
                  plan_mixed<T>(parts.part(g, parts.count - 1), parts.of_b, context).room.bytes);
}

// Decompositions, product, copy and what is made anew, of each part.
template <Half kFrom, int kDecomposeCluster, Tile T>
void run_mixed_of(const Gemm& all, const Context& context) {
  const HalfOperand& a = context.half_a;
  const MixedParts parts = mixed_parts(all, context);
  for (int64_t p = 0; p < parts.count; ++p) {
    MixedPlan plan = plan_mixed<T>(parts.part(all, p), parts.of_b, context);
    const Gemm& g = plan.room.job.g;
    const int64_t first = parts.of_b ? 0 : p * parts.each;
    const DecomposeRows<HalfFloat<kFrom>> rows{
        .x = {reinterpret_cast<const HalfFloat<kFrom>*>(a.data + first * a.rs), a.rs, 1, 0},
        .k = g.k,
        .limbs = plan.limbs.a,
        .along_k = true};
    if (p == 0 || !parts.of_b) {
      const auto decompose_a = [&]<int kThreads>() {
        const int64_t blocks = ceil_div(g.m, kDecomposeThreads / kThreads);
        launch(decompose_half<kFrom, kThreads>,
               {.grid = dim3(static_cast<unsigned>(blocks)),
                .block = dim3(kDecomposeThreads),
                .dependent = true},
               context, rows);
      };
      if (g.k <= 1024) decompose_a.template operator()<32>();
      else if (g.k <= 2048) decompose_a.template operator()<64>();
      else if (g.k <= 4096) decompose_a.template operator()<128>();
      else decompose_a.template operator()<kDecomposeThreads>();
    }
    plan.limbs.a_is_kept = true, plan.limbs.b_is_kept = p > 0 && !parts.of_b;
    decompose<kFp16x3, kDecomposeCluster>(g, plan.limbs, context, plan.room.clear);
    launch_wgmma<kFp16x2, T, MixedJob>(g, plan.limbs, plan.room, context);
    const int64_t chunks = ceil_div(g.m * (plan.a_row / 8), kWidenThreads);
    launch(widen_half<kFrom>,
           {.grid = dim3(static_cast<unsigned>(
                std::min<int64_t>(chunks, int64_t{4} * context.device.sm_count))),
            .block = dim3(kWidenThreads),
            .dependent = true},
           context, rows, plan.a, plan.room.job.map.worst);
    launch_recompute<T.BN>(plan.room.job, context);
  }
}

template <int kDecomposeCluster, Tile T>
void run_mixed(const Gemm& g, const Context& context) {
  if (context.half_a.bf16) run_mixed_of<Half::bf16, kDecomposeCluster, T>(g, context);
  else run_mixed_of<Half::fp16, kDecomposeCluster, T>(g, context);
}

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
