// Up to 16 rows times a B that lies along K: the bits of invariant_wgmma.h by a kernel that reads B
// once. There B's limbs are written and read again, 12 bytes of memory traffic an element in place
// of 4, and of a tile's 64 rows most are not there.
//
//   strip     16 columns of B: a warp has a part of their K (core/k_parts.h), and decomposes it on
//             its way to mma.sync, which adds up 16 products as wgmma does. They are the rows of
//             what it multiplies, and A's rows its columns.
//   scales    a column's depends on all of it, and is not known yet. It need not be: limbs of other
//             scales are the same but for a power of two, unless some lose bits at the lower end of
//             fp16's exponents. So a column is scaled by the largest element so far, and its sums
//             with it, where that grows.
//   clusters  have the other parts: they exchange what they have seen of the columns. A warp whose
//             limbs do depend on the scale makes its part once more, with the right one: of normal
//             numbers one element in 3 10^7 asks for it.
//   epilogue  parts are added up in order. A strip in which something is not plain, which is as
//             rare, is seen to element by element.
#pragma once

#include "xgemm/core/k_parts.h"
#include "xgemm/device/ptx/cluster.h"
#include "xgemm/device/ptx/mma.h"
#include "xgemm/emulation/column_seen.h"
#include "xgemm/emulation/decompose.h"
#include "xgemm/emulation/given.h"
#include "xgemm/epilogue/emulated.h"
#include "xgemm/mainloop/recompute_elements.h"

namespace xgemm {

constexpr int kFewRows = 16, kStripColumns = 16;
constexpr int kFewWarps = 2;  // of a block, at most

// How clusters share K and columns: a warp has a part of a strip.
struct StripPlan {
  KParts parts;
  int blocks = 0;  // of a cluster; 0: the problem is not one for strips
  int parts_each = 1, strips = 1;  // of a block, all of whose strips all of its cluster have

  XGEMM_HD int warps() const { return parts_each * strips; }
};

// The way of operands into registers, a group of slices at a time: of each row of a slice 128
// bytes, floats of B or limbs, in chunks of 16 that are where no two of a warp's threads meet in a
// bank.
template <int kRows>
struct RowSlices {
  static constexpr int kGroup = 2, kGroups = 4;  // slices; groups
  float x[kGroups][kGroup][kRows][kSliceK];

  // `limbs`: they are read by 8 bytes, floats by 16.
  __device__ static __forceinline__ int chunk(int row, int of_row, bool limbs) {
    return (of_row ^ (limbs ? row % 4 * 2 : row % 2 * 4)) * 4;
  }
};

// Shared memory of a warp.
template <int kRows>
struct WarpRoom {
  RowSlices<kStripColumns> strip;
  RowSlices<kRows> rows;
  float sums[kRows / 8][32][4];
  float seen[kStripColumns][4];  // ColumnSeen, of a part
  GivenUnit<32, kFewRows, 32> given;
  RowScale columns[kStripColumns];
  Fate fates[kFewRows][kStripColumns];
  ChainSlice chain;
};

struct FewRowsJob {
  Gemm g;
  Limbs a, b;  // B's as far as they are kept
  StripPlan plan;
  DecomposeShape shape;  // how a row is partitioned that is decomposed, which its norm shows
};

inline namespace XGEMM_FLAVOUR {

// A warp's part of a strip. For mma.sync a thread has, of the strip's columns `lane / 4` and 8
// more, and of A's rows `lane / 4` and 8 more, four k of each half of a slice: those that are `lane
// % 4`'s there, whichever the instruction takes them for. Of the results it has those two columns,
// and rows 2 (lane % 4), the next, and 8 more: acc[row / 8][2 (column / 8) + row % 2].
template <EmulationScheme S, int kRows, bool kKept>
struct Strip {
  static constexpr int kTiles = kRows / 8;
  using Sums = float[kTiles][4];
  using Columns = RowSlices<kStripColumns>;
  static constexpr int kGroup = Columns::kGroup, kGroups = Columns::kGroups;
  static constexpr int kGroupFloats = kGroup * kStripColumns * kSliceK;
  static constexpr int kNext = 8 * kSliceK;  // floats from a thread's column to its other one
  using Group = float[kGroup][2][2][4];  // [slice][column][half]: floats, or {hi, hi, lo, lo}
  const FewRowsJob& job;
  Gemm g;  // matrix z of the batch
  WarpRoom<kRows>* room;  // of the block's first warp
  int64_t z, j;
  int strip;  // of the block's
  int count;  // slices of the part
  int place;  // of the thread's first four elements, or limbs, in a slice of the ring
  // Where the thread finds its columns' part, which has so many floats, and the chunks of every
  // fourth row of A.
  const float* columns[2];
  int64_t reach;
  const float* rows[kRows / 4];
  uint32_t there;  // a bit each of those that exist
  int row_place;

  __device__ __forceinline__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ __forceinline__ static int warp() { return static_cast<int>(threadIdx.x) / 32; }
  __device__ __forceinline__ static int row_of(int tile, int e) {
    return tile * 8 + lane() % 4 * 2 + e % 2;
  }
  __device__ __forceinline__ static int column_of(int e) { return lane() / 4 + e / 2 * 8; }

  // Where the part begins, by its first slice.
  __device__ __forceinline__ void find(int slice) {
    place = lane() / 4 * kSliceK + Columns::chunk(lane() / 4, lane() % 4, kKept);
    const int64_t k = int64_t{slice} * kSliceK, all = int64_t{count} * kSliceK;
    reach = kKept ? all : min_of(all, g.k - k);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int64_t column = min_of(j + lane() / 4 + c * 8, g.n - 1);
      columns[c] = (kKept ? static_cast<const float*>(job.b.data) +
                                (job.b.first_row(z) + column) * job.b.blocks * kSliceK + k
                          : g.b.ptr(k, column)) +
                   lane() % 4 * 4;
    }
    there = 0, row_place = lane() / 8 * kSliceK + Columns::chunk(lane() / 8, lane() % 8, true);
#pragma unroll
    for (int r = 0; r < kRows; r += 4) {
      const int64_t row = r + lane() / 8;
      if (row < g.m) there |= 1u << r;
      rows[r / 4] = static_cast<const float*>(job.a.data) +
                    ((job.a.first_row(z) + min_of(row, g.m - 1)) * job.a.blocks + slice) * kSliceK +
                    lane() % 8 * 4;
    }
  }

  // A group of slices of the strip on its way, zeros where there are none.
  __device__ __forceinline__ void copy_strip(int group) const {
    // Floats from the thread's first one on, to those that there are not.
    const int64_t at = int64_t{group} * (kGroup * kSliceK), left = reach - at;
    const Smem to = Smem(room[warp()].strip.x[0][0][0]) + group % kGroups * kGroupFloats;
    if (left >= kGroup * kSliceK) [[likely]]
      copy_strip<true>(to, at, left);
    else copy_strip<false>(to, at, left);
  }
  template <bool kWhole>
  __device__ __forceinline__ void copy_strip(Smem to, int64_t at, int64_t left) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Smem its = to + (place ^ half * 16);
#pragma unroll
      for (int c = 0; c < 2; ++c)
#pragma unroll
        for (int n = 0; n < kGroup; ++n) {
          const int k = n * kSliceK + half * 16, step = n * kStripColumns * kSliceK + c * kNext;
          const float* const from = columns[c] + at + k;
          if constexpr (kWhole) cp_async<16>(its + step, from);
          else cp_async_some<16>(its + step, from, k + lane() % 4 * 4 < left ? 16 : 0);
        }
    }
  }
  // ... and of A's rows, as far as they exist: of slices that do not, the last one's.
  __device__ __forceinline__ void copy_rows(int group) const {
    const int first = group * kGroup;
    if (first < count) {
      const Smem to =
          Smem(room[warp()].rows.x[0][0][0]) + group % kGroups * (kGroupFloats / 2 * kTiles);
#pragma unroll
      for (int r = 0; r < kRows; r += 4)
#pragma unroll
        for (int n = 0; n < kGroup; ++n)
          if (there >> r & 1)
            cp_async<16>(to + (row_place + (n * kRows + r) * kSliceK),
                         rows[r / 4] + (first + n < count ? first + n : first) * kSliceK);
    }
    cp_async_commit();
  }
  // Rows that do not exist are zeros.
  __device__ __forceinline__ void clear_rows() const {
    auto& all = room[warp()].rows.x;
    const int l = lane();
#pragma unroll
    for (int r = 0; r < kRows; r += 4)
      if (r + l / 8 >= g.m)
        for (int slot = 0; slot < kGroups * kGroup; ++slot)
          store4(&all[slot / kGroup][slot % kGroup][r + l / 8][l % 8 * 4],
                 make_float4(0.f, 0.f, 0.f, 0.f));
  }

  // The first groups, once `ready` is over: A's limbs are there.
  template <class Ready>
  __device__ __forceinline__ void begin(const Ready& ready) const {
    for (int group = 0; group < kGroups; ++group) copy_strip(group);
    ready();
    for (int group = 0; group < kGroups; ++group) copy_rows(group);
  }

  // The sums of the part: wgmma_kernel's, in its order. begin() was before. Their scale is that of
  // a column's `exponent`: given, or of what is `seen` in the end.
  template <bool kGiven>
  __device__ __forceinline__ void multiply(Sums& acc, ColumnSeen (&seen)[2],
                                           int (&exponent)[2]) const {
    constexpr int kSegment = S.segment / kSliceK;
    static_assert(kSegment % kGroup == 0);
    Sums corr;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int e = 0; e < 4; ++e) acc[tile][e] = corr[tile][e] = 0.f;
    const int groups = (count + kGroup - 1) / kGroup;
    Group x[2];
    int now[2] = {exponent[0], exponent[1]};
    const auto fetch = [&](Group& to, int group) {
      cp_async_wait<kGroups - 2>();
      __syncwarp();
      load(to, group);
    };
    const auto step = [&](Group& its, Group& next, int group) {
      if (group % (kSegment / kGroup) == 0) add(acc, corr);
      if constexpr (!kKept && !kGiven) {  // without braces nvcc leaves out fetch(), too
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          rescale(acc, c, now[c] - exponent[c]), rescale(corr, c, now[c] - exponent[c]);
          exponent[c] = now[c];
        }
      }
      // The next group, if there is one, becomes limbs while this one is multiplied.
      fetch(next, group + 1);
      const auto& rows_of = room[warp()].rows.x[group % kGroups];
      multiply(acc, corr, its[0], rows_of[0][lane() / 4]);
      if constexpr (!kKept) decompose<kGiven>(next, seen, now);
#pragma unroll
      for (int n = 1; n < kGroup; ++n) multiply(acc, corr, its[n], rows_of[n][lane() / 4]);
      __syncwarp();
      copy_strip(group + kGroups);
      copy_rows(group + kGroups);
    };
    fetch(x[0], 0);
    if constexpr (!kKept) decompose<kGiven>(x[0], seen, now);
#pragma unroll 1
    for (int group = 0; group < groups; group += 2) {
      step(x[0], x[1], group);
      if (group + 1 < groups) step(x[1], x[0], group + 1);
    }
    add(acc, corr);
    cp_async_wait<0>();  // of groups that there are not
  }

  __device__ __forceinline__ void load(Group& x, int group) const {
    const int l = lane();
    const auto& ring = room[warp()].strip.x[group % kGroups];
#pragma unroll
    for (int n = 0; n < kGroup; ++n)
#pragma unroll
      for (int c = 0; c < 2; ++c)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = l / 4 + c * 8;
          if constexpr (kKept) load_limbs(x[n][c][half], ring[n][row], row, half);
          else load4(x[n][c][half], ring[n][0] + (place ^ half * 16) + c * kNext);
        }
  }
  // Of a row's slice, four k of a half: {hi, hi, lo, lo}.
  __device__ __forceinline__ static void load_limbs(float (&x)[4], const float* from, int row,
                                                    int half) {
    const int c = lane() % 4;
#pragma unroll
    for (int limb = 0; limb < 2; ++limb)
      load2(x + limb * 2,
            from + Columns::chunk(row, limb * 4 + half * 2 + c / 2, true) + c % 2 * 2);
  }

  // Floats become limbs: by the largest of their column so far, which four threads have, or by what
  // is given. No branches: the products of the group before are to be among it.
  template <bool kGiven>
  __device__ __forceinline__ static void decompose(Group& x, ColumnSeen (&seen)[2],
                                                   int (&exponent)[2]) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      if constexpr (!kGiven) {
        ColumnSeen some[4];
#pragma unroll
        for (int e = 0; e < kGroup * 8; ++e) some[e % 4].see(x[e / 8][c][e / 4 % 2][e % 4]);
        some[0].join(some[1]), some[2].join(some[3]), some[0].join(some[2]);
#pragma unroll
        for (int lanes = 1; lanes <= 2; lanes *= 2)
          some[0].most =
              max_or_nan(some[0].most, __shfl_xor_sync(0xffffffffu, some[0].most, lanes));
        seen[c].join(some[0]);
        exponent[c] = seen[c].exponent_so_far();
      }
      const int first = exponent[c] < 127 ? exponent[c] : 127;
      const float factor = power_of_2(first);
#pragma unroll
      for (int n = 0; n < kGroup; ++n)
#pragma unroll
        for (auto& four : x[n][c]) {
#pragma unroll
          for (float& each : four) {
            each *= factor;
            if constexpr (kGiven) each *= power_of_2(exponent[c] - first);
          }
          const float hi0 = bits_to_float(take_limb<S>(four[0], four[1]));
          const float hi1 = bits_to_float(take_limb<S>(four[2], four[3]));
          four[3] = bits_to_float(pack_half2<S.type>(four[2], four[3]));
          four[2] = bits_to_float(pack_half2<S.type>(four[0], four[1]));
          four[0] = hi0, four[1] = hi1;
        }
    }
  }
  // A column's sums by 2^more: of zeros by anything.
  __device__ __forceinline__ static void rescale(Sums& sums, int c, int more) {
    const float factor = power_of_2(more < -126 ? -126 : more > 127 ? 127 : more);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int e = 0; e < 2; ++e) sums[tile][2 * c + e] *= factor;
  }

  // A slice of the strip by A's rows, of which `row` is the thread's first one. Sums that do not
  // wait for each other take turns.
  __device__ __forceinline__ static void multiply(Sums& acc, Sums& corr, const float (&x)[2][2][4],
                                                  const float* row) {
    uint32_t a[2][2][4], b[kTiles][2][2][2];  // [limb][half]
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int e = 0; e < 4; ++e)
#pragma unroll
        for (int c = 0; c < 2; ++c) a[e / 2][half][c + e % 2 * 2] = float_to_bits(x[c][half][e]);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        float limbs[4];
        load_limbs(limbs, row + tile * 8 * kSliceK, lane() / 4, half);
#pragma unroll
        for (int e = 0; e < 4; ++e) b[tile][e / 2][half][e % 2] = float_to_bits(limbs[e]);
      }
    }
    Sums hi;
#pragma unroll
    for (auto& of_tile : hi)
#pragma unroll
      for (float& each : of_tile) each = 0.f;
#pragma unroll
    for (int limb = 0; limb < 2; ++limb)  // of A
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile)
          mma<S.type>(corr[tile], a[1 - limb][half], b[tile][limb][half]);
        if (limb == 0) {
#pragma unroll
          for (int tile = 0; tile < kTiles; ++tile)
            mma<S.type>(hi[tile], a[0][half], b[tile][0][half]);
        }
      }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int e = 0; e < 4; ++e) acc[tile][e] += hi[tile][e];
  }
  __device__ __forceinline__ static void add(Sums& acc, Sums& corr) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        acc[tile][e] = fmaf(corr[tile][e], 1.f / S.lo_scale, acc[tile][e]);
        corr[tile][e] = 0.f;
      }
  }

  // Four numbers that some warp of the cluster has left: of a part of K.
  template <class At>
  __device__ __forceinline__ void of_part(float (&x)[4], int p, const At& at) const {
    const int each = job.plan.parts_each, its = p % each * job.plan.strips + strip;
    if (job.plan.blocks > 1) load4_from_block(x, at(its), p / each);
    else load4(x, at(its));
  }
  // What the strip's warps have seen of a thread's columns.
  __device__ __forceinline__ void seen_by_all(ColumnSeen (&all)[2]) const {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      ColumnSeen seen;
      for (int p = lane() % 4; p < static_cast<int>(job.plan.parts.count); p += 4) {
        float x[4];
        of_part(x, p, [&](int w) { return room[w].seen[lane() / 4 + c * 8]; });
        seen.join({x[0], float_to_bits(x[1]), float_to_bits(x[2])});
      }
      all[c] = seen.of_column();
    }
  }
  // RowScale of columns of which more than the exponent matters, or that rows `weigh`: by the
  // strip's warps in turn, of which this one has part `p` of K.
  __device__ __forceinline__ void find_odd(const ColumnSeen (&all)[2], int p, bool weigh) const {
    bool odd[2];
    int exponents[2], finites[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      exponents[c] = all[c].exponent(), finites[c] = all[c].finite();
      odd[c] = j + lane() / 4 + c * 8 < g.n && !all[c].template plain<S>(exponents[c]);
    }
    const uint32_t those[2] = {__ballot_sync(0xffffffffu, odd[0]),
                               __ballot_sync(0xffffffffu, odd[1])};
    if (!weigh && (those[0] | those[1]) == 0) [[likely]]
      return;
    const auto columns_there = static_cast<int>(min_of(g.n - j, kStripColumns));
#pragma unroll 1
    for (int c = p; c < columns_there; c += static_cast<int>(job.plan.parts.count)) {
      const int from = c % 8 * 4;
      const int exponent = __shfl_sync(0xffffffffu, c < 8 ? exponents[0] : exponents[1], from);
      const bool finite = __shfl_sync(0xffffffffu, c < 8 ? finites[0] : finites[1], from);
      if (!weigh && !((c < 8 ? those[0] : those[1]) >> from & 1)) continue;
      const RowScale s = scale_of_row<S>(g.b.ptr(0, j + c), g.k, job.shape, exponent, finite);
      if (lane() == 0) room[warp()].columns[c] = s;
    }
  }
  // What they have found of the thread's columns, those that are `odd` or that rows `weigh`.
  __device__ __forceinline__ void odd_of_all(RowScale (&of)[2], const bool (&odd)[2],
                                             bool weigh) const {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int column = lane() / 4 + c * 8;
      if (j + column >= g.n || !(weigh || odd[c])) continue;
      float x[4];
      of_part(x, column % static_cast<int>(job.plan.parts.count),
              [&](int w) { return reinterpret_cast<const float*>(&room[w].columns[column]); });
      const uint32_t two = float_to_bits(x[1]);
      of[c] = {static_cast<int32_t>(float_to_bits(x[0])), static_cast<uint16_t>(two),
               static_cast<uint16_t>(two >> 16), x[2], float_to_bits(x[3])};
    }
  }
  // ((p0 + p1) + p2) + ...
  __device__ __forceinline__ void add_parts(Sums& acc) const {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (float& each : acc[tile]) each = -0.f;  // -0 + x is x
#pragma unroll 4
      for (int p = 0; p < static_cast<int>(job.plan.parts.count); ++p) {
        float x[4];
        of_part(x, p, [&](int w) { return room[w].sums[tile][lane()]; });
#pragma unroll
        for (int e = 0; e < 4; ++e) acc[tile][e] += x[e];
      }
    }
  }

  // By one warp. `columns`: the thread's; `odd`: whether more than their exponents matters.
  __device__ __forceinline__ void store(const Sums& acc, const RowScale (&columns)[2],
                                        const bool (&odd)[2], bool odd_rows) const {
    const RowScale* const rows = job.a.scales + job.a.first_row(z);
    if (odd_rows || __any_sync(0xffffffffu, odd[0] || odd[1])) [[unlikely]]
      return store_each(acc, columns);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int64_t r = row_of(tile, e), c = j + column_of(e);
        if (r < g.m && c < g.n)
          g.store(r, c, undo(acc[tile][e], rows[r].exponent, columns[e / 2].exponent));
      }
  }
  __device__ __forceinline__ static float undo(float acc, int row, int column) {
    return acc * power_of_2(-row) * power_of_2(-column);
  }

  // Where some rows or columns are not plain: each result by its own row and column.
  __device__ __forceinline__ void store_each(const Sums& acc, const RowScale (&columns)[2]) const {
    const int l = lane();
    const RowScale* const rows = job.a.scales + job.a.first_row(z);
    const auto rows_there = static_cast<int>(g.m);
    const auto columns_there = static_cast<int>(min_of(g.n - j, kStripColumns));
    auto& rare = room[warp()];
    __syncwarp();  // all have read what was there
    if (l % 4 == 0) rare.columns[l / 4] = columns[0], rare.columns[l / 4 + 8] = columns[1];
    __syncwarp();
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int r = row_of(tile, e), c = column_of(e);
        if (r >= rows_there || c >= columns_there) continue;
        const RowScale &x = rows[r], &y = rare.columns[c];
        const Fate fate = fate_of(S, x, y, acc[tile][e]);
        rare.fates[r][c] = fate;
        if (fate == Fate::stands)
          g.store(r, j + c,
                  (x.flags | y.flags) & kFar ? unscale(acc[tile][e], x.exponent, y.exponent)
                                             : undo(acc[tile][e], x.exponent, y.exponent));
      }
    constexpr GivenBy kNobody{GivenBy::kNone, 0.f};
    if (l < kFewRows)
      rare.given.rows[l] = l < rows_there ? given_by(rows[l], g.a.ptr(l, 0), g.a.cs) : kNobody;
    rare.given.columns[l] =
        l < columns_there ? given_by(rare.columns[l], g.b.ptr(0, j + l), g.b.rs) : kNobody;
    __syncwarp();
    const auto fate_at = [&](int r, int c) {
      return r < rows_there && c < columns_there ? rare.fates[r][c] : Fate::stands;
    };
    rare.given.store(
        g, 0, j,
        [&](int r, int c) {
          uint32_t others = 0;
          for (int w = 0; w < 4; ++w)
            others |= static_cast<uint32_t>(fate_at(r, c + w) != Fate::given) << w;
          return others;
        },
        l);
#pragma unroll 1
    for (int e = 0; e < rows_there * kStripColumns; ++e) {
      const int r = e / kStripColumns, c = e % kStripColumns;
      if (fate_at(r, c) < Fate::recomputed) continue;
      const float sum = chain_of(g, r, j + c, rare.chain);
      if (l == 0) g.store(r, j + c, sum);
    }
  }
};

template <Half kType, int kRows, bool kKept>
__global__ void __launch_bounds__(kFewWarps * 32, 3)
    few_rows_kernel(const __grid_constant__ FewRowsJob job) {
  constexpr EmulationScheme S = scheme_of(kType);
  using Its = Strip<S, kRows, kKept>;
  XGEMM_SHARED_DYNAMIC(first_room, WarpRoom<kRows>);
  WarpRoom<kRows>* const room = &first_room;
  const int warp = Its::warp(), lane = Its::lane();
  const StripPlan& plan = job.plan;
  const auto blocks = static_cast<unsigned>(plan.blocks);
  const int rank = blocks > 1 ? static_cast<int>(cluster_rank()) : 0;
  const auto meet = [&] {  // all who have a part of a strip
    if (blocks > 1) cluster_sync();
    else __syncwarp();
  };
  const auto strip_of = [&](uint32_t x, uint32_t z, int part, int strip) {
    const auto length = static_cast<int>(plan.parts.length);
    const auto all = static_cast<int>(slices_of(job.g.k));
    const auto first = static_cast<int>(min_of((rank * plan.parts_each + part) * length, all));
    Its s{.job = job,
          .g = job.g.at(z),
          .room = room,
          .z = z,
          .j = (int64_t{x / blocks} * plan.strips + strip) * kStripColumns,
          .strip = strip,
          .count = static_cast<int>(min_of(all - first, length))};
    s.find(first);
    return s;
  };
  const Its its = strip_of(blockIdx.x, blockIdx.z, warp / plan.strips, warp % plan.strips);
  its.clear_rows();
  // B is nobody's work whose end this launch has to wait for: the launch before it, which makes A's
  // limbs, begins when all before it have ended.
  its.begin([] { take_turn(); });
  // Of A's rows: long before it is needed.
  const uint32_t flags = lane < its.g.m ? job.a.scales[job.a.first_row(its.z) + lane].flags : 0;
  const bool odd_rows = __any_sync(0xffffffffu, flags);
  const bool weigh = __any_sync(0xffffffffu, flags & (kLossy | kFar));  // all columns' norms
  typename Its::Sums acc;
  ColumnSeen seen[2], all[2];
  int exponent[2] = {};
  its.template multiply<false>(acc, seen, exponent);
  if constexpr (!kKept) {
    bool depends = false;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      seen[c].threads = seen[c].least != ColumnSeen::kNone;
      seen[c] = seen[c].of_column();
      if (lane % 4 == 0)
        store4(room[warp].seen[lane / 4 + c * 8],
               make_float4(seen[c].most, bits_to_float(seen[c].least),
                           bits_to_float(seen[c].threads), 0.f));
    }
    meet();
    its.seen_by_all(all);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int whole = all[c].exponent();
      depends =
          depends || (its.j + lane / 4 + c * 8 < its.g.n && seen[c].template depends<S>(whole));
      Its::rescale(acc, c, whole - exponent[c]);
      exponent[c] = whole;
    }
    if (__any_sync(0xffffffffu, depends)) [[unlikely]] {
      its.begin([] {});
      its.template multiply<true>(acc, seen, exponent);
    }
    its.find_odd(all, rank * plan.parts_each + warp / plan.strips, weigh);
  }
#pragma unroll
  for (int tile = 0; tile < Its::kTiles; ++tile)
    store4(room[warp].sums[tile][lane],
           make_float4(acc[tile][0], acc[tile][1], acc[tile][2], acc[tile][3]));
  meet();
  // A cluster's blocks have its strips in turn.
  const int strip = warp * plan.blocks + rank;
  const bool mine = strip < plan.strips;
  // Opaque, or registers would be kept till here.
  const Its last = strip_of(opaque(blockIdx.x), opaque(blockIdx.z), 0, mine ? strip : 0);
  RowScale columns[2];
  bool odd[2] = {};
  if (mine) {
    last.add_parts(acc);
    if constexpr (!kKept) last.seen_by_all(all);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int64_t column = last.j + lane / 4 + c * 8;
      if (column >= last.g.n) continue;
      if constexpr (kKept) {
        columns[c] = job.b.scales[job.b.first_row(last.z) + column];
        odd[c] = columns[c].flags != 0;
      } else {
        columns[c].exponent = all[c].exponent();
        odd[c] = !all[c].template plain<S>(columns[c].exponent);
      }
    }
    if constexpr (!kKept) last.odd_of_all(columns, odd, weigh);
  }
  if (blocks > 1) cluster_sync(Relaxed());  // nobody reads another's memory any more
  if (mine) last.store(acc, columns, odd, odd_rows);
}

// A cluster for the strips of few rows, if B lies as they are read. Parts go to as many blocks as a
// cluster may have, and strips fill those up as long as every multiprocessor has one. A short K has
// none: its fourth product is one of limbs in memory, and bits are to be the tiles'.
inline StripPlan plan_strips(const Gemm& g, bool kept, const Device& device) {
  StripPlan plan;
  const View<const float> b = g.b.transposed();
  if (g.m > kFewRows || g.k <= kShortK || g.batch > kMaxGridZ) return plan;
  if (!kept && (g.k % 4 != 0 || !b.wide() || !along_k(b, g.n, g.k))) return plan;
  plan.parts = parts_of_k(g.n, slices_of(g.k));
  const int64_t count = plan.parts.count, strips = ceil_div(g.n, kStripColumns);
  plan.parts_each = static_cast<int>(ceil_div(count, kPortableCluster));
  plan.blocks = static_cast<int>(ceil_div(count, plan.parts_each));
  const auto all = [&] { return ceil_div(strips, plan.strips) * plan.blocks; };
  for (plan.strips = kFewWarps / plan.parts_each;
       plan.strips > 1 && all() * g.batch < device.sm_count;)
    plan.strips /= 2;
  if (all() > kMaxGridX) plan.blocks = 0;
  return plan;
}

template <EmulationScheme S, int kDecomposeCluster>
void run_few_rows(const Gemm& g, const StripPlan& strips, const Context& context) {
  FewRowsJob job{.g = g, .plan = strips};
  const bool kept = context.packed_b;
  if (kept) job.b = plan_packed(g, context.packed_b).limbs;
  DecomposePlan plan = plan_decompose(g, S.limbs, context.workspace, kept ? &job.b : nullptr);
  plan.invariant = plan.b_is_kept = true;  // none of B is made here
  job.a = plan.a;
  job.shape = decompose<S, kDecomposeCluster>(g, plan, context);
  const size_t smem =
      static_cast<size_t>(strips.warps()) * (g.m > 8 ? sizeof(WarpRoom<16>) : sizeof(WarpRoom<8>));
  void (*const kernel)(FewRowsJob) =
      g.m > 8 ? kept ? few_rows_kernel<S.type, 16, true> : few_rows_kernel<S.type, 16, false>
      : kept  ? few_rows_kernel<S.type, 8, true>
              : few_rows_kernel<S.type, 8, false>;
  const int64_t clusters = ceil_div(g.n, kStripColumns * strips.strips);
  launch(kernel,
         {.grid = dim3(static_cast<unsigned>(clusters * strips.blocks), 1,
                       static_cast<unsigned>(g.batch)),
          .block = dim3(static_cast<unsigned>(strips.warps() * 32)),
          .smem = smem,
          .cluster = static_cast<unsigned>(strips.blocks),
          .dependent = may_depend(context.device)},
         context, job);
}

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
