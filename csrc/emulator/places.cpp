// Where something is, in words: the line of an instruction, from the line table, and a thread's
// index.
#include <dlfcn.h>

#include <cstdio>
#include <map>
#include <mutex>
#include <sstream>

#include "emulator/block.h"

namespace xgemm::simt {
namespace {

std::string base_name(const std::string& path) { return path.substr(path.find_last_of('/') + 1); }

std::mutex control;
std::map<const void*, Place> known;   // libraries are never unloaded

struct Address {
  const void* pc;
  ptrdiff_t offset;      // in its library, of the call: pc is the return address
};

// One process of addr2line for all of a library's addresses. Without it: offsets.
void look_up(const std::string& library, const std::vector<Address>& addresses) {
  std::ostringstream command;
  command << "addr2line -a -i -e '" << library << "'" << std::hex;
  for (const Address& a : addresses) {
    known[a.pc].at =
        (std::ostringstream() << base_name(library) << "+0x" << std::hex << a.offset).str();
    command << " 0x" << a.offset;
  }
  command << " 2>/dev/null";
  FILE* pipe = popen(command.str().c_str(), "r");
  if (!pipe) return;
  char line[2048];
  auto next = addresses.begin();
  Place* place = nullptr;
  bool first = false, in_stage = false;
  while (std::fgets(line, sizeof line, pipe)) {
    std::string s = line;
    if (s.compare(0, 2, "0x") == 0) {   // an address; its inlined frames follow, innermost first
      if (next == addresses.end()) break;
      place = &known[next++->pc];
      first = true;
      in_stage = false;
      continue;
    }
    s = base_name(s.substr(0, s.find_first_of(" \n")));
    // platform_host.h is in the place of CUDA's own headers: nobody asks for its lines.
    if (!place || in_stage || s.empty() || s[0] == '?' || s.rfind("platform_host.h:", 0) == 0)
      continue;
    in_stage = s.find(".cu:") != std::string::npos;
    place->frames.push_back(s);
    if (first) {
      place->at = s;
    } else if (in_stage) {
      place->via = place->at;
      place->at = s;
    }
    first = false;
  }
  pclose(pipe);
}

}  // namespace

std::vector<Place> places(const std::vector<const void*>& pcs) {
  constexpr size_t kAtOnce = 1000;   // a command line has its limits
  std::lock_guard<std::mutex> lock(control);
  std::map<std::string, std::vector<Address>> unknown;
  for (const void* pc : pcs) {
    if (known.count(pc)) continue;
    Dl_info info{};
    if (!dladdr(pc, &info)) {
      known[pc].at = "an unknown place";
      continue;
    }
    known[pc];
    std::vector<Address>& of_library = unknown[info.dli_fname];
    of_library.push_back(
        {pc, static_cast<const char*>(pc) - static_cast<const char*>(info.dli_fbase) - 1});
    if (of_library.size() == kAtOnce) {
      look_up(info.dli_fname, of_library);
      of_library.clear();
    }
  }
  for (const auto& [library, addresses] : unknown)
    if (!addresses.empty()) look_up(library, addresses);
  std::vector<Place> found;
  for (const void* pc : pcs) found.push_back(known[pc]);
  return found;
}

std::string place(const void* pc) {
  const Place p = places({pc})[0];
  return p.via.empty() ? p.at : p.via + " (from " + p.at + ")";
}

std::string place(const Site& site) {
  return base_name(site.file) + ":" + std::to_string(site.line);
}

std::string thread_name(unsigned t) {
  const dim3 d = running->dims;
  return "thread (" + std::to_string(t % d.x) + ", " + std::to_string(t / d.x % d.y) + ", " +
         std::to_string(t / d.x / d.y) + ")";
}

}  // namespace xgemm::simt
