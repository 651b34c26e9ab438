"""Measures what ``auto`` chooses by, and writes it down as csrc/xgemm/select_table.inc.

    python benchmarks/select_table.py --measure h200.json     # on a GPU; goes on where it stopped
    python benchmarks/select_table.py --write h200.json       # anywhere; then build again

Measuring: every problem of shapes.py, torch.mm and every row that could win, strict or not, taking
turns (CUDA-graph replays over rotating operands, chip hot, median). The first problems, the
anchors, are measured with all rows, whose bits are compared with each other and, on a few rows of
the result, with the chain on the CPU. From then on a row is left out of a problem where the model,
corrected by what was measured so far, expects it to take SKIPPED times the least.

Writing: fits each row's model, writes the table, and prints how much the choice loses to the best
row, at the measured problems and between them, and where torch.mm is fastest.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import provenance
import select_model
import shapes
import torch
from select_model import Estimator, Point, Row

import xgemm_torch
from xgemm_torch import environment, timing, trials
from xgemm_torch.contenders import KINDS, is_measured, keeps, kind, place, rows_of
from xgemm_torch.trials import TORCH_MM, check

TABLE = Path(__file__).resolve().parent.parent / "csrc" / "xgemm" / "select_table.inc"
# Measured with every row: each layout, and each kind of problem at a size that the slowest row can
# do in some milliseconds.
ANCHORS = (
    "square 1024 NN", "square 1024 NT", "square 1024 TN", "square 1024 TT", "square 256 NN",
    "square 2048 NN", "square 2048 TT", "square 3072 NT",
    "linear 768-3072 rows 64 forward", "linear 1024-50257 rows 64 forward",
    "linear 4096-4096 rows 8 forward",
    "linear 4096-4096 rows 8 grad_x", "linear 4096-4096 rows 8 grad_w",
    "linear 768-768 rows 2048 forward", "linear 768-768 rows 2048 grad_x",
    "linear 768-768 rows 2048 grad_w", "skinny 16384x128x128",
    "linear 768-768 rows 1 forward", "linear 3072-768 rows 1 grad_x",
    "linear 4096-4096 rows 1 forward", "linear 4096-4096 rows 1 grad_x",
    "linear 4096-4096 rows 1 grad_w", "linear 768-768 rows 1 grad_w",
    "linear 768-3072 rows 8 grad_w", "square 128 NN", "square 128 NT", "square 128 TN",
    "square 128 TT", "skinny 100000x32x256", "skinny 65536x64x64",
    "linear 768-768 rows 512 grad_x", "linear 768-2304 rows 8 forward",
    "linear 4096-4096 rows 64 grad_w", "linear 768-3072 rows 64 grad_w",
)  # fmt: skip
# While measuring, a row that was left out nearby may be better than that made it look.
SKIPPED_SO_FAR = 1.2

Times = Mapping[str, float]


def settings_for(p: shapes.Problem) -> tuple[int, float, int]:
    """Rounds, the slowdown beyond which a row is left out, and how many rows at most.

    The largest problems take a tenth of a second a call, and are the easiest to foresee.
    """
    milliseconds = 2 * p.m * p.n * p.k / 45e9
    if milliseconds > 50:
        return 2, 1.15, 4
    return (3, 1.3, 6) if milliseconds > 5 else (5, select_model.SKIPPED, 10)


def candidates(p: shapes.Problem, rows: Sequence[Row], so_far: Estimator) -> list[Row]:
    """The rows that may be the fastest here, by what has been measured so far."""
    _, limit, most = settings_for(p)
    times = so_far.estimate(p)
    chosen: list[Row] = []
    for its in KINDS:
        known = [
            row
            for row in rows
            if kind(row) == its
            and is_measured(row, p)
            and math.isfinite(times.get(row.key, math.inf))
        ]
        known.sort(key=lambda row: times[row.key])
        chosen += [row for row in known if times[row.key] <= limit * times[known[0].key]][:most]
    return chosen


def time_on_gpu(p: shapes.Problem, rows: Sequence[Row]) -> Times:
    """Microseconds by row key, and of torch.mm."""
    return trials.microseconds(p, rows, rounds=settings_for(p)[0])


def points_of(record: Mapping[str, Any]) -> list[Point]:
    """The measured problems of a record."""
    problems = {p.label: p for p in shapes.suite()}
    return [Point(problems[label], times["us"]) for label, times in record["problems"].items()]


def measure(
    record: dict[str, Any], rows: Sequence[Row], problems: Sequence[shapes.Problem],
    timer: Callable[[shapes.Problem, Sequence[Row]], Times], save: Callable[[], None],
    *, sm_count: int, seconds: float = math.inf,
) -> bool:  # fmt: skip
    """Add the problems that the record lacks, anchors first; False when time ran out before.

    ``timer`` gives microseconds by row key, and torch.mm's. ``save`` is called after each problem.
    """
    from tqdm import tqdm

    began = time.monotonic()
    anchors = [p for p in problems if p.label in ANCHORS]
    others = [p for p in problems if p.label not in ANCHORS]
    so_far: Estimator | None = None
    fitted_to = 0
    for p in tqdm([*anchors, *others], unit="problem", disable=None):
        if p.label in record["problems"]:
            continue
        if time.monotonic() - began > seconds:
            return False
        chosen = [row for row in rows if is_measured(row, p)]
        if p.label not in ANCHORS:
            points = points_of(record)
            # Models are fitted again whenever twice as much is known.
            if so_far is None or len(points) >= 2 * fitted_to:
                so_far = Estimator(rows, points, sm_count, skipped=SKIPPED_SO_FAR)
                fitted_to = len(points)
            chosen = candidates(p, rows, so_far)
        times = dict(timer(p, chosen))
        reference = times.pop(TORCH_MM)
        record["problems"][p.label] = {"torch_mm_us": reference, "us": times}
        if so_far is not None:
            so_far.add(Point(p, times))
        save()
    return True


def run_measure(path: Path, seconds: float) -> int:
    """Measure on the first GPU into ``path``; 0 when all is there, 1 for wrong bits, 3 to go on."""
    if not torch.cuda.is_available():
        raise SystemExit("select_table: --measure needs a GPU")
    if (reason := environment.strict_reference()) is not None:
        raise SystemExit(f"select_table: torch.mm is not the FP32 yardstick here: {reason}")
    chip = torch.cuda.get_device_properties(0)
    sm = 10 * chip.major + chip.minor
    able = [s for s in xgemm_torch.stages() if s.cuda and s.min_sm <= sm <= (s.max_sm or sm)]
    rows = rows_of(able)
    keys = [row.key for row in rows]
    record: dict[str, Any] = {"facts": provenance.facts(), "rows": keys, "problems": {}}
    if path.exists():
        found = json.loads(path.read_text())
        if found["rows"] != keys or found["facts"]["device"] != chip.name:
            raise SystemExit(f"select_table: {path} is of other stages or another GPU")
        record = found

    def save() -> None:
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(record, indent=1))
        partial.replace(path)

    problems = list(shapes.suite())
    if "wrong" not in record:
        record["wrong"] = [
            fault.text for p in problems if p.label in ANCHORS for fault in check(p, rows)
        ]
        save()
    print(*record["wrong"], sep="\n")
    timing.heat(2.0)
    with timing.Clocks() as clocks:
        done = measure(
            record, rows, problems, time_on_gpu, save,
            sm_count=chip.multi_processor_count, seconds=seconds,
        )  # fmt: skip
    record["clocks"] = clocks.summary()
    save()
    print(f"{len(record['problems'])} of {len(problems)} problems in {path}")
    return 1 if record["wrong"] else 0 if done else 3


def number(x: float) -> str:
    """Four digits, as C++ reads a float."""
    text = f"{x:.4g}"
    return f"{text if set(text) & set('.e') else text + '.'}f"


def table(record: Mapping[str, Any], rows: Sequence[Row], estimator: Estimator) -> str:
    """The text of select_table.inc."""
    facts = record["facts"]
    date = facts["date"][:10]
    sm = int(facts["sm"].replace(".", ""))
    listed = [row for row in rows if row.key in estimator.fits]
    lines = [
        "// Measured; written by benchmarks/select_table.py --write, not by hand.",
        f"// {facts['device']}, driver {facts['driver'].get('driver_version', 'unknown')}, "
        f"torch {facts['torch']}, {date}, commit {facts['commit']}",
        f"// {facts['command']}",
        "// Microseconds: medians of turns taken with torch.mm and each other, chip hot, operands"
        " from memory.",
        "",
        "// stage; BM, BN, BK, WM, WN, TM, TN, buffers, min_blocks, cluster;",
        "// fixed, prologue, alone, even, memory; GFLOP/s of an SM: TN, TT, NN, NT",
        "static constexpr TableRow kRows[] = {",
    ]
    for row in listed:
        t, f = row.tile, estimator.fits[row.key]
        shape = ", ".join(
            str(x)
            for x in (
                t.BM,
                t.BN,
                t.BK,
                t.WM,
                t.WN,
                t.TM,
                t.TN,
                t.buffers,
                t.min_blocks,
                t.cluster,
            )
        )
        model = ", ".join(number(x) for x in (f.fixed, f.prologue, f.alone, f.even, f.memory))
        rates = ", ".join(number(x) for x in f.per_sm)
        lines.append(f'    {{"{row.stage}", {shape}, {model}, {{{rates}}}}},')
    lines += [
        "};",
        "",
        "// m, n, k, layout, width, microseconds by row",
        "static constexpr TablePoint kPoints[] = {",
    ]
    for point in estimator.points:
        p = point.problem
        layout, wide = place(p)
        times = [point.us.get(row.key, 0) for row in listed]
        while times and times[-1] == 0:
            times.pop()
        us = ", ".join(number(x) if x else "0" for x in times)
        lines.append(f"    {{{p.m}, {p.n}, {p.k}, {layout}, {wide}, {{{us}}}}},  // {p.label}")
    lines += [
        "};",
        "",
        "static const Table table{",
        f'    .gpu = "{facts["device"]}",',
        f'    .date = "{date}",',
        f"    .sm = {sm},",
        f"    .sm_count = {facts['multiprocessors']},",
        f"    .skipped = {number(select_model.SKIPPED)},",
        "    .rows = {std::begin(kRows), std::end(kRows)},",
        "    .points = {std::begin(kPoints), std::end(kPoints)},",
        "};",
    ]
    return "\n".join([*lines, ""])


def report(record: Mapping[str, Any], estimator: Estimator) -> str:
    """What the choice loses, and where torch.mm is fastest: among strict rows, then among all."""
    lines = []
    for precision, strict in (("ieee", True), ("fp32", False)):
        for title, left_out in (
            ("at the measured problems", False),
            ("each from the others", True),
        ):
            found = select_model.losses(estimator, strict=strict, leave_one_out=left_out)
            loss, problem, key = max(found, key=lambda row: row[0])
            lines.append(
                f"choice for {precision}, {title}: {fmean(row[0] for row in found):.2%} lost on "
                f"average, at most {loss:.1%} ({problem.label}, {key})"
            )
        ratios = []
        problems = {p.label: p for p in shapes.suite()}
        for label, row in record["problems"].items():
            allowed = {
                row.key for row in estimator.rows if keeps(row, problems[label], strict=strict)
            }
            its = {key: us for key, us in row["us"].items() if key in allowed}
            best = min(its, key=lambda key: its[key])
            ratios.append((row["torch_mm_us"] / its[best], label, best))
        ratios.sort()
        mean = math.exp(fmean(math.log(ratio) for ratio, _, _ in ratios))
        lines.append(
            f"{precision} against torch.mm: {mean:.3f} x, geometric mean; below 0.98 x in "
            f"{sum(ratio < 0.98 for ratio, _, _ in ratios)} of {len(ratios)}; the ten worst:"
        )
        lines += [f"  {ratio:6.3f} x  {label:40} {best}" for ratio, label, best in ratios[:10]]
        wins = [best for _, _, best in ratios]
        lines.append("fastest row, how often:")
        lines += [
            f"  {wins.count(row.key):4}  {row.key}" for row in estimator.rows if row.key in wins
        ]
    return "\n".join(lines)


def run_write(path: Path, out: Path) -> int:
    """Write the table of ``path`` into ``out``; print what it is worth."""
    record = json.loads(path.read_text())
    if record.get("wrong"):
        raise SystemExit("select_table: a row's bits were wrong: " + "; ".join(record["wrong"]))
    rows = rows_of(xgemm_torch.stages())
    gone = set(record["rows"]) - {row.key for row in rows}
    if gone:
        print("no longer a row of this build, left out:", *sorted(gone), sep="\n  ")
    keys = {row.key for row in rows}
    points = [
        Point(p.problem, {key: us for key, us in p.us.items() if key in keys})
        for p in points_of(record)
    ]
    estimator = Estimator(rows, [p for p in points if p.us], record["facts"]["multiprocessors"])
    out.write_text(table(record, rows, estimator))
    print(report(record, estimator))
    print(f"{len(estimator.points)} problems, {len(estimator.rows)} rows: {out}")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--measure", type=Path, metavar="JSON", help="measure on the first GPU")
    what.add_argument("--write", type=Path, metavar="JSON", help="write the table")
    parser.add_argument("--seconds", type=float, default=math.inf, help="measure no longer than")
    parser.add_argument("--out", type=Path, default=TABLE, help="the table, for --write")
    options = parser.parse_args(arguments)
    if options.measure:
        return run_measure(options.measure, options.seconds)
    return run_write(options.write, options.out)


if __name__ == "__main__":
    sys.exit(main())
