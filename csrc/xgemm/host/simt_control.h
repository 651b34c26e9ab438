// What tests and users may set and ask about the host flavour.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "xgemm/stage.h"

namespace xgemm::simt {

enum class Order { forward, reverse, random };

struct Settings {
  Order order = Order::random;   // of threads within a phase, and of blocks
  uint64_t seed = 0;             // of the random order
  std::string
      skip_barrier;  // "05_smem_tiled.cu:31": that barrier does nothing, as if it had been deleted
  int row = -1;  // of the tile table of a stage called by its name, in both flavours
};

Settings settings();
void configure(const Settings&);

// Settings::row for this stage: -1 where the row is to be chosen. Throws std::invalid_argument when
// the stage has no such row.
int forced_row(const Stage& stage);

// Every barrier that has run since the library was loaded, as "file.cu:line".
std::vector<std::string> barriers();

// Runs a stage of the host flavour with every access of its kernels watched: anything but the
// operands and the workspace is out of bounds. Throws std::runtime_error for what the kernel does
// wrong.
void run_watched(const Stage& stage, const Gemm& g);

// Runs a kernel with one planted fault (host/probes.cu); it throws when the fault is found, as it
// must be.
void probe(const std::string& fault);
std::vector<std::string> probes();

}  // namespace xgemm::simt
