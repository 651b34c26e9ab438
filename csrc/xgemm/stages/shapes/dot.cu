// One row or column of D, where operands lie along k: a team of lanes an element, each with every
// so manieth k. Sums meet by shuffles, then in the block's shared memory, then in the cluster's.
//
// A product with one column is as many dot products as A has rows, and a chain that is longer than
// a few hundred k keeps one thread waiting for itself. If only FP32 accuracy is asked for and not
// the bits of the chain, an element can have a team: 8 lanes where K is short, a warp, a block, or
// a cluster of eight blocks where rows are few and long. Lane t multiplies k = t, t + T, t + 2T and
// so on, so that a warp reads 128 bytes that lie together, from any offset, and 16 loads of each
// operand are on their way before the first product. Sums meet by shuffles, in the block's shared
// memory, then in the cluster's; a tree rounds less than the chain does.
//
// What a tree may not do is to overflow where the chain would not, or the other way round. Each
// thread also sums magnitudes. Where that sum is far from the end of FP32's range, no order of the
// products can reach it. An infinity stays one in whatever order: then finite operands alone are
// counted again. What is left, finite products that come near the largest float, is made as one
// chain by one thread.
//
// Few rows a group, as where a model with experts decodes, are one launch: a table says where
// groups end, which the launch before it has made. A warp has four rows of a group and a column of
// its matrix, so that this is read once, and adds up each row's products as a team alone would.
//
// against: gemv, as both read the large operand once; here a team has an element, not a chain
// first: kernel
// origin: This project. cuBLAS, too, has a warp or more for each element of such products.

#include <cfloat>
#include <iterator>

#include "xgemm/core/team.h"
#include "xgemm/device/half.h"
#include "xgemm/device/launch.h"
#include "xgemm/device/ptx/cluster.h"
#include "xgemm/epilogue/split_k_chains.h"
#include "xgemm/mainloop/plan_groups.h"

namespace xgemm::XGEMM_FLAVOUR::dot {

constexpr int kThreads = kTeamThreads;
constexpr Tile kTile{.BM = 1,
                     .BN = kThreads / kLeastTeam,
                     .BK = 1,
                     .TM = 1,
                     .TN = 1,
                     .buffers = 0,
                     .min_blocks = kTeamBlocks,
                     .producers = kThreads - kThreads / kLeastTeam,
                     .rate = 1.4f};

struct DotJob {
  Gemm g;
  int team = kLeastTeam;  // threads of an element, a power of two
  int blocks = 1;  // a team is in so many: a cluster
};

// A thread's share of an element's products, and the sum of their magnitudes.
struct Share {
  float sum = 0.f, reach = 0.f;

  // Those of k from `first` on, `step` apart. kAhead are asked for before any is multiplied.
  template <int kAhead>
  __device__ __forceinline__ void add(const Gemm& g, int64_t i, int64_t j, int first, int step) {
    const float *a = g.a.ptr(i, first), *b = g.b.ptr(first, j);
    const int64_t a_step = step * g.a.cs, b_step = step * g.b.rs;
    if (first > 0 && first >= g.k) sum = -0.f;  // -0 + x is x
#pragma unroll 1
    for (int64_t left = g.k - first; left > 0; left -= kAhead * step) {
      float x[kAhead], y[kAhead];
#pragma unroll
      for (int q = 0; q < kAhead; ++q, a = opaque(a + a_step), b = opaque(b + b_step)) {
        const bool inside = q * step < left;
        x[q] = inside ? *a : kPadA, y[q] = inside ? *b : kPadB;
      }
#pragma unroll
      for (int q = 0; q < kAhead; ++q) {
        sum = fmaf(x[q], y[q], sum);
        reach = fmaf(fabsf(x[q]), fabsf(y[q]), reach);
      }
    }
  }
};

// The same of kRows rows, of which so many are there: each has the sums that it has alone.
template <int kAhead, int kRows>
__device__ __forceinline__ void add_rows(Share (&shares)[kRows], int rows, const Gemm& g, int64_t i,
                                         int64_t j, int first, int step) {
  constexpr int kNear = 4;  // of A, which is in L1
  const float *a = g.a.ptr(i, first), *b = g.b.ptr(first, j);
  const int64_t a_step = step * g.a.cs, b_step = step * g.b.rs;
  if (first > 0 && first >= g.k)
#pragma unroll
    for (Share& each : shares) each.sum = -0.f;  // -0 + x is x
#pragma unroll 1
  for (int64_t left = g.k - first; left > 0; left -= kAhead * step) {
    float y[kAhead];
#pragma unroll
    for (int q = 0; q < kAhead; ++q, b = opaque(b + b_step)) y[q] = q * step < left ? *b : kPadB;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r >= rows) break;
      const float* its = a + r * g.a.rs;
#pragma unroll
      for (int q = 0; q < kAhead; q += kNear) {
        float x[kNear];
#pragma unroll
        for (int p = 0; p < kNear; ++p, its = opaque(its + a_step))
          x[p] = (q + p) * step < left ? *its : kPadA;
#pragma unroll
        for (int p = 0; p < kNear; ++p) {
          shares[r].sum = fmaf(x[p], y[q + p], shares[r].sum);
          shares[r].reach = fmaf(fabsf(x[p]), fabsf(y[q + p]), shares[r].reach);
        }
      }
    }
    a += kAhead * a_step;
  }
}

// The same reach, of finite operands alone: an infinity is one in whatever order it is added.
__device__ __forceinline__ float finite_reach(const Gemm& g, int64_t i, int64_t j, int first,
                                              int step) {
  const float *a = g.a.ptr(i, first), *b = g.b.ptr(first, j);
  float reach = 0.f;
#pragma unroll 1
  for (int64_t left = g.k - first; left > 0; left -= step) {
    const float x = fabsf(*a), y = fabsf(*b);
    if (x <= FLT_MAX && y <= FLT_MAX) reach = fmaf(x, y, reach);
    a += step * g.a.cs, b += step * g.b.rs;
  }
  return reach;
}

// Adds up what so many lanes have, at most a warp's; sure: if all are.
__device__ __forceinline__ void meet(float& sum, bool& sure, int lanes) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
    if (step < lanes) {
      sum += __shfl_xor_sync(0xffffffffu, sum, step);
      sure &= __shfl_xor_sync(0xffffffffu, static_cast<int>(sure), step) != 0;
    }
}

__global__ void __launch_bounds__(kThreads, kTile.min_blocks) kernel(const DotJob job) {
  XGEMM_SHARED(sums, float[kThreads / 32 + 1]);  // of warps, and of the block
  const Gemm g = job.g.at(blockIdx.z);
  const auto blocks = static_cast<unsigned>(job.blocks);
  const int here = job.team / job.blocks;  // threads of the team in a block
  const int lane = threadIdx.x % here;
  const int64_t e =
      static_cast<int64_t>(blockIdx.x / blocks) * (kThreads / here) + threadIdx.x / here;
  const int64_t i =
      (e | g.n) >> 32 ? e / g.n : static_cast<uint32_t>(e) / static_cast<uint32_t>(g.n);
  const int64_t j = e - i * g.n;
  take_turn();
  Share share;
  bool sure = true;
  if (i < g.m) {
    const int first = static_cast<int>(blockIdx.x % blocks) * here + lane;
    share.add<16>(g, i, j, first, job.team);
    if (!(share.reach <= FLT_MAX)) [[unlikely]]
      share.reach = finite_reach(g, i, j, first, job.team);
    // All of a team: no sum of some of the products, in any order, is near the end of the range.
    sure = share.reach * static_cast<float>(job.team) <= 0x1p126f;
  }
  meet(share.sum, sure, here);
  float sum = sure ? share.sum : bits_to_float(kUnsure);
  bool unsure = !sure;
  if (here > 32) {
    const int warp = threadIdx.x / 32;
    if (threadIdx.x % 32 == 0) sums[warp] = sum;
    __syncthreads();
    if (lane == 0) {
#pragma unroll 1
      for (int w = 1; w < here / 32; ++w) {
        const float x = sums[warp + w];
        unsure |= is_unsure(x), sum += x;
      }
      if (unsure) sum = bits_to_float(kUnsure);
    }
  }
  if (blocks > 1) {
    if (threadIdx.x == 0) sums[kThreads / 32] = sum;
    cluster_sync();  // all blocks' sums are there
    if (threadIdx.x == 0 && blockIdx.x % blocks == 0) {
#pragma unroll 1
      for (unsigned rank = 1; rank < blocks; ++rank) {
        const float x = load_from_block(&sums[kThreads / 32], rank);
        unsure |= is_unsure(x), sum += x;
      }
    }
    cluster_sync(Relaxed());  // nobody reads this block's any more
    if (blockIdx.x % blocks != 0) return;
  }
  if (lane == 0 && i < g.m) {
    if (unsure) [[unlikely]]
      sum = chain_of<16>(g, i, j, 0, g.k);
    g.store(i, j, sum);
  }
}

// Rows of a warp, and blocks a multiprocessor: as many loads of B on their way as have registers.
constexpr int kGroupRows = 4, kGroupBlocks = 3;

struct GroupedDotJob {
  Gemm g;
  int team = kLeastTeam;  // at most a warp
  GroupTable groups;  // whose tiles are kGroupRows rows of a column
};

__global__ void __launch_bounds__(kThreads, kGroupBlocks) grouped_kernel(const GroupedDotJob job) {
  take_turn();
  const GroupTable& groups = job.groups;
  const int lane = threadIdx.x % job.team;
  const int64_t e = int64_t{blockIdx.x} * (kThreads / job.team) + threadIdx.x / job.team;
  const int64_t tile = e / job.g.n, j = e - tile * job.g.n;
  const int32_t z = groups.group_of(groups.tiles, tile);
  const int64_t i = (tile - groups.tiles[z]) * kGroupRows;
  const int64_t rows = groups.of_k ? job.g.m : groups.length(z);
  const auto left =
      static_cast<int>(tile < groups.tiles[groups.count] ? min_of(rows - i, kGroupRows) : 0);
  Share shares[kGroupRows];
  bool sure[kGroupRows];
  if (left > 0) add_rows<16>(shares, left, groups.problem(job.g, z), i, j, lane, job.team);
  const Gemm g = groups.problem(job.g, opaque(z));  // or registers would be kept till here
#pragma unroll
  for (int r = 0; r < kGroupRows; ++r) {
    if (!(shares[r].reach <= FLT_MAX)) [[unlikely]]
      shares[r].reach = finite_reach(g, i + r, j, lane, job.team);
    sure[r] = shares[r].reach * static_cast<float>(job.team) <= 0x1p126f;
    meet(shares[r].sum, sure[r], job.team);
  }
  if (lane != 0) return;
#pragma unroll
  for (int r = 0; r < kGroupRows; ++r) {
    if (r >= left) break;
    float sum = shares[r].sum;
    if (!sure[r]) [[unlikely]]
      sum = chain_of<16>(g, i + r, j, 0, g.k);
    g.store(i + r, j, sum);
  }
}

size_t workspace(const Gemm& g, const Context& context) {
  Layout room{nullptr};
  if (context.groups) place_table(room, g.batch, context.groups.of_k);
  return room.bytes;
}

void run_groups(const Gemm& g, const Context& context) {
  const auto [ends, of_k] = context.groups;
  Layout room{context.workspace};
  GroupedDotJob job{.g = g, .groups = place_table(room, g.batch, of_k)};
  // At most, of groups of rows: each may end within a tile.
  const int64_t tiles =
      of_k ? ceil_div(g.m, kGroupRows) * g.batch : std::min(g.m, g.m / kGroupRows + g.batch);
  job.team = team_of(g.k, tiles * g.n, context.device.sm_count, 32);
  const int64_t blocks = ceil_div(tiles * g.n, kThreads / job.team);
  if (tiles > kMaxGridX || blocks > kMaxGridX)
    throw std::invalid_argument("dot: over 2^31 - 1 blocks, or tiles of four rows");
  launch(plan_groups<32>,
         {.grid = dim3(1), .block = dim3(32), .dependent = may_depend(context.device)}, context,
         GroupsJob{.ends = ends,
                   .all = of_k ? g.k : g.m,
                   .rows = g.m,
                   .tile_rows = kGroupRows,
                   .unit_rows = kGroupRows,
                   .table = job.groups});
  launch(grouped_kernel,
         {.grid = dim3(static_cast<unsigned>(blocks)),
          .block = dim3(kThreads),
          .dependent = may_depend(context.device)},
         context, job);
}

void run(const Gemm& all, const Context& context) {
  if (context.groups) return run_groups(all, context);
  const Gemm g = rows_first(all);
  const int most = kThreads * (may_depend(context.device) ? kMostTeamBlocks : 1);
  DotJob job{.g = g, .team = team_of(g.k, g.m * g.n * g.batch, context.device.sm_count, most)};
  job.blocks = std::max(1, job.team / kThreads);
  const int64_t blocks = ceil_div(g.m * g.n, std::max(1, kThreads / job.team)) * job.blocks;
  if (blocks > kMaxGridX) throw std::invalid_argument("dot: over 2^31 - 1 elements");
  for (int64_t z = 0; z < g.batch; z += kMaxGridZ) {
    job.g = g.at(z);
    const auto matrices = static_cast<unsigned>(std::min(g.batch - z, kMaxGridZ));
    LaunchConfig config{.grid = dim3(static_cast<unsigned>(blocks), 1, matrices),
                        .block = dim3(kThreads),
                        .dependent = may_take_turn(context.device, blocks * matrices)};
    if (job.blocks > 1) config.cluster = static_cast<unsigned>(job.blocks);
    launch(kernel, config, context, job);
  }
}

static const Register<run> stage(
    kFlavour, {.name = "dot",
               .idea = "one row or column along k: a team of lanes an element, sums meet in a tree",
               .source = "this project",
               .tiles = {kTile},
               .min_sm = 80,
               .strict = false,
               .teams = true,
               .turns = has_more_rows,
               .workspace = workspace,
               .takes_groups = true});

}  // namespace xgemm::XGEMM_FLAVOUR::dot
