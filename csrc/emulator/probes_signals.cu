// Probes of signals between the blocks of a grid: each sums up a share of k, and one of them adds
// what the others have left in the workspace. And of a launch that waits for the one before it.
#include <stdexcept>
#include <vector>

#include "emulator/probes.h"
#include "xgemm/device/launch.h"
#include "xgemm/device/ptx/base.h"

namespace xgemm {
namespace {

// More than ever take turns.
constexpr int kBlocks = 6;

enum class Fault {
  none,
  no_signal,
  no_wait,
  no_barrier_before_signal,
  no_barrier_after_wait,
  wait_for_too_many,
  wait_for_later_blocks,
  not_cleared,
  in_any_order,
  no_launch_wait,
  no_barrier_after_launch_wait
};

struct Meeting {
  uint32_t* flag;
  float* sums;  // [block][column]
};

__global__ void clear(const Meeting at) {
  if (threadIdx.x == 0) *at.flag = 0;
}

__global__ void look(const Meeting at) {
  if (threadIdx.x == 0) at.sums[0] = static_cast<float>(*at.flag);
}
__global__ void nothing(const Meeting) {}

template <Fault kFault>
__global__ void add_up(const Gemm g, const Meeting at) {
  constexpr auto is = [](Fault f) { return kFault == f; };
  constexpr int kOwner = is(Fault::wait_for_later_blocks) ? 0 : kBlocks - 1;
  const int t = threadIdx.x, block = blockIdx.x;
  float sum = 0.f;
  for (int64_t k = block; k < g.k; k += kBlocks) sum += g.a(0, k) * g.b(k, t);
  if (block != kOwner) {
    at.sums[block * g.n + t] = sum;
    if (!is(Fault::no_barrier_before_signal)) __syncthreads();
    if (t == 0 && !is(Fault::no_signal)) signal(at.flag);
    return;
  }
  if (t == 0 && !is(Fault::no_wait))
    wait_for_signals(at.flag, is(Fault::wait_for_too_many) ? kBlocks : kBlocks - 1);
  if (!is(Fault::no_barrier_after_wait)) __syncthreads();
  for (int other = 0; other < kBlocks; ++other)
    if (other != kOwner) sum += at.sums[other * g.n + t];
  g.store(0, t, sum);
}

// Adds what `clear` has left to one block's product; one thread waits for all.
template <Fault kFault>
__global__ void add_cleared(const Gemm g, const Meeting at) {
  if (blockIdx.x > 0) return;
  const int t = threadIdx.x;
  if (t == 0 && kFault != Fault::no_launch_wait) wait_for_launch_before();
  if (kFault != Fault::no_barrier_after_launch_wait) __syncthreads();
  auto sum = static_cast<float>(*at.flag);
  for (int64_t k = 0; k < g.k; ++k) sum += g.a(0, k) * g.b(k, t);
  g.store(0, t, sum);
}

// Without a wait for the launch before, which reads the flag.
__global__ void signal_early(const Gemm, const Meeting at) {
  if (threadIdx.x == 0) signal(at.flag);
}

struct SignalProbe {
  const char* name;
  void (*kernel)(Gemm, Meeting);
  bool faulty = true, clears = true, in_order = true, dependent = false;
  void (*between)(Meeting) = nullptr;  // one launch more
};

constexpr SignalProbe kProbes[] = {
    {"signals", add_up<Fault::none>, false},
    {"missing_signal", add_up<Fault::no_signal>},
    {"missing_signal_wait", add_up<Fault::no_wait>},
    {"missing_barrier_before_signal", add_up<Fault::no_barrier_before_signal>},
    {"missing_barrier_after_signal_wait", add_up<Fault::no_barrier_after_wait>},
    {"wait_for_too_many_signals", add_up<Fault::wait_for_too_many>},
    {"wait_for_later_blocks", add_up<Fault::wait_for_later_blocks>},
    {"flag_not_cleared", add_up<Fault::not_cleared>, true, false},
    {"signals_in_any_order", add_up<Fault::in_any_order>, true, true, false},
    {"dependent_launch", add_cleared<Fault::none>, false, true, false, true},
    {"missing_launch_wait", add_cleared<Fault::no_launch_wait>, true, true, false, true},
    {"launch_wait_unseen", add_cleared<Fault::no_barrier_after_launch_wait>, true, true, false,
     true},
    {"first_launch_without_wait", add_cleared<Fault::no_launch_wait>, true, false, false, true},
    {"early_signal", signal_early, true, true, true, true, look},
    {"launch_between", add_cleared<Fault::no_launch_wait>, false, true, false, true, nothing},
};

const SignalProbe* probe_to_run;

void run_signals(const Gemm& g, const Context& context) {
  auto* const flag = static_cast<uint32_t*>(context.workspace);
  const Meeting at{flag, reinterpret_cast<float*>(flag + 32)};
  const LaunchConfig config{.grid = dim3(kBlocks),
                            .block = dim3(static_cast<unsigned>(g.n)),
                            .dependent = probe_to_run->dependent,
                            .in_order = probe_to_run->in_order};
  if (probe_to_run->clears) launch(clear, {.grid = dim3(1), .block = dim3(32)}, context, at);
  if (probe_to_run->between)
    launch(probe_to_run->between, {.grid = dim3(1), .block = dim3(32)}, context, at);
  launch(probe_to_run->kernel, config, context, Gemm(g), at);
}

}  // namespace

namespace simt {

std::vector<ProbeName> signal_probes() {
  std::vector<ProbeName> names;
  for (const SignalProbe& p : kProbes) names.push_back({p.name, p.faulty});
  return names;
}

bool run_signal_probe(const std::string& name) {
  for (const SignalProbe& p : kProbes) {
    if (name != p.name) continue;
    Gemm g;
    g.m = 1, g.n = kThreads, g.k = 5 * kBlocks - 2;
    std::vector<float> a(static_cast<size_t>(g.k)), b(static_cast<size_t>(g.k * g.n)),
        d(static_cast<size_t>(g.n));
    for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(i * i % 13) - 6.f;
    for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(i * i % 17) - 8.f;
    g.a = {a.data(), g.k, 1, 0};
    g.b = {b.data(), g.n, 1, 0};
    g.d = {d.data(), g.n, 1, 0};
    probe_to_run = &p;
    Stage stage;
    stage.name = "probe";
    stage.workspace = [](const Gemm& x, const Context&) {
      return sizeof(float) * static_cast<size_t>(32 + kBlocks * x.n);
    };
    stage.run = run_signals;
    run_watched(stage, g);
    for (int64_t j = 0; j < g.n; ++j) {
      float want = 0;
      for (int64_t k = 0; k < g.k; ++k) want += g.a(0, k) * g.b(k, j);
      if (g.d(0, j) != want) throw std::logic_error("the probe " + name + " is wrong");
    }
    return true;
  }
  return false;
}

}  // namespace simt
}  // namespace xgemm
