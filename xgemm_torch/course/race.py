"""``python -m xgemm_torch ladder --race``: all stages on one problem, side by side, live.

On a GPU it is a race of time: the stages and torch.mm take turns, and a bar is as long as the work
that its stage does in the time of a turn. Without one it is a race of counts: how many
multiply-adds a stage gets done for each transaction of a memory, which says why a rung is faster
than the last and is no claim of how fast. The host's own time never counts.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..registry import stages
from ..tools import environment, plotting, timing
from . import counts, ladder, marks

if TYPE_CHECKING:
    from ..tools.console import Fitted

CUBLAS = "torch.mm"
# Fused multiply-adds of FP32 that a multiprocessor starts each cycle; 128 where not listed.
LANES = {70: 64, 75: 64, 80: 64}
COPY_BYTES = 4 << 30


class Board:
    """Where the race is seen. This one shows nothing: the output is JSON."""

    def __enter__(self) -> Board:
        """Begin to show."""
        return self

    def __exit__(self, *_: object) -> None:
        """What is shown then stays."""

    def show(self, name: str, done: float, value: float) -> None:
        """A contender is ``done`` (0 to 1) of its way, at ``value`` (TFLOP/s, or FMA a count)."""


class Lines(Board):
    """A board for a pipe or a file: one line for a contender, when it is through."""

    def __init__(self, unit: str) -> None:
        """``unit`` stands behind the values."""
        self.unit = unit

    def show(self, name: str, done: float, value: float) -> None:
        """Print a contender that is through."""
        if done >= 1:
            print(f"{name:24} {value:8.1f} {self.unit}", flush=True)


class Bars(Board):
    """A board for a terminal: one bar a contender, the best so far at the full length."""

    def __init__(self, names: Sequence[str], unit: str) -> None:
        """Make a bar for each of ``names``; ``unit`` stands behind the values."""
        from rich.progress import BarColumn, Progress, TextColumn

        self.unit, self.best = unit, 1e-9
        self.progress = Progress(
            TextColumn("{task.description:24}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[text]}", justify="right"),
            expand=True,
        )
        self.tasks = {
            name: self.progress.add_task(self._label(name), total=1.0, text="") for name in names
        }

    @staticmethod
    def _label(name: str) -> str:
        return f"[bold yellow]{name}[/]" if name == CUBLAS else name

    def __enter__(self) -> Bars:
        """Begin to show."""
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        """What is shown then stays."""
        self.progress.stop()

    def show(self, name: str, done: float, value: float) -> None:
        """Move a bar; all others shrink when this one is the longest yet."""
        self.best = max(self.best, value)
        for task in self.tasks.values():
            self.progress.update(task, total=self.best)
        self.progress.update(
            self.tasks[name], completed=value * done, text=f"{value:.1f} {self.unit}"
        )


def board(names: Sequence[str], unit: str, quiet: bool) -> Board:
    """Choose a board: none for JSON, bars on a terminal, lines elsewhere."""
    if quiet:
        return Board()
    from ..tools.console import console

    return Bars(names, unit) if console().is_terminal else Lines(unit)


def roofs() -> dict[str, Any]:
    """What bounds a kernel here: FP32 peak in TFLOP/s, L1 and memory in TB/s; None if unknown.

    Peak and L1 (128 bytes a cycle a multiprocessor) follow from the highest clock; memory's speed
    is measured, by a copy. Without a GPU they are those of the H200 of the marks.
    """
    if not torch.cuda.is_available():
        return marks.H200_ROOFS
    gpu = torch.cuda.get_device_properties(0)
    clock = timing.driver().get("clocks.max.sm", "").split()
    cycles = None  # of all multiprocessors in a second, in units of 10^12
    if clock and clock[0].isdigit():
        cycles = gpu.multi_processor_count * int(clock[0]) / 1e6
    free, _ = torch.cuda.mem_get_info()
    source = torch.zeros(min(COPY_BYTES, free // 4) // 4, device="cuda")
    target = torch.empty_like(source)
    seconds = []
    for _ in range(5):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        seconds.append(start.elapsed_time(end) / 1e3)
    return {
        "fp32_tflops": cycles and 2 * LANES.get(10 * gpu.major + gpu.minor, 128) * cycles,
        "l1_tbs": cycles and 128 * cycles,
        "memory_tbs": 2 * source.nbytes / min(seconds) / 1e12,
        "of": gpu.name,
    }


def _add_counts(
    rows: list[dict[str, Any]], shape: tuple[int, int, int], layout: str, watch: Board
) -> None:
    for row in rows:
        row["counts"] = counts.of(row["name"], shape, layout)
        if row["counts"]["counted"]:
            watch.show(row["name"], 1.0, row["counts"]["fma_per_transaction"])


def collect(
    size: int | None, layout: str, quiet: bool, counted: tuple[int, int, int] | None = None
) -> dict[str, Any]:
    """Run the race; gives the rows of ``ladder.collect`` with counts, marks and roofs.

    Args:
        size: M = N = K; None for 4096 on a GPU, and for ``counted`` without one.
        layout: a key of `timing.LAYOUTS`.
        quiet: whether to show nothing while it runs.
        counted: M, N, K of what is counted without a GPU; None for ``counts.SHAPE``.
    """
    names = [stage.name for stage in stages()]
    gpu = torch.cuda.is_available()
    if gpu:
        shape = (size or ladder.SIZE,) * 3
        with board([CUBLAS, *names], "TFLOP/s", quiet) as seen:
            rows, measured = ladder.measure(shape[0], layout, seen.show)
        facts = {"device": environment.device_name("cuda"), "gpu": True, **measured}
        facts["warning"] = environment.strict_reference()
        # After the measurement: the host's work would let the chip cool between turns.
        _add_counts(rows, counts.SHAPE, layout, Board())
    else:
        shape = (size,) * 3 if size else counted or counts.SHAPE
        rows = [ladder.describe(stage) for stage in stages()]
        facts = {"device": environment.device_name("cpu"), "gpu": False}
        names = [stage.name for stage in stages() if counts.is_counted(stage)]
        with board(names, "FMA a transaction", quiet) as seen:
            _add_counts(rows, shape, layout, seen)
    for row in rows:
        row["mark"] = marks.share(row["name"], shape[0]) if gpu and layout == "NN" else None
    return {**facts, "shape": shape, "layout": layout, "roofs": roofs(), "stages": rows}


def _problem(facts: dict[str, Any]) -> str:
    return "x".join(map(str, facts["shape"])) + f"-{facts['layout']}"


def speed_table(facts: dict[str, Any]) -> Fitted:
    """Make a table of a race of time, as `collect` gives it."""
    from ..tools.console import Column, Fitted

    table = Fitted(
        f"{_problem(facts)}, FP32, on {facts['device']}",
        [
            Column("#", right=True),
            Column("stage"),
            Column("TFLOP/s", right=True, words=8),
            Column("of torch.mm", right=True),
            Column("mark, on an H200", right=True),
        ],
    )
    table.add_row("", f"[bold]{CUBLAS}[/]", f"{facts['torch_mm_tflops']:.1f}", "100%", "")
    for row in facts["stages"]:
        speed = row["note"] or f"{row['tflops']:.1f}"
        share = "" if row["share"] is None else f"{row['share']:.0%}"
        mark = "" if row["mark"] is None else f"{row['mark']:.0%}"
        table.add_row(str(row["rung"] or ""), row["name"], speed, share, mark)
    return table


def run(options: argparse.Namespace) -> int:
    """Run the race, print its table, write its charts; returns 0."""
    plotting.require(
        options.png or Path("ladder-race.png")
    )  # as is the file's folder, if not its name
    facts = collect(options.size, options.layout, quiet=options.json)
    kind = "" if facts["gpu"] else "-counts"
    path = options.png or Path(f"ladder-race{kind}-{_problem(facts)}.png")
    plotting.race(facts, path)
    if options.json:
        print(json.dumps({**facts, "png": str(path)}, indent=2))
        return 0
    from ..tools.console import console

    out = console()
    if facts["gpu"]:
        out.print(speed_table(facts))
        if facts["warning"]:
            print(facts["warning"], file=sys.stderr)
    else:
        out.print(
            "No GPU here, so nothing was timed: this was a race of counts, taken while each stage "
            "ran its own source through the emulator."
        )
    out.print(counts.table(facts["stages"]))
    out.print(counts.LEGEND)
    out.print(f"charts: {path}")
    return 0
