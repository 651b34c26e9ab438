"""The environment variables that steer a build, read in one place."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


class BuildError(Exception):
    """The build cannot go on; the message says what is missing or wrong, and what would help."""


@dataclass(frozen=True)
class Settings:
    """What was asked for.

    Attributes:
        cuda: ``"auto"`` (CUDA kernels if nvcc is found), ``"1"`` (fail without nvcc) or ``"0"``.
        stages: The stages to build, by number or name; empty for all of them.
        archs: ``TORCH_CUDA_ARCH_LIST``, or an empty string for the default list.
        jobs: Compilers to run at once.
        line_info: Whether machine code names the lines of its source, for profilers.
        glibc: The oldest glibc to load with, or an empty string for this machine's.
        runtime: ``libcudart_static.a``, or an empty string for the toolkit's.
    """

    cuda: str = "auto"
    stages: tuple[str, ...] = ()
    archs: str = ""
    jobs: int = 1
    line_info: bool = False
    glibc: str = ""
    runtime: str = ""


def read(environ: Mapping[str, str] = os.environ) -> Settings:
    """Reads XGEMM_*, TORCH_CUDA_ARCH_LIST and MAX_JOBS.

    Raises:
        BuildError: A variable has a value that it cannot have.
    """
    cuda = environ.get("XGEMM_CUDA", "").strip() or "auto"
    if cuda not in ("auto", "0", "1"):
        raise BuildError(f"XGEMM_CUDA is {cuda!r}; it can be auto, 0 or 1")
    line_info = environ.get("XGEMM_LINE_INFO", "").strip() or "0"
    if line_info not in ("0", "1"):
        raise BuildError(f"XGEMM_LINE_INFO is {line_info!r}; it can be 0 or 1")
    jobs = environ.get("MAX_JOBS", "").strip() or str(default_jobs())
    if not jobs.isdigit() or int(jobs) == 0:
        raise BuildError(f"MAX_JOBS is {jobs!r}; it must be a positive whole number")
    stages = environ.get("XGEMM_STAGES", "").replace(",", " ").split()
    archs = environ.get("TORCH_CUDA_ARCH_LIST", "").strip()
    glibc = environ.get("XGEMM_GLIBC", "").strip()
    runtime = environ.get("XGEMM_CUDART", "").strip()
    return Settings(cuda, tuple(stages), archs, int(jobs), line_info == "1", glibc, runtime)


def require_python_headers(folder: str = sysconfig.get_paths()["include"]) -> None:
    """Looks for Python's own headers, which some systems have in a package of their own.

    Raises:
        BuildError: They are missing.
    """
    if not (Path(folder) / "Python.h").exists():
        raise BuildError(
            f"there is no {folder}/Python.h; Debian and Ubuntu have it in python3-dev, Fedora in "
            "python3-devel"
        )


def default_jobs() -> int:
    """One compiler a core, but not more than fit in memory at 1.5 GiB each."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(cores or 1, memory * 2 // (3 * 2**30)))
