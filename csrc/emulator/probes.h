// Small kernels that test the alarms: with a planted fault each, or right and not to raise them.
#pragma once

#include <span>

#include "emulator/simt_control.h"
#include "xgemm/device/platform.h"

namespace xgemm::simt {

constexpr int kThreads = 64;   // of a probe's block, mostly

// cp.async of one float.
inline void copy_late(float* to, const float* from) { copy_issue(to, from, 4, 4); }

struct Probe {
  const char* name;
  void (*kernel)(Gemm);
  unsigned blocks = 1, threads = kThreads;
  float (*right)(int i) = nullptr;  // of a kernel without a fault: what it stores, A(0, i) being i
};

std::span<const Probe> warp_probes();  // probes_warp.cu

// probes_signals.cu; false where there is none of that name.
std::vector<ProbeName> signal_probes();
bool run_signal_probe(const std::string& name);

// probes_hopper.cu; false where there is none of that name.
std::vector<ProbeName> product_probes();
bool run_product_probe(const std::string& name);

}  // namespace xgemm::simt
