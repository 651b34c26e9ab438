// The tensor core's instructions of a warp (sm_80), one function each, with their host bodies. Both
// are synchronous, and all 32 lanes meet in them.
#pragma once

#include "xgemm/device/half.h"
#include "xgemm/device/ptx/base.h"

namespace xgemm {

// Four 8 x 8 matrices of 16-bit elements from shared memory. Lane l gives the address of row l % 8
// of matrix l / 8: 16 bytes, aligned to 16. Lane l gets of each matrix, r[0] to r[3], elements
// (l / 4, 2 (l % 4)) and, in the upper half, (l / 4, 2 (l % 4) + 1).
__device__ __forceinline__ void ldmatrix4(uint32_t (&r)[4], const void* row,
                                          [[maybe_unused]] simt::Site site = simt::here()) {
#ifdef __CUDACC__
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(row)))
               : "memory");
#else
  simt::ldmatrix4(r, row, site);
#endif
}

// d (16 x 8 over the warp) += A (16 x 16) B (16 x 8). With g = l / 4 and c = 2 (l % 4) lane l has
//   d[2 h + e] = D(g + 8 h, c + e),
//   a[h + 2 q] = A(g + 8 h, c + 8 q) and, in the upper half, A(g + 8 h, c + 8 q + 1),
//   b[q] = B(c + 8 q, g) and B(c + 8 q + 1, g):
// a is what ldmatrix4 gives of the quarters (0, 0), (8, 0), (0, 8), (8, 8) of A as it lies by rows,
// and b a matrix of it where B lies by columns.
template <Half kType>
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                                    [[maybe_unused]] simt::Site site = simt::here()) {
#ifdef __CUDACC__
  if constexpr (kType == Half::fp16)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7},"
        " {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7},"
        " {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  simt::mma(kType, d, a, b, site);
#endif
}

}  // namespace xgemm
