// The torch-free layer by itself, for sanitizers and debuggers: every stage of the registry in the
// emulator against the plain chain, bit for bit where it is strict; the pure functions
// exhaustively; a stage with a workspace and two launches.
//
//   xgemm_native               all of it
//   xgemm_native probe FAULT   one planted fault, which must end the program with an error
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.h"
#include "emulator/block.h"
#include "emulator/simt_control.h"
#include "xgemm/core/tile_scheduler.h"
#include "xgemm/device/launch.h"
#include "xgemm/device/tensor_map.h"
#include "xgemm/dispatch/overrides.h"
#include "xgemm/dispatch/select.h"
#include "xgemm/reference/ieee.h"

namespace xgemm {
namespace {

#ifdef XGEMM_REAL_TSAN
constexpr bool kTsan = true;
#else
constexpr bool kTsan = false;
#endif
#ifdef __SANITIZE_ADDRESS__
constexpr bool kAsan = true;
#else
constexpr bool kAsan = false;
#endif

int checks = 0, failures = 0;

}  // namespace

void expect(bool good, const std::string& what) {
  ++checks;
  if (good) return;
  ++failures;
  std::printf("FAILED: %s\n", what.c_str());
}

bool throws(const std::function<void()>& f, const std::string& part) {
  try {
    f();
  } catch (const std::exception& e) {
    return std::string(e.what()).find(part) != std::string::npos;
  }
  return false;
}

namespace {

// A problem with exactly sized buffers, so that AddressSanitizer sees one float too far.
struct Problem {
  std::vector<float> a, b, c, d;
  Gemm g;
};

struct Layout {
  bool trans_a, trans_b;
  int64_t gap;      // elements between the rows that belong to nobody
};

View<float> matrix(std::vector<float>& data, int64_t batch, int64_t rows, int64_t columns,
                   bool transposed, int64_t gap) {
  const int64_t outer = transposed ? columns : rows, inner = transposed ? rows : columns,
                ld = inner + gap;
  data.resize(static_cast<size_t>(std::max<int64_t>(1, batch * outer * ld)));
  View<float> v{data.data(), ld, 1, batch == 1 ? 0 : outer * ld};
  return transposed ? View<float>{v.data, v.cs, v.rs, v.bs} : v;
}

View<const float> constant(const View<float>& v) { return {v.data, v.rs, v.cs, v.bs}; }

Problem problem(int64_t m, int64_t n, int64_t k, Layout l, float alpha, float beta,
                int64_t batch = 1) {
  Problem p;
  p.g.m = m, p.g.n = n, p.g.k = k, p.g.batch = batch;
  p.g.a = constant(matrix(p.a, batch, m, k, l.trans_a, l.gap));
  p.g.b = constant(matrix(p.b, batch, k, n, l.trans_b, l.gap));
  p.g.d = matrix(p.d, batch, m, n, false, l.gap);
  if (beta != 0.f) p.g.c = constant(matrix(p.c, batch, m, n, false, l.gap));
  p.g.alpha = alpha, p.g.beta = beta;
  std::mt19937 random(static_cast<unsigned>(m * 1000003 + n * 1009 + k));
  std::normal_distribution<float> normal;
  for (auto* v : {&p.a, &p.b, &p.c})
    for (float& x : *v) x = normal(random);
  return p;
}

bool same_bits(const std::vector<float>& x, const std::vector<float>& y) {
  return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0;
}

// As near to each other as two roundings of D are in which no part of an operand is lost.
bool near(const std::vector<float>& x, const std::vector<float>& y, const Gemm& g) {
  for (int64_t z = 0; z < g.batch; ++z) {
    const Gemm one = g.at(z);
    for (int64_t i = 0; i < g.m; ++i)
      for (int64_t j = 0; j < g.n; ++j) {
        double size = g.beta == 0.f ? 0. : std::fabs(double{g.beta} * one.c(i, j));
        for (int64_t k = 0; k < g.k; ++k)
          size += std::fabs(double{g.alpha} * one.a(i, k) * one.b(k, j));
        const auto at = static_cast<size_t>(&one.d(i, j) - g.d.data);
        if (!(std::fabs(double{x[at]} - y[at]) <= 16 * 0x1p-24 * size)) return false;
      }
  }
  return true;
}

constexpr float kUntouched = 12345.f;

std::vector<float> result(Problem& p, const std::function<void(const Gemm&)>& run) {
  std::fill(p.d.begin(), p.d.end(), kUntouched);
  run(p.g);
  return p.d;
}

void test_stages() {
  struct Size {
    int64_t m, n, k;
  };
  // Between up to 1024 fibers switches are very slow for ThreadSanitizer: fewer problems, each in
  // two layouts.
  const auto sizes =
      kTsan ? std::vector<Size>{{33, 65, 17}, {130, 12, 9}}
            : std::vector<Size>{{1, 1, 1}, {33, 65, 17}, {64, 64, 32}, {130, 129, 9}, {5, 140, 0}};
  // Stages that multiply parts leave short sums to the chain; others cut K.
  const std::vector<Size> deep{{70, 40, 150}, {5, 140, 0}};
  // Operands whose rows are apart take turns with those that are dense: each layout of a stage has
  // both. So do orders: tests/test_simt.py asks of every stage whether its result depends on one.
  using simt::Order;
  constexpr Order kOrders[] = {Order::forward, Order::reverse, Order::random};
  int turn = 0;
  for (const Stage& stage : stages(Flavour::host))
    for (int row = 0; row < static_cast<int>(stage.tiles.size()); ++row) {
      int apart = row;
      for (const Size& s : stage.strict && !stage.split_k ? sizes : deep) {
        ++apart;
        for (int layout = 0; layout < 4; ++layout) {
          if (kTsan && (layout % 3 == 0) != (apart % 2 == 0)) continue;
          const int64_t gap = (layout + apart) % 2 ? 3 : 0;
          const bool plain = layout % 2;
          Problem p = problem(s.m, s.n, s.k, {layout / 2 != 0, layout % 2 != 0, gap},
                              plain ? 1.f : 1.5f, plain ? 0.f : .5f, s.m < 64 ? 2 : 1);
          p.g.split_k_size = stage.split_k ? 32 : 0;
          const auto want = result(p, [](const Gemm& g) { chain(g, 0, g.batch * g.m); });
          simt::configure({.order = kOrders[turn++ % 3], .seed = 7, .row = row});
          const auto got = result(p, [&](const Gemm& g) { simt::run_watched(stage, g); });
          expect(stage.strict ? same_bits(want, got) : near(want, got, p.g),
                 stage.name + " row " + std::to_string(row) + " " + std::to_string(s.m) + "x" +
                     std::to_string(s.n) + "x" + std::to_string(s.k) + " layout " +
                     std::to_string(layout));
        }
      }
    }
  simt::configure({});
}

// A strict stage shares out its last tiles if it has room for their sums, and has the same bits if
// it has none.
void test_stream_k_without_room() {
  const Stage* const found = find_stage(Flavour::host, "tma_specialized");
  if (!found) return;
  Stage poor = *found;
  poor.workspace = nullptr;
  Problem p = problem(100, 700, 420, {false, false, 0}, 1.f, 0.f);
  const auto want = result(p, [](const Gemm& g) { chain(g, 0, g.m); });
  for (const Stage& stage : {*found, poor}) {
    simt::forget_sites();
    simt::configure({.row = 0, .sm_count = 2});
    const auto got = result(p, [&](const Gemm& g) { simt::run_watched(stage, g); });
    bool signals = false;
    for (const auto& [kind, place] : simt::sites()) signals |= kind == simt::Sync::signal;
    const std::string name = stage.workspace ? "a stream_k with room" : "a stream_k without room";
    expect(same_bits(want, got), name + " has the chain's bits");
    expect(signals == (stage.workspace != nullptr), name + " hands over as it may");
  }
  simt::configure({});
}

// Every tile exactly once, for every grid up to 40 x 40 tiles and groups from 1 to more than there
// are rows.
void test_swizzle() {
  for (int64_t tm = 1; tm <= 40; ++tm)
    for (int64_t tn = 1; tn <= 40; ++tn)
      for (int group : {1, 2, 3, 8, 64}) {
        std::vector<int> seen(static_cast<size_t>(tm * tn));
        for (uint32_t block = 0; block < tm * tn; ++block) {
          const TileCoord o = swizzled_tile(block, tm * 16 - 3, tn * 8 - 7, 16, 8, group);
          if (o.i % 16 || o.j % 8 || o.i / 16 >= tm || o.j / 8 >= tn) {
            expect(false, "swizzled_tile leaves the grid");
            return;
          }
          ++seen[static_cast<size_t>(o.i / 16 * tn + o.j / 8)];
        }
        bool once = true;
        for (int x : seen) once = once && x == 1;
        expect(once, "swizzled_tile covers " + std::to_string(tm) + "x" + std::to_string(tn) +
                         " by groups of " + std::to_string(group));
      }
}

// Every tile of every matrix of a batch once, whatever the number of blocks.
void test_batch_walk() {
  for (uint32_t tiles : {1u, 2u, 3u, 7u, 40u})
    for (uint32_t batch : {1u, 2u, 5u, 33u})
      for (uint32_t blocks = 1; blocks <= tiles * batch; ++blocks) {
        std::vector<int> seen(tiles * batch);
        bool inside = true;
        for (uint32_t block = 0; block < blocks; ++block)
          for (BatchWalk w(block, blocks, tiles); w.z < batch; w.next()) {
            inside = inside && w.tile < tiles;
            ++seen[w.z * tiles + w.tile % tiles];
          }
        bool once = inside;
        for (int x : seen) once = once && x == 1;
        expect(once, std::to_string(blocks) + " blocks cover " + std::to_string(batch) +
                         " matrices of " + std::to_string(tiles) + " tiles");
      }
}

// Every element of a view has a slot of its own among as many as there are, however far apart.
void test_slots() {
  const int64_t far = int64_t{1} << 40;
  for (const auto& axes : std::vector<std::vector<simt::Operand::Axis>>{
           {{35, 4}, {1, 33}}, {{far, 3}, {7, 5}}, {{1, 6}, {far, 2}, {40, 3}}, {{2, 9}, {0, 1}}}) {
    const simt::Operand d("D", reinterpret_cast<const void*>(uintptr_t{64}), true, axes);
    std::vector<int64_t> offsets{0};
    for (const auto& axis : axes) {
      const std::vector<int64_t> lines = offsets;
      for (int64_t i = 1; i < axis.size; ++i)
        for (int64_t line : lines) offsets.push_back(line + i * axis.stride);
    }
    std::vector<int> seen(d.uses.size());
    for (int64_t offset : offsets) {
      const char* p = reinterpret_cast<const char*>(uintptr_t{64}) + 4 * offset;
      expect(d.element(p) == offset, "an element is found");
      ++seen.at(d.slot(offset));
    }
    expect(seen == std::vector<int>(offsets.size(), 1), "a slot for each element");
  }
}

void test_tiles() {
  const Tile good{
      .BM = 128, .BN = 128, .BK = 8, .TM = 8, .TN = 8, .width = 4, .buffers = 1, .a_rows = 8};
  expect(good.legal() && good.threads() == 256 && good.smem() == 8192, "a legal tile");
  const auto broken = [&](auto change) {
    Tile t = good;
    change(t);
    return !t.legal();
  };
  expect(broken([](Tile& t) { t.TM = 7; }), "TM must divide BM");
  expect(broken([](Tile& t) { t.BM = 0; }), "sizes are positive");
  expect(broken([](Tile& t) { t.TM = t.TN = 1; }), "1024 threads at most");
  expect(broken([](Tile& t) { t.width = 2; }), "accesses of 1 or 4");
  expect(broken([](Tile& t) { t.BK = 4; }), "equal shares");
  expect(broken([](Tile& t) { t.buffers = 40; }), "227 KiB");
  expect(broken([](Tile& t) { t.min_blocks = 9; }), "2048 threads an SM");
  expect(broken([](Tile& t) { t.WM = 48; }), "whole warp tiles");
  for (const Stage& s : stages(Flavour::host))
    for (const Tile& t : s.tiles) expect(t.legal(), s.name + " has legal tiles");
}

void test_tensor_maps() {
  alignas(16) static const char data[32] = {};
  const TensorShape good{
      .data = data, .size = {100, 7, 1}, .stride = {208, 16}, .box = {64, 256, 1}};
  const auto refused = [&](auto change, const char* why) {
    TensorShape s = good;
    change(s);
    expect(throws([&] { make_tensor_map(s); }, why), std::string("a tensor map ") + why);
  };
  expect(make_tensor_map(good).data == data, "a tensor map");
  refused([](TensorShape& s) { s.data = data + 8; }, "of data that is not aligned");
  refused([](TensorShape& s) { s.size[1] = 0; }, "with a size");
  refused([](TensorShape& s) { s.stride[0] = 200; }, "with a stride");
  refused([](TensorShape& s) { s.stride[1] = uint64_t{1} << 40; }, "with a stride");
  refused([](TensorShape& s) { s.box[1] = 257; }, "with a box");
  refused([](TensorShape& s) { s.box[2] = 0; }, "with a box");
  refused([](TensorShape& s) { s.box[0] = 36; }, "with rows of a box");
  refused([](TensorShape& s) { s.swizzle = 64; }, "that swizzles rows of other than");
  refused([](TensorShape& s) { s.box[0] = 16, s.swizzle = 32; },
          "that swizzles rows of other than");
}

// A stage of several rows: each can be run, the choice is among them, and auto's choice is the same
// row.
struct Rows {
  static constexpr Tile kTiles[] = {
      {.BM = 64, .BN = 64, .BK = 1, .TM = 8, .TN = 8, .buffers = 0, .min_blocks = 8, .rate = 45.f},
      {.BM = 16, .BN = 16, .BK = 1, .TM = 2, .TN = 2, .buffers = 0, .min_blocks = 8, .rate = 20.f},
  };
  static inline int ran = -1;
  template <int kRow>
  static __global__ void tile(const Gemm g) {
    constexpr Tile t = kTiles[kRow];
    const TileCoord o = swizzled_tile<t>(blockIdx.x, g);
    for (int e = static_cast<int>(threadIdx.x); e < t.BM * t.BN; e += t.threads()) {
      const int64_t i = o.i + e / t.BN, j = o.j + e % t.BN;
      if (i >= g.m || j >= g.n) continue;
      float acc = 0.f;
      for (int64_t k = 0; k < g.k; ++k) acc = fmaf(g.a(i, k), g.b(k, j), acc);
      g.store(i, j, acc);
    }
  }
  static void run(const Gemm& g, const Context& context) {
    ran = context.row;
    const Tile& t = kTiles[context.row];
    launch_tiles(context.row ? tile<1> : tile<0>, g, t, dim3(t.threads()), context);
  }
  static Stage stage() {
    Stage s;
    s.name = "two_rows";
    s.tiles.assign(std::begin(kTiles), std::end(kTiles));
    s.run = run;
    return s;
  }
};

void test_rows() {
  const std::vector<Stage> all = {Rows::stage()};
  const Selector selector(all);
  Gemm g;
  g.m = g.n = g.k = 4096;
  const Device device{.sm = 90, .sm_count = 132};
  expect(selector.row(all[0], g, device) == 0, "the row of the higher rate for a large problem");
  expect(selector.weigh(g, device, true).candidates.size() == 2, "a candidate a row");
  g.m = g.n = 128;
  expect(selector.row(all[0], g, device) == 1, "the row that fills the device for a small one");
  expect(selector.pick(g, device, true).row == 1, "auto takes the same row");

  Problem p = problem(70, 67, 9, {false, true, 1}, 1.f, .5f);
  const auto want = result(p, [](const Gemm& x) { chain(x, 0, x.m); });
  for (int row : {0, 1}) {
    simt::configure({.row = row});
    const auto got = result(p, [&](const Gemm& x) { simt::run_watched(all[0], x); });
    expect(Rows::ran == row && same_bits(want, got), "row " + std::to_string(row) + " by force");
  }
  simt::configure({.row = 2});
  expect(throws([&] { simt::run_watched(all[0], p.g); }, "two_rows: its tile table has 2 row(s)"),
         "a row that is not there");
  std::vector<Stage> large = {Rows::stage()};
  large[0].tiles[0].buffers = 256;  // more than the 99 KiB of a block on sm_86
  simt::configure({.row = 0});
  expect(throws([&] { forced_row(large[0], {.sm = 86, .sm_count = 84}); },
                "bytes of shared memory a block, this device has 101376"),
         "a row that the device has no room for");
  expect(forced_row(large[0], {}) == 0, "the emulator has room for all");
  simt::configure({});
  simt::run_watched(all[0], p.g);
  expect(Rows::ran == selector.row(all[0], p.g, {}), "the emulator takes the chosen row");
}

// What later rungs of the ladder need of the registry: a workspace, two launches, an architecture,
// dynamic shared memory.
__global__ void partial_sums(const Gemm g, float* sums, int parts) {
  XGEMM_SHARED_DYNAMIC(S, float[32]);
  const int64_t i = blockIdx.x, j = blockIdx.y;
  S[threadIdx.x] = 0.f;
  for (int64_t k = threadIdx.x; k < g.k; k += parts)
    S[threadIdx.x] = fmaf(g.a(i, k), g.b(k, j), S[threadIdx.x]);
  __syncthreads();
  sums[(i * g.n + j) * parts + threadIdx.x] = S[threadIdx.x];
}
__global__ void add_sums(const Gemm g, const float* sums, int parts) {
  const int64_t i = blockIdx.x, j = blockIdx.y;
  float acc = 0.f;
  for (int p = 0; p < parts; ++p) acc += sums[(i * g.n + j) * parts + p];
  g.store(i, j, acc);
}
constexpr int kParts = 32;
void run_two_launches(const Gemm& g, const Context& context) {
  auto* sums = static_cast<float*>(context.workspace);
  const dim3 grid(static_cast<unsigned>(g.m), static_cast<unsigned>(g.n));
  launch(partial_sums, {.grid = grid, .block = dim3(kParts), .smem = kParts * sizeof(float)},
         context, Gemm(g), sums, kParts);
  launch(add_sums, {.grid = grid, .block = dim3(1)}, context, Gemm(g),
         static_cast<const float*>(sums), kParts);
}

std::string auto_stage(const std::vector<Stage>& all, const Gemm& g, int sm, int sm_count,
                       bool strict = false) {
  return Selector(all).pick(g, {.sm = sm, .sm_count = sm_count}, strict).stage->name;
}

void test_registry() {
  Stage s;
  s.name = "two_launches";
  s.min_sm = 90;
  s.max_sm = 90;
  s.strict = false;
  s.tiles = {{.BM = 32, .BN = 32, .BK = 1, .buffers = 0, .rate = 1000.f}};
  s.can_implement = [](const Gemm& g) -> Status { return g.k % 2 ? "needs an even K" : nullptr; };
  s.workspace = [](const Gemm& g, const Context&) {
    return static_cast<size_t>(g.m * g.n) * kParts * sizeof(float);
  };
  s.run = run_two_launches;
  Problem p = problem(3, 5, 64, {false, false, 0}, 1.f, 0.f);
  const auto want = result(p, [](const Gemm& g) { chain(g, 0, g.m); });
  const auto got = result(p, [&](const Gemm& g) { simt::run_watched(s, g); });
  for (size_t i = 0; i < want.size(); ++i)
    expect(std::fabs(want[i] - got[i]) < 1e-4f, "two launches through a workspace");

  std::vector<Stage> all = stages(Flavour::host);
  all.push_back(s);
  Gemm g;
  g.m = g.n = 4096, g.k = 4096;
  expect(auto_stage(all, g, 90, 132) == "two_launches", "the fastest legal stage is chosen");
  expect(auto_stage(all, g, 90, 132, true) != "two_launches", "strict is respected");
  const auto with_room = [&](size_t bytes) {
    const Selector selector(all);
    const Device device{.sm = 90, .sm_count = 132};
    const Choice x = selector.weigh(g, device, false, bytes);
    expect(x.pick.stage == selector.pick(g, device, false, bytes).stage, "weigh picks the same");
    expect(x.candidates.back().why_not.empty() == (x.pick.stage->name == "two_launches"),
           "and says whether there is room");
    return x.pick.stage->name;
  };
  const size_t needed = workspace_of(s, g, {});
  expect(needed == size_t{4096} * 4096 * kParts * sizeof(float), "what the stage asks for");
  expect(with_room(needed) == "two_launches", "a workspace that there is room for");
  expect(with_room(needed - 1) != "two_launches", "a workspace that there is no room for");
  const auto without = std::find_if(
      all.begin(), all.end(), [none = with_room(0)](const Stage& x) { return x.name == none; });
  expect(without != all.end() && workspace_of(*without, g, {}) == 0, "stages that need none");
  expect(auto_stage(all, g, 80, 108) != "two_launches", "min_sm is respected");
  expect(auto_stage(all, g, 100, 148) != "two_launches", "max_sm is respected");
  g.k = 4095;
  expect(auto_stage(all, g, 90, 132) != "two_launches", "a refusal is respected");
  expect(
      throws([&] { require(s, g, {.sm = 90, .sm_count = 132}); }, "two_launches: needs an even K"),
      "a refusal says why");
  expect(throws([&] { require(s, g, {.sm = 80, .sm_count = 108}); }, "needs compute capability 90"),
         "min_sm says why");
  const size_t before = stages(Flavour::host).size();
  add_stage(Flavour::host, stages(Flavour::host)[0]);
  expect(stages(Flavour::host).size() == before && !stage_faults().empty() &&
             stage_faults().back().why == "another stage has its name",
         "a name twice is left out, and told");
}

// The project's own detectors; under the sanitizers each fault is run alone (tests/test_native.py).
void test_detectors() {
  for (const auto& [name, faulty] : simt::probes())
    expect(throws([&] { simt::probe(name); }, "xgemm simt:") == faulty, "probe " + name);
  // Several slices of K more than a stage has in flight.
  Problem many = problem(70, 131, 165, {false, true, 0}, 1.f, 0.f);
  // Whose launches of gemv and dot have no more blocks than there are multiprocessors: they take
  // turns.
  Problem few = problem(9, 131, 165, {false, true, 0}, 1.f, 0.f);
  for (const auto& [kind, place] : simt::sites()) {
    const std::string file = place.substr(0, place.find(':'));
    for (const Stage& s : stages(Flavour::host)) {
      if (s.file().substr(s.file().find('/') + 1) != file) continue;
      // Chains enough for two blocks of the first row; few tiles, cut among clusters; a row
      // that takes several launches.
      Problem& p = s.name == "gemv" || s.name == "dot" ? few : many;
      p.g.split_k_size = s.split_k ? 32 : 0;
      const bool first = s.split_k || s.name == "wgmma_fp16x3";
      const int row = s.name == "tma_gemv"       ? 2
                      : first                    ? 0
                      : s.name == "wgmma_narrow" ? 3
                                                 : simt::Settings{}.row;
      for (auto order : {simt::Order::forward, simt::Order::reverse, simt::Order::random}) {
        simt::configure({.order = order, .seed = 1, .skip = place, .row = row});
        const auto names = [&](const std::string& part) {
          return throws([&] { result(p, [&](const Gemm& g) { simt::run_watched(s, g); }); }, part);
        };
        // split_k's blocks read each other's shared memory in a header.
        const bool found = names(file) || (s.name == "split_k" && names("cluster_reduce.h:"));
        expect(found, std::string(simt::kSync[static_cast<int>(kind)]) + " " + place + " deleted");
      }
    }
  }
  simt::configure({});
}

// Runs a test, and says what it came to.
void test(const char* name, void (*run)()) {
  const int before = checks;
  const auto begin = std::chrono::steady_clock::now();
  run();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  std::printf("%-24s %7d checks %7.1f s\n", name, checks - before, seconds.count());
  std::fflush(stdout);
}

int run_all() {
  if (!kTsan) {   // pure functions of one thread
    test("rasterization", test_swizzle);
    test("batch walk", test_batch_walk);
    test("slots of a view", test_slots);
    test("tiles", test_tiles);
    test("tensor maps", test_tensor_maps);
    test("choice", test_select);
    test("decomposition", test_decompose);
    test("stream-K", test_stream_k);
    test("parts of K", test_k_parts);
    test("aligned copies", test_aligned_copies);
    test("file of tuned problems", test_tuned_file);
    test("rows of tuned problems", test_rows);
  }
  test("registry", test_registry);
  test("stages", test_stages);
  if (!kTsan && !kAsan) test("detectors", test_detectors);
  test("stream-K without room", test_stream_k_without_room);
  std::printf("%d passed, %d failed\n", checks - failures, failures);
  return failures != 0;
}

}  // namespace
}  // namespace xgemm

int main(int argc, char** argv) {
  if (argc == 3 && !std::strcmp(argv[1], "probe")) {
    try {
      xgemm::simt::probe(argv[2]);
      return 0;
    } catch (const std::exception& e) {
      std::printf("%s\n", e.what());
      std::fflush(stdout);
      std::_Exit(1);   // what the frames of abandoned threads own is lost, and no leak
    }
  }
  return xgemm::run_all();
}
