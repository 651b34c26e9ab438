//! title: Sectors of a request
//! kind: predict
//! stage: coalesced
//! ask strided: How many sectors does the line marked (strided) take?
//! truth strided: at("strided", "global_load").per_request
//! wrong strided: 4; that is what 32 neighbours take; here the lanes are 32 floats apart
//! wrong strided: 1; every lane is in another row of A
//! because strided: Lanes are 128 bytes apart, each in a sector of its own, of which 28 bytes are
//!   for nothing.
//! ask shifted: And (shifted), whose first element is one float behind a multiple of 128 bytes?
//! truth shifted: at("shifted", "global_load").per_request
//! wrong shifted: 4; 128 bytes that do not begin at a multiple of 32 reach into one sector more
//! wrong shifted: 8; only the first and the last sector are touched in part
//! because shifted: Bytes 4 to 131 touch the sectors from 0, 32, 64, 96 and 128 on.
//! ask same: And (same)?
//! truth same: at("same", "global_load").per_request
//! wrong same: 32; lanes that ask for the same sector share it
//! because same: One sector serves all 32 lanes.
//! ask vector: And (vector), where each lane moves 16 bytes?
//! truth vector: at("vector", "global_load").per_request
//! wrong vector: 4; that is 128 bytes; here 32 lanes ask for 16 bytes each
//! wrong vector: 1; a request of 512 bytes is more than one sector
//! because vector: 32 x 16 = 512 bytes are 16 sectors, all used: 4 times the bytes by one
//!   instruction.
//! hint: A sector is 32 bytes and begins at a multiple of 32. List the bytes that 32 lanes ask
//!   for, and count the sectors that they lie in.
//! hint: A is row-major, 64 x 32: one row down is 32 floats, 128 bytes. B is 32 x 64: a row is
//!   256 bytes. Both begin at multiples of 512 bytes.
// A request to global memory is one load of one warp, and it takes as many sectors of 32 bytes as
// its lanes touch. Caches and DRAM move sectors, so sectors, and not the bytes that were asked for,
// are what a kernel pays for.
//
// Below, one warp of 32 lanes loads four times. A is 64 x 32 and B is 32 x 64, both by rows, both
// from a multiple of 512 bytes on.
//
// Predict how many sectors each marked line takes for its one request. Write the numbers behind
// "answer" below, or give them to --answer in this order. The check runs the kernel in the
// emulator, which counts the sectors that the lanes touch.
//
// By hand, for a line that is not here: g.a(lane / 8, 0) has lanes in 4 rows, 8 lanes at each. Rows
// are 128 bytes apart, so that 4 sectors are touched.

#include "exercise.h"

__global__ void kernel(const Gemm g) {
  const int lane = threadIdx.x;
  float sum = g.a(lane, 0);  // (strided)
  sum += *g.b.ptr(0, 1 + lane);  // (shifted)
  sum += g.b(1, 0);  // (same)
  sum += load4(g.b.ptr(2, 0) + 4 * lane).x;  // (vector)
  g.d(0, lane) = sum;
}

void run(const Gemm& g, const Context& context) {
  launch(kernel, {.grid = dim3(1), .block = dim3(32)}, context, g);
}
