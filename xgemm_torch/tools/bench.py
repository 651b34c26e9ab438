"""``python -m xgemm_torch bench``: every suite of benchmarks/, each into a record."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from . import checkout
from .invocation import called

FOLDER = Path("runs", "bench")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options; which suites there are the checkout knows."""
    parser.add_argument("suites", nargs="*", metavar="SUITE", help="all by default")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", default=FOLDER,
        help=f"where the records are kept (default: {FOLDER}); those that are whole, and of the "
        "same sources, GPU and torch, are not measured again",
    )  # fmt: skip
    parser.add_argument(
        "--seconds", type=float, metavar="N",
        help="measure a suite no longer, where it can go on later",
    )  # fmt: skip
    parser.add_argument("--again", action="store_true", help="measure also what is there")
    parser.add_argument("--list", action="store_true", help="suites, and which records are there")
    parser.add_argument("--dry-run", action="store_true", help="print the commands alone")
    parser.add_argument(
        "--compare", type=Path, nargs=2, metavar=("A", "B"),
        help="measure no suite but two builds in turns, checkouts or compiled modules, or compare "
        "two records; exit code 1 where B is slower. benchmarks/compare.py has more options",
    )  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Measure; 0 well, 1 a suite failed or B is slower, 3 time was up, 130 interrupted."""
    if options.compare:
        return checkout.script("compare", who="bench").main([str(x) for x in options.compare])
    suites = checkout.script("suites", who="bench")
    if unknown := [name for name in options.suites if name not in suites.NAMES]:
        raise ValueError(f"bench: no suite {unknown[0]!r}: there are {', '.join(suites.NAMES)}")
    if options.seconds is not None and not 0 < options.seconds < math.inf:
        raise ValueError(f"bench: seconds must be more than 0, got {options.seconds:g}")
    limit = [] if options.seconds is None else ["--seconds", f"{options.seconds:g}"]
    return suites.main(
        options.suites, options.out, seconds=options.seconds, again=options.again,
        only_list=options.list, dry_run=options.dry_run,
        command=called("bench", "--out", options.out, *limit),
        report=called("report", "--records", options.out, "--out", options.out / "report.html"),
    )  # fmt: skip
