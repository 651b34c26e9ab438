// sm_90's instructions, one function each, with their host bodies: mbarriers, clusters, TMA, wgmma,
// dependent launches. As in base.h, what looks like a plain call may be asynchronous: each comment
// says what to wait for.
#pragma once

#include "xgemm/device/ptx/base.h"
#include "xgemm/device/tensor_map.h"

namespace xgemm {

#ifdef __CUDACC__
__device__ __forceinline__ unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}
#endif

// ---- mbarrier: a phase ends when so many arrivals and so many bytes have come. Phases have
// parity 0, 1, 0, ... ----

struct alignas(8) Mbarrier {
  uint64_t state;
};

// By one thread, before fence_barrier_init and a barrier of the block (cluster_sync in a cluster).
__device__ __forceinline__ void mbarrier_init(Mbarrier* bar, int arrivals) {
#ifdef __CUDACC__
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(bar)), "r"(arrivals)
               : "memory");
#else
  simt::mbarrier_init(bar, arrivals);
#endif
}

__device__ __forceinline__ void fence_barrier_init() {
#ifdef __CUDACC__
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

// One arrival, which also announces `bytes` to come in this phase by TMA.
__device__ __forceinline__ void mbarrier_expect(Mbarrier* bar, int bytes,
                                                [[maybe_unused]] simt::Site site = simt::here()) {
#ifdef __CUDACC__
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(bar)),
               "r"(bytes)
               : "memory");
#else
  simt::mbarrier_expect(bar, bytes, site);
#endif
}

__device__ __forceinline__ void mbarrier_arrive(Mbarrier* bar,
                                                [[maybe_unused]] simt::Site site = simt::here()) {
#ifdef __CUDACC__
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(bar)) : "memory");
#else
  simt::mbarrier_arrive(bar, site);
#endif
}

// Arrives once every cp.async that this thread has issued so far has landed; the thread goes on.
__device__ __forceinline__ void mbarrier_arrive_after_copies(
    Mbarrier* bar, [[maybe_unused]] simt::Site site = simt::here()) {
#ifdef __CUDACC__
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(bar))
               : "memory");
#else
  simt::mbarrier_arrive_after_copies(bar, site);
#endif
}

// Arrives at the mbarrier that lies where `bar` does, in block `rank` of the cluster. This orders
// what wgmma and TMA do; plain accesses of the two blocks it does not (with .release.cluster it
// would, by a fence of the whole GPU: a third of the main loop's speed).
__device__ __forceinline__ void mbarrier_arrive_at(
    Mbarrier* bar, unsigned rank, [[maybe_unused]] simt::Site site = simt::here()) {
#ifdef __CUDACC__
  asm volatile(
      "{\n.reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(shared_address(bar)),
      "r"(rank)
      : "memory");
#else
  simt::mbarrier_arrive_at(bar, rank, site);
#endif
}

// Until the phase of this parity has ended. A fresh mbarrier counts as having ended parity 1.
__device__ __forceinline__ void mbarrier_wait(Mbarrier* bar, int parity,
                                              [[maybe_unused]] simt::Site site = simt::here()) {
#ifdef __CUDACC__
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra.uni over;\n"
      "bra.uni again;\n"
      "over:\n}" ::"r"(shared_address(bar)),
      "r"(parity)
      : "memory");
#else
  simt::mbarrier_wait(bar, parity, site);
#endif
}

// ---- Clusters: blocks that run together and reach each other's shared memory. In code for older
// architectures a block is a cluster of its own ----

__device__ __forceinline__ unsigned cluster_rank() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  return 0;
#elif defined(__CUDACC__)
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
#else
  return simt::cluster_rank();
#endif
}

// All threads of the cluster meet; what they wrote before, gmem included, all can read after.
__device__ __forceinline__ void cluster_sync([[maybe_unused]] simt::Site site = simt::here()) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  __syncthreads();
#elif defined(__CUDACC__)
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
#else
  simt::cluster_sync(site);
#endif
}

// They meet without that: after fence_barrier_init, which does what it has to, or where nothing is
// read after. Nobody waits for stores to gmem.
struct Relaxed {};
__device__ __forceinline__ void cluster_sync(Relaxed,
                                             [[maybe_unused]] simt::Site site = simt::here()) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  __syncthreads();
#elif defined(__CUDACC__)
  asm volatile(
      "barrier.cluster.arrive.relaxed.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
#else
  simt::cluster_sync(site);
#endif
}

// What block `rank` of the cluster has in shared memory where `smem` lies here, one float or four:
// between two cluster_sync, the second of which keeps that block there.
__device__ __forceinline__ float load_from_block(const float* smem, unsigned rank,
                                                 [[maybe_unused]] simt::Site site = simt::here()) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  static_cast<void>(rank);
  return *smem;
#elif defined(__CUDACC__)
  float x;
  asm volatile(
      "{\n.reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %1, %2;\n"
      "ld.shared::cluster.f32 %0, [there];\n}"
      : "=f"(x)
      : "r"(shared_address(smem)), "r"(rank)
      : "memory");
  return x;
#else
  float x;
  simt::load_from_block(&x, smem, sizeof x, rank, site);
  return x;
#endif
}

__device__ __forceinline__ void load4_from_block(float (&x)[4], const float* smem, unsigned rank,
                                                 [[maybe_unused]] simt::Site site = simt::here()) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  static_cast<void>(rank);
  for (int w = 0; w < 4; ++w) x[w] = smem[w];
#elif defined(__CUDACC__)
  asm volatile(
      "{\n.reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %4, %5;\n"
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];\n}"
      : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
      : "r"(shared_address(smem)), "r"(rank)
      : "memory");
#else
  simt::load_from_block(x, smem, sizeof x, rank, site);
#endif
}

// ---- TMA: a box of a tensor (tensor_map.h) into shared memory, by one thread; it has landed when
// the phase of `bar` that expects its bytes has ended. What lies outside the tensor is zero and
// counts as bytes ----

// Between what threads have stored in shared memory, by cp.async too, and a TMA of the calling
// thread that overwrites it.
__device__ __forceinline__ void fence_before_tma() {
#ifdef __CUDACC__
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

__device__ __forceinline__ void tma_load(void* smem, const TensorMap& map, Mbarrier* bar, int c0,
                                         int c1, int c2,
                                         [[maybe_unused]] simt::Site site = simt::here()) {
#ifdef __CUDACC__
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(shared_address(smem)),
      "l"(&map), "r"(shared_address(bar)), "r"(c0), "r"(c1), "r"(c2)
      : "memory");
#else
  simt::tma_load(smem, map, bar, c0, c1, c2, 0, site);
#endif
}

// The same into every block of the cluster whose bit is set in `mask`: to where `smem` lies there,
// signalled at where `bar` lies there.
__device__ __forceinline__ void tma_load_multicast(
    void* smem, const TensorMap& map, Mbarrier* bar, int c0, int c1, int c2, unsigned mask,
    [[maybe_unused]] simt::Site site = simt::here()) {
#ifdef __CUDACC__
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(shared_address(smem)),
      "l"(&map), "r"(shared_address(bar)), "r"(c0), "r"(c1), "r"(c2),
      "h"(static_cast<unsigned short>(mask))
      : "memory");
#else
  simt::tma_load(smem, map, bar, c0, c1, c2, mask, site);
#endif
}

__device__ __forceinline__ void tma_prefetch([[maybe_unused]] const TensorMap& map) {
#ifdef __CUDACC__
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
#endif
}

// ---- wgmma: the four warps of a warpgroup multiply 64 x 16 of A by 16 x N of B, both in shared
// memory and read while the instruction runs: until a wgmma_wait that leaves it out, neither may
// they be overwritten nor the accumulators looked at ----

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
  simt::wgmma(kType, d, kCount, a, nullptr, b, accumulate, site);
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
  simt::wgmma(kType, d, kCount, 0, a, b, accumulate, site);
#endif
}
#undef XGEMM_WGMMA
#undef XGEMM_WGMMA_8
#undef XGEMM_WGMMA_16
#undef XGEMM_WGMMA_32
#undef XGEMM_WGMMA_64
#undef XGEMM_WGMMA_128

// Threads of the block meet at barrier `id`, 1 to 15: as many as `threads`, a multiple of 32.
__device__ __forceinline__ void named_barrier(int id, int threads,
                                              [[maybe_unused]] simt::Site site = simt::here()) {
#ifdef __CUDACC__
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
#else
  simt::named_barrier(id, threads, site);
#endif
}

// ---- Registers move between warpgroups; kernels overlap ----

// Whether `some` threads of a block may have so many registers each, and all others so many: no
// more than it is launched with, so many blocks on a multiprocessor, or who asks for more waits
// forever.
constexpr bool registers_suffice(int blocks, int some, int each, int others, int each_other) {
  const int threads = some + others, launched = 65536 / blocks / threads / 8 * 8;
  return some * each + others * each_other <= launched * threads;
}

// By all warps of a warpgroup: from here on a thread has this many registers.
template <int kRegisters>
__device__ __forceinline__ void registers_down() {
#ifdef __CUDACC__
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}
template <int kRegisters>
__device__ __forceinline__ void registers_up() {
#ifdef __CUDACC__
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}

// In a kernel launched as `dependent`: until the kernel before it in the stream is over and its
// writes are here.
__device__ __forceinline__ void wait_for_launch_before(
    [[maybe_unused]] simt::Site site = simt::here()) {
#ifndef __CUDACC__
  simt::wait_for_launch_before(site);
#elif __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// The dependent launch after this kernel may begin (its blocks wait all the same for this kernel's
// end).
__device__ __forceinline__ void let_next_launch_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
// Both, by all threads before they touch global memory, in a `dependent` launch that may follow
// anybody's: its blocks are there when the launch before ends.
__device__ __forceinline__ void take_turn(simt::Site site = simt::here()) {
  xgemm::wait_for_launch_before(site);
  let_next_launch_begin();
}

}  // namespace xgemm
