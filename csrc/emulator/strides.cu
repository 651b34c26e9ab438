// A warp's accesses at given strides, whose cost is known: the test of the counts.
#include "emulator/simt_control.h"
#include "emulator/trace.h"
#include "xgemm/device/launch.h"

namespace xgemm::simt {
namespace {

constexpr int kMostStride = 33;
Strides strides_to_run;

template <class Vector>
__global__ void strided(const Gemm g, Strides s) {
  constexpr int kVectors = 32 * kMostStride;
  XGEMM_SHARED(From, Vector[kVectors]);
  XGEMM_SHARED(To, Vector[kVectors]);
  const int lane = threadIdx.x;
  for (int i = lane; i < kVectors; i += 32) From[i] = Vector{};
  __syncthreads();
  if (lane >= s.lanes) return;
  const auto* b = reinterpret_cast<const Vector*>(g.b.ptr(0, s.first));
  auto* d = reinterpret_cast<Vector*>(g.d.ptr(0, s.first));
  const Vector global = b[lane * s.global];
  To[lane * s.store] = global;
  d[lane * s.global] = From[lane / s.share * s.load];
}

void run_strided(const Gemm& g, const Context& context) {
  const LaunchConfig one_warp{.grid = dim3(1), .block = dim3(32)};
  const Strides& s = strides_to_run;
  if (s.width == 1) launch(strided<float>, one_warp, context, g, s);
  else if (s.width == 2) launch(strided<double>, one_warp, context, g, s);
  else launch(strided<float4>, one_warp, context, g, s);
}

}  // namespace

std::vector<TrafficRow> probe_traffic(const Strides& s) {
  strides_to_run = s;
  Stage stage;
  stage.name = "probe";
  stage.run = run_strided;
  return traffic(stage, SmallProblem(1, 4 * 32 * kMostStride + 4, 1, false, false).g);
}

}  // namespace xgemm::simt
