// How many threads share an element's K, where operands lie along k and D has few elements: a
// function that the kernel's launch and the estimate of its time have in common.
#pragma once

#include <cstdint>

namespace xgemm {

// Threads of a block that teams are made of, how many of its blocks a multiprocessor runs, and the
// most blocks of a team, which is a cluster then.
constexpr int kTeamThreads = 256, kTeamBlocks = 4, kMostTeamBlocks = 8;
// Threads of the least team, and of k, for which a thread is worth its place in one.
constexpr int kLeastTeam = 8, kLeastTeamDepth = 8;

// A team as large as K feeds, and a warp at least: beyond that, until all multiprocessors are full.
// `most`: threads, a power of two.
inline int team_of(int64_t k, int64_t results, int sm_count, int most) {
  const int64_t threads = int64_t{sm_count} * kTeamThreads * kTeamBlocks;
  int team = kLeastTeam;
  while (team < most && k >= int64_t{2} * team * kLeastTeamDepth &&
         (team < 32 || results * team * 2 <= threads))
    team *= 2;
  return team;
}

}  // namespace xgemm
