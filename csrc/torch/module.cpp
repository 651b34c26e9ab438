// The Python module xgemm_torch._C: what the library knows of itself, as JSON, and the host
// flavour's controls.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <sstream>
#include <stdexcept>
#include <string>

#include "ops.h"
#include "xgemm/host/simt_control.h"
#include "xgemm/select.h"
#if __has_include("xgemm_build_info.h")
#include "xgemm_build_info.h"
#else
#define XGEMM_BUILD_CUDA_VERSION ""
#define XGEMM_BUILD_ARCHS ""
#define XGEMM_BUILD_COMPILER ""
#endif

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
    << ",\"min_blocks\":" << t.min_blocks << ",\"group\":" << t.group << ",\"smem\":" << t.smem()
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
        << ",\"idea\":" << quoted(s.idea) << ",\"source\":" << quoted(s.source) << ",\"file\":"
        << quoted((s.rung < 10 ? "0" : "") + std::to_string(s.rung) + "_" + s.name + ".cu")
        << ",\"min_sm\":" << s.min_sm << ",\"max_sm\":" << s.max_sm
        << ",\"strict\":" << (s.strict ? "true" : "false")
        << ",\"cuda\":" << (find_stage(Flavour::cuda, s.name) ? "true" : "false")
        << ",\"tiles\":" << list(tiles) << "}";
    rows.push_back(row.str());
  }
  return list(rows);
}

std::string build_json() {
  return std::string("{\"cuda\":") + (XGEMM_WITH_CUDA ? "true" : "false") +
         ",\"cuda_version\":" + quoted(XGEMM_BUILD_CUDA_VERSION) +
         ",\"archs\":" + quoted(XGEMM_BUILD_ARCHS) +
         ",\"compiler\":" + quoted(XGEMM_BUILD_COMPILER) + ",\"torch_target\":\"2.10\"}";
}

const char* name(Basis b) {
  return b == Basis::measured    ? "measured"
         : b == Basis::estimated ? "estimated"
         : b == Basis::slow      ? "slow"
                                 : "rate";
}

std::string json(const Candidate& c) {
  const bool legal = c.why_not.empty();
  std::ostringstream s;
  s << "{\"kernel\":" << quoted(c.stage->name) << ",\"row\":" << c.row
    << ",\"legal\":" << (legal ? "true" : "false") << ",\"why\":" << quoted(c.why_not)
    << ",\"tile\":" << json(c.tile()) << ",\"blocks\":" << c.blocks
    << ",\"waves\":" << number(c.waves) << ",\"predicted_us\":" << number(c.microseconds)
    << ",\"basis\":" << quoted(name(c.basis)) << ",\"by_name\":" << (c.by_name ? "true" : "false")
    << "}";
  return s.str();
}

std::string explain_json(const Gemm& g, const Device& device, bool strict) {
  static const Selector selector(stages(Flavour::host));
  const Choice choice = selector.weigh(g, device, strict);
  std::vector<std::string> rows;
  for (const Candidate& c : choice.candidates) rows.push_back(json(c));
  const bool any = choice.pick.stage;
  return "{\"kernel\":" + (any ? quoted(choice.pick.stage->name) : "null") +
         ",\"row\":" + std::to_string(choice.pick.row) + ",\"why\":" + quoted(choice.why) +
         ",\"candidates\":" + list(rows) + "}";
}

const char* name(simt::Order o) {
  return o == simt::Order::forward ? "forward" : o == simt::Order::reverse ? "reverse" : "random";
}

std::string configure(const std::string& order, unsigned long long seed, const std::string& skip,
                      int row) {
  const simt::Settings before = simt::settings();
  simt::Settings s{.seed = seed, .skip_barrier = skip, .row = row};
  if (order == "forward") s.order = simt::Order::forward;
  else if (order == "reverse") s.order = simt::Order::reverse;
  else if (order == "random") s.order = simt::Order::random;
  else
    throw std::invalid_argument("simt: order must be 'forward', 'reverse' or 'random', got '" +
                                order + "'");
  simt::configure(s);
  return std::string("{\"order\":") + quoted(name(before.order)) +
         ",\"seed\":" + std::to_string(before.seed) +
         ",\"skip_barrier\":" + quoted(before.skip_barrier) +
         ",\"row\":" + std::to_string(before.row) + "}";
}

// A C++ function's text as a Python str, its exceptions as Python's.
template <class F>
PyObject* text(F f) {
  try {
    return PyUnicode_FromString(f().c_str());
  } catch (const std::invalid_argument& e) {
    PyErr_SetString(PyExc_ValueError, e.what());
  } catch (const std::exception& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what());
  }
  return nullptr;
}

PyObject* py_stages(PyObject*, PyObject*) { return text(stages_json); }
PyObject* py_build_info(PyObject*, PyObject*) { return text(build_json); }
PyObject* py_simt_barriers(PyObject*, PyObject*) {
  return text([] {
    std::vector<std::string> all;
    for (const std::string& s : simt::barriers()) all.push_back(quoted(s));
    return list(all);
  });
}
PyObject* py_simt_probes(PyObject*, PyObject*) {
  return text([] {
    std::vector<std::string> all;
    for (const std::string& s : simt::probes()) all.push_back(quoted(s));
    return list(all);
  });
}

PyObject* py_register_kernels(PyObject*, PyObject*) {
  return text([] {
    register_kernels();
    return std::string();
  });
}

PyObject* py_explain(PyObject*, PyObject* args) {
  long long m, n, k, batch, ars, acs, brs, bcs;
  int a16, b16, sm, sms, strict = 0;
  if (!PyArg_ParseTuple(args, "LLLLLLpLLpii|p", &m, &n, &k, &batch, &ars, &acs, &a16, &brs, &bcs,
                        &b16, &sm, &sms, &strict))
    return nullptr;
  return text([&] {
    if (m < 0 || n < 0 || k < 0 || batch < 0 || sms < 1)
      throw std::invalid_argument("explain: sizes must not be negative");
    Gemm g;
    g.m = m, g.n = n, g.k = k, g.batch = batch;
    // Only strides and alignment are looked at: any address of the right alignment stands for the
    // data.
    g.a = {reinterpret_cast<const float*>(static_cast<uintptr_t>(a16 ? 16 : 4)), ars, acs, 0};
    g.b = {reinterpret_cast<const float*>(static_cast<uintptr_t>(b16 ? 16 : 4)), brs, bcs, 0};
    return explain_json(g, {.sm = sm, .sm_count = sms}, strict != 0);
  });
}

PyObject* py_simt_configure(PyObject*, PyObject* args) {
  const char *order, *skip;
  unsigned long long seed;
  int row;
  if (!PyArg_ParseTuple(args, "sKsi", &order, &seed, &skip, &row)) return nullptr;
  return text([&] { return configure(order, seed, skip, row); });
}

PyObject* py_simt_probe(PyObject*, PyObject* args) {
  const char* fault;
  if (!PyArg_ParseTuple(args, "s", &fault)) return nullptr;
  return text([&] {
    simt::probe(fault);
    return std::string("no fault found");
  });
}

PyMethodDef methods[] = {
    {"stages", py_stages, METH_NOARGS, "The registry, as JSON."},
    {"build_info", py_build_info, METH_NOARGS, "What was built, as JSON."},
    {"register_kernels", py_register_kernels, METH_NOARGS,
     "Registers the kernels of torch.ops.xgemm.*."},
    {"explain", py_explain, METH_VARARGS,
     "explain(m, n, k, batch, a_rs, a_cs, a_aligned16, b_rs, b_cs, b_aligned16, sm, sm_count, "
     "strict=False) -> JSON: the choice and all its candidates."},
    {"simt_configure", py_simt_configure, METH_VARARGS,
     "simt_configure(order, seed, skip_barrier, row) -> the settings before, as JSON."},
    {"simt_barriers", py_simt_barriers, METH_NOARGS,
     "Every barrier that the host flavour has run, as JSON."},
    {"simt_probes", py_simt_probes, METH_NOARGS, "Names of the planted faults, as JSON."},
    {"simt_probe", py_simt_probe, METH_VARARGS,
     "simt_probe(fault): runs a kernel with a planted fault, which raises."},
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
}  // namespace xgemm

PyMODINIT_FUNC PyInit__C() { return PyModule_Create(&xgemm::module); }
