// Who knows what others have done: what orders accesses within a phase of __syncthreads.
//
// Agents are the warps of a cluster, the wgmma of each of its warpgroups, and TMA. Time is counted
// in releases: arrivals at mbarriers, meetings, copies that have landed, wgmma that are done. An
// access is as old as the time at which it was made; whoever has since acquired a later release of
// the agent that made it comes after it. The lanes of a warp count as one: a fault among them may
// go unseen here, and nothing right is taken for one.
//
// Each cluster counts for itself. Of what the agents of another have released those know whom a
// signal has told.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

namespace xgemm::simt {

using Times = std::vector<uint64_t>;  // [agent]: what it has released until then is known

inline void join(Times& into, const Times& from) {
  into.resize(std::max(into.size(), from.size()));
  for (size_t i = 0; i < from.size(); ++i) into[i] = std::max(into[i], from[i]);
}

struct Clock {
  Times own;                        // of the agents of one's own cluster
  std::map<unsigned, Times> others;  // of other clusters', by their numbers in the grid
};

inline void join(Clock& into, const Clock& from) {
  join(into.own, from.own);
  for (const auto& [cluster, times] : from.others) join(into.others[cluster], times);
}

struct Clocks {
  static constexpr unsigned kTma = 0;  // the agent; the blocks' follow
  uint64_t now = 1;                    // goes on through all launches
  unsigned cluster = 0;                // whose they are
  std::vector<Clock> known;            // [agent]: what it knows

  void start(unsigned of, unsigned agents) {
    cluster = of;
    known.assign(agents + 1, {Times(agents + 1), {}});
  }

  bool knows(unsigned agent, unsigned other, uint64_t then) const {
    return known[agent].own[other] > then;
  }
  // The same of an agent of another cluster.
  bool knows(unsigned agent, unsigned of, unsigned other, uint64_t then) const {
    const auto times = known[agent].others.find(of);
    return times != known[agent].others.end() && times->second[other] > then;
  }
  // What the agent has done and knows, into what others will acquire.
  void release(unsigned agent, Clock& into) {
    join(into, known[agent]);
    into.own[agent] = ++now;
  }
  void acquire(unsigned agent, const Clock& from) { join(known[agent], from); }
  // What `done` has done in the background, of which `agents` learn and no more.
  void finish(unsigned done, const std::vector<unsigned>& agents) {
    ++now;
    for (unsigned a : agents) known[a].own[done] = now;
  }
  // The same for other clusters to acquire, which know this one's agents by its number.
  void signal(unsigned agent, std::map<unsigned, Times>& into) {
    Clock mine;
    release(agent, mine);
    join(into[cluster], mine.own);
    for (const auto& [of, times] : mine.others) join(into[of], times);
  }
  void acquire(unsigned agent, const std::map<unsigned, Times>& from) {
    for (const auto& [of, times] : from)
      join(of == cluster ? known[agent].own : known[agent].others[of], times);
  }

  // All of them know all that any has done.
  void meet(const std::vector<unsigned>& agents) {
    Clock all;
    ++now;
    for (unsigned a : agents) join(all, known[a]);
    for (unsigned a : agents) all.own[a] = now;
    for (unsigned a : agents) known[a] = all;
  }
};

}  // namespace xgemm::simt
