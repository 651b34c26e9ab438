// Probes of the tensor core and of sm_90's asynchronous instructions: products of 16-bit numbers,
// fed by TMA in rings and clusters. Their numbers are small and whole, and so are the results.
#include <stdexcept>
#include <vector>

#include "emulator/block.h"
#include "emulator/probes.h"
#include "xgemm/device/launch.h"
#include "xgemm/device/ptx/cluster.h"
#include "xgemm/device/ptx/mbarrier.h"
#include "xgemm/device/ptx/mma.h"
#include "xgemm/device/ptx/tma.h"
#include "xgemm/device/ptx/wgmma.h"

namespace xgemm {
namespace {

constexpr int kM = 64, kN = 128, kBoxes = 2, kBuffers = 2, kSlices = 6;

// What a kernel leaves out or does wrong.
enum class Fault {
  none,
  no_init,
  no_barrier_after_init,
  no_full_wait,
  no_empty_wait,
  no_expect,
  too_few_bytes,
  too_many_bytes,
  wrong_parity,
  too_many_arrivals,
  too_few_arrivals,
  no_wgmma_wait,
  no_register_fence,
  first_register_fence_only,
  early_register_fence,
  no_commit,
  early_release,
  left_behind,
  misaligned_box,
  box_out_of_bounds,
  wrong_stride,
  wrong_step,
  divergent_wait,
  no_first_cluster_sync,
  no_last_cluster_sync,
  short_mask,
  block_not_there,
};

template <int kDepth>
struct Ring {
  uint16_t x[kBuffers][kM][kDepth];
  uint16_t y[kBuffers][kN][kDepth];
};

// D = X Y, a block 64 rows of it; X and Y, transposed, lie along k. One thread copies, kDepth of k
// at a time, the blocks of a cluster each half of what they share of Y; warps 0 to 3 multiply.
template <Fault kFault, int kCluster, int kDepth>
__global__ void product(const Gemm g, const TensorMap x, const TensorMap y) {
  constexpr int kRow = 2 * kDepth, kBytes = (kM + kN) * kRow;
  constexpr auto is = [](Fault f) { return kFault == f; };
  XGEMM_SHARED_DYNAMIC(ring, Ring<kDepth>);
  XGEMM_SHARED(full, Mbarrier[kBuffers]);
  XGEMM_SHARED(empty, Mbarrier[kBuffers]);
  const int t = threadIdx.x;
  if (t == 0 && !is(Fault::no_init)) {
    for (int s = 0; s < kBuffers; ++s) {
      mbarrier_init(&full[s], is(Fault::too_few_arrivals) ? 2 : 1);
      mbarrier_init(&empty[s], kCluster);
    }
    fence_barrier_init();
  }
  if (kCluster > 1 && !is(Fault::no_first_cluster_sync)) cluster_sync();
  else if (!is(Fault::no_barrier_after_init)) __syncthreads();
  const int rank = static_cast<int>(cluster_rank());
  float acc[kN / 2] = {}, sum[kN / 2] = {};
  if (t == kM * 2) {
    for (int slice = 0; slice < kSlices; ++slice) {
      const int s = slice % kBuffers, round = slice / kBuffers, k = slice * kDepth;
      if (!is(Fault::no_empty_wait))
        mbarrier_wait(&empty[s], round % 2 ^ (is(Fault::wrong_parity) ? 0 : 1));
      if (!is(Fault::no_expect))
        mbarrier_expect(&full[s], is(Fault::too_few_bytes)    ? kM * kRow
                                  : is(Fault::too_many_bytes) ? kBytes + 16
                                                              : kBytes);
      tma_load(&ring.x[s][is(Fault::misaligned_box) ? 1 : 0], x, &full[s], k, blockIdx.x * kM, 0);
      for (int box = 0; box < kBoxes; ++box) {
        const int row = box * kN / kBoxes;
        uint16_t* const to = &ring.y[is(Fault::box_out_of_bounds) ? s + 1 : s][row][0];
        if (kCluster == 1) tma_load(to, y, &full[s], k, row, 0);
        else if (box == rank)
          tma_load_multicast(to, y, &full[s], k, row, 0,
                             is(Fault::short_mask) && rank ? 2u
                             : is(Fault::block_not_there)  ? 7u
                                                           : 3u);
      }
    }
  } else if (t < kM * 2) {
    for (int slice = 0; slice < kSlices; ++slice) {
      const int s = slice % kBuffers, round = slice / kBuffers;
      const auto release = [&] {
        if (t < kCluster) mbarrier_arrive_at(&empty[s], t);
        if (t == 2 && is(Fault::too_many_arrivals)) mbarrier_arrive(&empty[s]);
      };
      if (!is(Fault::no_full_wait)) mbarrier_wait(&full[s], round % 2);
      const uint64_t a = wgmma_descriptor<kRow>(&ring.x[s]);
      const uint64_t b =
          wgmma_descriptor<kRow>(&ring.y[s]) ^ (is(Fault::wrong_stride) ? 0x60ull << 32 : 0);
      if (!is(Fault::no_register_fence) && !(is(Fault::first_register_fence_only) && slice > 0))
        wgmma_fence();
      if (is(Fault::early_register_fence)) acc[kN / 2 - 1] = 0.f;
      for (int step = 0; step < kDepth / 16; ++step) {
        const uint64_t k = step * kDescriptorK16;
        wgmma<Half::fp16>(acc, a + (is(Fault::wrong_step) ? 0 : k), b + k, step > 0);
      }
      if (!is(Fault::no_commit)) wgmma_commit();
      if (is(Fault::early_release)) release();
      if (is(Fault::no_wgmma_wait)) wgmma_wait<1>();
      else if (is(Fault::divergent_wait) && t % 2) wgmma_wait<0>();
      else if (!is(Fault::left_behind)) wgmma_wait<0>();
      wgmma_settled(acc);
      if (!is(Fault::early_release)) release();
      if (!is(Fault::left_behind))
        for (int i = 0; i < kN / 2; ++i) sum[i] += acc[i];
    }
  }
  if (kCluster > 1 && !is(Fault::no_last_cluster_sync)) cluster_sync();
  if (t >= kM * 2) return;
  for (int i = 0; i < kN / 2; ++i) {
    const int row = 16 * (t / 32) + t % 32 / 4 + i / 2 % 2 * 8;
    g.store(blockIdx.x * kM + row, i / 4 * 8 + t % 4 * 2 + i % 2, sum[i]);
  }
}

// The same by threads that read what TMA has written: 64 x 64 threads' worth of dot products of one
// slice after another, released through barrier 1.
template <Fault kFault>
__global__ void dot_product(const Gemm g, const TensorMap x, const TensorMap y) {
  constexpr int kDepth = 32;
  XGEMM_SHARED_DYNAMIC(ring, Ring<kDepth>);
  XGEMM_SHARED(full, Mbarrier[kBuffers]);
  XGEMM_SHARED(empty, Mbarrier[kBuffers]);
  const int t = threadIdx.x;
  if (t == 0)
    for (int s = 0; s < kBuffers; ++s) {
      mbarrier_init(&full[s], 1);
      mbarrier_init(&empty[s], 1);
    }
  __syncthreads();
  if (t == kM) {
    for (int slice = 0; slice < kSlices; ++slice) {
      const int s = slice % kBuffers, k = slice * kDepth;
      mbarrier_wait(&empty[s], slice / kBuffers % 2 ^ 1);
      mbarrier_expect(&full[s], (kM + kN / kBoxes) * kDepth * 2);
      tma_load(&ring.x[s], x, &full[s], k, blockIdx.x * kM, 0);
      tma_load(&ring.y[s], y, &full[s], k, 0, 0);
    }
  } else if (t < kM) {
    float sum[4] = {};
    for (int slice = 0; slice < kSlices; ++slice) {
      const int s = slice % kBuffers;
      mbarrier_wait(&full[s], slice / kBuffers % 2);
      const auto at = [](const auto& rows, int row, int k) {
        const int chunk = k / 8 ^ row / 2 % 4;
        return simt::from_half(Half::fp16, rows[row][chunk * 8 + k % 8]);
      };
      for (int j = 0; j < 4; ++j)
        for (int k = 0; k < kDepth; ++k) sum[j] += at(ring.x[s], t, k) * at(ring.y[s], j, k);
      if (kFault != Fault::early_release) named_barrier(1, kM);
      if (t == 0) mbarrier_arrive(&empty[s]);
    }
    for (int j = 0; j < 4; ++j) g.store(blockIdx.x * kM + t, j, sum[j]);
  }
}

// A warp multiplies 16 x 16 by 16 x 8.
template <bool kAligned, bool kWhole>
__global__ void warp_product(const Gemm g, const TensorMap x, const TensorMap y) {
  XGEMM_SHARED(xs, uint16_t[16][24]);
  XGEMM_SHARED(ys, uint16_t[8][24]);
  const int lane = threadIdx.x;
  const auto copy = [&](auto& to, const TensorMap& from, int rows) {
    for (int e = lane; e < rows * 8; e += 32)
      *reinterpret_cast<uint32_t*>(&to[e / 8][e % 8 * 2]) =
          static_cast<const uint32_t*>(from.data)[e / 8 * (from.stride[0] / 4) + e % 8];
  };
  copy(xs, x, 16), copy(ys, y, 8);
  __syncwarp();
  if (!kWhole && lane == 3) return;
  uint32_t a[4], b[4];
  float d[4] = {};
  ldmatrix4(a, &xs[lane % 16][lane / 16 * 8 + (kAligned ? 0 : 2)]);
  ldmatrix4(b, &ys[lane % 8][lane / 8 % 2 * 8]);
  const uint32_t b2[2] = {b[0], b[1]};
  mma<Half::fp16>(d, a, b2);
  for (int i = 0; i < 4; ++i) g.store(lane / 4 + i / 2 * 8, lane % 4 * 2 + i % 2, d[i]);
}

// A warpgroup multiplies 64 x 16, in its registers, by 16 x 8.
template <bool kFenced>
__global__ void register_product(const Gemm g, const TensorMap, const TensorMap) {
  XGEMM_SHARED_DYNAMIC(ys, uint16_t[8][32]);
  const int t = threadIdx.x, row = 16 * (t / 32) + t % 32 / 4, k = t % 4 * 2;
  const auto half = [](float x) { return uint32_t{simt::to_half(Half::fp16, x)}; };
  if (t < 8)
    for (int i = 0; i < 16; ++i)
      ys[t][(i / 8 ^ t / 2 % 4) * 8 + i % 8] = static_cast<uint16_t>(half(g.b(i, t)));
  fence_for_wgmma();
  __syncthreads();
  uint32_t a[4];
  float acc[4];
  const auto load = [&](int first) {
    for (int r = first; r < 4; ++r) {
      const int i = row + r % 2 * 8, j = k + r / 2 * 8;
      a[r] = half(g.a(i, j)) | half(g.a(i, j + 1)) << 16;
    }
  };
  load(0);
  wgmma_fence();
  if (!kFenced) load(3);
  wgmma<Half::fp16>(acc, a, wgmma_descriptor<64>(&ys), false);
  wgmma_commit();
  wgmma_wait<0>();
  wgmma_settled(acc);
  for (int e = 0; e < 4; ++e) g.store(row + e / 2 * 8, k + e % 2, acc[e]);
}

// Two blocks each sum up half of k, and meet in global memory.
template <bool kRight>
__global__ void split_product(const Gemm g, const TensorMap, const TensorMap y) {
  auto* const scratch = const_cast<float*>(
      reinterpret_cast<const float*>(static_cast<const char*>(y.data) + y.stride[1]));
  const int t = threadIdx.x, rank = static_cast<int>(cluster_rank());
  for (int i = 0; i < g.m; ++i) {
    float sum = 0.f;
    for (int64_t k = rank; k < g.k; k += 2) sum += g.a(i, k) * g.b(k, t);
    scratch[(i * 2 + rank) * g.n + t] = sum;
  }
  if (kRight) cluster_sync();
  if (rank) return;
  for (int i = 0; i < g.m; ++i)
    g.store(i, t, scratch[i * 2 * g.n + t] + scratch[(i * 2 + 1) * g.n + t]);
}

// The same, but each block keeps its sums, and the one of a row reads them all there.
enum class PeerFault { none, no_first_sync, no_last_sync, no_store, no_such_block, outside };
template <PeerFault kFault>
__global__ void peer_product(const Gemm g, const TensorMap, const TensorMap) {
  constexpr auto is = [](PeerFault f) { return kFault == f; };
  XGEMM_SHARED(sums, float[2][32]);
  const int t = threadIdx.x, rank = static_cast<int>(cluster_rank());
  for (int i = 0; i < g.m; ++i) {
    float sum = 0.f;
    for (int64_t k = rank; k < g.k; k += 2) sum += g.a(i, k) * g.b(k, t);
    if (!is(PeerFault::no_store) || rank == 0) sums[i][t] = sum;
  }
  if (!is(PeerFault::no_first_sync)) cluster_sync();
  const float* const row = &sums[rank][is(PeerFault::outside) ? t + 64 : t];
  const float first = load_from_block(row, 0);
  g.store(rank, t, first + load_from_block(row, is(PeerFault::no_such_block) ? 2 : 1));
  if (!is(PeerFault::no_last_sync)) cluster_sync();
}

using Kernel = void (*)(Gemm, TensorMap, TensorMap);

struct ProductProbe {
  const char* name;
  Kernel kernel;
  bool faulty;
  unsigned cluster = 1;
  int depth = 64;
  int n = 100;  // less than the boxes hold
  int m = 2 * kM, k = 0;
  unsigned threads = 160;
};

template <Fault kFault, int kCluster = 1, int kDepth = 64>
constexpr ProductProbe probe_of(const char* name) {
  return {name, product<kFault, kCluster, kDepth>, kFault != Fault::none, kCluster, kDepth};
}

template <PeerFault kFault>
constexpr ProductProbe peers(const char* name) {
  return {name, peer_product<kFault>, kFault != PeerFault::none, 2, 16, 32, 1, 48, 32};
}

constexpr ProductProbe kProbes[] = {
    probe_of<Fault::none>("tma_product"),
    probe_of<Fault::none, 1, 32>("tma_product_narrow"),
    probe_of<Fault::none, 2>("tma_product_cluster"),
    {"tma_dot_product", dot_product<Fault::none>, false, 1, 32, 4, 2 * kM, 0, 96},
    {"register_product", register_product<true>, false, 1, 16, 8, 64, 16, 128},
    {"operand_written_after_its_fence", register_product<false>, true, 1, 16, 8, 64, 16, 128},
    {"warp_product", warp_product<true, true>, false, 1, 16, 8, 16, 16, 32},
    {"split_product", split_product<true>, false, 2, 16, 32, 1, 48, 32},
    {"missing_cluster_sync", split_product<false>, true, 2, 16, 32, 1, 48, 32},
    peers<PeerFault::none>("peer_product"),
    peers<PeerFault::no_first_sync>("peer_read_too_early"),
    peers<PeerFault::no_last_sync>("peer_gone"),
    peers<PeerFault::no_store>("peer_uninitialised"),
    peers<PeerFault::no_such_block>("peer_not_there"),
    peers<PeerFault::outside>("peer_out_of_bounds"),
    probe_of<Fault::no_init>("mbarrier_without_init"),
    probe_of<Fault::no_barrier_after_init>("mbarrier_init_unseen"),
    probe_of<Fault::no_full_wait>("missing_full_wait"),
    probe_of<Fault::no_empty_wait>("missing_empty_wait"),
    probe_of<Fault::no_expect>("missing_expect"),
    probe_of<Fault::too_few_bytes>("too_few_bytes"),
    probe_of<Fault::too_many_bytes>("too_many_bytes"),
    probe_of<Fault::wrong_parity>("wrong_parity"),
    probe_of<Fault::too_many_arrivals>("too_many_arrivals"),
    probe_of<Fault::too_few_arrivals>("too_few_arrivals"),
    probe_of<Fault::no_wgmma_wait>("missing_wgmma_wait"),
    probe_of<Fault::no_commit>("missing_wgmma_commit"),
    probe_of<Fault::no_register_fence>("missing_wgmma_register_fence"),
    probe_of<Fault::first_register_fence_only>("accumulators_read_after_their_fence"),
    probe_of<Fault::early_register_fence>("accumulators_written_after_their_fence"),
    probe_of<Fault::early_release>("early_release"),
    probe_of<Fault::left_behind>("wgmma_left_behind"),
    probe_of<Fault::misaligned_box>("misaligned_box"),
    probe_of<Fault::box_out_of_bounds>("box_out_of_bounds"),
    probe_of<Fault::wrong_stride>("wrong_stride"),
    probe_of<Fault::wrong_step>("wrong_step"),
    probe_of<Fault::divergent_wait>("divergent_wgmma_wait"),
    probe_of<Fault::no_first_cluster_sync, 2>("missing_first_cluster_sync"),
    probe_of<Fault::no_last_cluster_sync, 2>("missing_last_cluster_sync"),
    probe_of<Fault::no_empty_wait, 2>("cluster_missing_empty_wait"),
    probe_of<Fault::early_release, 2>("cluster_early_release"),
    probe_of<Fault::short_mask, 2>("short_mask"),
    probe_of<Fault::block_not_there, 2>("block_not_there"),
    {"missing_named_barrier", dot_product<Fault::early_release>, true, 1, 32, 4, 2 * kM, 0, 96},
    {"misaligned_ldmatrix", warp_product<false, true>, true, 1, 16, 8, 16, 16, 32},
    {"mma_of_31_lanes", warp_product<true, false>, true, 1, 16, 8, 16, 16, 32},
};

const ProductProbe* probe_to_run;

// Rows along k of 16-bit numbers, as TMA sees them.
template <class Element>
TensorShape rows_of(uint16_t* to, int64_t rows, int64_t k, uint32_t box_rows, Element element) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < k; ++i) to[r * k + i] = simt::to_half(Half::fp16, element(r, i));
  const auto stride = static_cast<uint64_t>(2 * k);
  const uint32_t line = probe_to_run->depth == 32 ? 32 : 64;
  return {.data = to,
          .size = {static_cast<uint64_t>(k), static_cast<uint64_t>(rows), 1},
          .stride = {stride, stride * static_cast<uint64_t>(rows)},
          .box = {line, box_rows, 1},
          .swizzle = 2 * line};
}

void run_product(const Gemm& g, const Context& context) {
  auto* halves = static_cast<uint16_t*>(context.workspace);
  const TensorMap x =
      make_tensor_map(rows_of(halves, g.m, g.k, kM, [&](auto r, auto k) { return g.a(r, k); }));
  const TensorMap y = make_tensor_map(rows_of(halves + g.m * g.k, g.n, g.k, kN / kBoxes,
                                              [&](auto r, auto k) { return g.b(k, r); }));
  launch(probe_to_run->kernel,
         {.grid = dim3(static_cast<unsigned>(ceil_div(g.m, kM)) * probe_to_run->cluster),
          .block = dim3(probe_to_run->threads),
          .smem = sizeof(Ring<64>),
          .cluster = probe_to_run->cluster},
         context, Gemm(g), TensorMap(x), TensorMap(y));
}

}  // namespace

namespace simt {

std::vector<ProbeName> product_probes() {
  std::vector<ProbeName> names;
  for (const ProductProbe& p : kProbes) names.push_back({p.name, p.faulty});
  return names;
}

bool run_product_probe(const std::string& name) {
  for (const ProductProbe& p : kProbes) {
    if (name != p.name) continue;
    Gemm g;
    g.m = p.m * p.cluster, g.n = p.n, g.k = p.k ? p.k : kSlices * p.depth - 8;
    std::vector<float> a(static_cast<size_t>(g.m * g.k)), b(static_cast<size_t>(g.n * g.k)),
        d(static_cast<size_t>(g.m * g.n));
    for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(i * i % 13) - 6.f;
    for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(i * i % 17) - 8.f;
    g.a = {a.data(), g.k, 1, 0};
    g.b = {b.data(), 1, g.k, 0};
    g.d = {d.data(), g.n, 1, 0};
    probe_to_run = &p;
    Stage stage;
    stage.name = "probe";
    stage.workspace = [](const Gemm& x, const Context&) {
      return static_cast<size_t>((x.m + x.n) * x.k * 2 + 2 * x.m * x.n * 4);
    };
    stage.run = run_product;
    run_watched(stage, g);
    for (int64_t i = 0; i < g.m; ++i)
      for (int64_t j = 0; j < g.n; ++j) {
        float want = 0;
        for (int64_t k = 0; k < g.k; ++k) want += g.a(i, k) * g.b(k, j);
        if (g.d(i, j) != want)
          throw std::runtime_error("xgemm simt: wrong numbers: D(" + std::to_string(i) + ", " +
                                   std::to_string(j) + ") is " + std::to_string(g.d(i, j)) +
                                   ", not " + std::to_string(want) + ", seen at " + place(here()));
      }
    return true;
  }
  return false;
}

}  // namespace simt
}  // namespace xgemm
