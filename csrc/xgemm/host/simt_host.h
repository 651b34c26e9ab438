// The host flavour: CUDA's vocabulary for g++, one fiber a CUDA thread. What it does is in
// simt_host.cpp.
//
// Stages are compiled with -fsanitize=thread for its instrumentation alone: the calls that it
// inserts at every load and store are answered by this project (watch.cpp), which knows the block's
// barriers and the launch's operands.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>

#include "xgemm/gemm.h"
#include "xgemm/stage.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)

// Emulator code inside instrumented translation units is not part of the kernel.
#define XGEMM_UNWATCHED __attribute__((no_sanitize("thread")))

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

struct alignas(16) float4 {
  float x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

namespace xgemm::simt {

template <class T>
using Type = T;

// Where in a kernel's source something happens. Sites are compared by file and line.
struct Site {
  const char* file;
  int line;
};

// By value: a kernel's read of its own index is no memory access.
dim3 thread_index();
dim3 block_index();
dim3 block_dim();
dim3 grid_dim();

// __syncthreads: all threads of the block meet, at one line.
void barrier(const char* file = __builtin_FILE(), int line = __builtin_LINE());

// The block's shared array declared at `site`: zones of no-man's-land around it, filled with NaN
// when the block starts.
void* shared_array(const void* site, size_t bytes, const char* file = __builtin_FILE(),
                   int line = __builtin_LINE());

// Throws when p is not a multiple of `bytes`.
void expect_aligned(const void* p, size_t bytes, const char* file = __builtin_FILE(),
                    int line = __builtin_LINE());

// cp.async: the destination holds NaN from the issue on and gets its value when a wait demands it,
// not before. Bytes beyond `source_bytes` are filled with zeros.
void copy_issue(void* smem, const void* gmem, int bytes, int source_bytes,
                const char* file = __builtin_FILE(), int line = __builtin_LINE());
void copy_commit();
void copy_wait(
    int groups_left);  // until at most so many of the thread's youngest groups are unfinished

// The launch's dynamic shared memory.
void* dynamic_shared(size_t bytes, const char* file = __builtin_FILE(),
                     int line = __builtin_LINE());

// Runs every block of a grid, one after another, and throws for what went wrong in one.
void run_grid(dim3 grid, dim3 block, size_t smem, void (*thread)(const void*),
              const void* arguments, size_t argument_bytes);

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
XGEMM_UNWATCHED void launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t smem,
                            P... arguments) {
  const Call<void(P...), P...> call{kernel, {arguments...}};
  run_grid(grid, block, smem, &Call<void(P...), P...>::run, &call, sizeof call);
}

}  // namespace xgemm::simt

#define threadIdx (::xgemm::simt::thread_index())
#define blockIdx (::xgemm::simt::block_index())
#define blockDim (::xgemm::simt::block_dim())
#define gridDim (::xgemm::simt::grid_dim())
#define __syncthreads() ::xgemm::simt::barrier()

// The static is this declaration's name, one for each instantiation of a kernel template.
#define XGEMM_SHARED(name, ...)                                 \
  static const char name##_site = 0;                            \
  auto& name = *static_cast<::xgemm::simt::Type<__VA_ARGS__>*>( \
      ::xgemm::simt::shared_array(&name##_site, sizeof(::xgemm::simt::Type<__VA_ARGS__>)))

#define XGEMM_SHARED_DYNAMIC(name, ...)                         \
  auto& name = *static_cast<::xgemm::simt::Type<__VA_ARGS__>*>( \
      ::xgemm::simt::dynamic_shared(sizeof(::xgemm::simt::Type<__VA_ARGS__>)))
