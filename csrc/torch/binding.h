// What the operators' files have in common: checks of tensors, views of them, and what a launch
// needs to know of torch. Through LibTorch's stable ABI alone, so that one library serves every
// torch from 2.10 on, CPU and CUDA builds.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>

#include "xgemm/core/stage.h"
#include "xgemm/dispatch/select.h"

namespace xgemm {

using torch::stable::Tensor;
using torch::stable::detail::from;
using torch::stable::detail::to;

// Operators that take any stage, as sgemm and prepack do (takes_any_stage).
constexpr const char *kRowSumsOp = "sgemm_row_sums", *kLinearBackwardOp = "linear_backward";
constexpr const char *kGroupedOp = "grouped_mm", *kMixedOp = "mixed_mm";
constexpr const char *kAttentionOp = "attention_forward",
                     *kAttentionBackwardOp = "attention_backward";

// Of torch's ScalarType; fixed by its serialization format.
constexpr int kUint8 = 0, kInt32 = 3, kInt64 = 4, kFloat32 = 6;

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

std::string shape_of(const Tensor& t);
std::string device_of(const Tensor& t);

// That it is a dense tensor of the wanted type, on the device of `a`.
void check_tensor(const std::string& op, const char* name, const Tensor& t, const Tensor& a,
                  int wanted = kFloat32);
// That its storage, which can be resized under its views, as FSDP frees a parameter's between uses,
// still holds the last element that it reaches.
void check_storage(const std::string& op, const char* name, const Tensor& t, const Shape& s,
                   int64_t element_bytes = sizeof(float));

// The same of a tensor of any dimensions, by its own sizes and strides.
void check_storage(const std::string& op, const char* name, const Tensor& t,
                   int64_t element_bytes = sizeof(float));
// Throws unless the elements of a tensor, which has some, lie apart: what is to be written.
template <size_t N>
void check_apart(const std::string& op, const char* name, const std::array<int64_t, N>& size,
                 const std::array<int64_t, N>& stride) {
  std::array<size_t, N> by_stride;
  std::iota(by_stride.begin(), by_stride.end(), size_t{0});
  std::sort(by_stride.begin(), by_stride.end(),
            [&](size_t x, size_t y) { return stride[x] < stride[y]; });
  int64_t reach = 0;
  for (size_t axis : by_stride) {
    if (size[axis] == 1) continue;
    if (stride[axis] <= reach)
      bad(op, name, " has elements that share memory (an expanded or overlapping view)");
    reach += (size[axis] - 1) * stride[axis];
  }
}

// The axes of a tensor of up to 3, aligned at the last one; those of an operand, which is checked.
Shape axes_of(const Tensor& t);
Shape matrix(const std::string& op, const char* name, const Tensor& t);
View<const float> view(const Tensor& t, const Shape& s, bool transpose);

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

// c broadcast to (batch, m, n), aligned at the last axis as everywhere in torch; where beta is 0 it
// is not read, and none.
View<const float> broadcast(const std::string& op, const Tensor& c, const Gemm& g, bool batched);

void check_precision(const std::string& op, const std::string& precision);

bool takes_any_stage(const std::string& op);

// The stage that `kernel` (of an operator that takes any) or the operator itself names, or null for
// auto.
const Stage* named(const std::string& op, const std::string& kernel, Flavour flavour);

// The stages of which `takes` is true, by their names; the last of them with code for a device that
// can implement a problem, or null.
std::string names_of(bool (*takes)(const Stage&));
const Stage* stage_that(bool (*takes)(const Stage&), const Gemm& g, const Device& device);

// An uninitialised tensor of floats on the device of `like`, of `dim` sizes and strides.
Tensor new_strided(const Tensor& like, int64_t dim, const int64_t* size, const int64_t* stride);
// An uninitialised tensor of floats on the device of `like`, its rows `row` floats apart: a matrix,
// or a batch.
Tensor new_floats(const Tensor& like, const std::array<int64_t, 3>& size, int64_t row,
                  bool batched);
// Uninitialised bytes from torch's allocator, on the device of `like`; none where it has not so
// many.
std::optional<Tensor> new_bytes(const Tensor& like, size_t bytes);

#if XGEMM_WITH_CUDA
// What a launch on the device of `t` needs to know; that device must be the current one.
Context context_of(const Tensor& t);
// What auto takes on the device of this index, of stages that need at most `room` bytes; how many
// microseconds that is estimated to take; the row of a stage that is called by its name.
Pick choose(const Gemm& g, const Device& device, int32_t index, bool strict, size_t room);
double estimate(const Pick& pick, const Gemm& g, const Device& device);
int choose_row(const Stage& stage, const Gemm& g, const Device& device, int32_t index, bool strict);
// A workspace for the context, kept until the launches are enqueued; false where there is no memory
// for it.
bool allocate(const Stage& stage, const Gemm& g, const Tensor& like, Context& context,
              std::optional<Tensor>& workspace);
[[noreturn]] void no_memory(const std::string& op, const std::string& what, size_t bytes,
                            const Tensor& like, const char* advice);
#endif
[[noreturn]] void no_cuda(const std::string& op);

// a op(b) + c of floats, as sgemm makes it, for an operator of another file.
Tensor sgemm_of(const std::string& op, const Tensor& a, const Tensor& b,
                const std::optional<Tensor>& c, bool trans_b, const std::string& precision,
                const std::string& kernel);

// The operator kMixedOp.
Tensor mixed_mm(const Tensor& a, const Tensor& b, const std::optional<Tensor>& c, bool trans_b,
                const std::string& precision, const std::string& kernel);

// The operator kGroupedOp.
Tensor grouped_mm(const Tensor& a, const Tensor& b, const Tensor& offs, const std::string& kernel);

// The probability with which a weight is dropped, and where its numbers begin (core/attention.h):
// with p = 0 seed and offset are not read.
struct DropoutArgs {
  double p = 0;
  std::optional<Tensor> seed, offset;
};

// The operators kAttentionOp, which gives the result and lse, and kAttentionBackwardOp, which gives
// dQ, dK and dV: in memory of their own, or in what is given.
std::array<Tensor, 2> attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                const std::optional<Tensor>& bias, bool causal, double scale,
                                const DropoutArgs& dropout);
std::array<Tensor, 3> attention_backward(const Tensor& grad, const Tensor& q, const Tensor& k,
                                         const Tensor& v, const std::optional<Tensor>& bias,
                                         const Tensor& out, const Tensor& lse, bool causal,
                                         double scale, const DropoutArgs& dropout,
                                         const std::optional<std::array<Tensor, 3>>& into = {});

}  // namespace xgemm
