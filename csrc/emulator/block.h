// The block that is running on this OS thread: what the scheduler (simt_host.cpp), the watch
// (watch.cpp) and the instructions share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "emulator/clock.h"
#include "emulator/simt_control.h"
#include "xgemm/device/half.h"
#include "xgemm/device/platform_host.h"

namespace xgemm::simt {

struct Recorder;

enum class Wait : uint8_t {
  nothing,
  barrier,
  warp,
  named,
  cluster,
  mbarrier,
  warpgroup,
  signals,
  finished
};

struct Copy {              // one cp.async that has been issued and not waited for
  char* smem;
  const char* gmem;
  int bytes, source_bytes;
  const void* pc;
};

// A warp function that a lane has called and in which it waits for the other lanes of its mask.
struct WarpCall {
  const char* function = nullptr;
  uint32_t mask = 0;         // without lanes that the warp does not have
  int source = -1;           // the lane whose value it takes; -1: its own
  uint64_t given = 0;
  Meeting result{};
  unsigned number = 0;       // of the meeting, among those of all blocks
};

// Accumulators of one thread that wgmmas have been given and will be read or written by them.
struct Accumulators {
  float* d;
  size_t count;
  size_t tile;      // where their values are meanwhile, of the warpgroup's
  int uses;         // by instructions that are not done
  Site at;          // of the last of them
};

struct Wgmma {               // one that has been issued and not waited for
  Half type;
  uint64_t a, b;             // descriptors
  bool b_mn_major;
  const uint32_t* registers;  // A's, in place of its descriptor, and ...
  uint32_t given[4];          // ... what they held
  bool accumulate;
  size_t tile;
  Site at;
  const void* pc;
};

// The last access of a thread to four bytes of its stack, which is where what wgmmas have in
// registers lies: after which of the wgmma_fences, as all threads' are numbered. Kept from a
// thread's first one on.
struct RegisterUse {
  uint64_t fence = 0;
  const void* pc = nullptr;
};

struct Fiber {
  void* sp = nullptr;                       // saved stack pointer
  char* stack = nullptr;
  Wait wait = Wait::nothing;
  Site at{};                                // where it waits
  WarpCall call;                            // in what, if that is a warp function
  std::vector<std::vector<Copy>> groups;    // committed cp.async groups, oldest first
  std::vector<Copy> open;                   // issued, not yet committed
  const Mbarrier* mbarrier = nullptr;       // for which it waits, ...
  int parity = 0;                           // ... until its phase of this parity has ended
  int named = 0;                            // the named barrier that it waits at
  uint64_t fence_phase = 0;                 // of its last fence_for_wgmma
  uint64_t register_fence = 0;              // the number of its last wgmma_fence; 0: none yet
  const uint32_t* flag = nullptr;           // at which it waits, ...
  uint32_t signals = 0;                     // ... until there have been so many
  std::vector<std::vector<Wgmma>> wgmma_groups;
  std::vector<Wgmma> wgmma_open;
  std::vector<Accumulators> accumulators;   // in flight
  size_t tiles = 0;                         // that it has had so far
  bool waited = false;                      // for the launch before this one
  void* sanitizer = nullptr;                // the TSan fiber, in a TSan build
};

// Which of a warp's accesses __syncwarp has ordered within a phase. The warp's syncs are numbered;
// an access is as old as the number of syncs before it.
struct Warp {
  uint32_t syncs = 0;
  uint32_t known[32][32] = {};   // [l][r]: the last sync of lane r of which lane l knows
  uint32_t waiting = 0;          // lanes that wait in warp functions; of them ...
  uint32_t alike = 0;            // ... those that have made the same call as ...
  unsigned last = 0;             // ... this one, the last to come

  // Whether what `other` has done at time `then` comes before what `lane` does now.
  bool ordered(unsigned other, uint32_t then, unsigned lane) const {
    return known[lane][other] > then;
  }
};

// What is known of four bytes of shared memory. A phase is the time between two barriers of a
// block; phases are numbered through all blocks of all launches, so that nothing has to be cleared
// between blocks.
struct Cell {
  uint64_t write_phase = 0, read_phase = 0;
  uint64_t pending_phase = 0;    // in which a cp.async was issued that has not landed
  const void *write_pc = nullptr, *read_pc = nullptr;
  uint32_t write_syncs = 0, read_syncs = 0;      // of the warp, before the access
  uint32_t read_lanes = 0;       // who has read, of one warp ...
  uint16_t read_warp = 0;        // ... that one, or kMany: lanes of several
  uint16_t writer = 0;           // thread of the block
  bool inside = false;           // of some array; false in the zones between
};
constexpr uint16_t kMany = 0xffff, kByTma = 0xfffe;  // no threads

// The same by the clocks of clock.h, kept from the first use of what moves them. Of reads by
// several warps the oldest one's time counts for all: a write may be taken for ordered that is not,
// but none the other way.
struct Timed {
  uint64_t write_time = 0, read_time = 0, read_phase = 0;
  uint32_t read_warps = 0;  // of the block, since the last write ...
  uint16_t read_warpgroups = 0;  // ... and those whose wgmma have read
  uint16_t wgmmas = 0;  // warps of them that are yet to read it ...
  uint64_t wgmma_block = 0;  // ... in the block whose first phase this is
};

struct MbarrierState {
  const Mbarrier* at;
  int count = 0, pending = 0;  // arrivals of a phase, and those that are yet to come
  int64_t bytes = 0;  // yet to come by TMA
  uint64_t phase = 0;  // how many have ended
  unsigned init_agent = 0;  // who has made it, and when
  uint64_t init_time = 0, init_phase = 0;
  Clock coming, done;  // of those who have arrived in this phase, in those before
  Times remote;  // of those who have arrived from other blocks
  unsigned meeting = 0, last_meeting = 0;  // this phase's and the last one's number
  Site site;  // of the last arrival from another block
};

struct NamedBarrier {
  int here = 0, threads = 0;
  unsigned meeting = 0;
};

struct Warpgroup {
  int here = 0;  // threads in its wgmma_wait
  std::vector<std::vector<float>> tiles;  // accumulators in flight, row by row; empty: done
};

struct Array {  // one XGEMM_SHARED of the block
  const void* site;
  const char* name;
  size_t offset, bytes;
};

// An operand that the launch may touch, as `float`s from its first one on. Axes of size 1 or stride
// 0 say nothing of where its elements lie and are left out.
struct Operand {
  struct Axis {
    int64_t stride, size;
  };
  const char* name;
  const char* base;
  bool writable;
  std::vector<Axis> axes;  // widest stride first
  int64_t reach = 0;  // offset of the last element
  bool solid =
      true;  // every offset up to reach is an element, or, for a sliding window, may be one
  // Who has stored a writable one's element in this launch, and who has read it last: a thread of
  // the grid + 1, and the time, in clock.h's terms.
  struct Use {
    uint32_t writer = 0, reader = 0;
    uint64_t written = 0, read = 0;
    bool atomic = false;  // changed by atomic operations, which come in any order
  };
  std::vector<Use> uses;  // by slot
  // What the launch before this one has done to it, and those that it need not have waited for.
  enum Before : uint8_t { untouched, read, written };
  std::vector<Before> before;  // by slot

  Operand(const char* name, const void* base, bool writable, std::vector<Axis> all);
  // Offset in floats of the element at p, or -1 when p is none: padding between rows is not part of
  // a view.
  int64_t element(const char* p) const;
  // Uses are those of the launch before from now on, which may have been dependent.
  void begin_launch(bool after_dependent);
  // Where `uses` has the element at an offset: elements far apart take no more room than others.
  size_t slot(int64_t offset) const;
};

struct Block {
  dim3 grid, dims, index;
  unsigned threads = 0;
  unsigned linear = 0;  // the block's number in the grid ...
  unsigned rank = 0;  // ... and in the cluster
  unsigned self = 0;  // the thread that runs
  uint64_t phase = 0, first_phase = 0;
  uint32_t passed = 0;  // barriers
  uint64_t since = 0;  // the time of the last of them
  unsigned finished = 0;  // threads
  std::vector<Fiber> fibers;
  Warp warps[32];
  std::vector<Array> arrays;
  size_t arena_used = 0;
  size_t dynamic_smem = 0;
  std::string error;
  std::vector<Operand>* operands = nullptr;  // the launch's
  char* arena = nullptr;  // shared memory, kArena bytes ...
  Cell* cells = nullptr;  // ... and what is known of each 4 of them
  Timed* timed = nullptr;
  Clocks* clocks = nullptr;  // the cluster's; null as long as barriers of the block do
  std::vector<MbarrierState> mbarriers;
  std::vector<uint64_t> read_by_others;  // [agent]: when others of the cluster read its memory ...
  Site read_at;  // ... and where they did so last
  // Threads that have waited for the launch before, and when: by clock.h, and in barriers passed.
  struct LaunchWait {
    unsigned agent;
    uint64_t time;
    uint32_t passed;
  };
  std::vector<LaunchWait> launch_waits;
  NamedBarrier named[16];
  std::vector<Warpgroup> warpgroups;
  const char* stacks = nullptr;  // of all fibers
  size_t stack_bytes = 0;
  RegisterUse* register_uses = nullptr;  // of each 4 of them
  const char* arguments = nullptr;  // the launch's
  size_t argument_bytes = 0;
  Recorder* recording = nullptr;  // who wants this block's events (trace.h); mostly nobody
  bool quiet =
      false;  // the emulator itself is at work on this fiber: its accesses are not the kernel's

  unsigned warp_count() const { return (threads + 31) / 32; }
  // In clock.h's terms: of a block, of a thread's warp, and of its warpgroup's wgmma.
  unsigned agents() const { return warp_count() + static_cast<unsigned>(warpgroups.size()); }
  unsigned agent(unsigned thread) const { return 1 + rank * agents() + thread / 32; }
  unsigned wgmma_agent(unsigned thread) const {
    return 1 + rank * agents() + warp_count() + thread / 128;
  }
};

// Null outside a kernel. Not of the initial-exec model, which would be quicker: together with the
// CUDA runtime's own it is more thread-local storage than a library that is loaded late can have of
// that kind.
extern constinit thread_local Block* running;

// Emulator code that runs on a fiber may call library templates whose one linked copy is a stage's,
// instrumented.
struct Quiet {
  Block& block;
  explicit Quiet(Block& b = *running) : block(b) { block.quiet = true; }
  ~Quiet() { block.quiet = false; }
};

// Under a sanitizer plain accesses are for it to judge, and nothing is known of them here.
#if defined(XGEMM_REAL_TSAN) || defined(__SANITIZE_ADDRESS__)
constexpr bool kWatched = false;
#else
constexpr bool kWatched = true;
#endif

constexpr size_t kArena = 512 * 1024, kZone = 256, kStack = 64 * 1024;
constexpr unsigned kMostBlocks = 16;  // of a cluster

// Ends the running block with an error; does not return.
[[noreturn]] void fail(const std::string& what);

// Check an access, and keep what later ones are checked against. `b` is *running, which is a call
// in a library to look up.
void expect_aligned(const void* p, size_t bytes, const void* pc);
void note_shared(const Block& b, const char* p, size_t bytes, bool write, const void* pc);
void note_global(const Block& b, const char* p, size_t bytes, bool write, const void* pc);
// An atomic operation on one float's room.
void note_atomic(const Block& b, const uint32_t* p, const void* pc);
// The same for what TMA writes into a block's shared memory for the thread that runs, ...
void note_tma(Block& to, const char* p, size_t bytes, const void* pc);
// ... what it reads of another block of its cluster, ...
void note_peer_read(Block& of, const char* p, size_t bytes, const void* pc);
// ... what has come, ...
void note_landed(Block& to, const char* p, size_t bytes);
// ... what a wgmma of the warp that runs will read ...
void note_wgmma(const char* p, size_t bytes, const void* pc);
// ... and what a warpgroup has read by it.
void note_wgmma_done(const char* p, size_t bytes, unsigned warpgroup, const void* pc);
// Ends the block with an error unless these registers, which a wgmma is given, are fenced.
void expect_fenced(const Block& b, const void* registers, size_t bytes, const Site& at);
// The unfinished wgmma that reads this place of the block's shared memory.
const Wgmma* reader_of(const Block& b, const char* p);

// Of instructions, from the line table.
std::vector<Place> places(const std::vector<const void*>& pcs);
std::string place(const void* pc);  // in one: "gmem.h:13 (from 15_vec4_128x128.cu:57)"
std::string place(const Site& site);
std::string thread_name(unsigned thread);
std::string array_byte(const char* p);  // "8 of As"

}  // namespace xgemm::simt
