"""docs/adding-a-stage.md keeps its word: its example, as one new file, is a stage."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from build_tools import library

ROOT = Path(__file__).parent.parent
FOLDERS = ["csrc", "build_tools", "xgemm_torch", "tests", "benchmarks", "docs", "examples"]
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
FILES = ["setup.py", "pyproject.toml", "README.md", "LICENSE"]


def example() -> str:
    """The stage file that the page prints."""
    page = (ROOT / "docs" / "adding-a-stage.md").read_text()
    return re.search(r"```cpp\n(// The idea.*?)```", page, re.S)[1]


# One for some shapes, with all that a stage may have: two tiles, a workspace, two launches, TMA.
SPECIALIST = """// B is copied to a workspace first; A's slices come by TMA, or float by float.
//
// A lesson.
//
// arch: sm_90a
// against: naive, as both have one result a thread

#include <iterator>

#include "xgemm/core/workspace.h"
#include "xgemm/device/copy/tma_slice.h"
#include "xgemm/device/launch.h"

namespace xgemm::XGEMM_FLAVOUR::my_shape {

constexpr Tile tile(int columns) {
  return {.BM = 32, .BN = columns, .BK = 1, .TM = 32, .TN = 1, .buffers = 0, .rate = 1.f};
}
constexpr Tile kTiles[] = {tile(64), tile(128)};

struct Job {
  Gemm g;
  float* columns;  // of B: [matrix][k][column]
  OperandMap map;
};

__global__ void __launch_bounds__(256) copy(const Job job) {
  const Gemm& g = job.g;
  const int64_t e = int64_t{blockIdx.x} * 256 + threadIdx.x, one = g.k * g.n;
  if (e < one * g.batch) job.columns[e] = g.at(e / one).b(e % one / g.n, e % g.n);
}

template <bool kA>
struct Shared {
  NativeSlice<32, kA> rows;
  Mbarrier landed;
};

template <int kRow, bool kA>
__global__ void __launch_bounds__(kTiles[kRow].threads()) kernel(const __grid_constant__ Job job) {
  constexpr int kThreads = kTiles[kRow].threads();
  XGEMM_SHARED_DYNAMIC(s, Shared<kA>);
  const Gemm g = job.g.at(blockIdx.z);
  const int64_t across = ceil_div(g.n, kThreads);
  const int64_t i = blockIdx.x / across * 32, j = blockIdx.x % across * kThreads + threadIdx.x;
  const float* column = job.columns + blockIdx.z * g.k * g.n + j;
  const int thread = static_cast<int>(threadIdx.x);
  const NativeLoader<kThreads, 32, kA> rows{
      g.a, i, g.m, g.k, job.map, g.a.bs ? static_cast<int>(blockIdx.z) : 0, thread};
  if (thread == 0) {
    mbarrier_init(&s.landed, rows.from.by_tma ? 1 : kThreads);
    fence_barrier_init();
  }
  __syncthreads();
  float acc[32] = {};
  uint32_t phase = 0;
  for (int64_t k0 = 0; k0 < g.k; k0 += kSliceK, phase ^= 1) {
    if (!rows.from.by_tma) {
      for (int e = thread; e < 32 * kSliceK; e += kThreads) {
        const int r = kA ? e / kSliceK : e % 32, k = kA ? e % kSliceK : e / 32;
        const bool inside = i + r < g.m && k0 + k < g.k;
        cp_async_some<4>(Smem(s.rows.x + s.rows.place(r, k)), g.a.ptr(i + r, k0 + k), 4 * inside);
      }
      mbarrier_arrive_after_copies(&s.landed);
    } else if (thread == 0) {
      mbarrier_expect(&s.landed, rows.kBytes);
      rows.by_tma(s.rows, &s.landed, k0);
    }
    mbarrier_wait(&s.landed, phase);
    for (int k = 0; k < min_of(g.k - k0, kSliceK); ++k) {
      const float b = j < g.n ? column[(k0 + k) * g.n] : 0.f;
      for (int r = 0; r < 32; ++r) acc[r] = fmaf(s.rows.x[s.rows.place(r, k)], b, acc[r]);
    }
    __syncthreads();  // all have read it
  }
  for (int r = 0; r < 32; ++r)
    if (i + r < g.m && j < g.n) g.store(i + r, j, acc[r]);
}

size_t workspace(const Gemm& g, const Context&) {
  const auto floats = [](int64_t n) { return static_cast<size_t>(n); };
  return times(times(times(floats(g.batch), floats(g.k)), floats(g.n)), sizeof(float));
}

template <int kRow, bool kA>
void run_row(const Gemm& g, const Context& context) {
  constexpr int kThreads = kTiles[kRow].threads();
  const int64_t tiles = ceil_div(g.m, 32) * ceil_div(g.n, kThreads);
  if (tiles > kMaxGridX || ceil_div(min_of(g.batch, kMaxGridZ) * g.k * g.n, 256) > kMaxGridX)
    throw std::invalid_argument("my_shape: over 2^31 - 1 blocks");
  for (int64_t z = 0; z < g.batch; z += kMaxGridZ) {
    const int64_t batch = min_of(g.batch - z, kMaxGridZ);
    Job job{g.at(z), static_cast<float*>(context.workspace),
            NativeLoader<kThreads, 32, kA>::map(g.at(z).a, g.m, g.k, batch)};
    job.g.batch = batch;
    const auto blocks = static_cast<unsigned>(ceil_div(job.g.batch * g.k * g.n, 256));
    if (blocks) launch(copy, {.grid = dim3(blocks), .block = dim3(256)}, context, job);
    launch(kernel<kRow, kA>,
           {.grid = dim3(static_cast<unsigned>(tiles), 1, static_cast<unsigned>(job.g.batch)),
            .block = dim3(kThreads),
            .smem = sizeof(Shared<kA>)},
           context, job);
  }
}

void run(const Gemm& g, const Context& context) {
  constexpr void (*rows[][2])(const Gemm&, const Context&) = {
      {run_row<0, false>, run_row<0, true>}, {run_row<1, false>, run_row<1, true>}};
  rows[context.row][along_k(g.a, g.m, g.k)](g, context);
}

static const Register<run> stage(kFlavour, {.name = "my_shape",
                                            .idea = "slices of A by TMA",
                                            .source = "this test",
                                            .tiles = {std::begin(kTiles), std::end(kTiles)},
                                            .min_sm = 90,
                                            .max_sm = 90,
                                            .workspace = workspace});

}  // namespace xgemm::XGEMM_FLAVOUR::my_shape
"""

STAGE = """// A stage that does not fit in.
#include "xgemm/device/launch.h"

namespace xgemm::XGEMM_FLAVOUR::NAME_RUNG {
TILE
void run(const Gemm&, const Context&) {}
static const Register<run> stage(kFlavour, {.name = "NAME",
                                       .rung = RUNG,
                                       .idea = "",
                                       .source = "",
                                       .tiles = {kTile}});
}  // namespace xgemm::XGEMM_FLAVOUR::NAME_RUNG
"""
RIGHT = "constexpr Tile kTile{.BM = 32, .BN = 32, .BK = 1, .buffers = 0};"
# Not a constant, so that the compiler asks nothing of it.
ILLEGAL = """static volatile int rows = 33;
static const Tile kTile{.BM = rows, .BN = 32, .BK = 1, .TN = 4};"""
# What is wrong with a stage, by name and rung: its tile and what is said of it.
FAULTY = {
    ("upright", 60): (RIGHT, "its rung, 60, is that of my_stage, too"),
    ("my_stage", 61): (RIGHT, "another stage has its name"),
    ("naive", 62): (RIGHT, "another stage has its name"),
    ("crooked", 63): (ILLEGAL, "row 0 of its tile table is illegal: a block has whole warps"),
    ("no-word", 64): (RIGHT, "its name cannot be an operator's"),
}


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """Run Python in a build of four stages, the page's example among them, and of faulty ones."""
    tmp_path = tmp_path_factory.mktemp("tree")
    leave_out = shutil.ignore_patterns("*.so", "__pycache__", "build")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=leave_out)
    for name in FILES:
        shutil.copy(ROOT / name, tmp_path / name)
    # Objects that are the same there, with what ninja knows of them: minutes of compiling.
    built, builds = ROOT / library.BUILD_DIR, tmp_path / library.BUILD_DIR
    for name in ("obj/host", "obj/cpp"):
        if (built / name).is_dir():
            shutil.copytree(built / name, builds / name)
    builds.mkdir(parents=True, exist_ok=True)
    for path in built.glob(".ninja_*"):
        shutil.copy2(path, builds)
    rung = re.search(r"\.rung = (\d+)", example())[1]
    (tmp_path / f"csrc/xgemm/stages/ladder/{rung}_my_stage.cu").write_text(example())
    (tmp_path / "csrc/xgemm/stages/shapes/my_shape.cu").write_text(SPECIALIST)
    faulty = []
    for number, ((name, rung), (tile, _)) in enumerate(FAULTY.items(), 70):
        faulty.append(f"faulty_{number}")
        text = STAGE.replace('"NAME"', f'"{name}"').replace("NAME", faulty[-1])
        text = text.replace("RUNG", str(rung)).replace("TILE", tile)
        (tmp_path / f"csrc/xgemm/stages/ladder/{number}_{faulty[-1]}.cu").write_text(text)

    # The emulator of few stages: quick, and what has no nvcc can do it.
    variables = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    variables["XGEMM_CUDA"] = "0"
    variables["XGEMM_STAGES"] = ",".join(["my_stage", "my_shape", "naive", "vec4_128x128", *faulty])
    variables["CUDA_VISIBLE_DEVICES"] = ""  # such a build has nothing for a GPU

    def run(*arguments: str, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env=variables | {"PYTHONPATH": str(tmp_path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
        )
        assert done.returncode == code, done.stdout[-6000:]
        return done.stdout

    run("setup.py", "--quiet", "build_ext", "--inplace")
    return run


@pytest.fixture(scope="module")
def report(python):
    """What pytest says of each test of the new stages; one run, as it has all tests to collect."""
    options = ("-v", "-p", "no:cacheprovider", "--ignore", "tests/test_adding_a_stage.py")
    return python("-m", "pytest", "tests", "-k", "my_stage or my_shape", *options)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("name", ["my_stage", "my_shape"])
def test_one_new_file_is_a_stage(python, report, name):
    listed = python("-c", "import xgemm_torch; print([s.name for s in xgemm_torch.stages()])")
    assert "['naive', 'vec4_128x128', 'my_stage', 'my_shape']" in listed
    passed = re.findall(rf"^\S.*\b{name}\b.* PASSED", report, re.MULTILINE)
    assert len(passed) > 100 and "failed" not in report.lower()


# Each prints the error that it ends with.
CALLS = """
import torch, xgemm_torch
a = torch.ones(3, 3)
for call in (
    lambda: torch.ops.xgemm.crooked(a, a),
    lambda: torch.ops.xgemm.crooked(a.clone().requires_grad_(), a),
    lambda: xgemm_torch.sgemm(a, a, kernel="crooked"),
    lambda: torch.ops.xgemm.sgemm(a, a, kernel="crooked"),
    lambda: xgemm_torch.sgemm(a, a, kernel="no-word"),
):
    try:
        call()
    except RuntimeError as error:
        print("RuntimeError:", str(error).splitlines()[0])
    else:
        print("no error")
assert (torch.ops.xgemm.my_stage(a, a) == 3).all()
assert (torch.ops.xgemm.naive(a, a) == 3).all()
"""


@needs_compiler
@pytest.mark.slow
def test_a_faulty_stage_is_left_out_and_takes_no_other_down(python):
    told = python(
        "-c",
        "import json, xgemm_torch; from xgemm_torch import registry\n"
        "print(json.dumps([vars(fault) for fault in registry.faults()]))",
    )
    faults = {(row["name"], row["rung"]): row for row in json.loads(told)}
    assert set(faults) == set(FAULTY)
    for key, (_, why) in FAULTY.items():
        assert faults[key]["why"].startswith(why) and faults[key]["flavour"] == "host"
    info = python("-m", "xgemm_torch", "info", code=1)
    assert "crooked (rung 63, host flavour): row 0 of its tile table is illegal" in info
    said = [line for line in python("-c", CALLS).splitlines() if "rror" in line]
    why = r"(crooked|no-word) is left out of this build: (row 0|its name cannot)"
    assert len(said) == 5, said
    assert all(re.match(f"RuntimeError: .*{why}", line) for line in said), said


# A tile that breaks one rule, and the rule's words.
RULES = {
    ".BM = 0, .BN = 32, .BK = 1, .buffers = 0": "BM, BN, BK, TM and TN are positive",
    ".BM = 33, .BN = 32, .BK = 1, .TM = 2, .buffers = 0": "whole thread tiles",
    ".BM = 64, .BN = 32, .BK = 1, .buffers = 0": "1024 threads at most",
    ".BM = 33, .BN = 31, .BK = 1, .buffers = 0": "whole warps",
    ".BM = 32, .BN = 32, .BK = 1, .WM = 24, .WN = 16, .buffers = 0": "whole warp tiles",
    ".BM = 32, .BN = 32, .BK = 1, .WM = 16, .WN = 16, .buffers = 0": "one thread tile a lane",
    ".BM = 32, .BN = 32, .BK = 1, .width = 2, .buffers = 0": "LDG.32 or LDG.128",
    ".BM = 32, .BN = 32, .BK = 32": "a_rows is BM or BK",
    ".BM = 32, .BN = 32, .BK = 16, .a_rows = 32": "equal shares of a slice",
    ".BM = 64, .BN = 64, .BK = 32, .TM = 4, .TN = 4, .width = 4, .pad_a = 1, .a_rows = 64":
        "vectors in shared memory are aligned",
    ".BM = 256, .BN = 256, .BK = 1, .TM = 16, .TN = 16, .buffers = 0": "TM * TN is 128 at most",
    ".BM = 32, .BN = 32, .BK = 1, .buffers = 0, .min_blocks = 3": "2048 threads at most",
    ".BM = 32, .BN = 32, .BK = 32, .buffers = 29, .a_rows = 32": "shared memory is 227 KiB at most",
    ".BM = 64, .BN = 64, .BK = 64, .TM = 4, .TN = 4, .buffers = 4, .a_rows = 64, .min_blocks = 2":
        "shared memory of min_blocks blocks",
}  # fmt: skip


def compiled(tmp_path: Path, tiles: str) -> str:
    """What g++ says of a table of tiles; nothing if it takes it."""
    source = tmp_path / "table.cpp"
    source.write_text(
        '#include "xgemm/core/tile.h"\n'
        f"namespace xgemm {{\nconstexpr Tile kTiles[] = {{{tiles}}};\n}}\n"
    )
    done = subprocess.run(
        ["g++", "-std=c++20", "-I", str(ROOT / "csrc"), "-fsyntax-only", str(source)],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "LC_ALL": "C"},
    )
    assert bool(done.returncode) == bool(done.stderr)
    return done.stderr


@needs_compiler
def test_an_illegal_tile_does_not_compile(tmp_path):
    legal = "{.BM = 32, .BN = 32, .BK = 1, .buffers = 0}"
    assert not compiled(tmp_path, legal)
    for tile, rule in RULES.items():
        said = compiled(tmp_path, f"{legal}, {{{tile}}}")
        assert "illegal_tile" in said and rule in said, (tile, said)
    # Changed after it was made, as warp_specialized.h does.
    for rows, rule in ((16, ""), (64, "1024 threads at most"), (0, "are positive")):
        changed = f"[] {{ Tile t = {legal}; t.BM = {rows}; return t.checked(); }}()"
        said = compiled(tmp_path, changed)
        assert rule in said and bool(rule) == bool(said), said


def test_this_build_has_no_faulty_stage():
    from xgemm_torch import registry

    assert registry.faults() == []
