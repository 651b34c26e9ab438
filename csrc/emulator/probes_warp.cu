// Probes of what the lanes of a warp do together.
#include "emulator/probes.h"
#include "xgemm/device/ptx/base.h"

namespace xgemm::simt {
namespace {

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
  if (lanes == 32) {
    const unsigned add = __reduce_add_sync(kAll, unsigned(lane)),
                   most = __reduce_max_sync(kAll, ~t);
    wrong += add != 31 * 16 || most != ~unsigned(first);
  }
  float sum = 1.f;
  for (int d = lanes / 2; d; d /= 2) sum += __shfl_xor_sync(kAll, sum, d);
  wrong += sum != lanes;
  g.store(0, t, static_cast<float>(t - 1000 * wrong));
}

constexpr Probe kProbes[] = {
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

}  // namespace

std::span<const Probe> warp_probes() { return kProbes; }

}  // namespace xgemm::simt
