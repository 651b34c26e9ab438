"""A learner's file on the GPU at hand: compiled by nvcc, its bits compared, and timed.

This comes after the emulator's grading, where there is a GPU that torch sees and an nvcc. What the
emulator cannot see may come out here: lanes that are not in step, an architecture's limits, time.
The kernels run in a process of their own (gpu_worker.py).
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import speed
from .check import GOOD, Verdict, bits, first_error
from .exercise import GENERAL, Case, Exercise
from .program import FMA, HERE, CannotBuild, DoesNotCompile, compiler, sources

# As build_tools/library.py compiles stages. The host's part computes what is expected.
KERNEL = ("-std=c++20", "--expt-relaxed-constexpr", "-O3", "-DXGEMM_FLAVOUR=cuda")
HOST = ",".join(("-fPIC", "-ffp-contract=off", *FMA))
# Beside an exercise's own problems, for kernels that take any: many blocks, at sizes that no tile
# divides.
LARGE = Case(331, 259, 263)
STARTS, RUNS = 120, 120  # seconds that the process may take to begin, and an exercise to run
KINDS = {"illegal memory": "stray", "misaligned": "misaligned", "timed out": "time"}
DIFFERS = (
    "The emulator has found no fault, and the GPU has. There all warps run at once, a warp's lanes "
    "need not be in step, and what differs from run to run is a race. Limits differ, too: "
    "registers and shared memory of a block."
)
SLOWER = "It is solved all the same: the mark is for you."


class CannotAsk(Exception):
    """The GPU cannot be asked; the message says why. No fault of the learner's."""


def architecture() -> int | None:
    """Compute capability of the first GPU, 90 for an H100; None without one."""
    import torch

    if not torch.cuda.is_available():
        return None
    major, minor = torch.cuda.get_device_capability(0)
    return 10 * major + minor


def _places() -> Iterator[Path]:
    """Where build_tools/cuda_toolkit.py looks for nvcc, in its order."""
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            yield Path(os.environ[variable], "bin", "nvcc")
    if on_path := shutil.which("nvcc"):
        yield Path(on_path)
    packages = Path(sysconfig.get_paths()["purelib"], "nvidia")
    for folder, pattern in ((Path("/usr/local"), "cuda*"), (packages, "cu*")):
        found = sorted(folder.glob(pattern), key=_version, reverse=True)
        yield from (root / "bin" / "nvcc" for root in found)


def _version(path: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", path.name)]


def nvcc() -> Path:
    """Find nvcc.

    Raises:
        CannotAsk: there is none.
    """
    for place in _places():
        if place.exists():
            return place.resolve()
    raise CannotAsk("no nvcc in $CUDA_HOME, the PATH, /usr/local/cuda* or Python's packages")


def build(path: Path, folder: Path, sm: int) -> Path:
    """Compile a learner's file for one GPU; gives a library in `folder`.

    Raises:
        CannotAsk: nvcc does not work here, or knows no such GPU.
        DoesNotCompile: the file is at fault.
    """
    tool = nvcc()
    try:
        (gxx, _), csrc = compiler(), sources()
    except CannotBuild as error:
        raise CannotAsk(str(error)) from error
    # Hopper's own instructions, and those of later families, are for one architecture alone.
    arch = f"{sm}a" if sm >= 90 else f"{sm}"
    library = folder / f"{path.stem}.so"
    root = tool.parent.parent
    places = [f"-L{place}" for place in (root / "lib64", root / "lib") if place.is_dir()]
    done = subprocess.run(
        [tool, *KERNEL, f"-gencode=arch=compute_{arch},code=sm_{arch}", "-ccbin", gxx,
         "-Xcompiler", HOST, f"-I{HERE}", f"-I{csrc}", *places, "-shared",
         "-Xlinker", "-Bsymbolic,--no-undefined", path.resolve(), HERE / "gpu.cpp",
         "-o", library],
        cwd=folder, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"},
    )  # fmt: skip
    if done.returncode == 0:
        return library
    # nvcc has path(12): error: where g++ has path:12: error:
    said = re.sub(r"\((\d+)\): (error|warning)", r":\1: \2", done.stderr + done.stdout)
    if path.name in said or "ptxas" in said or "undefined" in said:
        raise DoesNotCompile(said)
    first = next((line for line in said.splitlines() if "error" in line or "fatal" in line), said)
    raise CannotAsk(f"{tool} does not compile for sm_{arch}: {first.strip()[:300]}")


def cases(exercise: Exercise) -> tuple[Case, ...]:
    """The problems whose bits are compared."""
    general = tuple(Case.parse(word) for word in GENERAL.split())
    return (*exercise.cases, LARGE) if exercise.cases == general else exercise.cases


def missing(exercise: Exercise, sm: int) -> str:
    """Why this GPU cannot run the exercise, as its stage could not; "" where it can."""
    from ...registry import stages

    for stage in stages():
        if stage.name == exercise.stage:
            if sm < stage.min_sm or (stage.max_sm and sm > stage.max_sm):
                return f"it is written for sm_{stage.min_sm}, this GPU is sm_{sm}"
    return ""


class Worker:
    """The process that runs kernels: asked one thing at a time, begun anew after a fault."""

    def __init__(self, command: list[str] | None = None) -> None:
        """Begin nothing yet; `command` stands in for the process in tests."""
        here = __name__.rpartition(".")[0]
        self._command = command or [sys.executable, "-m", f"{here}.gpu_worker"]
        self._process: subprocess.Popen[bytes] | None = None
        self.device = ""

    def __enter__(self) -> Worker:
        """Give the worker, which ends with the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the process."""
        self.end()

    def end(self) -> None:
        """End the process, if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Give the answer to a request; begins the process where there is none.

        Raises:
            CannotAsk: the process does not come up.
        """
        if self._process is None:
            self._begin()
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended: the answer says so
        told = self._answer(RUNS)
        if told["kind"] in ("error", "crash", "time"):
            self.end()
        return told

    def _begin(self) -> None:
        package = str(HERE.parents[2])
        path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip
        told = self._answer(STARTS)
        if told["kind"] != "ready":
            self.end()
            raise CannotAsk(f"the process that runs kernels does not begin: {told['text']}")
        self.device = told["device"]

    def _answer(self, seconds: float) -> dict[str, Any]:
        assert self._process is not None and self._process.stdout is not None
        file, line, end = self._process.stdout.fileno(), b"", time.monotonic() + seconds
        while not line.endswith(b"\n"):
            left = end - time.monotonic()
            if left <= 0 or not select.select([file], [], [], left)[0]:
                return {"kind": "time", "text": f"it did not end within {seconds} seconds"}
            part = os.read(file, 65536)
            if not part:
                code = self._process.wait()
                return {"kind": "crash", "text": f"its process ended with code {code}"}
            line += part
        told: dict[str, Any] = json.loads(line)
        return told


def tell_speed(verdict: Verdict, exercise: Exercise, told: dict[str, Any]) -> None:
    """Put a measured speed into a verdict, beside the mark."""
    mark = speed.mark(exercise.stem)
    assert mark is not None
    m, n, k = speed.SPEEDS[exercise.stem].product
    reached = told["torch_mm_us"] / told["us"]
    tflops = 2 * m * n * k / told["us"] / 1e6
    at = f"{tflops:.3g} TFLOP/s at {m} x {n} x {k}"
    share = f"{speed.percent(reached)} of cuBLAS, the mark is {speed.percent(mark)}"
    if reached >= mark:
        verdict.passed.append(f"{share}: {at}")
    else:
        verdict.slow = f"{share}: {at}. {SLOWER}"


def ask(exercise: Exercise, path: Path, worker: Worker, sm: int) -> dict[str, Any]:
    """Compile and run a file; gives the worker's answer.

    Raises:
        CannotAsk, DoesNotCompile: as of `build`.
    """
    if why := missing(exercise, sm):
        raise CannotAsk(why)
    with tempfile.TemporaryDirectory(prefix="xgemm_exercise-") as folder:
        return worker.ask(request(exercise, build(path, Path(folder), sm)))


def request(exercise: Exercise, library: Path) -> dict[str, Any]:
    """What the worker is asked of an exercise."""
    timed = speed.SPEEDS.get(exercise.stem)
    return {
        "library": str(library),
        "cases": [case.words for case in cases(exercise)],
        "product": timed.product if timed else None,
    }


def grade(exercise: Exercise, path: Path, verdict: Verdict, worker: Worker, sm: int) -> Verdict:
    """Add to a good verdict of the emulator what the GPU says; gives another one for a fault.

    Args:
        exercise: what the file is of; a ``predict`` has nothing to run.
        path: the learner's file.
        verdict: of `check.file`.
        worker: runs it.
        sm: the GPU's compute capability, as `architecture` gives it.
    """
    if not verdict.good or exercise.kind == "predict":
        return verdict
    try:
        told = ask(exercise, path, worker, sm)
    except CannotAsk as error:
        verdict.note = f"not run on the GPU: {error}"
        return verdict
    except DoesNotCompile as error:
        fault = first_error(error, path)
        fault.what = f"by nvcc, for sm_{sm}: {fault.what}"
        return _with(fault, verdict)
    if told["kind"] == "unable":
        verdict.note = f"not run on the GPU: {told['text']}"
        return verdict
    if told["kind"] != GOOD:
        return _with(_fault(told, exercise, worker.device), verdict)
    few = f", {told['left_out']} too large are left out" if told["left_out"] else ""
    verdict.passed.append(f"on {worker.device}: {told['ran']} problems, bits{few}")
    if "coarse" in told:
        verdict.note = f"not timed: {told['coarse']}"
    if "us" in told:
        tell_speed(verdict, exercise, told)
    return verdict


def _fault(told: dict[str, Any], exercise: Exercise, device: str) -> Verdict:
    number = told.get("case")
    case = None if number is None else cases(exercise)[number]
    on = f"on {device}"
    if told["kind"] == "bits":
        assert case is not None
        fault = bits(told, case)
        return Verdict("bits", f"{on}: {fault.what}", DIFFERS)
    if told.get("wrong"):
        return Verdict("bits", f"{on}: {told['text']}", DIFFERS)
    found = (kind for words, kind in KINDS.items() if words in told["text"])
    kind = told["kind"] if told["kind"] != "error" else next(found, "crash")
    where = f" ({case})" if case else ""
    return Verdict(kind, f"{on}: {told['text'].removeprefix('xgemm: ')}{where}", DIFFERS)


def _with(fault: Verdict, before: Verdict) -> Verdict:
    fault.passed, fault.printed = before.passed, before.printed
    return fault
