// Which tiles a device has room for: a row made for one GPU need not fit on another.
#pragma once

#include "xgemm/core/stage.h"

namespace xgemm {

// Shared memory that a block can have, in bytes, by compute capability (CUDA C++ Programming Guide,
// "Technical specifications per compute capability"); of an unknown one, the next lower known's.
constexpr int smem_of_block(int sm) {
  constexpr struct {
    int sm, kib;
  } kKnown[] = {{120, 99}, {90, 227}, {89, 99}, {87, 163}, {86, 99}, {80, 163}, {75, 64}};
  for (const auto& known : kKnown)
    if (sm >= known.sm) return known.kib * 1024;
  return 48 * 1024;
}

// The emulator has room for every tile.
constexpr bool fits(const Tile& t, const Device& device) {
  return !device.sm || t.smem() <= smem_of_block(device.sm);
}

}  // namespace xgemm
