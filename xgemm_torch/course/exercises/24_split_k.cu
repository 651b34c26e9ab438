//! title: A long K, shared out
//! kind: fill
//! stage: split_k
//! cases: 5x7x100 1x1x1 3x4x0 8x33x9 6x5x130/TN+3 9x4x57/NT*2,0.5 4x4x65!special
//! hint: Slice s has k from s * length to the smaller of (s + 1) * length and K; length is K /
//!   kSlices, rounded up.
//! hint: The last slices may have no k at all: begin is past K then. Their sum is 0, and is
//!   stored like the others.
//! hint: part(s, i, j) of the second kernel: sum = part 0, then + part 1, + part 2, ..., in this
//!   order, then g.store.
// A product of 8 x 8 with K = 65536 has 64 results: two warps' work, on a GPU of 132
// multiprocessors. What there is a lot of is k. So the sum is cut in slices, each a chain that
// other blocks compute, and the parts are added up by a second launch:
//
//   part(s, i, j) = sum over the k of slice s          kSlices times as many threads
//   D(i, j)       = part 0 + part 1 + part 2 + ...     in this order, always
//
// Two things are easy to get wrong. Atomic additions need no second launch, but come in any order:
// other bits from run to run. And the number of slices must follow from the sizes alone, not from
// the GPU: else another GPU gives other bits.
//
// Each part goes to a place of its own in the workspace, part s at s * m * n + i * n + j. By hand:
// K = 100 and 4 slices are 25 each; K = 9 are 3, 3, 3 and none: the last sum is 0.

#include "exercise.h"

constexpr int kSlices = 4;

size_t workspace(const Gemm& g, const Context&) {
  return static_cast<size_t>(kSlices * g.m * g.n) * sizeof(float);
}

float expected(const Gemm& g, int64_t i, int64_t j) {
  const int64_t length = (g.k + kSlices - 1) / kSlices;
  float sum = 0.f;
  for (int s = 0; s < kSlices; ++s) {
    float part = 0.f;
    for (int64_t k = s * length; k < (s + 1) * length && k < g.k; ++k)
      part = fmaf(g.a(i, k), g.b(k, j), part);
    sum = s == 0 ? part : sum + part;
  }
  return g.finish(sum, g.beta == 0.f ? 0.f : g.c(i, j));
}

__global__ void multiply(const Gemm g, float* parts) {
  const int64_t i = blockIdx.y, j = int64_t{blockIdx.x} * 32 + threadIdx.x, slice = blockIdx.z;
  if (j >= g.n) return;
#if GIVEN  // bits: no slice has any k
  const int64_t begin = 0, end = 0;
#elif WRONG_1  // stray: the last slices reach past K
  const int64_t length = (g.k + kSlices - 1) / kSlices, begin = slice * length;
  const int64_t end = begin + length;
#else
  const int64_t length = (g.k + kSlices - 1) / kSlices, begin = slice * length;
  const int64_t end = begin + length < g.k ? begin + length : g.k;
#endif
  float acc = 0.f;
  for (int64_t k = begin; k < end; ++k) acc = fmaf(g.a(i, k), g.b(k, j), acc);
#if WRONG_2  // race: all slices store in one place
  parts[i * g.n + j] = acc;
#else
  parts[(slice * g.m + i) * g.n + j] = acc;
#endif
}

__global__ void add_up(const Gemm g, const float* parts) {
  const int64_t i = blockIdx.y, j = int64_t{blockIdx.x} * 32 + threadIdx.x;
  if (j >= g.n) return;
  const auto part = [&](int s) { return parts[(s * g.m + i) * g.n + j]; };
#if GIVEN  // bits: one part is not the sum
  g.store(i, j, part(0));
#elif WRONG_3  // bits: in the other order
  float sum = part(kSlices - 1);
  for (int s = kSlices - 2; s >= 0; --s) sum += part(s);
  g.store(i, j, sum);
#else
  float sum = part(0);
  for (int s = 1; s < kSlices; ++s) sum += part(s);
  g.store(i, j, sum);
#endif
}

void run(const Gemm& g, const Context& context) {
  float* parts = static_cast<float*>(context.workspace);
  const dim3 grid((g.n + 31) / 32, g.m, kSlices);
  launch(multiply, {.grid = grid, .block = dim3(32)}, context, g, parts);
  launch(add_up, {.grid = dim3(grid.x, grid.y), .block = dim3(32)}, context, g,
         static_cast<const float*>(parts));
}
