// Who knows what others have done: what orders accesses within a phase of __syncthreads.
//
// Agents are the warps of a cluster and TMA. Time is counted in releases: arrivals at mbarriers,
// meetings, copies that have landed. An access is as old as the time at which it was made; whoever
// has since acquired a later release of the agent that made it comes after it. The lanes of a warp
// count as one: a fault among them may go unseen here, and nothing right is taken for one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace xgemm::simt {

using Clock = std::vector<uint64_t>;  // [agent]: what it has released until then is known

inline void join(Clock& into, const Clock& from) {
  into.resize(std::max(into.size(), from.size()));
  for (size_t i = 0; i < from.size(); ++i) into[i] = std::max(into[i], from[i]);
}

struct Clocks {
  static constexpr unsigned kTma = 0;  // the agent; warps follow
  uint64_t now = 1;                    // goes on through all launches
  std::vector<Clock> known;            // [agent]: what it knows

  void start(unsigned warps) { known.assign(warps + 1, Clock(warps + 1)); }

  bool knows(unsigned agent, unsigned other, uint64_t then) const {
    return known[agent][other] > then;
  }
  // What the agent has done and knows, into what others will acquire.
  void release(unsigned agent, Clock& into) {
    join(into, known[agent]);
    into[agent] = ++now;
  }
  void acquire(unsigned agent, const Clock& from) { join(known[agent], from); }

  // All of them know all that any has done.
  void meet(const std::vector<unsigned>& agents) {
    Clock all;
    ++now;
    for (unsigned a : agents) join(all, known[a]);
    for (unsigned a : agents) all[a] = now;
    for (unsigned a : agents) known[a] = all;
  }
};

}  // namespace xgemm::simt
