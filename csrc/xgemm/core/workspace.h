// Where what a product needs besides its operands lies in one piece of memory, which the caller
// allocates.
#pragma once

#include <cstddef>
#include <cstdint>

namespace xgemm {

// More than any memory: what sizes beyond 64 bits come to. Operands with strides of 0 need no
// memory themselves, but all that is made of their elements does.
constexpr size_t kNoSuchMemory = SIZE_MAX / 1024 * 1024;
inline size_t times(size_t a, size_t b) {
  size_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? kNoSuchMemory : product;
}

// What lies one after another in memory from `start`, so far so many bytes; without a start it is
// counted alone.
struct Layout {
  void* start;
  size_t bytes = 0;

  void* place(size_t size) {
    void* at = static_cast<char*>(start) + bytes;
    const bool far = size > kNoSuchMemory - 1023 || bytes > kNoSuchMemory - (size + 1023);
    bytes = far ? kNoSuchMemory : bytes + (size + 1023) / 1024 * 1024;
    return at;
  }
};

}  // namespace xgemm
