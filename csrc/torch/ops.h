#pragma once

#include <string>

namespace xgemm {

// Registers the CPU and CUDA kernels of torch.ops.xgemm.*, whose schemas Python has defined. A
// second call does nothing.
void register_kernels();

// Gives a warning of Python's. From any thread, whether it has Python's lock or not.
void warn(const std::string& text);

}  // namespace xgemm
