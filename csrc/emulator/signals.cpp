// Signals between the blocks of a grid: counters in global memory that a block adds to, and others
// wait at; and the wait of a grid for the one before it.
#include "emulator/machine.h"

namespace xgemm::simt {
namespace {

// What both do first: only blocks before this one are sure to have begun, and that only if the
// launch asks for it.
void expect_order(const uint32_t* flag, const char* what, const Site& at, const void* pc) {
  if (!machine().in_order)
    fail(std::string("signals: ") + what + " of " + thread_name(running->self) + " at " +
         place(at) + " in a launch whose blocks begin in any order");
  expect_aligned(flag, sizeof *flag, pc);
}

// One happens-before token of a sanitizer's for all signals at a flag.
unsigned meeting_of(const uint32_t* flag) {
  return static_cast<unsigned>(reinterpret_cast<uintptr_t>(flag) / sizeof *flag);
}

}  // namespace

bool pass_signals(Machine& m) {
  bool some = false;
  for (unsigned r = 0; r < m.cluster; ++r)
    for (Fiber& f : m.here->blocks[r]->fibers)
      if (f.wait == Wait::signals && *f.flag >= f.signals) {
        f.wait = Wait::nothing;
        some = true;
      }
  return some;
}

void signal(uint32_t* flag, Site site) {
  const void* pc = __builtin_return_address(0);
  const Quiet quiet;
  const Hidden hidden;
  if (skips(Sync::signal, site)) return;
  expect_order(flag, "a signal", site, pc);
  Machine& m = machine();
  note_atomic(*running, flag, pc);
  m.here->clocks.signal(running->agent(running->self), m.signals[flag]);
  ++*flag;
  meeting_arrive(m.sanitizer, meeting_of(flag));
}

void wait_for_signals(const uint32_t* flag, uint32_t count, Site site) {
  const void* pc = __builtin_return_address(0);
  Machine& m = machine();
  {
    const Quiet quiet;
    if (skips(Sync::signal_wait, site)) return;
    expect_order(flag, "a wait", site, pc);
    note_global(*running, reinterpret_cast<const char*>(flag), sizeof *flag, false, pc);
  }
  Block& b = *running;
  const auto passed = [&] {
    const Quiet quiet;
    const Hidden hidden;
    if (*flag < count) return false;
    const auto& told = m.signals[flag];
    if (!told.empty() && told.rbegin()->first > b.linear / m.cluster)
      fail("signals: " + thread_name(b.self) + " waits at " + place(site) +
           " for what comes after it: block " + std::to_string(told.rbegin()->first * m.cluster));
    m.here->clocks.acquire(b.agent(b.self), told);
    meeting_leave(m.sanitizer, meeting_of(flag));
    return true;
  };
  Fiber& f = b.fibers[b.self];
  while (!passed()) {
    f.wait = Wait::signals;
    f.at = site;
    f.flag = flag;
    f.signals = count;
    to_scheduler();
  }
}

void wait_for_launch_before(Site site) {
  const Quiet quiet;
  const Hidden hidden;
  Machine& m = machine();
  if (!m.dependent || skips(Sync::launch_wait, site)) return;
  Block& b = *running;
  b.fibers[b.self].waited = true;
  b.launch_waits.push_back({b.agent(b.self), m.here->clocks.now, b.passed});
}

}  // namespace xgemm::simt
