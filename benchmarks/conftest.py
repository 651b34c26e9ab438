"""Options, what is skipped where, and the summary that says what the figures mean."""

from __future__ import annotations

from typing import Any

import provenance  # noqa: F401 - first: it turns off what somebody has tuned here
import pytest
import torch

from xgemm_torch.tools import environment, timing


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare ``--all-shapes``."""
    parser.addoption(
        "--all-shapes", action="store_true", help="the whole shape suite on a GPU (many minutes)"
    )


@pytest.fixture(scope="session", autouse=True)
def steady_state() -> None:
    """Bring a GPU to its steady state; refuse where torch.mm is not FP32 and so no yardstick."""
    if (reason := environment.strict_reference()) is not None:
        pytest.exit(f"torch.mm is not the FP32 yardstick here: {reason}", returncode=2)
    if torch.cuda.is_available():
        timing.heat(2.0)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print ratios to the yardstick, which the table of times does not have."""
    session = getattr(config, "_benchmarksession", None)
    rows = [bench for bench in getattr(session, "benchmarks", []) if "timer" in bench.extra_info]
    if not rows:
        return
    gpu = torch.cuda.is_available()
    terminalreporter.section("against the yardstick, in turns")
    for bench in rows:
        info = bench.extra_info
        speed = f"{info['tflops']:8.3f} TFLOP/s" if "tflops" in info else ""
        note = info.get("note") or info.get("cache") or ""
        ratio = f"{info['ratio']:6.2f} x" if "ratio" in info else ""
        terminalreporter.write_line(f"{bench.name:58} {ratio:8} {speed:16} {note}")
    terminalreporter.write_line(
        "Times are CUDA events on a hot chip; clocks, commit and errors are in --benchmark-json."
        if gpu
        else "No GPU here: times are the CPU's. Those of named stages are of the emulator, "
        "which checks every access, and are no performance."
    )
