// Attention (core/attention.h): tensors -> Attention, on a CPU by the emulator.
#include <torch/csrc/stable/accelerator.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "binding.h"
#include "emulator/simt_control.h"
#if XGEMM_WITH_CUDA
#include "xgemm/device/device.h"
#endif

namespace xgemm {
namespace {

using Sizes = std::array<int64_t, 4>;

std::string text_of(const Sizes& size) {
  std::string text = "(";
  for (size_t i = 0; i < 4; ++i) text += (i ? ", " : "") + std::to_string(size[i]);
  return text + ")";
}

// A tensor of four dimensions, with those sizes where `size` is given.
void check(const char* op, const char* name, const Tensor& t, const Tensor& q,
           const Sizes* size = nullptr) {
  check_tensor(op, name, t, q);
  if (t.dim() != 4) bad(op, name, " must have 4 dimensions, got shape ", shape_of(t));
  for (int64_t i = 0; size && i < 4; ++i)
    if (t.size(i) != (*size)[static_cast<size_t>(i)])
      bad(op, name, " must have shape ", text_of(*size), ", got ", shape_of(t));
  check_storage(op, name, t);
}

// A result that is given.
void check_written(const char* op, const char* name, const Tensor& t, const Tensor& q,
                   const Sizes& size) {
  check(op, name, t, q, &size);
  if (t.numel() > 0)
    check_apart(op, name, size, Sizes{t.stride(0), t.stride(1), t.stride(2), t.stride(3)});
}

template <class T>
Heads<T> heads_of(const Tensor& t, T* data) {
  return {data, t.size(0) == 1 ? 0 : t.stride(0), t.stride(1), t.stride(2), t.stride(3)};
}
Heads<const float> read(const Tensor& t) {
  return heads_of(t, static_cast<const float*>(t.const_data_ptr()));
}
Heads<float> written(const Tensor& t) {
  return heads_of(t, static_cast<float*>(t.mutable_data_ptr()));
}

// (batch, heads, rows, width), of which a row of all heads lies dense, as torch has it.
Tensor new_heads(const Tensor& like, const Attention& a, int64_t rows) {
  const auto one = [](int64_t x) { return std::max<int64_t>(x, 1); };
  const int64_t row = one(a.heads) * one(a.width);
  const Sizes size{a.batch, a.heads, rows, a.width}, stride{one(rows) * row, one(a.width), row, 1};
  return new_strided(like, 4, size.data(), stride.data());
}

// Whether some byte may be both tensors', by the first and the last element of each.
bool meet(const Tensor& x, const Tensor& y) {
  if (x.numel() == 0 || y.numel() == 0) return false;
  const auto first = [](const Tensor& t) { return static_cast<const char*>(t.const_data_ptr()); };
  const auto last = [&](const Tensor& t) {
    int64_t reach = 0;
    for (int64_t i = 0; i < t.dim(); ++i) reach += (t.size(i) - 1) * t.stride(i);
    return first(t) + reach * static_cast<int64_t>(sizeof(float));
  };
  return first(x) <= last(y) && first(y) <= last(x);
}

// Gradients that are given: apart from what is read, and from each other, though they may lie side
// by side as the parts of one tensor.
void check_into(const char* op, const std::array<Tensor, 3>& into, const Tensor& q,
                const std::array<Sizes, 3>& sizes, const std::vector<const Tensor*>& read) {
  constexpr const char* kNames[] = {"dq", "dk", "dv"};
  for (size_t i = 0; i < 3; ++i) {
    check_written(op, kNames[i], into[i], q, sizes[i]);
    for (const Tensor* t : read)
      if (meet(into[i], *t)) bad(op, kNames[i], " shares memory with an operand");
  }
  if (!meet(into[0], into[1]) && !meet(into[1], into[2]) && !meet(into[0], into[2])) return;
  const auto at = [&](size_t i) { return static_cast<const float*>(into[i].const_data_ptr()); };
  const ptrdiff_t step = at(1) - at(0);
  bool alike = sizes[0] == sizes[1] && at(2) - at(1) == step;
  for (int64_t i = 0; i < 4; ++i)
    alike =
        alike && into[0].stride(i) == into[1].stride(i) && into[1].stride(i) == into[2].stride(i);
  if (!alike) bad(op, "dq, dk and dv share memory");
  const Sizes& s = sizes[0];
  const Tensor& t = into[0];
  check_apart<5>(op, "dq, dk, dv", {s[0], s[1], s[2], s[3], 3},
                 {t.stride(0), t.stride(1), t.stride(2), t.stride(3), std::abs(step)});
}

// The least 32-bit number whose uniform number, as cuRAND makes it in float, is above p < 1.
uint32_t least_above(float p) {
  uint32_t least = 0;
  for (uint32_t bit = 1u << 31; bit; bit >>= 1) {
    const auto below = static_cast<float>(least + (bit - 1));
    if (!(below * 0x1p-32f + 0x1p-33f > p)) least += bit;
  }
  return least;
}

// `seed` or `offset`: read here where it is on a CPU, else by the kernels.
void read_number(const char* op, const char* name, const std::optional<Tensor>& t, const Tensor& q,
                 int64_t& here, const int64_t*& there) {
  if (!t) bad(op, "dropout needs a seed and an offset, got no ", name);
  check_tensor(op, name, *t, t->is_cpu() ? *t : q, kInt64);
  if (t->numel() != 1) bad(op, name, " must have one element, got shape ", shape_of(*t));
  check_storage(op, name, *t, sizeof(int64_t));
  const auto* const data = static_cast<const int64_t*>(t->const_data_ptr());
  if (t->is_cpu() && !q.is_cpu()) here = *data;
  else there = data;
}

Dropout dropout_of(const char* op, const DropoutArgs& args, const Tensor& q) {
  if (args.p == 0) return {};
  const auto p = static_cast<float>(args.p);
  if (!(p >= 0 && p < 1)) bad(op, "dropout_p must be in [0, 1), got ", args.p);
  Dropout d{.on = true, .least = least_above(p), .factor = 1 / (1 - p)};
  read_number(op, "seed", args.seed, q, d.seed, d.seed_at);
  read_number(op, "offset", args.offset, q, d.offset, d.offset_at);
  return d;
}

Attention describe(const char* op, const Tensor& q, const Tensor& k, const Tensor& v,
                   const std::optional<Tensor>& bias, bool causal, double scale,
                   const DropoutArgs& dropout) {
  check(op, "q", q, q);
  if (!q.is_cpu() && !q.is_cuda())
    bad(op, "q is on ", device_of(q), "; cpu and cuda are supported");
  Attention a{.batch = q.size(0),
              .heads = q.size(1),
              .queries = q.size(2),
              .keys = k.dim() == 4 ? k.size(2) : 0,
              .width = q.size(3),
              .causal = causal,
              .scale = static_cast<float>(scale)};
  const Sizes keys{a.batch, a.heads, a.keys, a.width};
  check(op, "k", k, q, &keys), check(op, "v", v, q, &keys);
  if (a.width < 1 || a.width > kMostWidth)
    bad(op, "heads must have 1 to ", kMostWidth, " columns, got ", a.width);
  if (bias) {
    const Sizes logits{a.batch, a.heads, a.queries, a.keys};
    check(op, "bias", *bias, q, &logits);
    a.bias = read(*bias);
  }
  a.dropout = dropout_of(op, dropout, q);
  a.q = read(q), a.k = read(k), a.v = read(v);
  a.lse_stride = (a.queries + 31) / 32 * 32;
  return a;
}

void zero(const Tensor& t) { torch::stable::fill_(t, 0.); }

// Where something is empty there is nothing to launch.
bool empty(const Attention& a) { return !a.batch || !a.heads || !a.queries || !a.keys; }

void run(const char* op, const Attention& a, const Tensor& q, bool backward) {
  if (q.is_cpu()) return simt::attend_watched(a, backward);
#if XGEMM_WITH_CUDA
  const torch::stable::accelerator::DeviceGuard guard(q.get_device_index());
  Context context = context_of(q);
  const AttentionKernels* const kernels = attention_kernels(Flavour::cuda);
  if (!kernels || context.device.sm < kernels->min_sm || context.device.sm > kernels->max_sm)
    bad(op, "this build has no attention for compute capability ", context.device.sm,
        "; xgemm_torch.scaled_dot_product_attention calls torch's there");
  const AttentionKernels::Pass& pass = backward ? kernels->backward : kernels->forward;
  context.workspace_bytes = pass.workspace(a);
  const std::optional<Tensor> workspace = new_bytes(q, context.workspace_bytes);
  if (!workspace) no_memory(op, "attention needs a workspace", context.workspace_bytes, q, "");
  context.workspace = workspace->mutable_data_ptr();
  pass.run(a, context);
  cuda_check_launch(op);
#else
  no_cuda(op);
#endif
}

}  // namespace

std::array<Tensor, 2> attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                const std::optional<Tensor>& bias, bool causal, double scale,
                                const DropoutArgs& dropout) {
  const char* const op = kAttentionOp;
  Attention a = describe(op, q, k, v, bias, causal, scale, dropout);
  const Tensor out = new_heads(q, a, a.queries);
  const Tensor lse =
      new_floats(q, {a.batch, a.heads, a.lse_stride}, std::max<int64_t>(a.lse_stride, 1), true);
  if (empty(a)) {
    zero(out);
    torch::stable::fill_(lse, INFINITY);
    return {out, lse};
  }
  a.out = written(out);
  a.lse = static_cast<float*>(lse.mutable_data_ptr());
  run(op, a, q, false);
  return {out, lse};
}

std::array<Tensor, 3> attention_backward(const Tensor& grad, const Tensor& q, const Tensor& k,
                                         const Tensor& v, const std::optional<Tensor>& bias,
                                         const Tensor& out, const Tensor& lse, bool causal,
                                         double scale, const DropoutArgs& dropout,
                                         const std::optional<std::array<Tensor, 3>>& into) {
  const char* const op = kAttentionBackwardOp;
  Attention a = describe(op, q, k, v, bias, causal, scale, dropout);
  const Sizes result{a.batch, a.heads, a.queries, a.width};
  check(op, "grad", grad, q, &result), check(op, "out", out, q, &result);
  check_tensor(op, "lse", lse, q);
  const int64_t size[] = {a.batch, a.heads, a.lse_stride};
  bool fits = lse.dim() == 3;
  for (int64_t i = 2, dense = 1; fits && i >= 0; dense *= size[i--])
    fits = lse.size(i) == size[i] && (size[i] <= 1 || lse.stride(i) == dense || lse.numel() == 0);
  if (!fits)
    bad(op, "lse must be dense, of shape (", a.batch, ", ", a.heads, ", ", a.lse_stride, "), got ",
        shape_of(lse));
  check_storage(op, "lse", lse);
  if (into) {
    const Sizes keys{a.batch, a.heads, a.keys, a.width};
    std::vector<const Tensor*> read{&grad, &q, &k, &v, &out, &lse};
    if (bias) read.push_back(&*bias);
    check_into(op, *into, q, {result, keys, keys}, read);
  }
  const std::array<Tensor, 3> all =
      into ? *into
           : std::array<Tensor, 3>{new_heads(q, a, a.queries), new_heads(q, a, a.keys),
                                   new_heads(q, a, a.keys)};
  if (empty(a)) {
    for (const Tensor& t : all) zero(t);
    return all;
  }
  a.grad = read(grad);
  // Read alone: the kernels of the backward pass have no result of the forward pass to write.
  a.out = heads_of(out, const_cast<float*>(static_cast<const float*>(out.const_data_ptr())));
  a.lse = const_cast<float*>(static_cast<const float*>(lse.const_data_ptr()));
  a.dq = written(all[0]), a.dk = written(all[1]), a.dv = written(all[2]);
  run(op, a, q, true);
  return all;
}

}  // namespace xgemm
