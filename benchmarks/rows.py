"""Times chosen rows of stages on chosen problems, in turns with torch.mm: what a change is worth.

    python benchmarks/rows.py wgmma_fp16x3:0 tma_specialized:1 \\
        --problem "square 4096 NN" --problem "linear 768-768 rows 8192 forward" --json rows.json

Problems are named as ``python benchmarks/shapes.py`` lists them. Every row is given the same random
normal operands, rotated through memory; the chip is hot; times are medians of turns. A problem's
line comes as soon as it is measured: microseconds, and how many times as fast as torch.mm.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import provenance
import records
import shapes
import torch

import xgemm_torch
from xgemm_torch.tools import timing, trials
from xgemm_torch.tools.contenders import Row, rows_of
from xgemm_torch.tools.trials import TORCH_MM


def named_row(name: str) -> Row:
    """The row that "stage:number" names; a ValueError says which there are."""
    rows = {f"{r.stage}:{r.row}": r for r in rows_of(xgemm_torch.stages())}
    if name not in rows:
        stage = name.partition(":")[0]
        known = [key for key in rows if key.startswith(f"{stage}:")] or sorted(
            {key.partition(":")[0] for key in rows}
        )
        raise ValueError(f"no row {name!r}: there are {', '.join(known)}")
    return rows[name]


def named_problem(label: str) -> shapes.Problem:
    """The problem of the suite with this label; a ValueError if there is none."""
    found = [p for p in shapes.suite() if p.label == label]
    if not found:
        raise ValueError(f"no problem {label!r}: python benchmarks/shapes.py lists them")
    return found[0]


def measure(p: shapes.Problem, rows: Sequence[Row], rounds: int) -> dict[str, float]:
    """Microseconds of torch.mm and of each row, by "stage:number"."""
    us = trials.microseconds(p, rows, rounds=rounds)
    return {TORCH_MM: us[TORCH_MM]} | {f"{row.stage}:{row.row}": us[row.key] for row in rows}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("rows", nargs="+", metavar="STAGE:ROW")
    parser.add_argument("--problem", action="append", required=True, metavar="LABEL")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each contender")
    parser.add_argument("--json", type=Path, help="where to keep times, clocks and facts")
    chosen = parser.parse_args(arguments)
    try:
        rows = [named_row(name) for name in chosen.rows]
        problems = [named_problem(label) for label in chosen.problem]
    except ValueError as error:
        parser.error(str(error))
    if not torch.cuda.is_available():
        raise SystemExit("rows: needs a GPU")
    found: dict[str, dict[str, float]] = {}
    timing.heat(1.0)
    with timing.Clocks() as clocks:
        for p in problems:
            us = found[p.label] = measure(p, rows, chosen.rounds)
            each = "  ".join(
                f"{name} {us[name]:.1f} ({us[TORCH_MM] / us[name]:.2f} x)"
                for name in us
                if name != TORCH_MM
            )
            print(f"{p.label:40} {TORCH_MM} {us[TORCH_MM]:9.1f}  {each}", flush=True)
    if chosen.json:
        record = {"facts": provenance.facts(), "clocks": clocks.summary(), "us": found}
        records.write(chosen.json, record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
