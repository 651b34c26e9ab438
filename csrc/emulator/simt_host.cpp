// Fibers in place of CUDA threads: a thread runs as far as it can, then the next, in an order that
// changes from phase to phase. That is the most hostile legal schedule, which is the point.
#include <algorithm>
#include <memory>
#include <numeric>

#include "emulator/machine.h"
#include "emulator/simt_control.h"
#include "xgemm/device/platform_host.h"

namespace xgemm::simt {

constinit thread_local Block* running = nullptr;
constinit thread_local Machine* own_machine = nullptr;

namespace {

const Copy* unfinished(const Fiber& f) {
  for (const auto& group : f.groups)
    if (!group.empty()) return &group.front();
  return f.open.empty() ? nullptr : &f.open.front();
}

const Wgmma* unfinished_wgmma(const Fiber& f) {
  for (const auto& group : f.wgmma_groups)
    if (!group.empty()) return &group.front();
  return f.wgmma_open.empty() ? nullptr : &f.wgmma_open.front();
}

void fiber_main() {
  Machine& m = machine();
  enter_fiber(m.sanitizer);
  m.thread(m.arguments);
  Block& b = *running;
  b.quiet = true;   // the kernel is over
  Fiber& f = b.fibers[b.self];
  // A group without copies, as the end of a pipeline commits them, may be left behind.
  if (const Copy* copy = unfinished(f))
    fail("unfinished copy: " + thread_name(b.self) + " ends without a wait for its cp.async at " +
         place(copy->pc));
  if (const Wgmma* w = unfinished_wgmma(f))
    fail("unfinished wgmma: " + thread_name(b.self) + " ends without a wait for its wgmma at " +
         place(w->at));
  if (++b.finished == b.threads) expect_nothing_on_its_way();
  f.wait = Wait::finished;
  b.quiet = false;
  leave_fiber(m.sanitizer, f, &m.scheduler_sp);
}

template <class Item>
void order(std::vector<Item>& items, Order how, std::mt19937_64& random) {
  if (how == Order::reverse) std::reverse(items.begin(), items.end());
  if (how == Order::random) std::shuffle(items.begin(), items.end(), random);
}

std::string where(const Block& b, const Fiber& f) {
  std::string in;
  if (f.wait == Wait::warp) in = std::string("in ") + f.call.function + " ";
  if (f.wait == Wait::named)
    in = "in barrier " + std::to_string(f.named) + " for " +
         std::to_string(b.named[f.named].threads) + " threads ";
  if (f.wait == Wait::cluster) in = "for the cluster ";
  if (f.wait == Wait::warpgroup) in = "in wgmma_wait ";
  if (f.wait == Wait::mbarrier) in = mbarrier_wait_name(b, f) + " ";
  if (f.wait == Wait::signals)
    in = "for " + std::to_string(f.signals) + " signals of which " + std::to_string(*f.flag) +
         " have come ";
  return in + "at " + place(f.at);
}

std::string waiting(const Block& b) {
  std::string text;
  std::vector<std::pair<std::string, unsigned>> groups;
  for (const Fiber& f : b.fibers) {
    const std::string at = f.wait == Wait::finished ? "have exited" : "wait " + where(b, f);
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
            (f.wait == Wait::finished ? " has exited" : " waits " + where(b, f));
  }
  return text + (count > kNamed ? " and " + std::to_string(count - kNamed) + " more" : "");
}

bool all_wait(const Block& b, Wait at) {
  return std::all_of(b.fibers.begin(), b.fibers.end(),
                     [&](const Fiber& f) { return f.wait == at; });
}

void pass(Block& b) {
  for (Fiber& f : b.fibers)
    if (f.wait != Wait::finished) f.wait = Wait::nothing;
  b.phase = ++machine().phase;
  b.since = ++machine().here->clocks.now;
  ++b.passed;
}

// All threads of a block wait at barriers.
void pass_barrier(Block& b) {
  for (const Fiber& f : b.fibers)
    if (!same(f.at, b.fibers[0].at)) {
      b.error = "divergent barrier: " + waiting(b);
      return;
    }
  if (b.clocks) {
    std::vector<unsigned> agents;
    for (unsigned t = 0; t < b.threads; t += 32) agents.push_back(b.agent(t));
    b.clocks->meet(agents);
  }
  pass(b);
}

// All threads of the cluster, but those that have exited, wait for each other.
bool pass_cluster_barrier(Machine& m) {
  bool some = false;
  std::vector<unsigned> agents;
  for (unsigned r = 0; r < m.cluster; ++r) {
    const Block& b = *m.here->blocks[r];
    for (unsigned t = 0; t < b.threads; ++t) {
      if (b.fibers[t].wait != Wait::cluster && b.fibers[t].wait != Wait::finished) return false;
      some = some || b.fibers[t].wait == Wait::cluster;
      if (t % 32 == 0) agents.push_back(b.agent(t));
    }
  }
  if (!some) return false;
  m.here->clocks.meet(agents);
  for (unsigned r = 0; r < m.cluster; ++r) pass(*m.here->blocks[r]);
  m.here->meeting = m.meetings++;
  return true;
}

bool awaits_signals(const Machine& m) {
  for (unsigned r = 0; r < m.cluster; ++r)
    for (const Fiber& f : m.here->blocks[r]->fibers)
      if (f.wait == Wait::signals) return true;
  return false;
}

void deadlock(Machine& m) {
  unsigned rank = 0;
  while (all_wait(*m.here->blocks[rank], Wait::finished)) ++rank;
  Block& b = *m.here->blocks[rank];
  std::string text = waiting(b);
  for (unsigned r = 0; r < m.cluster; ++r)
    if (r != b.rank)
      text += "; of block " + std::to_string(r) + " of the cluster: " + waiting(*m.here->blocks[r]);
  for (unsigned t = 0; t < b.threads; ++t)
    if (b.fibers[t].wait == Wait::warp) {
      b.error = "deadlock: lanes of a warp don't meet: " + text + "; in warp " +
                std::to_string(t / 32) + " " + missing(b, t);
      return;
    }
  const bool barrier = std::any_of(b.fibers.begin(), b.fibers.end(),
                                   [](const Fiber& f) { return f.wait == Wait::barrier; });
  b.error = std::string("deadlock: ") +
            (awaits_signals(m) ? "no block that must have begun signals: "
             : barrier         ? "threads of a block don't meet: "
                               : "") +
            text;
}

// All threads have stopped. Lets those go on who can: of each block at its barrier, all at that of
// the cluster, those who wait for signals or a copy; false where the cluster waits for others. Or
// it is in trouble.
bool release(Machine& m, Order how) {
  bool passed = false;
  for (unsigned r = 0; r < m.cluster; ++r)
    if (all_wait(*m.here->blocks[r], Wait::barrier)) {
      pass_barrier(*m.here->blocks[r]);
      passed = true;
    }
  if (passed || pass_cluster_barrier(m) || pass_signals(m) || land_copies(m, how)) return true;
  if (awaits_signals(m)) return false;
  deadlock(m);
  return true;
}

void begin_block(Machine& m, Block& b) {
  b.arrays.clear();
  b.arena_used = 0;
  b.quiet = false;
  b.error.clear();
  b.phase = b.first_phase = ++m.phase;
  b.since = ++m.here->clocks.now;
  b.passed = b.finished = 0;
  b.clocks = nullptr;
  b.mbarriers.clear();
  b.read_by_others.clear();
  b.launch_waits.clear();
  std::fill(std::begin(b.named), std::end(b.named), NamedBarrier{});
  b.warpgroups.clear();
  b.warpgroups.resize((b.threads + 127) / 128);
  for (Warp& w : b.warps) w.waiting = w.alike = 0;
  b.recording = m.recorder && m.recorder->wants(b) ? m.recorder : nullptr;
  for (unsigned t = 0; t < b.threads; ++t) {
    Fiber& f = b.fibers[t];
    f.wait = Wait::nothing;
    f.open.clear();
    f.groups.clear();
    f.wgmma_open.clear();
    f.wgmma_groups.clear();
    f.accumulators.clear();
    f.register_fence = 0;
    f.tiles = 0;
    f.waited = false;
    f.stack = m.here->stacks + (b.rank * b.threads + t) * kStack;
    prepare_fiber(f, &fiber_main);
  }
}

// Of the cluster whose turn it is.
bool failed(const Machine& m) {
  return std::any_of(m.here->blocks.begin(), m.here->blocks.begin() + m.cluster,
                     [](const auto& b) { return !b->error.empty(); });
}

void begin_cluster(Machine& m) {
  block_begins(m.sanitizer);
  m.here->ended = false;
  m.here->copies.clear();
  m.here->meeting = m.meetings++;
  for (unsigned r = 0; r < m.cluster; ++r) begin_block(m, *m.here->blocks[r]);
  if (m.cluster > 1 || m.in_order) use_clocks();
}

// Until the cluster has ended or failed, or waits for signals of others; whether it has done
// anything.
bool run_cluster(Machine& m, Order how) {
  const unsigned threads = m.here->blocks[0]->threads;
  std::vector<unsigned> turn(m.cluster * threads);
  std::iota(turn.begin(), turn.end(), 0u);
  bool some = false;
  for (;;) {
    do {
      m.released = false;
      order(turn, how, m.random);
      for (unsigned t : turn) {
        Block& b = *m.here->blocks[t / threads];
        Fiber& f = b.fibers[t % threads];
        if (f.wait != Wait::nothing) continue;
        some = true;
        b.self = t % threads;
        running = &b;
        switch_to_fiber(m.sanitizer, f, &m.scheduler_sp);
        running = nullptr;
        if (!b.error.empty()) return true;
      }
    } while (m.released);   // who has had a turn may go on
    bool finished = true;
    for (unsigned r = 0; r < m.cluster; ++r)
      finished = finished && m.here->blocks[r]->finished == threads;
    if (finished) break;
    if (!release(m, how)) return some;
    if (failed(m)) return true;
  }
  for (unsigned r = 0; r < m.cluster; ++r)
    if (Block& b = *m.here->blocks[r]; b.recording) b.recording->block_ends(b);
  m.here->ended = true;
  return true;
}

dim3 unravel(unsigned i, dim3 d) { return {i % d.x, i / d.x % d.y, i / d.x / d.y}; }

}  // namespace

Machine& make_machine() {
  static thread_local const std::unique_ptr<Machine> m = std::make_unique<Machine>();
  return *(own_machine = m.get());
}

Clocks& use_clocks() {
  Machine& m = machine();
  if (m.here->blocks[0]->clocks) return m.here->clocks;
  const Block& first = *m.here->blocks[0];
  m.here->clocks.start(first.linear / m.cluster, m.cluster * first.agents());
  for (unsigned r = 0; r < m.cluster; ++r) m.here->blocks[r]->clocks = &m.here->clocks;
  return m.here->clocks;
}

bool same(const Site& x, const Site& y) {
  return x.line == y.line && (x.file == y.file || !std::strcmp(x.file, y.file));
}

void to_scheduler() {
  Machine& m = machine();
  Fiber& f = running->fibers[running->self];
  switch_to_scheduler(m.sanitizer, f, &m.scheduler_sp);
}

void fail(const std::string& what) {
  running->error = what;
  to_scheduler();
  __builtin_unreachable();   // the scheduler never resumes a block that has failed
}

dim3 thread_index() {
  const Block& b = *running;
  return b.dims.x == b.threads ? dim3(b.self) : unravel(b.self, b.dims);  // mostly: no division
}
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
  Block& b = *running;
  Fiber& f = b.fibers[b.self];
  f.wait = Wait::barrier;
  f.at = at;
  barrier_arrive(m.sanitizer, b.rank, b.passed);
  const uint32_t passed = b.passed;
  to_scheduler();
  barrier_leave(m.sanitizer, b.rank, passed);
}

namespace {

// How many clusters take turns: one where threads run in forward order, so that a wait for a block
// which need not have begun is found.
size_t rooms_for(Machine& m, Order how) {
  constexpr size_t kRooms = 4;
  if (!m.in_order || how == Order::forward) return 1;
  return how == Order::reverse ? kRooms : 1 + m.random() % kRooms;
}

// Runs what has begun, in turns, and begins what there is room for, until all have ended or one has
// failed, which then is the one whose turn it is.
void run_clusters(Machine& m, const std::vector<unsigned>& clusters, size_t rooms, Order how) {
  size_t next = 0;
  for (;;) {
    bool some = false;
    std::vector<Cluster*> here;
    for (size_t r = 0; r < rooms; ++r) {
      m.here = m.rooms[r].get();
      if (m.here->ended && next < clusters.size()) {
        for (unsigned rank = 0; rank < m.cluster; ++rank) {
          Block& b = *m.here->blocks[rank];
          b.linear = clusters[next] * m.cluster + rank;
          b.index = unravel(b.linear, b.grid);
        }
        ++next;
        begin_cluster(m);
      }
      if (!m.here->ended) here.push_back(m.here);
    }
    if (here.empty()) return;
    std::sort(here.begin(), here.end(), [](const Cluster* x, const Cluster* y) {
      return x->blocks[0]->linear < y->blocks[0]->linear;
    });
    Cluster* const first = here.front();
    order(here, how, m.random);
    for (Cluster* c : here) {
      m.here = c;
      some |= run_cluster(m, how);
      if (failed(m)) return;
    }
    if (some) continue;
    m.here = first;
    return deadlock(m);
  }
}

}  // namespace

void run_grid(const Grid& shape, void (*thread)(const void*), const void* arguments,
              size_t argument_bytes) {
  const auto [grid, dims, smem, cluster, dependent, in_order] = shape;
  if (running) throw std::logic_error("xgemm simt: a kernel launches a kernel");
  Machine& m = machine();
  // An order that is always the same for whoever looks at what happens in it.
  const Settings s = m.recorder ? Settings{.order = Order::forward, .skip = ""} : settings();
  const unsigned threads = dims.x * dims.y * dims.z;
  if (threads == 0 || threads > 1024)
    throw std::invalid_argument("xgemm simt: a block has 1 to 1024 threads");
  if (cluster == 0 || cluster > kMostBlocks || grid.x % cluster)
    throw std::invalid_argument(
        "xgemm simt: a cluster has 1 to 16 blocks, and grid.x is a multiple");
  std::vector<unsigned> clusters(static_cast<size_t>(grid.x) * grid.y * grid.z / cluster);
  std::iota(clusters.begin(), clusters.end(), 0u);
  m.random.seed(s.seed);
  m.cluster = cluster;
  m.in_order = in_order;
  if (!in_order) order(clusters, s.order, m.random);
  const size_t rooms = std::min(rooms_for(m, s.order), clusters.size());
  while (m.rooms.size() < rooms) m.rooms.push_back(std::make_unique<Cluster>());
  for (size_t room = 0; room < rooms; ++room) {
    Cluster& c = *m.rooms[room];
    c.ended = true;
    c.grow(cluster * threads);
    while (c.blocks.size() < cluster) c.blocks.push_back(Cluster::make_block());
    for (unsigned r = 0; r < cluster; ++r) {
      Block& b = *c.blocks[r];
      for (size_t t = threads; t < b.fibers.size(); ++t) discard_fiber(b.fibers[t]);
      b.fibers.resize(threads);
      b.grid = grid;
      b.dims = dims;
      b.threads = threads;
      b.rank = r;
      b.dynamic_smem = smem;
      b.error.clear();
      b.arguments = static_cast<const char*>(arguments);
      b.argument_bytes = argument_bytes;
      b.operands = &m.operands;
      b.stacks = c.stacks;
      b.stack_bytes = c.stack_count * kStack;
      b.register_uses = c.register_uses;
    }
  }
  m.seen.clear();
  m.signals.clear();
  for (Operand& o : m.operands) o.begin_launch(m.dependent);
  m.dependent = dependent;
  ++m.launches;
  m.skip = s.skip;
  m.thread = thread;
  m.arguments = arguments;
  launch_begins(m.sanitizer);
  run_clusters(m, clusters, rooms, s.order);
  const bool failure = failed(m);
  for (size_t room = 0; failure && room < rooms; ++room)
    if (!m.rooms[room]->ended)
      for (unsigned r = 0; r < cluster; ++r) abandon_fibers(m.sanitizer, *m.rooms[room]->blocks[r]);
  launch_ends(m.sanitizer);
  for (unsigned r = 0; r < cluster; ++r) {
    const Block& b = *m.here->blocks[r];
    if (b.error.empty()) continue;
    throw std::runtime_error("xgemm simt: " + b.error + "; block (" + std::to_string(b.index.x) +
                             ", " + std::to_string(b.index.y) + ", " + std::to_string(b.index.z) +
                             ")");
  }
}

}  // namespace xgemm::simt
