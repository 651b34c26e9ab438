// What runs a block on one OS thread: stacks, the arena and its cells, the state of a launch.
#pragma once

#include <sys/mman.h>

#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "xgemm/host/block.h"
#include "xgemm/host/fiber.h"
#include "xgemm/host/trace.h"

namespace xgemm::simt {

// What lasts from launch to launch on one OS thread: stacks, the arena and its cells.
struct Machine {
  Block block;
  char* stacks = nullptr;
  size_t stack_count = 0;
  std::vector<Cell> cells = std::vector<Cell>(kArena / 4);
  void* scheduler_sp = nullptr;
  SanitizerContext sanitizer;
  uint64_t phase = 0;
  unsigned meetings = 0;         // of lanes of warps, so far
  bool released = false;         // some lanes have just met
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
    block.arena = static_cast<char*>(map(kArena));
    block.cells = cells.data();
    seen.reserve(256);           // it is not to grow on a fiber, which a sanitizer may watch
  }
  ~Machine() {
    munmap(block.arena, kArena);
    if (stacks) munmap(stacks, stack_count * kStack);
  }
  static void* map(size_t bytes) {
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
      throw std::runtime_error("xgemm simt: no memory for the threads of a block");
    return p;
  }
  void grow(size_t threads) {
    if (threads <= stack_count) return;
    if (stacks) munmap(stacks, stack_count * kStack);
    stacks = static_cast<char*>(map(threads * kStack));
    stack_count = threads;
    block.stacks = stacks;
    block.stack_bytes = threads * kStack;
    // The lowest page of a stack is a guard: an overflow faults instead of running into a
    // neighbour's frames.
    for (size_t t = 0; t < threads; ++t) mprotect(stacks + t * kStack, 4096, PROT_NONE);
  }
};

Machine& machine();      // this OS thread's
void add_site(Sync kind, const Site& site);   // to what sites() lists
bool skips(Sync kind, const Site& site);  // whether it is to be left out; adds it to the sites
void to_scheduler();  // leaves the fiber that runs, until the scheduler comes back to it

}  // namespace xgemm::simt
