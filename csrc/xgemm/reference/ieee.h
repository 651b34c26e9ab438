// The strict product in plain C++: what every strict stage must equal, and precision="ieee" on a
// CPU tensor.
#pragma once

#include "xgemm/core/gemm.h"

namespace xgemm {

// Rows [first, last) of all batch * m rows of D. Each element is the sum of its chains of
// fmaf over ascending k (Gemm::split_k_size), in order.
void chain(const Gemm& g, int64_t first, int64_t last);

}  // namespace xgemm
