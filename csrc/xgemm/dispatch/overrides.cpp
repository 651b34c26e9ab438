#include "xgemm/dispatch/overrides.h"

#include <atomic>
#include <stdexcept>
#include <string>

#include "xgemm/core/limits.h"
#include "xgemm/core/split_k.h"

namespace xgemm {
namespace {

std::atomic<int> row_asked = -1;
std::atomic<int64_t> split_k_size_asked = -1, slab_bytes_asked = -1;

// Why the row cannot be run, or an empty string, as for -1.
std::string why_not(const Stage& stage, int row, const Device& device) {
  if (row < 0) return "";
  if (row >= static_cast<int>(stage.tiles.size()))
    return "its tile table has " + std::to_string(stage.tiles.size()) + " row(s), row " +
           std::to_string(row) + " is asked for";
  const Tile& t = stage.tiles[static_cast<size_t>(row)];
  if (fits(t, device)) return "";
  return "row " + std::to_string(row) + " of its tile table needs " + std::to_string(t.smem()) +
         " bytes of shared memory a block, this device has " +
         std::to_string(smem_of_block(device.sm));
}

}  // namespace

void set_overrides(const Overrides& asked) {
  row_asked = asked.row;
  split_k_size_asked = asked.split_k_size;
  slab_bytes_asked = asked.slab_bytes;
}

int64_t split_k_size_of(const Gemm& g) {
  const int64_t asked = split_k_size_asked.load(std::memory_order_relaxed);
  return asked >= 0 ? asked : split_k_size(g.m, g.n, g.k, g.batch);
}

size_t slab_bytes_of_all() {
  const int64_t asked = slab_bytes_asked.load(std::memory_order_relaxed);
  return asked >= 0 ? static_cast<size_t>(asked) : kSlabBytes;
}

int forced_row(const Stage& stage, const Device& device) {
  const int wanted = row_asked.load(std::memory_order_relaxed);
  if (const std::string why = why_not(stage, wanted, device); !why.empty())
    throw std::invalid_argument(stage.name + ": " + why);
  return wanted;
}

int row_by_name(const Stage& stage, const Device& device, int chosen) {
  const int wanted = row_asked.load(std::memory_order_relaxed);
  return wanted >= 0 && why_not(stage, wanted, device).empty() ? wanted : chosen;
}

}  // namespace xgemm
