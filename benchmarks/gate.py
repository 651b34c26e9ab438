"""Whether the gate finds what is planted: records of compare.py, pair by pair, in one record.

    python benchmarks/compare.py before planted --seed 1 --json planted1.json
    python benchmarks/compare.py before before --seed 1 --json equal1.json
    python benchmarks/gate.py gate.json --what "a barrier more" --planted p*.json --equal e*.json

Each pair keeps its verdict, the ratio and the interval of every problem and of the geometric mean,
and how long it took; the turns stay behind. The facts are of the first pair.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import records  # noqa: E402

PLANTED, EQUAL = "planted", "equal"
# In which the pairs of a record may not differ.
SAME = ("commit", "sources", "device", "torch")


def pair(kind: str, compared: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of a comparison; its second measurement, where there was one, is beside it."""
    ratios = {
        when: {name: [r["ratio"], r["low"], r["high"]] for name, r in compared[when].items()}
        for when in ("ratios", "again")
    }
    return {
        "kind": kind, "seed": compared["seed"], "date": compared["facts"]["date"],
        "seconds": compared["seconds"], "slower": compared["slower"], **ratios,
    }  # fmt: skip


def gathered(what: str, compared: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """Make the record of comparisons, each with its kind; a ValueError where they do not fit."""
    found = list(compared)
    facts = [c["facts"] for _, c in found]
    for name in SAME:
        if len({f[name] for f in facts}) != 1:
            raise ValueError(f"the pairs are of more than one {name}")
    (tolerance,) = {c["tolerance"] for _, c in found}
    pairs = [pair(*each) for each in found]
    return {
        "facts": facts[0], "planted": what, "tolerance": tolerance, "pairs": pairs, "finished": True
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Gather what the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("record", type=Path, help="the file to write")
    parser.add_argument("--what", required=True, help="what was planted, in words")
    parser.add_argument("--planted", type=Path, nargs="+", required=True, metavar="JSON")
    parser.add_argument("--equal", type=Path, nargs="+", required=True, metavar="JSON")
    chosen = parser.parse_args(arguments)
    each = [(kind, path) for kind in (PLANTED, EQUAL) for path in getattr(chosen, kind)]
    try:
        record = gathered(chosen.what, ((kind, records.read(path)) for kind, path in each))
    except (OSError, ValueError) as error:
        parser.error(str(error))
    records.write(chosen.record, record)
    for kind in (PLANTED, EQUAL):
        some = [p for p in record["pairs"] if p["kind"] == kind]
        print(f"{kind}: {sum(bool(p['slower']) for p in some)} of {len(some)} slower")
    return 0


if __name__ == "__main__":
    sys.exit(main())
