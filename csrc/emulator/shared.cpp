// Shared memory: a block's arrays, each between zones of no-man's-land, and cp.async, which fills
// them as late as its waits allow.
#include <algorithm>

#include "emulator/machine.h"

namespace xgemm::simt {
namespace {

void set_pending(const Block& b, const char* p, size_t bytes, uint64_t since) {
  const auto offset = static_cast<size_t>(p - b.arena);
  for (size_t i = offset / 4; i < (offset + bytes) / 4; ++i) b.cells[i].pending_phase = since;
}

void move(const Copy& c) {
  std::memcpy(c.smem, c.gmem, static_cast<size_t>(c.source_bytes));
  std::memset(c.smem + c.source_bytes, 0, static_cast<size_t>(c.bytes - c.source_bytes));
}

void finish(const Copy& c) {
  set_pending(*running, c.smem, static_cast<size_t>(c.bytes), 0);
  note_shared(*running, c.smem, static_cast<size_t>(c.bytes), true, c.pc);
  move(c);
}

}  // namespace

namespace {

void* array_at(const void* site, size_t bytes, const char* name, size_t alignment) {
  Block& b = *running;
  for (const Array& a : b.arrays)
    if (a.site == site) return b.arena + a.offset;
  const size_t zone = b.arena_used;
  const size_t offset = (zone + kZone + alignment - 1) / alignment * alignment;
  b.arena_used = (offset + bytes + 127) / 128 * 128;
  if (b.arena_used + kZone > kArena)
    fail("shared memory of a block is over " + std::to_string(kArena) + " bytes");
  b.arrays.push_back({site, name, offset, bytes});
  poison(b.arena + offset, bytes);
  for (size_t i = zone / 4; i < (b.arena_used + kZone) / 4; ++i)
    b.cells[i].inside = i >= offset / 4 && i < (offset + bytes + 3) / 4;
  poison_zones(b.arena + zone, offset - zone, b.arena + offset, bytes,
               b.arena + b.arena_used + kZone);
  return b.arena + offset;
}

}  // namespace

// Who reads it must know of the issue; what came between that and this was caught as unfinished.
void land(const Block& b, const Copy& c) {
  const Hidden hidden;
  set_pending(b, c.smem, static_cast<size_t>(c.bytes), 0);
  move(c);
}

void* shared_array(const void* site, size_t bytes, const char* name) {
  const Quiet quiet;
  return array_at(site, bytes, name, 128);
}

void* dynamic_shared(size_t bytes, const char* name, Site at) {
  static const char site = 0;
  const Quiet quiet;
  if (bytes > running->dynamic_smem) {
    fail("out of bounds: " + place(at) + " uses " + std::to_string(bytes) +
         " bytes of dynamic shared memory, the launch gave " +
         std::to_string(running->dynamic_smem));
  }
  return array_at(&site, running->dynamic_smem, name, 1024);
}

void expect_aligned(const void* p, size_t bytes, const void* pc) {
  if (reinterpret_cast<uintptr_t>(p) % bytes == 0) return;
  fail("misaligned: " + thread_name(running->self) + " moves " + std::to_string(bytes) +
       " bytes at an address that is " + std::to_string(reinterpret_cast<uintptr_t>(p) % bytes) +
       " past a multiple, at " + place(pc));
}

void expect_aligned(const void* p, size_t bytes) {
  if (!running) return;
  const Quiet quiet;
  expect_aligned(p, bytes, __builtin_return_address(0));
}

void copy_issue(void* smem, const void* gmem, int bytes, int source_bytes) {
  const void* pc = __builtin_return_address(0);
  const Quiet quiet;
  if (reinterpret_cast<uintptr_t>(smem) % static_cast<size_t>(bytes) ||
      (source_bytes && reinterpret_cast<uintptr_t>(gmem) % static_cast<size_t>(bytes)))
    fail("misaligned: cp.async of " + std::to_string(bytes) + " bytes at " + place(pc));
  record({.what = What::copy_issue,
          .bytes = bytes,
          .pc = pc,
          .p = static_cast<const char*>(smem),
          .source = source_bytes ? static_cast<const char*>(gmem) : nullptr});
  note_shared(*running, static_cast<char*>(smem), static_cast<size_t>(bytes), true, pc);
  set_pending(*running, static_cast<char*>(smem), static_cast<size_t>(bytes), running->phase);
  if (source_bytes)
    note_global(*running, static_cast<const char*>(gmem), static_cast<size_t>(source_bytes), false,
                pc);
  std::memset(smem, 0xff, static_cast<size_t>(bytes));
  running->fibers[running->self].open.push_back(
      {static_cast<char*>(smem), static_cast<const char*>(gmem), bytes, source_bytes, pc});
}

void copy_commit(Site at) {
  const Quiet quiet;
  if (skips(Sync::commit, at)) return;
  Fiber& f = running->fibers[running->self];
  f.groups.push_back(std::move(f.open));
  f.open.clear();
}

void copy_wait(int groups_left, Site at) {
  const Quiet quiet;
  if (skips(Sync::wait, at)) return;
  Fiber& f = running->fibers[running->self];
  int bytes = 0;
  while (f.groups.size() > static_cast<size_t>(groups_left)) {
    for (const Copy& c : f.groups.front()) {
      finish(c);
      bytes += c.bytes;
    }
    f.groups.erase(f.groups.begin());
  }
  record({.what = What::copy_wait, .bytes = bytes, .at = at});
}

// Threads take turns: what no other can come between need not be more than this.
void atomic_max(uint32_t* p, uint32_t x) {
  const void* pc = __builtin_return_address(0);
  const Quiet quiet;
  note_atomic(*running, p, pc);
  *p = std::max(*p, x);
}
void atomic_add(uint32_t* p, uint32_t x) {
  const void* pc = __builtin_return_address(0);
  const Quiet quiet;
  note_atomic(*running, p, pc);
  *p += x;
}

}  // namespace xgemm::simt
