// Products of a 16-bit A and a B of floats (core/half_operand.h): tensors -> Gemm and HalfOperand.
// Where no stage reads such an A, it is copied to floats, which hold it exactly.
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>

#include "binding.h"
#include "emulator/simt_control.h"
#include "xgemm/core/tile_scheduler.h"
#include "xgemm/dispatch/overrides.h"
#if XGEMM_WITH_CUDA
#include <torch/csrc/stable/accelerator.h>

#include "xgemm/device/device.h"
#endif

namespace xgemm {
namespace {

constexpr int kFloat16 = 5, kBfloat16 = 15;

struct Mixed {
  Gemm g;
  HalfOperand a;
};

// All checks. Of A the problem has only how it lies.
Mixed describe_mixed(const Tensor& a, const Tensor& b, const std::optional<Tensor>& c,
                     bool trans_b) {
  const std::string op = kMixedOp;
  int32_t type = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(a.get(), &type));
  if (type != kFloat16) check_tensor(op, "a", a, a, kBfloat16);
  else check_tensor(op, "a", a, a, kFloat16);
  check_tensor(op, "b", b, a);
  if (!a.is_cpu() && !a.is_cuda())
    bad(op, "a is on ", device_of(a), "; cpu and cuda are supported");
  if (a.dim() != 2 || b.dim() != 2)
    bad(op, "a and b must have 2 dimensions, got shapes ", shape_of(a), " and ", shape_of(b));
  const Shape x = axes_of(a), y = matrix(op, "b", b);
  check_storage(op, "a", a, x, 2);
  Mixed r;
  Gemm& g = r.g;
  g.m = x.size[1], g.k = x.size[2], g.n = y.size[trans_b ? 1 : 2];
  if (y.size[trans_b ? 2 : 1] != g.k)
    bad(op, "inner sizes differ: a is ", shape_of(a), ", b is ", shape_of(b),
        trans_b ? " with trans_b=True" : "");
  g.a = {nullptr, x.stride[1], x.stride[2], 0};
  g.b = view(b, y, trans_b);
  g.match_single_chain_overflow = true;
  if (c) {
    check_tensor(op, "c", *c, a);
    g.beta = 1.f;
    g.c = broadcast(op, *c, g, false);
  }
  r.a = {static_cast<const uint16_t*>(a.const_data_ptr()), x.stride[1], type == kBfloat16};
  return r;
}

// Whether a stage can read A as it is.
bool as_it_is(const Gemm& g) { return g.k > 0 && (g.a.cs == 1 || g.k == 1); }

#if XGEMM_WITH_CUDA
// In microseconds: what a stage takes that reads A as it is, launches, bytes of operands and limbs
// and the products of whole clusters' tiles, and what a copy of A takes. The first is fitted to 99
// problems on an H100 (2026-11-28), where the choice between the two was 3% or more beside the
// quicker one's time in 5, and 33% in one, 2048 x 64 x 4096.
struct {
  double once = 18., of_a_byte = 0.316e-6, of_a_flop = 3.36e-9, of_k = 1.86e-3;
} constexpr kAsItIs;
struct {
  double once = 2., of_a_byte = 1 / 2.4e6;
} constexpr kCopy;
constexpr int64_t kClusterRows = 256, kClusterColumns = 128;

double as_it_is_us(const Gemm& g) {
  const auto padded = [](int64_t x, int64_t to) {
    return static_cast<double>(ceil_div(x, to) * to);
  };
  const auto m = static_cast<double>(g.m), n = static_cast<double>(g.n),
             k = static_cast<double>(g.k);
  return kAsItIs.once + (8. * n + 4. * m) * k * kAsItIs.of_a_byte +
         2. * padded(g.m, kClusterRows) * padded(g.n, kClusterColumns) * k * kAsItIs.of_a_flop +
         k * kAsItIs.of_k;
}
double copy_us(const Gemm& g) {
  return kCopy.once + 6. * static_cast<double>(g.m) * static_cast<double>(g.k) * kCopy.of_a_byte;
}

// By this stage, or by one that reads A as it is, where that is quicker than auto's with a copy;
// false where it is not.
bool run_mixed_cuda(Mixed& r, const Tensor& a, const Stage* asked) {
  const torch::stable::accelerator::DeviceGuard guard(a.get_device_index());
  Context context = context_of(a);
  const Stage* stage = asked;
  if (asked) {
    require(*asked, r.g, context.device);
  } else {
    stage = stage_that([](const Stage& s) { return s.takes_half_a; }, r.g, context.device);
    if (!stage) return false;
    const Pick copied = choose(r.g, context.device, a.get_device_index(), false, kAnyWorkspace);
    if (copied.stage && copied.stage != stage &&
        estimate(copied, r.g, context.device) + copy_us(r.g) < as_it_is_us(r.g))
      return false;
  }
  context.half_a = r.a;
  std::optional<Tensor> workspace;
  if (!allocate(*stage, r.g, a, context, workspace)) {
    if (!asked) return false;
    no_memory(kMixedOp, asked->name + " needs a workspace", context.workspace_bytes, a, "");
  }
  stage->run(r.g, context);
  cuda_check_launch(stage->name.c_str());
  return true;
}
#endif

}  // namespace

Tensor mixed_mm(const Tensor& a, const Tensor& b, const std::optional<Tensor>& c, bool trans_b,
                const std::string& precision, const std::string& kernel) {
  const std::string op = kMixedOp;
  Mixed r = describe_mixed(a, b, c, trans_b);
  const Stage* const stage = named(op, kernel, a.is_cpu() ? Flavour::host : Flavour::cuda);
  check_precision(op, precision);
  if (precision == "fp32" && as_it_is(r.g) && r.g.m > 0 && r.g.n > 0 &&
      (!stage || stage->takes_half_a) && (stage || a.is_cuda())) {
    const Tensor out = new_floats(a, {1, r.g.m, r.g.n}, r.g.n, false);
    r.g.d = {static_cast<float*>(out.mutable_data_ptr()), r.g.n, 1, 0};
    if (a.is_cpu()) {
      simt::run_watched(*stage, r.g, nullptr, nullptr, {}, r.a);
      return out;
    }
#if XGEMM_WITH_CUDA
    if (run_mixed_cuda(r, a, stage)) return out;
#endif
  }
  return sgemm_of(op, torch::stable::to(a, torch::headeronly::ScalarType::Float), b, c, trans_b,
                  precision, kernel);
}

}  // namespace xgemm
