#include "xgemm/dispatch/tuned_cache.h"

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <mutex>

namespace xgemm {
namespace {

struct Shared {
  std::mutex mutex;
  std::shared_ptr<const TunedCache> cache;
  std::atomic<uint64_t> version{0};  // of `cache`; 0: the default has not been read yet
};

// Never destroyed: a thread may ask while the process ends.
Shared& shared() {
  static auto* const one = new Shared;
  return *one;
}

std::shared_ptr<const TunedCache> cache_of(const std::vector<TunedRecord>& records) {
  static std::atomic<int64_t> made{0};
  return std::make_shared<const TunedCache>(
      TunedCache{{stages(Flavour::host), records}, {stages(Flavour::cuda), records}, ++made});
}

void replace(std::shared_ptr<const TunedCache> by) {
  Shared& s = shared();
  const std::lock_guard<std::mutex> lock(s.mutex);
  s.cache.swap(by);
  s.version.fetch_add(1);
}

// Why the default file is of no use, or nothing; without a file there is nothing to say.
std::string read_default(std::shared_ptr<const TunedCache>& into) {
  try {
    const std::string path = tuned_path();
    std::error_code unknown;
    if (path.empty() || !std::filesystem::exists(path, unknown)) return "";
    into = cache_of(read_tuned(path));
    return "";
  } catch (const std::exception& e) {
    return std::string("xgemm_torch chooses without the user's tuned problems: ") + e.what();
  }
}

}  // namespace

std::string tuned_path() {
  if (const char* const named = std::getenv("XGEMM_TUNE_CACHE")) return named;
  const char* const caches = std::getenv("XDG_CACHE_HOME");
  if (caches && *caches) return std::string(caches) + "/xgemm_torch/tuned.txt";
  const char* const home = std::getenv("HOME");
  return home && *home ? std::string(home) + "/.cache/xgemm_torch/tuned.txt" : "";
}

// Each thread keeps what it was given last, so that only a change costs it the lock.
std::shared_ptr<const TunedCache> tuned_cache(void (*warn)(const std::string&)) {
  thread_local uint64_t version = 0;
  thread_local std::shared_ptr<const TunedCache> cache;
  Shared& s = shared();
  if (version && version == s.version.load(std::memory_order_acquire)) return cache;
  std::string fault;
  {
    const std::lock_guard<std::mutex> lock(s.mutex);
    if (!s.version) {
      fault = read_default(s.cache);
      s.version = 1;
    }
    version = s.version;
    cache = s.cache;
  }
  // Without the lock: a warning may wait for Python, and Python for the lock.
  if (!fault.empty()) warn(fault);
  return cache;
}

size_t load_tuned(const std::string& path) {
  const std::vector<TunedRecord> records = read_tuned(path);
  replace(cache_of(records));
  return records.size();
}

void clear_tuned() { replace(nullptr); }

}  // namespace xgemm
