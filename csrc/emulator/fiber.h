// Switching between the scheduler's stack and a fiber's, and telling the sanitizers of it where a
// build has one.
#pragma once

#include "emulator/block.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(XGEMM_REAL_TSAN)
#include <sanitizer/tsan_interface.h>
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif

namespace xgemm::simt {

// Saves the callee's registers on the current stack, its pointer in *from, and continues where `to`
// was saved. 12 to 19 ns a switch, bookkeeping included; swapcontext makes a system call and takes
// 247.
extern "C" void xgemm_switch(void** from, void* to);

// What the emulator does on a fiber and no thread of the kernel, as memcpy and memset would have it
// in a TSan build.
struct Hidden {
#if defined(XGEMM_REAL_TSAN)
  Hidden() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~Hidden() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
#else
  Hidden() {}
#endif
};

struct SanitizerContext {
#if defined(__SANITIZE_ADDRESS__)
  void* fake = nullptr;            // the scheduler's fake stack while a fiber runs
  const void* bottom = nullptr;    // the scheduler's stack
  size_t size = 0;
#endif
#if defined(XGEMM_REAL_TSAN)
  void* scheduler = nullptr;
  char token[kMostBlocks][2] =
      {};  // of a block, one happens-before token for each parity of its barriers: a fast thread's
           // arrival at the next barrier must not be seen by a slow one that leaves this one
  char blocks[2] =
      {};  // the same for the blocks of a grid, which take turns on the same arrays: a thread
  char meetings[4096] = {};  // one for each meeting of some threads otherwise, for some time
  unsigned turn = 0;  // sees what the block before has done, and nothing of its own
#endif
};

inline void prepare_fiber(Fiber& f, void (*entry)()) {
#if defined(__x86_64__)
  // What xgemm_switch pops: six registers, then the address that it returns to. The entry finds the
  // stack as after a call: 8 past a multiple of 16.
  auto* top = reinterpret_cast<uint64_t*>(f.stack + kStack) - 1;
  *top = 0;
  *--top = reinterpret_cast<uint64_t>(entry);
  for (int i = 0; i < 6; ++i) *--top = 0;
  f.sp = top;
#elif defined(__aarch64__)
  auto* top = reinterpret_cast<uint64_t*>(f.stack + kStack) - 20;
  for (int i = 0; i < 20; ++i) top[i] = 0;
  top[11] = reinterpret_cast<uint64_t>(entry);   // x30
  f.sp = top;
#else
#error "the emulator switches stacks on x86-64 and aarch64 only"
#endif
#if defined(XGEMM_REAL_TSAN)
  if (!f.sanitizer) f.sanitizer = __tsan_create_fiber(0);
#endif
}

// A fiber that a smaller block has no thread for: ThreadSanitizer has room for 8128 of them in all.
inline void discard_fiber(Fiber& f) {
#if defined(XGEMM_REAL_TSAN)
  if (f.sanitizer) __tsan_destroy_fiber(f.sanitizer);
#endif
  f.sanitizer = nullptr;
}

inline void switch_to_fiber(SanitizerContext& c, Fiber& f, void** scheduler_sp) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&c.fake, f.stack, kStack);
#endif
#if defined(XGEMM_REAL_TSAN)
  c.scheduler = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(f.sanitizer, 1 /* no happens-before by the switch itself */);
#endif
  xgemm_switch(scheduler_sp, f.sp);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(c.fake, nullptr, nullptr);
#endif
  (void)c;
}

inline void enter_fiber(SanitizerContext& c) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &c.bottom, &c.size);
#endif
#if defined(XGEMM_REAL_TSAN)
  __tsan_acquire(&c.blocks[1 - c.turn]);
#endif
  (void)c;
}

inline void switch_to_scheduler(SanitizerContext& c, Fiber& f, void** scheduler_sp) {
#if defined(__SANITIZE_ADDRESS__)
  void* fake = nullptr;
  __sanitizer_start_switch_fiber(&fake, c.bottom, c.size);
#endif
#if defined(XGEMM_REAL_TSAN)
  __tsan_switch_to_fiber(c.scheduler, 1);
#endif
  xgemm_switch(&f.sp, *scheduler_sp);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake, &c.bottom, &c.size);
#endif
  (void)c;
}

// The last switch of a fiber.
inline void leave_fiber(SanitizerContext& c, Fiber& f, void** scheduler_sp) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(nullptr, c.bottom, c.size);
#endif
#if defined(XGEMM_REAL_TSAN)
  __tsan_release(&c.blocks[c.turn]);
  __tsan_switch_to_fiber(c.scheduler, 1);
#endif
  xgemm_switch(&f.sp, *scheduler_sp);
  (void)c;
}

inline void barrier_arrive(SanitizerContext& c, unsigned rank, uint32_t passed) {
#if defined(XGEMM_REAL_TSAN)
  __tsan_release(&c.token[rank][passed % 2]);
#endif
  (void)c, (void)rank, (void)passed;
}

inline void barrier_leave(SanitizerContext& c, unsigned rank, uint32_t passed) {
#if defined(XGEMM_REAL_TSAN)
  __tsan_acquire(&c.token[rank][passed % 2]);
#endif
  (void)c, (void)rank, (void)passed;
}

inline void meeting_arrive(SanitizerContext& c, unsigned meeting) {
#if defined(XGEMM_REAL_TSAN)
  __tsan_release(&c.meetings[meeting % sizeof c.meetings]);
#endif
  (void)c, (void)meeting;
}

inline void meeting_leave(SanitizerContext& c, unsigned meeting) {
#if defined(XGEMM_REAL_TSAN)
  __tsan_acquire(&c.meetings[meeting % sizeof c.meetings]);
#endif
  (void)c, (void)meeting;
}

// What the host did before a launch is seen by its threads, and what they did by the host
// afterwards.
inline void launch_begins(SanitizerContext& c) {
#if defined(XGEMM_REAL_TSAN)
  for (char& token : c.blocks) __tsan_release(&token);
#endif
  (void)c;
}

inline void block_begins(SanitizerContext& c) {
#if defined(XGEMM_REAL_TSAN)
  c.turn = 1 - c.turn;
#endif
  (void)c;
}

inline void launch_ends(SanitizerContext& c) {
#if defined(XGEMM_REAL_TSAN)
  for (char& token : c.blocks) __tsan_acquire(&token);
#endif
  (void)c;
}

// Fibers of a failed block are left where they stand. Their frames' red zones must not outlive
// them, and what they have done comes before all that the host does afterwards.
inline void abandon_fibers(SanitizerContext& c, const Block& b) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(b.stacks, b.stack_bytes);
#endif
#if defined(XGEMM_REAL_TSAN)
  for (const Fiber& f : b.fibers) {
    __tsan_switch_to_fiber(f.sanitizer, 1);
    __tsan_release(&c.blocks[0]);
    __tsan_switch_to_fiber(c.scheduler, 1);
  }
#endif
  (void)c, (void)b;
}

// What is mapped next where this was is fresh.
inline void forget([[maybe_unused]] void* p, [[maybe_unused]] size_t bytes) {
#ifdef __SANITIZE_ADDRESS__
  __asan_unpoison_memory_region(p, bytes);
#endif
}

inline void poison_zones(const char* zone, size_t zone_bytes, const char* array, size_t bytes,
                         const char* end) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_poison_memory_region(zone, zone_bytes);
  __asan_unpoison_memory_region(array, bytes);
  __asan_poison_memory_region(array + bytes, static_cast<size_t>(end - array) - bytes);
#endif
  (void)zone, (void)zone_bytes, (void)array, (void)bytes, (void)end;
}

// Fills a new block's array with NaN, which is no store of the thread that happens to come first.
inline void poison(char* array, size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(array, bytes);
#endif
  const Hidden hidden;
  std::memset(array, 0xff, bytes);
}

}  // namespace xgemm::simt
