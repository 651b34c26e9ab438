// The contract of attention: softmax(scale Q K^T + bias) V of each head of each sequence, and its
// gradients.
#pragma once

#include "xgemm/core/stage.h"

namespace xgemm {

// Heads of a batch: element (i, j) of a head is data[b * bs + h * hs + i * rs + j * cs].
template <class T>
struct Heads {
  T* data = nullptr;
  int64_t bs = 0, hs = 0, rs = 0, cs = 0;

  XGEMM_HD View<T> head(int64_t b, int64_t h) const {
    return {data + (b * bs + h * hs), rs, cs, 0};
  }
};

// Dropout of P: a weight whose number is below `least` becomes 0, another is multiplied by
// `factor`, 1 / (1 - p). The number of query i and key j of head n is word offset + (n queries + i)
// keys + j of the Philox stream of a seed, as in torch's kernels, so that each takes up the other's
// pass.
struct Dropout {
  bool on = false;
  uint32_t least = 0;
  float factor = 1.f;
  int64_t seed = 0, offset = 0;
  const int64_t *seed_at = nullptr,
                *offset_at = nullptr;  // where they are on the device, else null
};

struct Attention {
  int64_t batch = 0, heads = 0, queries = 0, keys = 0, width = 0;
  Heads<const float> q, k, v;
  Heads<const float> bias;  // queries x keys, added to the logits; null: none
  Heads<float> out;  // the backward pass reads it
  // [batch][heads][lse_stride]: each query's logarithm of the sum of exponentials; +inf where it
  // sees no key, and from `queries` on.
  float* lse = nullptr;
  int64_t lse_stride = 0;
  bool causal = false;  // query i sees keys 0 to i
  float scale = 1.f;
  Dropout dropout;
  // Of the backward pass: that of `out`, and those that it writes.
  Heads<const float> grad;
  Heads<float> dq, dk, dv;

  XGEMM_HD int64_t all_heads() const { return batch * heads; }
  // Keys that any query sees.
  XGEMM_HD int64_t seen() const { return causal && queries < keys ? queries : keys; }
};

// Columns of a head at most.
constexpr int64_t kMostWidth = 128;

// The kernels of one flavour: of the emulator, or for GPUs from min_sm to max_sm. `run` enqueues
// launches, and needs a workspace of so many bytes in its context. Called with no size 0.
struct AttentionKernels {
  struct Pass {
    size_t (*workspace)(const Attention&) = nullptr;
    void (*run)(const Attention&, const Context&) = nullptr;
  };
  Pass forward, backward;
  int min_sm = 0, max_sm = 0;
};

// Those of a flavour, or null.
const AttentionKernels* attention_kernels(Flavour flavour);

// Called while the library is loaded.
struct RegisterAttention {
  RegisterAttention(Flavour flavour, const AttentionKernels& kernels) noexcept;
};

}  // namespace xgemm
