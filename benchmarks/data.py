"""What operands hold, and what it does to the time and the accuracy of a product.

    python benchmarks/data.py --json data.json --png data.png    # on a GPU; resumes a record
    python benchmarks/data.py --show data.json --png data.png    # anywhere
    python benchmarks/data.py --json some.json --kinds one-hot one-nan --problems 4096x4096x4096

Each kind of data of kinds.py in each of its problems is a cell. Its time is taken in turns with
that of random normal data and of torch.mm: CUDA-graph replays over copies of the operands that
rotate through memory, chip hot, medians. The result is compared with the strict chain's:

- e = (C - exact) / (|A| |B|) in units of u = 2^-24, of sampled rows against float64: root mean
  square at most the chain's or 1.25, largest at most 1.5 times the chain's or 8, mean at most the
  chain's or 4;
- infinities (with their sign) and NaN, in the whole result: only where the chain has them;
- rows of A and columns of B with one nonzero at most: what they give is exact, as the chain's is.

Exit code 1 when a cell is outside that contract, 3 when time ran out before all cells were there.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import geometric_mean, median
from typing import TYPE_CHECKING, Any

import kinds
import provenance
import recording
import records
import torch
from torch import Tensor

from xgemm_torch.tools import accuracy, plotting, timing
from xgemm_torch.tools.contenders import Problem

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from xgemm_torch.tools.console import Fitted

# Elements whose errors are measured, about, and the most rows that hold them.
SAMPLED, MOST_ROWS = 16384, 8192
ROUNDS, SAMPLE_MS = 5, 2.0
# A product that takes longer has fewer turns.
SLOW_SECONDS, SLOW_ROUNDS = 0.02, 2
# Beside normal data: what realistic kinds may take, and what is listed as slow.
ALIKE, SLOW = 1.1, 1.3
TORCH_MM, NORMAL = "torch.mm", "normal"


@dataclass(frozen=True)
class Times:
    """Microseconds a call: of the kind, of normal data and of torch.mm, in the same turns."""

    us: float
    normal_us: float
    torch_mm_us: float


TimeCell = Callable[[Tensor, Tensor], Times]


class GpuTimer:
    """Times a kind's operands on the current GPU, in turns with what is set up once a problem.

    torch.mm has the kind's operands: its kernels do the same whatever they hold, but at a clock
    that power decides. Its graph reads buffers that each cell fills, so it is captured once. Normal
    data have memory of their own: a graph holds addresses, and no tensor.
    """

    def __init__(self, p: Problem, stage: str) -> None:
        """Capture the product of normal data, and torch.mm's."""
        self._call = timing.stage_call(stage, p.layout)
        self._normals = timing.operands(p.m, p.n, p.k, p.layout, seed=1)
        self._buffers = timing.operands(p.m, p.n, p.k, p.layout, seed=2)
        self._normal = timing.Turn(self._call, self._normals, SAMPLE_MS)
        self._cublas = timing.Turn(timing.torch_mm(p.layout), self._buffers, SAMPLE_MS)

    def __call__(self, a: Tensor, b: Tensor) -> Times:
        """Time these operands."""
        for to_a, to_b in self._buffers:
            to_a.copy_(a)
            to_b.copy_(b)
        ours = timing.Turn(self._call, self._buffers, SAMPLE_MS)
        contenders = (self._normal, self._cublas, ours)
        first = [turn.sample() for turn in contenders]
        rounds = SLOW_ROUNDS if first[-1] > SLOW_SECONDS else ROUNDS
        turns = [[turn.sample() for turn in contenders] for _ in range(rounds)]
        of_normal, of_mm, of_ours = (1e6 * median(x) for x in zip(*turns, strict=True))
        return Times(of_ours, of_normal, of_mm)


def check(p: Problem, stage: str, a: Tensor, b: Tensor) -> dict[str, Any]:
    """Compare a stage's result with the strict chain's and, in sampled rows, with float64."""
    # The allocator gives this block to the result: what is left unwritten is then NaN.
    torch.full((p.m, p.n), float("nan"), device=a.device)
    result = timing.stage_call(stage, p.layout)(a, b)
    trans_a, trans_b = timing.LAYOUTS[p.layout]
    a, b = a.t() if trans_a else a, b.t() if trans_b else b
    chain = accuracy.chain(a, b)
    differs = (result != chain) & ~(result.isnan() & chain.isnan())
    special = ~(result.isfinite() & chain.isfinite())
    rows_of_one, columns_of_one = (a != 0).sum(1) <= 1, (b != 0).sum(0) <= 1
    count = min(p.m, MOST_ROWS, max(16, -(-SAMPLED // p.n)))
    rows = torch.linspace(0, p.m - 1, count).round().long().to(a.device)
    exact = accuracy.Exact(a[rows], b)
    found, its = exact.errors(result[rows]), exact.errors(chain[rows])
    terms = accuracy.broken(found, its)
    terms.pop("misplaced", None)  # of these rows; below, of all
    misplaced = int((differs & special).sum())
    selections = int(rows_of_one.sum() + columns_of_one.sum())
    inexact = int((differs.any(1) & rows_of_one).sum() + (differs.any(0) & columns_of_one).sum())
    if misplaced:
        terms["misplaced"] = f"{misplaced} elements infinite or NaN in one of the two"
    if inexact:
        terms["inexact"] = f"{inexact} of {selections} rows and columns with one nonzero at most"
    return {
        "errors": _figures(found),
        "chain": _figures(its),
        "misplaced": misplaced,
        "selections": selections,
        "inexact": inexact,
        "broken": terms,
    }


def _figures(errors: accuracy.Errors) -> dict[str, float]:
    named = asdict(errors)
    return {name: named[name] for name in ("rms", "largest", "mean")}


def measure(
    record: dict[str, Any], problems: Sequence[Problem], names: Sequence[str], stage: str,
    timer: Callable[[Problem, str], TimeCell], save: Callable[[], None],
    *, device: str = "cuda", seconds: float = math.inf, quiet: bool = False,
) -> bool:  # fmt: skip
    """Add the cells that the record lacks; False when time ran out before. ``save`` follows each.

    ``timer`` is asked once a problem for what times its cells.
    """
    from tqdm import tqdm

    began, cells = time.monotonic(), record["cells"]
    lacking = [(p, n) for p in problems for n in names if n not in cells.get(p.label, {})]
    time_cell: TimeCell | None = None
    timed: Problem | None = None
    progress = tqdm(lacking, unit="cell", disable=True if quiet else None)
    for p, name in progress:
        if time.monotonic() - began > seconds:
            return False
        progress.set_postfix_str(f"{p.label} {name}")
        if p is not timed or time_cell is None:
            time_cell = None  # its graphs give their memory back
            time_cell, timed = timer(p, stage), p
        a, b = kinds.operands(name, p, device)
        checked = check(p, stage, a, b)
        cells.setdefault(p.label, {})[name] = asdict(time_cell(a, b)) | checked
        save()
    return True


@dataclass(frozen=True)
class Cell:
    """A measured cell: times beside normal data's, and as many times as fast as torch.mm."""

    problem: str
    kind: str
    beside_normal: float
    beside_mm: float
    figures: Mapping[str, Any]

    @property
    def realistic(self) -> bool:
        """Whether people multiply such data."""
        return kinds.KINDS[self.kind].realistic


def cells_of(record: Mapping[str, Any]) -> Iterator[Cell]:
    """What a record holds, by kind and problem in their order."""
    for name in kinds.KINDS:
        for p in kinds.PROBLEMS:
            if each := record["cells"].get(p.label, {}).get(name):
                us = each["us"]
                yield Cell(
                    p.label, name, us / each["normal_us"], each["torch_mm_us"] / us, each
                )  # fmt: skip


def table(record: Mapping[str, Any]) -> Fitted:
    """A row for each kind: times beside normal data's and torch.mm's, errors, what is misplaced."""
    from xgemm_torch.tools.console import Column, Fitted

    facts = record["facts"]
    made = Fitted(
        f"{record['stage']} by what operands hold, on {facts['device']}; errors in u = 2^-24",
        [
            Column("data"), Column("", spare=3), Column("problems", right=True, spare=5),
            Column("x normal's time", right=True), Column("at most", right=True),
            Column("at", spare=1), Column("x torch.mm", right=True),
            Column("at least", right=True), Column("at", spare=2),
            Column("rms", right=True), Column("chain's", right=True, spare=4),
            Column("largest", right=True), Column("chain's", right=True, spare=4),
            Column("|mean|", right=True), Column("mis- placed", right=True),
            Column("exact", right=True),
        ],
    )  # fmt: skip
    found = list(cells_of(record))
    present = [name for name in kinds.KINDS if any(cell.kind == name for cell in found)]
    for i, name in enumerate(present):
        its = [cell for cell in found if cell.kind == name]
        slowest = max(its, key=lambda cell: cell.beside_normal)
        least = min(its, key=lambda cell: cell.beside_mm)
        realistic = kinds.KINDS[name].realistic
        limit = ALIKE if realistic else math.inf
        last = i + 1 < len(present) and kinds.KINDS[present[i + 1]].realistic != realistic
        made.add_row(
            name, "" if realistic else "exotic", str(len(its)),
            f"{geometric_mean(cell.beside_normal for cell in its):.2f}",
            _red(f"{slowest.beside_normal:.3g}", slowest.beside_normal > limit), slowest.problem,
            f"{geometric_mean(cell.beside_mm for cell in its):.2f}",
            _red(f"{least.beside_mm:.3g}", least.beside_mm < 1), least.problem,
            _worst(its, "errors", "rms"), _worst(its, "chain", "rms"),
            _worst(its, "errors", "largest"), _worst(its, "chain", "largest"),
            _worst(its, "errors", "mean"), _misplaced(its), _exact(its),
            end_section=last,
        )  # fmt: skip
    return made


def _red(text: str, bad: bool) -> str:
    return f"[bold red]{text}[/]" if bad else text


def _worst(cells: Sequence[Cell], of: str, term: str) -> str:
    worst = max(abs(cell.figures[of][term]) for cell in cells)
    bad = of == "errors" and any(term in cell.figures["broken"] for cell in cells)
    return _red(f"{worst:.2g}", bad)


def _misplaced(cells: Sequence[Cell]) -> str:
    total = sum(cell.figures["misplaced"] for cell in cells)
    return _red(str(total), True) if total else ""


def _exact(cells: Sequence[Cell]) -> str:
    """Whether rows and columns with one nonzero give what they should; "-" where there are none."""
    if any(cell.figures["inexact"] for cell in cells):
        return _red("no", True)
    return "yes" if any(cell.figures["selections"] for cell in cells) else "-"


def remarks(record: Mapping[str, Any], most: int = 25) -> list[str]:
    """What the table does not show: the slowest cells, the broken ones, and how many of each."""
    found = list(cells_of(record))
    slow = sorted(
        (cell for cell in found if cell.beside_normal > SLOW or cell.beside_mm < 1),
        key=lambda cell: -cell.beside_normal,
    )
    outside = [cell for cell in found if cell.figures["broken"]]
    lines = [
        f"{cell.problem} {cell.kind}: {cell.figures['us']:.4g} us, {cell.beside_normal:.3g} x "
        f"normal's time, {cell.beside_mm:.3g} x torch.mm"
        for cell in slow[:most]
    ]
    if len(slow) > most:
        lines.append(f"and {len(slow) - most} more")
    lines += [
        f"{cell.problem} {cell.kind}: {term} {text}"
        for cell in outside
        for term, text in cell.figures["broken"].items()
    ]
    for realistic, word in ((True, "realistic"), (False, "exotic")):
        its = [cell for cell in found if cell.realistic == realistic]
        lines.append(
            f"{len(its)} {word} cells: {sum(cell.beside_normal > ALIKE for cell in its)} over "
            f"{ALIKE:g} x normal's time, {sum(cell.beside_normal > SLOW for cell in its)} over "
            f"{SLOW:g} x, {sum(cell.beside_mm < 1 for cell in its)} slower than torch.mm, "
            f"{sum(bool(cell.figures['broken']) for cell in its)} outside the contract"
        )
    return lines


def draw(record: Mapping[str, Any], path: Path) -> None:
    """Draw a heat map of two panels: beside normal data's time, and beside torch.mm's."""
    found = list(cells_of(record))
    names = [name for name in kinds.KINDS if any(cell.kind == name for cell in found)]
    problems = [p.label for p in kinds.PROBLEMS if any(c.problem == p.label for c in found)]
    figure = plotting.new_figure(4.5 + 1.02 * len(problems), 3.0 + 0.27 * len(names))
    height, width = figure.get_figheight(), figure.get_figwidth()
    grid = figure.add_gridspec(
        1, 2, wspace=0.03, left=1.6 / width, right=1 - 0.2 / width, top=1 - 1.15 / height,
        bottom=1.65 / height,
    )  # fmt: skip
    panels = (
        ("time beside random normal data's", "beside_normal", 16.0, True),
        ("times as fast as torch.mm", "beside_mm", 4.0, False),
    )
    for number, (title, value, end, more_is_worse) in enumerate(panels):
        axes = figure.add_subplot(grid[number])
        values = {(cell.kind, cell.problem): getattr(cell, value) for cell in found}
        _heat_map(axes, names, problems, values, end, more_is_worse)
        axes.set_title(title, loc="left", fontsize=10.5, color=plotting.INK, fontweight="bold")
        if number:
            axes.set_yticklabels([])
    facts = record["facts"]
    figure.text(0.2 / width, 1 - 0.35 / height, f"What operands hold: {record['stage']}",
                fontsize=14, fontweight="bold", color=plotting.INK, va="center")  # fmt: skip
    figure.text(0.2 / width, 1 - 0.65 / height, f"{facts['device']}, torch {facts['torch']}, "
                f"{facts['date'][:10]}; below the line: exotic data",
                fontsize=9, color=plotting.QUIET, va="center")  # fmt: skip
    plotting.save(figure, path)


def _heat_map(
    axes: Axes, names: Sequence[str], problems: Sequence[str],
    values: Mapping[tuple[str, str], float], end: float, more_is_worse: bool,
) -> None:  # fmt: skip
    """White at 1; red where worse, green where better, darkest at ``end`` or one over it."""
    from matplotlib.colors import LinearSegmentedColormap

    shades = LinearSegmentedColormap.from_list("", (plotting.GREEN, "white", plotting.RED))
    sign = 1 if more_is_worse else -1
    logs = [
        [sign * math.log(values.get((name, problem), math.nan), end) for problem in problems]
        for name in names
    ]
    axes.imshow(logs, cmap=shades, vmin=-1, vmax=1, aspect="auto")
    for y, name in enumerate(names):
        for x, problem in enumerate(problems):
            if (name, problem) in values:
                dark = abs(logs[y][x]) > 0.75
                axes.text(x, y, _short(values[name, problem]), ha="center", va="center",
                          fontsize=6.5, color="white" if dark else plotting.INK)  # fmt: skip
    axes.set_xticks(range(len(problems)), problems, rotation=60, ha="right",
                    rotation_mode="anchor", fontsize=7.5)  # fmt: skip
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.tick_params(length=0, colors=plotting.QUIET)
    for side in axes.spines.values():
        side.set_visible(False)
    realistic = sum(kinds.KINDS[name].realistic for name in names)
    if 0 < realistic < len(names):
        axes.axhline(realistic - 0.5, color=plotting.INK, linewidth=1.2)


def _short(value: float) -> str:
    return f"{value:.2f}" if value < 9.95 else f"{value:.0f}"


def run_measure(
    options: argparse.Namespace, problems: Sequence[Problem], names: Sequence[str]
) -> bool:
    """Measure on the first GPU into the record that is named; whether all cells are there."""
    recording.require_yardstick("data")
    path = options.json
    record: dict[str, Any] = {"facts": provenance.facts(), "stage": options.stage, "cells": {}}
    if path.exists():
        found = records.read(path)
        if found["stage"] != options.stage or found["facts"]["device"] != record["facts"]["device"]:
            raise SystemExit(f"data: {path} is of another stage or GPU")
        record = found | {"finished": False}

    def save() -> None:
        records.write(path, record)

    began = time.monotonic()
    timing.heat(1.0)
    with timing.Clocks() as clocks:
        done = measure(
            record, problems, names, options.stage, GpuTimer, save, seconds=options.seconds
        )  # fmt: skip
    record["clocks"] = clocks.summary()
    record["seconds"] = record.get("seconds", 0.0) + time.monotonic() - began
    record["finished"] = done
    save()
    return done


def chosen(options: argparse.Namespace) -> tuple[list[Problem], list[str]]:
    """The problems and kinds that the command line names; a ValueError where it names none."""
    names = [
        name
        for name, kind in kinds.KINDS.items()
        if (not options.kinds or name in options.kinds)
        and (options.only is None or kind.realistic == (options.only == "realistic"))
    ]
    problems = [
        p
        for p in kinds.PROBLEMS
        if not options.problems or any(part in p.label for part in options.problems)
    ]
    for what, found in (("kind", names), ("problem", problems)):
        if not found:
            raise ValueError(f"no such {what}: python benchmarks/kinds.py lists them")
    return problems, names


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, or show what was measured."""
    parser = recording.parser(__doc__)
    parser.add_argument("--png", type=Path, metavar="FILE", help="draw the heat map into FILE")
    parser.add_argument("--stage", default="sgemm", help="sgemm, or a stage of the ladder")
    parser.add_argument("--seconds", type=float, default=math.inf, help="measure no longer than")
    parser.add_argument("--only", choices=("realistic", "exotic"))
    parser.add_argument("--kinds", nargs="+", metavar="KIND", choices=list(kinds.KINDS))
    parser.add_argument("--problems", nargs="+", metavar="PART",
                        help="problems whose names have one of these parts")  # fmt: skip
    options = parser.parse_args(arguments)
    try:
        problems, names = chosen(options)
    except ValueError as error:
        parser.error(str(error))
    if options.png:
        plotting.require(options.png)
    done = True
    if options.json:
        done = run_measure(options, problems, names)
    record = records.read(options.json or options.show)
    from xgemm_torch.tools.console import console

    out = console()
    out.print(table(record))
    for line in remarks(record):
        out.print(line, highlight=False)
    if options.png:
        draw(record, options.png)
        out.print(f"picture: {options.png}")
    if any(cell.figures["broken"] for cell in cells_of(record)):
        return 1
    return 0 if done else 3


if __name__ == "__main__":
    sys.exit(main())
