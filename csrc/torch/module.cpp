// The Python module xgemm_torch._C: what the library knows of itself, as JSON, and the
// emulator's controls.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdio>
#include <cstring>
#include <sstream>
#include <stdexcept>
#include <string>

#include "emulator/simt_control.h"
#include "ops.h"
#include "xgemm/core/attention.h"
#include "xgemm/core/split_k.h"
#include "xgemm/dispatch/cost.h"
#include "xgemm/dispatch/overrides.h"
#include "xgemm/dispatch/select.h"
#include "xgemm/dispatch/tuned_cache.h"
#include "xgemm/emulation/recompute_counter.h"
#if __has_include("xgemm_build_info.h")
#include "xgemm_build_info.h"
#else
#define XGEMM_BUILD_CUDA_VERSION ""
#define XGEMM_BUILD_ARCHS ""
#define XGEMM_BUILD_COMPILER ""
#endif

// A program without Python loads the library for its operators: all of Python's is weak.
#pragma weak PyArg_ParseTuple
#pragma weak _PyArg_ParseTuple_SizeT
#pragma weak PyBytes_FromStringAndSize
#pragma weak PyErr_Format
#pragma weak PyErr_SetString
#pragma weak PyErr_WarnEx
#pragma weak PyErr_WriteUnraisable
#pragma weak PyExc_ImportError
#pragma weak PyExc_RuntimeError
#pragma weak PyExc_UserWarning
#pragma weak PyExc_ValueError
#pragma weak PyGILState_Ensure
#pragma weak PyGILState_Release
#pragma weak PyLong_FromLongLong
#pragma weak PyLong_FromSize_t
#pragma weak PyLong_FromUnsignedLongLong
#pragma weak PyModule_Create2
#pragma weak PyTuple_New
#pragma weak PyTuple_SetItem
#pragma weak PyUnicode_FromString
#pragma weak Py_IsInitialized

namespace xgemm {
namespace {

std::string quoted(const std::string& s) {
  std::string text = "\"";
  for (char c : s) {
    if (c == '"' || c == '\\') text += '\\';
    text += c;
  }
  return text + "\"";
}

std::string list(const std::vector<std::string>& items) {
  std::string text = "[";
  for (const std::string& s : items) text += (text.size() > 1 ? "," : "") + s;
  return text + "]";
}

std::string number(double x) {
  std::ostringstream text;
  text.precision(9);
  text << x;
  return x - x == 0 ? text.str() : "null";
}

std::string json(const Tile& t) {
  std::ostringstream s;
  s << "{\"BM\":" << t.BM << ",\"BN\":" << t.BN << ",\"BK\":" << t.BK << ",\"WM\":" << t.WM
    << ",\"WN\":" << t.WN << ",\"TM\":" << t.TM << ",\"TN\":" << t.TN
    << ",\"threads\":" << t.threads() << ",\"width\":" << t.width << ",\"buffers\":" << t.buffers
    << ",\"min_blocks\":" << t.min_blocks << ",\"producers\":" << t.producers
    << ",\"cluster\":" << t.cluster << ",\"group\":" << t.group
    << ",\"element_bytes\":" << t.element_bytes << ",\"smem\":" << t.smem()
    << ",\"rate\":" << number(t.rate) << "}";
  return s.str();
}

std::string stages_json() {
  std::vector<std::string> rows;
  for (const Stage& s : stages(Flavour::host)) {
    std::vector<std::string> tiles;
    for (const Tile& t : s.tiles) tiles.push_back(json(t));
    std::ostringstream row;
    row << "{\"name\":" << quoted(s.name) << ",\"rung\":" << s.rung
        << ",\"idea\":" << quoted(s.idea) << ",\"source\":" << quoted(s.source)
        << ",\"file\":" << quoted(s.file()) << ",\"min_sm\":" << s.min_sm
        << ",\"max_sm\":" << s.max_sm << ",\"strict\":" << (s.strict ? "true" : "false")
        << ",\"split_k\":" << (s.split_k ? "true" : "false")
        << ",\"matches_single_chain_overflow\":"
        << (s.matches_single_chain_overflow ? "true" : "false")
        << ",\"teams\":" << (s.teams ? "true" : "false")
        << ",\"auto_choice\":" << (s.auto_choice ? "true" : "false")
        << ",\"unit_rows\":" << s.unit_rows << ",\"packs\":" << (s.pack ? "true" : "false")
        << ",\"takes_groups\":" << (s.takes_groups ? "true" : "false")
        << ",\"takes_half_a\":" << (s.takes_half_a ? "true" : "false")
        << ",\"batch_invariant\":" << (s.invariant_row ? "true" : "false")
        << ",\"cuda\":" << (find_stage(Flavour::cuda, s.name) ? "true" : "false")
        << ",\"tiles\":" << list(tiles) << "}";
    rows.push_back(row.str());
  }
  return list(rows);
}

std::string faults_json() {
  std::vector<std::string> rows;
  for (const StageFault& f : stage_faults())
    rows.push_back("{\"name\":" + quoted(f.name) + ",\"rung\":" + std::to_string(f.rung) +
                   ",\"flavour\":" + quoted(f.flavour == Flavour::host ? "host" : "cuda") +
                   ",\"why\":" + quoted(f.why) + "}");
  return list(rows);
}

std::string attention_kernels_json() {
  const AttentionKernels* const its = attention_kernels(Flavour::cuda);
  return "{\"largest_head\":" + std::to_string(kMostWidth) +
         ",\"min_sm\":" + std::to_string(its ? its->min_sm : 0) +
         ",\"max_sm\":" + std::to_string(its ? its->max_sm : 0) + "}";
}

std::string build_json() {
  return std::string("{\"cuda\":") + (XGEMM_WITH_CUDA ? "true" : "false") +
         ",\"cuda_version\":" + quoted(XGEMM_BUILD_CUDA_VERSION) +
         ",\"archs\":" + quoted(XGEMM_BUILD_ARCHS) +
         ",\"compiler\":" + quoted(XGEMM_BUILD_COMPILER) + ",\"torch_target\":\"2.10\"}";
}

const char* name(Basis b) {
  return b == Basis::tuned ? "tuned" : b == Basis::estimated ? "estimated" : "rate";
}

// What stands for the products of floats, and into how many chains they are cut.
std::string scheme_of(const Candidate& c, const Gemm& g, const Device& device) {
  if (c.stage->scheme) return c.stage->scheme(g, {.device = device, .row = c.row});
  std::string words = "ffma: fused multiply-adds";
  if (const int64_t chains = split_k_slices(g); c.stage->split_k && chains > 1)
    words +=
        ", " + std::to_string(chains) + " chains of " + std::to_string(g.split_k_size) + " along k";
  return words;
}

std::string json(const Candidate& c, const Gemm& g, const Device& device) {
  const bool legal = c.why_not.empty();
  const int64_t units = units_of(*c.stage, c.row, g);
  const bool by_name = row_by_name(*c.stage, device, c.by_name ? c.row : -1) == c.row;
  std::ostringstream s;
  s << "{\"kernel\":" << quoted(c.stage->name) << ",\"row\":" << c.row
    << ",\"legal\":" << (legal ? "true" : "false") << ",\"able\":" << (c.able ? "true" : "false")
    << ",\"why\":" << quoted(c.why_not) << ",\"tile\":" << json(c.tile())
    << ",\"blocks\":" << c.blocks << ",\"scheme\":" << quoted(scheme_of(c, g, device))
    << ",\"workspace\":" << c.workspace << ",\"units\":" << (units ? std::to_string(units) : "null")
    << ",\"waves\":" << number(c.waves) << ",\"predicted_us\":" << number(c.microseconds)
    << ",\"basis\":" << quoted(name(c.basis)) << ",\"by_name\":" << (by_name ? "true" : "false")
    << "}";
  return s.str();
}

std::string explain_json(const Gemm& g, const Device& device, bool strict, size_t workspace,
                         const char* gpu) {
  if (g.m == 0 || g.n == 0 || g.batch == 0)
    return "{\"kernel\":null,\"row\":0,\"why\":\"the result is empty, so nothing is launched\","
           "\"candidates\":[]}";
  static const Selector selector(stages(Flavour::host));
  const auto tuned = tuned_cache(&warn);
  const TunedGpu* const here = tuned ? tuned->host.on(device, gpu) : nullptr;
  const Choice choice = selector.weigh(g, device, strict, workspace, here);
  std::vector<std::string> rows;
  for (const Candidate& c : choice.candidates) rows.push_back(json(c, g, device));
  const bool any = choice.pick.stage;
  return "{\"kernel\":" + (any ? quoted(choice.pick.stage->name) : "null") +
         ",\"row\":" + std::to_string(choice.pick.row) + ",\"why\":" + quoted(choice.why) +
         ",\"candidates\":" + list(rows) + "}";
}

std::string json(const TunedRecord& r) {
  std::vector<std::string> times;
  for (const TunedRecord::Time& t : r.times) times.push_back(list({number(t.us), quoted(t.row)}));
  std::ostringstream s;
  s << "{\"m\":" << r.m << ",\"n\":" << r.n << ",\"k\":" << r.k << ",\"batch\":" << r.batch
    << ",\"layout\":" << quoted(kLayoutWords[r.layout]) << ",\"wide\":" << r.wide
    << ",\"precision\":" << quoted(r.strict ? "ieee" : "fp32") << ",\"gpu\":" << quoted(r.gpu)
    << ",\"sm\":" << r.sm << ",\"sm_count\":" << r.sm_count << ",\"date\":" << quoted(r.date)
    << ",\"made_with\":" << quoted(r.with) << ",\"rows\":" << quoted(r.rows)
    << ",\"torch_mm\":" << number(r.torch_mm) << ",\"times\":" << list(times) << "}";
  return s.str();
}

std::string json(const simt::Place& place) {
  return "[" + quoted(place.at) + "," + quoted(place.via) + "]";
}

std::string json(const simt::Trace::Launch& launch) {
  const auto triple = [](const unsigned (&x)[3]) {
    return list({std::to_string(x[0]), std::to_string(x[1]), std::to_string(x[2])});
  };
  std::vector<std::string> arrays;
  for (const simt::SharedArray& a : launch.arrays)
    arrays.push_back(list({quoted(a.name), std::to_string(a.offset), std::to_string(a.bytes)}));
  return "{\"grid\":" + triple(launch.grid) + ",\"threads\":" + triple(launch.threads) +
         ",\"arrays\":" + list(arrays) + "}";
}

struct Frames {
  const std::vector<std::string>& lines;
};
std::string json(const Frames& f) {
  std::string text;
  for (const std::string& line : f.lines) text += (text.empty() ? "" : ",") + quoted(line);
  return "[" + text + "]";
}

std::string json(const simt::TraceBox& b) {
  std::ostringstream s;
  const char letter = static_cast<char>(b.operand);
  const auto list = [](const auto& values) {
    std::string text;
    for (int64_t value : values) text += (text.empty() ? "" : ",") + std::to_string(value);
    return "[" + text + "]";
  };
  s << "[\"" << (letter ? std::string(1, letter) : "") << "\"," << b.base << "," << list(b.c) << ","
    << list(b.size) << "," << list(b.box) << "," << list(b.stride) << "," << b.element << ","
    << b.swizzle << "," << b.array << "," << b.offset << "," << b.mask << "]";
  return s.str();
}

std::string json(const simt::TraceProduct& p) {
  std::ostringstream s;
  s << "[" << p.a << "," << p.a_group << "," << p.a_row << "," << p.b << "," << p.b_group << ","
    << p.b_row << "," << p.columns << "," << p.tile << "," << p.accumulate << "]";
  return s.str();
}

std::string json(const simt::TrafficRow& r) {
  std::ostringstream s;
  s << "{\"place\":" << json(r.place) << ",\"what\":" << quoted(r.what)
    << ",\"requests\":" << r.requests << ",\"bytes\":" << r.bytes << ",\"units\":" << r.units
    << ",\"ideal\":" << r.ideal << ",\"worst\":" << r.worst << "}";
  return s.str();
}

template <class Items>
std::string json_list(const Items& items) {
  std::vector<std::string> rows;
  for (const auto& item : items) rows.push_back(json(item));
  return list(rows);
}

const char* name(simt::Order o) {
  return o == simt::Order::forward ? "forward" : o == simt::Order::reverse ? "reverse" : "random";
}

std::string configure(const std::string& order, unsigned long long seed, const std::string& skip,
                      int row, int sm_count, int64_t split_k_size, int64_t slab_bytes) {
  const simt::Settings before = simt::settings();
  simt::Settings s{.seed = seed,
                   .skip = skip,
                   .row = row,
                   .sm_count = sm_count,
                   .split_k_size = split_k_size,
                   .slab_bytes = slab_bytes};
  if (order == "forward") s.order = simt::Order::forward;
  else if (order == "reverse") s.order = simt::Order::reverse;
  else if (order == "random") s.order = simt::Order::random;
  else
    throw std::invalid_argument("simt: order must be 'forward', 'reverse' or 'random', got '" +
                                order + "'");
  if (sm_count < 1)
    throw std::invalid_argument("simt: sm_count must be positive, got " + std::to_string(sm_count));
  // Slices of all stages with several chains fit in a step.
  if (split_k_size < -1 || split_k_size % kSplitKStep > 0)
    throw std::invalid_argument("simt: split_k_size must be -1, 0 or a multiple of " +
                                std::to_string(kSplitKStep) + ", got " +
                                std::to_string(split_k_size));
  if (slab_bytes < -1 || slab_bytes == 0)
    throw std::invalid_argument("simt: slab_bytes must be -1 or positive, got " +
                                std::to_string(slab_bytes));
  simt::configure(s);
  return std::string("{\"order\":") + quoted(name(before.order)) +
         ",\"seed\":" + std::to_string(before.seed) + ",\"skip\":" + quoted(before.skip) +
         ",\"row\":" + std::to_string(before.row) +
         ",\"sm_count\":" + std::to_string(before.sm_count) +
         ",\"split_k_size\":" + std::to_string(before.split_k_size) +
         ",\"slab_bytes\":" + std::to_string(before.slab_bytes) + "}";
}

// What a C++ function makes of Python objects, its exceptions as Python's.
template <class F>
PyObject* guarded(F f) {
  try {
    return f();
  } catch (const std::invalid_argument& e) {
    PyErr_SetString(PyExc_ValueError, e.what());
  } catch (const std::exception& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what());
  }
  return nullptr;
}

// A C++ function's text as a Python str.
template <class F>
PyObject* text(F f) {
  return guarded([&] { return PyUnicode_FromString(f().c_str()); });
}

PyObject* py_stages(PyObject*, PyObject*) { return text(stages_json); }
PyObject* py_stage_faults(PyObject*, PyObject*) { return text(faults_json); }
PyObject* py_attention_kernels(PyObject*, PyObject*) { return text(attention_kernels_json); }
PyObject* py_build_info(PyObject*, PyObject*) { return text(build_json); }
PyObject* py_simt_sites(PyObject*, PyObject*) {
  return text([] {
    std::vector<std::string> all;
    for (const simt::SyncSite& s : simt::sites())
      all.push_back(list({quoted(simt::kSync[static_cast<int>(s.kind)]), quoted(s.place)}));
    return list(all);
  });
}
PyObject* py_simt_known_places(PyObject*, PyObject*) {
  return text([] {
    std::vector<std::string> all;
    for (const std::string& place : simt::known_places()) all.push_back(quoted(place));
    return list(all);
  });
}
PyObject* py_simt_forget_sites(PyObject*, PyObject*) {
  return text([] {
    simt::forget_sites();
    return std::string();
  });
}
PyObject* py_simt_probes(PyObject*, PyObject*) {
  return text([] {
    std::vector<std::string> all;
    for (const simt::ProbeName& p : simt::probes())
      all.push_back(list({quoted(p.name), p.faulty ? "true" : "false"}));
    return list(all);
  });
}

PyObject* py_operators(PyObject*, PyObject*) {
  return text([] {
    std::vector<std::string> rows;
    for (const Operator& o : operators())
      rows.push_back("[" + quoted(o.schema) + "," + (o.flexible_layout ? "true" : "false") + "]");
    return std::string("{\"defined\":") + (operators_defined() ? "true" : "false") +
           ",\"namespace\":" + quoted(operator_namespace()) + ",\"operators\":" + list(rows) + "}";
  });
}

PyObject* py_register_kernels(PyObject*, PyObject*) {
  return text([] {
    register_kernels();
    return std::string();
  });
}

// Bytes of Python as numbers, and numbers as bytes.
template <class T>
std::vector<T> numbers(const char* data, Py_ssize_t bytes) {
  std::vector<T> all(static_cast<size_t>(bytes) / sizeof(T));
  std::memcpy(all.data(), data, all.size() * sizeof(T));
  return all;
}
template <class T>
PyObject* bytes_of(const std::vector<T>& all) {
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(all.data()),
                                   static_cast<Py_ssize_t>(all.size() * sizeof(T)));
}

// A problem of which only strides and alignment are looked at: any address of the right alignment
// stands for the data.
struct Described {
  long long m, n, k, batch, ars, acs, brs, bcs, a_bs = 0, b_bs = 0;
  int a16, b16, sm, sms;

  Gemm gemm() const {
    if (m < 0 || n < 0 || k < 0 || batch < 0)
      throw std::invalid_argument("explain: sizes must not be negative");
    if (sm < 0 || device().sm_count < 1)
      throw std::invalid_argument("explain: a GPU has a compute capability and multiprocessors");
    Gemm g;
    g.m = m, g.n = n, g.k = k, g.batch = batch;
    g.a = {reinterpret_cast<const float*>(static_cast<uintptr_t>(a16 ? 16 : 4)), ars, acs, a_bs};
    g.b = {reinterpret_cast<const float*>(static_cast<uintptr_t>(b16 ? 16 : 4)), brs, bcs, b_bs};
    g.split_k_size = split_k_size_of(g);
    return g;
  }
  // Without a number of multiprocessors the emulator stands for as many as simt says.
  Device device() const {
    return {.sm = sm, .sm_count = sm || sms ? sms : simt::settings().sm_count};
  }
};

PyObject* py_explain(PyObject*, PyObject* args) {
  Described p;
  int strict = 0;
  long long workspace = -1;
  const char* gpu = "";
  if (!PyArg_ParseTuple(args, "LLLLLLpLLpii|pLLLs", &p.m, &p.n, &p.k, &p.batch, &p.ars, &p.acs,
                        &p.a16, &p.brs, &p.bcs, &p.b16, &p.sm, &p.sms, &strict, &workspace, &p.a_bs,
                        &p.b_bs, &gpu))
    return nullptr;
  return text([&] {
    return explain_json(p.gemm(), p.device(), strict != 0,
                        workspace < 0 ? kAnyWorkspace : static_cast<size_t>(workspace), gpu);
  });
}

PyObject* py_terms(PyObject*, PyObject* args) {
  Described p;
  if (!PyArg_ParseTuple(args, "LLLLLLpLLpii|LL", &p.m, &p.n, &p.k, &p.batch, &p.ars, &p.acs, &p.a16,
                        &p.brs, &p.bcs, &p.b16, &p.sm, &p.sms, &p.a_bs, &p.b_bs))
    return nullptr;
  return guarded([&] {
    const Gemm g = p.gemm();
    const Asked asked(g);
    std::vector<double> all;
    for (const Stage& s : stages(Flavour::host))
      for (const Tile& t : s.tiles) {
        const auto its = terms_of(asked, Spread(s, t), s.turns && s.turns(g, t), p.sms);
        all.insert(all.end(), its.begin(), its.end());
      }
    return bytes_of(all);
  });
}

PyObject* py_term_words(PyObject*, PyObject*) {
  return text([] {
    std::vector<std::string> words;
    for (int i = 0; i < kTerms; ++i)
      words.push_back(list({quoted(kTermWords[i]), quoted(i < kWork     ? "once"
                                                          : i < kMemory ? "work"
                                                                        : "memory")}));
    return list(words);
  });
}

PyObject* py_split_k_size(PyObject*, PyObject* args) {
  long long m, n, k, batch;
  if (!PyArg_ParseTuple(args, "LLLL", &m, &n, &k, &batch)) return nullptr;
  return guarded([&] {
    if (m < 0 || n < 0 || k < 0 || batch < 0)
      throw std::invalid_argument("split_k_size: sizes must not be negative");
    Gemm g;
    g.m = m, g.n = n, g.k = k, g.batch = batch;
    return PyLong_FromLongLong(split_k_size_of(g));
  });
}

PyObject* py_tuned_path(PyObject*, PyObject*) { return text(tuned_path); }

PyObject* py_tuned_read(PyObject*, PyObject* args) {
  const char* path;
  if (!PyArg_ParseTuple(args, "s", &path)) return nullptr;
  return text([&] { return json_list(read_tuned(path)); });
}

PyObject* py_tuned_load(PyObject*, PyObject* args) {
  const char* path;
  if (!PyArg_ParseTuple(args, "s", &path)) return nullptr;
  return guarded([&] { return PyLong_FromSize_t(load_tuned(path)); });
}

PyObject* py_tuned_clear(PyObject*, PyObject*) {
  return text([] {
    clear_tuned();
    return std::string();
  });
}

PyObject* py_simt_configure(PyObject*, PyObject* args) {
  const char *order, *skip;
  unsigned long long seed;
  int row, sm_count;
  long long split_k_size, slab_bytes;
  if (!PyArg_ParseTuple(args, "sKsiiLL", &order, &seed, &skip, &row, &sm_count, &split_k_size,
                        &slab_bytes))
    return nullptr;
  return text(
      [&] { return configure(order, seed, skip, row, sm_count, split_k_size, slab_bytes); });
}

PyObject* py_simt_probe(PyObject*, PyObject* args) {
  const char* fault;
  if (!PyArg_ParseTuple(args, "s", &fault)) return nullptr;
  return text([&] {
    simt::probe(fault);
    return std::string("no fault found");
  });
}

struct Problem {
  const char* stage;
  long long m, n, k;
  int trans_a, trans_b;
};

PyObject* py_simt_trace(PyObject*, PyObject* args) {
  Problem p;
  long long block;
  int asynchronous = 0;
  if (!PyArg_ParseTuple(args, "sLLLppL|p", &p.stage, &p.m, &p.n, &p.k, &p.trans_a, &p.trans_b,
                        &block, &asynchronous))
    return nullptr;
  return guarded([&] {
    const simt::Trace t =
        simt::trace(p.stage, p.m, p.n, p.k, p.trans_a, p.trans_b, block, asynchronous != 0);
    std::vector<Frames> frames;
    for (const simt::Place& place : t.places) frames.push_back({place.frames});
    const std::string head =
        "{\"launches\":" + json_list(t.launches) + ",\"places\":" + json_list(t.places) +
        ",\"frames\":" + json_list(frames) + ",\"boxes\":" + json_list(t.boxes) +
        ",\"products\":" + json_list(t.products) + "}";
    static_assert(sizeof(simt::TraceRow) == 11 * sizeof(int64_t));
    PyObject* pair = PyTuple_New(2);
    if (!pair) return pair;
    PyTuple_SetItem(pair, 0, PyUnicode_FromString(head.c_str()));
    PyTuple_SetItem(
        pair, 1,
        PyBytes_FromStringAndSize(reinterpret_cast<const char*>(t.rows.data()),
                                  static_cast<Py_ssize_t>(t.rows.size() * sizeof(simt::TraceRow))));
    return pair;
  });
}

PyObject* py_simt_traffic(PyObject*, PyObject* args) {
  Problem p;
  if (!PyArg_ParseTuple(args, "sLLLpp", &p.stage, &p.m, &p.n, &p.k, &p.trans_a, &p.trans_b))
    return nullptr;
  return text(
      [&] { return json_list(simt::traffic(p.stage, p.m, p.n, p.k, p.trans_a, p.trans_b)); });
}

PyObject* py_simt_probe_traffic(PyObject*, PyObject* args) {
  simt::Strides s;
  if (!PyArg_ParseTuple(args, "iiiiiii", &s.width, &s.share, &s.load, &s.store, &s.global, &s.first,
                        &s.lanes))
    return nullptr;
  return text([&] { return json_list(simt::probe_traffic(s)); });
}

PyObject* py_simt_to_halves(PyObject*, PyObject* args) {
  int bf16;
  const char* x;
  Py_ssize_t size;
  if (!PyArg_ParseTuple(args, "py#", &bf16, &x, &size)) return nullptr;
  return guarded([&] { return bytes_of(simt::to_halves(bf16, numbers<float>(x, size))); });
}

PyObject* py_simt_from_halves(PyObject*, PyObject* args) {
  int bf16;
  const char* x;
  Py_ssize_t size;
  if (!PyArg_ParseTuple(args, "py#", &bf16, &x, &size)) return nullptr;
  return guarded([&] { return bytes_of(simt::from_halves(bf16, numbers<uint16_t>(x, size))); });
}

PyObject* py_simt_tensor_core_step(PyObject*, PyObject* args) {
  int bf16;
  const char *a, *b, *acc;
  Py_ssize_t a_size, b_size, acc_size;
  if (!PyArg_ParseTuple(args, "py#y#y#", &bf16, &a, &a_size, &b, &b_size, &acc, &acc_size))
    return nullptr;
  return guarded([&] {
    return bytes_of(simt::tensor_core_step(bf16, numbers<uint16_t>(a, a_size),
                                           numbers<uint16_t>(b, b_size),
                                           numbers<float>(acc, acc_size)));
  });
}

PyObject* py_count_recomputed(PyObject*, PyObject* args) {
  int device;
  unsigned long long counter;
  if (!PyArg_ParseTuple(args, "iK", &device, &counter)) return nullptr;
  if (device < 0) device = kHostCounter;
  if (device > kHostCounter) {
    PyErr_Format(PyExc_ValueError, "count_recomputed: device %d is beyond the %d that are counted",
                 device, kCountedDevices);
    return nullptr;
  }
  const auto before = recompute_counters[device].exchange(
      reinterpret_cast<uint32_t*>(static_cast<uintptr_t>(counter)));
  return PyLong_FromUnsignedLongLong(reinterpret_cast<uintptr_t>(before));
}

PyMethodDef methods[] = {
    {"stages", py_stages, METH_NOARGS, "The registry, as JSON."},
    {"stage_faults", py_stage_faults, METH_NOARGS, "Stages that were left out, and why, as JSON."},
    {"attention_kernels", py_attention_kernels, METH_NOARGS,
     "What attention's kernels take, and which GPUs this build has them for, as JSON."},
    {"build_info", py_build_info, METH_NOARGS, "What was built, as JSON."},
    {"operators", py_operators, METH_NOARGS,
     "Schemas of the operators, each with whether its layouts are flexible, whether they are "
     "defined, and in which namespace of torch.ops, as JSON."},
    {"register_kernels", py_register_kernels, METH_NOARGS,
     "Registers the kernels of the operators."},
    {"explain", py_explain, METH_VARARGS,
     "explain(m, n, k, batch, a_rs, a_cs, a_aligned16, b_rs, b_cs, b_aligned16, sm, sm_count, "
     "strict=False, workspace=-1, a_bs=0, b_bs=0, gpu=\"\") -> JSON: the choice and all its "
     "candidates; workspace: the bytes of it that there is memory for, -1 for any; gpu: the name "
     "of the device, whose tuned problems count, empty for any of its kind; sm 0 is the "
     "emulator, with sm_count 0 as simt has set it."},
    {"terms", py_terms, METH_VARARGS,
     "terms(m, n, k, batch, a_rs, a_cs, a_aligned16, b_rs, b_cs, b_aligned16, sm, sm_count, "
     "a_bs=0, b_bs=0) -> of every row of every stage, the terms of its time, as bytes of float64."},
    {"term_words", py_term_words, METH_NOARGS,
     "What the terms are, and of what part of the time, as JSON."},
    {"split_k_size", py_split_k_size, METH_VARARGS,
     "split_k_size(m, n, k, batch) -> of k, in a chain of the strict product; 0: all."},
    {"count_recomputed", py_count_recomputed, METH_VARARGS,
     "count_recomputed(device, address) -> the address before: where launches on that device, -1 "
     "for the emulator, add up how many units they make anew; 0 for nowhere."},
    {"tuned_path", py_tuned_path, METH_NOARGS,
     "The file of tuned problems that is read when auto first asks; empty for none."},
    {"tuned_read", py_tuned_read, METH_VARARGS, "tuned_read(path) -> its records, as JSON."},
    {"tuned_load", py_tuned_load, METH_VARARGS,
     "tuned_load(path): auto goes by that file from now on -> how many records it has."},
    {"tuned_clear", py_tuned_clear, METH_NOARGS, "Auto goes by no such file from now on."},
    {"simt_configure", py_simt_configure, METH_VARARGS,
     "simt_configure(order, seed, skip, row, sm_count, split_k_size) -> the settings before, as "
     "JSON."},
    {"simt_sites", py_simt_sites, METH_NOARGS,
     "Every barrier, commit and wait that the emulator has run, as JSON."},
    {"simt_known_places", py_simt_known_places, METH_NOARGS,
     "The places of all sites that have run, forgotten or not, as JSON."},
    {"simt_forget_sites", py_simt_forget_sites, METH_NOARGS,
     "simt_sites() tells of what runs from now on."},
    {"simt_trace", py_simt_trace, METH_VARARGS,
     "simt_trace(stage, m, n, k, trans_a, trans_b, block, asynchronous) -> (JSON, int64 rows)."},
    {"simt_traffic", py_simt_traffic, METH_VARARGS,
     "simt_traffic(stage, m, n, k, trans_a, trans_b) -> rows, as JSON."},
    {"simt_to_halves", py_simt_to_halves, METH_VARARGS,
     "simt_to_halves(bf16, float32 numbers) -> those of 16 bits; all as bytes."},
    {"simt_from_halves", py_simt_from_halves, METH_VARARGS,
     "simt_from_halves(bf16, numbers of 16 bits) -> float32 ones; all as bytes."},
    {"simt_tensor_core_step", py_simt_tensor_core_step, METH_VARARGS,
     "simt_tensor_core_step(bf16, a, b, acc) -> m x n float32 numbers; all as bytes."},
    {"simt_probes", py_simt_probes, METH_NOARGS,
     "Names of the probes and whether they have a planted fault, as JSON."},
    {"simt_probe", py_simt_probe, METH_VARARGS,
     "simt_probe(name): runs a small kernel, which raises when a fault is planted in it."},
    {"simt_probe_traffic", py_simt_probe_traffic, METH_VARARGS,
     "simt_probe_traffic(width, share, load, store, global, first, lanes) -> rows, as JSON."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef module = {PyModuleDef_HEAD_INIT,
                      "xgemm_torch._C",
                      nullptr,
                      -1,
                      methods,
                      nullptr,
                      nullptr,
                      nullptr,
                      nullptr};

}  // namespace

void warn(const std::string& text) {
  if (!Py_IsInitialized || !Py_IsInitialized()) {
    std::fprintf(stderr, "xgemm_torch: %s\n", text.c_str());
    return;
  }
  const PyGILState_STATE state = PyGILState_Ensure();
  // Where warnings are errors there is no caller that could take it: the choice goes on.
  if (PyErr_WarnEx(PyExc_UserWarning, text.c_str(), 1) < 0) PyErr_WriteUnraisable(nullptr);
  PyGILState_Release(state);
}

}  // namespace xgemm

PyMODINIT_FUNC PyInit__C() {
  if (!xgemm::load_error().empty()) {
    PyErr_SetString(PyExc_ImportError, xgemm::load_error().c_str());
    return nullptr;
  }
  return PyModule_Create(&xgemm::module);
}
