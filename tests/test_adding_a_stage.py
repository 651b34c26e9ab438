"""docs/adding-a-stage.md keeps its word: its example, as one new file, is a stage."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ["csrc", "build_tools", "xgemm_torch", "tests", "benchmarks"]
FILES = ["setup.py", "pyproject.toml", "README.md", "LICENSE"]


def example() -> str:
    """The stage file that the page prints."""
    page = (ROOT / "docs" / "adding-a-stage.md").read_text()
    return re.search(r"```cpp\n(// The idea.*?)```", page, re.S)[1]


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
@pytest.mark.slow
def test_one_new_file_is_a_stage(tmp_path):
    leave_out = shutil.ignore_patterns("*.so", "__pycache__", "build")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=leave_out)
    for name in FILES:
        shutil.copy(ROOT / name, tmp_path / name)
    rung = re.search(r"\.rung = (\d+)", example())[1]
    (tmp_path / f"csrc/xgemm/stages/{rung}_my_stage.cu").write_text(example())

    # The host flavour of three stages: quick, and what has no nvcc can do it.
    variables = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    variables |= {"XGEMM_CUDA": "0", "XGEMM_STAGES": "my_stage,naive,vec4_128x128"}
    variables["CUDA_VISIBLE_DEVICES"] = ""  # such a build has nothing for a GPU

    def python(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env=variables | {"PYTHONPATH": str(tmp_path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stdout[-6000:]
        return done.stdout

    python("setup.py", "--quiet", "build_ext", "--inplace")
    listed = python("-c", "import xgemm_torch; print([s.name for s in xgemm_torch.stages()])")
    assert "['naive', 'vec4_128x128', 'my_stage']" in listed
    report = python("-m", "pytest", "-q", "tests", "-k", "my_stage", "-p", "no:cacheprovider")
    passed = int(re.search(r"(\d+) passed", report)[1])
    assert passed > 100 and "failed" not in report
