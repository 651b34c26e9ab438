// Answers the calls that -fsanitize=thread puts at every load and store of a stage, and turns a
// wrong one into an error: races and stray accesses in shared memory, global accesses outside the
// operands, two threads storing one element.
#include <dlfcn.h>

#include <algorithm>

#include "emulator/machine.h"

namespace xgemm::simt {
namespace {

const char* verb(bool write) { return write ? "writes" : "reads"; }

// `others`: the threads that were there first, one or more.
[[noreturn]] void race(const char* p, bool write, const void* pc, bool other_write,
                       const std::string& others, const void* other_pc) {
  const Block& b = *running;
  fail("race on shared memory: " + thread_name(b.self) + " " + verb(write) + " at " + place(pc) +
       " what " + others + (other_write ? " wrote" : " read") + " at " + place(other_pc) +
       " with no barrier between (byte " + array_byte(p) + ")");
}

std::string writer(const Cell& c) { return c.writer == kByTma ? "TMA" : thread_name(c.writer); }

std::string readers(const Cell& c, uint32_t lanes) {
  if (c.read_warp == kMany || (lanes & (lanes - 1))) return "several threads";
  return thread_name(c.read_warp * 32u + static_cast<unsigned>(__builtin_ctz(lanes)));
}

// Whether all reads of these lanes come before what `lane` does now.
bool all_ordered(const Warp& w, uint32_t lanes, uint32_t then, unsigned lane) {
  for (; lanes; lanes &= lanes - 1)
    if (!w.ordered(static_cast<unsigned>(__builtin_ctz(lanes)), then, lane)) return false;
  return true;
}

void note_read(const Block& b, Cell& c, const void* pc) {
  const unsigned warp = b.self / 32, lane = b.self % 32;
  const Warp& w = b.warps[warp];
  c.read_pc = pc;
  if (c.read_phase == b.phase && c.read_warp != warp) {
    c.read_warp = kMany;
    return;
  }
  // Reads that come before this one need not be kept: whoever comes after this comes after them.
  // Of lanes that __syncwarp has brought to different times the oldest counts: a write may be taken
  // for ordered that is not, but none the other way.
  const uint32_t others = c.read_phase == b.phase ? c.read_lanes & ~(1u << lane) : 0;
  if (others && (c.read_syncs == w.syncs || !all_ordered(w, others, c.read_syncs, lane))) {
    c.read_lanes |= 1u << lane;
    return;
  }
  c.read_phase = b.phase;
  c.read_warp = static_cast<uint16_t>(warp);
  c.read_lanes = 1u << lane;
  c.read_syncs = w.syncs;
}

Timed& timed(const Block& b, const Cell& c) { return b.timed[&c - b.cells]; }

// Whether the clocks put the last write, or all reads since, before what `agent` does now. `b` is
// the block whose shared memory it is.
bool knows_write(const Block& b, const Cell& c, unsigned agent) {
  if (!b.clocks) return false;
  const unsigned by = c.writer == kByTma ? Clocks::kTma : b.agent(c.writer);
  return b.clocks->knows(agent, by, timed(b, c).write_time);
}
bool knows_reads(const Block& b, const Cell& c, unsigned agent) {
  if (!b.clocks) return false;
  const Timed& t = timed(b, c);
  if (t.read_phase != b.phase) return true;
  for (uint32_t warps = t.read_warps; warps; warps &= warps - 1) {
    const unsigned reader = b.agent(32 * static_cast<unsigned>(__builtin_ctz(warps)));
    if ((reader != agent || c.read_warp != kMany) && !b.clocks->knows(agent, reader, t.read_time))
      return false;
  }
  for (uint32_t groups = t.read_warpgroups; groups; groups &= groups - 1) {
    const unsigned first = 128 * static_cast<unsigned>(__builtin_ctz(groups));
    if (!b.clocks->knows(agent, b.wgmma_agent(first), t.read_time)) return false;
  }
  return true;
}

bool read_by_wgmma(const Block& b, const Cell& c) {
  const Timed& t = timed(b, c);
  return t.wgmmas && t.wgmma_block == b.first_phase;
}

void note_time_of_read(const Block& b, const Cell& c, uint32_t warps, uint32_t warpgroups) {
  Timed& t = timed(b, c);
  if (t.read_phase != b.phase) {
    t.read_phase = b.phase;
    t.read_time = b.clocks->now;
    t.read_warps = t.read_warpgroups = 0;
  }
  t.read_warps |= warps;
  t.read_warpgroups = static_cast<uint16_t>(t.read_warpgroups | warpgroups);
}

void note_time_of_write(const Block& b, const Cell& c) {
  Timed& t = timed(b, c);
  t.write_time = b.clocks->now;
  t.read_phase = 0;
}

[[noreturn]] void overwritten(const Block& b, const char* p, const std::string& who,
                              const void* pc) {
  const Wgmma* reader = reader_of(b, p);
  fail("overwritten: " + who + " at " + place(pc) + " writes what the wgmma at " +
       (reader ? place(reader->at) : "an unknown place") + " reads and nobody has waited for");
}

[[noreturn]] void unfinished(const Cell& c, bool write, const void* pc) {
  const bool tma = c.writer == kByTma;
  fail("unfinished copy: " + thread_name(running->self) + " " + verb(write) + " at " + place(pc) +
       " what " + (tma ? "TMA copies by the call at " : writer(c) + " copies by the cp.async at ") +
       place(c.write_pc) + " and has not waited for");
}

void touch(const Block& b, Cell& c, const char* p, bool write, const void* pc) {
  const unsigned warp = b.self / 32, lane = b.self % 32;
  const Warp& w = b.warps[warp];
  if (!c.inside)
    fail("out of bounds: " + thread_name(b.self) + " " + verb(write) +
         " shared memory outside every array at " + place(pc));
  if (c.write_phase == b.phase && c.writer != b.self &&
      (c.writer / 32 != warp || !w.ordered(c.writer % 32, c.write_syncs, lane)) &&
      !knows_write(b, c, b.agent(b.self)))
    race(p, write, pc, true, writer(c), c.write_pc);
  if (c.pending_phase >= b.first_phase) unfinished(c, write, pc);
  if (write) {
    if (b.clocks && read_by_wgmma(b, c)) overwritten(b, p, thread_name(b.self), pc);
    if (c.read_phase == b.phase) {
      const bool own = c.read_warp == warp;
      const uint32_t others = c.read_lanes & ~(own ? 1u << lane : 0);
      if ((!own || !all_ordered(w, others, c.read_syncs, lane)) &&
          !knows_reads(b, c, b.agent(b.self)))
        race(p, write, pc, false, readers(c, others), c.read_pc);
    }
    c.write_phase = b.phase;
    c.writer = static_cast<uint16_t>(b.self);
    c.write_syncs = w.syncs;
    c.write_pc = pc;
    if (b.clocks) note_time_of_write(b, c);
    return;
  }
  if (kWatched && c.write_phase < b.first_phase)
    fail("uninitialised: " + thread_name(b.self) +
         " reads shared memory that no thread has written, at " + place(pc));
  note_read(b, c, pc);
  if (b.clocks) note_time_of_read(b, c, 1u << warp, 0);
}

// The module's own constants and statics.
bool in_this_library(const void* p) {
  Dl_info a{}, b{};
  return dladdr(p, &a) && dladdr(reinterpret_cast<const void*>(&note_shared), &b) &&
         a.dli_fbase == b.dli_fbase;
}

bool within(const char* p, const char* base, size_t bytes) {
  return static_cast<size_t>(p - base) < bytes;
}

// What is known of the 4 bytes of the threads' stacks that these are among.
RegisterUse& use_of(const Block& b, const char* p) { return b.register_uses[(p - b.stacks) / 4]; }

// An access to the threads' stacks, where accumulators may be in flight.
void note_stack(Block& b, const char* p, size_t bytes, bool write, const void* pc) {
  const Fiber& f = b.fibers[b.self];
  if (f.register_fence)
    for (const char* q = p; q < p + bytes; q += 4) use_of(b, q) = {f.register_fence, pc};
  for (const Accumulators& a : f.accumulators) {
    if (!within(p, reinterpret_cast<const char*>(a.d), a.count * sizeof(float))) continue;
    const Quiet quiet(b);
    fail("unfinished wgmma: " + thread_name(b.self) + " " + verb(write) + " at " + place(pc) +
         " an accumulator of its wgmma at " + place(a.at) + " and has not waited for it");
  }
}

inline void note(void* address, size_t bytes, bool write, const void* pc, bool vector = false) {
  Block* const block = running;   // once: in a library each look is a call
  if (!block || block->quiet) return;
  const char* p = static_cast<const char*>(address);
  Block& b = *block;
  if (within(p, b.stacks, b.stack_bytes)) return note_stack(b, p, bytes, write, pc);
  if (within(p, b.arguments, b.argument_bytes)) return;
  const Quiet quiet(b);
  if (vector) expect_aligned(p, bytes, pc);
  const bool shared = within(p, b.arena, kArena);
  record({.what = access(shared, write), .bytes = static_cast<int>(bytes), .pc = pc, .p = p}, b);
  if (shared) note_shared(b, p, bytes, write, pc);
  else note_global(b, p, bytes, write, pc);
}

}  // namespace

Operand::Operand(const char* name_, const void* base_, bool writable_, std::vector<Axis> all)
    : name(name_), base(static_cast<const char*>(base_)), writable(writable_) {
  std::sort(all.begin(), all.end(),
            [](const Axis& a, const Axis& b) { return a.stride > b.stride; });
  bool nested = true;
  int64_t elements = 1;
  for (auto a = all.rbegin(); a != all.rend(); ++a) {
    if (a->size == 0) base = nullptr;
    if (a->size <= 1 || a->stride == 0) continue;
    nested = nested && a->stride > reach;
    reach += (a->size - 1) * a->stride;
    elements *= a->size;
    axes.insert(axes.begin(), *a);
  }
  solid = !nested || elements == reach + 1;
  if (!writable) return;
  uses.resize(static_cast<size_t>(solid ? reach + 1 : elements));
  before.resize(uses.size());
}

void Operand::begin_launch(bool after_dependent) {
  if (!after_dependent) std::fill(before.begin(), before.end(), untouched);
  for (size_t i = 0; i < uses.size(); ++i) {
    if (uses[i].writer || uses[i].atomic) before[i] = written;
    else if (uses[i].reader && before[i] == untouched) before[i] = read;
    uses[i] = {};
  }
}

int64_t Operand::element(const char* p) const {
  const int64_t offset = (p - base) / 4;
  if (!base || p < base || (p - base) % 4 || offset > reach) return -1;
  if (solid) return offset;
  int64_t rest = offset;
  for (const Axis& a : axes) rest -= std::min(rest / a.stride, a.size - 1) * a.stride;
  return rest ? -1 : offset;
}

size_t Operand::slot(int64_t offset) const {
  if (solid) return static_cast<size_t>(offset);
  int64_t number = 0;
  for (const Axis& a : axes) {
    const int64_t at = std::min(offset / a.stride, a.size - 1);
    number = number * a.size + at;
    offset -= at * a.stride;
  }
  return static_cast<size_t>(number);
}

namespace {

// Whether what a thread of the grid has done to global memory comes before what the running one
// does. Blocks of different clusters have only signals that order them, the threads of a warp all.
bool before(uint32_t thread, uint64_t then) {
  const Block& b = *running;
  const uint32_t block = thread / b.threads, t = thread % b.threads;
  const unsigned cluster = machine().cluster;
  if (block == b.linear && (then < b.since || t / 32 == b.self / 32)) return true;
  if (!b.clocks) return false;
  const unsigned self = b.agent(b.self), other = machine().here->blocks[block % cluster]->agent(t);
  return block / cluster == b.linear / cluster
             ? b.clocks->knows(self, other, then)
             : b.clocks->knows(self, block / cluster, other, then);
}

[[noreturn]] void global_race(const Operand& o, bool write, const void* pc, uint32_t thread,
                              const char* did) {
  const Block& b = *running;
  fail("race on global memory: " + thread_name(b.self) + " of block " + std::to_string(b.linear) +
       (write ? " stores at " : " reads at ") + place(pc) + " an element of " + o.name +
       " that thread " + std::to_string(thread % b.threads) + " of block " +
       std::to_string(thread / b.threads) + did);
}

// Whether launches before this one may still be at work, as far as the running thread knows: it has
// not waited for them, and knows of no thread of its block that has.
bool is_early(const Block& b) {
  if (!machine().dependent || b.fibers[b.self].waited) return false;
  return std::none_of(b.launch_waits.begin(), b.launch_waits.end(), [&](const auto& w) {
    return w.passed < b.passed || (b.clocks && b.clocks->knows(b.agent(b.self), w.agent, w.time));
  });
}

[[noreturn]] void too_early(const Operand& o, bool write, const void* pc, const char* why) {
  fail("too early: " + thread_name(running->self) + (write ? " stores at " : " reads at ") +
       place(pc) + " an element of " + o.name + why);
}

// By a thread that is early: what launches before do to an element is not in its way. Of those
// before the first one nothing is known.
void expect_free(const Operand& o, int64_t offset, bool write, const void* pc) {
  if (machine().launches == 1)
    too_early(o, write, pc, ", and has not waited for the launch before, whatever that was");
  if (!o.writable) return;
  const Operand::Before before = o.before[o.slot(offset)];
  if (before == Operand::written)
    too_early(o, write, pc, " that a launch before this one stores, and has not waited for it");
  if (write && before == Operand::read)
    too_early(o, write, pc, " that a launch before this one reads, and has not waited for it");
}

// In a launch an element is stored by one thread, and read by others only after that.
void note_use(const Operand& o, Operand::Use& use, bool write, const void* pc) {
  const Block& b = *running;
  const uint32_t self = b.linear * b.threads + b.self;
  if (use.writer && use.writer - 1 != self) {
    if (write) global_race(o, write, pc, use.writer - 1, " stored too");
    if (!before(use.writer - 1, use.written))
      global_race(o, write, pc, use.writer - 1, " stored, with no barrier between");
  }
  if (write && use.reader && use.reader - 1 != self && !before(use.reader - 1, use.read))
    global_race(o, write, pc, use.reader - 1, " read, with no barrier between");
  (write ? use.writer : use.reader) = self + 1;
  (write ? use.written : use.read) = machine().here->clocks.now;
}

}  // namespace

void note_global(const Block& b, const char* p, size_t bytes, bool write, const void* pc) {
  // Elements are counted in floats, whatever they are.
  const char *const first = p - reinterpret_cast<uintptr_t>(p) % 4, *const end = p + bytes;
  const Operand* nearest = nullptr;
  for (Operand& o : *b.operands) {
    if (write && !o.writable) continue;
    bool all = true;
    for (const char* q = first; q < end && all; q += 4) all = o.element(q) >= 0;
    if (!all) {
      if (p >= o.base && (!nearest || o.base > nearest->base)) nearest = &o;
      continue;
    }
    if (is_early(b))
      for (const char* q = first; q < end; q += 4) expect_free(o, o.element(q), write, pc);
    if (!o.writable || bytes < 4) return;
    for (const char* q = first; q < end; q += 4)
      note_use(o, o.uses[o.slot(o.element(q))], write, pc);
    return;
  }
  if (!write && in_this_library(p)) return;
  std::string where = "outside every operand";
  if (nearest)
    where += ", " + std::to_string(p - nearest->base) + " bytes from the start of " + nearest->name;
  fail("out of bounds: " + thread_name(b.self) + " " + verb(write) + " global memory " + where +
       ", at " + place(pc));
}

void note_atomic(const Block& b, const uint32_t* p, const void* pc) {
  const auto* at = reinterpret_cast<const char*>(p);
  note_global(b, at, sizeof *p, false, pc);
  for (Operand& o : *b.operands) {
    const int64_t offset = o.element(at);
    if (!o.writable || offset < 0) continue;
    if (is_early(b)) expect_free(o, offset, true, pc);
    o.uses[o.slot(offset)].atomic = true;
  }
}

std::string array_byte(const char* p) {
  const auto offset = static_cast<size_t>(p - running->arena);
  for (const Array& a : running->arrays)
    if (offset - a.offset < a.bytes) return std::to_string(offset - a.offset) + " of " + a.name;
  return std::to_string(offset);
}

void note_tma(Block& to, const char* p, size_t bytes, const void* pc) {
  const Block& b = *running;
  const unsigned self = b.agent(b.self), warp = b.self / 32;
  const auto offset = static_cast<size_t>(p - to.arena);
  for (size_t i = offset / 4; i < (offset + bytes) / 4; ++i) {
    Cell& c = to.cells[i];
    const bool own = &to == &b;
    if (!c.inside)
      fail("out of bounds: the TMA of " + thread_name(b.self) +
           " writes shared memory outside every array at " + place(pc));
    if (c.pending_phase >= to.first_phase) unfinished(c, true, pc);
    if (read_by_wgmma(to, c)) overwritten(to, to.arena + i * 4, "TMA", pc);
    const char* const q = b.arena + i * 4;  // the same place of the running block
    if (c.write_phase == to.phase && !(own && c.writer / 32 == warp) && !knows_write(to, c, self))
      race(q, true, pc, true, writer(c), c.write_pc);
    if (c.read_phase == to.phase && !(own && c.read_warp == warp) && !knows_reads(to, c, self))
      race(q, true, pc, false, readers(c, c.read_lanes), c.read_pc);
    c.write_phase = c.pending_phase = to.phase;
    c.writer = kByTma;
    c.write_pc = pc;
    note_time_of_write(to, c);
  }
}

void note_peer_read(Block& of, const char* p, size_t bytes, const void* pc) {
  const Block& b = *running;
  const auto offset = static_cast<size_t>(p - b.arena);
  const auto who = [&] {
    return thread_name(b.self) + " of block " + std::to_string(b.rank) + " of the cluster";
  };
  for (size_t i = offset / 4; i < (offset + bytes) / 4; ++i) {
    Cell& c = of.cells[i];
    if (!c.inside)
      fail("out of bounds: " + who() + " reads another's shared memory outside every array at " +
           place(pc));
    if (c.write_phase == of.phase && !knows_write(of, c, b.agent(b.self)))
      race(b.arena + i * 4, false, pc, true, writer(c) + " of another block", c.write_pc);
    if (c.pending_phase >= of.first_phase) unfinished(c, false, pc);
    if (kWatched && c.write_phase < of.first_phase)
      fail("uninitialised: " + who() +
           " reads another's shared memory that no thread has written, at " + place(pc));
    // Whoever writes it next must have met all of them.
    c.read_phase = of.phase;
    c.read_warp = kMany;
    c.read_pc = pc;
    note_time_of_read(of, c, ~0u >> (32 - of.warp_count()), 0);
  }
}

void note_landed(Block& to, const char* p, size_t bytes) {
  const auto offset = static_cast<size_t>(p - to.arena);
  for (size_t i = offset / 4; i < (offset + bytes) / 4; ++i) {
    Cell& c = to.cells[i];
    c.pending_phase = 0;
    c.write_phase = to.phase;
    note_time_of_write(to, c);
  }
}

void note_wgmma(const char* p, size_t bytes, const void* pc) {
  const Block& b = *running;
  const auto offset = static_cast<size_t>(p - b.arena);
  for (size_t i = offset / 4; i < (offset + bytes) / 4; ++i) {
    Cell& c = b.cells[i];
    if (!c.inside)
      fail("out of bounds: the wgmma of " + thread_name(b.self) +
           " reads shared memory outside every array at " + place(pc));
    if (c.write_phase == b.phase && c.writer / 32 != b.self / 32 &&
        !knows_write(b, c, b.agent(b.self)))
      race(p, false, pc, true, writer(c), c.write_pc);
    if (c.pending_phase >= b.first_phase) unfinished(c, false, pc);
    if (kWatched && c.write_phase < b.first_phase)
      fail("uninitialised: the wgmma of " + thread_name(b.self) +
           " reads shared memory that no thread has written, at " + place(pc));
    if (c.write_phase >= b.first_phase && c.writer != kByTma &&
        b.fibers[c.writer].fence_phase < c.write_phase)
      fail("unfenced: the wgmma of " + thread_name(b.self) + " reads at " + place(pc) + " what " +
           thread_name(c.writer) + " has stored at " + place(c.write_pc) +
           " and then not called fence_for_wgmma");
    Timed& t = timed(b, c);
    t.wgmmas = static_cast<uint16_t>(read_by_wgmma(b, c) ? t.wgmmas + 1 : 1);
    t.wgmma_block = b.first_phase;
  }
}

void note_wgmma_done(const char* p, size_t bytes, unsigned warpgroup, const void* pc) {
  constexpr uint16_t kWarps = 4;
  const Block& b = *running;
  const auto offset = static_cast<size_t>(p - b.arena);
  for (size_t i = offset / 4; i < (offset + bytes) / 4; ++i) {
    Cell& c = b.cells[i];
    timed(b, c).wgmmas -= kWarps;
    note_time_of_read(b, c, 0, 1u << warpgroup);
    c.read_phase = b.phase;
    c.read_warp = kMany;
    c.read_pc = pc;
  }
}

void expect_fenced(const Block& b, const void* registers, size_t bytes, const Site& at) {
  const Fiber& f = b.fibers[b.self];
  if (!f.register_fence)
    fail("unfenced: " + thread_name(b.self) + " gives registers to the wgmma at " + place(at) +
         " and has not called wgmma_fence before");
  const auto* first = static_cast<const char*>(registers);
  if (!within(first, b.stacks, b.stack_bytes)) return;
  for (const char* q = first; q < first + bytes; q += 4)
    if (const RegisterUse& use = use_of(b, q); use.fence == f.register_fence)
      fail("unfenced: " + thread_name(b.self) + " gives registers to the wgmma at " + place(at) +
           " that it has used at " + place(use.pc) + " and then not called wgmma_fence");
}

void note_shared(const Block& b, const char* p, size_t bytes, bool write, const void* pc) {
  const auto offset = static_cast<size_t>(p - b.arena);
  for (size_t i = offset / 4; i <= (offset + bytes - 1) / 4; ++i)
    touch(b, b.cells[i], p, write, pc);
}

}  // namespace xgemm::simt

#ifndef XGEMM_REAL_TSAN

// The interface that gcc and clang compile to. A vector's access is one of 16 bytes and must be
// aligned; the compiler calls unaligned what it makes of several smaller ones.
#define XGEMM_HOOK(size)                                                        \
  void __tsan_read##size(void* p) {                                             \
    xgemm::simt::note(p, size, false, __builtin_return_address(0), size == 16); \
  }                                                                             \
  void __tsan_write##size(void* p) {                                            \
    xgemm::simt::note(p, size, true, __builtin_return_address(0), size == 16);  \
  }                                                                             \
  void __tsan_unaligned_read##size(void* p) {                                   \
    xgemm::simt::note(p, size, false, __builtin_return_address(0));             \
  }                                                                             \
  void __tsan_unaligned_write##size(void* p) {                                  \
    xgemm::simt::note(p, size, true, __builtin_return_address(0));              \
  }

extern "C" {
XGEMM_HOOK(1)
XGEMM_HOOK(2)
XGEMM_HOOK(4)
XGEMM_HOOK(8)
XGEMM_HOOK(16)
void __tsan_read_range(void* p, size_t n) {
  xgemm::simt::note(p, n, false, __builtin_return_address(0));
}
void __tsan_write_range(void* p, size_t n) {
  xgemm::simt::note(p, n, true, __builtin_return_address(0));
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
}

#endif
