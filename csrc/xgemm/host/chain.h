// The strict product in plain C++: what every stage from 1 to 20 must equal, and precision="ieee"
// on a CPU tensor.
#pragma once

#include "xgemm/gemm.h"

namespace xgemm {

// Rows [first, last) of all batch * m rows of D. Each element is one chain of fmaf over ascending
// k.
void chain(const Gemm& g, int64_t first, int64_t last);

}  // namespace xgemm
