"""``python -m xgemm_torch report``: one HTML file of all records, by benchmarks/report.py."""

from __future__ import annotations

import argparse
from pathlib import Path

from . import checkout

FILE = Path("report.html")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--out", type=Path, metavar="FILE", default=FILE,
        help=f"the file to write (default: {FILE}); it fetches nothing",
    )  # fmt: skip
    parser.add_argument(
        "--records", type=Path, metavar="DIR",
        help="of whose records, as bench leaves them; by default those of the checkout",
    )  # fmt: skip
    parser.add_argument("--git", action="store_true", help="history from git's older records, too")


def run(options: argparse.Namespace) -> int:
    """Write the file."""
    script = checkout.script("report", who="report")
    arguments = ["--html", str(options.out)] + ["--git"] * options.git
    if options.records is not None:
        found = sorted(path for path in options.records.glob("*.json*") if path.is_file())
        if not found:
            raise ValueError(f"report: no record in {options.records}")
        arguments += map(str, found)
    return script.main(arguments)
