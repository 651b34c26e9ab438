// What TMA knows of a tensor in gmem: made on the host, read by the unit that copies its boxes.
#pragma once

#include <cstdint>

#include "xgemm/device/half.h"
#ifdef __CUDACC__
#include <cuda.h>
#endif

namespace xgemm {
inline namespace XGEMM_FLAVOUR {

// A 3-D tensor of 16-bit elements or of floats. Axis 0 is contiguous; `stride` is that of axes 1
// and 2 in bytes, multiples of 16. A box of it lands in shared memory axis 0 first, row after row,
// from a multiple of 128 bytes on. Rows of 64 or 128 bytes may be swizzled, which `swizzle` then
// is: 16-byte chunk c of row r lies at c ^ (r % 8) in rows of 128 bytes, at c ^ (r / 2 % 4) in rows
// of 64, and the box's place must be a multiple of 1024 bytes.
struct TensorShape {
  const void* data;
  uint64_t size[3], stride[2];
  uint32_t box[3];
  uint32_t element = 2;  // bytes: 2 or 4
  uint32_t swizzle = 0;  // bytes, or none
};

#ifdef __CUDACC__
using TensorMap = CUtensorMap;
#else
using TensorMap = TensorShape;
#endif

// Throws std::runtime_error when the driver refuses it.
TensorMap make_tensor_map(const TensorShape& shape);

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
