// What a kernel's warps ask of memory, counted: wavefronts of shared memory and sectors of global
// memory, by a model of the hardware (sm_70 and later).
//
// A request is one warp instruction: the n-th execution of one instruction by the lanes of a warp
// between two barriers. cp.async is a request to both memories.
//
// Shared memory has 32 banks of 4 bytes. A request is served in passes of at most 128 bytes: 4-byte
// accesses by whole warps, 8-byte ones by half warps, 16-byte ones by quarters. Loads of 8 and 16
// bytes need half as many passes when all lanes l and l ^ 1, or all lanes l and l ^ 2, read the
// same address: data comes back at a register a lane a cycle, and two lanes share one (NVIDIA's
// engineers on their forum; a 16-byte broadcast was measured on an H200 as two wavefronts, 512
// different bytes as four). A pass takes as many wavefronts as there are different words in its
// fullest bank: the first of them is the ideal, the rest are conflicts.
//
// Global memory moves in sectors of 32 bytes: a request takes as many as its lanes touch, and the
// ideal is what its different words would fill.
#include <algorithm>
#include <array>
#include <map>

#include "emulator/simt_control.h"
#include "emulator/trace.h"

namespace xgemm::simt {
namespace {

struct Access {
  int site;
  What what;
  uint16_t thread;
  uint32_t number;  // executions of the site by the thread before this one, in this phase
  int32_t bytes;
  uintptr_t address;

  auto request() const { return std::make_tuple(site, what, number, thread / 32); }
};

using Lanes = std::array<const Access*, 32>;  // null: not active

size_t different(std::vector<uintptr_t>& items) {
  std::sort(items.begin(), items.end());
  return static_cast<size_t>(std::unique(items.begin(), items.end()) - items.begin());
}

void add_words(const Access& a, std::vector<uintptr_t>& words) {
  for (uintptr_t w = a.address / 4; w <= (a.address + static_cast<uintptr_t>(a.bytes) - 1) / 4; ++w)
    words.push_back(w);
}

bool paired(const Lanes& lanes, unsigned distance) {
  for (unsigned l = 0; l < 32; ++l) {
    const Access *x = lanes[l], *y = lanes[l ^ distance];
    if (x && y && x->address != y->address) return false;
  }
  return true;
}

void count_shared(const Lanes& lanes, int32_t bytes, TrafficRow& row) {
  unsigned together = bytes <= 4 ? 32 : bytes <= 8 ? 16 : 8;
  if (bytes > 4 && row.what == kWhat[static_cast<int>(What::shared_load)] &&
      (paired(lanes, 1) || paired(lanes, 2)))
    together *= 2;
  for (unsigned first = 0; first < 32; first += together) {
    std::vector<uintptr_t> words;
    for (unsigned l = first; l < first + together; ++l)
      if (lanes[l]) add_words(*lanes[l], words);
    if (words.empty()) continue;
    words.resize(different(words));
    int64_t in_bank[32] = {};
    for (uintptr_t w : words) ++in_bank[w % 32];
    const int64_t ways = *std::max_element(in_bank, in_bank + 32);
    row.units += ways;
    row.ideal += 1;
    row.worst = std::max(row.worst, ways);
  }
}

void count_global(const Lanes& lanes, TrafficRow& row) {
  std::vector<uintptr_t> words, sectors;
  for (const Access* a : lanes)
    if (a) add_words(*a, words);
  words.resize(different(words));
  for (uintptr_t w : words) sectors.push_back(w / 8);
  const auto touched = static_cast<int64_t>(different(sectors));
  row.units += touched;
  row.ideal += static_cast<int64_t>((words.size() + 7) / 8);
  row.worst = std::max(row.worst, touched);
}

struct Counter : Recorder {
  Sites sites;
  std::map<std::pair<int, What>, TrafficRow> rows;
  std::vector<Access> accesses;  // of a phase
  std::vector<uint32_t> executed;  // by thread and site, in this phase

  void block_ends(const Block& b) override {
    std::vector<Event>& events = this->events[b.rank];
    std::vector<int> numbers(events.size());
    for (size_t e = 0; e < events.size(); ++e) numbers[e] = sites[events[e]];
    const size_t threads = b.threads, count = 1 + static_cast<size_t>(sites.size());
    for (size_t e = 0; e < events.size();) {
      const uint32_t phase = events[e].phase;
      executed.assign(threads * count, 0);
      accesses.clear();
      for (; e < events.size() && events[e].phase == phase; ++e) {
        const Event& x = events[e];
        const uint32_t number = executed[x.thread * count + static_cast<size_t>(numbers[e])]++;
        const auto add = [&](What what, const char* p) {
          accesses.push_back(
              {numbers[e], what, x.thread, number, x.bytes, reinterpret_cast<uintptr_t>(p)});
        };
        if (x.what <= What::shared_store && !is_constant(b, x)) add(x.what, x.p);
        if (x.what == What::copy_issue) {
          add(What::shared_store, x.p);
          if (x.source) add(What::global_load, x.source);
        }
      }
      count_requests();
    }
    events.clear();
  }

  // A read of the library's own constants.
  static bool is_constant(const Block& b, const Event& x) {
    if (x.what != What::global_load) return false;
    return std::none_of(b.operands->begin(), b.operands->end(),
                        [&](const Operand& o) { return o.element(x.p) >= 0; });
  }

  void count_requests() {
    std::sort(accesses.begin(), accesses.end(),
              [](const Access& x, const Access& y) { return x.request() < y.request(); });
    for (auto a = accesses.begin(); a != accesses.end();) {
      TrafficRow& row = rows[{a->site, a->what}];
      row.what = kWhat[static_cast<int>(a->what)];
      row.requests += 1;
      Lanes lanes{};
      const Access& first = *a;
      for (; a != accesses.end() && a->request() == first.request(); ++a) {
        lanes[a->thread % 32] = &*a;
        row.bytes += a->bytes;
      }
      if (first.what == What::shared_load || first.what == What::shared_store)
        count_shared(lanes, first.bytes, row);
      else count_global(lanes, row);
    }
  }
};

}  // namespace

std::vector<TrafficRow> traffic(const Stage& stage, const Gemm& g) {
  Counter counter;
  run_recorded(stage, g, counter);
  const std::vector<Place> places = counter.sites.places();
  std::vector<TrafficRow> all;
  for (auto& [key, row] : counter.rows) {
    row.place = places[static_cast<size_t>(key.first)];
    all.push_back(row);
  }
  return all;
}

std::vector<TrafficRow> traffic(const std::string& stage, int64_t m, int64_t n, int64_t k,
                                bool trans_a, bool trans_b) {
  return traffic(host_stage(stage), SmallProblem(m, n, k, trans_a, trans_b).g);
}

}  // namespace xgemm::simt
