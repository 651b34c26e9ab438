// The CUDA runtime for code that is compiled without nvcc. All of it throws std::runtime_error with
// the runtime's words.
#pragma once

#include <string>

#include "xgemm/core/stage.h"

namespace xgemm {

// Compute capability and multiprocessors of a device; asked once for each.
Device cuda_device(int index);

// Its name, as in "NVIDIA H200".
const std::string& cuda_device_name(int index);

// Throws when the launches so far have left an error behind; `what` names them.
void cuda_check_launch(const char* what);

}  // namespace xgemm
