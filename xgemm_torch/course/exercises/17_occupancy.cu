//! title: How many blocks fit
//! kind: predict
//! ask registers: 256 threads with 128 registers each, 16 KiB of shared memory. How many blocks
//!   fit on a multiprocessor?
//! truth registers: blocks_per_sm(256, 128, 16 * 1024)
//! wrong registers: 8; 8 x 256 are 2048 threads, which the registers do not suffice for
//! wrong registers: 13; that is shared memory's limit
//! because registers: A block takes 256 x 128 = 32768 registers, half of all.
//! ask more: The same with 136 registers. How many now?
//! truth more: blocks_per_sm(256, 136, 16 * 1024)
//! wrong more: 2; 2 x 256 x 136 are more than 65536
//! because more: 69632 registers would be needed for two. Eight registers more, half of the warps
//!   less.
//! ask memory: 128 threads with 96 registers, 64 KiB of shared memory?
//! truth memory: blocks_per_sm(128, 96, 64 * 1024)
//! wrong memory: 5; that is the registers' limit: 65536 / (128 x 96)
//! wrong memory: 4; each block takes 1 KiB more than it asks for, and 228 / 65 is less than 4
//! because memory: Each block takes 1 KiB for the system: 3 x 65 KiB fit into 228.
//! ask share: What share of a multiprocessor's 64 warps is there, in percent, in the first case?
//! truth share: 100 * blocks_per_sm(256, 128, 16 * 1024) * 8 / gpu.warps_per_sm
//! wrong share: 100; two blocks have 16 warps
//! because share: 16 of 64. The fastest stages of the ladder run at 12 to 25%: what hides latency
//!   there is the work that a thread has in flight, not the number of threads.
//! hint: Four limits: 32 blocks, 64 warps, 65536 registers, 228 KiB of shared memory. The
//!   tightest holds.
//! hint: Registers go to whole warps, 256 at a time: 32 x 136 = 4352 = 17 x 256.
// How many blocks are on a multiprocessor at a time is decided at compile time, by what a block
// takes of four things. Of an H100 or H200 each multiprocessor has
//
//   32 blocks      64 warps (2048 threads)      65536 registers      228 KiB of shared memory
//
// A warp's registers are dealt out in pieces of 256, and each block takes 1 KiB of shared memory
// besides its own. A thread has at most 255 registers.
//
// By hand: 512 threads with 64 registers and 40 KiB. Warps: 64 / 16 = 4 blocks. Registers: 65536 /
// (512 x 64) = 2. Shared memory: 228 / 41 = 5. So 2 blocks, by registers: 32 of 64 warps.
//
// __launch_bounds__(256, 2) tells the compiler that two such blocks are to fit: it keeps to 128
// registers then, and moves to memory what does not fit.
//
// There is no kernel to run here: the check computes from the same four limits.
