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

ROOT = Path(__file__).parent.parent
FOLDERS = ["csrc", "build_tools", "xgemm_torch", "tests", "benchmarks"]
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
FILES = ["setup.py", "pyproject.toml", "README.md", "LICENSE"]


def example() -> str:
    """The stage file that the page prints."""
    page = (ROOT / "docs" / "adding-a-stage.md").read_text()
    return re.search(r"```cpp\n(// The idea.*?)```", page, re.S)[1]


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
    ("my_stage", 61): (RIGHT, "its name is that of rung 60, too"),
    ("naive", 62): (RIGHT, "its name is that of rung 1, too"),
    ("crooked", 63): (ILLEGAL, "row 0 of its tile table is illegal: a block has whole warps"),
    ("no-word", 64): (RIGHT, "its name cannot be an operator's"),
}


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """Run Python in a build of three stages, one of them the page's example, and of faulty ones."""
    tmp_path = tmp_path_factory.mktemp("tree")
    leave_out = shutil.ignore_patterns("*.so", "__pycache__", "build")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=leave_out)
    for name in FILES:
        shutil.copy(ROOT / name, tmp_path / name)
    rung = re.search(r"\.rung = (\d+)", example())[1]
    (tmp_path / f"csrc/xgemm/stages/{rung}_my_stage.cu").write_text(example())
    faulty = []
    for number, ((name, rung), (tile, _)) in enumerate(FAULTY.items(), 70):
        faulty.append(f"faulty_{number}")
        text = STAGE.replace('"NAME"', f'"{name}"').replace("NAME", faulty[-1])
        text = text.replace("RUNG", str(rung)).replace("TILE", tile)
        (tmp_path / f"csrc/xgemm/stages/{number}_{faulty[-1]}.cu").write_text(text)

    # The host flavour of few stages: quick, and what has no nvcc can do it.
    variables = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    variables["XGEMM_CUDA"] = "0"
    variables["XGEMM_STAGES"] = ",".join(["my_stage", "naive", "vec4_128x128", *faulty])
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


@needs_compiler
@pytest.mark.slow
def test_one_new_file_is_a_stage(python):
    listed = python("-c", "import xgemm_torch; print([s.name for s in xgemm_torch.stages()])")
    assert "['naive', 'vec4_128x128', 'my_stage']" in listed
    report = python("-m", "pytest", "-q", "tests", "-k", "my_stage", "-p", "no:cacheprovider")
    passed = int(re.search(r"(\d+) passed", report)[1])
    assert passed > 100 and "failed" not in report


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
    calls = (
        "torch.ops.xgemm.crooked(a, a)",
        "torch.ops.xgemm.crooked(a.clone().requires_grad_(), a)",
        'xgemm_torch.sgemm(a, a, kernel="crooked")',
        'torch.ops.xgemm.sgemm(a, a, kernel="crooked")',
        'xgemm_torch.sgemm(a, a, kernel="no-word")',
    )
    for call in calls:
        said = python("-c", f"import torch, xgemm_torch\na = torch.ones(3, 3)\n{call}", code=1)
        why = r"(crooked|no-word) is left out of this build: (row 0|its name cannot)"
        assert re.search(f"RuntimeError: .*{why}", said), said
    python(
        "-c",
        "import torch, xgemm_torch\na = torch.ones(3, 3)\n"
        "assert (torch.ops.xgemm.my_stage(a, a) == 3).all()\n"
        "assert (torch.ops.xgemm.naive(a, a) == 3).all()",
    )


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
