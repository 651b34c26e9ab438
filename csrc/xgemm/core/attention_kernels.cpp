#include <optional>

#include "xgemm/core/attention.h"

namespace xgemm {
namespace {

// A local static, so that it is there for whichever file is loaded first.
std::optional<AttentionKernels>& registered(Flavour flavour) {
  static std::optional<AttentionKernels> all[2];
  return all[static_cast<int>(flavour)];
}

}  // namespace

RegisterAttention::RegisterAttention(Flavour flavour, const AttentionKernels& kernels) noexcept {
  registered(flavour) = kernels;
}

const AttentionKernels* attention_kernels(Flavour flavour) {
  const auto& its = registered(flavour);
  return its ? &*its : nullptr;
}

}  // namespace xgemm
