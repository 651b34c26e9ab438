#pragma once

namespace xgemm {

// Registers the CPU and CUDA kernels of torch.ops.xgemm.*, whose schemas Python has defined. A
// second call does nothing.
void register_kernels();

}  // namespace xgemm
