"""The virtual environment that the Makefile works in: completed only when its lists change.

Runs in any Python from 3.10 on with nothing installed.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from .settings import ROOT, BuildError

# Without a GPU a pinned torch, so that everybody tests the same.
CPU_TORCH = "torch==2.13.0"
GPU_TORCH = "torch"

_BUILD_NEEDS = ("pip", "setuptools>=77", "wheel", "ninja", "numpy")


def default_torch(environ: Mapping[str, str] = os.environ) -> str:
    """What to ask pip for: $TORCH, or a choice by whether there is an NVIDIA GPU."""
    return environ.get("TORCH", "").strip() or (GPU_TORCH if has_gpu() else CPU_TORCH)


def has_gpu() -> bool:
    """Whether nvidia-smi is there and sees a GPU."""
    smi = shutil.which("nvidia-smi")
    if not smi:
        return False
    done = subprocess.run([smi, "-L"], capture_output=True, text=True)
    return done.returncode == 0 and "GPU 0" in done.stdout


def make(venv: Path, extras: Sequence[str], torch: str, toolkit: bool = True) -> Path:
    """Makes `venv` with torch, what a build needs, and the extras of pyproject.toml; adds the tree.

    Args:
        venv: The directory; it is made when it is missing.
        extras: Names under [project.optional-dependencies].
        torch: pip's arguments for torch, such as ``"torch==2.11.0"``.
        toolkit: Whether to look for nvcc, and get NVIDIA's wheels where there is none.

    Returns:
        The environment's Python.

    Raises:
        BuildError: This Python has no venv module, or pip failed.
    """
    python = venv / "bin" / "python"
    if not works(python):
        say(f"making {venv} with Python {sys.version.split()[0]}")
        command = [sys.executable, "-m", "venv", "--clear", str(venv)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise BuildError(
                f"{' '.join(command)} failed; on Debian: apt-get install python3-venv\n"
                + (done.stdout + done.stderr).strip()
            )
    for label, packages in (
        ("build tools", _BUILD_NEEDS),
        (torch, shlex.split(torch)),
        *((f"packages to {extra}", extra_packages(python, extra)) for extra in extras),
    ):
        _install(venv, label, packages)
    packages_dir = _output(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"]
    )
    # `import xgemm_torch` then works from everywhere, with what is built in this tree.
    Path(packages_dir.strip(), "xgemm_torch_tree.pth").write_text(f"{ROOT}\n", encoding="utf-8")
    if toolkit and not _stamp(venv, "nvcc").exists():
        subprocess.run([str(python), "-m", "build_tools", "nvcc"], check=True, cwd=ROOT)
        _stamp(venv, "nvcc").touch()
    return python


def works(python: Path) -> bool:
    """Whether an interpreter runs and has pip."""
    if not python.exists():
        return False
    done = subprocess.run([str(python), "-m", "pip", "--version"], capture_output=True)
    return done.returncode == 0


def extra_packages(python: Path, extra: str) -> list[str]:
    """The list of one extra in pyproject.toml, read by the environment's own parser."""
    code = """
import json, sys
try:
    import tomllib
except ImportError:
    from pip._vendor import tomli as tomllib
with open("pyproject.toml", "rb") as file:
    print(json.dumps(tomllib.load(file)["project"]["optional-dependencies"][sys.argv[1]]))
"""
    return json.loads(_output([str(python), "-c", code, extra]))


def _output(command: Sequence[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout


def _stamp(venv: Path, label: str) -> Path:
    return venv / ("installed-" + "".join(c if c.isalnum() else "-" for c in label))


def _install(venv: Path, label: str, packages: Sequence[str]) -> None:
    """Installs a list by pip, unless the environment has had that very list already."""
    stamp, text = _stamp(venv, label.split("=")[0].split(" -")[0]), json.dumps(list(packages))
    if stamp.exists() and stamp.read_text(encoding="utf-8") == text:
        return
    say(f"installing {label}")
    pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", "--upgrade"]
    strategy = ["--upgrade-strategy", "only-if-needed", "--disable-pip-version-check"]
    done = subprocess.run([*pip, *strategy, *packages], capture_output=True, text=True)
    if done.returncode:
        raise BuildError(f"pip install {shlex.join(packages)} failed:\n{done.stderr.strip()}")
    stamp.write_text(text, encoding="utf-8")


def say(text: str) -> None:
    """One line of progress."""
    print(f"environment: {text}", flush=True)
