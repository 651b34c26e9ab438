// What tests set of how every product is made, in both flavours. Nothing is, unless they do.
#pragma once

#include "xgemm/core/stage.h"

namespace xgemm {

struct Overrides {
  int row = -1;  // of the tile table of a stage called by its name; -1: the one that is chosen
  int64_t split_k_size = -1;  // Gemm::split_k_size; -1: split_k_size's
  int64_t slab_bytes = -1;  // Context::slab_bytes; -1: kSlabBytes
};
void set_overrides(const Overrides&);

// Gemm::split_k_size of a problem of these sizes.
int64_t split_k_size_of(const Gemm& g);

// Context::slab_bytes of every product.
size_t slab_bytes_of_all();

// Overrides::row for this stage. Throws std::invalid_argument when the stage has no such row, or
// the device no room for it.
int forced_row(const Stage& stage, const Device& device);

// The row that runs when the stage is called by its name, where `chosen` would: Overrides::row, if
// the stage has it and the device room for it.
int row_by_name(const Stage& stage, const Device& device, int chosen);

}  // namespace xgemm
