#include "binding.h"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <algorithm>
#include <iterator>

#include "ops.h"
#include "xgemm/dispatch/overrides.h"
#include "xgemm/dispatch/recent.h"
#include "xgemm/dispatch/tuned_cache.h"
#include "xgemm/emulation/recompute_counter.h"

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

constexpr const char* kTypes[] = {
    "uint8",     "int8",      "int16",      "int32", "int64", "float16", "float32", "float64",
    "complex32", "complex64", "complex128", "bool",  "qint8", "quint8",  "qint32",  "bfloat16"};

// That its storage has the element that lies `reach` after its first.
void check_reach(const std::string& op, const char* name, const Tensor& t, int64_t reach,
                 int64_t element_bytes) {
  int64_t bytes = 0, last = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_storage_size(t.get(), &bytes));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_storage_offset(t.get(), &last));
  last += reach;
  if (bytes / element_bytes <= last)
    bad(op, name, "'s storage has ", bytes, " bytes, its view needs ", (last + 1) * element_bytes,
        ": was it freed (untyped_storage().resize_(0))?");
}

}  // namespace

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
                  int wanted) {
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
                   int64_t element_bytes) {
  int64_t reach = 0;
  for (size_t axis = 0; axis < 3; ++axis) {
    if (s.size[axis] == 0) return;
    reach += (s.size[axis] - 1) * s.stride[axis];
  }
  check_reach(op, name, t, reach, element_bytes);
}

void check_storage(const std::string& op, const char* name, const Tensor& t,
                   int64_t element_bytes) {
  int64_t reach = 0;
  for (int64_t axis = 0; axis < t.dim(); ++axis) {
    if (t.size(axis) == 0) return;
    reach += (t.size(axis) - 1) * t.stride(axis);
  }
  check_reach(op, name, t, reach, element_bytes);
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

void check_precision(const std::string& op, const std::string& precision) {
  if (precision != "fp32" && precision != "ieee")
    bad(op, "precision must be 'fp32' or 'ieee', got '", precision, "'");
}

bool takes_any_stage(const std::string& op) {
  return op == "sgemm" || op == "prepack" || op == kRowSumsOp || op == kLinearBackwardOp ||
         op == kGroupedOp || op == kMixedOp;
}

// The stage that `kernel` (on sgemm) or the operator itself names, or null for auto.
const Stage* named(const std::string& op, const std::string& kernel, Flavour flavour) {
  const bool any = takes_any_stage(op);
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

std::string names_of(bool (*takes)(const Stage&)) {
  std::string names;
  for (const Stage& s : stages(Flavour::host))
    if (takes(s)) names += (names.empty() ? "" : ", ") + s.name;
  return names;
}

const Stage* stage_that(bool (*takes)(const Stage&), const Gemm& g, const Device& device) {
  const Stage* last = nullptr;
  for (const Stage& s : stages(Flavour::cuda))
    if (takes(s) && can_implement(s, g, device)) last = &s;
  return last;
}

// By the shortest way that the stable ABI has: a call through the dispatcher costs more than all of
// our checks.
Tensor new_strided(const Tensor& like, int64_t dim, const int64_t* size, const int64_t* stride) {
  int32_t device = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(like.get(), &device));
  AtenTensorHandle handle = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(dim, size, stride, kFloat32, device,
                                                  like.get_device_index(), &handle));
  return Tensor(handle);
}
Tensor new_floats(const Tensor& like, const std::array<int64_t, 3>& size, int64_t row,
                  bool batched) {
  const std::array<int64_t, 3> stride{std::max<int64_t>(size[1], 1) * row, row, 1};
  return new_strided(like, batched ? 3 : 2, size.data() + !batched, stride.data() + !batched);
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

namespace {

const Selector& selector() {
  static const Selector its(stages(Flavour::cuda));
  return its;
}

const TunedGpu* tuned_on(const TunedCache* tuned, const Device& device, int32_t index) {
  return tuned ? tuned->cuda.on(device, cuda_device_name(index)) : nullptr;
}

}  // namespace

Pick choose(const Gemm& g, const Device& device, int32_t index, bool strict, size_t room) {
  const auto tuned = tuned_cache(&warn);  // kept until the choice is made
  const auto anew = [&] {
    return selector().pick(g, device, strict, room, tuned_on(tuned.get(), device, index));
  };
  thread_local Recent recent;
  return room == kAnyWorkspace ? recent.pick(g, strict, index, tuned ? tuned->serial : 0, anew)
                               : anew();
}

double estimate(const Pick& pick, const Gemm& g, const Device& device) {
  return selector().estimate(pick, g, device);
}

int choose_row(const Stage& stage, const Gemm& g, const Device& device, int32_t index,
               bool strict) {
  const auto tuned = tuned_cache(&warn);
  return selector().row(stage, g, device, strict, tuned_on(tuned.get(), device, index));
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
#endif

[[noreturn]] void no_cuda(const std::string& op) {
  throw std::runtime_error(
      op +
      ": this build of xgemm_torch has no CUDA kernels; rebuild where nvcc is found "
      "(python -m xgemm_torch info says what was built)");
}

}  // namespace xgemm
