// TMA: boxes of a tensor into shared memory. They and all else that lands by itself do so as late
// as can be: when every thread waits.
#include "xgemm/device/ptx/tma.h"

#include <algorithm>
#include <numeric>

#include "emulator/machine.h"
#include "xgemm/device/ptx/mbarrier.h"

namespace xgemm::simt {
namespace {

uint32_t row_bytes(const TensorShape& map) { return map.box[0] * map.element; }
bool is_swizzled(const TensorShape& map) { return map.swizzle != 0; }
ptrdiff_t alignment(const TensorShape& map) { return is_swizzled(map) ? 1024 : 128; }
uint32_t rows(const TensorShape& map) { return map.box[1] * map.box[2]; }
int64_t box_bytes(const TensorShape& map) { return int64_t{row_bytes(map)} * rows(map); }

// Elements `first` to `last` of a box's row lie in the tensor, from `from` on; none: first == last.
struct Inside {
  int64_t first = 0, last = 0;
  const char* from = nullptr;
};
Inside inside(const TensorShape& map, const int (&c)[3], uint32_t row) {
  const int64_t c1 = c[1] + static_cast<int64_t>(row % map.box[1]);
  const int64_t c2 = c[2] + static_cast<int64_t>(row / map.box[1]);
  if (c1 < 0 || c2 < 0 || c1 >= static_cast<int64_t>(map.size[1]) ||
      c2 >= static_cast<int64_t>(map.size[2]))
    return {};
  const int64_t first = std::max<int64_t>(0, -int64_t{c[0]});
  const int64_t last =
      std::min<int64_t>(map.box[0], static_cast<int64_t>(map.size[0]) - int64_t{c[0]});
  if (first >= last) return {};
  return {first, last,
          static_cast<const char*>(map.data) + c2 * static_cast<int64_t>(map.stride[1]) +
              c1 * static_cast<int64_t>(map.stride[0]) + (c[0] + first) * map.element};
}

// Where a byte of a box goes: 16-byte chunks trade places within 1024 or 512 bytes, by bits of the
// address.
size_t place_of(const TensorShape& map, size_t offset) {
  if (!is_swizzled(map)) return offset;
  return map.swizzle == 128 ? offset ^ (offset >> 3 & 0x70) : offset ^ (offset >> 3 & 0x30);
}

struct Box {
  TensorShape map;
  int c[3];
};

void land(const Box& box, Block& to, char* smem, const Mbarrier* bar) {
  const uint32_t bytes = row_bytes(box.map);
  const auto at = static_cast<size_t>(smem - to.arena);
  std::vector<char> line(bytes);
  for (uint32_t r = 0; r < rows(box.map); ++r) {
    std::fill(line.begin(), line.end(), char{0});
    if (const Inside in = inside(box.map, box.c, r); in.from)
      std::memcpy(line.data() + in.first * box.map.element, in.from,
                  static_cast<size_t>(in.last - in.first) * box.map.element);
    for (size_t x = 0; x < bytes; x += 16)
      std::memcpy(to.arena + place_of(box.map, at + size_t{r} * bytes + x), line.data() + x, 16);
  }
  note_landed(to, smem, static_cast<size_t>(box_bytes(box.map)));
  mbarrier_complete(to, bar, box_bytes(box.map));
}

// The mbarriers for which threads wait.
std::vector<const Mbarrier*> awaited(const Machine& m) {
  std::vector<const Mbarrier*> some;
  for (unsigned r = 0; r < m.cluster; ++r)
    for (const Fiber& f : m.here->blocks[r]->fibers)
      if (f.wait == Wait::mbarrier && std::find(some.begin(), some.end(), f.mbarrier) == some.end())
        some.push_back(f.mbarrier);
  return some;
}

void issue(Block& to, const TensorShape& map, char* smem, const Mbarrier* bar, const int (&c)[3],
           const Site& at, const void* pc) {
  Block& b = *running;
  const ptrdiff_t offset = to.arena - b.arena;
  const auto* bar_there =
      reinterpret_cast<const Mbarrier*>(reinterpret_cast<const char*>(bar) + offset);
  if (to.finished == to.threads)
    fail("out of bounds: the TMA of " + thread_name(b.self) + " at " + place(at) +
         " writes to a block of the cluster that has exited");
  mbarrier_of(to, bar_there, "a TMA", at);
  const auto bytes = static_cast<size_t>(box_bytes(map));
  if (static_cast<size_t>(smem - b.arena) + bytes > kArena)
    fail("out of bounds: the TMA of " + thread_name(b.self) + " at " + place(at) +
         " writes beyond shared memory");
  note_tma(to, smem + offset, bytes, pc);
  std::memset(smem + offset, 0xff, bytes);
  const Box box{map, {c[0], c[1], c[2]}};
  machine().here->copies.push_back({&to, bar_there, "TMA", at, [box, &to, smem, offset, bar_there] {
                                      land(box, to, smem + offset, bar_there);
                                    }});
}

}  // namespace

void tma_load(void* smem, const TensorShape& map, Mbarrier* bar, int c0, int c1, int c2,
              unsigned mask, Site at) {
  const void* pc = __builtin_return_address(0);
  const Quiet quiet;
  const Hidden hidden;
  Machine& m = machine();
  Block& b = *running;
  auto* to = static_cast<char*>(smem);
  if (static_cast<size_t>(to - b.arena) >= kArena)
    fail("out of bounds: the TMA of " + thread_name(b.self) + " at " + place(at) +
         " does not write to its block's shared memory");
  if (const ptrdiff_t past = (to - b.arena) % alignment(map))
    fail("misaligned: the TMA of " + thread_name(b.self) + " at " + place(at) +
         " writes to a place that is " + std::to_string(past) + " past a multiple of " +
         std::to_string(alignment(map)));
  if (mask >> m.cluster)
    fail("out of bounds: the TMA of " + thread_name(b.self) + " at " + place(at) +
         " writes to more blocks than the cluster's " + std::to_string(m.cluster));
  const int c[3] = {c0, c1, c2};
  const char* from = nullptr;
  for (uint32_t r = 0; r < rows(map) && !from; ++r) from = inside(map, c, r).from;
  record({.what = What::tma,
          .bytes = static_cast<int32_t>(box_bytes(map)),
          .number = record_box(map, c, from, bar, mask),
          .at = at,
          .p = to});
  for (uint32_t r = 0; r < rows(map); ++r)
    if (const Inside in = inside(map, c, r); in.from)
      note_global(*running, in.from, static_cast<size_t>(in.last - in.first) * map.element, false,
                  pc);
  if (mask == 0) mask = 1u << b.rank;
  for (unsigned rank = 0; rank < m.cluster; ++rank)
    if (mask >> rank & 1) issue(*m.here->blocks[rank], map, to, bar, c, at, pc);
}

bool land_copies(Machine& m, Order how) {
  const std::vector<const Mbarrier*> bars = awaited(m);
  std::vector<size_t> some;
  for (size_t i = 0; i < m.here->copies.size(); ++i)
    if (std::find(bars.begin(), bars.end(), m.here->copies[i].bar) != bars.end()) some.push_back(i);
  if (some.empty()) return false;
  if (how == Order::reverse) std::reverse(some.begin(), some.end());
  if (how == Order::random) std::shuffle(some.begin(), some.end(), m.random);
  some.resize(how == Order::random ? 1 + m.random() % some.size() : 1);
  for (size_t i : some) m.here->copies[i].land();
  std::sort(some.rbegin(), some.rend());
  for (size_t i : some) m.here->copies.erase(m.here->copies.begin() + static_cast<ptrdiff_t>(i));
  return true;
}

void expect_nothing_on_its_way() {
  const Machine& m = machine();
  const Block& b = *running;
  for (const Landing& copy : m.here->copies)
    if (copy.to == &b)
      fail(std::string("unfinished copy: the block ends without a wait for its ") + copy.what +
           " at " + place(copy.at));
  // What an agent of another block did to this one last, and whether a barrier came after that.
  const auto known = [&](const std::vector<uint64_t>& last) {
    for (unsigned agent = 0; agent < last.size(); ++agent) {
      bool any = last[agent] == 0;
      for (unsigned t = 0; t < b.threads && !any; t += 32)
        any = m.here->clocks.knows(b.agent(t), agent, last[agent]);
      if (!any) return false;
    }
    return true;
  };
  for (const MbarrierState& bar : b.mbarriers)
    if (!known(bar.remote))
      fail(
          "mbarrier: the block ends with no barrier of the cluster after the arrival from "
          "another block at " +
          place(bar.site));
  if (!known(b.read_by_others))
    fail(
        "out of bounds: the block ends with no barrier of the cluster after another block has read "
        "its shared memory at " +
        place(b.read_at));
}

}  // namespace xgemm::simt

namespace xgemm {
inline namespace host {

// What the driver's cuTensorMapEncodeTiled refuses.
TensorMap make_tensor_map(const TensorShape& s) {
  const auto expect = [](bool good, const char* what) {
    if (!good) throw std::runtime_error(std::string("xgemm simt: a tensor map ") + what);
  };
  expect(reinterpret_cast<uintptr_t>(s.data) % 16 == 0, "of data that is not aligned to 16 bytes");
  for (uint64_t size : s.size)
    expect(size > 0 && size <= uint64_t{1} << 32, "with a size that is not in 1 to 2^32");
  for (uint64_t stride : s.stride)
    expect(stride % 16 == 0 && stride > 0 && stride < uint64_t{1} << 40,
           "with a stride that is no multiple of 16 bytes below 2^40");
  for (uint32_t box : s.box) expect(box > 0 && box <= 256, "with a box that is not 1 to 256 wide");
  expect(simt::row_bytes(s) % 16 == 0, "with rows of a box that are no multiple of 16 bytes");
  expect(
      s.swizzle == 0 || ((s.swizzle == 64 || s.swizzle == 128) && s.swizzle == simt::row_bytes(s)),
      "that swizzles rows of other than 64 or 128 bytes");
  return s;
}

}  // namespace host
}  // namespace xgemm
