// What a block does, event by event, for those who ask: recorded while its fibers run, in the order
// of each thread's program.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "emulator/block.h"
#include "xgemm/device/tensor_map.h"

namespace xgemm::simt {

enum class What : uint8_t {
  global_load,
  global_store,
  shared_load,
  shared_store,
  copy_issue,  // cp.async: from `source` to `p`
  copy_wait,
  barrier,
  // What threads start or wait for and do not do themselves; `p` is a TMA's place or an mbarrier.
  tma,
  mbarrier_init,
  mbarrier_arrival,
  mbarrier_copies,  // an arrival that waits for the thread's cp.asyncs
  mbarrier_wait,
  named_barrier,
  mma,
  wgmma,
  wgmma_commit,
  wgmma_wait
};
constexpr const char* kWhat[] = {
    "global load",     "global store",  "shared load",   "shared store",  "copy issue",
    "copy wait",       "barrier",       "tma",           "mbarrier init", "mbarrier arrival",
    "mbarrier copies", "mbarrier wait", "named barrier", "mma",           "wgmma",
    "wgmma commit",    "wgmma wait"};

constexpr What access(bool shared, bool write) {
  return shared ? (write ? What::shared_store : What::shared_load)
                : (write ? What::global_store : What::global_load);
}

struct Event {
  What what;
  uint16_t thread = 0;  // of the block
  uint32_t phase = 0;  // barriers that the block has passed
  // Moved; by a wait: that have landed through it. Of an mbarrier's init: arrivals, of its arrival:
  // bytes that are expected, of its wait: phases that had ended; of a named barrier: its threads,
  // of a wait for wgmmas: groups that may be left.
  int32_t bytes = 0;
  int32_t number = -1;  // of the Recorder's box or product; of a named barrier
  const void* pc = nullptr;  // of an access ...
  Site at{};  // ... and of what is no access
  const char* p = nullptr;
  const char* source = nullptr;  // null: cp.async fills with zeros
};

struct Recorder {
  int64_t block = -1;  // of the grid; -1: each
  std::vector<Event> events[kMostBlocks];  // of the blocks that run, by rank in their cluster
  bool asynchronous = false;  // whether it asks for boxes and products
  std::vector<TraceBox> boxes;
  std::vector<TraceProduct> products;

  virtual ~Recorder() = default;
  bool wants(const Block& b) const { return block < 0 || block == b.linear; }
  virtual void block_ends(const Block& b) = 0;  // takes the events away
};

// The number of a TMA's box, or of what a wgmma multiplies, among those of the running block's
// recorder; -1 where none asks. `from`: an element of the box, null where all of it is outside.
int record_box(const TensorShape& map, const int (&c)[3], const char* from, const void* bar,
               unsigned mask);
int record_product(const Wgmma& op, unsigned columns);

constexpr size_t kMostEvents = size_t{1} << 25;

inline void record(Event e, const Block& b = *running) {
  Recorder* to = b.recording;
  if (!to) [[likely]]
    return;
  std::vector<Event>& events = to->events[b.rank];
  if (events.size() == kMostEvents)
    fail("a block with more than " + std::to_string(kMostEvents) + " events: trace a smaller k");
  e.thread = static_cast<uint16_t>(b.self);
  e.phase = b.passed;
  events.push_back(e);
}

// The instructions that a recorder has met, numbered from 0 in the order of their first event.
class Sites {
 public:
  int operator[](const Event& e);
  std::vector<Place> places() const;
  int size() const { return static_cast<int>(first_.size()); }

 private:
  struct Key {
    const void* pc;
    Site at;
    bool operator==(const Key& k) const {
      return pc == k.pc && at.file == k.at.file && at.line == k.at.line;
    }
  };
  struct Hash {
    size_t operator()(const Key& k) const {
      return std::hash<const void*>()(k.pc) * 31 + std::hash<const void*>()(k.at.file) * 7 +
             static_cast<size_t>(k.at.line);
    }
  };
  std::unordered_map<Key, int, Hash> number_;
  std::vector<Event> first_;  // of each
};

// An m x n x k problem of dense operands, as torch would lay them out, and their buffers; the
// elements are small whole numbers.
struct SmallProblem {
  Gemm g;

  SmallProblem(int64_t m, int64_t n, int64_t k, bool trans_a, bool trans_b);

 private:
  std::vector<float> buffer_;
};

// Runs a stage under watch, its blocks recorded.
void run_recorded(const Stage& stage, const Gemm& g, Recorder& recorder);
std::vector<TrafficRow> traffic(const Stage& stage, const Gemm& g);

// Throws std::invalid_argument when there is none of that name.
const Stage& host_stage(const std::string& name);

}  // namespace xgemm::simt
