// The decomposition of an operand that lies along k: rows in the registers of those who work on
// them, read once where they fit; and what every decomposition needs.
#pragma once

#include <cfloat>

#include "xgemm/device/copy/gmem.h"
#include "xgemm/emulation/limbs.h"

namespace xgemm {
inline namespace XGEMM_FLAVOUR {

constexpr int kDecomposeThreads = 256;

// Where K is at most half a slice, the other half of it carries lo times lo, the product that three
// leave out: up to 4 u of |a||b|, which the others of so short a sum do not hide. There A's second
// limb and B's first have lo once more, the other two zeros; beside an A of one limb, which has no
// lo, B's meets zeros. A lo is lo_scale times what is left of t, and a correction is to be that
// once: so both are scaled down, by about as much.
constexpr int kShortK = kSliceK / 2;
constexpr float kLoOfA = 0x1p-5f, kLoOfB = 0x1p-6f;
static_assert(kLoOfA * kLoOfB * kFp16x3.lo_scale == 1.f);

// One operand as the kernel sees it, rows along k.
template <class Element>
struct DecomposeRows {
  View<const Element> x;
  int64_t k = 0;
  Limbs limbs;
  float* sums = nullptr;  // of the rows, where they are wanted; of strips only
  bool along_k = false;  // lanes walk k; otherwise rows
  bool of_b = false;
  int64_t grid = 0;  // blocks

  __device__ __forceinline__ int64_t slices() const { return slices_of(k); }
  // The limb that has lo once more where K is short, or none.
  static constexpr int kNoLimb = -1;
  template <EmulationScheme S>
  __device__ __forceinline__ int limb_of_lo() const {
    return S.limbs == 2 && k <= kShortK ? of_b ? 0 : 1 : kNoLimb;
  }
};
using DecomposeJob = DecomposeRows<float>;

// The magnitude of a finite number in an order of its own, in which all that is not finite comes
// below zero: twice its bits, the sign shifted out, plus what makes an infinity's wrap round.
constexpr uint32_t kZeroMagnitude = 0x01000000u;
__device__ __forceinline__ uint32_t finite_magnitude(float x) {
  return float_to_bits(x) * 2 + kZeroMagnitude;
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

// The exponent of a row whose largest finite_magnitude this is, which is to come to
// [2^top, 2^(top + 1)).
__device__ __forceinline__ int exponent_of(uint32_t largest, int top) {
  return largest > kZeroMagnitude ? top - floor_log2((largest - kZeroMagnitude) / 2) : 0;
}
constexpr int kMostTop = 14;

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
                                           uint32_t (&warps)[kValues][kDecomposeThreads / 32]) {
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

// The sum of 8 elements of a row.
template <class X>
__device__ __forceinline__ float sum_of_8(const X& x) {
  return ((x(0) + x(1)) + (x(2) + x(3))) + ((x(4) + x(5)) + (x(6) + x(7)));
}

// What a thread has seen of a row's elements.
struct RowSeen {
  // How many there are but zeros and how many infinities, up to two of each; whether some are NaN.
  static constexpr uint32_t kTwo = 2, kNan = 1 << 16;
  float squares = 0.f;  // of finite t
  uint32_t found = 0;
  uint32_t lossy = 0;  // how many lie below EmulationScheme::tiny, but zeros
  uint32_t at = 0;  // an infinity's k, or the sum of all elements' k

  // 8 neighbours some of which are tiny, zero or not finite. `k`: of the first; `x`: of number e,
  // which may be so small that t is zero.
  template <EmulationScheme S, class X>
  __device__ __forceinline__ void see_each(const float (&t)[8], const X& x, uint32_t k) {
    uint32_t elements = found & 0xffu, infinities = found >> 8 & 0xffu;
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const float y = x(e);
      if (y != 0.f) ++elements, at += infinities ? 0 : k + e;  // so is a NaN
      if (fabsf(t[e]) < S.tiny && y != 0.f) ++lossy;
      if (fabsf(y) <= FLT_MAX) squares = fmaf(t[e], t[e], squares);
      else if (y == y) ++infinities, at = k + e;
      else found |= kNan;
    }
    found =
        (found & ~0xffffu) | (elements < 2 ? elements : 2) | (infinities < 2 ? infinities : 2) << 8;
  }

  // As numbers that threads add up. A sum of squares is in units of 2^floor(log2 K), rounded up: 32
  // bits hold K squares of at most 2^30, and a unit of each thread's.
  static constexpr int kSums = 5, kLossySum = 2;
  __device__ __forceinline__ void to(uint32_t (&sums)[kSums], int64_t k) const {
    const float in_units = ceilf(squares * power_of_2(-unit(k)));
    sums[0] = static_cast<uint32_t>(in_units < 0x1p31f ? in_units : 0x1p31f);
    // Of up to 256 threads, each number below 2^10.
    sums[1] = (found & 0xffu) | (found & 0xff00u) << 2 | (found & kNan ? 1 << 20 : 0);
    sums[kLossySum] = lossy;
    const bool infinite = found & 0xff00u;
    sums[3] = infinite ? 0 : at;
    sums[4] = infinite ? at : 0;
  }
  __device__ static __forceinline__ int unit(int64_t k) {
    return k > 1 ? static_cast<int>(float_to_bits(static_cast<float>(k)) >> 23) - 127 : 0;
  }
};

// What the sums of all who share a row say of it.
__device__ __forceinline__ RowScale scale_of(int exponent, const uint32_t (&sums)[RowSeen::kSums],
                                             int64_t k) {
  const uint32_t elements = sums[1] & 0x3ffu, infinities = sums[1] >> 10 & 0x3ffu;
  const uint32_t nan = sums[1] >> 20, lossy = sums[RowSeen::kLossySum];
  RowScale s;
  s.exponent = exponent;
  s.norm = 1.01f * sqrtf(static_cast<float>(sums[0]) * power_of_2(RowSeen::unit(k)));
  if (lossy) s.flags |= kLossy;
  if (elements == 1) s.flags |= kSingle, s.at = sums[3];
  if (nan) s.flags |= kNan;
  else if (infinities > 1) s.flags |= kInfinities;
  else if (infinities) s.flags |= kInfinite, s.at = sums[4];
  if (is_far(exponent)) s.flags |= kFar;
  s.doubt = doubt_bits(s, lossy);
  return s;
}

// x * 2^exponent of 8 neighbours along k, as a row's exponent asks, and what is seen of them. `k`:
// of the first; x(e) is number e, zero where there is none; it is asked again where it is rare, so
// that no register keeps it.
template <EmulationScheme S, class X>
__device__ __forceinline__ void scale8(float (&t)[8], const X& x, int exponent, uint32_t k,
                                       RowSeen& seen) {
  // Two factors: the exponent of a row of subnormal numbers is up to 163.
  const int first = exponent < 127 ? exponent : 127;
  const float factor = power_of_2(first);
  float least = 0x1p127f, squares = 0.f;
#pragma unroll
  for (int e = 0; e < 8; ++e) t[e] = x(e) * factor;
  if (exponent > first)
#pragma unroll
    for (int e = 0; e < 8; ++e) t[e] *= power_of_2(exponent - first);
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    least = fminf(least, fabsf(t[e]));
    squares = fmaf(t[e], t[e], squares);
  }
  if (least >= S.tiny && squares <= FLT_MAX) [[likely]]
    seen.squares += squares, seen.found |= RowSeen::kTwo;
  else seen.see_each<S>(t, x, k);
}

// Decomposes 8 neighbours along k and stores them; `block` is where the limbs of their 32 lie, `at`
// is their place there. `limb_of_lo`: DecomposeRows', where K may be short; without kMayBeShort its
// constant alone leaves other code behind (CUDA 13.0). The others are scale8's.
template <EmulationScheme S, bool kMayBeShort, class X>
__device__ __forceinline__ void decompose8(const X& x, int exponent, char* block, int at,
                                           uint32_t k, RowSeen& seen, int limb_of_lo) {
  const bool is_short = kMayBeShort && limb_of_lo >= 0;
  if (is_short && at >= kShortK) return;
  float t[8];
  scale8<S>(t, x, exponent, k, seen);
#pragma unroll
  for (int limb = 0; limb < S.limbs; ++limb) {
    uint32_t packed[4];
#pragma unroll
    for (int e = 0; e < 8; e += 2)
      packed[e / 2] =
          limb < S.limbs - 1 ? take_limb<S>(t[e], t[e + 1]) : pack_half2<S.type>(t[e], t[e + 1]);
    store_packed(block + (limb * kSliceK + at) * 2, packed);
  }
  if (!is_short) return;
  const float factor = limb_of_lo ? kLoOfA : kLoOfB;
  uint32_t packed[4];
#pragma unroll
  for (int e = 0; e < 8; e += 2)
    packed[e / 2] = pack_half2<S.type>(t[e] * factor, t[e + 1] * factor);
  char* const to = block + (kShortK + at) * 2;
  store_packed(to + limb_of_lo * kSliceK * 2, packed);
  store_packed(to + (1 - limb_of_lo) * kSliceK * 2, {});
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

// Eight neighbours along k in a thread's registers: 16-bit ones stay packed, and take half as many.
template <class Element>
struct Eight {
  float x[8];

  __device__ __forceinline__ void load(const float* p, int64_t step, int valid, bool wide) {
    load8(x, p, step, valid, wide);
  }
  __device__ __forceinline__ float operator()(int e) const { return x[e]; }
};
template <Half kType>
struct Eight<HalfFloat<kType>> {
  uint32_t x[4];

  __device__ __forceinline__ void load(const HalfFloat<kType>* p, int64_t step, int valid,
                                       bool wide) {
    if (wide && valid == 8) {
      float packed[4];
      load4(packed, reinterpret_cast<const float*>(p));
#pragma unroll
      for (int e = 0; e < 4; ++e) x[e] = float_to_bits(packed[e]);
    } else {
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const uint32_t bits = e < valid ? p->bits : 0;
        x[e / 2] = e % 2 ? x[e / 2] | bits << 16 : bits;
        p = opaque(p + step);
      }
    }
  }
  __device__ __forceinline__ float operator()(int e) const {
    float pair[2];
    unpack_half2<kType>(x[e / 2], pair[0], pair[1]);
    return pair[e % 2];
  }
};

// Whether 8 neighbours along a row, given a k that is a multiple of 8, move as vectors.
__device__ __forceinline__ bool wide8(const View<const float>& x) { return x.wide(); }
template <Half kType>
__device__ __forceinline__ bool wide8(const View<const HalfFloat<kType>>& x) {
  return x.cs == 1 && reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.rs % 8 == 0 &&
         x.bs % 8 == 0;
}

// Lanes along k: kThreads of a block on each row, 8 * kItems elements a thread at a time. The first
// chunk of a longer row stays in registers, the others are read twice. kMayBeShort: kShortK.
template <EmulationScheme S, int kThreads, int kItems, bool kMayBeShort, class Element>
__device__ void decompose_along_k(const DecomposeRows<Element>& job, int64_t group) {
  constexpr int kChunk = kThreads * 8 * kItems, kRows = kDecomposeThreads / kThreads;
  XGEMM_SHARED(largest_of, uint32_t[1][kDecomposeThreads / 32]);
  XGEMM_SHARED(sums_of, uint32_t[RowSeen::kSums][kDecomposeThreads / 32]);
  const int lane = threadIdx.x % kThreads;
  const int64_t row = group * kRows + threadIdx.x / kThreads;
  const bool mine = row < job.limbs.rows * job.limbs.matrices;
  const int64_t z = mine && job.limbs.matrices > 1 ? row / job.limbs.rows : 0;
  const Element* const from =
      job.x.data + z * job.x.bs + (mine ? row - z * job.limbs.rows : 0) * job.x.rs;
  const bool wide = wide8(job.x);
  const int64_t chunks = ceil_div(job.slices() * kSliceK, kChunk);
  // Of a chunk's k, how many of `all` there are.
  const auto left = [&](int64_t all, int64_t chunk) {
    return static_cast<int>(min_of(all - chunk * kChunk, kChunk));
  };
  Eight<Element> x[kItems];
  const auto load = [&](int64_t chunk) {
    const int real = mine ? left(job.k, chunk) : 0;
    const Element* const p = from + chunk * kChunk * job.x.cs;
#pragma unroll
    for (int e = 0; e < kItems; ++e) {
      const int at = (e * kThreads + lane) * 8;
      x[e].load(p + at * job.x.cs, job.x.cs, valid_of_8(at, real), wide);
    }
  };
  uint32_t largest[1] = {};
  for (int64_t chunk = chunks - 1; chunk >= 0; --chunk) {
    load(chunk);
#pragma unroll
    for (int e = 0; e < kItems; ++e)
#pragma unroll
      for (int w = 0; w < 8; ++w) largest[0] = max_of(largest[0], finite_magnitude(x[e](w)));
  }
  row_reduce<kThreads, Largest>(largest, largest_of);
  const int exponent = exponent_of(largest[0], kMostTop);
  RowSeen seen;
  char* limbs = static_cast<char*>(job.limbs.data) + row * job.limbs.row_bytes(S.limbs);
  for (int64_t chunk = 0;;) {
    const int filled = mine ? left(job.slices() * kSliceK, chunk) : 0;
#pragma unroll
    for (int e = 0; e < kItems; ++e) {
      const int at = (e * kThreads + lane) * 8;
      if (at < filled)
        decompose8<S, kMayBeShort>(x[e], exponent, limbs + at / kSliceK * (kSliceK * 2 * S.limbs),
                                   at % kSliceK, static_cast<uint32_t>(chunk * kChunk + at), seen,
                                   job.template limb_of_lo<S>());
    }
    limbs += kChunk * 2 * S.limbs;
    if (++chunk >= chunks) break;
    load(chunk);
  }
  uint32_t sums[RowSeen::kSums];
  seen.to(sums, job.k);
  row_reduce<kThreads, Sum>(sums, sums_of);
  if (mine && lane == 0) job.limbs.scales[row] = scale_of(exponent, sums, job.k);
}

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
