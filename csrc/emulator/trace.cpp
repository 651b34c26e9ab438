// A stage's run on a small problem as a table of events, in the terms of the problem: operands and
// elements, arrays and bytes.
#include "emulator/trace.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "emulator/machine.h"
#include "emulator/simt_control.h"

namespace xgemm::simt {
namespace {

// Where a block's array lies on a GPU: arrays follow one another, each aligned to 128 bytes. The
// zones between them here are multiples of that, so that an address's bank is the same.
size_t packed(const Block& b, size_t array) {
  size_t offset = 0;
  for (size_t i = 0; i < array; ++i) offset += (b.arrays[i].bytes + 127) / 128 * 128;
  return offset;
}

struct Tracer : Recorder {
  const Gemm& g;
  Sites sites;
  Trace trace;
  size_t placed = 0;  // products whose operands' places are those of a GPU

  explicit Tracer(const Gemm& problem) : g(problem) {}

  // Where a descriptor's bytes, counted in the arena, lie on a GPU.
  static int64_t packed_from_arena(const Block& b, int64_t at) {
    for (size_t i = 0; i < b.arrays.size(); ++i)
      if (static_cast<size_t>(at) - b.arrays[i].offset < b.arrays[i].bytes)
        return static_cast<int64_t>(packed(b, i)) + at - static_cast<int64_t>(b.arrays[i].offset);
    return at;
  }

  // Operand and element of a global address; "" where it is none.
  TraceRow element(const Block& b, const char* p, TraceRow row) const {
    const View<const float> d{g.d.data, g.d.rs, g.d.cs, g.d.bs};
    for (const Operand& o : *b.operands) {
      // The second half of a word, too, where all that is moved is asked for.
      const ptrdiff_t past = asynchronous && o.base && p >= o.base ? (p - o.base) % 4 : 0;
      const int64_t offset = o.element(p - past);
      if (offset < 0) continue;
      row.operand = o.name[0];
      if (row.operand == 't') row.operand = 'W';   // "the workspace": a vector
      const View<const float>& v = row.operand == 'A' ? g.a : row.operand == 'B' ? g.b : d;
      const bool by_rows = row.operand == 'W' || v.cs == 1;
      const int64_t ld = row.operand == 'W' ? INT64_MAX : by_rows ? v.rs : v.cs;
      row.i = offset / ld;
      row.j = offset % ld;
      if (!by_rows) std::swap(row.i, row.j);
      break;
    }
    return row;
  }

  TraceRow shared(const Block& b, const char* p, TraceRow row) const {
    const auto offset = static_cast<size_t>(p - b.arena);
    for (size_t i = 0; i < b.arrays.size(); ++i)
      if (offset - b.arrays[i].offset < b.arrays[i].bytes) {
        row.array = static_cast<int64_t>(i);
        row.offset = static_cast<int64_t>(offset - b.arrays[i].offset);
      }
    return row;
  }

  void block_ends(const Block& b) override {
    std::vector<Event>& events = this->events[b.rank];
    const int64_t launch = static_cast<int64_t>(trace.launches.size());
    trace.launches.push_back({{b.grid.x, b.grid.y, b.grid.z}, {b.dims.x, b.dims.y, b.dims.z}, {}});
    for (size_t i = 0; i < b.arrays.size(); ++i)
      trace.launches.back().arrays.push_back({b.arrays[i].name, packed(b, i), b.arrays[i].bytes});
    std::stable_sort(events.begin(), events.end(),
                     [](const Event& x, const Event& y) { return x.thread < y.thread; });
    for (; placed < products.size(); ++placed) {
      TraceProduct& p = products[placed];
      if (p.a >= 0) p.a = packed_from_arena(b, p.a);
      p.b = packed_from_arena(b, p.b);
    }
    for (const Event& e : events) {
      if (e.what > What::barrier && !asynchronous) continue;
      TraceRow row;
      row.launch = launch;
      row.what = static_cast<int64_t>(e.what);
      row.thread = e.thread;
      row.phase = e.phase;
      row.bytes = e.bytes;
      switch (e.what) {
        case What::global_load:
        case What::global_store:
          row = element(b, e.p, row);
          if (!row.operand) continue;   // a constant of the library
          break;
        case What::copy_issue:
          if (e.source) row = element(b, e.source, row);
          [[fallthrough]];
        case What::shared_load:
        case What::shared_store:
          row = shared(b, e.p, row);
          break;
        case What::tma:
          row.operand = boxes[static_cast<size_t>(e.number)].operand;
          row.i = e.number;
          [[fallthrough]];
        case What::mbarrier_init:
        case What::mbarrier_arrival:
        case What::mbarrier_copies:
        case What::mbarrier_wait:
          row = shared(b, e.p, row);
          break;
        default:
          row.i = e.number;
          break;
      }
      row.site = sites[e];
      trace.rows.push_back(row);
    }
    events.clear();
  }
};

}  // namespace

int Sites::operator[](const Event& e) {
  const auto [slot, fresh] = number_.try_emplace(Key{e.pc, e.at}, static_cast<int>(first_.size()));
  if (fresh) first_.push_back(e);
  return slot->second;
}

std::vector<Place> Sites::places() const {
  std::vector<const void*> pcs;
  for (const Event& e : first_)
    if (e.pc) pcs.push_back(e.pc);
  const std::vector<Place> of_pcs = simt::places(pcs);
  auto next = of_pcs.begin();
  std::vector<Place> all;
  for (const Event& e : first_) all.push_back(e.pc ? *next++ : Place{place(e.at), "", {}});
  return all;
}

SmallProblem::SmallProblem(int64_t m, int64_t n, int64_t k, bool trans_a, bool trans_b) {
  if (m < 1 || n < 1 || k < 1) throw std::invalid_argument("simt: sizes must be positive");
  // What an allocator of device memory guarantees: sectors and 16-byte accesses count from there.
  constexpr int64_t kAlign = 512 / sizeof(float);
  const auto room = [](int64_t floats) { return (floats + kAlign - 1) / kAlign * kAlign; };
  const int64_t sizes[] = {room(m * k), room(k * n), room(m * n)};
  buffer_.resize(static_cast<size_t>(kAlign + sizes[0] + sizes[1] + sizes[2]));
  for (size_t i = 0; i < buffer_.size(); ++i) buffer_[i] = static_cast<float>(i % 7) - 3.f;
  float* a = buffer_.data();
  while (reinterpret_cast<uintptr_t>(a) % 512) ++a;
  float *b = a + sizes[0], *d = b + sizes[1];
  g.m = m, g.n = n, g.k = k;
  g.a = trans_a ? View<const float>{a, 1, m, 0} : View<const float>{a, k, 1, 0};
  g.b = trans_b ? View<const float>{b, 1, k, 0} : View<const float>{b, n, 1, 0};
  g.d = {d, n, 1, 0};
}

const Stage& host_stage(const std::string& name) {
  const Stage* stage = find_stage(Flavour::host, name);
  if (!stage) throw std::invalid_argument("simt: no stage named '" + name + "'");
  return *stage;
}

void run_recorded(const Stage& stage, const Gemm& g, Recorder& recorder) {
  Machine& m = machine();
  struct Attach {
    Machine& m;
    ~Attach() { m.recorder = nullptr; }
  } const attach{m};
  m.recorder = &recorder;
  run_watched(stage, g);
}

namespace {

template <class Item>
int numbered(std::vector<Item>& items, const Item& item) {
  // A warpgroup's threads say the same one after the other.
  constexpr ptrdiff_t kLately = 64;
  const auto first = items.end() - std::min<ptrdiff_t>(kLately, std::ssize(items));
  const auto number = static_cast<int>(std::find(first, items.end(), item) - items.begin());
  if (number == std::ssize(items)) items.push_back(item);
  return number;
}

}  // namespace

int record_box(const TensorShape& map, const int (&c)[3], const char* from, const void* bar,
               unsigned mask) {
  Recorder* to = running->recording;
  if (!to || !to->asynchronous) return -1;
  const Block& b = *running;
  TraceBox box;
  for (const Operand& o : *b.operands) {
    if (!from || o.element(from - (from - o.base) % 4) < 0) continue;
    box.operand = o.name[0] == 't' ? 'W' : o.name[0];
    box.base = static_cast<const char*>(map.data) - o.base;
    break;
  }
  for (int i = 0; i < 3; ++i) {
    box.c[i] = c[i];
    box.size[i] = static_cast<int64_t>(map.size[i]);
    box.box[i] = map.box[i];
  }
  box.stride[0] = static_cast<int64_t>(map.stride[0]);
  box.stride[1] = static_cast<int64_t>(map.stride[1]);
  box.element = map.element;
  box.swizzle = map.swizzle;
  box.mask = mask;
  const auto at = static_cast<size_t>(static_cast<const char*>(bar) - b.arena);
  for (size_t i = 0; i < b.arrays.size(); ++i)
    if (at - b.arrays[i].offset < b.arrays[i].bytes) {
      box.array = static_cast<int64_t>(i);
      box.offset = static_cast<int64_t>(at - b.arrays[i].offset);
    }
  return numbered(to->boxes, box);
}

int record_product(const Wgmma& op, unsigned columns) {
  Recorder* to = running->recording;
  if (!to || !to->asynchronous) return -1;
  // The fields of a descriptor, as in wgmma.cpp.
  const auto start = [](uint64_t d) { return static_cast<int64_t>((d & 0x3fff) << 4); };
  const auto group = [](uint64_t d) { return static_cast<int64_t>((d >> 32 & 0x3fff) << 4); };
  const auto row = [](uint64_t d) { return int64_t{d >> 62 == 1 ? 128 : 64}; };
  TraceProduct p;
  if (!op.registers) p.a = start(op.a), p.a_group = group(op.a), p.a_row = row(op.a);
  p.b = start(op.b), p.b_group = group(op.b), p.b_row = row(op.b);
  p.columns = columns;
  p.tile = static_cast<int64_t>(op.tile);
  p.accumulate = op.accumulate;
  return numbered(to->products, p);
}

Trace trace(const std::string& stage, int64_t m, int64_t n, int64_t k, bool trans_a, bool trans_b,
            int64_t block, bool asynchronous) {
  const SmallProblem problem(m, n, k, trans_a, trans_b);
  Tracer tracer(problem.g);
  tracer.block = block;
  tracer.asynchronous = asynchronous;
  if (block < 0) throw std::invalid_argument("simt: blocks are numbered from 0");
  run_recorded(host_stage(stage), problem.g, tracer);
  if (tracer.trace.launches.empty())
    throw std::invalid_argument("simt: no launch has a block " + std::to_string(block));
  tracer.trace.places = tracer.sites.places();
  tracer.trace.boxes = std::move(tracer.boxes);
  tracer.trace.products = std::move(tracer.products);
  return std::move(tracer.trace);
}

}  // namespace xgemm::simt
