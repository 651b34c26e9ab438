"""The emulator as C++ programs without Python or torch: plain, and under the sanitizers.

=====  ==========================================================================================
plain  the very objects of the library
asan   all sources with AddressSanitizer and UndefinedBehaviorSanitizer
tsan   the library's kernels with ThreadSanitizer's own runtime in place of its race detector;
       of the sources the emulator's alone differ
=====  ==========================================================================================

The sources of the program are tests/native/*.cpp.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from . import ninja_file

if TYPE_CHECKING:
    from .library import Plan

_WITH_LINES = "-g1 -fno-omit-frame-pointer"
SANITIZERS = {
    "plain": "",
    "asan": f"{_WITH_LINES} -fsanitize=address,undefined -fno-sanitize-recover=all",
    "tsan": f"{_WITH_LINES} -fsanitize=thread -DXGEMM_REAL_TSAN",
}
_OPTIONS = {
    "ASAN_OPTIONS": "strict_string_checks=1:detect_stack_use_after_return=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1",
}


def program(build_dir: Path, name: str) -> Path:
    """Where a program is built."""
    return build_dir / "native" / name / "xgemm_native"


def _is_own(name: str, source: Path) -> bool:
    """Whether a program has an object of its own of one of the library's sources.

    The library's kernels are instrumented for ThreadSanitizer, whose calls the emulator answers.
    """
    if name == "tsan":
        return source.suffix == ".cpp" and "emulator" in source.parts
    return name == "asan"


def write(
    plan: Plan, file: ninja_file.NinjaFile, cpp: str, kernel: str, objects: Mapping[Path, Path]
) -> None:
    """Adds the programs' edges.

    `cpp` and `kernel` are the library's flags for its two kinds of sources, `objects` its objects
    by source.
    """
    mains = [path.relative_to(plan.root) for path in sorted(plan.root.glob("tests/native/*.cpp"))]
    if not mains:
        return
    cxx = shlex.quote(plan.compiler.path)
    file.rule("link", f"{cxx} $flags $in -o $out -ldl -lpthread", "link $out")
    kernels = [*plan.sources.kernels, *plan.sources.probes]
    for name, flags in SANITIZERS.items():
        out = program(plan.build_dir, name)
        # The scheduler of the fibers is no part of what ThreadSanitizer watches.
        watched = flags.replace("-fsanitize=thread ", "") if name == "tsan" else flags
        # Under sanitizers all but the emulator is compiled for longer than it runs, kernels most of
        # all: -Og takes half of the time that -O1 takes for them.
        quick = "-O1" if flags else ""
        units = [
            (path, f"{cpp} {watched} {'' if 'emulator' in path.parts else quick}")
            for path in plan.sources.cpp
        ]
        units += [(path, f"{cpp} {flags} {quick}") for path in mains]
        units += [(path, f"{kernel} {cpp} {flags} -Og") for path in kernels]
        linked = []
        for path, unit_flags in units:
            if path in objects and not _is_own(name, path):
                linked.append(objects[path])
                continue
            linked.append(out.parent / f"{path.stem}.o")
            file.build("cxx", linked[-1], [path], flags=unit_flags, label=name)
        file.build("link", out, linked, flags=flags)
        file.phony(f"native-{name}", [out])


def build(plan: Plan, name: str) -> None:
    """Builds one program."""
    ninja_file.run(plan.root, plan.ninja_file, [f"native-{name}"], plan.settings.jobs)


def run(
    plan: Plan, name: str, arguments: Sequence[str] = (), timeout: float = 1800
) -> subprocess.CompletedProcess[str]:
    """Runs one program that has been built; its output is captured."""
    command = [str(plan.root / program(plan.build_dir, name)), *arguments]
    if name == "tsan":
        # Its shadow memory has a fixed place, which some kernels' address randomization takes.
        command = ["setarch", os.uname().machine, "-R", *command]
    return subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        cwd=plan.root,
        env={**os.environ, **_OPTIONS},
    )
