// Kernels with one planted fault each, which test the alarms, right ones that must not raise them,
// and one whose accesses are of known cost, which tests the counts. `python -m xgemm_torch` never
// runs them; tests and the curious do.
#include <stdexcept>
#include <vector>

#include "xgemm/host/simt_control.h"
#include "xgemm/host/trace.h"
#include "xgemm/launch.h"
#include "xgemm/ptx.h"

namespace xgemm::simt {
namespace {

constexpr int kThreads = 64;

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
  cp_async<4>(&S[threadIdx.x], g.a.ptr(0, threadIdx.x), true);
  cp_async_commit();
  cp_async_wait<1>();
  __syncthreads();
  g.store(0, threadIdx.x, S[kThreads - 1 - threadIdx.x]);
  cp_async_wait<0>();
}

__global__ void missing_barrier_after_wait(const Gemm g) {
  XGEMM_SHARED(S, float[kThreads]);
  cp_async<4>(&S[threadIdx.x], g.a.ptr(0, threadIdx.x), true);
  cp_async_commit();
  cp_async_wait<0>();
  g.store(0, threadIdx.x, S[kThreads - 1 - threadIdx.x]);
}

inline void copy_late(float* to, const float* from) { copy_issue(to, from, 4, 4); }

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

constexpr unsigned kAll = 0xffffffffu;

__global__ void lane_outside_its_mask(const Gemm g) {
  g.store(0, threadIdx.x, __shfl_sync(0x0000ffffu, g.a(0, threadIdx.x), 0));
}

__global__ void lane_never_comes(const Gemm g) {
  float x = g.a(0, threadIdx.x);
  if (threadIdx.x != 37) x = __shfl_sync(kAll, x, 0);
  __syncthreads();
  g.store(0, threadIdx.x, x);
}

__global__ void lane_has_exited(const Gemm g) {
  if (threadIdx.x == 5) return;
  g.store(0, threadIdx.x, __shfl_down_sync(kAll, g.a(0, threadIdx.x), 16));
}

__global__ void different_masks(const Gemm g) {
  g.store(0, threadIdx.x, __ballot_sync(threadIdx.x % 2 ? kAll : kAll ^ 2, 1));
}

// The upper half does not wait for the lower one.
__global__ void one_sided_mask(const Gemm g) {
  g.store(0, threadIdx.x, __ballot_sync(threadIdx.x % 32 < 16 ? kAll : 0xffff0000u, 1));
}

__global__ void divergent_vote(const Gemm g) {
  int x;
  if (threadIdx.x % 32 < 16) x = __any_sync(kAll, 1);
  else x = __any_sync(kAll, 0);
  g.store(0, threadIdx.x, static_cast<float>(x));
}

__global__ void divergent_syncwarp(const Gemm g) {
  if (threadIdx.x % 2) __syncwarp();
  else __syncwarp();
  g.store(0, threadIdx.x, g.a(0, threadIdx.x));
}

__global__ void shuffle_from_outside_the_mask(const Gemm g) {
  float x = g.a(0, threadIdx.x);
  if (threadIdx.x % 32 < 16) x = __shfl_xor_sync(0x0000ffffu, x, 16);
  g.store(0, threadIdx.x, x);
}

// The second warp has 8 lanes.
__global__ void shuffle_from_no_lane(const Gemm g) {
  g.store(0, threadIdx.x, __shfl_sync(kAll, g.a(0, threadIdx.x), 8));
}

__global__ void shuffle_of_odd_width(const Gemm g) {
  g.store(0, threadIdx.x, __shfl_up_sync(kAll, g.a(0, threadIdx.x), 1, 24));
}

// Neighbours exchange; what stands between the store and the load is what orders them, or does not.
template <class Between>
__device__ void exchange(const Gemm& g, int distance, Between between) {
  XGEMM_SHARED(S, float[kThreads]);
  S[threadIdx.x] = g.a(0, threadIdx.x);
  between();
  g.store(0, threadIdx.x, S[threadIdx.x ^ distance]);
}

__global__ void missing_syncwarp(const Gemm g) {
  exchange(g, 1, [] {});
}

__global__ void shuffle_orders_nothing(const Gemm g) {
  exchange(g, 1, [] { __shfl_sync(kAll, 1.f, 0); });
}

__global__ void vote_orders_nothing(const Gemm g) {
  exchange(g, 1, [] { __all_sync(kAll, 1); });
}

__global__ void syncwarp_between_warps(const Gemm g) {
  exchange(g, 32, [] { __syncwarp(); });
}

__global__ void syncwarp_of_halves(const Gemm g) {
  exchange(g, 16, [] { __syncwarp(threadIdx.x % 32 < 16 ? 0x0000ffffu : 0xffff0000u); });
}

__global__ void store_before_the_warp_has_read(const Gemm g) {
  XGEMM_SHARED(S, float[kThreads]);
  S[threadIdx.x] = g.a(0, threadIdx.x);
  __syncwarp();
  const float x = S[threadIdx.x ^ 1];
  S[threadIdx.x] = x + 1.f;
  __syncwarp();
  g.store(0, threadIdx.x, S[threadIdx.x]);
}

// Thrice to and fro through shared memory: pairs, then pairs of a quarter of the warp, then of all.
__global__ void warp_exchange(const Gemm g) {
  XGEMM_SHARED(S, float[kThreads]);
  const int t = threadIdx.x;
  const unsigned quarter = 0xffu << t % 32 / 8 * 8;
  S[t] = g.a(0, t);
  __syncwarp();
  float x = S[t ^ 1];
  __syncwarp(quarter);
  S[t] = x;
  __syncwarp(quarter);
  x = S[t ^ 7];
  __syncwarp(kAll);
  S[t] = x;
  __syncwarp();
  g.store(0, t, S[t ^ 31]);
}

// Copies that a warp waits for, and reads, alone.
__global__ void warp_copy(const Gemm g) {
  XGEMM_SHARED(S, float[kThreads]);
  copy_late(&S[threadIdx.x], g.a.ptr(0, threadIdx.x));
  cp_async_commit();
  cp_async_wait<0>();
  __syncwarp();
  g.store(0, threadIdx.x, S[threadIdx.x ^ 31]);
}

// A thread stores its index, less what comes for results that are not what they should be. The
// block's last warp has 8 lanes.
__global__ void warp_functions(const Gemm g) {
  const int t = threadIdx.x, lane = t % 32, first = t - lane, lanes = first ? 8 : 32;
  const unsigned here = first ? 0xffu : kAll;
  int wrong = 0;
  wrong += __shfl_sync(kAll, t, 3) != first + 3;
  wrong += __shfl_sync(kAll, static_cast<unsigned>(t), lane % 8 ^ 5) !=
           static_cast<unsigned>(first + (lane % 8 ^ 5));
  wrong += __shfl_sync(here, t * 1.5f, lane + 1, 4) != 1.5f * (t - t % 4 + (t + 1) % 4);
  wrong += __shfl_sync(kAll, t * 1.5, -1, 8) != 1.5 * (t | 7);
  wrong += __shfl_up_sync(kAll, t, 3) != (lane < 3 ? t : t - 3);
  wrong += __shfl_up_sync(kAll, t + 1.f, 1, 4) != (t % 4 < 1 ? t : t - 1) + 1.f;
  wrong += __shfl_up_sync(kAll, t, 4000000000u) != t;
  wrong += __shfl_down_sync(kAll, t, 2, 8) != (t % 8 > 5 ? t : t + 2);
  if (first == 0)
    wrong += __shfl_down_sync(kAll, int64_t{t} << 40, 31) != int64_t{lane ? t : 31} << 40;
  wrong += __shfl_xor_sync(kAll, uint64_t(t) << 40, 7) != uint64_t(t ^ 7) << 40;
  wrong += __shfl_xor_sync(kAll, t, 4, 4) != (t & 4 ? t ^ 4 : t);  // reads a segment below only
  wrong += __ballot_sync(kAll, lane % 3 == 0) != (0x49249249u & here);
  wrong += __any_sync(kAll, lane == 6) != 1 || __any_sync(kAll, lane == 40) != 0;
  wrong += __all_sync(kAll, lane < lanes) != 1 || __all_sync(kAll, lane != 6) != 0;
  if (lane % 2) wrong += __ballot_sync(0xaaaaaaaau, lane > 4) != (0xaaaaaaa0u & here);
  else wrong += __shfl_xor_sync(0x55555555u, t, 2) != (t ^ 2);
  float sum = 1.f;
  for (int d = lanes / 2; d; d /= 2) sum += __shfl_xor_sync(kAll, sum, d);
  wrong += sum != lanes;
  g.store(0, t, static_cast<float>(t - 1000 * wrong));
}

// No fault: late copies through dynamic shared memory, right when everything is waited for.
__global__ void none(const Gemm g) {
  XGEMM_SHARED_DYNAMIC(S, float[kThreads]);
  cp_async<4>(&S[threadIdx.x], g.a.ptr(0, threadIdx.x), threadIdx.x % 2 == 0);
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

struct Probe {
  const char* name;
  void (*kernel)(Gemm);
  unsigned blocks = 1, threads = kThreads;
  float (*right)(int i) = nullptr;  // of a kernel without a fault: what it stores, A(0, i) being i
};

constexpr Probe kProbes[] = {
    {"none", none, 1, kThreads, [](int i) { return i % 2 ? kThreads - 1.f - i : 0.f; }},
    {"pipeline", pipeline, 1, kThreads,
     [](int i) {
       float sum = 0.f;
       for (int s = 0; s < kSlices; ++s) sum += (kThreads - 1 - i + s) % kThreads;
       return sum;
     }},
    {"zero_fill", zero_fill, 1, kThreads, [](int i) { return i % 2 ? float(i) : 0.f; }},
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
    {"lane_outside_its_mask", lane_outside_its_mask},
    {"lane_never_comes", lane_never_comes},
    {"lane_has_exited", lane_has_exited},
    {"different_masks", different_masks},
    {"one_sided_mask", one_sided_mask},
    {"divergent_vote", divergent_vote},
    {"divergent_syncwarp", divergent_syncwarp},
    {"shuffle_from_outside_the_mask", shuffle_from_outside_the_mask},
    {"shuffle_from_no_lane", shuffle_from_no_lane, 1, 40},
    {"shuffle_of_odd_width", shuffle_of_odd_width},
    {"missing_syncwarp", missing_syncwarp},
    {"shuffle_orders_nothing", shuffle_orders_nothing},
    {"vote_orders_nothing", vote_orders_nothing},
    {"syncwarp_between_warps", syncwarp_between_warps},
    {"syncwarp_of_halves", syncwarp_of_halves},
    {"store_before_the_warp_has_read", store_before_the_warp_has_read},
    {"warp_exchange", warp_exchange, 1, kThreads, [](int i) { return float(i ^ 31 ^ 7 ^ 1); }},
    {"warp_copy", warp_copy, 1, kThreads, [](int i) { return float(i ^ 31); }},
    {"warp_functions", warp_functions, 1, 40, [](int i) { return float(i); }},
};

const Probe* probe_to_run;

void run_probe(const Gemm& g, const Context& context) {
  launch(probe_to_run->kernel,
         {.grid = dim3(probe_to_run->blocks),
          .block = dim3(probe_to_run->threads),
          .smem = kThreads * sizeof(float)},
         context, g);
}

constexpr int kMostStride = 33;
Strides strides_to_run;

template <class Vector>
__global__ void strided(const Gemm g, Strides s) {
  constexpr int kVectors = 32 * kMostStride;
  XGEMM_SHARED(From, Vector[kVectors]);
  XGEMM_SHARED(To, Vector[kVectors]);
  const int lane = threadIdx.x;
  for (int i = lane; i < kVectors; i += 32) From[i] = Vector{};
  __syncthreads();
  if (lane >= s.lanes) return;
  const auto* b = reinterpret_cast<const Vector*>(g.b.ptr(0, s.first));
  auto* d = reinterpret_cast<Vector*>(g.d.ptr(0, s.first));
  const Vector global = b[lane * s.global];
  To[lane * s.store] = global;
  d[lane * s.global] = From[lane / s.share * s.load];
}

void run_strided(const Gemm& g, const Context& context) {
  const LaunchConfig one_warp{.grid = dim3(1), .block = dim3(32)};
  const Strides& s = strides_to_run;
  if (s.width == 1) launch(strided<float>, one_warp, context, g, s);
  else if (s.width == 2) launch(strided<double>, one_warp, context, g, s);
  else launch(strided<float4>, one_warp, context, g, s);
}

}  // namespace

std::vector<ProbeName> probes() {
  std::vector<ProbeName> names;
  for (const Probe& p : kProbes) names.push_back({p.name, !p.right});
  return names;
}

void probe(const std::string& name) {
  for (const Probe& p : kProbes) {
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
  throw std::invalid_argument("xgemm simt: no probe named '" + name + "'");
}

std::vector<TrafficRow> probe_traffic(const Strides& s) {
  strides_to_run = s;
  Stage stage;
  stage.name = "probe";
  stage.run = run_strided;
  return traffic(stage, SmallProblem(1, 4 * 32 * kMostStride + 4, 1, false, false).g);
}

}  // namespace xgemm::simt
