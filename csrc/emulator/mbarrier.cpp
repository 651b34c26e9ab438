// mbarriers: phases that end when so many arrivals and so many bytes of TMA have come. Their state
// is kept beside the shared memory, whose 8 bytes stay NaN.
#include "xgemm/device/ptx/mbarrier.h"

#include "emulator/machine.h"

namespace xgemm::simt {
namespace {

constexpr int64_t kMostBytes = (1 << 20) - 1;

void end_phase(Block& b, MbarrierState& bar) {
  ++bar.phase;
  bar.pending = bar.count;
  join(bar.done, bar.coming);
  bar.coming = {};
  bar.last_meeting = bar.meeting;
  bar.meeting = machine().meetings++;
  for (Fiber& f : b.fibers)
    if (f.wait == Wait::mbarrier && f.mbarrier == bar.at) {
      f.wait = Wait::nothing;
      machine().released = true;
    }
}

void arrive(Block& b, MbarrierState& bar, int64_t bytes, const Site& at) {
  Machine& m = machine();
  if (bar.pending == 0)
    fail("mbarrier: " + thread_name(running->self) + " arrives at " + place(at) +
         " in a phase that has had all its " + std::to_string(bar.count) + " arrivals");
  bar.bytes += bytes;
  if (bar.bytes > kMostBytes)
    fail("mbarrier: " + thread_name(running->self) + " expects more than 2^20 - 1 bytes at " +
         place(at));
  --bar.pending;
  const unsigned agent = running->agent(running->self);
  m.here->clocks.release(agent, bar.coming);
  if (&b != running) {
    bar.remote.resize(m.here->clocks.known.size());
    bar.remote[agent] = m.here->clocks.now - 1;
    bar.site = at;
  }
  meeting_arrive(m.sanitizer, bar.meeting);
  if (bar.pending == 0 && bar.bytes == 0) end_phase(b, bar);
}

}  // namespace

MbarrierState& mbarrier_of(Block& b, const Mbarrier* bar, const char* what, const Site& at) {
  for (MbarrierState& s : b.mbarriers) {
    if (s.at != bar) continue;
    const unsigned self = running->agent(running->self);
    if (s.init_agent != self && !b.clocks->knows(self, s.init_agent, s.init_time) &&
        (&b != running || s.init_phase == b.phase))
      fail(std::string("mbarrier: ") + what + " of " + thread_name(running->self) + " at " +
           place(at) + " with no barrier after the mbarrier's init");
    return s;
  }
  fail(std::string("mbarrier: ") + what + " of " + thread_name(running->self) + " at " + place(at) +
       ", where " +
       (&b == running ? "" : "block " + std::to_string(b.rank) + " of the cluster has ") +
       "no mbarrier " + (&b == running ? "has been initialised" : "initialised yet"));
}

std::string mbarrier_wait_name(const Block& b, const Fiber& f) {
  std::string text = "for parity " + std::to_string(f.parity) + " of an mbarrier";
  for (const MbarrierState& s : b.mbarriers)
    if (s.at == f.mbarrier)
      text += " (phase " + std::to_string(s.phase) + " misses " + std::to_string(s.pending) +
              " of " + std::to_string(s.count) + " arrivals and " + std::to_string(s.bytes) +
              " bytes)";
  return text;
}

void mbarrier_complete(Block& b, const Mbarrier* at, int64_t bytes) {
  Clocks& clocks = machine().here->clocks;
  for (MbarrierState& bar : b.mbarriers) {
    if (bar.at != at) continue;
    bar.bytes -= bytes;
    bar.coming.own.resize(clocks.known.size());
    bar.coming.own[Clocks::kTma] = ++clocks.now;
    if (bar.pending == 0 && bar.bytes == 0) end_phase(b, bar);
  }
}

void mbarrier_arrive_landed(Block& b, const Mbarrier* at, const Clock& known, const Site& site) {
  for (MbarrierState& bar : b.mbarriers) {
    if (bar.at != at) continue;
    if (bar.pending == 0) {
      b.error = "mbarrier: the arrival after copies at " + place(site) +
                " comes in a phase that has had all its " + std::to_string(bar.count) + " arrivals";
      return;
    }
    join(bar.coming, known);
    --bar.pending;
    if (bar.pending == 0 && bar.bytes == 0) end_phase(b, bar);
  }
}

void mbarrier_init(Mbarrier* at, int arrivals) {
  const void* pc = __builtin_return_address(0);
  const Quiet quiet;
  const Hidden hidden;
  Block& b = *running;
  const Clocks& clocks = use_clocks();
  record({.what = What::mbarrier_init,
          .bytes = arrivals,
          .pc = pc,
          .p = reinterpret_cast<const char*>(at)});
  if (arrivals < 1 || arrivals >= 1 << 20)
    fail("mbarrier: " + std::to_string(arrivals) + " arrivals at " + place(pc));
  expect_aligned(at, 8, pc);
  note_shared(b, reinterpret_cast<const char*>(at), sizeof *at, true, pc);
  for (const MbarrierState& s : b.mbarriers)
    if (s.at == at) fail("mbarrier: initialised a second time at " + place(pc));
  b.mbarriers.push_back({.at = at,
                         .count = arrivals,
                         .pending = arrivals,
                         .init_agent = b.agent(b.self),
                         .init_time = clocks.now,
                         .init_phase = b.phase,
                         .meeting = machine().meetings++});
}

void mbarrier_expect(Mbarrier* at, int bytes, Site site) {
  const Quiet quiet;
  const Hidden hidden;
  if (skips(Sync::mbarrier_expect, site)) return;
  record({.what = What::mbarrier_arrival,
          .bytes = bytes,
          .at = site,
          .p = reinterpret_cast<const char*>(at)});
  arrive(*running, mbarrier_of(*running, at, "an expect", site), bytes, site);
}

void mbarrier_arrive(Mbarrier* at, Site site) {
  const Quiet quiet;
  const Hidden hidden;
  if (skips(Sync::mbarrier_arrival, site)) return;
  record({.what = What::mbarrier_arrival, .at = site, .p = reinterpret_cast<const char*>(at)});
  arrive(*running, mbarrier_of(*running, at, "an arrival", site), 0, site);
}

void mbarrier_arrive_after_copies(Mbarrier* at, Site site) {
  const Quiet quiet;
  const Hidden hidden;
  if (skips(Sync::mbarrier_arrival, site)) return;
  Machine& m = machine();
  Block& b = *running;
  Fiber& f = b.fibers[b.self];
  meeting_arrive(m.sanitizer, mbarrier_of(b, at, "an arrival", site).meeting);
  std::vector<Copy> copies = std::move(f.open);
  f.open.clear();
  for (const auto& group : f.groups) copies.insert(copies.begin(), group.begin(), group.end());
  f.groups.clear();
  int bytes = 0;
  for (const Copy& c : copies) bytes += c.bytes;
  record({.what = What::copy_wait, .bytes = bytes, .at = site});
  record({.what = What::mbarrier_copies,
          .bytes = bytes,
          .at = site,
          .p = reinterpret_cast<const char*>(at)});
  Clock known;
  m.here->clocks.release(b.agent(b.self), known);
  m.here->copies.push_back({&b, at, "cp.async", site, [&b, at, site, copies, known] {
                              for (const Copy& c : copies) land(b, c);
                              mbarrier_arrive_landed(b, at, known, site);
                            }});
}

void mbarrier_arrive_at(Mbarrier* at, unsigned rank, Site site) {
  const Quiet quiet;
  const Hidden hidden;
  if (skips(Sync::mbarrier_arrival, site)) return;
  Block& b = peer(rank, "an arrival", site);
  const auto offset = reinterpret_cast<const char*>(at) - running->arena;
  const auto* there = reinterpret_cast<const Mbarrier*>(b.arena + offset);
  if (b.finished == b.threads)
    fail("mbarrier: " + thread_name(running->self) + " arrives at " + place(site) +
         " in a block of the cluster that has exited");
  if (&b == running)
    record({.what = What::mbarrier_arrival, .at = site, .p = reinterpret_cast<const char*>(at)});
  arrive(b, mbarrier_of(b, there, "an arrival", site), 0, site);
}

void mbarrier_wait(Mbarrier* at, int parity, Site site) {
  Machine& m = machine();
  {
    const Quiet quiet;
    if (skips(Sync::mbarrier_wait, site)) return;
    if (parity != 0 && parity != 1)
      fail("mbarrier: a wait for parity " + std::to_string(parity) + " at " + place(site));
    mbarrier_of(*running, at, "a wait", site);
  }
  Block& b = *running;
  const auto passed = [&] {
    const Quiet quiet;
    const Hidden hidden;
    MbarrierState& bar = mbarrier_of(b, at, "a wait", site);
    if (static_cast<int>(bar.phase % 2) == parity) return false;
    m.here->clocks.acquire(b.agent(b.self), bar.done);
    if (bar.phase > 0) meeting_leave(m.sanitizer, bar.last_meeting);
    record({.what = What::mbarrier_wait,
            .bytes = static_cast<int32_t>(bar.phase),
            .at = site,
            .p = reinterpret_cast<const char*>(at)});
    return true;
  };
  Fiber& f = b.fibers[b.self];
  while (!passed()) {
    f.wait = Wait::mbarrier;
    f.at = site;
    f.mbarrier = at;
    f.parity = parity;
    to_scheduler();
  }
}

}  // namespace xgemm::simt
