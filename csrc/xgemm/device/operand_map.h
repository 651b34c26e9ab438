// What TMA knows of an operand, where it can take it.
#pragma once

#include "xgemm/core/gemm.h"
#include "xgemm/device/tensor_map.h"

namespace xgemm {
inline namespace XGEMM_FLAVOUR {

struct OperandMap {
  bool by_tma = false;
  TensorMap map{};
};

// Of an operand, seen with rows along the way in which it may be contiguous: `rows` of them,
// `length` long, in boxes of box_rows x box_length, swizzled by so many bytes or not
// (tensor_map.h). TMA takes it if it is contiguous, and aligned.
inline OperandMap operand_map(const View<const float>& view, int64_t rows, int64_t length,
                              int64_t batch, int box_rows, int box_length, uint32_t swizzle) {
  constexpr int64_t kMostStride = int64_t{1} << 37, kMostSize = INT32_MAX - 1024;
  if (rows == 0 || length == 0 || !view.wide() || view.rs < length || view.rs > kMostStride ||
      view.bs > kMostStride || length > kMostSize || rows > kMostSize)
    return {};
  const auto bytes = [](int64_t floats) { return static_cast<uint64_t>(floats) * 4; };
  const bool many = view.bs != 0;
  return {.by_tma = true,
          .map = make_tensor_map(
              {.data = view.data,
               .size = {static_cast<uint64_t>(length), static_cast<uint64_t>(rows),
                        static_cast<uint64_t>(many ? batch : 1)},
               .stride = {bytes(view.rs), bytes(many ? view.bs : view.rs)},
               .box = {static_cast<uint32_t>(box_length), static_cast<uint32_t>(box_rows), 1},
               .element = 4,
               .swizzle = swizzle})};
}

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
