#include <cudaTypedefs.h>

#include <string>

#include "xgemm/device/tensor_map.h"

namespace xgemm {
inline namespace XGEMM_FLAVOUR {

// The driver's function is asked for by name: the library is not linked with libcuda, so that it
// loads where there is none.
TensorMap make_tensor_map(const TensorShape& s) {
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
    simt::check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                 cudaEnableDefault, &found),
                "cuTensorMapEncodeTiled");
    if (found != cudaDriverEntryPointSuccess)
      throw std::runtime_error("xgemm: the CUDA driver has no cuTensorMapEncodeTiled");
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
  }();
  TensorMap map;
  const cuuint32_t every[3] = {1, 1, 1};
  const bool floats = s.element == 4;
  const auto try_once = [&] {
    return encode(&map, floats ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : CU_TENSOR_MAP_DATA_TYPE_UINT16,
                  3, const_cast<void*>(s.data), s.size, s.stride, s.box, every,
                  CU_TENSOR_MAP_INTERLEAVE_NONE,
                  s.swizzle == 0    ? CU_TENSOR_MAP_SWIZZLE_NONE
                  : s.swizzle == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                    : CU_TENSOR_MAP_SWIZZLE_128B,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  };
  CUresult status = try_once();
  // A thread's first work for a GPU may come here before anything has made its context current: the
  // runtime does that by itself, the driver does not.
  if (status == CUDA_ERROR_INVALID_CONTEXT) {
    simt::check(cudaFree(nullptr), "context");
    status = try_once();
  }
  if (status != CUDA_SUCCESS)
    throw std::runtime_error("xgemm: cuTensorMapEncodeTiled: error " + std::to_string(status));
  return map;
}

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
