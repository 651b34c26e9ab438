// Where the recompute launches of a device count the units of D that they make anew; nowhere unless
// somebody asks.
#pragma once

#include <atomic>
#include <cstdint>

namespace xgemm {

constexpr int kCountedDevices = 64;
constexpr int kHostCounter = kCountedDevices;  // the emulator's

inline std::atomic<uint32_t*> recompute_counters[kCountedDevices + 1];

// On the device of this index, or null.
inline uint32_t* recompute_counter(int device) {
  return device >= 0 && device <= kHostCounter
             ? recompute_counters[device].load(std::memory_order_relaxed)
             : nullptr;
}

}  // namespace xgemm
