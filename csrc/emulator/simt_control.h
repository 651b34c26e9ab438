// What tests and users may set and ask about the emulator.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "xgemm/core/attention.h"
#include "xgemm/core/stage.h"

namespace xgemm::simt {

enum class Order { forward, reverse, random };

struct Settings {
  Order order = Order::random;   // of threads within a phase, and of blocks
  uint64_t seed = 0;             // of the random order
  std::string skip;  // "05_smem_tiled.cu:31": what orders threads or copies there does
                     // nothing, as if it had been deleted
  int row = -1;  // Overrides::row
  int sm_count = 132;  // of the device that the emulator stands for
  int64_t split_k_size = -1;  // Overrides::split_k_size
  int64_t slab_bytes = -1;  // Overrides::slab_bytes
};

Settings settings();
void configure(const Settings&);

// What orders the accesses of threads, copies, wgmmas and blocks, and can be left out for a test.
// An expect is left out with its arrival.
enum class Sync : uint8_t {
  barrier,
  warp_barrier,
  commit,
  wait,
  named_barrier,
  cluster_barrier,
  mbarrier_expect,
  mbarrier_arrival,
  mbarrier_wait,
  wgmma_fence,
  wgmma_register_fence,
  wgmma_commit,
  wgmma_wait,
  signal,
  signal_wait,
  launch_wait
};
constexpr const char* kSync[] = {"barrier",
                                 "warp barrier",
                                 "commit",
                                 "wait",
                                 "named barrier",
                                 "cluster barrier",
                                 "mbarrier expect",
                                 "mbarrier arrival",
                                 "mbarrier wait",
                                 "wgmma fence",
                                 "wgmma register fence",
                                 "wgmma commit",
                                 "wgmma wait",
                                 "signal",
                                 "signal wait",
                                 "launch wait"};
struct SyncSite {
  Sync kind;
  std::string place;  // "file.cu:line"
};
// All that have run since the library was loaded, or since they were forgotten.
std::vector<SyncSite> sites();
void forget_sites();
// Their places since the library was loaded, forgotten or not: what Settings::skip may be.
std::vector<std::string> known_places();

// Runs a stage of the emulator with every access of its kernels watched: anything but the
// operands and the workspace is out of bounds. Throws std::runtime_error for what the kernel does
// wrong. `packed_b` and what follows: as in Context.
void run_watched(const Stage& stage, const Gemm& g, void* packed_b = nullptr,
                 float* row_sums = nullptr, const Groups& groups = {},
                 const HalfOperand& half_a = {}, bool invariant = false);
// The same for Stage::pack.
void pack_watched(const Stage& stage, const Gemm& g, void* packed_b);
// The same for a pass of attention, on the emulator's kernels.
void attend_watched(const Attention& a, bool backward);

// The line of an instruction: in the stage, and where that calls it, the line of the header that it
// is written in.
struct Place {
  std::string at;  // "15_vec4_128x128.cu:57"
  std::string via;  // "gmem.h:13", or empty
  std::vector<std::string> frames;  // all lines from that of the instruction to the stage's
};

// One event of a thread, in whole numbers, as it goes to Python.
struct TraceRow {
  int64_t launch = 0;  // of Trace::launches
  int64_t what = 0;  // of kWhat
  int64_t thread = 0;  // of the block
  int64_t phase = 0;  // barriers that the block has passed
  int64_t site = 0;  // of Trace::places
  int64_t bytes = 0;
  int64_t operand = 0;  // 'A', 'B', 'D', 'W' (the workspace) or 0 for none
  int64_t i = -1, j = -1;  // its element, the first one of a vector
  int64_t array = -1;  // of the launch's arrays
  int64_t offset = -1;  // in it, in bytes
};

struct SharedArray {
  std::string name;
  size_t offset, bytes;  // offset among the block's arrays, as they lie on a GPU
};

// A box that TMA moves: rows of `box[0]` elements, from `c` on, axis 0 first. What is outside of
// `size` is zero.
struct TraceBox {
  int64_t operand = 0;  // as in TraceRow; 0: nothing of it is inside
  int64_t base = 0;  // bytes from the operand's first element to the tensor's
  int64_t c[3], size[3], box[3], stride[2];  // strides in bytes
  int64_t element = 0, swizzle = 0;  // bytes
  int64_t array = -1, offset = -1;  // of its mbarrier
  int64_t mask = 0;  // blocks of the cluster that it goes to; 0: the one that asks
  bool operator==(const TraceBox&) const = default;
};

// What a wgmma multiplies: 64 rows of A, in shared memory or registers, by `columns` of B.
struct TraceProduct {
  // Bytes from the start of the block's memory to A and B, -1 for registers; between groups of 8
  // rows; of a row with its swizzle.
  int64_t a = -1, a_group = 0, a_row = 0, b = 0, b_group = 0, b_row = 0;
  int64_t columns = 0, tile = 0, accumulate = 0;
  bool operator==(const TraceProduct&) const = default;
};

struct Trace {
  struct Launch {
    unsigned grid[3], threads[3];
    std::vector<SharedArray> arrays;
  };
  std::vector<Launch> launches;
  std::vector<Place> places;
  std::vector<TraceRow> rows;  // by launch, then by thread, then in the order of its program
  std::vector<TraceBox> boxes;
  std::vector<TraceProduct> products;
};

// What one block of a stage does on an m x n x k problem; `asynchronous`: with what its threads
// start and wait for. Throws std::invalid_argument for a stage, a size or a block that there is
// not.
Trace trace(const std::string& stage, int64_t m, int64_t n, int64_t k, bool trans_a, bool trans_b,
            int64_t block, bool asynchronous);

// What the warps of a whole grid ask of memory at one line: traffic.cpp has the model.
struct TrafficRow {
  Place place;
  std::string what;  // "shared load", "shared store", "global load", "global store"
  int64_t requests = 0;  // warp instructions
  int64_t bytes = 0;  // asked for by their lanes
  int64_t units = 0;  // shared: wavefronts; global: sectors of 32 bytes
  int64_t ideal = 0;  // the fewest that such requests can take
  int64_t worst = 0;  // shared: ways of the worst conflict; global: most sectors of a request
};
std::vector<TrafficRow> traffic(const std::string& stage, int64_t m, int64_t n, int64_t k,
                                bool trans_a, bool trans_b);

// Numbers of 16 bits, bf16 or fp16, as `to_half` and `from_half` of platform_host.h have them.
std::vector<uint16_t> to_halves(bool bf16, const std::vector<float>& x);
std::vector<float> from_halves(bool bf16, const std::vector<uint16_t>& x);
// One step of the tensor core (tensor_core.h): acc[i][j] + the sum of a[i][k] * b[j][k] over 16 k.
// Throws std::invalid_argument when sizes do not match or b's rows are no multiple of 8.
std::vector<float> tensor_core_step(bool bf16, const std::vector<uint16_t>& a,
                                    const std::vector<uint16_t>& b, std::vector<float> acc);

// Runs one of the small kernels of emulator/probes*.cu. It throws when a planted fault is found, as
// it must be, and lets a right kernel pass.
void probe(const std::string& name);
struct ProbeName {
  std::string name;
  bool faulty;
};
std::vector<ProbeName> probes();

// One warp's accesses of `width` floats (1, 2 or 4): lane l loads the shared vector l / share *
// load, stores the shared vector l * store, and moves the global vector l * global, all operands
// beginning `first` floats too late; lanes from `lanes` on do nothing.
struct Strides {
  int width, share, load, store, global, first, lanes;
};
std::vector<TrafficRow> probe_traffic(const Strides& strides);

}  // namespace xgemm::simt
