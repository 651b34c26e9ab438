// Tensors -> Gemm: the checks, the device, the stream, the workspace. With its neighbours in this
// room the only code that knows torch.
#include "ops.h"

#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h>
#include <torch/csrc/stable/accelerator.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "binding.h"
#include "emulator/simt_control.h"
#include "xgemm/core/split_k.h"
#include "xgemm/core/tile_scheduler.h"
#include "xgemm/dispatch/overrides.h"
#include "xgemm/reference/ieee.h"
#if XGEMM_WITH_CUDA
#include "xgemm/device/device.h"
#endif

// Since torch 2.12, which the stable ABI of 2.10 does not declare: null where they are missing.
extern "C" AOTITorchError torch_library_def_with_tags(TorchLibraryHandle self, const char* schema,
                                                      const int32_t* tags, int32_t num_tags);
extern "C" int32_t torch_tag_flexible_layout();
extern "C" int32_t torch_tag_pt2_compliant_tag();
#pragma weak torch_library_def_with_tags
#pragma weak torch_tag_flexible_layout
#pragma weak torch_tag_pt2_compliant_tag

namespace xgemm {
namespace {

constexpr const char* kActivations[] = {"none", "relu", "gelu", "gelu_tanh", "silu"};

// The arguments of every operator, in its schema's order.
struct Arguments {
  Tensor a, b;
  std::optional<Tensor> c;
  double alpha, beta;
  bool trans_a, trans_b;
  std::string precision, kernel, activation;
  std::optional<Tensor> packed;
  std::optional<int64_t> chain;
  std::optional<bool> batch_invariant;

  bool invariant() const { return batch_invariant.value_or(false); }
};

// Bytes from the first element that a view touches to past the last.
struct Range {
  uintptr_t first, last;
};
Range range(const View<const float>& v, int64_t batch, int64_t rows, int64_t columns) {
  const auto first = reinterpret_cast<uintptr_t>(v.data);
  const int64_t reach = (batch - 1) * v.bs + (rows - 1) * v.rs + (columns - 1) * v.cs;
  return {first, first + static_cast<uintptr_t>(reach + 1) * sizeof(float)};
}

// Whether columns of two row-major views of one row stride interleave without meeting: [x, x + nx)
// and [y, y + ny) of a row of `stride` floats.
bool side_by_side(const View<const float>& x, int64_t nx, const View<const float>& y, int64_t ny) {
  if (x.cs != 1 || y.cs != 1 || x.rs != y.rs || x.rs <= 0) return false;
  const int64_t gap = (y.data - x.data) % x.rs, from = gap < 0 ? gap + x.rs : gap;
  return from >= nx && from + ny <= x.rs;
}

void check_out(const std::string& op, const Tensor& out, const Shape& s, const Gemm& g,
               int64_t dims, bool has_c) {
  if (out.dim() != dims || s.size != std::array<int64_t, 3>{g.batch, g.m, g.n}) {
    const std::string head = dims == 3 ? std::to_string(g.batch) + ", " : "";
    bad(op, "out must have shape (", head, g.m, ", ", g.n, "), got ", shape_of(out));
  }
  if (g.batch * g.m * g.n == 0) return;
  check_apart(op, "out", s.size, s.stride);
  const View<const float> d{g.d.data, g.d.rs, g.d.cs, g.d.bs};
  const Range o = range(d, g.batch, g.m, g.n);
  const auto disjoint = [&](const View<const float>& v, int64_t rows, int64_t columns) {
    const Range r = range(v, g.batch, rows, columns);
    if (rows * columns == 0 || r.last <= o.first || o.last <= r.first) return true;
    return g.batch == 1 && side_by_side(d, g.n, v, columns);
  };
  if (!disjoint(g.a, g.m, g.k)) bad(op, "out and a share memory");
  if (!disjoint(g.b, g.k, g.n)) bad(op, "out and b share memory");
  const bool same = has_c && g.c.data == d.data && (g.m == 1 || g.c.rs == d.rs) &&
                    (g.n == 1 || g.c.cs == d.cs) && (g.batch == 1 || g.c.bs == d.bs);
  if (has_c && !same && !disjoint(g.c, g.m, g.n))
    bad(op, "out and c share memory without being the same view");
}

Act activation(const std::string& op, const std::string& name) {
  for (size_t i = 0; i < std::size(kActivations); ++i)
    if (name == kActivations[i]) return static_cast<Act>(i);
  bad(op, "no activation named '", name, "'; there are: none, relu, gelu, gelu_tanh, silu");
}

// A finite number that has no float is refused: as an infinity it would make NaNs of zeros.
float factor(const std::string& op, const char* name, double x) {
  const auto f = static_cast<float>(x);
  if (std::isinf(f) && !std::isinf(x))
    bad(op, name, " is ", x, ", beyond float32's largest number");
  return f;
}

// All checks, then the plain struct. The result's view (d) is still to be filled in.
Gemm describe(const std::string& op, const Arguments& x) {
  check_tensor(op, "a", x.a, x.a);
  check_tensor(op, "b", x.b, x.a);
  if (!x.a.is_cpu() && !x.a.is_cuda())
    bad(op, "a is on ", device_of(x.a), "; cpu and cuda are supported");
  Shape a = matrix(op, "a", x.a), b = matrix(op, "b", x.b);
  const size_t rows = 1, columns = 2;
  Gemm g;
  g.m = a.size[x.trans_a ? columns : rows];
  g.n = b.size[x.trans_b ? rows : columns];
  g.k = a.size[x.trans_a ? rows : columns];
  if (b.size[x.trans_b ? columns : rows] != g.k) {
    const bool plain = !x.trans_a && !x.trans_b;
    bad(op, "inner sizes differ: a is ", shape_of(x.a), ", b is ", shape_of(x.b),
        plain ? ""
              : std::string(" with trans_a=") + (x.trans_a ? "True" : "False") +
                    ", trans_b=" + (x.trans_b ? "True" : "False"));
  }
  if (a.size[0] != b.size[0] && a.size[0] != 1 && b.size[0] != 1)
    bad(op, "batch sizes differ: a is ", shape_of(x.a), ", b is ", shape_of(x.b));
  g.batch = a.size[0] == 1 ? b.size[0] : a.size[0];
  g.a = view(x.a, a, x.trans_a);
  g.b = view(x.b, b, x.trans_b);
  // What auto takes for "fp32" makes one chain, or none, or several that are as finite as one.
  const bool chosen = x.precision != "ieee" && x.kernel == "auto" && takes_any_stage(op);
  if (!chosen || is_narrow(g.m, g.n)) g.split_k_size = split_k_size_of(g);
  if (x.chain) {
    if (chosen) bad(op, "chain is of precision='ieee'; \"fp32\" has sums of other kinds");
    if (*x.chain < 1 || (*x.chain < g.k && *x.chain % kSplitKStep))
      bad(op, "chain must be a multiple of ", kSplitKStep, " or K, got ", *x.chain);
    g.split_k_size = *x.chain;
  }
  g.match_single_chain_overflow = x.precision == "fp32";
  g.alpha = factor(op, "alpha", x.alpha);
  g.beta = factor(op, "beta", x.beta);
  if (!x.c) g.beta = 0.f;
  g.act = activation(op, x.activation);
  check_precision(op, x.precision);
  if (x.invariant() && x.precision != "fp32")
    bad(op, "batch_invariant is of precision='fp32'; \"ieee\" has chain");
  if (x.c) {
    check_tensor(op, "c", *x.c, x.a);
    g.c = broadcast(op, *x.c, g, x.a.dim() == 3 || x.b.dim() == 3);
  } else if (x.beta != 0. && x.beta != 1.) {
    bad(op, "beta is ", x.beta, " but there is no c");
  }
  if (x.packed) {
    check_tensor(op, "packed", *x.packed, x.a, kUint8);
    if (x.packed->dim() != 1 || x.packed->stride(0) != 1 || x.b.dim() != 2)
      bad(op, "packed must be what prepack has made of a b of 2 dimensions, got shape ",
          shape_of(*x.packed), " for b ", shape_of(x.b));
    check_storage(op, "packed", *x.packed, axes_of(*x.packed), 1);
  }
  return g;
}

// What prepack has made of b, for a stage that takes it; null for the others.
void* packed_b(const std::string& op, const Stage& stage, const Gemm& g, const Arguments& x) {
  if (!x.packed || !stage.pack || g.k == 0) return nullptr;
  const auto bytes = static_cast<int64_t>(stage.packed_bytes(g));
  if (x.packed->numel() != bytes)
    bad(op, "packed is not of this b: it has ", x.packed->numel(), " bytes, prepack gives ", bytes,
        " for K = ", g.k, ", N = ", g.n);
  if (reinterpret_cast<uintptr_t>(x.packed->const_data_ptr()) % 16)
    bad(op, "packed is at an address that is no multiple of 16; prepack gives one that is");
  return const_cast<void*>(x.packed->const_data_ptr());
}

// `size` uninitialised floats.
Tensor new_vector(const Tensor& like, int64_t size) {
  const int64_t stride = 1;
  int32_t device = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(like.get(), &device));
  AtenTensorHandle handle = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(1, &size, &stride, kFloat32, device,
                                                  like.get_device_index(), &handle));
  return Tensor(handle);
}

// The sums of A's rows over K, if they are wanted: of a stage that makes them.
using RowSums = std::optional<Tensor>;
float* room_for(RowSums* sums, const Stage& stage, const Gemm& g, const Tensor& a) {
  if (!sums || !stage.sums_rows || !stage.sums_rows(g)) return nullptr;
  *sums = new_vector(a, g.m);
  return static_cast<float*>((*sums)->mutable_data_ptr());
}

// ATen's BLAS on views of the operands; `act` is left to the caller.
void run_blas(const Gemm& g, const Arguments& x, const Tensor& out) {
  const bool batched = out.dim() == 3;
  const Tensor a = view_of(x.a, g.a, {g.batch, g.m, g.k}, batched);
  const Tensor b = view_of(x.b, g.b, {g.batch, g.k, g.n}, batched);
  // With beta = 0 ATen reads nothing of this operand, but wants one: the result itself.
  const Tensor c = g.beta == 0.f || g.c.data == g.d.data
                       ? out
                       : view_of(*x.c, g.c, {g.batch, g.m, g.n}, batched);
  const auto blas = batched ? aoti_torch_cpu_baddbmm_out : aoti_torch_cpu_addmm_out;
  TORCH_ERROR_CODE_CHECK(blas(out.get(), c.get(), a.get(), b.get(), g.beta, g.alpha));
}

void run_cpu(const std::string& op, const Gemm& g, const Arguments& x, const Tensor& out,
             RowSums* row_sums) {
  if (const Stage* stage = named(op, x.kernel, Flavour::host))
    return simt::run_watched(*stage, g, packed_b(op, *stage, g, x),
                             room_for(row_sums, *stage, g, x.a), {}, {}, x.invariant());
  const bool strict = x.precision == "ieee";
  if (!strict) run_blas(g, x, out);
  if (!strict && g.act == Act::none) return;
  // Of a row. With strides of 0, sizes may be such that their product is no number.
  const double work = 2. * static_cast<double>(g.n) * static_cast<double>(strict ? g.k : 1);
  torch::stable::parallel_for(0, g.batch * g.m,
                              work < 32768. ? static_cast<int64_t>(32768. / work) : 1,
                              [&](int64_t first, int64_t last) {
                                if (strict) return chain(g, first, last);
                                for (int64_t row = first; row < last; ++row) {
                                  const Gemm one = g.at(row / g.m);
                                  for (int64_t j = 0; j < g.n; ++j)
                                    one.d(row % g.m, j) = activate(g.act, one.d(row % g.m, j));
                                }
                              });
}

#if XGEMM_WITH_CUDA

void run_cuda(const std::string& op, const Gemm& g, const Arguments& x, RowSums* row_sums) {
  const torch::stable::accelerator::DeviceGuard guard(x.a.get_device_index());
  Context context = context_of(x.a);
  const Stage* asked = named(op, x.kernel, Flavour::cuda);
  context.invariant = x.invariant();
  if (context.invariant && !asked) {
    asked =
        stage_that([](const Stage& s) { return s.invariant_row != nullptr; }, g, context.device);
    if (!asked)
      bad(op, "no stage of this build is batch_invariant on compute capability ",
          context.device.sm);
  }
  const int32_t index = x.a.get_device_index();
  const bool strict = x.precision == "ieee";
  Pick pick{asked};
  if (asked) {
    require(*asked, g, context.device);
    pick.row = forced_row(*asked, context.device);
    if (pick.row < 0)
      pick.row = context.invariant ? asked->invariant_row(g, context.device)
                                   : choose_row(*asked, g, context.device, index, strict);
  } else {
    pick = choose(g, context.device, index, strict, kAnyWorkspace);
  }
  std::optional<Tensor> workspace;  // kept until the launches are enqueued
  const auto prepare = [&] {
    if (!pick.stage)
      bad(op, "no stage of this build takes this problem on compute capability ",
          context.device.sm);
    context.row = pick.row;
    context.packed_b = packed_b(op, *pick.stage, g, x);
    return allocate(*pick.stage, g, x.a, context, workspace);
  };
  if (!prepare()) {
    if (asked)
      no_memory(op, asked->name + " needs a workspace", context.workspace_bytes, x.a,
                context.invariant ? "" : "; kernel='auto' then takes a stage that needs none");
    pick = choose(g, context.device, index, strict, 0);
    prepare();
  }
  context.row_sums = room_for(row_sums, *pick.stage, g, x.a);
  pick.stage->run(g, context);
  cuda_check_launch(pick.stage->name.c_str());
}

void pack_cuda(const Stage& stage, const Gemm& g, const Tensor& b, const Tensor& packed,
               Context context) {
  context.packed_b = packed.mutable_data_ptr();
  std::optional<Tensor> workspace;
  if (!allocate(stage, g, b, context, workspace))
    no_memory("prepack", stage.name + " needs a workspace", context.workspace_bytes, b, "");
  stage.pack(g, context);
  cuda_check_launch(stage.name.c_str());
}
#endif

void run(const std::string& op, Gemm g, const Arguments& x, const Tensor& out, const Shape& s,
         RowSums* row_sums = nullptr) {
  g.d = {static_cast<float*>(out.mutable_data_ptr()), s.stride[1], s.stride[2],
         s.size[0] == 1 ? 0 : s.stride[0]};
  // Names are checked for empty results as well.
  const Stage* const stage = named(op, x.kernel, Flavour::host);
  if (stage && !stage->strict && x.precision == "ieee")
    bad(op, stage->name, " has other bits than precision='ieee' guarantees; kernel='auto' takes a ",
        "stage that has them");
  if (x.invariant() && (stage ? !stage->invariant_row : x.a.is_cpu()))
    bad(op, stage ? stage->name : "a CPU's BLAS", " is not batch_invariant; stages that are: ",
        names_of([](const Stage& s) { return s.invariant_row != nullptr; }));
  if (g.batch == 0 || g.m == 0 || g.n == 0) return;
  if (x.a.is_cpu()) return run_cpu(op, g, x, out, row_sums);
#if XGEMM_WITH_CUDA
  run_cuda(op, g, x, row_sums);
#else
  no_cuda(op);
#endif
}

// b's limbs, or nothing where no stage packs: on a CPU only one that is named does.
Tensor prepack(const Tensor& b, bool trans_b, const std::string& kernel) {
  const std::string op = "prepack";
  check_tensor(op, "b", b, b);
  if (!b.is_cpu() && !b.is_cuda())
    bad(op, "b is on ", device_of(b), "; cpu and cuda are supported");
  if (b.dim() != 2) bad(op, "b must have 2 dimensions, got shape ", shape_of(b));
  Gemm g;
  g.n = b.size(trans_b ? 0 : 1);
  g.k = b.size(trans_b ? 1 : 0);
  g.b = view(b, matrix(op, "b", b), trans_b);
  const Stage* stage = named(op, kernel, b.is_cpu() ? Flavour::host : Flavour::cuda);
  if (stage && !stage->pack) {
    bad(op, stage->name, " keeps nothing of an operand; stages that do: ",
        names_of([](const Stage& s) { return s.pack != nullptr; }));
  }
  const auto allocate_packed = [&](const Stage* s) {
    const size_t bytes = s && g.n && g.k ? s->packed_bytes(g) : 0;
    std::optional<Tensor> packed = new_bytes(b, bytes);
    if (!packed)
      throw std::runtime_error(op + ": the limbs of b take " + std::to_string(bytes) +
                               " bytes, and " + device_of(b) + " has no memory for them");
    if (bytes) TORCH_ERROR_CODE_CHECK(aoti_torch_zero_(packed->get()));
    return *packed;
  };
  if (b.is_cpu()) {
    const Tensor packed = allocate_packed(stage);
    if (packed.numel()) simt::pack_watched(*stage, g, packed.mutable_data_ptr());
    return packed;
  }
#if XGEMM_WITH_CUDA
  const torch::stable::accelerator::DeviceGuard guard(b.get_device_index());
  const Context context = context_of(b);
  if (stage) require(*stage, g, context.device);
  else stage = stage_that([](const Stage& s) { return s.pack != nullptr; }, g, context.device);
  const Tensor packed = allocate_packed(stage);
  if (packed.numel()) pack_cuda(*stage, g, b, packed, context);
  return packed;
#else
  no_cuda(op);
#endif
}

Arguments arguments(StableIValue* stack) {
  return {to<Tensor>(stack[0]),
          to<Tensor>(stack[1]),
          to<std::optional<Tensor>>(stack[2]),
          to<double>(stack[3]),
          to<double>(stack[4]),
          to<bool>(stack[5]),
          to<bool>(stack[6]),
          to<std::string>(stack[7]),
          to<std::string>(stack[8]),
          to<std::string>(stack[9]),
          to<std::optional<Tensor>>(stack[10]),
          to<std::optional<int64_t>>(stack[11]),
          to<std::optional<bool>>(stack[12])};
}
constexpr uint64_t kArguments = 13;

Tensor sum_over(const Tensor& t, int64_t axis) {
  return torch::stable::sum(t, torch::headeronly::IntHeaderOnlyArrayRef(&axis, 1));
}

// A row-major result.
Tensor new_result(const Tensor& like, const Gemm& g, bool batched) {
  return new_floats(like, {g.batch, g.m, g.n}, std::max<int64_t>(g.n, 1), batched);
}

// The product, and, if they are wanted, the sums of A's rows over K, which the stage makes if it
// reads A row by row, and ATen otherwise.
Tensor product(const std::string& op, const Arguments& x, RowSums* sums = nullptr) {
  const Gemm g = describe(op, x);
  const Tensor out = new_result(x.a, g, x.a.dim() == 3 || x.b.dim() == 3);
  run(op, g, x, out, matrix(op, "out", out), sums);
  if (sums && !*sums) *sums = sum_over(x.a, x.trans_a ? 0 : 1);
  return out;
}

void functional(const std::string& op, StableIValue* stack) {
  stack[0] = from(product(op, arguments(stack)));
}

void sgemm_op(StableIValue* stack, uint64_t, uint64_t) { functional("sgemm", stack); }

void sgemm_out_op(StableIValue* stack, uint64_t, uint64_t) {
  const Arguments x = arguments(stack);
  const auto out = to<Tensor>(stack[kArguments]);
  const std::string op = "sgemm";
  Gemm g = describe(op, x);
  check_tensor(op, "out", out, x.a);
  const Shape s = matrix(op, "out", out);
  g.d = {static_cast<float*>(out.mutable_data_ptr()), s.stride[1], s.stride[2],
         s.size[0] == 1 ? 0 : s.stride[0]};
  check_out(op, out, s, g, x.a.dim() == 3 || x.b.dim() == 3 ? 3 : 2, g.beta != 0.f);
  run(op, g, x, out, s);
  stack[0] = from(out);
}

void row_sums_op(StableIValue* stack, uint64_t, uint64_t) {
  const std::string op = kRowSumsOp;
  const Arguments x{.a = to<Tensor>(stack[0]),
                    .b = to<Tensor>(stack[1]),
                    .c = std::nullopt,
                    .alpha = to<double>(stack[2]),
                    .beta = 1.,
                    .trans_a = to<bool>(stack[3]),
                    .trans_b = to<bool>(stack[4]),
                    .precision = to<std::string>(stack[5]),
                    .kernel = to<std::string>(stack[6]),
                    .activation = "none",
                    .packed = std::nullopt};
  if (x.a.dim() != 2 || x.b.dim() != 2)
    bad(op, "a and b must have 2 dimensions, got shapes ", shape_of(x.a), " and ", shape_of(x.b));
  RowSums sums;
  stack[0] = from(product(op, x, &sums));
  stack[1] = from(*sums);
}

// An operand that is one matrix, checked by its own name.
void check_matrix(const std::string& op, const char* name, const Tensor& t, const Tensor& first) {
  check_tensor(op, name, t, first);
  if (t.dim() != 2) bad(op, name, " must have 2 dimensions, got shape ", shape_of(t));
  matrix(op, name, t);
}

// Of y = x W^T + b, from the gradient of y: those of x, for which W is given, of W, for which x is,
// and of b. One that is not asked for is an undefined tensor.
void linear_backward_op(StableIValue* stack, uint64_t, uint64_t) {
  const std::string op = kLinearBackwardOp;
  const auto grad = to<Tensor>(stack[0]);
  const auto x = to<std::optional<Tensor>>(stack[1]), weight = to<std::optional<Tensor>>(stack[2]);
  const bool bias = to<bool>(stack[3]);
  const auto precision = to<std::string>(stack[4]), kernel = to<std::string>(stack[5]);
  if (!x && !weight) bad(op, "x or weight must be given; a bias's gradient alone is grad.sum(0)");
  check_matrix(op, "grad", grad, grad);
  if (x) check_matrix(op, "x", *x, grad);
  if (weight) check_matrix(op, "weight", *weight, grad);
  if ((x && x->size(0) != grad.size(0)) || (weight && weight->size(0) != grad.size(1)) ||
      (x && weight && x->size(1) != weight->size(1)))
    bad(op, "sizes differ: grad is ", shape_of(grad), ", x is ", x ? shape_of(*x) : "None",
        ", weight is ", weight ? shape_of(*weight) : "None",
        "; needed are (M, N), (M, K) and (N, K)");
  const auto times = [&](const Tensor& b, bool trans_a, RowSums* sums) {
    return product(op,
                   {.a = grad,
                    .b = b,
                    .c = std::nullopt,
                    .alpha = 1.,
                    .beta = 1.,
                    .trans_a = trans_a,
                    .trans_b = false,
                    .precision = precision,
                    .kernel = kernel,
                    .activation = "none",
                    .packed = std::nullopt},
                   sums);
  };
  const Tensor of_x = weight ? times(*weight, false, nullptr) : Tensor();
  RowSums of_bias;
  const Tensor of_weight = x ? times(*x, true, bias ? &of_bias : nullptr) : Tensor();
  if (bias && !of_bias) of_bias = sum_over(grad, 0);
  stack[0] = from(of_x), stack[1] = from(of_weight), stack[2] = from(of_bias.value_or(Tensor()));
}

void grouped_op(StableIValue* stack, uint64_t, uint64_t) {
  stack[0] = from(grouped_mm(to<Tensor>(stack[0]), to<Tensor>(stack[1]), to<Tensor>(stack[2]),
                             to<std::string>(stack[3])));
}

// From the operand `at` on.
DropoutArgs dropout_args(const StableIValue* stack, size_t at) {
  return {to<double>(stack[at]), to<std::optional<Tensor>>(stack[at + 1]),
          to<std::optional<Tensor>>(stack[at + 2])};
}

void attention_op(StableIValue* stack, uint64_t, uint64_t) {
  const auto [out, lse] =
      attention(to<Tensor>(stack[0]), to<Tensor>(stack[1]), to<Tensor>(stack[2]),
                to<std::optional<Tensor>>(stack[3]), to<bool>(stack[4]), to<double>(stack[5]),
                dropout_args(stack, 6));
  stack[0] = from(out), stack[1] = from(lse);
}
std::array<Tensor, 3> attention_gradients(const StableIValue* stack,
                                          const std::optional<std::array<Tensor, 3>>& into = {}) {
  return attention_backward(to<Tensor>(stack[0]), to<Tensor>(stack[1]), to<Tensor>(stack[2]),
                            to<Tensor>(stack[3]), to<std::optional<Tensor>>(stack[4]),
                            to<Tensor>(stack[5]), to<Tensor>(stack[6]), to<bool>(stack[7]),
                            to<double>(stack[8]), dropout_args(stack, 9), into);
}
void attention_backward_op(StableIValue* stack, uint64_t, uint64_t) {
  const auto all = attention_gradients(stack);
  for (size_t i = 0; i < all.size(); ++i) stack[i] = from(all[i]);
}
void attention_backward_out_op(StableIValue* stack, uint64_t, uint64_t) {
  attention_gradients(stack, std::array<Tensor, 3>{to<Tensor>(stack[12]), to<Tensor>(stack[13]),
                                                   to<Tensor>(stack[14])});
}

void mixed_op(StableIValue* stack, uint64_t, uint64_t) {
  stack[0] =
      from(mixed_mm(to<Tensor>(stack[0]), to<Tensor>(stack[1]), to<std::optional<Tensor>>(stack[2]),
                    to<bool>(stack[3]), to<std::string>(stack[4]), to<std::string>(stack[5])));
}

void prepack_op(StableIValue* stack, uint64_t, uint64_t) {
  stack[0] = from(prepack(to<Tensor>(stack[0]), to<bool>(stack[1]), to<std::string>(stack[2])));
}

const std::string kSchemaArguments =
    "Tensor a, Tensor b, Tensor? c=None, *, float alpha=1.0, float beta=1.0, bool trans_a=False, "
    "bool trans_b=False, str precision=\"fp32\", str kernel=\"auto\", str activation=\"none\", "
    "Tensor? packed=None, int? chain=None, bool? batch_invariant=None";

bool defined = false;
std::string why_not_loaded;

void define_operators() noexcept try {
  if (!torch_library_def_with_tags) return;
  TorchLibraryHandle library;  // for the process's life
  if (aoti_torch_library_init_def(operator_namespace().c_str(), "ops.cpp", 0, &library) !=
      AOTI_TORCH_SUCCESS)
    throw std::runtime_error("torch.ops." + operator_namespace() +
                             " is defined by another library of this process");
  for (const Operator& o : operators()) {
    const int32_t tags[] = {torch_tag_pt2_compliant_tag(), torch_tag_flexible_layout()};
    TORCH_ERROR_CODE_CHECK(
        torch_library_def_with_tags(library, o.schema.c_str(), tags, o.flexible_layout ? 2 : 1));
  }
  register_kernels();
  defined = true;
} catch (const std::exception& error) {
  why_not_loaded = error.what();
}

[[maybe_unused]] const bool hooked = (when_loaded = define_operators, true);

}  // namespace

std::vector<Operator> operators() {
  // The kernels take any strides, so Inductor need not copy an operand to give it certain ones.
  std::vector<Operator> all{{"sgemm(" + kSchemaArguments + ") -> Tensor", true}};
  for (const Stage& s : stages(Flavour::host))
    all.push_back({s.name + "(" + kSchemaArguments + ") -> Tensor", true});
  all.push_back({"sgemm.out(" + kSchemaArguments + ", Tensor(a!) out) -> Tensor(a!)", false});
  all.push_back(
      {std::string(kRowSumsOp) +
           "(Tensor a, Tensor b, *, float alpha=1.0, bool trans_a=False, bool "
           "trans_b=False, str precision=\"fp32\", str kernel=\"auto\") -> (Tensor, Tensor)",
       true});
  all.push_back({std::string(kLinearBackwardOp) +
                     "(Tensor grad, Tensor? x, Tensor? weight, bool bias, *, str "
                     "precision=\"fp32\", str kernel=\"auto\") -> (Tensor, Tensor, Tensor)",
                 true});
  all.push_back({std::string(kGroupedOp) +
                     "(Tensor a, Tensor b, Tensor offs, *, str kernel=\"auto\") -> Tensor",
                 true});
  all.push_back({std::string(kMixedOp) +
                     "(Tensor a, Tensor b, Tensor? c=None, *, bool trans_b=False, str "
                     "precision=\"fp32\", str kernel=\"auto\") -> Tensor",
                 true});
  all.push_back({std::string(kAttentionOp) +
                     "(Tensor q, Tensor k, Tensor v, Tensor? bias, bool is_causal, float scale, "
                     "float dropout_p=0.0, Tensor? seed=None, Tensor? offset=None) -> "
                     "(Tensor, Tensor)",
                 true});
  const std::string gradients =
      "(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor out, Tensor lse, bool "
      "is_causal, float scale, float dropout_p=0.0, Tensor? seed=None, Tensor? offset=None";
  all.push_back({kAttentionBackwardOp + gradients + ") -> (Tensor, Tensor, Tensor)", true});
  all.push_back({std::string(kAttentionBackwardOp) + ".out" + gradients +
                     ", *, Tensor(a!) dq, Tensor(b!) dk, Tensor(c!) dv) -> ()",
                 false});
  all.push_back({"prepack(Tensor b, *, bool trans_b=False, str kernel=\"auto\") -> Tensor", false});
  return all;
}

Tensor sgemm_of(const std::string& op, const Tensor& a, const Tensor& b,
                const std::optional<Tensor>& c, bool trans_b, const std::string& precision,
                const std::string& kernel) {
  return product(op, {.a = a,
                      .b = b,
                      .c = c,
                      .alpha = 1.,
                      .beta = 1.,
                      .trans_a = false,
                      .trans_b = trans_b,
                      .precision = precision,
                      .kernel = kernel,
                      .activation = "none",
                      .packed = std::nullopt});
}

bool operators_defined() { return defined; }
const std::string& load_error() { return why_not_loaded; }

void register_kernels() {
  using torch::stable::detail::StableLibrary;
  static bool done = false;
  if (done) return;
  done = true;
  static_assert(std::is_same_v<StableIValue, uint64_t>);
  operator_body = functional;
  for (const char* key : {"CPU", "CUDA"}) {
    auto* library =
        new StableLibrary(StableLibrary::Kind::IMPL, operator_namespace().c_str(), key, "ops.cpp",
                          0);  // for the process's life
    library->impl("sgemm", &sgemm_op);
    library->impl("sgemm.out", &sgemm_out_op);
    library->impl(kRowSumsOp, &row_sums_op);
    library->impl(kLinearBackwardOp, &linear_backward_op);
    library->impl(kGroupedOp, &grouped_op);
    library->impl(kMixedOp, &mixed_op);
    library->impl(kAttentionOp, &attention_op);
    library->impl(kAttentionBackwardOp, &attention_backward_op);
    library->impl((std::string(kAttentionBackwardOp) + ".out").c_str(), &attention_backward_out_op);
    library->impl("prepack", &prepack_op);
    for (const Stage& s : stages(Flavour::host)) library->impl(s.name.c_str(), s.boxed);
  }
}

}  // namespace xgemm
