// wgmma: issued by each thread of a warpgroup, done when all of them have come to a wait that
// demands it. An emulator that did a thread's share alone would take it for unfinished when another
// thread, which has waited, lets its operands be overwritten; the hardware does not.
#include "emulator/machine.h"
#include "emulator/tensor_core.h"

namespace xgemm::simt {
namespace {

constexpr unsigned kThreads = 128, kRows = 64;

// An operand by its descriptor, in groups of 8 lines: K-major, a row's 16 elements in a line, or
// MN-major, one k of 64 rows in a line.
class Matrix {
 public:
  explicit Matrix(uint64_t descriptor, bool mn_major = false)
      : start_((descriptor & 0x3fff) << 4),
        group_((descriptor >> 32 & 0x3fff) << 4),
        line_(descriptor >> 62 == 1 ? 128 : 64),
        mn_major_(mn_major) {}

  static bool understood(uint64_t descriptor) {
    const uint64_t swizzle = descriptor >> 62;
    return (swizzle == 1 || swizzle == 2) && (descriptor >> 49 & 7) == 0;
  }

  // Where 8 elements are, in the arena. The swizzle is by bits of the address.
  size_t chunk(unsigned line, unsigned number) const {
    const size_t at = start_ + line / 8 * group_ + line % 8 * line_ + number * 16;
    return at ^ (at >> 3 & (line_ == 128 ? 0x70 : 0x30));
  }
  template <class F>
  void each_chunk(unsigned rows, F f) const {  // f(place, line, number)
    const unsigned lines = mn_major_ ? 16 : rows, chunks = mn_major_ ? rows / 8 : 2;
    for (unsigned line = 0; line < lines; ++line)
      for (unsigned number = 0; number < chunks; ++number) f(chunk(line, number), line, number);
  }
  void read(const char* arena, unsigned rows, std::vector<uint16_t>& to) const {
    to.resize(rows * 16);
    each_chunk(rows, [&](size_t at, unsigned line, unsigned number) {
      uint16_t its[8];
      std::memcpy(its, arena + at, sizeof its);
      for (unsigned e = 0; e < 8; ++e)
        to[mn_major_ ? (number * 8 + e) * 16 + line : line * 16 + number * 8 + e] = its[e];
    });
  }

 private:
  size_t start_, group_, line_;
  bool mn_major_;
};

// All chunks that an instruction reads.
template <class F>
void each_chunk(const Wgmma& op, unsigned columns, F f) {
  const auto place = [&](size_t at, unsigned, unsigned) { f(at); };
  if (!op.registers) Matrix(op.a).each_chunk(kRows, place);
  Matrix(op.b, op.b_mn_major).each_chunk(columns, place);
}

// Where thread t of the warpgroup has accumulator i in the 64 x columns tile.
size_t place_of(unsigned t, size_t i, size_t columns) {
  const size_t row = 16 * (t / 32) + t % 32 / 4 + 8 * (i / 2 % 2);
  return row * columns + 8 * (i / 4) + 2 * (t % 4) + i % 2;
}

// N of m64nNk16: 64 N accumulators among 128 threads.
unsigned columns_of(size_t count) { return static_cast<unsigned>(2 * count); }

Accumulators& take(Block& b, Fiber& f, float* d, size_t count) {
  for (Accumulators& a : f.accumulators)
    if (a.d == d) return a;
  Warpgroup& w = b.warpgroups[b.self / kThreads];
  const size_t tile = f.tiles++;
  if (w.tiles.size() <= tile) w.tiles.resize(tile + 1);
  if (w.tiles[tile].empty()) w.tiles[tile].resize(kRows * columns_of(count));
  for (size_t i = 0; i < count; ++i)
    w.tiles[tile][place_of(b.self % kThreads, i, columns_of(count))] = d[i];
  std::memset(d, 0xff, count * sizeof(float));
  f.accumulators.push_back({.d = d, .count = count, .tile = tile, .uses = 0});
  return f.accumulators.back();
}

// A from the registers of a warpgroup's threads, for the number-th instruction of their oldest
// groups.
void gather(const Block& b, unsigned first, size_t number, std::vector<uint16_t>& to) {
  to.resize(kRows * 16);
  for (unsigned t = 0; t < kThreads; ++t) {
    const Wgmma& op = b.fibers[first + t].wgmma_groups.front()[number];
    if (std::memcmp(op.registers, op.given, sizeof op.given) != 0)
      fail("overwritten: " + thread_name(first + t) + " has changed registers that the wgmma at " +
           place(op.at) + " reads, and has not waited for it");
    for (unsigned r = 0; r < 4; ++r)
      std::memcpy(&to[(16 * (t / 32) + t % 32 / 4 + 8 * (r % 2)) * 16 + 8 * (r / 2) + 2 * (t % 4)],
                  &op.given[r], 4);
  }
}

void perform(Block& b, unsigned first, size_t number, std::vector<float>& tile) {
  const Wgmma& op = b.fibers[first].wgmma_groups.front()[number];
  const unsigned columns = static_cast<unsigned>(tile.size() / kRows);
  std::vector<uint16_t> rows_a, rows_b;
  if (op.registers) gather(b, first, number, rows_a);
  else Matrix(op.a).read(b.arena, kRows, rows_a);
  Matrix(op.b, op.b_mn_major).read(b.arena, columns, rows_b);
  each_chunk(op, columns,
             [&](size_t at) { note_wgmma_done(b.arena + at, 16, first / kThreads, op.pc); });
  if (!op.accumulate) std::fill(tile.begin(), tile.end(), 0.f);
  mma_steps(op.type, kRows, static_cast<int>(columns),
            reinterpret_cast<const uint16_t (*)[16]>(rows_a.data()),
            reinterpret_cast<const uint16_t (*)[16]>(rows_b.data()), tile.data(),
            static_cast<int>(columns));
}

bool same(const Wgmma& x, const Wgmma& y) {
  return x.type == y.type && x.a == y.a && !x.registers == !y.registers && x.b == y.b &&
         x.b_mn_major == y.b_mn_major && x.accumulate == y.accumulate && x.tile == y.tile &&
         simt::same(x.at, y.at);
}

void expect_same_work(const Block& b, unsigned first) {
  const Fiber& f = b.fibers[first];
  for (unsigned t = first; t < first + kThreads; ++t) {
    const Fiber& other = b.fibers[t];
    bool good = simt::same(other.at, f.at) && other.wgmma_groups.size() == f.wgmma_groups.size();
    for (size_t g = 0; good && g < f.wgmma_groups.size(); ++g)
      good = std::equal(f.wgmma_groups[g].begin(), f.wgmma_groups[g].end(),
                        other.wgmma_groups[g].begin(), other.wgmma_groups[g].end(), same);
    if (!good)
      fail("divergent wgmma: " + thread_name(first) + ", which waits at " + place(f.at) + ", and " +
           thread_name(t) + ", which waits at " + place(other.at) +
           ", have given different instructions");
  }
}

// The oldest group of all threads of a warpgroup.
void perform_group(Block& b, unsigned first) {
  Warpgroup& w = b.warpgroups[first / kThreads];
  const std::vector<Wgmma>& group = b.fibers[first].wgmma_groups.front();
  for (size_t number = 0; number < group.size(); ++number) {
    const Wgmma& op = group[number];
    perform(b, first, number, w.tiles[op.tile]);
    for (unsigned t = first; t < first + kThreads; ++t) {
      std::vector<Accumulators>& all = b.fibers[t].accumulators;
      const auto a = std::find_if(all.begin(), all.end(),
                                  [&](const Accumulators& x) { return x.tile == op.tile; });
      if (--a->uses) continue;
      for (size_t i = 0; i < a->count; ++i)
        a->d[i] = w.tiles[op.tile][place_of(t - first, i, columns_of(a->count))];
      all.erase(a);
      if (t == first + kThreads - 1) std::vector<float>().swap(w.tiles[op.tile]);
    }
  }
  for (unsigned t = first; t < first + kThreads; ++t) {
    auto& groups = b.fibers[t].wgmma_groups;
    groups.erase(groups.begin());
  }
}

// The first thread of the running thread's warpgroup.
unsigned first_of_warpgroup(const Block& b, Site at) {
  const unsigned first = b.self / kThreads * kThreads;
  if (first + kThreads > b.threads)
    fail("wgmma: " + thread_name(b.self) + " at " + place(at) +
         " is not in a warpgroup of 128 threads");
  return first;
}

}  // namespace

uint64_t shared_address(const void* p) {
  const auto offset = static_cast<const char*>(p) - running->arena;
  if (offset >= 0 && offset < 1 << 18) return static_cast<uint64_t>(offset);
  const Quiet quiet;
  fail("out of bounds: no address in the shared memory of " + thread_name(running->self) +
       "'s block goes into a descriptor at " + place(__builtin_return_address(0)));
}

const Wgmma* reader_of(const Block& b, const char* p) {
  const auto chunk = static_cast<size_t>(p - b.arena) / 16 * 16;
  for (const Fiber& f : b.fibers) {
    const auto find = [&](const std::vector<Wgmma>& ops) -> const Wgmma* {
      for (const Wgmma& op : ops) {
        bool reads = false;
        for (const Accumulators& a : f.accumulators)
          if (a.tile == op.tile)
            each_chunk(op, columns_of(a.count), [&](size_t at) { reads = reads || at == chunk; });
        if (reads) return &op;
      }
      return nullptr;
    };
    for (const auto& group : f.wgmma_groups)
      if (const Wgmma* op = find(group)) return op;
    if (const Wgmma* op = find(f.wgmma_open)) return op;
  }
  return nullptr;
}

void wgmma(Half type, float* d, int count, uint64_t a, const uint32_t* registers, uint64_t b_,
           bool b_mn_major, bool accumulate, Site at) {
  const void* pc = __builtin_return_address(0);
  const Quiet quiet;
  const Hidden hidden;
  use_clocks();
  Block& b = *running;
  Fiber& f = b.fibers[b.self];
  first_of_warpgroup(b, at);
  if ((!registers && !Matrix::understood(a)) || !Matrix::understood(b_))
    fail("wgmma: a descriptor at " + place(at) + " that is not of rows of 64 or 128 bytes");
  if (b_mn_major && (count > 32 || b_ >> 62 != 1))
    fail("wgmma: an MN-major B at " + place(at) +
         " that is not of 64 columns at most in rows of 128 bytes");
  const auto size = static_cast<size_t>(count);
  const bool in_flight = std::any_of(f.accumulators.begin(), f.accumulators.end(),
                                     [&](const Accumulators& x) { return x.d == d; });
  // wgmmas of one shape need no fence for the accumulators that they share.
  if (!in_flight) expect_fenced(b, d, size * sizeof *d, at);
  if (registers) expect_fenced(b, registers, sizeof Wgmma::given, at);
  Accumulators& to = take(b, f, d, size);
  ++to.uses;
  to.at = at;
  Wgmma op{type, a, b_, b_mn_major, registers, {}, accumulate, to.tile, at, pc};
  if (registers) std::memcpy(op.given, registers, sizeof op.given);
  // Clocks are a warp's, and so one lane's look is enough.
  if (b.self % 32 == 0)
    each_chunk(op, columns_of(to.count),
               [&](size_t chunk) { note_wgmma(b.arena + chunk, 16, pc); });
  record({.what = What::wgmma, .number = record_product(op, columns_of(to.count)), .at = at});
  f.wgmma_open.push_back(op);
}

void fence_for_wgmma(Site at) {
  const Quiet quiet;
  const Hidden hidden;
  if (skips(Sync::wgmma_fence, at)) return;
  running->fibers[running->self].fence_phase = running->phase;
}

void wgmma_fence(Site at) {
  const Quiet quiet;
  const Hidden hidden;
  if (skips(Sync::wgmma_register_fence, at)) return;
  running->fibers[running->self].register_fence = ++machine().register_fences;
}

void wgmma_commit(Site at) {
  const Quiet quiet;
  const Hidden hidden;
  if (skips(Sync::wgmma_commit, at)) return;
  record({.what = What::wgmma_commit, .at = at});
  Fiber& f = running->fibers[running->self];
  f.wgmma_groups.push_back(std::move(f.wgmma_open));
  f.wgmma_open.clear();
}

void wgmma_wait(int groups_left, Site at) {
  Machine& m = machine();
  Block& b = *running;
  Fiber& f = b.fibers[b.self];
  {
    const Quiet quiet;
    const Hidden hidden;
    if (skips(Sync::wgmma_wait, at)) return;
    record({.what = What::wgmma_wait, .bytes = groups_left, .at = at});
    use_clocks();
    const unsigned first = first_of_warpgroup(b, at);
    Warpgroup& w = b.warpgroups[first / kThreads];
    f.wait = Wait::warpgroup;
    f.at = at;
    if (++w.here == static_cast<int>(kThreads)) {
      w.here = 0;
      expect_same_work(b, first);
      while (f.wgmma_groups.size() > static_cast<size_t>(groups_left)) perform_group(b, first);
      // Whichever thread goes on has behind it what the wgmma have read, and not what others of the
      // warpgroup have done otherwise: on the chip they do not meet here.
      m.here->clocks.finish(b.wgmma_agent(first), {b.agent(first), b.agent(first + 32),
                                                   b.agent(first + 64), b.agent(first + 96)});
      for (unsigned t = first; t < first + kThreads; ++t) b.fibers[t].wait = Wait::nothing;
      m.released = true;
    }
  }
  if (f.wait == Wait::warpgroup) to_scheduler();
}

}  // namespace xgemm::simt
