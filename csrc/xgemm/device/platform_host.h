// The emulator: CUDA's vocabulary for g++, one fiber a CUDA thread. What it does is in
// simt_host.cpp.
//
// Stages are compiled with -fsanitize=thread for its instrumentation alone: the calls that it
// inserts at every load and store are answered by this project (watch.cpp), which knows the block's
// barriers and the launch's operands.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>

#include "xgemm/core/gemm.h"
#include "xgemm/core/stage.h"

// Everything that a kernel calls is inlined into it: an instruction's address then tells the line
// of the stage that it came from, however deep in gmem.h or base.h it was written. AddressSanitizer
// tells that by the stack, and takes minutes to compile what is in one piece.
#ifdef __SANITIZE_ADDRESS__
#define __global__
#else
#define __global__ __attribute__((flatten))
#endif
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__

// Emulator code inside instrumented translation units is not part of the kernel.
#define XGEMM_UNWATCHED __attribute__((no_sanitize("thread")))

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

// Copied as one vector, so that a 16-byte access of the source is one to the watch as well: a plain
// struct's copy is split into its members.
struct alignas(16) float4 {
  float x, y, z, w;

  float4() = default;
  constexpr float4(float x_, float y_, float z_, float w_) : x(x_), y(y_), z(z_), w(w_) {}
  float4(const float4& other) { *vector(this) = *vector(&other); }
  float4& operator=(const float4& other) {
    *vector(this) = *vector(&other);
    return *this;
  }

 private:
  typedef float Vector __attribute__((vector_size(16), may_alias));
  static Vector* vector(float4* p) { return reinterpret_cast<Vector*>(p); }
  static const Vector* vector(const float4* p) { return reinterpret_cast<const Vector*>(p); }
};
struct alignas(8) float2 {
  float x, y;

  float2() = default;
  constexpr float2(float x_, float y_) : x(x_), y(y_) {}
  float2(const float2& other) { *vector(this) = *vector(&other); }
  float2& operator=(const float2& other) {
    *vector(this) = *vector(&other);
    return *this;
  }

 private:
  typedef float Vector __attribute__((vector_size(8), may_alias));
  static Vector* vector(float2* p) { return reinterpret_cast<Vector*>(p); }
  static const Vector* vector(const float2* p) { return reinterpret_cast<const Vector*>(p); }
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline void __stcg(float4* p, const float4& v) { *p = v; }

namespace xgemm {
enum class Half : int;
struct Mbarrier;
inline namespace host {
struct TensorShape;
}
}  // namespace xgemm

namespace xgemm::simt {

template <class T>
using Type = T;

// Where in a kernel's source something happens. Sites are compared by file and line.
struct Site {
  const char* file = "";
  int line = 0;
};
// As a default argument: the line of the call. A function that wraps one with such an argument has
// one too, and hands it on.
constexpr Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  return {file, line};
}

// By value: a kernel's read of its own index is no memory access.
dim3 thread_index();
dim3 block_index();
dim3 block_dim();
dim3 grid_dim();

// __syncthreads: all threads of the block meet, at one line.
void barrier(Site at);

// Functions of a warp: the lanes of a mask meet in one call of one line. A lane that calls one with
// a mask without itself, or meets lanes with another mask or at another line, or waits for lanes
// that never come, is an error. So is a lane that has exited: CUDA would let the others pass.
// Lanes that the last warp of a block does not have may be in a mask, but have no value to give.
struct Meeting {
  uint64_t value;  // of the source lane
  unsigned ballot, lanes;  // who gave an odd number; who met
};
enum class Shuffle { index, up, down, across };
Meeting shuffle(Shuffle how, unsigned mask, uint64_t value, int argument, int width, Site at);
Meeting vote(const char* function, unsigned mask, bool value, Site at);
// Also orders the accesses of these lanes to memory, which the others do not.
void warp_barrier(unsigned mask, Site at);

template <class T>
T shuffle_as(Shuffle how, unsigned mask, T value, int argument, int width, Site at) {
  static_assert(std::is_arithmetic_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  const Meeting m = shuffle(how, mask, std::bit_cast<Bits>(value), argument, width, at);
  return std::bit_cast<T>(static_cast<Bits>(m.value));
}

// The block's shared array declared at `site`: zones of no-man's-land around it, filled with NaN
// when the block starts.
void* shared_array(const void* site, size_t bytes, const char* name);

// The launch's dynamic shared memory.
void* dynamic_shared(size_t bytes, const char* name, Site at = here());

// Ends the block with an error when p is not a multiple of `bytes`.
void expect_aligned(const void* p, size_t bytes);

// cp.async: the destination holds NaN from the issue on and gets its value when a wait demands it,
// not before. Bytes beyond `source_bytes` are filled with zeros.
void copy_issue(void* smem, const void* gmem, int bytes, int source_bytes);
void copy_commit(Site at);
// Until at most so many of the thread's youngest groups are unfinished.
void copy_wait(int groups_left, Site at);

// On global memory.
void atomic_max(uint32_t* p, uint32_t x);
void atomic_add(uint32_t* p, uint32_t x);

// Between the blocks of a launch that is `in_order`: base.h says what they do.
void signal(uint32_t* flag, Site site);
void wait_for_signals(const uint32_t* flag, uint32_t count, Site site);

// 16-bit floating point numbers.
uint16_t to_half(Half type, float value);
float from_half(Half type, uint16_t x);

// The tensor core's instructions of a warp: mma.h.
void ldmatrix4(uint32_t (&r)[4], const void* row, Site at);
void mma(Half type, float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], Site at);

// sm_90's instructions: mbarrier.h, cluster.h, tma.h and wgmma.h say what each does.
void mbarrier_init(Mbarrier* bar, int arrivals);
void mbarrier_expect(Mbarrier* bar, int bytes, Site at);
void mbarrier_arrive(Mbarrier* bar, Site at);
void mbarrier_arrive_after_copies(Mbarrier* bar, Site at);
void mbarrier_arrive_at(Mbarrier* bar, unsigned rank, Site at);
void mbarrier_wait(Mbarrier* bar, int parity, Site at);

unsigned cluster_rank();
void cluster_sync(Site at);
void load_from_block(void* to, const void* smem, int bytes, unsigned rank, Site at);
void named_barrier(int id, int threads, Site at);

// The destination holds NaN from the issue on; the box is copied when nothing else can happen. A
// mask of 0: into this block alone.
void tma_load(void* smem, const TensorShape& map, Mbarrier* bar, int c0, int c1, int c2,
              unsigned mask, Site at);

// An address within the block's shared memory, as descriptors have it.
uint64_t shared_address(const void* p);

// The accumulators, `count` of each of a warpgroup's threads, hold NaN from the issue on. The work
// is done when all its threads have come to a wait that demands it, and operands are read then.
// `registers`: A's, four of each thread, in place of the descriptor a.
void wgmma(Half type, float* d, int count, uint64_t a, const uint32_t* registers, uint64_t b,
           bool b_mn_major, bool accumulate, Site at);
void fence_for_wgmma(Site at);
// A thread's accesses to registers, accumulators and A's, come before the wgmmas after it. The
// first wgmma needs one, and each that is given registers which the thread has read or written
// since.
void wgmma_fence(Site at);
void wgmma_commit(Site at);
void wgmma_wait(int groups_left, Site at);

// In a launch that is `dependent`: what the thread does from here on comes after all that the
// launches before it have done.
void wait_for_launch_before(Site at);

// As LaunchConfig has it.
struct Grid {
  dim3 grid, block;
  size_t smem;
  unsigned cluster;
  bool dependent, in_order;
};

// Runs every cluster of a grid, and throws for what went wrong in one: one after another in any
// order, or, `in_order`, begun in that of their numbers, some of which take turns where they wait.
void run_grid(const Grid& shape, void (*thread)(const void*), const void* arguments,
              size_t argument_bytes);

template <class Kernel, class... P>
struct Call {
  Kernel* kernel;
  std::tuple<P...> arguments;
  XGEMM_UNWATCHED static void run(const void* self) {
    const Call* call = static_cast<const Call*>(self);
    std::apply(call->kernel, call->arguments);
  }
};

template <class... P>
XGEMM_UNWATCHED void launch(void (*kernel)(P...), const Grid& shape, P... arguments) {
  const Call<void(P...), P...> call{kernel, {arguments...}};
  run_grid(shape, &Call<void(P...), P...>::run, &call, sizeof call);
}

}  // namespace xgemm::simt

template <class T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32,
              xgemm::simt::Site at = xgemm::simt::here()) {
  return shuffle_as(xgemm::simt::Shuffle::index, mask, value, lane, width, at);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned distance, int width = 32,
                 xgemm::simt::Site at = xgemm::simt::here()) {
  return shuffle_as(xgemm::simt::Shuffle::up, mask, value, static_cast<int>(distance), width, at);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned distance, int width = 32,
                   xgemm::simt::Site at = xgemm::simt::here()) {
  return shuffle_as(xgemm::simt::Shuffle::down, mask, value, static_cast<int>(distance), width, at);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32,
                  xgemm::simt::Site at = xgemm::simt::here()) {
  return shuffle_as(xgemm::simt::Shuffle::across, mask, value, lanes, width, at);
}
// As shuffles: the warp meets five times where a GPU has one instruction.
template <class Combine>
unsigned reduce_as(unsigned mask, unsigned value, const Combine& combine, xgemm::simt::Site at) {
  for (int lanes = 16; lanes > 0; lanes /= 2)
    value = combine(value, __shfl_xor_sync(mask, value, lanes, 32, at));
  return value;
}
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __reduce_add_sync(unsigned mask, unsigned value,
                                  xgemm::simt::Site at = xgemm::simt::here()) {
  return reduce_as(mask, value, [](unsigned a, unsigned b) { return a + b; }, at);
}
inline unsigned __reduce_or_sync(unsigned mask, unsigned value,
                                 xgemm::simt::Site at = xgemm::simt::here()) {
  return reduce_as(mask, value, [](unsigned a, unsigned b) { return a | b; }, at);
}
inline unsigned __reduce_max_sync(unsigned mask, unsigned value,
                                  xgemm::simt::Site at = xgemm::simt::here()) {
  return reduce_as(mask, value, [](unsigned a, unsigned b) { return a > b ? a : b; }, at);
}
inline unsigned __ballot_sync(unsigned mask, int predicate,
                              xgemm::simt::Site at = xgemm::simt::here()) {
  return xgemm::simt::vote("__ballot_sync", mask, predicate, at).ballot;
}
inline int __any_sync(unsigned mask, int predicate, xgemm::simt::Site at = xgemm::simt::here()) {
  return xgemm::simt::vote("__any_sync", mask, predicate, at).ballot != 0;
}
inline int __all_sync(unsigned mask, int predicate, xgemm::simt::Site at = xgemm::simt::here()) {
  const xgemm::simt::Meeting m = xgemm::simt::vote("__all_sync", mask, predicate, at);
  return m.ballot == m.lanes;
}
inline void __syncwarp(unsigned mask = 0xffffffffu, xgemm::simt::Site at = xgemm::simt::here()) {
  xgemm::simt::warp_barrier(mask, at);
}

#define threadIdx (::xgemm::simt::thread_index())
#define blockIdx (::xgemm::simt::block_index())
#define blockDim (::xgemm::simt::block_dim())
#define gridDim (::xgemm::simt::grid_dim())
#define __syncthreads() ::xgemm::simt::barrier(::xgemm::simt::here())

// The static is this declaration's name, one for each instantiation of a kernel template.
#define XGEMM_SHARED(name, ...)                                 \
  static const char name##_site = 0;                            \
  auto& name = *static_cast<::xgemm::simt::Type<__VA_ARGS__>*>( \
      ::xgemm::simt::shared_array(&name##_site, sizeof(::xgemm::simt::Type<__VA_ARGS__>), #name))

#define XGEMM_SHARED_DYNAMIC(name, ...)                         \
  auto& name = *static_cast<::xgemm::simt::Type<__VA_ARGS__>*>( \
      ::xgemm::simt::dynamic_shared(sizeof(::xgemm::simt::Type<__VA_ARGS__>), #name))
