// What tests and users set and ask: settings, the sites that have run, a stage under watch.
#include <cstring>
#include <mutex>
#include <set>

#include "emulator/machine.h"
#include "emulator/simt_control.h"
#include "xgemm/dispatch/overrides.h"
#include "xgemm/dispatch/select.h"
#include "xgemm/emulation/recompute_counter.h"

namespace xgemm::simt {
namespace {

std::mutex control;
Settings current;

std::set<std::pair<std::string, Sync>> seen;   // places, as sites() tells them
std::set<std::string> known;  // places, never forgotten

// What a stage may touch. Without a result to compute it packs B.
std::vector<Operand> operands(const Stage& stage, const Gemm& g, const Context& context) {
  std::vector<Operand> all;
  const bool packs = g.m == 0;
  if (context.packed_b) {
    const auto floats = static_cast<int64_t>(stage.packed_bytes(g) / 4);
    all.emplace_back("packed B", context.packed_b, packs, std::vector<Operand::Axis>{{1, floats}});
  }
  if (context.half_a) {
    // In floats, as all that is watched: whole ones that hold a row's elements.
    const auto first = reinterpret_cast<uintptr_t>(context.half_a.data) / 2 % 2;
    const int64_t rs = context.half_a.rs, odd = static_cast<int64_t>(first);
    const auto rows = [&] {
      using Axes = std::vector<Operand::Axis>;
      const auto floats = [](int64_t halves) { return (halves + 1) / 2; };
      return rs % 2 ? Axes{{1, floats(odd + (g.m - 1) * rs + g.k)}}
                    : Axes{{rs / 2, g.m}, {1, floats(odd + g.k)}};
    };
    all.emplace_back("A", context.half_a.data - odd, false, rows());
  } else if (!packs)
    all.emplace_back("A", g.a.data, false,
                     std::vector<Operand::Axis>{{g.a.bs, g.batch}, {g.a.rs, g.m}, {g.a.cs, g.k}});
  all.emplace_back("B", g.b.data, false,
                   std::vector<Operand::Axis>{{g.b.bs, g.batch}, {g.b.rs, g.k}, {g.b.cs, g.n}});
  if (g.beta != 0.f)
    all.emplace_back("C", g.c.data, false,
                     std::vector<Operand::Axis>{{g.c.bs, g.batch}, {g.c.rs, g.m}, {g.c.cs, g.n}});
  if (!packs)
    all.emplace_back("D", g.d.data, true,
                     std::vector<Operand::Axis>{{g.d.bs, g.batch}, {g.d.rs, g.m}, {g.d.cs, g.n}});
  if (context.row_sums)
    all.emplace_back("the sums of A's rows", context.row_sums, true,
                     std::vector<Operand::Axis>{{1, g.m}});
  if (context.groups)
    all.emplace_back("the ends of groups", const_cast<int32_t*>(context.groups.ends), false,
                     std::vector<Operand::Axis>{{1, g.batch}});
  if (context.recomputed)
    all.emplace_back("the count of units made anew", context.recomputed, true,
                     std::vector<Operand::Axis>{{1, 1}});
  const auto floats = static_cast<int64_t>(context.workspace_bytes / 4);
  if (floats)
    all.emplace_back("the workspace", context.workspace, true,
                     std::vector<Operand::Axis>{{1, floats}});
  return all;
}

// What a pass of attention may touch.
std::vector<Operand> operands(const Attention& a, bool backward, const Context& context) {
  std::vector<Operand> all;
  const auto heads = [&](const char* name, const auto& x, bool written, int64_t rows,
                         int64_t columns) {
    if (x.data)
      all.emplace_back(name, x.data, written,
                       std::vector<Operand::Axis>{
                           {x.bs, a.batch}, {x.hs, a.heads}, {x.rs, rows}, {x.cs, columns}});
  };
  heads("Q", a.q, false, a.queries, a.width);
  heads("K", a.k, false, a.keys, a.width);
  heads("V", a.v, false, a.keys, a.width);
  heads("the bias", a.bias, false, a.queries, a.keys);
  heads("the result", a.out, !backward, a.queries, a.width);
  const auto number = [&](const char* name, const int64_t* x) {
    if (x)
      all.emplace_back(name, const_cast<int64_t*>(x), false, std::vector<Operand::Axis>{{1, 2}});
  };
  number("the seed", a.dropout.seed_at), number("the offset", a.dropout.offset_at);
  all.emplace_back("the logarithms", a.lse, !backward,
                   std::vector<Operand::Axis>{{a.lse_stride, a.all_heads()}, {1, a.lse_stride}});
  if (backward) {
    heads("dO", a.grad, false, a.queries, a.width);
    heads("dQ", a.dq, true, a.queries, a.width);
    heads("dK", a.dk, true, a.keys, a.width);
    heads("dV", a.dv, true, a.keys, a.width);
  }
  all.emplace_back(
      "the workspace", context.workspace, true,
      std::vector<Operand::Axis>{{1, static_cast<int64_t>(context.workspace_bytes / 4)}});
  return all;
}

// With a workspace of NaNs of the context's size, which `operands` may name.
template <class Operands, class Launches>
void watch(Context context, const Operands& operands, const Launches& launches) {
  // As aligned as an allocator of device memory guarantees: sectors count from there.
  struct alignas(512) Chunk {
    char bytes[512];
  };
  Chunk nan;
  std::memset(&nan, 0xff, sizeof nan);
  std::vector<Chunk> workspace((context.workspace_bytes + sizeof(Chunk) - 1) / sizeof(Chunk), nan);
  context.workspace = workspace.data();
  std::vector<Operand>& watched = machine().operands;
  watched = operands(context);
  machine().launches = 0;
  try {
    launches(context);
  } catch (...) {
    watched.clear();
    throw;
  }
  watched.clear();
}

void watch(void (*launches)(const Gemm&, const Context&), const Stage& stage, const Gemm& g,
           Context context) {
  context.workspace_bytes = workspace_of(stage, g, context);
  watch(
      context, [&](const Context& its) { return operands(stage, g, its); },
      [&](const Context& its) { launches(g, its); });
}

}  // namespace

void run_watched(const Stage& stage, const Gemm& g, void* packed_b, float* row_sums,
                 const Groups& groups, const HalfOperand& half_a, bool invariant) {
  const Device device{.sm_count = settings().sm_count};
  require(stage, g, device);
  int row = forced_row(stage, device);
  if (row < 0)
    row = invariant ? stage.invariant_row(g, device) : Selector({&stage, 1}).row(stage, g, device);
  watch(stage.run, stage, g,
        {.device = device,
         .row = row,
         .slab_bytes = slab_bytes_of_all(),
         .packed_b = packed_b,
         .row_sums = row_sums,
         .groups = groups,
         .half_a = half_a,
         .invariant = invariant,
         .recomputed = recompute_counter(kHostCounter)});
}

void pack_watched(const Stage& stage, const Gemm& g, void* packed_b) {
  require(stage, g, {});
  watch(stage.pack, stage, g, {.packed_b = packed_b});
}

void attend_watched(const Attention& a, bool backward) {
  const AttentionKernels* const kernels = attention_kernels(Flavour::host);
  if (!kernels) throw std::runtime_error("simt: this build has no attention");
  const AttentionKernels::Pass& pass = backward ? kernels->backward : kernels->forward;
  watch(
      {.device = {.sm_count = settings().sm_count}, .workspace_bytes = pass.workspace(a)},
      [&](const Context& its) { return operands(a, backward, its); },
      [&](const Context& its) { pass.run(a, its); });
}

Settings settings() {
  std::lock_guard<std::mutex> lock(control);
  return current;
}

void configure(const Settings& s) {
  std::lock_guard<std::mutex> lock(control);
  current = s;
  set_overrides({.row = s.row, .split_k_size = s.split_k_size, .slab_bytes = s.slab_bytes});
}

void add_site(Sync kind, const Site& site) {
  std::lock_guard<std::mutex> lock(control);
  seen.emplace(place(site), kind);
  known.insert(place(site));
}

std::vector<SyncSite> sites() {
  std::lock_guard<std::mutex> lock(control);
  std::vector<SyncSite> all;
  for (const auto& [place, kind] : seen) all.push_back({kind, place});
  return all;
}

std::vector<std::string> known_places() {
  std::lock_guard<std::mutex> lock(control);
  return {known.begin(), known.end()};
}

void forget_sites() {
  std::lock_guard<std::mutex> lock(control);
  seen.clear();
}

}  // namespace xgemm::simt
