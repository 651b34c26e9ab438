// What a stage is to everybody but itself, and the registry that makes a new stage one new file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "xgemm/core/gemm.h"
#include "xgemm/core/groups.h"
#include "xgemm/core/half_operand.h"
#include "xgemm/core/tile.h"

namespace xgemm {

enum class Flavour { host, cuda };

// The processor a stage is about to run on. The emulator is described by the same struct, so
// that every choice that depends on it can be made, printed and tested with no GPU.
struct Device {
  int sm = 0;         // compute capability, 90 for an H200; 0 for the emulator
  int sm_count = 1;
};

// An operand's limbs of more bytes are made slab by slab (emulation/slabs.h). On an H100 products
// of 4 to 5 ms take 2 to 5% longer so, and up to 8% in slabs of half as many bytes.
constexpr size_t kSlabBytes = size_t{512} << 20;

// What a launch is given besides the problem: which tile of the stage's table to run (select.h),
// and a workspace of the size that Stage::workspace asked for.
struct Context {
  Device device;
  int row = 0;                 // of Stage::tiles
  void* stream = nullptr;      // cudaStream_t
  void* workspace = nullptr;
  size_t workspace_bytes = 0;
  size_t slab_bytes = kSlabBytes;  // of the larger operand's limbs, at a time
  void* packed_b = nullptr;  // what Stage::pack has made of B, if it has
  float* row_sums = nullptr;  // of A's rows over K, m of them: where they go, if they are wanted
  Groups groups;  // of a stage that takes them: the problem is theirs
  HalfOperand half_a;  // of a stage that takes it: A, in place of the problem's
  bool invariant = false;  // of a stage with invariant_row: a row's bits are to rest on it alone
  uint32_t* recomputed = nullptr;  // on the device: a count of units made anew, if it is wanted
};

// What can_implement gives: success, or why not, in words that outlive it.
struct Status {
  const char* why_not = nullptr;
  Status(const char* why_not) : why_not(why_not) {}
  explicit operator bool() const { return !why_not; }
};

struct Stage {
  std::string name;            // torch.ops.xgemm.<name>
  // Its number in the ladder, from 1. 0: it is for problems of some shapes, and no rung.
  int rung = 0;
  std::string idea;
  std::string source;          // the systems that it comes from
  std::vector<Tile> tiles;
  int min_sm = 0;              // least compute capability, and ...
  int max_sm = 0;  // ... the greatest, for code of one architecture family; 0: no limit
  // Computes the k-ordered fmaf chain, bit for bit. The others' bits are a function of the problem
  // and, where they share out work among multiprocessors, of how many there are; never of time.
  bool strict = true;
  // Its chains are those of Gemm::split_k_size, and not K long.
  bool split_k = false;
  // ... and it keeps to Gemm::match_single_chain_overflow.
  bool matches_single_chain_overflow = false;
  // As many threads share an element's K as team_of says.
  bool teams = false;
  // Whether `auto` considers it. False for rungs that were the fastest nowhere: it then takes one
  // only where nothing else can run.
  bool auto_choice = true;
  // It certifies results by units of D of so many rows, each as wide as its tile, and makes those
  // anew of which one is uncertain; 0: there are no such units.
  int unit_rows = 0;
  // What stands for the products of floats in this problem, in words. Null: they do themselves.
  const char* (*scheme)(const Gemm&, const Context&) = nullptr;

  // Success, or why this problem cannot be taken: an alignment, a stride. Optional.
  Status (*can_implement)(const Gemm&) = nullptr;
  // Whether this tile sees the problem from the other side: rows of D as its columns. Optional.
  bool (*turns)(const Gemm&, const Tile&) = nullptr;
  // Bytes of workspace, asked for before the launch: of the context, all but it is known.
  // Optional.
  size_t (*workspace)(const Gemm&, const Context&) = nullptr;
  // For a B that does not change: enqueues the launches that make of it what `run` would make in
  // every call, in so many bytes at the context's packed_b, which hold zeros. It takes a problem
  // with m = 0 and batch = 1, and a workspace, as `run` does. All stages that pack share one
  // format. Optional.
  size_t (*packed_bytes)(const Gemm&) = nullptr;
  void (*pack)(const Gemm&, const Context&) = nullptr;
  // Whether `run` takes the context's groups, with beta = 0 and no activation.
  bool takes_groups = false;
  // Whether `run` takes an A of 16-bit floats, with batch = 1 and no activation.
  bool takes_half_a = false;
  // Of a stage that can make a row of D with bits that rest on that row of A, B, K and N, and not
  // on M, the batch or other rows: which tile suits such a product. Null: it cannot.
  int (*invariant_row)(const Gemm&, const Device&) = nullptr;
  // Whether `run` writes the context's row_sums, each the sum of a tree, for it reads A once
  // anyway. Optional.
  bool (*sums_rows)(const Gemm&) = nullptr;
  // Enqueues the stage's launches, however many, on the context's stream. Called with m, n and
  // batch all > 0. Register sets it.
  void (*run)(const Gemm&, const Context&) = nullptr;
  // The operator, as torch's dispatcher calls it: a function that is not told of which operator it
  // is, so that each stage has its own. Register sets it.
  void (*boxed)(uint64_t* stack, uint64_t inputs, uint64_t outputs) = nullptr;

  // Its file below stages/: "ladder/05_smem_tiled.cu", "shapes/gemv.cu".
  std::string file() const;
};

// All stages of one flavour: the ladder by rung, then the others by name.
const std::vector<Stage>& stages(Flavour flavour);
const Stage* find_stage(Flavour flavour, const std::string& name);

// Bytes of workspace for the context's device, row and packed_b.
size_t workspace_of(const Stage& stage, const Gemm& g, const Context& context);

// How many units the result has, if it comes from this row of the stage; 0 where there are none.
int64_t units_of(const Stage& stage, int row, const Gemm& g);

// Why the stage cannot run this problem there, or an empty string ...
std::string why_not(const Stage& stage, const Gemm& g, const Device& device);
// ... only whether it can, without words or allocations ...
bool can_implement(const Stage& stage, const Gemm& g, const Device& device);
// ... or that as std::invalid_argument.
void require(const Stage& stage, const Gemm& g, const Device& device);

// What a stage's operator does with the stack of its arguments; the binding sets it.
using OperatorBody = void (*)(const std::string& stage, uint64_t* stack);
extern OperatorBody operator_body;

// Called once when the library is loaded and all stages are registered; the binding sets it, by an
// initializer of its own.
extern void (*when_loaded)();

// Takes a stage into the registry. It does not throw, for it is called while the library is loaded:
// a stage that cannot be registered is left out, and is a fault.
void add_stage(Flavour flavour, Stage stage) noexcept;

// A stage file ends with one static object of this type, whose argument is the file's `run`: the
// type is the stage's own then, and with it the function that is its operator.
template <void (*kRun)(const Gemm&, const Context&)>
struct Register {
  Register(Flavour flavour, Stage stage) noexcept {
    name = new std::string(stage.name);  // for the process's life
    stage.run = kRun;
    stage.boxed = boxed;
    add_stage(flavour, std::move(stage));
  }

 private:
  static inline const std::string* name = nullptr;
  static void boxed(uint64_t* stack, uint64_t, uint64_t) { operator_body(*name, stack); }
};

struct StageFault {
  Flavour flavour;
  std::string name;
  int rung;
  std::string why;
};
// The stages that were left out. Of two that share a name or a rung it is the later one in the
// order of `stages`, in whichever order they are registered.
const std::vector<StageFault>& stage_faults();
const StageFault* find_fault(Flavour flavour, const std::string& name);

}  // namespace xgemm
