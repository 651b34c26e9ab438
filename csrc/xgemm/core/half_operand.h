// Products of 16-bit and 32-bit floats, as of a model's bf16 activations and a router's FP32
// weights: where the 16-bit operand lies.
#pragma once

#include <cstdint>

namespace xgemm {

// A of a product whose B has floats; its elements lie along k.
struct HalfOperand {
  const uint16_t* data = nullptr;  // null: A has floats, too
  int64_t rs = 0;  // from a row to the next
  bool bf16 = true;  // else fp16

  explicit operator bool() const { return data != nullptr; }
};

}  // namespace xgemm
