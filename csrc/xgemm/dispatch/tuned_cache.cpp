#include "xgemm/dispatch/tuned_cache.h"

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <stdexcept>

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

// Thousands of problems; a larger file is some other, and a line of it may be all of it.
constexpr uintmax_t kMostBytes = 64 << 20;

// A pipe has no end before somebody closes it, and a device such as /dev/zero none at all.
std::vector<TunedRecord> read_bounded(const std::string& path) {
  std::error_code unknown;
  const std::filesystem::file_status status = std::filesystem::status(path, unknown);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status))
    throw std::invalid_argument(path + " cannot be read: it is not a regular file");
  const uintmax_t size = std::filesystem::file_size(path, unknown);
  if (!unknown && size > kMostBytes)
    throw std::invalid_argument(path + " cannot be read: it has " + std::to_string(size) +
                                " bytes, and at most " + std::to_string(kMostBytes) + " are read");
  return read_tuned(path);
}

// How many bytes the UTF-8 character at `i` has; 0 where there is none.
size_t utf8_length(const std::string& text, size_t i) {
  const auto at = [&](size_t j) {
    return j < text.size() ? static_cast<unsigned char>(text[j]) : 0u;
  };
  const unsigned lead = at(i), next = at(i + 1);
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4) return 0;
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  for (size_t j = 1; j < length; ++j)
    if (at(i + j) >> 6 != 2) return 0;
  // Longer than needed, a surrogate, or beyond 0x10FFFF.
  const bool is_out = (lead == 0xE0 && next < 0xA0) || (lead == 0xED && next > 0x9F) ||
                      (lead == 0xF0 && next < 0x90) || (lead == 0xF4 && next > 0x8F);
  return is_out ? 0 : length;
}

// A path is any bytes, a warning of Python's is UTF-8: what is not is told as \xff.
std::string printable(const std::string& text) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string all;
  for (size_t i = 0; i < text.size();) {
    const size_t length = utf8_length(text, i);
    const auto byte = static_cast<unsigned char>(text[i]);
    if (length) all.append(text, i, length);
    else all += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
    i += length ? length : 1;
  }
  return all;
}

// Why the default file is of no use, or nothing; without a file there is nothing to say.
std::string read_default(std::shared_ptr<const TunedCache>& into) {
  try {
    const std::string path = tuned_path();
    std::error_code unknown;
    if (path.empty() || !std::filesystem::exists(path, unknown)) return "";
    into = cache_of(read_bounded(path));
    return "";
  } catch (const std::exception& e) {
    return "xgemm_torch chooses without the user's tuned problems: " + printable(e.what());
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
  const std::vector<TunedRecord> records = read_bounded(path);
  replace(cache_of(records));
  return records.size();
}

void clear_tuned() { replace(nullptr); }

}  // namespace xgemm
