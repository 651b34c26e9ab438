// Narrow and deep products on tensor cores: operands are split into bf16 parts in registers, on
// their way, read once and nowhere written, and K is shared out among blocks.

// arch: sm_90a

#include <iterator>
#include <type_traits>

#include "xgemm/patches.h"
#include "xgemm/shares.h"

namespace xgemm::XGEMM_FLAVOUR::wgmma_narrow {

constexpr Scheme S = kBf16x6;

// BM rows and kLong columns of D. wgmma has D transposed: columns are its 64 rows.
constexpr Tile tile(int BM, int min_blocks, float rate) {
  return {.BM = BM,
          .BN = kLong,
          .BK = kPatchK,
          .WM = BM,
          .WN = 16,
          .TM = BM / 4,
          .TN = 2,
          .width = 1,
          .buffers = 2,
          .a_rows = BM,
          .min_blocks = min_blocks,
          .element_bytes = 2 * S.parts,
          .rate = rate};
}

constexpr Tile kTiles[] = {
    tile(8, 4, 18.f),
    tile(16, 4, 32.f),
    tile(32, 3, 49.f),
    tile(64, 2, 60.f),
};

// Of a thread's sums, and in slices, after which those of the smaller products are added to the
// others.
constexpr int sums_of(const Tile& t) { return t.BM * t.BN / kShareThreads; }
constexpr int kSegment = S.segment / kPatchK;
// Of shared memory: of both buffers, D's rows alone.
constexpr size_t slices_bytes(const Tile& t) {
  return static_cast<size_t>(t.buffers * t.BM * t.BK * t.element_bytes);
}

// The products of a slice: main = those of the first parts, rest += the others, smallest first.
// wgmma's A is D's columns.
template <int BM, int kSums, class Columns>
__device__ __forceinline__ void multiply(float (&main)[kSums], float (&rest)[kSums],
                                         const Columns& columns, uint64_t rows, bool accumulate) {
  constexpr uint64_t kNext = BM * kPatchK * 2 >> 4;
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < Columns::kGroups; ++k)
    wgmma<S.type>(main, columns.parts[k][0], rows + k * kDescriptorK16, k > 0);
#pragma unroll
  for (int order = S.parts - 1; order > 0; --order)
#pragma unroll
    for (int part = 0; part <= order; ++part)
#pragma unroll
      for (int k = 0; k < Columns::kGroups; ++k)
        wgmma<S.type>(rest, columns.parts[k][part],
                      rows + (order - part) * kNext + k * kDescriptorK16,
                      accumulate || order < S.parts - 1 || part > 0 || k > 0);
  wgmma_commit();
}

template <int kRow, bool kA, bool kB, bool kCluster>
__global__ void __launch_bounds__(kShareThreads, kTiles[kRow].min_blocks)
    kernel(const ShareJob job) {
  constexpr Tile T = kTiles[kRow];
  constexpr int kSums = sums_of(T);
  using Rows = SharedParts<kShareThreads, T.BM, kA>;
  XGEMM_SHARED_DYNAMIC(slices, typename Rows::Slice[T.buffers]);
  const Gemm g = job.g.at(blockIdx.z);
  const auto shares = static_cast<unsigned>(job.shares);
  const unsigned tile = blockIdx.x / shares, share = blockIdx.x % shares;
  const Origin o = origin_of(job, tile, T.BM);
  const int64_t k0 = share * job.share, k1 = min_of(k0 + job.share, g.k);
  const int count = k1 > k0 ? static_cast<int>((k1 - k0 + T.BK - 1) / T.BK) : 1;

  RegisterParts<kB> columns(g.b.transposed(), o.j, g.n, k0, k1);
  Rows rows(g.a, o.i, g.m, k0, k1);
  float sum[kSums] = {}, main[kSums], rest[kSums];
  Reach reach;
  // Multiplies slice s, which is in registers number s % 2, and lets slice s + 2 come there.
  const auto multiply_slice = [&](auto number, int s) {
    constexpr int kNumber = number();
    columns.split(kNumber, reach), rows.store(slices[kNumber], kNumber, reach);
    if (s + 2 < count) columns.load(kNumber), rows.load(kNumber);
    fence_for_wgmma();
    __syncthreads();
    multiply<T.BM>(main, rest, columns, wgmma_descriptor<Rows::kRowBytes>(slices[kNumber]),
                   s % kSegment != 0);
    wgmma_wait<0>();
    wgmma_settled(main);
    wgmma_settled(rest);
#pragma unroll
    for (int e = 0; e < kSums; ++e) sum[e] += main[e];
    if (s + 1 == count || (s + 1) % kSegment == 0) {
#pragma unroll
      for (int e = 0; e < kSums; ++e) sum[e] += rest[e];
    }
  };
  columns.load(0), rows.load(0);
  if (count > 1) columns.load(1), rows.load(1);
#pragma unroll 1
  for (int s = 0; s < count; s += 2) {
    multiply_slice(std::integral_constant<int, 0>(), s);
    if (s + 1 < count) multiply_slice(std::integral_constant<int, 1>(), s + 1);
  }

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t place = job.place(blockIdx.z, tile) + share;
  float* const sums =
      job.sums + place * (T.BM * T.BN) + lane % 4 * 2 * T.BN + RegisterParts<kB>::first_row();
#pragma unroll
  for (int e = 0; e < kSums; e += 4)
#pragma unroll
    for (int c = 0; c < 2; ++c) store2(sums + (e / 4 * 8 + c) * T.BN, sum[e + c], sum[e + 2 + c]);
  uint32_t strange = reach.strange();
#pragma unroll
  for (int step = 16; step > 0; step /= 2) strange |= __shfl_xor_sync(0xffffffffu, strange, step);
  if (lane == 0) job.strange[place * kShareWarps + warp] = strange;
  if constexpr (kCluster) {
    cluster_sync();
    finish_tile<T.BM>(job, g, tile, static_cast<int>(share), static_cast<int>(shares));
  } else {
    let_next_launch_begin();
  }
}

// Where there are too many shares for a cluster.
template <int kRow>
__global__ void __launch_bounds__(kShareThreads) add(const ShareJob job, int parts) {
  wait_for_launch_before();
  finish_tile<kTiles[kRow].BM>(job, job.g.at(blockIdx.z), blockIdx.x / static_cast<unsigned>(parts),
                               static_cast<int>(blockIdx.x) % parts, parts);
}

size_t workspace(const Gemm& g, const Context& context) {
  return plan_shares(g, kTiles[context.row], nullptr).bytes;
}

template <int kRow>
void run_row(const Gemm& all, const Context& context) {
  constexpr Tile T = kTiles[kRow];
  ShareJob job = plan_shares(all, T, context.workspace).job;
  const Gemm g = job.g;
  const bool cluster = job.shares <= kClusterShares;
  void (*kernel_of_job)(ShareJob) = nullptr;
  const auto take = [&](auto a, auto b) {
    kernel_of_job = cluster ? kernel<kRow, a(), b(), true> : kernel<kRow, a(), b(), false>;
  };
  using std::false_type, std::true_type;
  const bool a = along_k(g.a, g.m, g.k), b = along_k(g.b.transposed(), g.n, g.k);
  if (a) b ? take(true_type(), true_type()) : take(true_type(), false_type());
  else b ? take(false_type(), true_type()) : take(false_type(), false_type());
  constexpr int kParts = T.BM * T.BN / kShareThreads / 4;  // four elements a thread
  if (job.tiles * std::max<int64_t>(job.shares, kParts) > kMaxGridX)
    throw std::invalid_argument("wgmma_narrow: over 2^31 - 1 blocks");
  for (int64_t z = 0; z < g.batch; z += kMaxGridZ) {
    job.g = g.at(z);
    const auto matrices = static_cast<unsigned>(std::min(g.batch - z, kMaxGridZ));
    launch(kernel_of_job,
           {.grid = dim3(static_cast<unsigned>(job.tiles * job.shares), 1, matrices),
            .block = dim3(kShareThreads),
            .smem = slices_bytes(T),
            .cluster = cluster ? static_cast<unsigned>(job.shares) : 1},
           context, job);
    if (!cluster)
      launch(add<kRow>,
             {.grid = dim3(static_cast<unsigned>(job.tiles * kParts), 1, matrices),
              .block = dim3(kShareThreads),
              .dependent = true},
             context, job, kParts);
  }
}

void run(const Gemm& g, const Context& context) {
  constexpr void (*rows[])(const Gemm&, const Context&) = {run_row<0>, run_row<1>, run_row<2>,
                                                           run_row<3>};
  static_assert(std::size(rows) == std::size(kTiles));
  rows[context.row](g, context);
}

static const Register stage(
    kFlavour, {.name = "wgmma_narrow",
               .rung = 25,
               .idea = "narrow and deep: split in registers on the way, K shared out among blocks",
               .source = "beyond the seeds",
               .tiles = {std::begin(kTiles), std::end(kTiles)},
               .min_sm = 90,
               .max_sm = 90,
               .strict = false,
               .scheme = [](const Gemm&, const Context&) { return kBf16x6Words; },
               .workspace = workspace,
               .run = run});

}  // namespace xgemm::XGEMM_FLAVOUR::wgmma_narrow
