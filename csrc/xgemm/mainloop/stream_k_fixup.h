// Stream-K of the strict product: a tile that is cut along K is one chain all the same. Who has
// its beginning leaves the accumulators as they are, who has its end goes on with them. The bits
// are those of a tile that is taken whole.
#pragma once

#include "xgemm/core/stream_k.h"
#include "xgemm/core/workspace.h"
#include "xgemm/device/launch.h"
#include "xgemm/device/ptx/base.h"

namespace xgemm {
inline namespace XGEMM_FLAVOUR {

struct ChainStreamK {
  StreamK plan;
  float* sums = nullptr;  // [block][element][thread]
  uint32_t* flags = nullptr;  // [block]: that there are sums for it, of the block before
  size_t bytes = 0;  // of workspace
};

// What sharing out must save, in operations of a multiprocessor, of which an H200's makes 0.43
// million in a microsecond (57 TFLOP/s in all): some 28 us. It costs the launch that clears the
// flags, and 128 KiB of sums that each multiprocessor writes and reads: estimated at 10 to 15 us.
constexpr int64_t kLeastSaved = 12'000'000;

// How the blocks that run at a time share out the tiles of all matrices.
inline ChainStreamK plan_chain_stream_k(const Gemm& g, const Tile& t, int64_t slices,
                                        const Context& context) {
  const int64_t tiles = tile_count(g, t.BM, t.BN) * g.batch;
  const int64_t blocks = int64_t{context.device.sm_count} * t.min_blocks;
  const int64_t slice = int64_t{2} * t.BM * t.BN * t.BK * t.min_blocks;  // a multiprocessor's
  ChainStreamK r;
  if (tiles > kMaxGridX) return r;
  r.plan = plan_cut_once(tiles, slices, blocks, ceil_div(kLeastSaved, slice));
  if (!r.plan.shared()) return r;
  Layout all{context.workspace};
  const size_t floats = size_t{r.plan.clusters} * static_cast<size_t>(t.BM * t.BN);
  r.sums = static_cast<float*>(all.place(floats * sizeof(float)));
  r.flags = static_cast<uint32_t*>(all.place(r.plan.clusters * sizeof(uint32_t)));
  r.bytes = all.bytes;
  return r;
}

constexpr int kClearThreads = 256;

template <int kThreads>
__global__ void __launch_bounds__(kThreads) clear_flags(uint32_t* flags, int count) {
  let_next_launch_begin();
  for (int i = threadIdx.x; i < count; i += kThreads) flags[i] = 0;
}

// Leaves this block's accumulators for the block after it. By the T.threads() that have them.
template <Tile T>
__device__ __forceinline__ void store_partials(const ChainStreamK& stream_k,
                                               const float (&acc)[T.TM][T.TN]) {
  float* const to = stream_k.sums + static_cast<int64_t>(blockIdx.x) * (T.BM * T.BN) + threadIdx.x;
#pragma unroll
  for (int i = 0; i < T.TM; ++i)
#pragma unroll
    for (int j = 0; j < T.TN; ++j) to[(i * T.TN + j) * T.threads()] = acc[i][j];
  named_barrier(1, T.threads());
  if (threadIdx.x == 0) {
    wait_for_launch_before();
    signal(&stream_k.flags[blockIdx.x + 1]);
  }
}

// Takes the accumulators that the block before this one has left.
template <Tile T>
__device__ __forceinline__ void fixup(const ChainStreamK& stream_k, float (&acc)[T.TM][T.TN]) {
  if (threadIdx.x == 0) {
    wait_for_launch_before();
    wait_for_signals(&stream_k.flags[blockIdx.x], 1);
  }
  named_barrier(1, T.threads());
  const float* const from =
      stream_k.sums + (static_cast<int64_t>(blockIdx.x) - 1) * (T.BM * T.BN) + threadIdx.x;
#pragma unroll
  for (int i = 0; i < T.TM; ++i)
#pragma unroll
    for (int j = 0; j < T.TN; ++j) acc[i][j] = from[(i * T.TN + j) * T.threads()];
}

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
