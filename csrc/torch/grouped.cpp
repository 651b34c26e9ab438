// Products of groups (core/groups.h): tensors -> Gemm and Groups, and on a CPU ATen's BLAS.
#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h>
#include <torch/csrc/stable/accelerator.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "binding.h"
#include "emulator/simt_control.h"
#include "xgemm/core/tile_scheduler.h"
#if XGEMM_WITH_CUDA
#include "xgemm/device/device.h"
#endif

namespace xgemm {
namespace {

// Where b is cut along its columns, the transposed result is cut along its rows.
struct Grouped {
  Gemm g;
  Groups groups;
  std::array<int64_t, 3> size;  // of the result
  bool turned = false;
};
Grouped describe_groups(const Tensor& a, const Tensor& b, const Tensor& offs) {
  const std::string op = kGroupedOp;
  check_tensor(op, "a", a, a);
  check_tensor(op, "b", b, a);
  if (!a.is_cpu() && !a.is_cuda())
    bad(op, "a is on ", device_of(a), "; cpu and cuda are supported");
  check_tensor(op, "offs", offs, a, kInt32);
  if (offs.dim() != 1 || (offs.numel() > 1 && offs.stride(0) != 1))
    bad(op, "offs must have 1 dimension and lie dense, got shape ", shape_of(offs));
  check_storage(op, "offs", offs, axes_of(offs));
  const auto dims = std::pair(a.dim(), b.dim());
  const bool of_k = dims == std::pair<int64_t, int64_t>(2, 2);
  const bool turned = dims == std::pair<int64_t, int64_t>(3, 2);
  if (!of_k && !turned && dims != std::pair<int64_t, int64_t>(2, 3))
    bad(op, "a and b must have 2 and 3, 3 and 2, or 2 and 2 dimensions, got shapes ", shape_of(a),
        " and ", shape_of(b));
  const Shape x = matrix(op, "a", a), y = matrix(op, "b", b);
  if (x.size[2] != y.size[1])
    bad(op, "inner sizes differ: a is ", shape_of(a), ", b is ", shape_of(b));
  Grouped r;
  r.turned = turned;
  r.groups = {static_cast<const int32_t*>(offs.const_data_ptr()), of_k};
  Gemm& g = r.g;
  g.m = x.size[1], g.n = y.size[2], g.k = x.size[2], g.batch = offs.numel();
  const int64_t matrices = turned ? x.size[0] : y.size[0];
  if (!of_k && matrices != g.batch)
    bad(op, "offs has ", g.batch, " ends, ", turned ? "a" : "b", " has ", matrices, " matrices");
  r.size = {of_k ? g.batch : 1, g.m, g.n};
  g.a = view(a, x, false), g.b = view(b, y, false);
  g.match_single_chain_overflow = true;
  return r;
}

// Rows of the result begin at multiples of 16 bytes, as torch's do.
Tensor new_grouped(const Tensor& like, Grouped& r) {
  const bool batched = r.groups.of_k;
  const int64_t row = std::max<int64_t>(ceil_div(r.g.n, 4) * 4, 1);
  const Tensor out = new_floats(like, r.size, row, batched);
  r.g.d = {static_cast<float*>(out.mutable_data_ptr()), row, 1, batched ? out.stride(0) : 0};
  if (r.turned) r.g = transposed(r.g);
  return out;
}

// Group by group by ATen's BLAS.
void run_groups_blas(const Grouped& r, const Tensor& a, const Tensor& b, const Tensor& out) {
  std::vector<int32_t> first{0};
  const int64_t all = r.groups.of_k ? r.g.k : r.g.m;
  for (int64_t z = 0; z < r.g.batch; ++z)
    first.push_back(static_cast<int32_t>(
        std::max<int64_t>(first.back(), std::min<int64_t>(r.groups.ends[z], all))));
  const GroupTable table{.first = first.data(), .of_k = r.groups.of_k};
  for (int64_t z = 0; z < r.g.batch; ++z) {
    const Gemm g = table.problem(r.g, z);
    if (g.m == 0) continue;
    const Tensor d = view_of(out, g.d, {1, g.m, g.n}, false);
    TORCH_ERROR_CODE_CHECK(aoti_torch_cpu_addmm_out(
        d.get(), d.get(), view_of(r.turned ? b : a, g.a, {1, g.m, g.k}, false).get(),
        view_of(r.turned ? a : b, g.b, {1, g.k, g.n}, false).get(), 0., 1.));
  }
}

#if XGEMM_WITH_CUDA
// Of so few rows a group, where both operands lie along k, teams read each matrix once; limbs of it
// are 12 bytes an element to write and read. xgemm_torch/grouped.py says the same.
constexpr int64_t kFewRowsOfGroup = 4;
bool has_few_rows(const Grouped& r) {
  const Gemm& g = r.g;
  return !r.groups.of_k && g.m <= kFewRowsOfGroup * g.batch && g.a.cs == 1 && g.b.rs == 1;
}

void run_groups_cuda(const Grouped& r, const Tensor& a, const Stage* stage) {
  const torch::stable::accelerator::DeviceGuard guard(a.get_device_index());
  Context context = context_of(a);
  context.groups = r.groups;
  if (stage) require(*stage, r.g, context.device);
  if (!stage && has_few_rows(r))
    stage =
        stage_that([](const Stage& s) { return s.takes_groups && s.teams; }, r.g, context.device);
  if (!stage)
    stage =
        stage_that([](const Stage& s) { return s.takes_groups && !s.teams; }, r.g, context.device);
  if (!stage)
    bad(kGroupedOp, "no stage of this build takes groups on compute capability ", context.device.sm,
        "; xgemm_torch.grouped_mm goes group by group there");
  std::optional<Tensor> workspace;
  if (!allocate(*stage, r.g, a, context, workspace))
    no_memory(kGroupedOp, stage->name + " needs a workspace", context.workspace_bytes, a, "");
  stage->run(r.g, context);
  cuda_check_launch(stage->name.c_str());
}
#endif

}  // namespace

Tensor grouped_mm(const Tensor& a, const Tensor& b, const Tensor& offs, const std::string& kernel) {
  const std::string op = kGroupedOp;
  Grouped r = describe_groups(a, b, offs);
  const Stage* const stage = named(op, kernel, a.is_cpu() ? Flavour::host : Flavour::cuda);
  if (stage && !stage->takes_groups) {
    bad(op, stage->name, " takes no groups; stages that do: ", names_of([](const Stage& s) {
          return s.takes_groups;
        }));
  }
  const Tensor out = new_grouped(a, r);
  if (r.g.batch == 0 || r.g.m == 0 || r.g.n == 0) return out;
  if (a.is_cpu()) {
    if (stage) simt::run_watched(*stage, r.g, nullptr, nullptr, r.groups);
    else run_groups_blas(r, a, b, out);
    return out;
  }
#if XGEMM_WITH_CUDA
  run_groups_cuda(r, a, stage);
  return out;
#else
  no_cuda(op);
#endif
}

}  // namespace xgemm
