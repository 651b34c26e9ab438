#include "xgemm/dispatch/overrides.h"

#include <atomic>
#include <stdexcept>

#include "xgemm/core/limits.h"
#include "xgemm/core/split_k.h"

namespace xgemm {
namespace {

std::atomic<int> row_asked = -1;
std::atomic<int64_t> share_asked = -1;

}  // namespace

void set_overrides(const Overrides& asked) {
  row_asked = asked.row;
  share_asked = asked.share;
}

int64_t split_k_size_of(const Gemm& g) {
  const int64_t asked = share_asked.load(std::memory_order_relaxed);
  return asked >= 0 ? asked : split_k_size(g.m, g.n, g.k, g.batch);
}

int forced_row(const Stage& stage, const Device& device) {
  const int wanted = row_asked.load(std::memory_order_relaxed);
  if (wanted >= static_cast<int>(stage.tiles.size()))
    throw std::invalid_argument(stage.name + ": its tile table has " +
                                std::to_string(stage.tiles.size()) + " row(s), row " +
                                std::to_string(wanted) + " is asked for");
  if (wanted >= 0 && !fits(stage.tiles[static_cast<size_t>(wanted)], device))
    throw std::invalid_argument(stage.name + ": row " + std::to_string(wanted) +
                                " of its tile table needs " +
                                std::to_string(stage.tiles[static_cast<size_t>(wanted)].smem()) +
                                " bytes of shared memory a block, this device has " +
                                std::to_string(smem_of_block(device.sm)));
  return wanted;
}

}  // namespace xgemm
