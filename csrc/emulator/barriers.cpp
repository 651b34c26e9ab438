// Barriers besides __syncthreads: of some threads of a block, and of all of a cluster.
#include "emulator/machine.h"

namespace xgemm::simt {

unsigned cluster_rank() { return running->rank; }

void cluster_sync(Site at) {
  Machine& m = machine();
  {
    const Quiet quiet;
    const Hidden hidden;
    if (skips(Sync::cluster_barrier, at)) return;
    use_clocks();
  }
  record({.what = What::barrier, .at = at});
  Fiber& f = running->fibers[running->self];
  f.wait = Wait::cluster;
  f.at = at;
  const unsigned meeting = m.here->meeting;
  meeting_arrive(m.sanitizer, meeting);
  to_scheduler();
  meeting_leave(m.sanitizer, meeting);
}

void named_barrier(int id, int threads, Site at) {
  Machine& m = machine();
  Block& b = *running;
  unsigned meeting;
  {
    const Quiet quiet;
    const Hidden hidden;
    if (skips(Sync::named_barrier, at)) return;
    const auto call = [&] {
      return "named barrier: " + thread_name(b.self) + " waits in barrier " + std::to_string(id) +
             " for " + std::to_string(threads) + " threads at " + place(at);
    };
    if (id < 1 || id > 15 || threads < 32 || threads % 32)
      fail(call() + "; there are barriers 1 to 15, for whole warps");
    NamedBarrier& bar = b.named[id];
    if (bar.here == 0) bar = {.here = 0, .threads = threads, .meeting = m.meetings++};
    if (bar.threads != threads)
      fail(call() + ", where others wait for " + std::to_string(bar.threads));
    meeting = bar.meeting;
    record({.what = What::named_barrier, .bytes = threads, .number = id, .at = at});
    meeting_arrive(m.sanitizer, meeting);
    Fiber& f = b.fibers[b.self];
    f.wait = Wait::named;
    f.at = at;
    f.named = id;
    if (++bar.here == threads) {
      std::vector<unsigned> agents;
      for (unsigned t = 0; t < b.threads; ++t) {
        Fiber& other = b.fibers[t];
        if (other.wait != Wait::named || other.named != id) continue;
        other.wait = Wait::nothing;
        agents.push_back(b.agent(t));
      }
      use_clocks().meet(agents);
      bar.here = 0;
      m.released = true;
    }
  }
  if (b.fibers[b.self].wait == Wait::named) to_scheduler();
  meeting_leave(m.sanitizer, meeting);
}

}  // namespace xgemm::simt
