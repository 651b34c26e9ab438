// wgmma of sm_90: the four warps of a warpgroup multiply 64 x 16 of A by 16 x N of B, both in
// shared memory and read while the instruction runs: until a wgmma_wait that leaves it out, neither
// may they be overwritten nor the accumulators looked at.
#pragma once

#include "xgemm/device/half.h"
#include "xgemm/device/ptx/mbarrier.h"

namespace xgemm {

// Where an operand lies: K-major rows of 64 or 128 bytes (`kRow`), swizzled as TMA does it, in
// groups of 8 rows one after another. 16 further along k is `+ kDescriptorK16`.
constexpr uint64_t kDescriptorK16 = 32 >> 4;
template <int kRow>
__device__ __forceinline__ uint64_t wgmma_descriptor(const void* smem) {
  static_assert(kRow == 64 || kRow == 128);
#ifdef __CUDACC__
  const uint64_t at = shared_address(smem);
#else
  const uint64_t at = simt::shared_address(smem);
#endif
  return (at & 0x3ffff) >> 4 | 1ull << 16 | static_cast<uint64_t>(8 * kRow >> 4) << 32 |
         (kRow == 128 ? 1ull : 2ull) << 62;
}

// By each thread that has stored to shared memory by itself what a wgmma is to read, before the
// barrier after which one does.
__device__ __forceinline__ void fence_for_wgmma([[maybe_unused]] simt::Site site = simt::here()) {
#ifdef __CUDACC__
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#else
  simt::fence_for_wgmma(site);
#endif
}

// By all threads of a warpgroup, before its first wgmma and before each that is given registers,
// accumulators or A's, which the thread has read or written since the last one. (Of accumulators
// that only wgmmas of one shape use in between, the chip keeps the order by itself.)
__device__ __forceinline__ void wgmma_fence([[maybe_unused]] simt::Site site = simt::here()) {
#ifdef __CUDACC__
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#else
  simt::wgmma_fence(site);
#endif
}

__device__ __forceinline__ void wgmma_commit([[maybe_unused]] simt::Site site = simt::here()) {
#ifdef __CUDACC__
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#else
  simt::wgmma_commit(site);
#endif
}

// Until at most kGroups of the warpgroup's youngest groups are unfinished.
template <int kGroups>
__device__ __forceinline__ void wgmma_wait([[maybe_unused]] simt::Site site = simt::here()) {
#ifdef __CUDACC__
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
#else
  simt::wgmma_wait(kGroups, site);
#endif
}

// Keeps the compiler from moving uses of these accumulators over the wait that made them final.
template <int kCount>
__device__ __forceinline__ void wgmma_settled([[maybe_unused]] float (&acc)[kCount]) {
#ifdef __CUDACC__
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(acc[i])::"memory");
#endif
}

// acc (64 x 2 kCount over the warpgroup) = A B + (accumulate ? acc : 0). Thread t of the warpgroup
// has acc[4 j + 2 h + c] = element (16 (t / 32) + t % 32 / 4 + 8 h, 8 j + 2 (t % 4) + c).
#define XGEMM_WGMMA_8(type, a_and_b, p, ...)                              \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " p                      \
               ", 0;\n"                                                   \
               "wgmma.mma_async.sync.aligned.m64n8k16.f32." type "." type \
               " {%0, %1, %2, %3}, " a_and_b ";\n}"                       \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])           \
               : __VA_ARGS__)
#define XGEMM_WGMMA_16(type, a_and_b, p, ...)                                            \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " p                                     \
               ", 0;\n"                                                                  \
               "wgmma.mma_async.sync.aligned.m64n16k16.f32." type "." type               \
               " {%0, %1, %2, %3, %4, %5, %6, %7}, " a_and_b ";\n}"                      \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), \
                 "+f"(d[6]), "+f"(d[7])                                                  \
               : __VA_ARGS__)
#define XGEMM_WGMMA_32(type, a_and_b, p, ...)                                                      \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " p                                               \
               ", 0;\n"                                                                            \
               "wgmma.mma_async.sync.aligned.m64n32k16.f32." type "." type                         \
               " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, " a_and_b \
               ";\n}"                                                                              \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),           \
                 "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),         \
                 "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])                                \
               : __VA_ARGS__)
#define XGEMM_WGMMA_64(type, a_and_b, p, ...)                                                      \
  asm volatile(                                                                                    \
      "{\n.reg .pred p;\nsetp.ne.b32 p, " p                                                        \
      ", 0;\n"                                                                                     \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type                                  \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18,"     \
      " %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, " a_and_b ";\n}"         \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),        \
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),    \
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), \
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), \
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])                                         \
      : __VA_ARGS__)
#define XGEMM_WGMMA_128(type, a_and_b, p, ...)                                                     \
  asm volatile(                                                                                    \
      "{\n.reg .pred p;\nsetp.ne.b32 p, " p                                                        \
      ", 0;\n"                                                                                     \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type                                 \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18,"     \
      " %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35,"      \
      " %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52,"      \
      " %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, " a_and_b ";\n}"                   \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),        \
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),    \
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), \
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), \
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), \
        "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), \
        "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), \
        "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), \
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), \
        "+f"(d[63])                                                                                \
      : __VA_ARGS__)

// That of N columns, if it is wanted, for either type.
#define XGEMM_WGMMA(N, ...)                                                 \
  if constexpr (2 * kCount == N) {                                          \
    if constexpr (kType == Half::fp16) XGEMM_WGMMA_##N("f16", __VA_ARGS__); \
    else XGEMM_WGMMA_##N("bf16", __VA_ARGS__);                              \
  }

template <Half kType, int kCount>
__device__ __forceinline__ void wgmma(float (&d)[kCount], uint64_t a, uint64_t b, bool accumulate,
                                      [[maybe_unused]] simt::Site site = simt::here()) {
#ifdef __CUDACC__
  const int flag = accumulate;
  XGEMM_WGMMA(8, "%4, %5, p, 1, 1, 0, 0", "%6", "l"(a), "l"(b), "r"(flag));
  XGEMM_WGMMA(16, "%8, %9, p, 1, 1, 0, 0", "%10", "l"(a), "l"(b), "r"(flag));
  XGEMM_WGMMA(32, "%16, %17, p, 1, 1, 0, 0", "%18", "l"(a), "l"(b), "r"(flag));
  XGEMM_WGMMA(64, "%32, %33, p, 1, 1, 0, 0", "%34", "l"(a), "l"(b), "r"(flag));
  XGEMM_WGMMA(128, "%64, %65, p, 1, 1, 0, 0", "%66", "l"(a), "l"(b), "r"(flag));
#else
  simt::wgmma(kType, d, kCount, a, nullptr, b, false, accumulate, site);
#endif
}

// The same with A in registers, which are not to change before a wgmma_wait either. Thread t of the
// warpgroup has a[h + 2 q] = A(16 (t / 32) + t % 32 / 4 + 8 h, 8 q + 2 (t % 4)) and, in the upper
// half, its neighbour along k.
template <Half kType, int kCount>
__device__ __forceinline__ void wgmma(float (&d)[kCount], const uint32_t (&a)[4], uint64_t b,
                                      bool accumulate,
                                      [[maybe_unused]] simt::Site site = simt::here()) {
  static_assert(kCount <= 32);
#ifdef __CUDACC__
  const int flag = accumulate;
  XGEMM_WGMMA(8, "{%4, %5, %6, %7}, %8, p, 1, 1, 0", "%9", "r"(a[0]), "r"(a[1]), "r"(a[2]),
              "r"(a[3]), "l"(b), "r"(flag));
  XGEMM_WGMMA(16, "{%8, %9, %10, %11}, %12, p, 1, 1, 0", "%13", "r"(a[0]), "r"(a[1]), "r"(a[2]),
              "r"(a[3]), "l"(b), "r"(flag));
  XGEMM_WGMMA(32, "{%16, %17, %18, %19}, %20, p, 1, 1, 0", "%21", "r"(a[0]), "r"(a[1]), "r"(a[2]),
              "r"(a[3]), "l"(b), "r"(flag));
  XGEMM_WGMMA(64, "{%32, %33, %34, %35}, %36, p, 1, 1, 0", "%37", "r"(a[0]), "r"(a[1]), "r"(a[2]),
              "r"(a[3]), "l"(b), "r"(flag));
#else
  simt::wgmma(kType, d, kCount, 0, a, b, false, accumulate, site);
#endif
}

// The same with 32 or 64 columns of B that lie MN-major: a row of 128 bytes is one k of all
// columns. 16 further along k is `+ kDescriptorRows16`.
constexpr uint64_t kDescriptorRows16 = 16 * 128 >> 4;
template <Half kType, int kCount>
__device__ __forceinline__ void wgmma_mn_major(float (&d)[kCount], const uint32_t (&a)[4],
                                               uint64_t b, bool accumulate,
                                               [[maybe_unused]] simt::Site site = simt::here()) {
  static_assert(kCount == 16 || kCount == 32);
#ifdef __CUDACC__
  const int flag = accumulate;
  XGEMM_WGMMA(32, "{%16, %17, %18, %19}, %20, p, 1, 1, 1", "%21", "r"(a[0]), "r"(a[1]), "r"(a[2]),
              "r"(a[3]), "l"(b), "r"(flag));
  XGEMM_WGMMA(64, "{%32, %33, %34, %35}, %36, p, 1, 1, 1", "%37", "r"(a[0]), "r"(a[1]), "r"(a[2]),
              "r"(a[3]), "l"(b), "r"(flag));
#else
  simt::wgmma(kType, d, kCount, 0, a, b, true, accumulate, site);
#endif
}
#undef XGEMM_WGMMA
#undef XGEMM_WGMMA_8
#undef XGEMM_WGMMA_16
#undef XGEMM_WGMMA_32
#undef XGEMM_WGMMA_64
#undef XGEMM_WGMMA_128

}  // namespace xgemm
