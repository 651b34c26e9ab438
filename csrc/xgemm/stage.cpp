#include "xgemm/stage.h"

#include <algorithm>
#include <stdexcept>

#include "xgemm/limits.h"

namespace xgemm {
namespace {

// Function-local, so that it exists before the first Register of any translation unit runs.
std::vector<Stage>& table(Flavour flavour) {
  static std::vector<Stage> host, cuda;
  return flavour == Flavour::host ? host : cuda;
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

const std::vector<Stage>& stages(Flavour flavour) { return table(flavour); }

const Stage* find_stage(Flavour flavour, const std::string& name) {
  for (const Stage& s : table(flavour))
    if (s.name == name) return &s;
  return nullptr;
}

size_t workspace_of(const Stage& s, const Gemm& g, const Context& context) {
  return s.workspace && !too_deep(g) ? s.workspace(g, context) : 0;
}

std::string refusal(const Stage& s, const Gemm& g, const Device& device) {
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
  const char* why = s.refuse ? s.refuse(g) : nullptr;
  return why ? why : "";
}

bool takes(const Stage& s, const Gemm& g, const Device& device) {
  return !too_old(s, device) && !too_new(s, device) && !none_fits(s, device) && !too_deep(g) &&
         !(s.refuse && s.refuse(g));
}

void require(const Stage& stage, const Gemm& g, const Device& device) {
  const std::string why = refusal(stage, g, device);
  if (!why.empty()) throw std::invalid_argument(stage.name + ": " + why);
}

Register::Register(Flavour flavour, Stage stage) {
  auto& all = table(flavour);
  for (const Stage& s : all)
    if (s.name == stage.name || s.rung == stage.rung)
      throw std::logic_error("xgemm: stages " + s.name + " and " + stage.name +
                             " share a name or a rung");
  for (const Tile& t : stage.tiles)
    if (!t.legal()) throw std::logic_error("xgemm: stage " + stage.name + " has an illegal tile");
  all.insert(std::upper_bound(all.begin(), all.end(), stage,
                              [](const Stage& a, const Stage& b) { return a.rung < b.rung; }),
             std::move(stage));
}

}  // namespace xgemm
