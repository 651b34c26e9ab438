// The split: both operands' parts and scales in one launch. Memory-bound: an element is read once
// where a row fits into the registers or the shared memory of those who work on it.
#pragma once

#include <utility>

#include "xgemm/launch.h"
#include "xgemm/ptx_hopper.h"
#include "xgemm/split.h"

namespace xgemm {
inline namespace XGEMM_FLAVOUR {

constexpr int kSplitThreads = 256;

// One operand as the kernel sees it, rows along k.
struct SplitJob {
  View<const float> x;
  int64_t k = 0;
  Parts parts;
  uint32_t* scratch = nullptr;
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

// Lanes along rows: strips of kStrip rows, each shared out along k among the blocks of a cluster,
// and transposed in shared memory. As above, what does not fit there is read twice.
constexpr int kStripFloats = 512 * 33;

template <Scheme S, int kStrip, int kCluster>
__device__ void split_along_rows(const SplitJob& job, int64_t block) {
  constexpr int kWarps = kSplitThreads / 32, kDepth = kStripFloats / (kStrip + 1) / 32 * 32;
  constexpr int kLoaders = kStrip / 4;  // threads side by side along a strip, 4 rows each
  constexpr int kGroups = kStrip / 8;  // warps side by side along a strip, 8 rows each
  XGEMM_SHARED_DYNAMIC(tile, float[kDepth][kStrip + 1]);
  XGEMM_SHARED(warps, uint32_t[2 * kWarps][kStrip]);
  XGEMM_SHARED(scales, RowScale[kStrip]);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, thread = threadIdx.x;
  const int64_t strip = block / kCluster, strips = ceil_div(job.parts.rows, kStrip);
  const int rank = static_cast<int>(block % kCluster);
  const int64_t z = job.parts.matrices > 1 ? strip / strips : 0;
  const int64_t row0 = (strip - z * strips) * kStrip;
  View<const float> v = job.x;
  v.data += z * v.bs;
  const bool wide = v.transposed().wide() && row0 + kStrip <= job.parts.rows;
  const int64_t share = ceil_div(job.parts.blocks, kCluster) * kSplitK, first = rank * share;
  const int64_t all = job.parts.blocks * kSplitK;
  const int64_t depth = first >= all ? 0 : all - first < share ? all - first : share;
  const int64_t chunks = ceil_div(depth, kDepth);
  const auto depth_at = [&](int64_t chunk) {
    const int64_t left = depth - chunk * kDepth;
    return static_cast<int>(left < kDepth ? left : kDepth);
  };

  // gmem -> smem; the largest magnitudes of the 4 rows that a thread loads.
  const int load_row = thread % kLoaders * 4, load_k = thread / kLoaders;
  uint32_t largest[4] = {};
  const auto keep = [&](int k, const float (&x)[4]) {
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      largest[w] = max_of(largest[w], magnitude_bits(x[w]));
      tile[k][load_row + w] = x[w];
    }
  };
  const auto load = [&](int64_t chunk) {
    constexpr int kStep = kSplitThreads / kLoaders;
    const int64_t k0 = first + chunk * kDepth;
    const int here = depth_at(chunk), real = static_cast<int>(min_of(here, job.k - k0));
    int k = load_k;
    if (wide) {
      const float* p = v.ptr(row0 + load_row, k0 + k);
#pragma unroll 8
      for (; k < real; k += kStep, p += kStep * v.cs) {
        float x[4];
        load4(x, p);
        keep(k, x);
      }
    }
#pragma unroll 1
    for (; k < here; k += kStep) {
      float x[4];
#pragma unroll
      for (int w = 0; w < 4; ++w)
        x[w] =
            row0 + load_row + w < job.parts.rows && k < real ? v(row0 + load_row + w, k0 + k) : 0.f;
      keep(k, x);
    }
  };
  for (int64_t chunk = chunks - 1; chunk >= 0; --chunk) load(chunk);
#pragma unroll
  for (int w = 0; w < 4; ++w) {
#pragma unroll
    for (int step = kLoaders; step < 32; step *= 2)
      largest[w] = max_of(largest[w], __shfl_xor_sync(0xffffffffu, largest[w], step));
    if (lane < kLoaders) warps[warp][load_row + w] = largest[w];
  }
  __syncthreads();

  // The largest of a row, of all blocks of the cluster.
  uint32_t most = 0;
  if (thread < kStrip)
    for (int w = 0; w < kWarps; ++w) most = max_of(most, warps[w][thread]);
  if constexpr (kCluster > 1) {
    XGEMM_SHARED(here, float[kStrip]);
    if (thread < kStrip) here[thread] = bits_to_float(most);
    cluster_sync();
    if (thread < kStrip)
#pragma unroll
      for (int r = 0; r < kCluster; ++r)
        most = max_of(most, float_to_bits(load_from_block(&here[thread], r)));
  }
  if (thread < kStrip) scales[thread] = scale_of(most);
  __syncthreads();

  // smem -> gmem: a warp has 8 rows, a lane 8 neighbours along k of one.
  const int row = warp % kGroups * 8 + lane / 4, at = lane % 4 * 8;
  const RowScale scale = scales[row];
  const bool mine = row0 + row < job.parts.rows;
  char* const parts = static_cast<char*>(job.parts.data) +
                      (z * job.parts.rows + (mine ? row0 + row : 0)) * job.parts.row_bytes(S.parts);
  Counts counts;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    if (chunk) {
      __syncthreads();
      load(chunk);
      __syncthreads();
    }
    const int64_t k0 = first + chunk * kDepth;
    const int real = static_cast<int>(min_of(depth_at(chunk), job.k - k0));
    for (int k = warp / kGroups * kSplitK; k < depth_at(chunk); k += kWarps / kGroups * kSplitK) {
      float x[8];
#pragma unroll
      for (int e = 0; e < 8; ++e) x[e] = tile[k + at + e][row];
      if (mine)
        split8<S>(x, scale, valid_of_8(k + at, real),
                  parts + (k0 + k) / kSplitK * (kSplitK * 2 * S.parts), at, counts);
    }
  }

  // The counts of a row: over 4 lanes, the warps that share it, and the blocks of the cluster.
  uint32_t count[2] = {static_cast<uint32_t>(counts.low), static_cast<uint32_t>(counts.tiny)};
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    count[c] += __shfl_xor_sync(0xffffffffu, count[c], 1);
    count[c] += __shfl_xor_sync(0xffffffffu, count[c], 2);
    if (lane % 4 == 0) warps[warp / kGroups * 2 + c][row] = count[c];
  }
  __syncthreads();
  if (thread < kStrip) {
    count[0] = count[1] = 0;
    for (int w = 0; w < kWarps / kGroups; ++w)
      count[0] += warps[2 * w][thread], count[1] += warps[2 * w + 1][thread];
  }
  if constexpr (kCluster > 1) {
    uint32_t* const slots = job.scratch + strip * (kCluster * 2 * kStrip) + thread;
    if (thread < kStrip)
      for (int c = 0; c < 2; ++c) slots[(c * kCluster + rank) * kStrip] = count[c];
    cluster_sync();
    if (thread < kStrip && rank == 0)
      for (int c = 0; c < 2; ++c) {
        count[c] = 0;
        for (int r = 0; r < kCluster; ++r) count[c] += slots[(c * kCluster + r) * kStrip];
      }
  }
  if (thread < kStrip && rank == 0 && row0 + thread < job.parts.rows)
    keep_scale<S>(job, z * job.parts.rows + row0 + thread, scales[thread], count[0], count[1]);
}

// How operands are shared out. A row along k: kThreads on it, kItems times 8 elements each, so that
// it fits into their registers where it can. kStrip, kCluster: strips, where an operand comes in
// them (0: none does).
struct SplitShape {
  int threads, items, strip, cluster;
};

// Blocks on an SM that leave a thread the registers for all loads it has under way.
constexpr int split_blocks(int strip, int items) {
  return strip == 8 || strip == 16 || (strip && items > 2) ? 2 : strip || items > 2 ? 3 : 4;
}

// Words that a kernel after this one is to find zero.
struct Clear {
  uint32_t* words = nullptr;
  int count = 0;
};

// kAsked: it happens only if the verdict `asked` is wide, and in a small grid, since mostly it does
// not: a block then has several blocks' work.
template <Half kType, int kThreads, int kItems, int kStrip, int kCluster, bool kAsked>
__global__ void __launch_bounds__(kSplitThreads, split_blocks(kStrip, kItems))
    split_kernel(const SplitJob a, const SplitJob b, const Verdict* asked, const Clear clear) {
  constexpr Scheme S = scheme_of(kType);
  wait_for_launch_before();
  let_next_launch_begin();
  if (kAsked && !is_wide(*asked, a.k)) return;
  if (blockIdx.x == 0)
    for (int i = threadIdx.x; i < clear.count; i += kSplitThreads) clear.words[i] = 0;
  const auto split_block = [&](int64_t at) {
    const bool first = at < a.grid;
    const SplitJob job = first ? a : b;
    const int64_t block = first ? at : at - a.grid;
    if constexpr (kStrip > 0) {
      if (!job.along_k) return split_along_rows<S, kStrip, kCluster>(job, block);
    }
    split_along_k<S, kThreads, kItems>(job, block);
  };
  if constexpr (kAsked) {
#pragma unroll 1
    for (int64_t at = blockIdx.x; at < a.grid + b.grid; at += gridDim.x) {
      if (at > blockIdx.x) __syncthreads();  // what is shared has been read
      split_block(at);
    }
  } else {
    split_block(blockIdx.x);
  }
}

// Enqueues the split of A and, if it is not kept, of B. It tells the verdict `tells`, cleared
// before, or, if kAsks, happens only if the verdict `asks` is wide. It clears `clear`, too.
// kCluster: blocks that share a strip of a deep operand, 1 where there are no clusters (below
// sm_90).
template <Scheme S, int kCluster, bool kAsks = false>
void split(const Gemm& g, const SplitPlan& plan, const Context& context, Verdict* tells = nullptr,
           const Verdict* asks = nullptr, Clear clear = {}) {
  const bool a_along_k = g.m == 0 || along_k(g.a, g.m, g.k);
  const bool b_along_k = plan.b_is_kept || along_k(g.b.transposed(), g.n, g.k);
  void (*kernel)(SplitJob, SplitJob, const Verdict*, Clear) = nullptr;
  SplitShape shape{};
  const auto take = [&]<int kThreads, int kItems, int kStrip, int kBlocks>() {
    kernel = split_kernel<S.type, kThreads, kItems, kStrip, kBlocks, kAsks>;
    shape = {kThreads, kItems, kStrip, kBlocks};
  };
  // Rows along k: few threads on each, which then wait for few others and have more on its way.
  // Strips: of so many rows that memory sees whole lines, and blocks are enough all the same; a
  // cluster has more rows a strip for as many blocks. Measured on an H200, 2026-11-22.
  const auto take_rows = [&] {
    if (g.k <= 512) return take.template operator()<32, 2, 0, 1>();
    if (g.k <= 1024) return take.template operator()<64, 2, 0, 1>();
    if (g.k <= 2048) return take.template operator()<64, 4, 0, 1>();
    if (g.k <= 4096) return take.template operator()<128, 4, 0, 1>();
    take.template operator()<kSplitThreads, 4, 0, 1>();
  };
  const auto take_strips = [&] {
    if (g.k <= 512) return take.template operator()<32, 2, 16, 1>();
    if (g.k <= 1024) return take.template operator()<64, 2, 8, 1>();
    if constexpr (kCluster > 1) {
      if (g.k <= 2048) return take.template operator()<128, 2, 32, 4>();
    }
    if (g.k <= 4096) return take.template operator()<kSplitThreads, 2, 32, kCluster>();
    take.template operator()<kSplitThreads, 4, 32, kCluster>();
  };
  if (a_along_k && b_along_k) take_rows();
  else take_strips();

  const auto job = [&](const View<const float>& rows, const Parts& parts, bool rows_along_k) {
    SplitJob j{.x = rows, .k = g.k, .parts = parts, .verdict = tells};
    j.along_k = rows_along_k;
    j.grid = rows_along_k ? ceil_div(parts.rows * parts.matrices, kSplitThreads / shape.threads)
                          : ceil_div(parts.rows, shape.strip) * parts.matrices * shape.cluster;
    j.grid = ceil_div(j.grid, shape.cluster) * shape.cluster;
    return j;
  };
  SplitJob a = job(g.a, plan.a, a_along_k), b = job(g.b.transposed(), plan.b, b_along_k);
  b.operand = 1;
  if (plan.b_is_kept) b.grid = 0;
  a.scratch = static_cast<uint32_t*>(plan.scratch);
  b.scratch = a.scratch + (plan.a.rows + 32) * plan.a.matrices * (8 * 2);
  if (a.along_k && !b.along_k) std::swap(a, b);  // strips take longest: they begin first
  if (a.grid + b.grid > kMaxGridX) throw std::invalid_argument("xgemm: too many rows to split");
  // What mostly does not happen gets no more blocks than work at a time.
  const int64_t at_once = int64_t{context.device.sm_count} * split_blocks(shape.strip, shape.items);
  const int64_t room = std::max<int64_t>(1, at_once / shape.cluster) * shape.cluster;
  launch(kernel,
         {.grid = dim3(static_cast<unsigned>(std::min(a.grid + b.grid, kAsks ? room : INT64_MAX))),
          .block = dim3(kSplitThreads),
          .smem = shape.strip ? sizeof(float) * kStripFloats : 0,
          .cluster = static_cast<unsigned>(shape.cluster),
          .dependent = kCluster > 1},
         context, a, b, asks, clear);
}

inline size_t packed_bytes(const Gemm& g) { return plan_packed(g, nullptr).bytes; }

// Stage::pack: splits B to where it is kept.
template <int kCluster>
void pack(const Gemm& g, const Context& context) {
  SplitPlan plan = plan_split(g, kFp16x3.parts, context.workspace, context.packed_b);
  plan.b_is_kept = false;
  split<kFp16x3, kCluster>(g, plan, context, plan_packed(g, context.packed_b).verdict);
}

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
