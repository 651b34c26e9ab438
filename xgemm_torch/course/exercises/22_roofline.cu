//! title: Bytes for an operation
//! kind: predict
//! ask square: A product of 4096 x 4096 x 4096, each operand read once and D written once. How
//!   many FLOP for a byte?
//! truth square: 2 * 4096 ** 3 / (3 * 4 * 4096 ** 2)
//! wrong square: 1365; D is written, too, and a multiply-add is two operations
//! wrong square: 2731; a float has 4 bytes
//! because square: N / 6: it grows with N.
//! ask ridge: From how many FLOP for a byte on are an H200's FP32 units, and not its memory, the
//!   limit?
//! truth ridge: gpu.tflops / gpu.memory_tbs
//! wrong ridge: 0.0717; the other way round: operations for a byte
//! because ridge: 66.9 TFLOP/s over 4.8 TB/s.
//! ask least: From which N on, roughly, can a product of N x N x N be limited by the FP32 units?
//! truth least: 6 * gpu.tflops / gpu.memory_tbs
//! wrong least: 14; that is FLOP for a byte; a square has N / 6
//! because least: 84: nearly every square. But for the naive kernel each multiply-add loads two
//!   floats, 0.25 FLOP for a byte of L1, whatever N is.
//! ask vector: A matrix of 4096 x 4096 times one vector: how many FLOP for a byte?
//! truth vector: 2 * 4096 ** 2 / (4 * 4096 ** 2 + 2 * 4 * 4096)
//! wrong vector: 682; a matrix element is used once
//! because vector: Each element of the matrix is read and used once: 2 operations for 4 bytes. No
//!   tile helps there; bandwidth is all.
//! ask microseconds: And how many microseconds does that take at least?
//! truth microseconds: 4 * 4096 ** 2 / (gpu.memory_tbs * 1e6)
//! wrong microseconds: 0.5; that is the time of the operations
//! because microseconds: 64 MiB at 4.8 TB/s.
//! hint: FLOP of a product: 2 M N K. Bytes at least: 4 (M K + K N + M N).
//! hint: What bounds it is the larger of FLOP / 66.9e12 and bytes / 4.8e12 seconds; they are
//!   equal where FLOP / bytes = 66.9 / 4.8.
// Two limits bound a kernel's time: the operations over the speed of the units, and the bytes over
// the speed of the memory. Which one holds depends on one number, operations for a byte.
//
// An H200: 132 multiprocessors x 128 FMA x 2 x 1.98 GHz = 66.9 TFLOP/s of FP32; 4.8 TB/s of memory.
//
// By hand, for x + y of two vectors: one operation, 12 bytes, 0.083 FLOP for a byte. At 4.8 TB/s
// that is 0.4 TFLOP/s, 0.6% of what the units can.
//
// It is the least that must be moved that counts here. What a kernel does move is more: the naive
// one loads two floats for each multiply-add. Tiles bring it back towards the least.
//
// There is no kernel to run here: the check computes.
