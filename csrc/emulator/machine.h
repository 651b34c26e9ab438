// What runs clusters of blocks, mostly one block at a time, on one OS thread: stacks, arenas and
// their cells, the state of a launch.
#pragma once

#include <sys/mman.h>

#include <functional>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "emulator/block.h"
#include "emulator/fiber.h"
#include "emulator/trace.h"
#include "xgemm/device/tensor_map.h"

namespace xgemm::simt {

// What is on its way into a block and lands by itself, when every thread waits: a box of TMA, or a
// thread's cp.asyncs, for which an arrival at an mbarrier waits.
struct Landing {
  Block* to;
  const Mbarrier* bar;         // the one there
  const char* what;            // in words
  Site at;
  std::function<void()> land;
};

// Room for a cluster. What it is made of lasts from launch to launch.
struct Cluster {
  std::vector<std::unique_ptr<Block>> blocks;  // as many as a cluster has had so far
  Clocks clocks;
  std::vector<Landing> copies;  // on their way, oldest first
  unsigned meeting = 0;         // the number of its next one
  bool ended = true;
  char* stacks = nullptr;
  size_t stack_count = 0;
  RegisterUse* register_uses = nullptr;  // of each 4 bytes of them

  Cluster() = default;
  Cluster(const Cluster&) = delete;
  ~Cluster() {
    for (const auto& b : blocks) {
      unmap(b->arena, kArena);
      unmap(b->cells, kArena / 4 * sizeof(Cell));
      unmap(b->timed, kArena / 4 * sizeof(Timed));
    }
    free_stacks();
  }
  // A fresh page is zeros, which is a fresh Cell's and Timed's state, too.
  static std::unique_ptr<Block> make_block() {
    auto b = std::make_unique<Block>();
    b->arena = static_cast<char*>(map(kArena));
    b->cells = static_cast<Cell*>(map(kArena / 4 * sizeof(Cell)));
    b->timed = static_cast<Timed*>(map(kArena / 4 * sizeof(Timed)));
    return b;
  }
  static void* map(size_t bytes) {
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
      throw std::runtime_error("xgemm simt: no memory for the threads of a block");
    return p;
  }
  static void unmap(void* p, size_t bytes) {
    forget(p, bytes);
    munmap(p, bytes);
  }
  void grow(size_t threads) {
    if (threads <= stack_count) return;
    free_stacks();
    stacks = static_cast<char*>(map(threads * kStack));
    register_uses = static_cast<RegisterUse*>(map(threads * kUses));
    stack_count = threads;
    // The lowest page of a stack is a guard: an overflow faults instead of running into a
    // neighbour's frames.
    for (size_t t = 0; t < threads; ++t) mprotect(stacks + t * kStack, 4096, PROT_NONE);
  }

 private:
  static constexpr size_t kUses = kStack / 4 * sizeof(RegisterUse);  // of one stack
  void free_stacks() {
    if (!stacks) return;
    unmap(stacks, stack_count * kStack);
    unmap(register_uses, stack_count * kUses);
  }
};

// What lasts from launch to launch on one OS thread.
struct Machine {
  std::vector<std::unique_ptr<Cluster>> rooms;  // one, but for launches with signals
  Cluster* here = nullptr;                      // whose turn it is
  unsigned cluster = 1;                         // blocks of each
  bool in_order = false;                        // this launch's clusters begin so
  bool dependent = false;                       // it begins before those before it are over ...
  unsigned launches = 0;                        // ... of which there were so many, it included
  std::vector<Operand> operands;                // of this launch
  std::map<const uint32_t*, std::map<unsigned, Times>> signals;  // what each flag tells
  void* scheduler_sp = nullptr;
  SanitizerContext sanitizer;
  uint64_t phase = 0;
  uint64_t register_fences = 0;  // of all threads so far
  unsigned meetings = 0;         // of some threads, otherwise than in __syncthreads, so far
  bool released = false;         // some have just met
  std::mt19937_64 random;
  const void* arguments = nullptr;
  void (*thread)(const void*) = nullptr;
  Recorder* recorder = nullptr;  // of this launch; null: nobody asks
  std::string skip;              // settings().skip
  struct Seen {
    Sync kind;
    Site site;
    bool skipped;
  };
  std::vector<Seen> seen;        // of this launch

  Machine() {
    seen.reserve(256);           // it is not to grow on a fiber, which a sanitizer may watch
  }
};

// This OS thread's; null till somebody asks for it.
extern constinit thread_local Machine* own_machine;
Machine& make_machine();
inline Machine& machine() { return own_machine ? *own_machine : make_machine(); }
void add_site(Sync kind, const Site& site);   // to what sites() lists
bool skips(Sync kind, const Site& site);  // whether it is to be left out; adds it to the sites
Clocks& use_clocks();  // from now on in this cluster
void to_scheduler();  // leaves the fiber that runs, until the scheduler comes back to it

// All lanes of a whole warp meet, and the last one works on what each has given.
using WarpWork = void(void* const (&lanes)[32]);
void together(const char* function, WarpWork* work, void* given, Site at);

// Block `rank` of the running cluster, which must have one.
Block& peer(unsigned rank, const char* what, const Site& at);

// The running block's mbarrier at this address: it must have one.
MbarrierState& mbarrier_of(Block& b, const Mbarrier* bar, const char* what, const Site& at);
// Bytes of a TMA have come, by the scheduler: they may end a phase.
void mbarrier_complete(Block& b, const Mbarrier* bar, int64_t bytes);
// What a waiting thread waits for, in words.
std::string mbarrier_wait_name(const Block& b, const Fiber& f);
// A thread's cp.asyncs have landed, by the scheduler, and arrive; `known` is what it knew when it
// asked for that.
void mbarrier_arrive_landed(Block& b, const Mbarrier* bar, const Clock& known, const Site& at);
// A cp.async lands, by the scheduler.
void land(const Block& b, const Copy& c);
// Lets some copies land for which a thread waits; false if there is none.
bool land_copies(Machine& m, Order how);
// Lets those go on who wait for signals that have come; false if there is none.
bool pass_signals(Machine& m);
// Ends the block that runs with an error when what is on its way into it has not landed.
void expect_nothing_on_its_way();
bool same(const Site& x, const Site& y);

}  // namespace xgemm::simt
