#include "xgemm/core/stage.h"

#include <algorithm>
#include <stdexcept>

#include "xgemm/core/limits.h"
#include "xgemm/core/tile_scheduler.h"

namespace xgemm {
namespace {

// Function-local, so that it exists before the first Register of any translation unit runs.
std::vector<Stage>& table(Flavour flavour) {
  static std::vector<Stage> host, cuda;
  return flavour == Flavour::host ? host : cuda;
}

std::vector<StageFault>& faults() {
  static std::vector<StageFault> all;
  return all;
}

bool is_word(const std::string& s) {
  const auto letter = [](char c) {
    return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  };
  const auto in_word = [&](char c) { return letter(c) || (c >= '0' && c <= '9'); };
  return !s.empty() && letter(s[0]) && std::all_of(s.begin(), s.end(), in_word);
}

// What is wrong with a stage by itself, or an empty string.
std::string fault_of(const Stage& s) {
  if (!is_word(s.name) || s.name == "sgemm" || s.name == "prepack" || s.name == "grouped_mm" ||
      s.name == "mixed_mm" || s.name == "auto")
    return "its name cannot be an operator's";
  if (s.rung < 0) return "its rung must not be negative";
  if (!s.run) return "it has no run";
  if (!s.pack != !s.packed_bytes) return "it has one of pack and packed_bytes, and needs both";
  if (s.tiles.empty()) return "its tile table is empty";
  for (size_t i = 0; i < s.tiles.size(); ++i)
    if (const char* rule = s.tiles[i].violation())
      return "row " + std::to_string(i) + " of its tile table is illegal: " + rule;
  return "";
}

bool before(const Stage& a, const Stage& b) {
  if (a.rung == b.rung) return a.name < b.name;
  return b.rung == 0 || (a.rung != 0 && a.rung < b.rung);
}

std::string clash(const Stage& s, const Stage& kept) {
  return s.name == kept.name
             ? "another stage has its name"
             : "its rung, " + std::to_string(s.rung) + ", is that of " + kept.name + ", too";
}

void add(Flavour flavour, Stage&& stage) {
  auto& all = table(flavour);
  const auto leave_out = [&](const Stage& s, const std::string& why) {
    faults().push_back({flavour, s.name, s.rung, why});
  };
  if (const std::string why = fault_of(stage); !why.empty()) return leave_out(stage, why);
  const auto clashes = [&](const Stage& s) {
    return s.name == stage.name || (s.rung != 0 && s.rung == stage.rung);
  };
  for (const Stage& s : all)
    if (clashes(s) && !before(stage, s)) return leave_out(stage, clash(stage, s));
  for (const Stage& s : all)
    if (clashes(s)) leave_out(s, clash(s, stage));
  all.erase(std::remove_if(all.begin(), all.end(), clashes), all.end());
  all.insert(std::upper_bound(all.begin(), all.end(), stage, before), std::move(stage));
}

bool too_old(const Stage& s, const Device& device) { return device.sm && device.sm < s.min_sm; }
bool too_new(const Stage& s, const Device& device) {
  return device.sm && s.max_sm && device.sm > s.max_sm;
}
bool none_fits(const Stage& s, const Device& device) {
  return !s.tiles.empty() && std::none_of(s.tiles.begin(), s.tiles.end(),
                                          [&](const Tile& t) { return fits(t, device); });
}

// Stages count slices of K, 8 or more of it each, in 32 bits.
constexpr int64_t kMostK = int64_t{1} << 33;
bool too_deep(const Gemm& g) { return g.k > kMostK; }

}  // namespace

std::string Stage::file() const {
  if (rung == 0) return "shapes/" + name + ".cu";
  return (rung < 10 ? "ladder/0" : "ladder/") + std::to_string(rung) + "_" + name + ".cu";
}

const std::vector<Stage>& stages(Flavour flavour) { return table(flavour); }

const Stage* find_stage(Flavour flavour, const std::string& name) {
  for (const Stage& s : table(flavour))
    if (s.name == name) return &s;
  return nullptr;
}

size_t workspace_of(const Stage& s, const Gemm& g, const Context& context) {
  return s.workspace && !too_deep(g) ? s.workspace(g, context) : 0;
}

int64_t units_of(const Stage& s, int row, const Gemm& g) {
  if (!s.unit_rows) return 0;
  return tile_count(g, s.unit_rows, s.tiles[static_cast<size_t>(row)].BN) * g.batch;
}

std::string why_not(const Stage& s, const Gemm& g, const Device& device) {
  if (too_old(s, device))
    return "needs compute capability " + std::to_string(s.min_sm) + " or above, this device has " +
           std::to_string(device.sm);
  if (too_new(s, device))
    return "is code for compute capability " + std::to_string(s.max_sm) +
           " at most, this device has " + std::to_string(device.sm);
  if (none_fits(s, device))
    return "has no tile that fits this device's " +
           std::to_string(smem_of_block(device.sm) / 1024) + " KiB of shared memory for a block";
  if (too_deep(g))
    return "takes K up to " + std::to_string(kMostK) + ", this is " + std::to_string(g.k);
  const Status status = s.can_implement ? s.can_implement(g) : nullptr;
  return status ? "" : status.why_not;
}

bool can_implement(const Stage& s, const Gemm& g, const Device& device) {
  return !too_old(s, device) && !too_new(s, device) && !none_fits(s, device) && !too_deep(g) &&
         (!s.can_implement || s.can_implement(g));
}

void require(const Stage& stage, const Gemm& g, const Device& device) {
  const std::string why = why_not(stage, g, device);
  if (!why.empty()) throw std::invalid_argument(stage.name + ": " + why);
}

OperatorBody operator_body = nullptr;
void (*when_loaded)() = nullptr;

void add_stage(Flavour flavour, Stage stage) noexcept {
  const std::string name = stage.name;
  const int rung = stage.rung;
  try {
    add(flavour, std::move(stage));
  } catch (const std::exception& e) {
    faults().push_back({flavour, name, rung, e.what()});
  }
}

const std::vector<StageFault>& stage_faults() { return faults(); }

const StageFault* find_fault(Flavour flavour, const std::string& name) {
  for (const StageFault& f : faults())
    if (f.flavour == flavour && f.name == name) return &f;
  return nullptr;
}

}  // namespace xgemm
