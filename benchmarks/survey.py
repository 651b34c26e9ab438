"""Measures rows, ``auto`` and torch.mm: on the suite, and on problems whose sizes are random.

    python benchmarks/survey.py --json h200.json --suite --extras --seeds 101 102 103   # on a GPU
    python benchmarks/survey.py --json judge.json --seeds 1 2 3 7 --count 100 --auto --report

Goes on where the file stops. Every row that could win is measured: all that the problem lets
through are called once, unless the work of their tiles at twice their stated rate takes OFF times
the best so far; those within NEAR of the best, for either precision, take turns with torch.mm and
with ``auto`` (CUDA-graph replays over rotating operands, chip hot, medians). ``--auto`` leaves the
rows out: what a choice is worth. ``--suite`` adds shapes.py's suite, ``--extras`` rows, columns,
long problems and batches.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import provenance
import recording
import records
import shapes
import torch
from torch import Tensor

import xgemm_torch
from xgemm_torch.tools import timing, trials
from xgemm_torch.tools.contenders import Problem, Row, is_measured, keeps, rows_of
from xgemm_torch.tools.trials import TORCH_MM

PRECISIONS = ("fp32", "ieee")
# Where the rows' bits are compared with each other and with the CPU's, before anything is timed.
CHECKED = (
    "square 128 NN", "square 128 NT", "square 256 TN", "square 256 TT", "square 1023 NT",
    "linear 768-768 rows 1 forward", "linear 768-768 rows 8 grad_x",
    "linear 768-768 rows 8 grad_w", "linear 768-768 rows 64 forward",
)  # fmt: skip
AUTO = {precision: f"auto {precision}" for precision in PRECISIONS}
# A row is called at all, and takes turns, up to so many times the least time; turns at most so many
# rows of a precision.
OFF, NEAR, MOST = 3.0, 1.6, 12
# Digits of a time: another run differs in the third.
DIGITS = 4
# A turn in milliseconds, and how many there are.
SAMPLE_MS, ROUNDS = 0.7, 5
# Calls of a turn at most: what is captured takes the host's time.
CALLS = 200
# Of a first look: as many calls as fit, in milliseconds, and at most.
LOOK_MS, LOOK_CALLS = 0.2, 8
# The GPU waits until the host has enqueued a look: so many times what the host took for a call
# before, and seconds; its clock is no faster than this.
AHEAD, AHEAD_ALWAYS, HERTZ = 1.5, 50e-6, 2e9


def label(p: Problem) -> str:
    """A problem's name in a record: a label names one of several layouts in some suites."""
    return f"{p.batch}x{p.m}x{p.n}x{p.k} {p.layout}"


@dataclass(frozen=True)
class Contender:
    """What is called, with what is set around a number of calls."""

    call: timing.Call
    stage: str = ""
    row: int | None = None

    def around(self) -> contextlib.AbstractContextManager[Any]:
        """Force the row."""
        if self.row is None:
            return contextlib.nullcontext()
        return xgemm_torch.simt.configure(row=self.row)


def of_row(row: Row, p: Problem) -> Contender:
    """A row's operator, asked for the precision that may have it."""
    trans_a, trans_b = timing.LAYOUTS[p.layout]
    precision = "fp32" if keeps(row, p, strict=False) else "ieee"
    op = getattr(torch.ops.xgemm, row.stage)
    return Contender(
        lambda a, b: op(a, b, trans_a=trans_a, trans_b=trans_b, precision=precision),
        row.stage, row.row,
    )  # fmt: skip


def of_auto(p: Problem, precision: str) -> Contender:
    """``sgemm`` as a program calls it."""
    trans_a, trans_b = timing.LAYOUTS[p.layout]
    op = torch.ops.xgemm.sgemm
    return Contender(lambda a, b: op(a, b, trans_a=trans_a, trans_b=trans_b, precision=precision))


def at_least(row: Row, p: Problem) -> float:
    """Seconds that a row needs at twice its stated rate, whichever way its tiles lie."""
    t = row.tile
    tiles = min(
        math.ceil(p.m / t.BM) * math.ceil(p.n / t.BN),
        math.ceil(p.n / t.BM) * math.ceil(p.m / t.BN),
    )
    return p.batch * tiles * t.BM * t.BN * p.k / (max(t.rate, 1.0) * 1e12)


class Measurer:
    """Times contenders on one problem."""

    def __init__(self, p: Problem) -> None:
        """Make the operands."""
        self.sets = timing.operands(p.m, p.n, p.k, p.layout, batch=p.batch, seed=1)
        self._at = 0
        self._pool = torch.cuda.graph_pool_handle()
        self._graphs: dict[str, tuple[torch.cuda.CUDAGraph, int]] = {}
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def _next(self) -> tuple[Tensor, Tensor]:
        self._at += 1
        return self.sets[self._at % len(self.sets)]

    def look(self, contender: Contender) -> float:
        """Seconds a call, of few; the first of all, which may load code, does not count."""
        with contender.around():
            contender.call(*self._next())
            torch.cuda.synchronize()
            began = time.perf_counter()
            contender.call(*self._next())
            host = time.perf_counter() - began
            # The least: where the host was late, a look took up to 100 times the time.
            seconds = min(self._some(contender.call, 1, host) for _ in range(2))
            if seconds * LOOK_CALLS < LOOK_MS / 1e3:
                seconds = min(seconds, self._some(contender.call, LOOK_CALLS, host))
        return seconds

    def _some(self, call: timing.Call, calls: int, host: float) -> float:
        start, end = self._events
        torch.cuda._sleep(int(HERTZ * (AHEAD_ALWAYS + AHEAD * host * calls)))
        start.record()
        for _ in range(calls):
            call(*self._next())
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3 / calls

    def capture(self, name: str, contender: Contender, seconds: float) -> None:
        """Make a graph of as many calls as a turn has."""
        calls = max(1, min(CALLS, round(SAMPLE_MS / 1e3 / max(seconds, 1e-6))))
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        # torch.cuda.graph() would collect garbage first, which takes longer than all the turns.
        graph.capture_begin(self._pool)
        try:
            with contender.around():
                for i in range(calls):
                    contender.call(*self.sets[i % len(self.sets)])
        finally:
            graph.capture_end()
        self._graphs[name] = graph, calls

    def sample(self, name: str) -> float:
        """Seconds a call, of one turn."""
        graph, calls = self._graphs[name]
        start, end = self._events
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3 / calls

    def turns(self, rounds: int, seed: int = 0) -> dict[str, float]:
        """Medians of all that was captured, in seconds a call; the order changes by round."""
        samples: dict[str, list[float]] = {name: [] for name in self._graphs}
        order = list(samples)
        r = random.Random(seed)
        for number in range(rounds + 1):
            r.shuffle(order)
            for name in order:
                seconds = self.sample(name)
                if number:
                    samples[name].append(seconds)
        return {name: median(times) for name, times in samples.items()}


def near(looks: Mapping[str, float], rows: Sequence[Row], p: Problem) -> list[Row]:
    """The rows that take turns."""
    chosen: dict[str, Row] = {}
    for precision in PRECISIONS:
        its = [
            row for row in rows if row.key in looks and keeps(row, p, strict=precision == "ieee")
        ]
        its.sort(key=lambda row: looks[row.key])
        best = looks[its[0].key] if its else 0.0
        chosen |= {row.key: row for row in its[:MOST] if looks[row.key] <= NEAR * best}
    return list(chosen.values())


def microseconds(seconds: float) -> float:
    """What a record has of a time."""
    return float(f"{1e6 * seconds:.{DIGITS}g}")


def measure(p: Problem, rows: Sequence[Row]) -> dict[str, Any]:
    """What a record has of a problem: microseconds of turns and first looks, and what auto took."""
    m = Measurer(p)
    looks: dict[str, float] = {}
    best = {False: math.inf, True: math.inf}
    for row in sorted(rows, key=lambda row: at_least(row, p)):
        able = [strict for strict in best if keeps(row, p, strict=strict)]
        if not able or not is_measured(row, p):
            continue
        if at_least(row, p) > OFF * max(best[strict] for strict in able):
            continue
        try:
            looks[row.key] = seconds = m.look(of_row(row, p))
        except (ValueError, RuntimeError):  # refused there, or no memory for it
            continue
        for strict in able:
            best[strict] = min(best[strict], seconds)
    calls = {TORCH_MM: Contender(timing.torch_mm(p.layout))}
    calls |= {AUTO[precision]: of_auto(p, precision) for precision in PRECISIONS}
    for name, contender in calls.items():
        m.capture(name, contender, m.look(contender))
    for row in near(looks, rows, p):
        m.capture(row.key, of_row(row, p), looks[row.key])
    slowest = max((m.sample(name) for name in calls), default=0.0)
    us = {
        name: microseconds(seconds)
        for name, seconds in m.turns(ROUNDS if slowest < 5e-3 else 3, seed=p.m + p.n + p.k).items()
    }
    picks = {}
    a, b = m.sets[0]
    trans_a, trans_b = timing.LAYOUTS[p.layout]
    keys = {(row.stage, row.row): row.key for row in rows_of(xgemm_torch.stages())}
    for precision in PRECISIONS:
        e = xgemm_torch.explain(a, b, trans_a=trans_a, trans_b=trans_b, precision=precision)
        picks[precision] = keys.get((e.kernel, e.row), e.kernel)
    return {
        "label": p.label,
        "problem": [p.batch, p.m, p.n, p.k, p.layout],
        "torch_mm_us": us.pop(TORCH_MM),
        "auto_us": {precision: us.pop(AUTO[precision]) for precision in PRECISIONS},
        "auto": picks,
        "us": us,
        "look_us": {key: microseconds(seconds) for key, seconds in looks.items()},
    }


def problems_of(options: argparse.Namespace) -> Iterator[Problem]:
    """The problems that the command line names, each once; seeds take turns."""
    each = [list(shapes.random_suite(seed, options.count)) for seed in options.seeds]
    if options.extras:
        yield from shapes.extras(options.seeds[0] if options.seeds else 0, 20)
    for together in zip(*each, strict=True):
        yield from together
    if options.suite:
        yield from shapes.suite()


def report(problems: Sequence[Mapping[str, Any]]) -> str:
    """How ``auto`` stands to torch.mm, and to the best row where rows were measured."""
    lines = []
    for precision in PRECISIONS:
        ratios = sorted(
            (x["torch_mm_us"] / x["auto_us"][precision], i) for i, x in enumerate(problems)
        )
        only = [ratio for ratio, _ in ratios]
        lines.append(
            f"{precision}: {len(only)} problems, geometric mean "
            f"{math.exp(fmean(map(math.log, only))):.3f} of torch.mm; below 0.98 "
            f"{sum(x < 0.98 for x in only) / len(only):.1%}, below 0.90 "
            f"{sum(x < 0.9 for x in only) / len(only):.1%}; the worst:"
        )
        for ratio, i in ratios[:15]:
            x = problems[i]
            lines.append(
                f"  {ratio:6.3f}  {x['label']:44} torch.mm {x['torch_mm_us']:9.1f} us  "
                f"{x['auto'][precision]}"
            )
    return "\n".join(lines)


def run(options: argparse.Namespace, loop: Callable[[Sequence[Problem]], Any]) -> int:
    """Measure into the file; 0 when all is there, 1 for wrong bits, 3 to go on."""
    recording.require_yardstick("survey")
    chip = torch.cuda.get_device_properties(0)
    sm = 10 * chip.major + chip.minor
    able = [s for s in xgemm_torch.stages() if s.cuda and s.min_sm <= sm <= (s.max_sm or sm)]
    rows = [] if options.auto else rows_of(able)
    record: dict[str, Any] = {
        "facts": provenance.facts(), "rows": [row.key for row in rows], "problems": {},
    }  # fmt: skip
    path: Path = options.json
    if path.exists():
        found = records.read(path)
        if found["rows"] != record["rows"] or found["facts"]["device"] != chip.name:
            raise SystemExit(f"survey: {path} is of other stages or another GPU")
        record = found | {"finished": False}

    def save() -> None:
        records.write(path, record)

    if "wrong" not in record:
        record["wrong"] = [
            fault.text
            for p in shapes.suite()
            if p.label in CHECKED
            for fault in trials.check(p, rows)
        ]
        save()
    print(*record["wrong"], sep="\n")
    began = saved = time.monotonic()
    problems = [p for p in problems_of(options) if label(p) not in record["problems"]]
    timing.heat(1.0)
    done = True
    # The default stream cannot be captured.
    with timing.Clocks() as clocks, torch.cuda.stream(torch.cuda.Stream()):
        for p in loop(problems):
            if time.monotonic() - began > options.seconds:
                done = False
                break
            record["problems"][label(p)] = measure(p, rows)
            torch.cuda.empty_cache()
            if time.monotonic() - saved > 10:
                save()
                saved = time.monotonic()
    record["clocks"] = clocks.summary()
    record["finished"] = done
    save()
    print(f"{len(record['problems'])} problems in {path}")
    if options.report:
        print(report(list(record["problems"].values())))
    return 1 if record["wrong"] else 0 if done else 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, required=True, help="where the record is kept")
    parser.add_argument("--seeds", type=int, nargs="*", default=[], help="of random problems")
    parser.add_argument("--count", type=int, default=200, help="problems of a seed")
    parser.add_argument("--suite", action="store_true", help="shapes.py's suite, too")
    parser.add_argument("--extras", action="store_true", help="rows, columns, batches, too")
    parser.add_argument("--auto", action="store_true", help="no rows but auto's")
    parser.add_argument("--report", action="store_true", help="print what auto is worth")
    parser.add_argument("--seconds", type=float, default=math.inf, help="measure no longer than")
    options = parser.parse_args(arguments)
    from tqdm import tqdm

    return run(options, lambda problems: tqdm(problems, unit="problem", disable=None))


if __name__ == "__main__":
    sys.exit(main())
