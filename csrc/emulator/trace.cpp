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

  explicit Tracer(const Gemm& problem) : g(problem) {}

  // Operand and element of a global address; "" where it is none.
  TraceRow element(const Block& b, const char* p, TraceRow row) const {
    const View<const float> d{g.d.data, g.d.rs, g.d.cs, g.d.bs};
    for (const Operand& o : *b.operands) {
      const int64_t offset = o.element(p);
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
    for (const Event& e : events) {
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
        default:
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
  for (const Event& e : first_) all.push_back(e.pc ? *next++ : Place{place(e.at), ""});
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

Trace trace(const std::string& stage, int64_t m, int64_t n, int64_t k, bool trans_a, bool trans_b,
            int64_t block) {
  const SmallProblem problem(m, n, k, trans_a, trans_b);
  Tracer tracer(problem.g);
  tracer.block = block;
  if (block < 0) throw std::invalid_argument("simt: blocks are numbered from 0");
  run_recorded(host_stage(stage), problem.g, tracer);
  if (tracer.trace.launches.empty())
    throw std::invalid_argument("simt: no launch has a block " + std::to_string(block));
  tracer.trace.places = tracer.sites.places();
  return std::move(tracer.trace);
}

}  // namespace xgemm::simt
