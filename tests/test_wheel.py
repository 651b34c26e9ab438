"""`build_tools.wheel`: what is run, in which order, and what a failed check says."""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from build_tools import cuda_toolkit, settings, wheel
from build_tools.compiler import Compiler
from build_tools.settings import BuildError

BUILT = "xgemm_torch-0.1.0-cp310-abi3-linux_x86_64.whl"
TAGGED = "xgemm_torch-0.1.0-cp310-abi3-manylinux_2_28_x86_64.whl"


@pytest.fixture
def tools(monkeypatch):
    """Tools that leave files as the real ones do; what they were asked."""
    asked, environs = [], []

    def run(*command, environ=os.environ):
        asked.append(command)
        environs.append(environ)
        for option, name in (("--dist-dir", BUILT), ("--wheel-dir", TAGGED)):
            if option in command:
                folder = Path(command[command.index(option) + 1])
                folder.mkdir()
                (folder / name).write_bytes(b"wheel")

    monkeypatch.setattr(wheel, "_run", run)
    return SimpleNamespace(asked=asked, environs=environs)


def test_a_wheel_is_built_tagged_and_checked(tools, tmp_path):
    made = wheel.make(tmp_path / "dist")
    assert made == tmp_path / "dist" / TAGGED and made.read_bytes() == b"wheel"
    assert [command[1] for command in tools.asked] == [
        "--quiet", "auditwheel", "twine", "check_wheel_contents"
    ]  # fmt: skip
    repair = tools.asked[1]
    assert [x for x, y in zip(repair[1:], repair, strict=False) if y == "--exclude"] == [
        "libtorch*", "libc10*"
    ]  # fmt: skip
    assert repair[repair.index("--plat") + 1] == f"manylinux_2_28_{os.uname().machine}"
    assert repair[-1].endswith(BUILT)
    assert tools.asked[2][-1].endswith(TAGGED) and tools.asked[3][-1].endswith(TAGGED)


def test_a_wheel_that_is_too_large_is_not_left(tools, tmp_path, monkeypatch):
    monkeypatch.setattr(wheel, "LIMIT", 4)
    with pytest.raises(BuildError, match="has 5 bytes, over 4"):
        wheel.make(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_tool_that_fails_is_told_with_its_words():
    with pytest.raises(BuildError, match="(?s)-c raise SystemExit.* failed:.*no such thing"):
        wheel._run("-c", "raise SystemExit('no such thing')")


def test_a_wheels_library_is_linked_for_torchs_own_glibc(tools, tmp_path):
    wheel.make(tmp_path)
    assert settings.read(tools.environs[0]).glibc == wheel.GLIBC
    assert settings.read(tools.environs[0]).runtime == ""


@pytest.fixture
def cross(monkeypatch, tmp_path):
    """A compiler for another processor, an nvcc, and PyPI's runtime for that one."""
    compiler = Compiler("cross-g++", "12.2.0", "other64")
    toolkit = cuda_toolkit.Toolkit(Path("nvcc"), Path("cuda"), "13.0", Path("own.a"), "here")
    monkeypatch.setattr(wheel.compiler_module, "find", lambda: compiler)
    monkeypatch.setattr(cuda_toolkit, "find", lambda **_: cuda_toolkit.Search(toolkit, ()))
    monkeypatch.setattr(
        cuda_toolkit, "fetch_runtime", lambda *asked: Path("/".join(map(str, asked[:2])))
    )
    return compiler


def test_a_wheel_for_another_processor(tools, cross, tmp_path, monkeypatch):
    monkeypatch.delenv("XGEMM_CUDA", raising=False)
    monkeypatch.delenv("XGEMM_CUDART", raising=False)
    wheel.make(tmp_path)
    assert settings.read(tools.environs[0]).runtime == "13.0/other64"
    repair = tools.asked[1]
    assert repair[repair.index("--plat") + 1] == "auto"


@pytest.mark.parametrize("setting, value", [("XGEMM_CUDART", "own.a"), ("XGEMM_CUDA", "0")])
def test_a_runtime_that_is_not_needed_is_not_fetched(
    tools, cross, tmp_path, monkeypatch, setting, value
):
    monkeypatch.setenv(setting, value)
    wheel.make(tmp_path)
    assert settings.read(tools.environs[0]).runtime == (
        "own.a" if setting == "XGEMM_CUDART" else ""
    )


def test_a_wheel_that_needs_a_newer_glibc_is_refused(tools, tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "TAGGED", TAGGED.replace("2_28", "2_34"))
    with pytest.raises(BuildError, match="needs a newer glibc than 2.28"):
        wheel.make(tmp_path)


@pytest.mark.parametrize(
    "tags, glibc",
    [("manylinux_2_34_x", (2, 34)), ("manylinux_2_27_x.manylinux_2_28_x", (2, 27)),
     ("linux_x", (sys.maxsize,))],
)  # fmt: skip
def test_the_glibc_of_a_wheels_name(tags, glibc):
    assert wheel.oldest_glibc(f"a-1-cp310-abi3-{tags}.whl") == glibc


def runtime_wheel(folder: Path, name: str) -> None:
    with zipfile.ZipFile(folder / "nvidia_cuda_runtime-13.0.1-py3-none-any.whl", "w") as packed:
        packed.writestr(name, "static")


def test_a_runtime_from_pypi(tmp_path, monkeypatch):
    asked = []

    def pip(command, **_):
        asked.append(command)
        runtime_wheel(tmp_path, "nvidia/cu13/lib/libcudart_static.a")
        return SimpleNamespace(returncode=0, stderr="")

    monkeypatch.setattr(cuda_toolkit.subprocess, "run", pip)
    found = cuda_toolkit.fetch_runtime("13.0", "aarch64", tmp_path)
    assert found.read_text() == "static" and found.name == "libcudart_static.a"
    assert asked[0][-2:] == ["manylinux2014_aarch64", "nvidia-cuda-runtime==13.0.*"]


def test_no_runtime_from_pypi(tmp_path, monkeypatch):
    answer = SimpleNamespace(returncode=1, stderr="looking\nno such wheel\n")
    monkeypatch.setattr(cuda_toolkit.subprocess, "run", lambda *_, **__: answer)
    with pytest.raises(BuildError, match="no CUDA runtime 13.0 for aarch64 .*: no such wheel"):
        cuda_toolkit.fetch_runtime("13.0", "aarch64", tmp_path)
    answer.returncode = 0
    runtime_wheel(tmp_path, "nvidia/cu13/lib/libcudart.so.13")
    with pytest.raises(BuildError, match="holds no libcudart_static.a"):
        cuda_toolkit.fetch_runtime("13.0", "aarch64", tmp_path)
