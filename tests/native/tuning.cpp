// The file of tuned problems: what is read of it, and what is said of one that is no such file; and
// which file a process goes by.
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "check.h"
#include "xgemm/dispatch/tuned_cache.h"

namespace xgemm {
namespace {

const std::string kHead = std::string(kTunedTitle) + "\n# of words\n\n";
const std::string kProblem = "problem 1000 50257 768 NT 2 ieee\n";
const std::string kGpu = "gpu 90 132 NVIDIA H200\n";
const std::string kRest =
    "date 2026-11-22\nwith driver 1.2, torch 3\nrows 0.1.0 5f2b\ntorch.mm 1823.4\n"
    "time 502.13 vec4 128x128x8 0x0\ntime 1e3 gone\n";

class File {
 public:
  explicit File(const std::string& text) { std::ofstream(path) << text; }
  ~File() { std::filesystem::remove(path); }
  const std::string path =
      (std::filesystem::temp_directory_path() / ("xgemm_tuned_" + std::to_string(std::rand())))
          .string();
};

void reads_what_is_there() {
  const File file(kHead + kProblem + kGpu + kRest + "\nproblem 1 2 3 TN 0 fp32 16\n" + kGpu +
                  "torch.mm 2\ntime 1 x");
  const std::vector<TunedRecord> all = read_tuned(file.path);
  expect(all.size() == 2, "two records");
  const TunedRecord& r = all[0];
  expect(r.m == 1000 && r.n == 50257 && r.k == 768 && r.layout == 3 && r.wide == 2 && r.strict,
         "the problem");
  expect(r.gpu == "NVIDIA H200" && r.sm == 90 && r.sm_count == 132, "the GPU");
  expect(r.date == "2026-11-22" && r.with == "driver 1.2, torch 3" && r.rows == "0.1.0 5f2b",
         "where it is from");
  expect(r.torch_mm == 1823.4 && r.times.size() == 2 && r.times[0].us == 502.13 &&
             r.times[0].row == "vec4 128x128x8 0x0" && r.times[1].us == 1000,
         "the times");
  expect(r.batch == 1 && all[1].batch == 16, "batches");
  expect(all[1].layout == 0 && all[1].k == 3 && !all[1].strict && all[1].date.empty(),
         "the second");
  expect(read_tuned(File(kHead).path).empty(), "a file of no problems");
}

void says_what_is_wrong() {
  const struct {
    std::string text, part;
  } cases[] = {
      {"", "line 1: not a file of tuned problems"},
      {"{}\n", "line 1: not a file of tuned problems"},
      {"xgemm_torch tuned 2\n", "line 1: not a file of tuned problems"},
      {kHead + kGpu, "line 4: cannot make sense of: gpu"},
      {kHead + "problem 1 2 3 NN 0\n", "line 4: not a problem"},
      {kHead + "problem 1 2 3 XX 0 ieee\n", "line 4: not a problem"},
      {kHead + "problem 1 2 3 NN 4 ieee\n", "line 4: not a problem"},
      {kHead + "problem 0 2 3 NN 0 ieee\n", "line 4: not a problem"},
      {kHead + "problem 1 2 3 NN 0 tf32\n", "line 4: not a problem"},
      {kHead + "problem 1 2 3 NN 0 ieee more\n", "line 4: not a problem"},
      {kHead + "problem 1 2 3 NN 0 ieee 0\n", "line 4: not a problem"},
      {kHead + "problem 1 2 3 NN 0 ieee 16 more\n", "line 4: not a problem"},
      {kHead + "problem 1 99999999999999999999 3 NN 0 ieee\n", "line 4: not a problem"},
      {kHead + kProblem + "gpu 90 H200\n", "line 5: cannot make sense of"},
      {kHead + kProblem + "gpu 90 132\n", "line 5: cannot make sense of"},
      {kHead + kProblem + "time -1 x\n", "line 5: cannot make sense of"},
      {kHead + kProblem + "time nan x\n", "line 5: cannot make sense of"},
      {kHead + kProblem + "time 1\n", "line 5: cannot make sense of"},
      {kHead + kProblem + "torch.mm 0\n", "line 5: cannot make sense of"},
      {kHead + kProblem + "date\n", "line 5: cannot make sense of"},
      {kHead + kProblem + "else 1\n", "line 5: cannot make sense of"},
      {kHead + kProblem + "with \x01\n", "line 5: holds other characters"},
      {kHead + kProblem + "with \xff\n", "line 5: holds other characters"},
      {kHead + kProblem + kGpu + kProblem, "line 6: the problem before has no"},
      {kHead + kProblem + kRest, "the last problem has no gpu"},
  };
  for (const auto& [text, part] : cases) {
    const File file(text);
    expect(throws([&] { read_tuned(file.path); }, part) &&
               throws([&] { read_tuned(file.path); }, file.path),
           "a file with " + part);
  }
  expect(throws([] { read_tuned("/no/such/file"); }, "/no/such/file cannot be read: No such"),
         "no file");
  const std::string folder = std::filesystem::temp_directory_path().string();
  expect(throws([&] { read_tuned(folder); }, folder), "a folder");
}

void goes_by_the_last_file() {
  const auto warn = [](const std::string& text) { expect(false, "no warning: " + text); };
  const File good(kHead + kProblem + kGpu + kRest), bad("else");
  expect(load_tuned(good.path) == 1, "its records");
  const auto first = tuned_cache(warn);
  expect(first && first->of(Flavour::host).on({90, 132}, "NVIDIA H200"), "it is in force");
  expect(throws([&] { load_tuned(bad.path); }, "not a file") && tuned_cache(warn) == first,
         "a bad file changes nothing");
  load_tuned(good.path);
  expect(tuned_cache(warn) && tuned_cache(warn) != first, "the file again");
  clear_tuned();
  expect(!tuned_cache(warn), "none");
}

}  // namespace

void test_tuned_file() {
  reads_what_is_there();
  says_what_is_wrong();
  goes_by_the_last_file();
}

}  // namespace xgemm
