// The decomposition of an operand that does not lie along k: strips of its rows, transposed in
// shared memory, each partitioned along k among the blocks of a cluster. Before the last element of
// a row is there nobody knows its largest; so that an element is decomposed soon after it has come,
// a row's scale is guessed of the first slices of all shares, with room above them, and what
// outgrows that room is decomposed again.
#pragma once

#include "xgemm/device/ptx/cluster.h"
#include "xgemm/emulation/decompose_rows.h"

namespace xgemm {
inline namespace XGEMM_FLAVOUR {

constexpr int kStrip = 32;  // rows: lines of 128 bytes
constexpr int kStripK = 64, kStripBuffers = 6;  // of k, a slice; slices on their way
// Blocks on an SM: where a row along k has 16 elements a thread, and where it has 32.
constexpr int kStripBlocks = 4, kDeepBlocks = 3;

// The largest element of the first slices is scaled to [2^12, 2^13), and others may be four times
// as large, which costs two binades of the row's window. In training steps of GPT-2, ViT, BERT and
// Llama only the gradient of the last layer has rows with larger ones: a token's probability is
// wrong by almost 1 where it is the next one and hardly at all elsewhere.
constexpr int kGuessTop = 12;

// Whether a row that was decomposed with this exponent is to be decomposed again by its largest
// element: limbs may be infinite, or some are lossy for want of bits that are not used. The latter
// where the first slices are zero, as of sparse operands.
__device__ __forceinline__ bool outgrown(int exponent, uint32_t largest, bool lossy) {
  if (largest <= kZeroMagnitude) return false;
  const int top = kMostTop - exponent_of(largest, kMostTop) + exponent;
  return top > kMostTop || (top < kGuessTop && lossy);
}

// A block's share of a strip: slices of kStripK by kStrip, line after line.
struct StripShare {
  using Slice = float[kStripK][kStrip];
  static constexpr int kWide = kStrip / 4;  // threads side by side along a line of vectors

  View<const float> v;  // of the matrix, from the strip's first row on
  int64_t k0, depth;  // of k: where the share begins, how much there is of the operand
  int rows, filled;  // how many there are; how deep the share is, with zeros up to a multiple of 32
  bool wide;

  __device__ __forceinline__ StripShare(const DecomposeJob& job, int64_t z, int64_t row0,
                                        int64_t share, int rank) {
    v = job.x;
    v.data += z * v.bs + row0 * v.rs;
    rows = static_cast<int>(min_of(job.limbs.rows - row0, kStrip));
    const int64_t all = job.slices() * kSliceK;
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
    const int lanes = wide ? kWide : kStrip, step = kDecomposeThreads / lanes;
    const int thread = threadIdx.x, k = thread / lanes, lane = thread % lanes;
    const float* p = v.ptr(wide ? lane * 4 : lane, k0 + s * kStripK + k);
    if (wide) {
#pragma unroll
      for (int e = 0; e < kStripK; e += kDecomposeThreads / kWide, p += step * v.cs)
        cp_async_some<16>(Smem(&slice[k + e][place(lane * 4, k + e)]), p, k + e < left ? 16 : 0);
    } else {
#pragma unroll 1
      for (int e = 0; e < kStripK; e += step, p += step * v.cs)
        cp_async_some<4>(Smem(&slice[k + e][place(lane, k + e)]), p,
                         lane < rows && k + e < left ? 4 : 0);
    }
  }
};

// What the blocks of a cluster tell each other of a strip's rows, as bits: the largest magnitude,
// RowSeen's sums, and the sum.
constexpr int kTold = 1 + RowSeen::kSums + 1;
using StripTold = float[kTold][kStrip];

// A block's shared memory.
struct StripRoom {
  StripShare::Slice ring[kStripBuffers];
  uint32_t warps[kDecomposeThreads / 32][kStrip];  // the largest of the first slices
  float first[kStrip];  // for other blocks, too
  uint32_t halves[kTold][2][kStrip];  // what the warps that share a row have seen of it
  int exponents[kStrip];
  StripTold told;
  uint32_t rows;  // to be decomposed, as bits: all, then those that have outgrown their scale
};

// Slices -> limbs.
template <EmulationScheme S, bool kMayBeShort>
struct StripDecompose {
  static constexpr int kWarps = kDecomposeThreads / 32, kGroups = kStrip / 8;
  static_assert(kWarps / kGroups * kSliceK == kStripK);
  struct Seen {
    uint32_t largest = 0;
    RowSeen row;
    float sum = 0.f;
  };

  // A warp has 8 rows and 32 of k, a lane 8 neighbours along k of a row: this one.
  __device__ static __forceinline__ int row() {
    return threadIdx.x / 32 % kGroups * 8 + threadIdx.x % 32 / 4;
  }

  // Its elements of all slices, the first of which are on their way; with their sum, if it is
  // wanted.
  __device__ static __forceinline__ Seen run(StripRoom& room, const StripShare& share, int exponent,
                                             char* limbs, bool add_up, int limb_of_lo) {
    const int k = static_cast<int>(threadIdx.x) / 32 / kGroups * kSliceK, at = threadIdx.x % 4 * 8;
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
      if (here < share.filled && limbs) {
        const auto x = [&](int e) { return room.ring[stage][k + at + e][from]; };
#pragma unroll
        for (int e = 0; e < 8; ++e) seen.largest = max_of(seen.largest, finite_magnitude(x(e)));
        if (add_up) seen.sum += sum_of_8(x);
        decompose8<S, kMayBeShort>(x, exponent, limbs + int64_t{here} * (2 * S.limbs), at,
                                   static_cast<uint32_t>(share.k0 + here + at), seen.row,
                                   limb_of_lo);
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

  // Tells of each row the largest element of the slices that begin() has asked for.
  __device__ static __forceinline__ void tell_first(StripRoom& room, const StripShare& share) {
    constexpr int kWide = StripShare::kWide, kLines = kDecomposeThreads / kWide;
    static_assert(kLines % 32 == 0);  // of which all have a row at the same place
    const int thread = threadIdx.x, lane = thread % kWide, line = thread / kWide;
    const int from = StripShare::place(lane * 4, line);
    const int slices = min_of((share.filled + kStripK - 1) / kStripK, kStripBuffers - 1);
    uint32_t largest[4] = {};
    cp_async_wait<0>();
    __syncthreads();
#pragma unroll 1
    for (int s = 0; s < slices; ++s)
#pragma unroll
      for (int k = 0; k < kStripK; k += kLines) {
        float x[4];
        load4(x, &room.ring[s][line + k][from]);
#pragma unroll
        for (int w = 0; w < 4; ++w) largest[w] = max_of(largest[w], finite_magnitude(x[w]));
      }
#pragma unroll
    for (int w = 0; w < 4; ++w) {
#pragma unroll
      for (int step = kWide; step < 32; step *= 2)
        largest[w] = max_of(largest[w], __shfl_xor_sync(0xffffffffu, largest[w], step));
      if (thread % 32 < kWide) room.warps[thread / 32][lane * 4 + w] = largest[w];
    }
    __syncthreads();
    if (thread >= kStrip) return;
    uint32_t all = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) all = max_of(all, room.warps[w][thread]);
    room.first[thread] = bits_to_float(all);
  }

  // The largest of two values, or their sum: of what is told.
  __device__ static __forceinline__ uint32_t join(int i, uint32_t x, uint32_t y) {
    if (i == kTold - 1) return float_to_bits(bits_to_float(x) + bits_to_float(y));
    return i == 0 ? max_of(x, y) : x + y;
  }

  // What the block has seen of its rows: of 4 lanes, and of the warps that share a row.
  __device__ static __forceinline__ void tell(StripRoom& room, const Seen& seen, int64_t k) {
    uint32_t told[kTold], sums[RowSeen::kSums];
    seen.row.to(sums, k);
    told[0] = seen.largest, told[kTold - 1] = float_to_bits(seen.sum);
#pragma unroll
    for (int i = 0; i < RowSeen::kSums; ++i) told[i + 1] = sums[i];
#pragma unroll
    for (int i = 0; i < kTold; ++i) {
      uint32_t x = told[i];
#pragma unroll
      for (int step = 1; step < 4; step *= 2) x = join(i, x, __shfl_xor_sync(0xffffffffu, x, step));
      if (threadIdx.x % 4 == 0) room.halves[i][threadIdx.x / 32 / kGroups][row()] = x;
    }
    __syncthreads();
    if (threadIdx.x >= kStrip) return;
    const int r = threadIdx.x;
#pragma unroll
    for (int i = 0; i < kTold; ++i)
      room.told[i][r] = bits_to_float(join(i, room.halves[i][0][r], room.halves[i][1][r]));
  }

  // What block `rank` of the cluster has at `p`, as bits.
  template <int kCluster>
  __device__ static __forceinline__ uint32_t hear(const float* p, int rank) {
    return float_to_bits(kCluster > 1 ? load_from_block(p, rank) : *p);
  }

  // Of a row, what all blocks of the cluster have told.
  template <int kCluster>
  __device__ static __forceinline__ void hear(const StripRoom& room, int r, uint32_t (&x)[kTold]) {
#pragma unroll
    for (uint32_t& value : x) value = 0;
#pragma unroll 4
    for (int rank = 0; rank < kCluster; ++rank)
#pragma unroll
      for (int i = 0; i < kTold; ++i) x[i] = join(i, x[i], hear<kCluster>(&room.told[i][r], rank));
  }
};

// Rows that have outgrown their scale are decomposed again, alone: the strip is read again, as its
// lines are of all rows.
template <EmulationScheme S, int kCluster, bool kMayBeShort = false>
__device__ void decompose_strip(const DecomposeJob& job, int64_t block) {
  using Split = StripDecompose<S, kMayBeShort>;
  XGEMM_SHARED_DYNAMIC(room, StripRoom);
  const int thread = threadIdx.x, rank = static_cast<int>(block % kCluster);
  const int64_t strip = block / kCluster, strips = ceil_div(job.limbs.rows, kStrip);
  const int64_t z = job.limbs.matrices > 1 ? strip / strips : 0;
  const int64_t row0 = (strip - z * strips) * kStrip;
  const StripShare share(job, z, row0, ceil_div(job.slices(), kCluster) * kSliceK, rank);
  const int row = Split::row();
  const int64_t first_row = z * job.limbs.rows + row0;  // of all matrices
  char* const limbs = row < share.rows ? static_cast<char*>(job.limbs.data) +
                                             (first_row + row) * job.limbs.row_bytes(S.limbs) +
                                             share.k0 * (2 * S.limbs)
                                       : nullptr;
  Split::begin(room, share);
  Split::tell_first(room, share);
  if constexpr (kCluster > 1) cluster_sync();
  if (thread < kStrip) {
    uint32_t largest = 0;
#pragma unroll
    for (int block = 0; block < kCluster; ++block)
      largest = max_of(largest, Split::template hear<kCluster>(&room.first[thread], block));
    room.exponents[thread] = exponent_of(largest, kGuessTop);
    if (thread == 0) room.rows = ~0u;
  }
#pragma unroll 1
  for (bool last = false;; last = true) {
    __syncthreads();
    const typename Split::Seen seen =
        Split::run(room, share, room.exponents[row], room.rows >> row & 1 ? limbs : nullptr,
                   job.sums != nullptr, job.limb_of_lo<S>());
    Split::tell(room, seen, job.k);
    if constexpr (kCluster > 1) cluster_sync();
    if (thread < kStrip) {
      uint32_t told[kTold], sums[RowSeen::kSums];
      Split::template hear<kCluster>(room, thread, told);
#pragma unroll
      for (int i = 0; i < RowSeen::kSums; ++i) sums[i] = told[i + 1];
      const int exponent = room.exponents[thread];
      const bool lossy = sums[RowSeen::kLossySum] > 0;
      const bool grown = !last && thread < share.rows && outgrown(exponent, told[0], lossy);
      const uint32_t all = __ballot_sync(0xffffffffu, grown);
      if (grown) room.exponents[thread] = exponent_of(told[0], kMostTop);
      if (rank == 0 && thread < share.rows && !grown && room.rows >> thread & 1) {
        job.limbs.scales[first_row + thread] = scale_of(exponent, sums, job.k);
        if (job.sums) job.sums[first_row + thread] = bits_to_float(told[kTold - 1]);
      }
      __syncwarp();
      if (thread == 0) room.rows = all;
    }
    if constexpr (kCluster > 1) cluster_sync(Relaxed());  // `told` has been read
    __syncthreads();
    if (last || room.rows == 0) return;
    Split::begin(room, share);
  }
}

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
