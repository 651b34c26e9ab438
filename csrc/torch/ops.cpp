// Tensors -> Gemm: the checks, the device, the stream, the workspace. With module.cpp the only code
// that knows torch, and that through LibTorch's stable ABI alone, so that one library serves every
// torch from 2.10 on, CPU and CUDA builds.
#include "ops.h"

#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "emulator/simt_control.h"
#include "xgemm/core/split_k.h"
#include "xgemm/core/tile_scheduler.h"
#include "xgemm/dispatch/overrides.h"
#include "xgemm/dispatch/recent.h"
#include "xgemm/dispatch/select.h"
#include "xgemm/dispatch/tuned_cache.h"
#include "xgemm/emulation/recompute_counter.h"
#include "xgemm/reference/ieee.h"

// Since torch 2.12, which the stable ABI of 2.10 does not declare: null where they are missing.
extern "C" AOTITorchError torch_library_def_with_tags(TorchLibraryHandle self, const char* schema,
                                                      const int32_t* tags, int32_t num_tags);
extern "C" int32_t torch_tag_flexible_layout();
extern "C" int32_t torch_tag_pt2_compliant_tag();
#pragma weak torch_library_def_with_tags
#pragma weak torch_tag_flexible_layout
#pragma weak torch_tag_pt2_compliant_tag

#if XGEMM_WITH_CUDA
#include "xgemm/device/device.h"

// In libtorch_cuda, which a CPU build of torch lacks: weak, so that the library loads there all the
// same.
extern "C" AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device_index,
                                                             void** ret_stream);
#pragma weak aoti_torch_get_current_cuda_stream
#endif

namespace xgemm {
namespace {

using torch::stable::Tensor;
using torch::stable::detail::from;
using torch::stable::detail::to;

// Of torch's ScalarType; fixed by its serialization format.
constexpr int kUint8 = 0, kInt32 = 3, kFloat32 = 6;
constexpr const char* kTypes[] = {
    "uint8",     "int8",      "int16",      "int32", "int64", "float16", "float32", "float64",
    "complex32", "complex64", "complex128", "bool",  "qint8", "quint8",  "qint32",  "bfloat16"};
constexpr const char* kActivations[] = {"none", "relu", "gelu", "gelu_tanh", "silu"};

// The arguments of every operator, in its schema's order.
struct Arguments {
  Tensor a, b;
  std::optional<Tensor> c;
  double alpha, beta;
  bool trans_a, trans_b;
  std::string precision, kernel, activation;
  std::optional<Tensor> packed;
};

// The three axes of an operand, its batch axis having size 1 and stride 0 where it has none.
struct Shape {
  std::array<int64_t, 3> size{1, 1, 1}, stride{0, 0, 0};
};

template <class... T>
[[noreturn]] void bad(const std::string& op, const T&... parts) {
  std::ostringstream text;
  text << op << ": ";
  (text << ... << parts);
  throw std::invalid_argument(text.str());
}

std::string shape_of(const Tensor& t) {
  std::string text = "(";
  for (int64_t i = 0; i < t.dim(); ++i) text += (i ? ", " : "") + std::to_string(t.size(i));
  return text + (t.dim() == 1 ? ",)" : ")");
}

std::string device_of(const Tensor& t) {
  return t.is_cpu() ? "cpu"
                    : (t.is_cuda() ? "cuda:" : "device ") + std::to_string(t.get_device_index());
}

void check_tensor(const std::string& op, const char* name, const Tensor& t, const Tensor& a,
                  int wanted = kFloat32) {
  int32_t type = 0, layout = 0, device = 0, device_a = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(t.get(), &type));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_layout(t.get(), &layout));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(t.get(), &device));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(a.get(), &device_a));
  if (layout != aoti_torch_layout_strided()) bad(op, name, " must be a dense (strided) tensor");
  if (type != wanted) {
    const bool known = type >= 0 && type < static_cast<int>(std::size(kTypes));
    bad(op, name, " must be ", kTypes[wanted], ", got ", known ? kTypes[type] : "another dtype");
  }
  if (device != device_a || t.get_device_index() != a.get_device_index())
    bad(op, "a is on ", device_of(a), ", ", name, " is on ", device_of(t),
        "; all operands must be on one device");
}

// A storage can be resized under its views, as FSDP frees a parameter's between uses: t's must
// still hold the last element that t reaches. Two calls of the stable ABI, some 10 ns.
void check_storage(const std::string& op, const char* name, const Tensor& t, const Shape& s,
                   int64_t element_bytes = sizeof(float)) {
  int64_t bytes = 0, last = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_storage_size(t.get(), &bytes));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_storage_offset(t.get(), &last));
  for (size_t axis = 0; axis < 3; ++axis) {
    if (s.size[axis] == 0) return;
    last += (s.size[axis] - 1) * s.stride[axis];
  }
  if (bytes / element_bytes <= last)
    bad(op, name, "'s storage has ", bytes, " bytes, its view needs ", (last + 1) * element_bytes,
        ": was it freed (untyped_storage().resize_(0))?");
}

// The axes of a tensor of up to 3, aligned at the last one.
Shape axes_of(const Tensor& t) {
  const int64_t dim = t.dim();
  Shape s;
  for (int64_t i = 0; i < dim; ++i) {
    s.size[static_cast<size_t>(3 - dim + i)] = t.size(i);
    s.stride[static_cast<size_t>(3 - dim + i)] = t.stride(i);
  }
  return s;
}

Shape matrix(const std::string& op, const char* name, const Tensor& t) {
  const int64_t dim = t.dim();
  if (dim != 2 && dim != 3) bad(op, name, " must have 2 or 3 dimensions, got shape ", shape_of(t));
  const Shape s = axes_of(t);
  check_storage(op, name, t, s);
  return s;
}

View<const float> view(const Tensor& t, const Shape& s, bool transpose) {
  const View<const float> v{static_cast<const float*>(t.const_data_ptr()), s.stride[1], s.stride[2],
                            s.size[0] == 1 ? 0 : s.stride[0]};
  return transpose ? v.transposed() : v;
}

// c broadcast to (batch, m, n), aligned at the last axis as everywhere in torch; where beta is 0 it
// is not read, and none.
View<const float> broadcast(const std::string& op, const Tensor& c, const Gemm& g, bool batched) {
  const std::array<int64_t, 3> target{g.batch, g.m, g.n};
  bool fits = c.dim() <= (batched ? 3 : 2);
  Shape s = fits ? axes_of(c) : Shape();
  for (size_t axis = 0; fits && axis < 3; ++axis)
    fits = s.size[axis] == target[axis] || s.size[axis] == 1;
  if (!fits) {
    const std::string head = batched ? std::to_string(g.batch) + ", " : "";
    bad(op, "c does not broadcast to the result: c is ", shape_of(c), ", the result is (", head,
        g.m, ", ", g.n, ")");
  }
  if (g.beta == 0.f) return {};
  check_storage(op, "c", c, s);
  for (size_t axis = 0; axis < 3; ++axis)
    if (s.size[axis] == 1) s.stride[axis] = 0;
  return {static_cast<const float*>(c.const_data_ptr()), s.stride[1], s.stride[2], s.stride[0]};
}

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
  std::array<size_t, 3> by_stride{0, 1, 2};
  std::sort(by_stride.begin(), by_stride.end(),
            [&](size_t x, size_t y) { return s.stride[x] < s.stride[y]; });
  int64_t reach = 0;
  for (size_t axis : by_stride) {
    if (s.size[axis] == 1) continue;
    if (s.stride[axis] <= reach)
      bad(op, "out has elements that share memory (an expanded or overlapping view)");
    reach += (s.size[axis] - 1) * s.stride[axis];
  }
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

constexpr const char* kRowSumsOp = "sgemm_row_sums";
// Products of groups (core/groups.h).
constexpr const char* kGroupedOp = "grouped_mm";

// The stage that `kernel` (on sgemm) or the operator itself names, or null for auto.
const Stage* named(const std::string& op, const std::string& kernel, Flavour flavour) {
  const bool any = op == "sgemm" || op == "prepack" || op == kRowSumsOp || op == kGroupedOp;
  if (!any && kernel != "auto" && kernel != op)
    bad(op, "kernel must be 'auto' or '", op, "' here, got '", kernel,
        "'; torch.ops.xgemm.sgemm takes any");
  const std::string& name = any ? kernel : op;
  if (name == "auto") return nullptr;
  if (const Stage* s = find_stage(flavour, name)) return s;
  for (const Flavour each : {flavour, Flavour::host})
    if (const StageFault* f = find_fault(each, name))
      throw std::runtime_error(op + ": " + name + " is left out of this build: " + f->why);
  if (find_stage(Flavour::host, name))
    throw std::runtime_error(
        op + ": this build of xgemm_torch has no CUDA kernels" +
        (stages(Flavour::cuda).empty()
             ? ", so " + name + " runs on CPU tensors only; rebuild where nvcc is found"
             : " of " + name + "; rebuild for this GPU") +
        " (python -m xgemm_torch info)");
  std::string names = "auto";
  for (const Stage& s : stages(Flavour::host)) names += ", " + s.name;
  bad(op, "no kernel named '", name, "'; there are: ", names);
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
  const bool chosen =
      x.precision != "ieee" && x.kernel == "auto" && (op == "sgemm" || op == kRowSumsOp);
  if (!chosen || is_narrow(g.m, g.n)) g.split_k_size = split_k_size_of(g);
  g.match_single_chain_overflow = x.precision == "fp32";
  g.alpha = factor(op, "alpha", x.alpha);
  g.beta = factor(op, "beta", x.beta);
  if (!x.c) g.beta = 0.f;
  g.act = activation(op, x.activation);
  if (x.precision != "fp32" && x.precision != "ieee")
    bad(op, "precision must be 'fp32' or 'ieee', got '", x.precision, "'");
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

// A view of a tensor of floats: its matrices, or only the first one.
template <class Float>
Tensor view_of(const Tensor& t, const View<Float>& v, std::array<int64_t, 3> size, bool batched) {
  const std::array<int64_t, 3> stride{v.bs, v.rs, v.cs};
  // From the tensor's own offset, not from its storage's start.
  const int64_t further = v.data - static_cast<const float*>(t.const_data_ptr());
  AtenTensorHandle handle = nullptr;
  TORCH_ERROR_CODE_CHECK(
      aoti_torch__reinterpret_tensor(t.get(), batched ? 3 : 2, size.data() + !batched,
                                     stride.data() + !batched, further, &handle));
  return Tensor(handle);
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
                             room_for(row_sums, *stage, g, x.a));
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

// Uninitialised bytes from torch's allocator, on the device of `like`; none where it has not so
// many.
std::optional<Tensor> new_bytes(const Tensor& like, size_t bytes) {
  if (bytes > static_cast<size_t>(INT64_MAX)) return std::nullopt;
  const auto size = static_cast<int64_t>(bytes), stride = int64_t{1};
  int32_t device = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(like.get(), &device));
  AtenTensorHandle handle = nullptr;
  if (aoti_torch_empty_strided(1, &size, &stride, kUint8, device, like.get_device_index(),
                               &handle) != AOTI_TORCH_SUCCESS)
    return std::nullopt;
  return Tensor(handle);
}

#if XGEMM_WITH_CUDA
// What a launch on the device of `t` needs to know; that device must be the current one.
Context context_of(const Tensor& t) {
  const int32_t index = t.get_device_index();
  Context context{.device = cuda_device(index),
                  .slab_bytes = slab_bytes_of_all(),
                  .recomputed = recompute_counter(index)};
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(index, &context.stream));
  return context;
}

// A workspace for the context, kept until the launches are enqueued; false where there is no memory
// for it.
bool allocate(const Stage& stage, const Gemm& g, const Tensor& like, Context& context,
              std::optional<Tensor>& workspace) {
  context.workspace_bytes = workspace_of(stage, g, context);
  if (!context.workspace_bytes) return true;
  workspace = new_bytes(like, context.workspace_bytes);
  if (workspace) context.workspace = workspace->mutable_data_ptr();
  return workspace.has_value();
}

[[noreturn]] void no_memory(const std::string& op, const std::string& what, size_t bytes,
                            const Tensor& like, const char* advice) {
  throw std::runtime_error(op + ": " + what + " of " + std::to_string(bytes) + " bytes, and " +
                           device_of(like) + " has no memory for it" + advice);
}

void run_cuda(const std::string& op, const Gemm& g, const Arguments& x, RowSums* row_sums) {
  const torch::stable::accelerator::DeviceGuard guard(x.a.get_device_index());
  Context context = context_of(x.a);
  static const Selector selector(stages(Flavour::cuda));
  const Stage* const asked = named(op, x.kernel, Flavour::cuda);
  const int32_t index = x.a.get_device_index();
  const bool strict = x.precision == "ieee";
  const auto tuned = tuned_cache(&warn);  // kept until the choice is made
  const auto here = [&] {
    return tuned ? tuned->cuda.on(context.device, cuda_device_name(index)) : nullptr;
  };
  const auto choose = [&](size_t room) {
    const auto anew = [&] { return selector.pick(g, context.device, strict, room, here()); };
    thread_local Recent recent;
    return room == kAnyWorkspace ? recent.pick(g, strict, index, tuned ? tuned->serial : 0, anew)
                                 : anew();
  };
  Pick pick{asked};
  if (asked) {
    require(*asked, g, context.device);
    pick.row = forced_row(*asked, context.device);
    if (pick.row < 0) pick.row = selector.row(*asked, g, context.device, strict, here());
  } else {
    pick = choose(kAnyWorkspace);
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
                "; kernel='auto' then takes a stage that needs none");
    pick = choose(0);
    prepare();
  }
  context.row_sums = room_for(row_sums, *pick.stage, g, x.a);
  pick.stage->run(g, context);
  cuda_check_launch(pick.stage->name.c_str());
}

// The last rung that packs for this device, or null.
const Stage* packing_stage(const Gemm& g, const Device& device) {
  const Stage* last = nullptr;
  for (const Stage& s : stages(Flavour::cuda))
    if (s.pack && can_implement(s, g, device)) last = &s;
  return last;
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

[[noreturn]] void no_cuda(const std::string& op) {
  throw std::runtime_error(
      op +
      ": this build of xgemm_torch has no CUDA kernels; rebuild where nvcc is found "
      "(python -m xgemm_torch info says what was built)");
}

void run(const std::string& op, Gemm g, const Arguments& x, const Tensor& out, const Shape& s,
         RowSums* row_sums = nullptr) {
  g.d = {static_cast<float*>(out.mutable_data_ptr()), s.stride[1], s.stride[2],
         s.size[0] == 1 ? 0 : s.stride[0]};
  // Names are checked for empty results as well.
  const Stage* const stage = named(op, x.kernel, Flavour::host);
  if (stage && !stage->strict && x.precision == "ieee")
    bad(op, stage->name, " has other bits than precision='ieee' guarantees; kernel='auto' takes a ",
        "stage that has them");
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
    std::string names;
    for (const Stage& s : stages(Flavour::host))
      if (s.pack) names += (names.empty() ? "" : ", ") + s.name;
    bad(op, stage->name, " keeps nothing of an operand; stages that do: ", names);
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
  else stage = packing_stage(g, context.device);
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
          to<std::optional<Tensor>>(stack[10])};
}
constexpr uint64_t kArguments = 11;

// An uninitialised row-major tensor from torch's allocator, by the shortest way that the stable ABI
// has: a call through the dispatcher costs more than all of our checks.
Tensor new_result(const Tensor& like, const Gemm& g, bool batched) {
  const std::array<int64_t, 3> size{g.batch, g.m, g.n};
  const int64_t row = std::max<int64_t>(g.n, 1);
  const std::array<int64_t, 3> stride{std::max<int64_t>(g.m, 1) * row, row, 1};
  int32_t device = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(like.get(), &device));
  AtenTensorHandle handle = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(batched ? 3 : 2, size.data() + !batched,
                                                  stride.data() + !batched, kFloat32, device,
                                                  like.get_device_index(), &handle));
  return Tensor(handle);
}

void functional(const std::string& op, StableIValue* stack) {
  const Arguments x = arguments(stack);
  const Gemm g = describe(op, x);
  const bool batched = x.a.dim() == 3 || x.b.dim() == 3;
  const Tensor out = new_result(x.a, g, batched);
  run(op, g, x, out, matrix(op, "out", out));
  stack[0] = from(out);
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

// The product and the sums of A's rows over K, which the stage makes if it reads A row by row, and
// ATen otherwise.
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
  const Gemm g = describe(op, x);
  if (x.a.dim() != 2 || x.b.dim() != 2)
    bad(op, "a and b must have 2 dimensions, got shapes ", shape_of(x.a), " and ", shape_of(x.b));
  const Tensor out = new_result(x.a, g, false);
  RowSums sums;
  run(op, g, x, out, matrix(op, "out", out), &sums);
  if (!sums) {
    const int64_t along_k = x.trans_a ? 0 : 1;
    sums = torch::stable::sum(x.a, torch::headeronly::IntHeaderOnlyArrayRef(&along_k, 1));
  }
  stack[0] = from(out);
  stack[1] = from(*sums);
}

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
  const std::array<int64_t, 3> stride{std::max<int64_t>(r.g.m, 1) * row, row, 1};
  int32_t device = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(like.get(), &device));
  AtenTensorHandle handle = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(batched ? 3 : 2, r.size.data() + !batched,
                                                  stride.data() + !batched, kFloat32, device,
                                                  like.get_device_index(), &handle));
  const Tensor out(handle);
  r.g.d = {static_cast<float*>(out.mutable_data_ptr()), row, 1, batched ? stride[0] : 0};
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
// The stage that takes groups on this device, or null.
const Stage* grouping_stage(const Gemm& g, const Device& device) {
  for (const Stage& s : stages(Flavour::cuda))
    if (s.takes_groups && can_implement(s, g, device)) return &s;
  return nullptr;
}

void run_groups_cuda(const Grouped& r, const Tensor& a, const Stage* stage) {
  const torch::stable::accelerator::DeviceGuard guard(a.get_device_index());
  Context context = context_of(a);
  context.groups = r.groups;
  if (stage) require(*stage, r.g, context.device);
  else stage = grouping_stage(r.g, context.device);
  if (!stage)
    bad(kGroupedOp, "no stage of this build takes groups on compute capability ", context.device.sm,
        "; torch._grouped_mm and sgemm, group by group, do");
  std::optional<Tensor> workspace;
  if (!allocate(*stage, r.g, a, context, workspace))
    no_memory(kGroupedOp, stage->name + " needs a workspace", context.workspace_bytes, a, "");
  stage->run(r.g, context);
  cuda_check_launch(stage->name.c_str());
}
#endif

Tensor grouped_mm(const Tensor& a, const Tensor& b, const Tensor& offs, const std::string& kernel) {
  const std::string op = kGroupedOp;
  Grouped r = describe_groups(a, b, offs);
  const Stage* const stage = named(op, kernel, a.is_cpu() ? Flavour::host : Flavour::cuda);
  if (stage && !stage->takes_groups) {
    std::string names;
    for (const Stage& s : stages(Flavour::host))
      if (s.takes_groups) names += (names.empty() ? "" : ", ") + s.name;
    bad(op, stage->name, " takes no groups; stages that do: ", names);
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

void grouped_op(StableIValue* stack, uint64_t, uint64_t) {
  stack[0] = from(grouped_mm(to<Tensor>(stack[0]), to<Tensor>(stack[1]), to<Tensor>(stack[2]),
                             to<std::string>(stack[3])));
}

void prepack_op(StableIValue* stack, uint64_t, uint64_t) {
  stack[0] = from(prepack(to<Tensor>(stack[0]), to<bool>(stack[1]), to<std::string>(stack[2])));
}

const std::string kSchemaArguments =
    "Tensor a, Tensor b, Tensor? c=None, *, float alpha=1.0, float beta=1.0, bool trans_a=False, "
    "bool trans_b=False, str precision=\"fp32\", str kernel=\"auto\", str activation=\"none\", "
    "Tensor? packed=None";

bool defined = false;
std::string why_not_loaded;

void define_operators() noexcept try {
  if (!torch_library_def_with_tags) return;
  TorchLibraryHandle library;  // for the process's life
  if (aoti_torch_library_init_def("xgemm", "ops.cpp", 0, &library) != AOTI_TORCH_SUCCESS)
    throw std::runtime_error("torch.ops.xgemm is defined by another library of this process");
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
  all.push_back({std::string(kGroupedOp) +
                     "(Tensor a, Tensor b, Tensor offs, *, str kernel=\"auto\") -> Tensor",
                 true});
  all.push_back({"prepack(Tensor b, *, bool trans_b=False, str kernel=\"auto\") -> Tensor", false});
  return all;
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
    auto* library = new StableLibrary(StableLibrary::Kind::IMPL, "xgemm", key, "ops.cpp",
                                      0);  // for the process's life
    library->impl("sgemm", &sgemm_op);
    library->impl("sgemm.out", &sgemm_out_op);
    library->impl(kRowSumsOp, &row_sums_op);
    library->impl(kGroupedOp, &grouped_op);
    library->impl("prepack", &prepack_op);
    for (const Stage& s : stages(Flavour::host)) library->impl(s.name.c_str(), s.boxed);
  }
}

}  // namespace xgemm
