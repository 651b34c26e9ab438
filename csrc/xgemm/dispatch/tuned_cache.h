// The tuned problems that this process goes by: the user's file, read when `auto` first asks for
// it, or the one that was named since. Any thread may ask while another loads.
#pragma once

#include <memory>
#include <string>

#include "xgemm/dispatch/tuned.h"

namespace xgemm {

// One file, for the stages of either flavour; it never changes.
struct TunedCache {
  Tuned host, cuda;
  int64_t serial = 0;  // no other cache of the process has it; above 0

  const Tuned& of(Flavour flavour) const { return flavour == Flavour::host ? host : cuda; }
};

// $XGEMM_TUNE_CACHE, else xgemm_torch/tuned.txt in $XDG_CACHE_HOME, else in ~/.cache. Empty where
// the first is set and empty, which turns the cache off, and where there is no home.
std::string tuned_path();

// What is in force; null for nothing. The first call of the process reads tuned_path(), unless
// load_tuned or clear_tuned came before; a file that is not good counts as none, and `warn` is told
// so, once.
std::shared_ptr<const TunedCache> tuned_cache(void (*warn)(const std::string&));

// Takes a file's problems in place of what is in force, and counts its records; throws as
// read_tuned does, and changes nothing then.
size_t load_tuned(const std::string& path);
// Goes by no file from now on.
void clear_tuned();

}  // namespace xgemm
