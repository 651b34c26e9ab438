// What an exercise begins with: CUDA's words as the stages of csrc/xgemm use them. The file is
// compiled by g++ for the emulator, or by nvcc for a GPU.
//
//   XGEMM_SHARED(As, float[32][33]);   __shared__ float As[32][33];
//   launch(kernel, {.grid = .., .block = ..}, context, g);   kernel<<<grid, block>>>(g);
//
// `Gemm` (xgemm/core/gemm.h) is the problem: D = alpha A B + beta C. A is g.m x g.k, B is g.k x
// g.n, D and C are g.m x g.n. g.a(i, k), g.b(k, j), g.d(i, j) are elements, however they lie in
// memory, g.a.ptr(i, k) is where one lies. g.store(i, j, acc) is the epilogue: it applies alpha and
// beta, and leaves out what is outside D. printf works, in a kernel as well.
#pragma once

#include <cstdio>

#include "xgemm/device/fragment.h"
#include "xgemm/device/half.h"
#include "xgemm/device/launch.h"
#include "xgemm/device/pipeline.h"
#include "xgemm/device/ptx/mbarrier.h"
#include "xgemm/device/ptx/mma.h"
#include "xgemm/device/ptx/wgmma.h"

using namespace xgemm;

// Launches the exercise's kernels on D = A B.
void run(const Gemm& g, const Context& context);
// What D(i, j) is to be, in exercises that ask for other bits than those of one chain of fused
// multiply-adds in the order of k.
float expected(const Gemm& g, int64_t i, int64_t j);
// Bytes of context.workspace, for exercises that need one.
size_t workspace(const Gemm& g, const Context& context);

// An address in shared memory, as descriptors of wgmma have it.
__device__ __forceinline__ uint64_t address_in_shared(const void* p) {
#ifdef __CUDACC__
  return shared_address(p);
#else
  return simt::shared_address(p);
#endif
}
