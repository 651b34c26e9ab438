"""Operators by the compiled library alone: traced modules and AOTInductor packages in a process
that never imports xgemm_torch, and in a C++ program without Python.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import xgemm_torch
from xgemm_torch import _C, ops

pytestmark = [
    pytest.mark.skipif(
        tuple(map(int, torch.__version__.split(".")[:2])) < (2, 12),
        reason="before 2.12 torch's stable ABI has no tags, and Python defines the operators",
    ),
    pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++"),
]
SOURCE = Path(__file__).parent / "data" / "without_python.cpp"
TORCH = Path(torch.__file__).parent
X = torch.arange(8 * 32, dtype=torch.float32).view(8, 32) / 64 - 2


class Model(torch.nn.Module):
    """Converted layers, a stage by its name, and the strict product."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = torch.nn.Sequential(
            torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 16)
        )
        xgemm_torch.convert(layers, precision="ieee")
        self.layers = layers.eval().requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layers(x)
        z = xgemm_torch.sgemm(y, y, trans_b=True, kernel="block_tile_2d")
        return torch.ops.xgemm.mma_fp16x3(z, y, alpha=0.5)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The library, a traced module, a package, and the result's bytes."""
    folder = tmp_path_factory.mktemp("saved")
    model = Model()
    torch.jit.trace(model, X, check_trace=False).save(folder / "traced.pt")
    exported = torch.export.export(model, (X,))
    torch._inductor.aoti_compile_and_package(exported, package_path=str(folder / "x.pt2"))
    files = [_C.__file__, str(folder / "traced.pt"), str(folder / "x.pt2")]
    return files, model(X).numpy().tobytes()


def results(folder, command, saved):
    files, want = saved
    out = [folder / "traced", folder / "package"]
    done = subprocess.run(
        [*command, *files, *map(str, out)], cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [path.read_bytes() == want for path in out]


def test_in_a_process_that_does_not_import_the_package(saved, tmp_path):
    code = """
import sys, torch
library, traced, package, *out = sys.argv[1:]
torch.ops.load_library(library)
x = torch.arange(8 * 32, dtype=torch.float32).view(8, 32) / 64 - 2
results = torch.jit.load(traced)(x), torch._inductor.aoti_load_package(package)(x)
for name, result in zip(out, results):
    open(name, "wb").write(result.numpy().tobytes())
assert not [name for name in sys.modules if name.startswith("xgemm")]
"""
    assert results(tmp_path, [sys.executable, "-P", "-c", code], saved) == [True, True]


def test_in_a_program_without_python(saved, tmp_path):
    program = tmp_path / "program"
    built = subprocess.run(
        ["g++", "-std=c++20", "-O0", f"-I{TORCH}/include",
         f"-I{TORCH}/include/torch/csrc/api/include",
         f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}", str(SOURCE),
         f"-L{TORCH}/lib", "-Wl,--no-as-needed", "-ltorch", "-ltorch_cpu", "-lc10", "-ldl",
         f"-Wl,-rpath,{TORCH}/lib", "-o", str(program)],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    assert results(tmp_path, [str(program)], saved) == [True, True]


def test_a_second_copy_of_the_library_is_told(tmp_path):
    copy = shutil.copy(_C.__file__, tmp_path / "copy.so")
    code = f"import torch; torch.ops.load_library({str(copy)!r}); import xgemm_torch"
    root = Path(xgemm_torch.__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert done.returncode == 1
    assert "torch.ops.xgemm is defined by another library of this process" in done.stderr


def test_declared_schemas_are_those_of_the_operators():
    assert ops.DECLARED["defined"]
    for schema, flexible in ops.DECLARED["operators"]:
        name, _, overload = schema.partition("(")[0].partition(".")
        op = getattr(getattr(torch.ops.xgemm, name), overload or "default")
        assert torch._C.parse_schema(f"xgemm::{schema}") == op._schema
        assert torch.Tag.pt2_compliant_tag in op.tags
        assert (torch.Tag.flexible_layout in op.tags) == flexible
