// Functions of a warp: shuffles, votes and __syncwarp, in which the lanes of a mask meet.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "emulator/machine.h"

namespace xgemm::simt {
namespace {

std::string hex(uint32_t mask) {
  char text[16];
  std::snprintf(text, sizeof text, "0x%08x", mask);
  return text;
}

std::string call_of(unsigned thread) {
  const Fiber& f = running->fibers[thread];
  return thread_name(thread) + " calls " + f.call.function + " at " + place(f.at) + " with mask " +
         hex(f.call.mask);
}

bool alike(const Fiber& x, const Fiber& y) {
  return same(x.at, y.at) &&
         (x.call.function == y.call.function || !std::strcmp(x.call.function, y.call.function));
}

// The lanes that have come to the meeting which the running thread comes to, itself among them.
// Mostly all who wait in the warp have made one call, of which the last one's speaks for all.
uint32_t gather(const Block& b, const Warp& w, unsigned first, unsigned lane) {
  const Fiber& f = b.fibers[first + lane];
  const Fiber& last = b.fibers[first + w.last];
  if (w.waiting && w.waiting == w.alike && last.call.mask == f.call.mask && alike(last, f))
    return w.alike | 1u << lane;
  uint32_t here = 1u << lane;
  for (uint32_t others = w.waiting; others; others &= others - 1) {
    const unsigned l = static_cast<unsigned>(__builtin_ctz(others));
    const Fiber& other = b.fibers[first + l];
    // One that does not wait for this lane may come later.
    if (!(f.call.mask >> l & 1) || !(other.call.mask >> lane & 1)) continue;
    if (other.call.mask != f.call.mask)
      fail("different masks: " + call_of(first + lane) + ", " + call_of(first + l));
    if (!alike(other, f))
      fail("divergent warp function: " + call_of(first + lane) + ", " + call_of(first + l));
    here |= 1u << l;
  }
  return here;
}

// The last one has come: everybody takes what is theirs.
void conclude(Block& b, unsigned first, uint32_t lanes) {
  unsigned ballot = 0;
  for (unsigned l = 0; l < 32; ++l)
    if (lanes >> l & 1) ballot |= static_cast<unsigned>(b.fibers[first + l].call.given & 1) << l;
  for (unsigned l = 0; l < 32; ++l) {
    if (!(lanes >> l & 1)) continue;
    WarpCall& call = b.fibers[first + l].call;
    const int source = call.source < 0 ? static_cast<int>(l) : call.source;
    if (!(lanes >> source & 1))
      fail("shuffle: " + call_of(first + l) + " and reads lane " + std::to_string(source) +
           ", which is not among those who give a value");
    call.result = {b.fibers[first + static_cast<unsigned>(source)].call.given, ballot, lanes};
  }
  for (unsigned l = 0; l < 32; ++l)
    if (lanes >> l & 1) b.fibers[first + l].wait = Wait::nothing;
  b.warps[first / 32].waiting &= ~lanes;
  b.warps[first / 32].alike = 0;
  machine().released = true;
}

// What one lane of a __syncwarp knows, all know, and that all have come here.
void join(Warp& w, uint32_t lanes) {
  const Hidden hidden;
  ++w.syncs;
  uint32_t known[32] = {};
  for (unsigned l = 0; l < 32; ++l)
    if (lanes >> l & 1)
      for (unsigned r = 0; r < 32; ++r) known[r] = std::max(known[r], w.known[l][r]);
  for (unsigned l = 0; l < 32; ++l)
    if (lanes >> l & 1) known[l] = w.syncs;
  for (unsigned l = 0; l < 32; ++l)
    if (lanes >> l & 1) std::copy(known, known + 32, w.known[l]);
}

// Arrives; true for the last one of those who meet, who need not wait and does the work, if any.
bool arrive(const char* function, uint32_t mask, uint64_t given, int source, bool orders,
            WarpWork* work, Site at) {
  Machine& m = machine();
  Block& b = *running;
  const Quiet quiet(b);
  const unsigned lane = b.self % 32, first = b.self - lane;
  const unsigned there = std::min(32u, b.threads - first);      // lanes that the warp has
  Fiber& f = b.fibers[b.self];
  Warp& w = b.warps[first / 32];
  f.at = at;
  f.call = {.function = function, .mask = mask, .source = source, .given = given};
  if (!(mask >> lane & 1)) fail("mask: " + call_of(b.self) + ", which leaves out its own lane");
  f.call.mask = there == 32 ? mask : mask & ((1u << there) - 1);
  f.wait = Wait::warp;
  const uint32_t here = gather(b, w, first, lane);
  if (const uint32_t others = here & ~(1u << lane))
    f.call.number = b.fibers[first + static_cast<unsigned>(__builtin_ctz(others))].call.number;
  else f.call.number = m.meetings++;
  w.waiting |= 1u << lane;
  w.alike = here;
  w.last = lane;
  if (orders) meeting_arrive(m.sanitizer, f.call.number);
  if (here != f.call.mask) return false;
  if (orders) join(w, here);
  if (work) {
    void* lanes[32];
    for (unsigned l = 0; l < 32; ++l)
      lanes[l] = reinterpret_cast<void*>(b.fibers[first + l].call.given);
    work(lanes);
  }
  conclude(b, first, here);
  return true;
}

Meeting meet(const char* function, uint32_t mask, uint64_t given, int source, bool orders, Site at,
             WarpWork* work = nullptr) {
  if (!arrive(function, mask, given, source, orders, work, at)) to_scheduler();
  Machine& m = machine();
  const WarpCall& call = running->fibers[running->self].call;
  if (orders) meeting_leave(m.sanitizer, call.number);
  return call.result;
}

}  // namespace

Meeting shuffle(Shuffle how, unsigned mask, uint64_t value, int argument, int width, Site at) {
  constexpr const char* kNames[] = {"__shfl_sync", "__shfl_up_sync", "__shfl_down_sync",
                                    "__shfl_xor_sync"};
  const char* name = kNames[static_cast<int>(how)];
  if (width < 1 || width > 32 || (width & (width - 1))) {
    const Quiet quiet;
    fail("shuffle: " + thread_name(running->self) + " calls " + name + " at " + place(at) +
         " with width " + std::to_string(width) + ", which is no power of 2 up to 32");
  }
  // A segment of `width` lanes is a warp of its own. What lies outside gives a lane its own value,
  // but __shfl_xor_sync reads segments below.
  const int lane = static_cast<int>(running->self % 32), segment = lane & ~(width - 1);
  const int last = segment + width - 1;
  const int distance = argument < 0 || argument > 32 ? 32 : argument;
  int source = lane;
  if (how == Shuffle::index) source = segment | (argument & (width - 1));
  if (how == Shuffle::up) source = lane - distance;
  if (how == Shuffle::down) source = lane + distance;
  if (how == Shuffle::across) source = lane ^ (argument & 31);
  const bool below = source < segment && how != Shuffle::across;
  return meet(name, mask, value, below || source > last ? lane : source, false, at);
}

Meeting vote(const char* function, unsigned mask, bool value, Site at) {
  return meet(function, mask, value, -1, false, at);
}

void together(const char* function, WarpWork* work, void* given, Site at) {
  if (running->self / 32 * 32 + 32 > running->threads) {
    const Quiet quiet;
    fail(std::string(function) + ": the warp of " + thread_name(running->self) + " at " +
         place(at) + " has less than 32 lanes");
  }
  meet(function, 0xffffffffu, reinterpret_cast<uint64_t>(given), -1, false, at, work);
}

void warp_barrier(unsigned mask, Site at) {
  {
    const Quiet quiet;
    if (skips(Sync::warp_barrier, at)) return;
  }
  meet("__syncwarp", mask, 0, -1, true, at);
}

}  // namespace xgemm::simt
