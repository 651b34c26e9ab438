"""Writes what ``auto`` chooses by, csrc/xgemm/dispatch/select_table.inc, from what was measured.

    python benchmarks/survey.py --json h200.json --suite --extras --seeds 101 102 103   # on a GPU
    python benchmarks/select_table.py h200.json        # anywhere; then build again

Costs of the terms of every row's time are fitted to the records' problems (select_model.py). What
the choice is worth is printed three times: at the problems that it was fitted to, of the suite and
of all others, and at those others by costs that were fitted without them, whole seeds at a time.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import records
import select_model
import shapes
import torch
from select_model import STRICT, TERMS, Measured
from torch import Tensor

import xgemm_torch
from xgemm_torch.tools.contenders import Row, rows_of

TABLE = Path(__file__).resolve().parent.parent / "csrc/xgemm/dispatch/select_table.inc"
FOLDS = 5


def read(paths: Sequence[Path]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The problems of records of one kind of GPU, and the facts of the last of them.

    Its command is those of all.
    """
    found = [records.read(path) for path in paths]
    for path, record in zip(paths, found, strict=True):
        if record.get("wrong"):
            raise SystemExit(f"select_table: {path}: wrong bits: " + "; ".join(record["wrong"]))
        if record["facts"]["device"] != found[0]["facts"]["device"]:
            raise SystemExit(f"select_table: {path} is of another GPU than {paths[0]}")
    facts = max((record["facts"] for record in found), key=lambda facts: facts["date"])
    commands = "\n// ".join(record["facts"]["command"] for record in found)
    problems = [x for record in found for x in record["problems"].values()]
    return problems, {**facts, "command": commands}


def group(found: Mapping[str, Any]) -> str:
    """What is left out together: a seed of random problems; of others, all layouts of a size."""
    if found["label"].startswith("random "):
        return " ".join(found["label"].split()[:2])
    return "x".join(str(size) for size in found["problem"][:4])


def number(x: float) -> str:
    """Four digits."""
    return f"{x:.4g}"


def table(facts: Mapping[str, Any], rows: Sequence[Row], costs: Tensor, known: Tensor) -> str:
    """The text of select_table.inc."""
    date = facts["date"][:10]
    lines = [
        "// Measured; written by benchmarks/select_table.py, not by hand.",
        f"// {facts['device']}, driver {facts['driver'].get('driver_version', 'unknown')}, "
        f"torch {facts['torch']}, {date}, commit {facts['commit']}",
        f"// {facts['command']}",
        "",
        "// stage; BM, BN, BK, WM, WN, TM, TN, buffers, min_blocks, cluster;",
        "// microseconds of " + "; ".join(word for word, _ in TERMS),
        "static constexpr TableRow kRows[] = {",
    ]
    for row, its, is_known in zip(rows, costs.tolist(), known.tolist(), strict=True):
        if not is_known:
            continue
        t = row.tile
        shape = (t.BM, t.BN, t.BK, t.WM, t.WN, t.TM, t.TN, t.buffers, t.min_blocks, t.cluster)
        lines.append(
            f'    {{"{row.stage}", {", ".join(map(str, shape))},\n'
            f"     {{{', '.join(map(number, its))}}}}},"
        )
    lines += [
        "};",
        "",
        "static const Table table{",
        f'    .gpu = "{facts["device"]}",',
        f'    .date = "{date}",',
        "    .rows = {std::begin(kRows), std::end(kRows)},",
        "};",
    ]
    return "\n".join([*lines, ""])


def report(m: Measured, us: Tensor, rows: Sequence[Row], *, wins: bool = False) -> list[str]:
    """What choices by estimates ``us`` are worth; ``wins``: and how often a row is the best."""
    lines = []
    for precision in STRICT:
        found = select_model.worth(m, us, precision)
        lines.append(f"  {precision}: {found}")
        if wins:
            may = torch.where(m.may[precision], m.us, torch.inf)
            best = Counter(may.nan_to_num(torch.inf).argmin(1).tolist())
            chosen = Counter(found.pick.tolist())
            lines += [
                f"    {best[i]:4} times the best, {chosen[i]:4} chosen: {row.key}"
                for i, row in enumerate(rows)
                if best[i] or chosen[i]
            ]
    return lines


def numbers(which: Sequence[bool]) -> Tensor:
    """Where they are true."""
    return torch.tensor(which).nonzero()[:, 0]


def run(paths: Sequence[Path], out: Path | None, folds: int) -> int:
    """Fit and print; write the table where ``out`` is given."""
    found, facts = read(paths)
    rows = rows_of(xgemm_torch.stages())
    keys = {key for x in found for key in x["us"] | x["look_us"]}
    for key in sorted(keys - {row.key for row in rows}):
        print(f"no longer a row of this build, left out: {key}")
    m = Measured.of(found, rows, facts["multiprocessors"])
    suite = {(p.batch, p.m, p.n, p.k, p.layout) for p in shapes.suite()}
    in_suite = [tuple(x["problem"]) in suite for x in found]
    random = [x["label"].startswith("random ") for x in found]
    parts = {
        "the suite": numbers(in_suite),
        "random problems": numbers(random),
        "others": numbers([not a and not b for a, b in zip(in_suite, random, strict=True)]),
    }
    costs, known = select_model.fit(m)
    us = select_model.estimates(m, costs, known)
    for title, its in parts.items():
        if len(its):
            print(f"{title}:", *report(m[its], us[its], rows), sep="\n")
    if folds:
        us = select_model.cross_validated(m, [group(x) for x in found], folds)
        for title, its in parts.items():
            if len(its):
                print(f"{title}, by costs fitted without them:", *report(m[its], us[its], rows),
                      sep="\n")  # fmt: skip
    print("all:", *report(m, select_model.estimates(m, costs, known), rows, wins=True), sep="\n")
    if out:
        out.write_text(table(facts, rows, costs, known))
        print(f"{len(found)} problems, {int(known.sum())} rows: {out}")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("records", type=Path, nargs="+", help="what survey.py has measured")
    parser.add_argument("--out", type=Path, default=TABLE, help="where to write the table")
    parser.add_argument("--dry", action="store_true", help="write nothing")
    parser.add_argument("--folds", type=int, default=FOLDS, help="of the cross-validation; 0: none")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # a step's tensors are too small for several threads
    return run(options.records, None if options.dry else options.out, options.folds)


if __name__ == "__main__":
    sys.exit(main())
