// Fibers in place of CUDA threads: a thread runs as far as it can, then the next, in an order that
// changes from phase to phase. That is the most hostile legal schedule, which is the point.
#include "xgemm/host/simt_host.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <set>
#include <stdexcept>

#include "xgemm/host/block.h"
#include "xgemm/host/fiber.h"
#include "xgemm/host/simt_control.h"
#include "xgemm/select.h"

namespace xgemm::simt {

thread_local Block* running = nullptr;

namespace {

std::mutex control;
Settings current;
std::atomic<int> row_asked = -1;  // current.row, for every call of a stage
std::set<std::pair<std::string, int>> sites;

std::string base_name(const std::string& path) { return path.substr(path.find_last_of('/') + 1); }

// What lasts from launch to launch on one OS thread: stacks, the arena and its cells.
struct Machine {
  Block block;
  char* stacks = nullptr;
  size_t stack_count = 0;
  std::vector<Cell> cells = std::vector<Cell>(kArena / 4);
  void* scheduler_sp = nullptr;
  SanitizerContext sanitizer;
  uint64_t phase = 0;
  std::mt19937_64 random;
  const void* arguments = nullptr;
  void (*thread)(const void*) = nullptr;
  std::string skip;              // settings().skip_barrier
  struct Seen {
    Site site;
    bool skipped;
  };
  std::vector<Seen> seen;        // barriers of this launch

  Machine() {
    block.arena = static_cast<char*>(map(kArena));
    block.cells = cells.data();
  }
  ~Machine() {
    munmap(block.arena, kArena);
    if (stacks) munmap(stacks, stack_count * kStack);
  }
  static void* map(size_t bytes) {
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
      throw std::runtime_error("xgemm simt: no memory for the threads of a block");
    return p;
  }
  void grow(size_t threads) {
    if (threads <= stack_count) return;
    if (stacks) munmap(stacks, stack_count * kStack);
    stacks = static_cast<char*>(map(threads * kStack));
    stack_count = threads;
    block.stacks = stacks;
    block.stack_bytes = threads * kStack;
    // The lowest page of a stack is a guard: an overflow faults instead of running into a
    // neighbour's frames.
    for (size_t t = 0; t < threads; ++t) mprotect(stacks + t * kStack, 4096, PROT_NONE);
  }
};

Machine& machine() {
  static thread_local const std::unique_ptr<Machine> m = std::make_unique<Machine>();
  return *m;
}

void to_scheduler() {
  Machine& m = machine();
  Fiber& f = m.block.fibers[m.block.self];
  switch_to_scheduler(m.sanitizer, f, &m.scheduler_sp);
}

void fiber_main() {
  Machine& m = machine();
  enter_fiber(m.sanitizer);
  m.thread(m.arguments);
  m.block.quiet = true;   // the kernel is over
  Fiber& f = m.block.fibers[m.block.self];
  if (!f.open.empty() || !f.groups.empty())
    fail(thread_name(m.block.self) + " ends with a cp.async that it has not waited for");
  f.wait = Wait::finished;
  m.block.quiet = false;
  leave_fiber(m.sanitizer, f, &m.scheduler_sp);
}

void order(std::vector<unsigned>& items, Order how, std::mt19937_64& random) {
  if (how == Order::reverse) std::reverse(items.begin(), items.end());
  if (how == Order::random) std::shuffle(items.begin(), items.end(), random);
}

std::string waiting(const Block& b) {
  std::string text;
  std::vector<std::pair<std::string, unsigned>> groups;
  for (const Fiber& f : b.fibers) {
    const std::string at = f.wait == Wait::finished ? "have exited" : "wait at " + place(f.at);
    auto g =
        std::find_if(groups.begin(), groups.end(), [&](const auto& x) { return x.first == at; });
    if (g == groups.end()) groups.push_back({at, 1});
    else ++g->second;
  }
  for (const auto& [at, count] : groups)
    text += (text.empty() ? "" : ", ") + std::to_string(count) + " of " +
            std::to_string(b.threads) + " threads " + at;
  return text;
}

// All threads that can have stopped: either all wait at one barrier, or the block is in trouble.
void release(Block& b) {
  const Site first = b.fibers[0].at;
  for (const Fiber& f : b.fibers) {
    if (f.wait == Wait::finished) {
      b.error = "deadlock: threads of a block don't meet: " + waiting(b);
      return;
    }
    if (f.at.line != first.line || std::strcmp(f.at.file, first.file)) {
      b.error = "divergent barrier: " + waiting(b);
      return;
    }
  }
  for (Fiber& f : b.fibers) f.wait = Wait::nothing;
  b.phase = ++machine().phase;
}

void run_block(Machine& m, Order how) {
  Block& b = m.block;
  block_begins(m.sanitizer);
  b.arrays.clear();
  b.arena_used = 0;
  b.quiet = false;
  b.phase = b.first_phase = ++m.phase;
  for (unsigned t = 0; t < b.threads; ++t) {
    Fiber& f = b.fibers[t];
    f.wait = Wait::nothing;
    f.open.clear();
    f.groups.clear();
    f.stack = m.stacks + t * kStack;
    prepare_fiber(f, &fiber_main);
  }
  std::vector<unsigned> turn(b.threads);
  std::iota(turn.begin(), turn.end(), 0u);
  for (;;) {
    order(turn, how, m.random);
    bool finished = true;
    for (unsigned t : turn) {
      if (b.fibers[t].wait != Wait::nothing) continue;
      b.self = t;
      running = &b;
      switch_to_fiber(m.sanitizer, b.fibers[t], &m.scheduler_sp);
      running = nullptr;
      if (!b.error.empty()) return;
    }
    for (unsigned t : turn) finished = finished && b.fibers[t].wait == Wait::finished;
    if (finished) return;
    release(b);
    if (!b.error.empty()) return;
  }
}

void finish(Copy& c) {
  note_shared(c.smem, static_cast<size_t>(c.bytes), true, c.pc);
  std::memcpy(c.smem, c.gmem, static_cast<size_t>(c.source_bytes));
  std::memset(c.smem + c.source_bytes, 0, static_cast<size_t>(c.bytes - c.source_bytes));
}

dim3 unravel(unsigned i, dim3 d) { return {i % d.x, i / d.x % d.y, i / d.x / d.y}; }

std::vector<Operand> operands(const Gemm& g, const Context& context) {
  std::vector<Operand> all;
  all.emplace_back("A", g.a.data, false,
                   std::vector<Operand::Axis>{{g.a.bs, g.batch}, {g.a.rs, g.m}, {g.a.cs, g.k}});
  all.emplace_back("B", g.b.data, false,
                   std::vector<Operand::Axis>{{g.b.bs, g.batch}, {g.b.rs, g.k}, {g.b.cs, g.n}});
  if (g.beta != 0.f)
    all.emplace_back("C", g.c.data, false,
                     std::vector<Operand::Axis>{{g.c.bs, g.batch}, {g.c.rs, g.m}, {g.c.cs, g.n}});
  all.emplace_back("D", g.d.data, true,
                   std::vector<Operand::Axis>{{g.d.bs, g.batch}, {g.d.rs, g.m}, {g.d.cs, g.n}});
  const auto floats = static_cast<int64_t>(context.workspace_bytes / 4);
  if (floats)
    all.emplace_back("the workspace", context.workspace, true,
                     std::vector<Operand::Axis>{{1, floats}});
  return all;
}

}  // namespace

void fail(const std::string& what) {
  running->error = what;
  to_scheduler();
  __builtin_unreachable();   // the scheduler never resumes a block that has failed
}

dim3 thread_index() { return unravel(running->self, running->dims); }
dim3 block_index() { return running->index; }
dim3 block_dim() { return running->dims; }
dim3 grid_dim() { return running->grid; }

void barrier(const char* file, int line) {
  Machine& m = machine();
  m.block.quiet = true;
  auto seen = std::find_if(m.seen.begin(), m.seen.end(), [&](const auto& s) {
    return s.site.line == line && s.site.file == file;
  });
  if (seen == m.seen.end()) {
    std::lock_guard<std::mutex> lock(control);
    sites.emplace(base_name(file), line);
    seen = m.seen.insert(seen, {{file, line}, m.skip == place({file, line})});
  }
  m.block.quiet = false;
  if (seen->skipped) return;
  Fiber& f = m.block.fibers[m.block.self];
  f.wait = Wait::barrier;
  f.at = {file, line};
  barrier_arrive(m.sanitizer, m.block.phase);
  const uint64_t phase = m.block.phase;
  to_scheduler();
  barrier_leave(m.sanitizer, phase);
}

void* shared_array(const void* site, size_t bytes, const char* file, int line) {
  const Quiet quiet;
  Machine& m = machine();
  Block& b = m.block;
  for (const Array& a : b.arrays)
    if (a.site == site) return b.arena + a.offset;
  const size_t offset = b.arena_used + kZone;
  b.arena_used = (offset + bytes + 127) / 128 * 128;
  if (b.arena_used + kZone > kArena)
    fail("shared memory of a block is over " + std::to_string(kArena) + " bytes");
  b.arrays.push_back({site, {file, line}, offset, bytes});
  poison(b.arena + offset, bytes);
  for (size_t i = (offset - kZone) / 4; i < (b.arena_used + kZone) / 4; ++i)
    m.cells[i].inside = i >= offset / 4 && i < (offset + bytes + 3) / 4;
  poison_zones(b.arena + offset - kZone, kZone, b.arena + offset, bytes,
               b.arena + b.arena_used + kZone);
  return b.arena + offset;
}

void* dynamic_shared(size_t bytes, const char* file, int line) {
  static const char site = 0;
  if (bytes > running->dynamic_smem) {
    const Quiet quiet;
    fail("out of bounds: " + place({file, line}) + " uses " + std::to_string(bytes) +
         " bytes of dynamic shared memory, the launch gave " +
         std::to_string(running->dynamic_smem));
  }
  return shared_array(&site, running->dynamic_smem, file, line);
}

void expect_aligned(const void* p, size_t bytes, const char*, int) {
  if (!running || reinterpret_cast<uintptr_t>(p) % bytes == 0) return;
  const Quiet quiet;
  fail("misaligned: " + thread_name(running->self) + " moves " + std::to_string(bytes) +
       " bytes at an address that is " + std::to_string(reinterpret_cast<uintptr_t>(p) % bytes) +
       " past a multiple, at " + place(__builtin_return_address(0)));
}

void copy_issue(void* smem, const void* gmem, int bytes, int source_bytes, const char*, int) {
  const void* pc = __builtin_return_address(0);
  const Quiet quiet;
  if (reinterpret_cast<uintptr_t>(smem) % static_cast<size_t>(bytes) ||
      (source_bytes && reinterpret_cast<uintptr_t>(gmem) % static_cast<size_t>(bytes)))
    fail("misaligned: cp.async of " + std::to_string(bytes) + " bytes at " + place(pc));
  note_shared(static_cast<char*>(smem), static_cast<size_t>(bytes), true, pc);
  std::memset(smem, 0xff, static_cast<size_t>(bytes));
  running->fibers[running->self].open.push_back(
      {static_cast<char*>(smem), static_cast<const char*>(gmem), bytes, source_bytes, pc});
}

void copy_commit() {
  const Quiet quiet;
  Fiber& f = running->fibers[running->self];
  f.groups.push_back(std::move(f.open));
  f.open.clear();
}

void copy_wait(int groups_left) {
  const Quiet quiet;
  Fiber& f = running->fibers[running->self];
  while (f.groups.size() > static_cast<size_t>(groups_left)) {
    for (Copy& c : f.groups.front()) finish(c);
    f.groups.erase(f.groups.begin());
  }
}

void run_watched(const Stage& stage, const Gemm& g) {
  const Device device{};
  require(stage, g, device);
  Context context{.device = device, .row = forced_row(stage)};
  if (context.row < 0) context.row = Selector({&stage, 1}).row(stage, g, device);
  std::vector<char> workspace(stage.workspace ? stage.workspace(g, context) : 0);
  context.workspace = workspace.data();
  context.workspace_bytes = workspace.size();
  std::vector<Operand>& watched = machine().block.operands;
  watched = operands(g, context);
  try {
    stage.run(g, context);
  } catch (...) {
    watched.clear();
    throw;
  }
  watched.clear();
}

void run_grid(dim3 grid, dim3 dims, size_t smem, void (*thread)(const void*), const void* arguments,
              size_t argument_bytes) {
  if (running) throw std::logic_error("xgemm simt: a kernel launches a kernel");
  Machine& m = machine();
  const Settings s = settings();
  const unsigned threads = dims.x * dims.y * dims.z;
  if (threads == 0 || threads > 1024)
    throw std::invalid_argument("xgemm simt: a block has 1 to 1024 threads");
  m.grow(threads);
  m.block.fibers.resize(threads);
  m.block.grid = grid;
  m.block.dims = dims;
  m.block.threads = threads;
  m.block.error.clear();
  m.block.dynamic_smem = smem;
  m.block.arguments = static_cast<const char*>(arguments);
  m.block.argument_bytes = argument_bytes;
  m.seen.clear();
  for (Operand& o : m.block.operands) std::fill(o.owner.begin(), o.owner.end(), 0u);
  m.random.seed(s.seed);
  m.skip = s.skip_barrier;
  m.thread = thread;
  m.arguments = arguments;
  std::vector<unsigned> blocks(static_cast<size_t>(grid.x) * grid.y * grid.z);
  std::iota(blocks.begin(), blocks.end(), 0u);
  order(blocks, s.order, m.random);
  launch_begins(m.sanitizer);
  for (unsigned i : blocks) {
    m.block.linear = i;
    m.block.index = unravel(i, grid);
    run_block(m, s.order);
    if (!m.block.error.empty()) break;
  }
  launch_ends(m.sanitizer);
  if (m.block.error.empty()) return;
  abandon_fibers(m.sanitizer, m.stacks, m.stack_count * kStack);
  const dim3 at = m.block.index;
  throw std::runtime_error("xgemm simt: " + m.block.error + "; block (" + std::to_string(at.x) +
                           ", " + std::to_string(at.y) + ", " + std::to_string(at.z) + ")");
}

Settings settings() {
  std::lock_guard<std::mutex> lock(control);
  return current;
}

void configure(const Settings& s) {
  std::lock_guard<std::mutex> lock(control);
  current = s;
  row_asked = s.row;
}

int forced_row(const Stage& stage) {
  const int wanted = row_asked.load(std::memory_order_relaxed);
  if (wanted >= static_cast<int>(stage.tiles.size()))
    throw std::invalid_argument(stage.name + ": its tile table has " +
                                std::to_string(stage.tiles.size()) + " row(s), row " +
                                std::to_string(wanted) + " is asked for");
  return wanted;
}

std::vector<std::string> barriers() {
  std::lock_guard<std::mutex> lock(control);
  std::vector<std::string> all;
  for (const auto& [file, line] : sites) all.push_back(file + ":" + std::to_string(line));
  return all;
}

}  // namespace xgemm::simt
