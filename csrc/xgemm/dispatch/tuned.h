// What users have measured of their own problems (`python -m xgemm_torch tune`): the file that it
// is kept in, and the index in which `auto` finds a problem again.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "xgemm/core/stage.h"

namespace xgemm {

// One problem, measured on one GPU for one precision; a block of the file, in words:
//
//   problem 1000 50257 768 NT 2 fp32        sizes m, n, k; TablePoint's layout and wide; precision;
//                                           and how many in a batch, if they are several
//   gpu 90 132 NVIDIA H200                  compute capability, multiprocessors, name
//   date 2026-11-22
//   with driver 570.1, torch 2.11.0         for people alone
//   rows 0.1.0 5f2b9c01a4de                 of which library: its version, its tile tables
//   torch.mm 1823.4                         microseconds, as all times
//   time 502.13 vec4_128x128 128x128x8 ...  a row by its name, for as many as were measured
//
// The file's first line is kTunedTitle; empty lines and those that begin with # say nothing.
struct TunedRecord {
  struct Time {
    double us = 0;
    std::string row;  // row_name
  };
  int64_t m = 0, n = 0, k = 0, batch = 1;
  int layout = 0, wide = 0;
  bool strict = false;
  int sm = 0, sm_count = 0;
  std::string gpu, date, with, rows;
  double torch_mm = 0;
  std::vector<Time> times;
};

constexpr const char* kTunedTitle = "xgemm_torch tuned 1";
constexpr const char* kLayoutWords[] = {"TN", "TT", "NN", "NT"};

// The records of a file; std::invalid_argument, with the line's number, where it is not such a
// file.
std::vector<TunedRecord> read_tuned(const std::string& path);

// A tile of a stage by what it is, so that its place in the tile table does not count.
std::string row_name(const Stage& stage, const Tile& tile);

struct TunedTime {
  const Stage* stage = nullptr;
  int row = 0;
  double us = 0;
};

struct TunedProblem {
  std::vector<TunedTime> times;  // of rows that there are, least first
  std::string date;
};

// Of one kind of GPU, all problems, for stages of one flavour. Times are as the file has them:
// whether a row may be taken is for the selector to say.
class TunedGpu {
 public:
  std::string name;
  Device device;

  // Null where it was not measured.
  const TunedProblem* find(const Gemm& g, int layout, int wide, bool strict) const;

 private:
  friend class Tuned;
  struct Key {
    int64_t m, n, k, batch;
    int kind;  // layout, wide and precision
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    size_t operator()(const Key& key) const;
  };
  std::unordered_map<Key, TunedProblem, Hash> problems_;
};

// The records of a file for the stages of `all`, which must outlive it. Of two records of one
// problem the later counts.
class Tuned {
 public:
  Tuned(std::span<const Stage> all, const std::vector<TunedRecord>& records);

  // What was measured on such a GPU, or null. An empty name stands for any.
  const TunedGpu* on(const Device& device, std::string_view gpu) const;

 private:
  std::vector<TunedGpu> gpus_;
};

}  // namespace xgemm
