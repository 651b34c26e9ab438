//! count: 1x512x1
#include "exercise.h"

__global__ void sectors(const float* x, float* y) {
  const int lane = threadIdx.x;
  float v = x[lane];  // (neighbours)
  v += x[lane / 4];   // (shared)
  v += x[2 * lane];   // (second)
  v += x[8 * lane];   // (eighth)
  y[lane] = v;
}

void run(const Gemm& g, const Context& context) {
  launch(sectors, {.grid = dim3(1), .block = dim3(32)}, context, g.b.ptr(0, 0), g.d.ptr(0, 0));
}
