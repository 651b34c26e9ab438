"""A learner's file as a program: compiled by g++ for the emulator, alone, and asked questions.

The emulator is compiled once, from the sources of csrc, into a folder of the user's cache that is
named after them, and exercise.h is precompiled there: that is three quarters of the time of a small
file. A learner's file is then one compilation and one link. It runs in a process of its own: what
it does wrong ends that process alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SECONDS = 30  # that a program may run
PRINTED = 20  # lines that are kept
KEPT_DAYS = 30  # of an emulator that was compiled
OLDEST = 11  # of g++, as in build_tools/compiler.py
FMA = ("-mfma",) if platform.machine() in ("x86_64", "AMD64") else ()
COMMON = ("-std=c++20", "-O1", "-Wno-unknown-pragmas", *FMA)
# As build_tools/library.py compiles stages for the emulator, but less optimized.
KERNEL = (
    "-x", "c++", "-g1", "-ffp-contract=off", "-fno-strict-aliasing", "-DXGEMM_FLAVOUR=host",
    "-fsanitize=thread", "--param", "tsan-instrument-func-entry-exit=0", "-Wall",
    "-Wno-unused-variable", "-Wno-unused-but-set-variable", "-Wno-unused-function",
)  # fmt: skip


class CannotBuild(OSError):
    """This machine has no compiler or no sources; the message says what would help."""


class DoesNotCompile(Exception):
    """A learner's file does not compile.

    Attributes:
        message: the compiler's words, from the first error on.
    """

    def __init__(self, message: str) -> None:
        """Keep what the compiler said."""
        super().__init__(message)
        self.message = message


def sources() -> Path:
    """Find csrc: ``$XGEMM_CSRC``, a checkout's, or what was installed with the package.

    Raises:
        CannotBuild: there is none.
    """
    named = os.environ.get("XGEMM_CSRC", "")
    folders = [Path(named)] if named else [HERE.parents[2] / "csrc", HERE.parents[1] / "csrc"]
    for folder in folders:
        if (folder / "emulator" / "simt_control.h").exists():
            return folder.resolve()
    raise CannotBuild(
        f"exercises are compiled together with the emulator's sources, and there are none in "
        f"{folders[0]}: run this in a checkout, or set XGEMM_CSRC to the folder csrc of one"
    )


def compiler() -> tuple[str, str]:
    """Find g++; gives its path and version.

    Raises:
        CannotBuild: there is none, or it is too old, or it is another compiler.
    """
    wanted = os.environ.get("CXX", "").strip() or "g++"
    path = shutil.which(wanted)
    if path is None:
        raise CannotBuild(
            f"exercises are compiled by g++, and there is no {wanted}; on Debian: "
            "apt-get install g++"
        )
    said = subprocess.run(
        [path, "--version"], capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}
    ).stdout
    match = re.search(r"\b(\d+)\.\d+\.\d+\b", said.partition("\n")[0])
    if "Free Software Foundation" not in said or not match or int(match[1]) < OLDEST:
        raise CannotBuild(f"{path} is no g++ of version {OLDEST} or newer; set CXX to one")
    return path, match[0]


def _cache() -> Path:
    """A folder that can be written to: the user's cache, or one for temporary files."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    for folder in (Path(home), Path(tempfile.gettempdir()) / f"cache-{os.getuid()}"):
        wanted = folder / "xgemm_torch"
        with contextlib.suppress(OSError):
            wanted.mkdir(parents=True, exist_ok=True)
            if os.access(wanted, os.W_OK) and wanted.stat().st_uid == os.getuid():
                return wanted
    return Path(tempfile.mkdtemp(prefix="xgemm_torch-"))


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _emulator_files(csrc: Path) -> list[Path]:
    return [*sorted(csrc.glob("emulator/*.cpp")), *sorted(csrc.glob("xgemm/*/*.cpp"))]


def _name(csrc: Path, version: str) -> str:
    """A name for the emulator that these sources, compiler and flags make.

    Where the sources are is part of it: a precompiled header knows headers by their paths.
    """
    known = (version, COMMON, KERNEL, platform.machine(), str(csrc), str(HERE))
    found = hashlib.sha256(repr(known).encode())
    rooms = ("emulator/*", "xgemm/*/*", "xgemm/*/*/*.h")
    files = sorted({path for room in rooms for path in csrc.glob(room) if path.is_file()})
    for path in [*files, *(HERE / name for name in ("grade.cpp", "problem.h", "exercise.h"))]:
        if path.suffix in (".h", ".cpp", ".inc"):
            found.update(path.name.encode() + b"\0" + path.read_bytes())
    return f"emulator-{found.hexdigest()[:16]}"


def emulator(say: Callable[[str], None] = lambda _: None) -> Path:
    """Give the folder of what a learner's file is built with; compiles it where it is missing.

    It holds objects to link with, and a precompiled exercise.h.

    Raises:
        CannotBuild: there is no compiler, or there are no sources, or they do not compile.
    """
    csrc, (gxx, version) = sources(), compiler()
    cache = _cache()
    folder = cache / _name(csrc, version)
    if not folder.is_dir():
        with _locked(cache / "emulator.lock"):
            if not folder.is_dir():
                say("compiling the emulator, once: some 20 seconds on two cores")
                _forget_old(cache)
                _compile_emulator(gxx, csrc, folder)
    return folder


def _forget_old(cache: Path) -> None:
    """Removes emulators that were compiled long ago: 60 MB each."""
    for folder in cache.glob("emulator-*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > KEPT_DAYS * 86400:
                shutil.rmtree(folder, ignore_errors=True)


def _unplaced(*folders: Path) -> list[str]:
    """Flags by which files of these folders are told without the way to them.

    The emulator asks addr2line for places, and cuts its answers at blanks.
    """
    return [f"-ffile-prefix-map={folder}/=/" for folder in folders]


def _compile_emulator(gxx: str, csrc: Path, folder: Path) -> None:
    work = Path(tempfile.mkdtemp(prefix="building-", dir=folder.parent))

    def build(path: Path) -> None:
        if path.suffix == ".h":
            kinds = ["c++-header" if flag == "c++" else flag for flag in KERNEL]
            flags = [*COMMON, *kinds, f"-I{csrc}", *_unplaced(csrc)]
            out = f"{path.name}.gch"
        else:
            flags, out = [*COMMON, "-w", f"-I{csrc}", "-DXGEMM_WITH_CUDA=0", "-c"], f"{path.stem}.o"
        command = [gxx, *flags, str(path), "-o", str(work / out)]
        done = subprocess.run(command, cwd="/", capture_output=True, text=True)
        if done.returncode:
            raise CannotBuild(f"the emulator does not compile: {done.stderr.strip()[:2000]}")

    try:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2
        with ThreadPoolExecutor(cores) as pool:
            parts = [HERE / "exercise.h", HERE / "grade.cpp", *_emulator_files(csrc)]
            list(pool.map(build, parts))
        work.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _way(code: int) -> str:
    """How a process ended."""
    with contextlib.suppress(ValueError):
        return f"by the signal {signal.Signals(-code).name}"
    return f"with code {code}"


@dataclass
class Program:
    """A learner's file that has been compiled; `printed` are lines of its own printf."""

    path: Path
    warnings: str
    printed: list[str] = field(default_factory=list)

    def ask(self, lines: Sequence[str]) -> list[dict[str, Any]]:
        """Ask grade.cpp's questions; gives an answer for each that the process lived to give.

        The last one is ``{"kind": "crash"}`` or ``{"kind": "time"}`` where it did not live to the
        end.
        """
        ended: dict[str, Any] | None = None
        with subprocess.Popen(
            [str(self.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True,
        ) as process:  # fmt: skip
            try:
                said, _ = process.communicate("\n".join(lines) + "\n", timeout=SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                said, _ = process.communicate()
                ended = {"kind": "time", "text": f"it did not end within {SECONDS} seconds"}
        if ended is None and process.returncode:
            ended = {"kind": "crash", "text": f"it ended {_way(process.returncode)}"}
        answers: list[dict[str, Any]] = []
        for line in said.split("\n"):
            if not line.startswith("\x1e"):
                self.printed += [line] if line and len(self.printed) < PRINTED else []
            elif line.endswith("}"):
                answers.append(json.loads(line[1:]))
        return [*answers, ended] if ended else answers


@contextlib.contextmanager
def compiled(path: Path, say: Callable[[str], None] = lambda _: None) -> Iterator[Program]:
    """Compile a learner's file, for the time of a ``with`` block.

    Raises:
        CannotBuild: as of `emulator`.
        DoesNotCompile: the compiler takes the file not.
    """
    built = emulator(say)
    objects = sorted(built.glob("*.o"))
    gxx, _ = compiler()
    with tempfile.TemporaryDirectory(prefix="xgemm_exercise-") as folder:
        obj, program = Path(folder, "exercise.o"), Path(folder, "exercise")
        flags = [*COMMON, *KERNEL, f"-I{built}", f"-I{HERE}", f"-I{sources()}"]
        done = subprocess.run(
            [gxx, *flags, *_unplaced(path.parent, sources()), "-c", str(path), "-o", str(obj)],
            cwd="/",
            capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip
        if done.returncode:
            raise DoesNotCompile(done.stderr)
        linked = subprocess.run(
            [gxx, str(obj), *map(str, objects), "-o", str(program), "-ldl", "-lpthread"],
            capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip
        if linked.returncode:
            raise DoesNotCompile(linked.stderr)
        yield Program(program, done.stderr)
