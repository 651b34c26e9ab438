// One PTX instruction, one function, each with its host body. But for the files here and half.h,
// nothing holds assembly. What looks like a plain call may be asynchronous: each comment says what
// to wait for.
#pragma once

#include "xgemm/device/copy/gmem.h"

namespace xgemm {

// A place in shared memory, in floats. On the GPU it is a 32-bit address of the shared window in
// one register, where a pointer would be computed anew from thread indices at every use.
struct Smem {
#ifdef __CUDACC__
  unsigned at;
  __device__ __forceinline__ explicit Smem(const float* p)
      : at(static_cast<unsigned>(__cvta_generic_to_shared(p))) {
    asm volatile("" : "+r"(at));  // opaque: the address is kept, not its formula
  }
  __device__ __forceinline__ Smem operator+(int floats) const { return Smem(at + floats * 4u); }

 private:
  __device__ __forceinline__ explicit Smem(unsigned a) : at(a) {}
#else
  float* at;
  explicit Smem(const float* p) : at(const_cast<float*>(p)) {}
  Smem operator+(int floats) const { return Smem(at + floats); }
#endif
};

// 16 bytes of shared memory into registers.
__device__ __forceinline__ void load4(float* registers, Smem from) {
#ifdef __CUDACC__
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(registers[0]), "=f"(registers[1]), "=f"(registers[2]), "=f"(registers[3])
               : "r"(from.at));
#else
  load4(registers, from.at);
#endif
}

// 8 bytes of it, and 4.
__device__ __forceinline__ void load2(float* registers, Smem from) {
#ifdef __CUDACC__
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
               : "=f"(registers[0]), "=f"(registers[1])
               : "r"(from.at));
#else
  load2(registers, from.at);
#endif
}
__device__ __forceinline__ void load1(float* registers, Smem from) {
#ifdef __CUDACC__
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(registers[0]) : "r"(from.at));
#else
  registers[0] = *from.at;
#endif
}

// *p = the larger of *p and x, among all threads of a grid.
__device__ __forceinline__ void atomic_max(uint32_t* p, uint32_t x) {
#ifdef __CUDACC__
  atomicMax(p, x);
#else
  simt::atomic_max(p, x);
#endif
}

// *p += x, among all threads of a grid and of others.
__device__ __forceinline__ void atomic_add(uint32_t* p, uint32_t x) {
#ifdef __CUDACC__
  atomicAdd(p, x);
#else
  simt::atomic_add(p, x);
#endif
}

// ---- Signals between the blocks of a grid: a launch that is `in_order` begins blocks in the order
// of their numbers, so that a block may wait for those before it ----

// One more at this flag. What the thread has done, and what it knows others of its block to have
// done by a barrier, comes before it.
__device__ __forceinline__ void signal(uint32_t* flag,
                                       [[maybe_unused]] simt::Site site = simt::here()) {
#ifdef __CUDACC__
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(flag) : "memory");
#else
  simt::signal(flag, site);
#endif
}

// Until the flag has had so many. By one thread: a barrier tells the others.
__device__ __forceinline__ void wait_for_signals(const uint32_t* flag, uint32_t count,
                                                 [[maybe_unused]] simt::Site site = simt::here()) {
#ifdef __CUDACC__
  uint32_t come;
  do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(come) : "l"(flag) : "memory");
  while (come < count);
#else
  simt::wait_for_signals(flag, count, site);
#endif
}

// gmem -> smem past the registers (sm_80): kBytes of 4, 8 or 16, both ends aligned to it.
template <int kBytes>
__device__ __forceinline__ void cp_async(Smem smem, const float* gmem) {
#ifdef __CUDACC__
  if constexpr (kBytes == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(smem.at), "l"(gmem) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(smem.at), "l"(gmem), "n"(kBytes)
                 : "memory");
#else
  simt::copy_issue(smem.at, gmem, kBytes, kBytes);
#endif
}
template <int kBytes>
__device__ __forceinline__ void cp_async(float* smem, const float* gmem) {
  cp_async<kBytes>(Smem(smem), gmem);
}
// The same of the first `bytes` only; the others are zero, and gmem need not be there for them.
template <int kBytes>
__device__ __forceinline__ void cp_async_some(Smem smem, const float* gmem, int bytes) {
#ifdef __CUDACC__
  if constexpr (kBytes == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(smem.at), "l"(gmem),
                 "r"(bytes)
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(smem.at), "l"(gmem),
                 "n"(kBytes), "r"(bytes)
                 : "memory");
#else
  simt::copy_issue(smem.at, gmem, kBytes, bytes);
#endif
}

__device__ __forceinline__ void cp_async_commit([[maybe_unused]] simt::Site site = simt::here()) {
#ifdef __CUDACC__
  asm volatile("cp.async.commit_group;" ::: "memory");
#else
  simt::copy_commit(site);
#endif
}

// Until at most kGroups of the thread's youngest groups are unfinished.
template <int kGroups>
__device__ __forceinline__ void cp_async_wait([[maybe_unused]] simt::Site site = simt::here()) {
#ifdef __CUDACC__
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
#else
  simt::copy_wait(kGroups, site);
#endif
}

// p, of which the compiler forgets where it comes from: it would keep many such pointers in
// registers, for a path that is hardly ever taken.
template <class T>
__device__ __forceinline__ const T* opaque(const T* p) {
#ifdef __CUDACC__
  asm("" : "+l"(p));
#endif
  return p;
}

// The same of a number: what is computed of it again need not be kept till then.
__device__ __forceinline__ uint32_t opaque(uint32_t x) {
#ifdef __CUDACC__
  asm("" : "+r"(x));
#endif
  return x;
}

// No load moves over it, which would take registers.
__device__ __forceinline__ void keep_order() {
#ifdef __CUDACC__
  asm volatile("" ::: "memory");
#endif
}

// 2^x, with an error of some 2^-22 of it on a GPU; what is subnormal is 0 there.
__device__ __forceinline__ float exp2_approximate(float x) {
#ifdef __CUDACC__
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return std::exp2(x);
#endif
}

// The least of three.
__device__ __forceinline__ uint32_t min3_u32(uint32_t x, uint32_t y, uint32_t z) {
#ifdef __CUDACC__
  return __vimin3_u32(x, y, z);
#else
  const uint32_t xy = x < y ? x : y;
  return xy < z ? xy : z;
#endif
}

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
