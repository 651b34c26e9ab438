// The split of an operand that lies along k: rows in the registers of those who work on them, read
// once where they fit; and what every split needs.
#pragma once

#include "xgemm/copy.h"
#include "xgemm/split.h"

namespace xgemm {
inline namespace XGEMM_FLAVOUR {

constexpr int kSplitThreads = 256;

// One operand as the kernel sees it, rows along k.
struct SplitJob {
  View<const float> x;
  int64_t k = 0;
  Parts parts;
  Verdict* verdict = nullptr;
  int operand = 0;  // of the verdict's risks
  bool along_k = false;  // lanes walk k; otherwise rows
  int64_t grid = 0;  // blocks
};

__device__ __forceinline__ uint32_t magnitude_bits(float x) {
  return float_to_bits(x) & 0x7fffffffu;
}

// floor(log2 x) of a positive number by its bits, subnormal or not.
__device__ __forceinline__ int floor_log2(uint32_t bits) {
  if (bits >> 23) return static_cast<int>(bits >> 23) - 127;
#ifdef __CUDACC__
  return 31 - __clz(static_cast<int>(bits)) - 149;
#else
  return 31 - std::countl_zero(bits) - 149;
#endif
}

// The scale of a row whose largest magnitude has these bits, risk left open.
__device__ __forceinline__ RowScale scale_of(uint32_t largest) {
  RowScale s{0, 0, 0.f};
  if (largest >= 0x7f800000u) s.top = kNotFinite;
  else if (largest == 0) s.top = kAllZero;
  else {
    const int top = floor_log2(largest);
    s.top = static_cast<int16_t>(top);
    s.exponent = static_cast<int16_t>(14 - top);
  }
  return s;
}

__device__ __forceinline__ uint32_t max_of(uint32_t a, uint32_t b) { return a > b ? a : b; }

// Ways to make one value of many.
struct Largest {
  __device__ static __forceinline__ uint32_t of(uint32_t a, uint32_t b) { return max_of(a, b); }
  __device__ static __forceinline__ uint32_t of_warp(uint32_t x) {
    return __reduce_max_sync(0xffffffffu, x);
  }
};
struct Sum {
  __device__ static __forceinline__ uint32_t of(uint32_t a, uint32_t b) { return a + b; }
  __device__ static __forceinline__ uint32_t of_warp(uint32_t x) {
    return __reduce_add_sync(0xffffffffu, x);
  }
};

// kValues values, of all kThreads threads that share a row; those of several warps meet in `warps`.
template <int kThreads, class Way, int kValues>
__device__ __forceinline__ void row_reduce(uint32_t (&x)[kValues],
                                           uint32_t (&warps)[kValues][kSplitThreads / 32]) {
  constexpr int kWarps = kThreads / 32;
#pragma unroll
  for (uint32_t& value : x) value = Way::of_warp(value);
  if constexpr (kWarps > 1) {
    if (threadIdx.x % 32 == 0)
#pragma unroll
      for (int v = 0; v < kValues; ++v) warps[v][threadIdx.x / 32] = x[v];
    __syncthreads();
    const int first = threadIdx.x / kThreads * kWarps;
#pragma unroll
    for (int v = 0; v < kValues; ++v) {
      x[v] = warps[v][first];
#pragma unroll
      for (int w = 1; w < kWarps; ++w) x[v] = Way::of(x[v], warps[v][first + w]);
    }
  }
}

__device__ __forceinline__ void store_packed(char* p, const uint32_t (&x)[4]) {
  float f[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) f[i] = bits_to_float(x[i]);
  store4(reinterpret_cast<float*>(p), make_float4(f[0], f[1], f[2], f[3]));
}

// Keeps what is known of a row, and tells the verdict, if it is asked for.
template <Scheme S>
__device__ __forceinline__ void keep_scale(const SplitJob& job, int64_t row, RowScale s,
                                           uint32_t low, uint32_t tiny) {
  s.risk = risk_of(S, low, tiny, job.k, s.top);
  job.parts.scales[row] = s;
  if (!job.verdict) return;
  if (risky(s.risk)) atomic_max(&job.verdict->risk[job.operand], float_to_bits(fabsf(s.risk)));
  if (s.risk < 0.f) atomic_max(&job.verdict->tiny, 1);
}

// Counts of a row's elements, for its risk.
struct Counts {
  int low = 0, tiny = 0;
};

// Splits 8 neighbours along k and stores them; `block` is where the parts of their 32 lie.
template <Scheme S>
__device__ __forceinline__ void split8(const float (&x)[8], const RowScale& scale, int valid,
                                       char* block, int at, Counts& counts) {
  // Two factors: the exponent of a row of subnormal numbers is up to 163.
  const int first = scale.exponent < 127 ? scale.exponent : 127;
  const float factor = power_of_2(first);
  float t[8], least = 0x1p127f;
#pragma unroll
  for (int e = 0; e < 8; ++e) t[e] = x[e] * factor;
  if (scale.exponent > first)
#pragma unroll
    for (int e = 0; e < 8; ++e) t[e] *= power_of_2(scale.exponent - first);
#pragma unroll
  for (int e = 0; e < 8; ++e) least = fminf(least, fabsf(t[e]));
  // Few elements are low, and hardly any is tiny. Those that do not exist are zeros, and low.
  if (least < S.low) {
    counts.low -= 8 - valid;
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const float size = fabsf(t[e]);
      counts.low += size < S.low, counts.tiny += size < S.tiny && x[e] != 0.f;
    }
  }
#pragma unroll
  for (int part = 0; part < S.parts; ++part) {
    uint32_t packed[4];
#pragma unroll
    for (int e = 0; e < 8; e += 2) {
      packed[e / 2] = pack_half2<S.type>(t[e], t[e + 1]);
      if (part == S.parts - 1) continue;
      float y0, y1;
      unpack_half2<S.type>(packed[e / 2], y0, y1);
      t[e] = (t[e] - y0) * S.lo_scale;
      t[e + 1] = (t[e + 1] - y1) * S.lo_scale;
    }
    store_packed(block + (part * kSplitK + at) * 2, packed);
  }
}

// Of the 8 elements from `at` on, how many there are if there are so many in all.
__device__ __forceinline__ int valid_of_8(int at, int all) {
  const int left = all - at;
  return left > 8 ? 8 : left > 0 ? left : 0;
}

// 8 neighbours along k, of which `valid` exist; zeros for the others. wide: they lie together, and
// move as vectors.
__device__ __forceinline__ void load8(float (&x)[8], const float* p, int64_t step, int valid,
                                      bool wide) {
  if (wide && valid == 8) {
    load4(x, p);
    load4(x + 4, p + 4);
  } else {
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      x[e] = e < valid ? *p : 0.f;
      p = opaque(p + step);
    }
  }
}

// Lanes along k: kThreads of a block on each row, 8 * kItems elements a thread at a time. The first
// chunk of a longer row stays in registers, the others are read twice.
template <Scheme S, int kThreads, int kItems>
__device__ void split_along_k(const SplitJob& job, int64_t group) {
  constexpr int kChunk = kThreads * 8 * kItems, kRows = kSplitThreads / kThreads;
  XGEMM_SHARED(largest_of, uint32_t[1][kSplitThreads / 32]);
  XGEMM_SHARED(counts_of, uint32_t[2][kSplitThreads / 32]);
  const int lane = threadIdx.x % kThreads;
  const int64_t row = group * kRows + threadIdx.x / kThreads;
  const bool mine = row < job.parts.rows * job.parts.matrices;
  const int64_t z = mine && job.parts.matrices > 1 ? row / job.parts.rows : 0;
  const float* const from =
      job.x.data + z * job.x.bs + (mine ? row - z * job.parts.rows : 0) * job.x.rs;
  const bool wide = job.x.wide();
  const int64_t chunks = ceil_div(job.parts.blocks * kSplitK, kChunk);
  // Of a chunk's k, how many of `all` there are.
  const auto left = [&](int64_t all, int64_t chunk) {
    return static_cast<int>(min_of(all - chunk * kChunk, kChunk));
  };
  float x[kItems][8];
  const auto load = [&](int64_t chunk) {
    const int real = mine ? left(job.k, chunk) : 0;
    const float* const p = from + chunk * kChunk * job.x.cs;
#pragma unroll
    for (int e = 0; e < kItems; ++e) {
      const int at = (e * kThreads + lane) * 8;
      load8(x[e], p + at * job.x.cs, job.x.cs, valid_of_8(at, real), wide);
    }
  };
  uint32_t largest[1] = {};
  for (int64_t chunk = chunks - 1; chunk >= 0; --chunk) {
    load(chunk);
#pragma unroll
    for (int e = 0; e < kItems; ++e)
#pragma unroll
      for (int w = 0; w < 8; ++w) largest[0] = max_of(largest[0], magnitude_bits(x[e][w]));
  }
  row_reduce<kThreads, Largest>(largest, largest_of);
  const RowScale scale = scale_of(largest[0]);
  Counts counts;
  char* parts = static_cast<char*>(job.parts.data) + row * job.parts.row_bytes(S.parts);
  for (int64_t chunk = 0;;) {
    const int real = left(job.k, chunk);
    const int filled = mine ? left(job.parts.blocks * kSplitK, chunk) : 0;
#pragma unroll
    for (int e = 0; e < kItems; ++e) {
      const int at = (e * kThreads + lane) * 8;
      if (at < filled)
        split8<S>(x[e], scale, valid_of_8(at, real), parts + at / kSplitK * (kSplitK * 2 * S.parts),
                  at % kSplitK, counts);
    }
    parts += kChunk * 2 * S.parts;
    if (++chunk >= chunks) break;
    load(chunk);
  }
  uint32_t count[2] = {static_cast<uint32_t>(counts.low), static_cast<uint32_t>(counts.tiny)};
  row_reduce<kThreads, Sum>(count, counts_of);
  if (mine && lane == 0) keep_scale<S>(job, row, scale, count[0], count[1]);
}

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
