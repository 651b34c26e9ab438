// The split of an operand that does not lie along k: strips of its rows, transposed in shared
// memory, each shared out along k among the blocks of a cluster. Before the last element of a row
// is there nobody knows its largest; so that an element is split as soon as it has come, a row's
// scale is guessed of a few, with room above them, and what outgrows that room is split again.
#pragma once

#include "xgemm/ptx_hopper.h"
#include "xgemm/split_rows.h"

namespace xgemm {
inline namespace XGEMM_FLAVOUR {

constexpr int kStrip = 32;  // rows: lines of 128 bytes
constexpr int kStripK = 64, kStripBuffers = 6;  // of k, a slice; slices on their way
// Blocks on an SM: where a row along k has 16 elements a thread, and where it has 32.
constexpr int kStripBlocks = 4, kDeepBlocks = 3;

// The largest of so many elements of a row, evenly apart, is scaled to [2^12, 2^13), and others may
// be four times as large, which is to say that of 2^16 normal numbers hardly ever one is not. What
// it costs is two binades of the row's window.
constexpr int kSamples = 64, kSampleTop = 12, kMostTop = 14;

__device__ __forceinline__ RowScale guess_of(uint32_t largest) {
  RowScale s = scale_of(largest);
  if (s.top != kNotFinite && s.top != kAllZero)
    s.exponent = static_cast<int16_t>(kSampleTop - s.top);
  return s;
}

// Whether a row that was split by `guess` is to be split again by `exact`, which it would have been
// given had all of it been known: parts may be infinite, or it is at risk, and need not be.
__device__ __forceinline__ bool outgrown(const RowScale& guess, const RowScale& exact) {
  if (exact.top == kNotFinite || exact.top == kAllZero) return false;
  const int top = exact.top + guess.exponent;
  return top > kMostTop || top < kSampleTop ||
         (top < kMostTop && exact.risk < 0.f && risky(exact.risk));
}

// A block's share of a strip: slices of kStripK by kStrip, line after line.
struct StripShare {
  using Slice = float[kStripK][kStrip];
  static constexpr int kWide = kStrip / 4;  // threads side by side along a line of vectors

  View<const float> v;  // of the matrix, from the strip's first row on
  int64_t k0, depth;  // of k: where the share begins, how much there is of the operand
  int rows, filled;  // how many there are; how deep the share is, with zeros up to a multiple of 32
  bool wide;

  __device__ __forceinline__ StripShare(const SplitJob& job, int64_t z, int64_t row0, int64_t share,
                                        int rank) {
    v = job.x;
    v.data += z * v.bs + row0 * v.rs;
    rows = static_cast<int>(min_of(job.parts.rows - row0, kStrip));
    const int64_t all = job.parts.blocks * kSplitK;
    k0 = rank * share;
    filled = static_cast<int>(k0 >= all ? 0 : min_of(all - k0, share));
    depth = job.k - k0;
    wide = v.transposed().wide() && rows == kStrip;
  }

  // Where row r of a line at k lies: 8 rows of lines 8 apart, which a warp reads, meet no bank
  // twice.
  __device__ static __forceinline__ int place(int r, int k) {
    return (r / 4 ^ k / 8 % 4 * 2) * 4 + r % 4;
  }

  // Asks for slice `s`.
  __device__ __forceinline__ void load(Slice& slice, int s) const {
    const int left = static_cast<int>(min_of(depth - s * kStripK, kStripK));
    const int lanes = wide ? kWide : kStrip, step = kSplitThreads / lanes;
    const int thread = threadIdx.x, k = thread / lanes, lane = thread % lanes;
    const float* p = v.ptr(wide ? lane * 4 : lane, k0 + s * kStripK + k);
    if (wide) {
#pragma unroll
      for (int e = 0; e < kStripK; e += kSplitThreads / kWide, p += step * v.cs)
        cp_async_some<16>(Smem(&slice[k + e][place(lane * 4, k + e)]), p, k + e < left ? 16 : 0);
    } else {
#pragma unroll 1
      for (int e = 0; e < kStripK; e += step, p += step * v.cs)
        cp_async_some<4>(Smem(&slice[k + e][place(lane, k + e)]), p,
                         lane < rows && k + e < left ? 4 : 0);
    }
  }

  // The largest of a row's samples, by all threads, for the first kStrip: one a row.
  __device__ __forceinline__ uint32_t sample(int64_t k,
                                             uint32_t (&warps)[kSplitThreads / 32][kStrip]) const {
    constexpr int kLines = kSplitThreads / kStrip, kEach = kSamples / kLines;
    const int lane = threadIdx.x % kStrip, line = threadIdx.x / kStrip;
    uint32_t largest = 0;
    float x[kEach];
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const int64_t at = (line * kEach + e) * k / kSamples;
      x[e] = lane < rows && k > 0 ? v(lane, at) : 0.f;
    }
#pragma unroll
    for (int e = 0; e < kEach; ++e) largest = max_of(largest, magnitude_bits(x[e]));
    warps[line][lane] = largest;
    __syncthreads();
    if (threadIdx.x < kStrip)
#pragma unroll
      for (int w = 0; w < kLines; ++w) largest = max_of(largest, warps[w][lane]);
    return largest;
  }
};

// What the blocks of a cluster tell each other of a strip's rows: the largest, and counts.
struct StripTold {
  float largest[kStrip], low[kStrip], tiny[kStrip];  // as bits
};

// A block's shared memory.
struct StripRoom {
  StripShare::Slice ring[kStripBuffers];
  uint32_t samples[kSplitThreads / 32][kStrip];
  uint32_t halves[3][2][kStrip];  // what the warps that share a row have seen of it
  RowScale scales[kStrip];
  StripTold told;
  uint32_t again;  // rows to be split again, as bits
};

// Slices -> parts.
template <Scheme S>
struct StripSplit {
  static constexpr int kWarps = kSplitThreads / 32, kGroups = kStrip / 8;
  static_assert(kWarps / kGroups * kSplitK == kStripK);
  struct Seen {
    uint32_t largest = 0;
    Counts counts;
  };

  // A warp has 8 rows and 32 of k, a lane 8 neighbours along k of a row: this one.
  __device__ static __forceinline__ int row() {
    return threadIdx.x / 32 % kGroups * 8 + threadIdx.x % 32 / 4;
  }

  // Its elements of all slices, the first of which are on their way.
  __device__ static __forceinline__ Seen run(StripRoom& room, const StripShare& share,
                                             const RowScale& scale, char* parts) {
    const int k = static_cast<int>(threadIdx.x) / 32 / kGroups * kSplitK, at = threadIdx.x % 4 * 8;
    const int from = StripShare::place(row(), at);
    const int slices = (share.filled + kStripK - 1) / kStripK;
    Seen seen;
    int stage = 0, free = kStripBuffers - 1;
#pragma unroll 1
    for (int s = 0; s < slices; ++s) {
      cp_async_wait<kStripBuffers - 2>();
      __syncthreads();
      if (s + kStripBuffers - 1 < slices) share.load(room.ring[free], s + kStripBuffers - 1);
      cp_async_commit();
      const int here = s * kStripK + k;
      if (here < share.filled && parts) {
        float x[8];
#pragma unroll
        for (int e = 0; e < 8; ++e) x[e] = room.ring[stage][k + at + e][from];
#pragma unroll
        for (int e = 0; e < 8; ++e) seen.largest = max_of(seen.largest, magnitude_bits(x[e]));
        const int real = static_cast<int>(min_of(share.depth - here, kSplitK));
        split8<S>(x, scale, valid_of_8(at, real), parts + int64_t{here} * (2 * S.parts), at,
                  seen.counts);
      }
      stage = stage + 1 < kStripBuffers ? stage + 1 : 0;
      free = free + 1 < kStripBuffers ? free + 1 : 0;
    }
    return seen;
  }
  __device__ static __forceinline__ void begin(StripRoom& room, const StripShare& share) {
    const int slices = (share.filled + kStripK - 1) / kStripK;
#pragma unroll 1
    for (int s = 0; s < kStripBuffers - 1; ++s) {
      if (s < slices) share.load(room.ring[s], s);
      cp_async_commit();
    }
  }

  // What the block has seen of its rows: of 4 lanes, and of the warps that share a row.
  __device__ static __forceinline__ void tell(StripRoom& room, const Seen& seen) {
    uint32_t x[3] = {seen.largest, static_cast<uint32_t>(seen.counts.low),
                     static_cast<uint32_t>(seen.counts.tiny)};
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
      x[0] = max_of(x[0], __shfl_xor_sync(0xffffffffu, x[0], step));
      x[1] += __shfl_xor_sync(0xffffffffu, x[1], step);
      x[2] += __shfl_xor_sync(0xffffffffu, x[2], step);
    }
    if (threadIdx.x % 4 == 0)
#pragma unroll
      for (int i = 0; i < 3; ++i) room.halves[i][threadIdx.x / 32 / kGroups][row()] = x[i];
    __syncthreads();
    if (threadIdx.x >= kStrip) return;
    const int r = threadIdx.x;
    const auto& [largest, low, tiny] = room.halves;
    room.told.largest[r] = bits_to_float(max_of(largest[0][r], largest[1][r]));
    room.told.low[r] = bits_to_float(low[0][r] + low[1][r]);
    room.told.tiny[r] = bits_to_float(tiny[0][r] + tiny[1][r]);
  }
};

// All rows of a strip are split again where one is to be: the others are written as they were.
template <Scheme S, int kCluster>
__device__ void split_strip(const SplitJob& job, int64_t block) {
  using Split = StripSplit<S>;
  XGEMM_SHARED_DYNAMIC(room, StripRoom);
  const int thread = threadIdx.x, rank = static_cast<int>(block % kCluster);
  const int64_t strip = block / kCluster, strips = ceil_div(job.parts.rows, kStrip);
  const int64_t z = job.parts.matrices > 1 ? strip / strips : 0;
  const int64_t row0 = (strip - z * strips) * kStrip;
  const StripShare share(job, z, row0, ceil_div(job.parts.blocks, kCluster) * kSplitK, rank);
  const int row = Split::row();
  char* const parts = row < share.rows
                          ? static_cast<char*>(job.parts.data) +
                                (z * job.parts.rows + row0 + row) * job.parts.row_bytes(S.parts) +
                                share.k0 * (2 * S.parts)
                          : nullptr;
  Split::begin(room, share);
  const uint32_t largest = share.sample(job.k, room.samples);
  if (thread < kStrip) room.scales[thread] = guess_of(largest);
#pragma unroll 1
  for (bool last = false;; last = true) {
    __syncthreads();
    const RowScale scale = room.scales[row];
    const typename Split::Seen seen = Split::run(room, share, scale, parts);
    Split::tell(room, seen);
    if constexpr (kCluster > 1) cluster_sync();
    if (thread < kStrip) {
      uint32_t most = float_to_bits(room.told.largest[thread]);
      uint32_t low = float_to_bits(room.told.low[thread]);
      uint32_t tiny = float_to_bits(room.told.tiny[thread]);
      if constexpr (kCluster > 1) {
        most = low = tiny = 0;
#pragma unroll
        for (int r = 0; r < kCluster; ++r) {
          most = max_of(most, float_to_bits(load_from_block(&room.told.largest[thread], r)));
          low += float_to_bits(load_from_block(&room.told.low[thread], r));
          tiny += float_to_bits(load_from_block(&room.told.tiny[thread], r));
        }
      }
      const RowScale guess = room.scales[thread];
      RowScale exact = scale_of(most);
      exact.risk = risk_of(S, low, tiny, job.k, exact.top);
      const bool grown = !last && thread < share.rows && outgrown(guess, exact);
      const uint32_t all = __ballot_sync(0xffffffffu, grown);
      if (thread == 0) room.again = all;
      if (grown) room.scales[thread] = exact;
      else exact.exponent = guess.exponent;
      if (all == 0 && rank == 0 && thread < share.rows)
        keep_scale<S>(job, z * job.parts.rows + row0 + thread, exact, low, tiny);
    }
    if constexpr (kCluster > 1) cluster_sync(Relaxed());  // `told` has been read
    __syncthreads();
    if (last || room.again == 0) return;
    Split::begin(room, share);
  }
}

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
