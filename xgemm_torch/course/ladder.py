"""``python -m xgemm_torch ladder``: every stage, and what it does on this machine."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from ..registry import Stage, stages
from ..tools import arguments, environment, info, plotting, timing
from . import counts, stage_code

if TYPE_CHECKING:
    from ..tools.console import Fitted

# The size of the published figures, and the largest that the slowest stage takes in half a second.
SIZE = 4096
SLOW_SECONDS = 0.1
# Without a GPU: some minutes.
MOST_ON_CPU = 256
# Of a line of a diff, by its first character.
DIFF_STYLES = {"+": "green", "-": "red", "@": "bold cyan"}
# How far a contender is: its name, the share of its samples that are taken, TFLOP/s so far.
Watch = Callable[[str, float, float], None]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--png", type=Path, metavar="FILE", help="draw the ladder into FILE")
    parser.add_argument("--size", type=int,
                        help=f"M = N = K; {SIZE} on a GPU, else what is counted")  # fmt: skip
    arguments.add_layout(parser)
    parser.add_argument("--race", action="store_true",
                        help="all stages side by side, live, and charts of the end")  # fmt: skip
    parser.add_argument("--diff", nargs="+", metavar="STAGE",
                        help="what changed in a stage's code since the rung it is read against, or "
                        "since a second stage; nothing is run")  # fmt: skip


def _tiles(stage: Stage) -> list[str]:
    return [
        f"{tile.BM}x{tile.BN}x{tile.BK}, {tile.TM}x{tile.TN}, {tile.team}" for tile in stage.tiles
    ]


def describe(stage: Stage) -> dict[str, Any]:
    """A row of the ladder with nothing measured yet."""
    return {
        "name": stage.name, "rung": stage.rung, "idea": stage.idea, "source": stage.source,
        "min_sm": stage.min_sm, "max_sm": getattr(stage, "max_sm", 0), "cuda": stage.cuda,
        "strict": stage.strict,
        "tiles": _tiles(stage),
        "tflops": None, "share": None, "check": None, "note": None, "counts": None,
    }  # fmt: skip


def measure(
    size: int, layout: str = "NN", watch: Watch | None = None
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Time every stage and torch.mm turn by turn on the first GPU, size^3, chip hot.

    Returns the rows and facts of the measurement: torch.mm's TFLOP/s, the clocks, the setting.
    ``watch`` is told of every sample as it is taken.
    """
    major, minor = torch.cuda.get_device_capability(0)
    sm = 10 * major + minor
    rows = [describe(stage) for stage in stages()]
    able = [row for row in rows if info.runs_on(row, sm)]
    for row in rows:
        if row not in able:
            row["note"] = f"needs {_needs(row)}" if row["cuda"] else "no CUDA kernel in this build"
    sets = timing.operands(size, size, size, layout)
    contenders = {"torch.mm": timing.torch_mm(layout)}
    contenders |= {row["name"]: timing.stage_call(row["name"], layout) for row in able}

    def after(name: str, times: list[float], wanted: int) -> None:
        if watch is not None:
            speed = timing.tflops(size, size, size, median(times))
            watch(name, len(times) / wanted, speed)

    with timing.Clocks() as clocks:
        timing.heat()
        first = timing.interleaved(contenders, sets, rounds=1)
        rounds = {name: 3 if times[0] > SLOW_SECONDS else 9 for name, times in first.items()}
        clocks.mark()
        samples = timing.interleaved(contenders, sets, rounds=rounds, after=after)
        record = clocks.summary()
    speed = {name: timing.tflops(size, size, size, median(t)) for name, t in samples.items()}
    for row in able:
        row["tflops"], row["share"] = speed[row["name"]], speed[row["name"]] / speed["torch.mm"]
    facts = {"torch_mm_tflops": speed["torch.mm"], "size": size, "layout": layout}
    return rows, {**facts, "clocks": record}


def collect(size: int | None = None, layout: str = "NN", *, quiet: bool = False) -> dict[str, Any]:
    """Describe every stage, with its speed on the GPU here.

    Without a GPU: whether it is right, and what one product asks of the memories.

    Args:
        size: M = N = K; None for 4096 on a GPU, and for `counts.SHAPE` without one.
        layout: a key of `timing.LAYOUTS`.
        quiet: whether to show no progress.
    """
    from tqdm import tqdm

    gpu = torch.cuda.is_available()
    # A stage is timed; or it is checked, and then counted.
    steps = len(stages()) + 1 if gpu else 2 * len(stages())
    bar = tqdm(total=steps, unit="stage", leave=False, disable=True if quiet else None,
               file=sys.stderr, bar_format="{desc}{percentage:3.0f}% {bar} {elapsed}")  # fmt: skip
    with bar:
        return _collect(size, layout, bar)


def _collect(size: int | None, layout: str, bar: Any) -> dict[str, Any]:
    strict = environment.strict_reference()
    facts: dict[str, Any] = {"device": environment.device_name("cpu"), "gpu": False}
    if torch.cuda.is_available():
        done: dict[str, float] = {}

        def watch(name: str, share: float, speed: float) -> None:
            bar.set_description_str(f"timing {name}: ", refresh=False)
            bar.update(share - done.get(name, 0.0))
            done[name] = share

        rows, measured = measure(size or SIZE, layout, watch)
        facts = {"device": environment.device_name("cuda"), "gpu": True, **measured}
        # torch.mm is the yardstick: where the user made it coarser, the share means less.
        facts["warning"] = strict
    else:
        rows = [describe(stage) for stage in stages()]

        def told(what: str, stage: str) -> None:
            bar.set_description_str(f"{what} {stage}: ", refresh=False)
            bar.update()

        tested = info.self_test(lambda stage: told("checking", stage))
        verdicts = {row["stage"]: row for row in tested}
        for row in rows:
            told("counting", row["name"])
            row["check"] = verdicts[row["name"]]["ok"]
            row["note"] = verdicts[row["name"]]["detail"]
            if row["check"]:
                row["counts"] = counts.of(
                    row["name"], (size,) * 3 if size else counts.SHAPE, layout
                )
    return {**facts, "stages": rows}


def _needs(row: dict[str, Any]) -> str:
    if row["max_sm"] == row["min_sm"] > 0:
        return f"sm_{row['min_sm']} only"
    if row["max_sm"]:
        return f"sm_{row['min_sm']} to sm_{row['max_sm']}"
    return f"sm_{row['min_sm']}" if row["min_sm"] else "any GPU"


def _result(row: dict[str, Any], gpu: bool) -> list[str]:
    if gpu and row["tflops"] is None:
        return [row["note"], ""]
    if gpu:
        return [f"{row['tflops']:.1f}", f"{row['share']:.0%}"]
    right = "bits right" if row["strict"] else "accurate"
    return [f"[green]{right}[/]" if row["check"] else f"[bold red]{row['note']}[/]"]


def table(facts: dict[str, Any]) -> Fitted:
    """Make a table of what `collect` gives."""
    from ..tools.console import Column, Fitted

    gpu = facts["gpu"]
    at = f" at {facts['size']}³, {facts['layout']}" if gpu else ""
    results = (
        [Column("TFLOP/s", right=True, words=8), Column("of torch.mm", right=True)]
        if gpu
        else [Column("emulator", words=12)]
    )
    made = Fitted(
        f"The ladder{at}, on {facts['device']}",
        [
            Column("#", right=True),
            Column("stage"),
            Column("the one idea", words=33),
            Column("from", words=12, spare=3),
            Column("needs", spare=1),
            Column("block tile, thread tile, threads", spare=2),
            *results,
        ],
    )
    for row in facts["stages"]:
        made.add_row(
            str(row["rung"] or ""), f"[bold]{row['name']}[/]", row["idea"], row["source"],
            _needs(row), "\n".join(row["tiles"]), *_result(row, gpu),
        )  # fmt: skip
    return made


def show_diff(options: argparse.Namespace) -> int:
    """Print what changed in a stage's code: in colours on a terminal, else as it is."""
    others = {"--json": options.json, "--png": options.png, "--race": options.race}
    if given := [option for option, value in others.items() if value]:
        raise ValueError(f"ladder: --diff runs nothing; {given[0]} is of a run")
    lines = stage_code.diff(options.diff, stages())
    from rich.text import Text

    from ..tools.console import console

    out = console()
    for line in lines:
        out.print(Text(line, DIFF_STYLES.get(line[:1], "")), soft_wrap=True)
    return 0


def run(options: argparse.Namespace) -> int:
    """Print the ladder; returns 1 when a stage is wrong on the emulator, else 0."""
    if options.diff:
        return show_diff(options)
    if options.size is not None and options.size < 1:
        raise ValueError(f"ladder: size must be at least 1, got {options.size}")
    if options.size is not None and options.size > MOST_ON_CPU and not torch.cuda.is_available():
        raise ValueError(
            f"ladder: without a GPU every stage runs through the emulator, for hours beyond "
            f"{MOST_ON_CPU}; got size {options.size}"
        )
    if options.race:
        from . import race

        return race.run(options)
    if options.png:
        plotting.require(options.png)
    facts = collect(options.size, options.layout, quiet=options.json)
    if options.png:
        plotting.ladder(facts, options.png)
    well = all(row["check"] is not False for row in facts["stages"])
    if options.json:
        print(json.dumps(facts, indent=2))
        return 0 if well else 1
    from ..tools.console import console

    out = console()
    out.print(table(facts))
    if facts["gpu"]:
        clock = facts["clocks"].get("sm_mhz")
        out.print(
            f"torch.mm: {facts['torch_mm_tflops']:.1f} TFLOP/s; taken in turns, chip hot"
            + (f", SM clock {clock['p50']:.0f} MHz" if clock else "")
        )
        if facts["warning"]:
            out.print(f"[yellow]{facts['warning']}[/]")
    else:
        out.print(
            "No GPU here: each stage ran its own source through the emulator on a small "
            "problem. That says whether it is right, not how fast it is."
        )
        out.print(counts.table(facts["stages"]))
        out.print(counts.LEGEND)
    if options.png:
        out.print(f"picture: {options.png}")
    return 0 if well else 1
