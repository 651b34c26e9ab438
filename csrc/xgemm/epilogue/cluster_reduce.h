// What the blocks of a cluster have of a tile lies in the shared memory of each, where all of them
// add it up, in a fixed order, each its part of the tile.
#pragma once

#include <algorithm>

#include "xgemm/core/tile_scheduler.h"
#include "xgemm/device/copy/gmem.h"
#include "xgemm/device/ptx/cluster.h"

namespace xgemm {
inline namespace XGEMM_FLAVOUR {

// Blocks that any GPU with clusters lets be one.
constexpr int64_t kClusterSlices = 8;

// Multiprocessors that have blocks at a time, one each, where so many blocks make a cluster: it is
// within a group, few of which have more than 16.
constexpr int64_t cluster_room(int64_t blocks) {
  constexpr int64_t kOfClusters = 112, kGroups = 8, kOfGroup = 16;
  return blocks <= 2 ? kSms : std::min(kOfClusters, kOfGroup / blocks * blocks * kGroups);
}

// A block's sums: rows are so far apart that a warp stores without bank conflicts.
template <int BM, int BN>
struct SharedSums {
  static constexpr int kPitch = BN + 4;
  float d[BM][kPitch];
};

// A thread's TM x TN sums of a chain (store_fragment), as its epilogue leaves them.
template <int kStrideM, int kStrideN, int BM, int BN, int TM, int TN>
__device__ __forceinline__ void leave_fragment(SharedSums<BM, BN>& sums, const Gemm& chain, int row,
                                               int column, const float (&acc)[TM][TN]) {
#pragma unroll
  for (int r = 0; r < TM; ++r)
#pragma unroll
    for (int c = 0; c < TN; c += 4) {
      const float* const x = &acc[r][c];
      store4(&sums.d[row + r % 4 + r / 4 * kStrideM][column + c / 4 * kStrideN],
             make_float4(chain.without_c(x[0]), chain.without_c(x[1]), chain.without_c(x[2]),
                         chain.without_c(x[3])));
    }
}

// Adds up a thread's four neighbours of a tile of which there are so many split-K slices, in
// order: load(x, s) has them of slice s. Some are asked for before any is added.
template <int kAhead, class Load>
__device__ __forceinline__ void add_slices(float (&sum)[4], int first, int splits,
                                           const Load& load) {
  float x[kAhead][4];
#pragma unroll
  for (int s = 0; s < kAhead; ++s)
    if (first + s < splits) load(x[s], first + s);
#pragma unroll
  for (int s = 0; s < kAhead; ++s)
    if (first + s < splits)
#pragma unroll
      for (int w = 0; w < 4; ++w) sum[w] += x[s][w];
}

// finish(row, column, sum) for the four neighbours from there on, by the block of slice `split` for
// its part of the tile, with its kThreads threads: between the cluster's barriers.
template <int kThreads, int BM, int BN, class Finish>
__device__ __forceinline__ void add_in_cluster(const SharedSums<BM, BN>& mine, int split,
                                               int splits, const Finish& finish) {
#pragma unroll 1
  for (int e = (split * kThreads + static_cast<int>(threadIdx.x)) * 4; e < BM * BN;
       e += splits * kThreads * 4) {
    const int row = e / BN, column = e % BN;
    float sum[4] = {-0.f, -0.f, -0.f, -0.f};  // -0 + x is x
    add_slices<kClusterSlices>(sum, 0, splits, [&](float (&x)[4], int s) {
      load4_from_block(x, &mine.d[row][column], s);
    });
    finish(row, column, sum);
  }
}

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
