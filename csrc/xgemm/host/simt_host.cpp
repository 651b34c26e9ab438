// Fibers in place of CUDA threads: a thread runs as far as it can, then the next, in an order that
// changes from phase to phase. That is the most hostile legal schedule, which is the point.
#include "xgemm/host/simt_host.h"

#include <algorithm>
#include <memory>
#include <numeric>

#include "xgemm/host/machine.h"
#include "xgemm/host/simt_control.h"

namespace xgemm::simt {

thread_local Block* running = nullptr;

namespace {

const Copy* unfinished(const Fiber& f) {
  for (const auto& group : f.groups)
    if (!group.empty()) return &group.front();
  return f.open.empty() ? nullptr : &f.open.front();
}

void fiber_main() {
  Machine& m = machine();
  enter_fiber(m.sanitizer);
  m.thread(m.arguments);
  m.block.quiet = true;   // the kernel is over
  Fiber& f = m.block.fibers[m.block.self];
  // A group without copies, as the end of a pipeline commits them, may be left behind.
  if (const Copy* copy = unfinished(f))
    fail("unfinished copy: " + thread_name(m.block.self) +
         " ends without a wait for its cp.async at " + place(copy->pc));
  f.wait = Wait::finished;
  m.block.quiet = false;
  leave_fiber(m.sanitizer, f, &m.scheduler_sp);
}

void order(std::vector<unsigned>& items, Order how, std::mt19937_64& random) {
  if (how == Order::reverse) std::reverse(items.begin(), items.end());
  if (how == Order::random) std::shuffle(items.begin(), items.end(), random);
}

std::string where(const Fiber& f) {
  return (f.wait == Wait::warp ? std::string("in ") + f.call.function + " " : "") + "at " +
         place(f.at);
}

std::string waiting(const Block& b) {
  std::string text;
  std::vector<std::pair<std::string, unsigned>> groups;
  for (const Fiber& f : b.fibers) {
    const std::string at = f.wait == Wait::finished ? "have exited" : "wait " + where(f);
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

// Of a thread that waits in a warp function: those who do not come.
std::string missing(const Block& b, unsigned thread) {
  constexpr int kNamed = 4;
  const WarpCall& call = b.fibers[thread].call;
  const unsigned first = thread / 32 * 32;
  std::string text;
  int count = 0;
  for (unsigned lane = 0; lane < 32; ++lane) {
    if (!(call.mask >> lane & 1)) continue;
    const Fiber& f = b.fibers[first + lane];
    if (f.wait == Wait::warp && f.call.mask == call.mask) continue;
    if (count++ >= kNamed) continue;
    text += (text.empty() ? "lane " : ", lane ") + std::to_string(lane) +
            (f.wait == Wait::finished ? " has exited" : " waits " + where(f));
  }
  return text + (count > kNamed ? " and " + std::to_string(count - kNamed) + " more" : "");
}

// All threads that can have stopped: either all wait at one barrier, or the block is in trouble.
void release(Block& b) {
  for (unsigned t = 0; t < b.threads; ++t)
    if (b.fibers[t].wait == Wait::warp) {
      b.error = "deadlock: lanes of a warp don't meet: " + waiting(b) + "; in warp " +
                std::to_string(t / 32) + " " + missing(b, t);
      return;
    }
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
  b.recording = m.recorder && m.recorder->wants(b) ? m.recorder : nullptr;
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
    do {
      m.released = false;
      order(turn, how, m.random);
      for (unsigned t : turn) {
        if (b.fibers[t].wait != Wait::nothing) continue;
        b.self = t;
        running = &b;
        switch_to_fiber(m.sanitizer, b.fibers[t], &m.scheduler_sp);
        running = nullptr;
        if (!b.error.empty()) return;
      }
    } while (m.released);   // lanes that have had their turn may go on
    bool finished = true;
    for (unsigned t : turn) finished = finished && b.fibers[t].wait == Wait::finished;
    if (finished) break;
    release(b);
    if (!b.error.empty()) return;
  }
  if (b.recording) b.recording->block_ends(b);
}

dim3 unravel(unsigned i, dim3 d) { return {i % d.x, i / d.x % d.y, i / d.x / d.y}; }

}  // namespace

Machine& machine() {
  static thread_local const std::unique_ptr<Machine> m = std::make_unique<Machine>();
  return *m;
}

void to_scheduler() {
  Machine& m = machine();
  Fiber& f = m.block.fibers[m.block.self];
  switch_to_scheduler(m.sanitizer, f, &m.scheduler_sp);
}

void fail(const std::string& what) {
  running->error = what;
  to_scheduler();
  __builtin_unreachable();   // the scheduler never resumes a block that has failed
}

dim3 thread_index() { return unravel(running->self, running->dims); }
dim3 block_index() { return running->index; }
dim3 block_dim() { return running->dims; }
dim3 grid_dim() { return running->grid; }

bool skips(Sync kind, const Site& site) {
  Machine& m = machine();
  for (const Machine::Seen& s : m.seen)
    if (s.kind == kind && s.site.line == site.line && s.site.file == site.file) return s.skipped;
  add_site(kind, site);
  m.seen.push_back({kind, site, m.skip == place(site)});
  return m.seen.back().skipped;
}

void barrier(Site at) {
  Machine& m = machine();
  {
    const Quiet quiet;
    if (skips(Sync::barrier, at)) return;
  }
  record({.what = What::barrier, .at = at});
  Fiber& f = m.block.fibers[m.block.self];
  f.wait = Wait::barrier;
  f.at = at;
  barrier_arrive(m.sanitizer, m.block.phase);
  const uint64_t phase = m.block.phase;
  to_scheduler();
  barrier_leave(m.sanitizer, phase);
}

void run_grid(dim3 grid, dim3 dims, size_t smem, void (*thread)(const void*), const void* arguments,
              size_t argument_bytes) {
  if (running) throw std::logic_error("xgemm simt: a kernel launches a kernel");
  Machine& m = machine();
  // An order that is always the same for whoever looks at what happens in it.
  const Settings s = m.recorder ? Settings{.order = Order::forward, .skip = ""} : settings();
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
  m.skip = s.skip;
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
  if (!m.block.error.empty()) abandon_fibers(m.sanitizer, m.block);
  launch_ends(m.sanitizer);
  if (m.block.error.empty()) return;
  const dim3 at = m.block.index;
  throw std::runtime_error("xgemm simt: " + m.block.error + "; block (" + std::to_string(at.x) +
                           ", " + std::to_string(at.y) + ", " + std::to_string(at.z) + ")");
}

}  // namespace xgemm::simt
