// Probes of what the threads of a block do, and the way to run one. `python -m xgemm_torch` never
// does; tests and the curious do.
#include <stdexcept>
#include <vector>

#include "emulator/probes.h"
#include "xgemm/device/launch.h"
#include "xgemm/device/ptx/mbarrier.h"

namespace xgemm::simt {
namespace {

__global__ void race(const Gemm g) {
  XGEMM_SHARED(S, float[kThreads]);
  S[threadIdx.x] = g.a(0, threadIdx.x);
  g.store(0, threadIdx.x, S[kThreads - 1 - threadIdx.x]);
}

__global__ void race_of_writers(const Gemm g) {
  XGEMM_SHARED(S, float[kThreads]);
  S[threadIdx.x / 2] = g.a(0, threadIdx.x);
  __syncthreads();
  g.store(0, threadIdx.x, S[threadIdx.x / 2]);
}

__global__ void deadlock(const Gemm g) {
  XGEMM_SHARED(S, float[kThreads]);
  if (threadIdx.x >= 33) return;
  S[threadIdx.x] = g.a(0, threadIdx.x);
  __syncthreads();
  g.store(0, threadIdx.x, S[32 - threadIdx.x]);
}

__global__ void divergent_barrier(const Gemm g) {
  XGEMM_SHARED(S, float[kThreads]);
  S[threadIdx.x] = g.a(0, threadIdx.x);
  if (threadIdx.x < 32) __syncthreads();
  else __syncthreads();
  g.store(0, threadIdx.x, S[kThreads - 1 - threadIdx.x]);
}

__global__ void uninitialised(const Gemm g) {
  XGEMM_SHARED(S, float[kThreads]);
  if (threadIdx.x != 7) S[threadIdx.x] = g.a(0, threadIdx.x);
  __syncthreads();
  g.store(0, threadIdx.x, S[kThreads - 1 - threadIdx.x]);
}

__global__ void smem_out_of_bounds(const Gemm g) {
  XGEMM_SHARED(S, float[kThreads]);
  float* s = S;
  s[threadIdx.x + 1] = g.a(0, threadIdx.x);
  __syncthreads();
  g.store(0, threadIdx.x, s[threadIdx.x + 1]);
}

__global__ void dynamic_smem_too_small(const Gemm g) {
  XGEMM_SHARED_DYNAMIC(S, float[2 * kThreads]);
  S[threadIdx.x] = g.a(0, threadIdx.x);
  g.store(0, threadIdx.x, S[threadIdx.x]);
}

__global__ void gmem_out_of_bounds(const Gemm g) { g.store(0, threadIdx.x, g.a(1, threadIdx.x)); }

__global__ void gmem_between_rows(const Gemm g) {
  g.store(0, threadIdx.x, g.b.ptr(0, threadIdx.x)[1]);
}

__global__ void store_to_an_input(const Gemm g) { const_cast<float&>(g.a(0, threadIdx.x)) = 1.f; }

__global__ void two_blocks_one_tile(const Gemm g) { g.store(0, threadIdx.x, g.a(0, threadIdx.x)); }

__global__ void misaligned(const Gemm g) {
  XGEMM_SHARED(S, float[2 * kThreads]);
  S[threadIdx.x] = S[threadIdx.x + kThreads] = g.a(0, threadIdx.x);
  __syncthreads();
  g.store(0, threadIdx.x, load4(S + threadIdx.x).x);
}

__global__ void missing_wait(const Gemm g) {
  XGEMM_SHARED(S, float[kThreads]);
  cp_async<4>(&S[threadIdx.x], g.a.ptr(0, threadIdx.x));
  cp_async_commit();
  cp_async_wait<1>();
  __syncthreads();
  g.store(0, threadIdx.x, S[kThreads - 1 - threadIdx.x]);
  cp_async_wait<0>();
}

__global__ void missing_barrier_after_wait(const Gemm g) {
  XGEMM_SHARED(S, float[kThreads]);
  cp_async<4>(&S[threadIdx.x], g.a.ptr(0, threadIdx.x));
  cp_async_commit();
  cp_async_wait<0>();
  g.store(0, threadIdx.x, S[kThreads - 1 - threadIdx.x]);
}

__global__ void missing_commit(const Gemm g) {
  XGEMM_SHARED(S, float[kThreads]);
  copy_late(&S[threadIdx.x], g.a.ptr(0, threadIdx.x));
  cp_async_wait<0>();
  __syncthreads();
  g.store(0, threadIdx.x, S[kThreads - 1 - threadIdx.x]);
  cp_async_commit();
  cp_async_wait<0>();
}

// The thread stores where its own copy is still on its way.
__global__ void overtaken_copy(const Gemm g) {
  XGEMM_SHARED(S, float[kThreads]);
  copy_late(&S[threadIdx.x], g.a.ptr(0, threadIdx.x));
  cp_async_commit();
  S[threadIdx.x] = 0.f;
  cp_async_wait<0>();
  g.store(0, threadIdx.x, S[threadIdx.x]);
}

__global__ void copy_left_behind(const Gemm g) {
  XGEMM_SHARED(S, float[kThreads]);
  copy_late(&S[threadIdx.x], g.a.ptr(0, threadIdx.x));
  cp_async_commit();
  g.store(0, threadIdx.x, g.a(0, threadIdx.x));
}

__global__ void copy_out_of_bounds(const Gemm g) {
  XGEMM_SHARED(S, float[kThreads]);
  copy_late(&S[threadIdx.x], g.a.ptr(0, threadIdx.x + 1));
  cp_async_commit();
  cp_async_wait<0>();
  g.store(0, threadIdx.x, S[threadIdx.x]);
}

// Copies that arrive at an mbarrier by themselves.
enum class Arrival { none, before_the_copy, without_wait, left_behind };
template <Arrival kFault>
__global__ void copies_that_arrive(const Gemm g) {
  XGEMM_SHARED(S, float[kThreads]);
  XGEMM_SHARED(landed, Mbarrier);
  if (threadIdx.x == 0) {
    xgemm::mbarrier_init(&landed, kThreads);
    fence_barrier_init();
  }
  __syncthreads();
  for (const bool copies : {kFault != Arrival::before_the_copy, kFault == Arrival::before_the_copy})
    if (copies) copy_late(&S[threadIdx.x], g.a.ptr(0, threadIdx.x));
    else mbarrier_arrive_after_copies(&landed);
  if (kFault <= Arrival::before_the_copy) mbarrier_wait(&landed, 0);
  g.store(0, threadIdx.x, kFault == Arrival::left_behind ? 0.f : S[kThreads - 1 - threadIdx.x]);
}

// Three buffers, two slices in flight. Past the last slice groups are empty, so that the count of
// the wait stays right.
constexpr int kSlices = 9, kBuffers = 3;

template <int kInFlight>
__device__ void run_pipeline(const Gemm& g) {
  XGEMM_SHARED(S, float[kBuffers][kThreads]);
  const int t = threadIdx.x;
  const auto fetch = [&](int slice) {
    if (slice < kSlices) copy_late(&S[slice % kBuffers][t], g.a.ptr(0, (t + slice) % kThreads));
    cp_async_commit();
  };
  for (int slice = 0; slice < kBuffers - 1; ++slice) fetch(slice);
  float sum = 0.f;
  for (int slice = 0; slice < kSlices; ++slice) {
    cp_async_wait<kInFlight>();
    __syncthreads();
    sum += S[slice % kBuffers][kThreads - 1 - t];
    fetch(slice + kBuffers - 1);
  }
  g.store(0, t, sum);
}

__global__ void pipeline(const Gemm g) { run_pipeline<kBuffers - 2>(g); }
__global__ void wait_one_short(const Gemm g) { run_pipeline<kBuffers - 1>(g); }

// No fault: late copies through dynamic shared memory, right when everything is waited for.
__global__ void none(const Gemm g) {
  XGEMM_SHARED_DYNAMIC(S, float[kThreads]);
  cp_async<4>(&S[threadIdx.x], g.a.ptr(0, threadIdx.x));
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();
  g.store(0, threadIdx.x, S[kThreads - 1 - threadIdx.x]);
}

// Where the source is outside the operand cp.async fills with zeros and does not read.
__global__ void zero_fill(const Gemm g) {
  XGEMM_SHARED(S, float[kThreads]);
  const int t = threadIdx.x;
  copy_issue(&S[t], g.a.ptr(0, t % 2 ? t : t + kThreads), 4, t % 2 ? 4 : 0);
  cp_async_commit();
  cp_async_wait<0>();
  g.store(0, t, S[t]);
}

// A vector whose pointer has not been through load4.
__global__ void misaligned_vector(const Gemm g) {
  XGEMM_SHARED(S, float[2 * kThreads]);
  S[threadIdx.x] = S[threadIdx.x + kThreads] = g.a(0, threadIdx.x);
  __syncthreads();
  const float4 v = *reinterpret_cast<const float4*>(S + threadIdx.x);
  g.store(0, threadIdx.x, v.w);
}

constexpr Probe kProbes[] = {
    {"none", none, 1, kThreads, [](int i) { return kThreads - 1.f - i; }},
    {"pipeline", pipeline, 1, kThreads,
     [](int i) {
       float sum = 0.f;
       for (int s = 0; s < kSlices; ++s) sum += (kThreads - 1 - i + s) % kThreads;
       return sum;
     }},
    {"zero_fill", zero_fill, 1, kThreads, [](int i) { return i % 2 ? float(i) : 0.f; }},
    {"copies_that_arrive", copies_that_arrive<Arrival::none>, 1, kThreads,
     [](int i) { return kThreads - 1.f - i; }},
    {"race", race},
    {"race_of_writers", race_of_writers},
    {"deadlock", deadlock},
    {"divergent_barrier", divergent_barrier},
    {"uninitialised", uninitialised},
    {"smem_out_of_bounds", smem_out_of_bounds},
    {"dynamic_smem_too_small", dynamic_smem_too_small},
    {"gmem_out_of_bounds", gmem_out_of_bounds},
    {"gmem_between_rows", gmem_between_rows},
    {"store_to_an_input", store_to_an_input},
    {"two_blocks_one_tile", two_blocks_one_tile, 2},
    {"misaligned", misaligned},
    {"misaligned_vector", misaligned_vector},
    {"missing_wait", missing_wait},
    {"missing_commit", missing_commit},
    {"wait_one_short", wait_one_short},
    {"overtaken_copy", overtaken_copy},
    {"copy_left_behind", copy_left_behind},
    {"copy_out_of_bounds", copy_out_of_bounds},
    {"missing_barrier_after_wait", missing_barrier_after_wait},
    {"arrival_before_the_copy", copies_that_arrive<Arrival::before_the_copy>},
    {"arrival_without_wait", copies_that_arrive<Arrival::without_wait>},
    {"arrival_left_behind", copies_that_arrive<Arrival::left_behind>},
};

const Probe* probe_to_run;

void run_probe(const Gemm& g, const Context& context) {
  launch(probe_to_run->kernel,
         {.grid = dim3(probe_to_run->blocks),
          .block = dim3(probe_to_run->threads),
          .smem = kThreads * sizeof(float)},
         context, g);
}

std::vector<Probe> all_probes() {
  std::vector<Probe> all(std::begin(kProbes), std::end(kProbes));
  const auto of_warps = warp_probes();
  all.insert(all.end(), of_warps.begin(), of_warps.end());
  return all;
}

}  // namespace

std::vector<ProbeName> probes() {
  std::vector<ProbeName> names;
  for (const Probe& p : all_probes()) names.push_back({p.name, !p.right});
  for (const ProbeName& p : product_probes()) names.push_back(p);
  for (const ProbeName& p : signal_probes()) names.push_back(p);
  return names;
}

void probe(const std::string& name) {
  for (const Probe& p : all_probes()) {
    if (name != p.name) continue;
    // On the heap: what lies in this library is not checked for reads.
    std::vector<float> a(kThreads), b(2 * kThreads), d(kThreads);
    for (unsigned i = 0; i < kThreads; ++i) a[i] = static_cast<float>(i);
    Gemm g;
    g.m = 1;
    g.n = g.k = kThreads;
    g.a = {a.data(), kThreads, 1, 0};  // one row of 64
    g.b = {b.data(), 0, 2, 0};  // 64 times the same row, of every other float
    g.d = {d.data(), kThreads, 1, 0};
    probe_to_run = &p;
    Stage stage;
    stage.name = "probe";
    stage.run = run_probe;
    run_watched(stage, g);
    for (int i = 0; p.right && i < static_cast<int>(p.threads); ++i)
      if (d[static_cast<size_t>(i)] != p.right(i))
        throw std::logic_error("the probe " + name + " is wrong");
    return;
  }
  if (run_product_probe(name) || run_signal_probe(name)) return;
  throw std::invalid_argument("xgemm simt: no probe named '" + name + "'");
}

}  // namespace xgemm::simt
