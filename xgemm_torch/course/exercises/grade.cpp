// Runs an exercise in the emulator, and answers the questions of check.py: one line in, one line of
// JSON out, behind a record separator. All other lines are the learner's.
//
//   case M N K LAYOUT GAP ALPHA BETA DATA ORDER SEED   a problem, compared with what is expected
//   count M N K LAYOUT                                 what it asks of memory, by line
//   values M N K DATA                                  D
//   sites                                              what orders threads, of all that has run
//   skip FILE:LINE                                     leaves one of them out from here on; - :
//   none
//
// problem.h says what the words of a problem are.
#include <cstdio>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>

#include "emulator/simt_control.h"
#include "emulator/trace.h"
#include "problem.h"

using namespace xgemm;

namespace {

Stage stage() {
  Stage s;
  s.name = "exercise";
  s.run = run;
  if (workspace) s.workspace = workspace;
  return s;
}

std::string one_case(std::istringstream& in, simt::Settings settings) {
  std::string words, word, order;
  for (int i = 0; i < 8 && in >> word; ++i) words += word + ' ';
  const Problem p = Problem::read(words.c_str());
  in >> order >> settings.seed;
  settings.order = order == "forward"   ? simt::Order::forward
                   : order == "reverse" ? simt::Order::reverse
                                        : simt::Order::random;
  simt::configure(settings);
  try {
    simt::run_watched(stage(), p.g);
  } catch (const std::exception& e) {
    return R"({"kind": "error", "reads_c": )" +
           std::string(p.reads_c(e.what()) ? "true" : "false") + R"(, "text": )" +
           quoted(e.what()) + "}";
  }
  return compare(p.g);
}

std::string count(std::istringstream& in) {
  int64_t m, n, k;
  std::string layout, rows;
  in >> m >> n >> k >> layout;
  const simt::SmallProblem p(m, n, k, layout[0] == 'T', layout[1] == 'T');
  for (const simt::TrafficRow& row : simt::traffic(stage(), p.g)) {
    const auto number = [](const char* name, int64_t x) {
      return std::string(", \"") + name + "\": " + std::to_string(x);
    };
    rows += (rows.empty() ? "" : ", ") + std::string("{\"what\": ") + quoted(row.what) +
            ", \"at\": " + quoted(row.place.at) + number("requests", row.requests) +
            number("bytes", row.bytes) + number("units", row.units) + number("ideal", row.ideal) +
            number("worst", row.worst) + "}";
  }
  return R"({"kind": "counts", "rows": [)" + rows + "]}";
}

std::string values(std::istringstream& in) {
  int64_t m, n, k;
  std::string data, all;
  in >> m >> n >> k >> data;
  Problem p(m, n, k, "NN", 0, 1.f, 0.f, data);
  simt::run_watched(stage(), p.g);
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      char text[40];
      std::snprintf(text, sizeof text, "\"%a\"", double{p.g.d(i, j)});
      all += (all.empty() ? "" : ", ") + std::string(text);
    }
  return R"({"kind": "values", "d": [)" + all + "]}";
}

std::string sites() {
  std::string all;
  for (const simt::SyncSite& s : simt::sites())
    all += (all.empty() ? "" : ", ") + std::string("[") +
           quoted(simt::kSync[static_cast<int>(s.kind)]) + ", " + quoted(s.place) + "]";
  return R"({"kind": "sites", "sites": [)" + all + "]}";
}

}  // namespace

int main() {
  simt::Settings settings;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream in(line);
    std::string command, answer;
    in >> command;
    try {
      if (command == "case") answer = one_case(in, settings);
      else if (command == "count") answer = count(in);
      else if (command == "values") answer = values(in);
      else if (command == "sites") answer = sites();
      else if (command == "skip") {
        in >> settings.skip;
        if (settings.skip == "-") settings.skip.clear();
        answer = R"({"kind": "good"})";
      } else throw std::invalid_argument("no command " + command);
    } catch (const std::exception& e) {
      answer = R"({"kind": "error", "reads_c": false, "text": )" + quoted(e.what()) + "}";
    }
    // What the learner's own printf has said stands before it.
    std::fflush(stdout);
    std::cout << "\n\x1e" << answer << std::endl;
  }
}
