#include "xgemm/dispatch/tuned.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <locale>
#include <sstream>
#include <stdexcept>

namespace xgemm {
namespace {

int kind_of(int layout, int wide, bool strict) { return (layout * 4 + wide) * 2 + strict; }

// The rest of a line, without the space before it.
std::string rest(std::istream& line) {
  std::string text;
  std::getline(line >> std::ws, text);
  return text;
}

// A file of words has no other bytes; they would only make a puzzle of an error message.
bool is_plain(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

bool is_time(double us) { return std::isfinite(us) && us > 0; }

// Each adds its line to a record, and says whether it is well formed.
bool read_problem(std::istream& line, TunedRecord& r) {
  std::string layout, precision;
  if (!(line >> r.m >> r.n >> r.k >> layout >> r.wide >> precision)) return false;
  const auto* const found = std::find(kLayoutWords, std::end(kLayoutWords), layout);
  r.layout = static_cast<int>(found - kLayoutWords);
  r.strict = precision == "ieee";
  if (!(line >> std::ws).eof() && !(line >> r.batch)) return false;
  return r.batch > 0 && r.m > 0 && r.n > 0 && r.k >= 0 && found != std::end(kLayoutWords) &&
         r.wide >= 0 && r.wide < 4 && (r.strict || precision == "fp32") && rest(line).empty();
}

bool read_gpu(std::istream& line, TunedRecord& r) {
  if (!(line >> r.sm >> r.sm_count)) return false;
  r.gpu = rest(line);
  return r.sm > 0 && r.sm_count > 0 && !r.gpu.empty();
}

bool read_time(std::istream& line, TunedRecord& r) {
  TunedRecord::Time t;
  if (!(line >> t.us)) return false;
  t.row = rest(line);
  r.times.push_back(t);
  return is_time(t.us) && !t.row.empty();
}

bool read_line(const std::string& word, std::istream& line, TunedRecord& r) {
  if (word == "gpu") return read_gpu(line, r);
  if (word == "time") return read_time(line, r);
  if (word == "torch.mm") return line >> r.torch_mm && is_time(r.torch_mm) && rest(line).empty();
  std::string* const text = word == "date"   ? &r.date
                            : word == "with" ? &r.with
                            : word == "rows" ? &r.rows
                                             : nullptr;
  if (!text) return false;
  *text = rest(line);
  return !text->empty();
}

}  // namespace

std::vector<TunedRecord> read_tuned(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::invalid_argument(path + " cannot be read: " + std::strerror(errno));
  std::vector<TunedRecord> all;
  std::string text;
  int number = 1;
  const auto bad = [&](const std::string& why) {
    return std::invalid_argument(path + ", line " + std::to_string(number) + ": " + why);
  };
  const auto is_whole = [&] {
    return all.empty() || (all.back().sm && all.back().torch_mm > 0 && !all.back().times.empty());
  };
  if (!std::getline(file, text) || text != kTunedTitle)
    throw bad(std::string("not a file of tuned problems, which begins with \"") + kTunedTitle +
              "\"");
  while (std::getline(file, text)) {
    ++number;
    std::istringstream line(text);
    line.imbue(std::locale::classic());
    std::string word;
    if (!(line >> word) || word[0] == '#') continue;
    if (!is_plain(text)) throw bad("holds other characters than plain text");
    if (word == "problem") {
      if (!is_whole()) throw bad("the problem before has no gpu, torch.mm or time");
      all.emplace_back();
      if (!read_problem(line, all.back())) throw bad("not a problem: " + text);
    } else if (all.empty() || !read_line(word, line, all.back())) {
      throw bad("cannot make sense of: " + text);
    }
  }
  if (!is_whole()) throw bad("the last problem has no gpu, torch.mm or time");
  return all;
}

std::string row_name(const Stage& s, const Tile& t) {
  std::ostringstream text;
  text.imbue(std::locale::classic());
  text << s.name << ' ' << t.BM << 'x' << t.BN << 'x' << t.BK << ' ' << t.WM << 'x' << t.WN << ' '
       << t.TM << 'x' << t.TN << ' ' << t.buffers << " buffers, " << t.min_blocks
       << " a multiprocessor";
  if (t.cluster > 1) text << ", clusters of " << t.cluster;
  return text.str();
}

size_t TunedGpu::Hash::operator()(const Key& key) const {
  uint64_t x = 0;
  for (const int64_t part : {key.m, key.n, key.k, key.batch, int64_t{key.kind}})
    x = (x ^ static_cast<uint64_t>(part)) * 0x9E3779B97F4A7C15u, x ^= x >> 32;
  return static_cast<size_t>(x);
}

const TunedProblem* TunedGpu::find(const Gemm& g, int layout, int wide, bool strict) const {
  const auto found = problems_.find({g.m, g.n, g.k, g.batch, kind_of(layout, wide, strict)});
  return found == problems_.end() ? nullptr : &found->second;
}

Tuned::Tuned(std::span<const Stage> all, const std::vector<TunedRecord>& records) {
  std::unordered_map<std::string, TunedTime> by_name;
  for (const Stage& s : all)
    for (size_t i = 0; i < s.tiles.size(); ++i)
      by_name[row_name(s, s.tiles[i])] = {&s, static_cast<int>(i), 0};
  for (const TunedRecord& r : records) {
    auto gpu = std::find_if(gpus_.begin(), gpus_.end(), [&](const TunedGpu& x) {
      return x.name == r.gpu && x.device.sm == r.sm && x.device.sm_count == r.sm_count;
    });
    if (gpu == gpus_.end()) {
      gpu = gpus_.emplace(gpus_.end());
      gpu->name = r.gpu, gpu->device = {r.sm, r.sm_count};
    }
    TunedProblem& p = gpu->problems_[{r.m, r.n, r.k, r.batch, kind_of(r.layout, r.wide, r.strict)}];
    p = {{}, r.date};
    for (const TunedRecord::Time& t : r.times)
      if (const auto row = by_name.find(t.row); row != by_name.end())
        p.times.push_back({row->second.stage, row->second.row, t.us});
    std::stable_sort(p.times.begin(), p.times.end(),
                     [](const TunedTime& x, const TunedTime& y) { return x.us < y.us; });
  }
}

const TunedGpu* Tuned::on(const Device& device, std::string_view gpu) const {
  for (const TunedGpu& x : gpus_)
    if (x.device.sm == device.sm && x.device.sm_count == device.sm_count &&
        (gpu.empty() || gpu == x.name))
      return &x;
  return nullptr;
}

}  // namespace xgemm
