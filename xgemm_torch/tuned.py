"""The file of problems that a user has tuned, and which such file ``auto`` goes by.

``python -m xgemm_torch tune`` writes it. The one at `path` is read when a kernel is first to run on
a CUDA tensor, and at exactly those problems ``auto`` takes what was fastest there, and a stage that
is called by its name its own fastest tile; `load` and `clear` change that at any time, from any
thread. Rows that are gone, that cannot run, or that would break the precision's contract are passed
over: the bits of "ieee" are the same with any file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from . import _C

_TITLE = "xgemm_torch tuned 1"
_ABOUT = """\
# Written by `python -m xgemm_torch tune`; microseconds, medians of turns taken with torch.mm.
# Sizes M, N, K; how a kernel sees A and B lie, and which can be moved as vectors; the precision;
# and the size of a batch.
"""


@dataclass(frozen=True)
class Record:
    """One problem, measured on one GPU for one precision.

    Attributes:
        m, n, k: the problem's sizes.
        layout: how A and B lie, as a kernel sees them: "NN", "NT", "TN" or "TT".
        wide: +2 where A, +1 where B can be moved as 16-byte vectors.
        precision: "fp32" or "ieee": what the rows were allowed to do.
        gpu: the GPU's name.
        sm: its compute capability, as in 90.
        sm_count: its multiprocessors.
        date: of the measurement, as in "2026-11-22".
        made_with: driver and torch, in words.
        rows: the library's version, and a hash of its tile tables.
        torch_mm: microseconds of torch.mm, or torch.bmm.
        times: microseconds by row, which is named by what it is; least first.
        batch: how many such products are made at once.
    """

    m: int
    n: int
    k: int
    layout: str
    wide: int
    precision: str
    gpu: str
    sm: int
    sm_count: int
    date: str
    made_with: str
    rows: str
    torch_mm: float
    times: dict[str, float] = field(hash=False)
    batch: int = 1

    @property
    def key(self) -> tuple[object, ...]:
        """The problem, the precision and the GPU: what a file has one record of."""
        problem = (self.m, self.n, self.k, self.batch, self.layout, self.wide, self.precision)
        return (*problem, self.gpu, self.sm, self.sm_count)

    @property
    def best(self) -> str:
        """The row of the least time."""
        return min(self.times, key=lambda row: self.times[row])

    def __str__(self) -> str:
        """The record as a block of the file."""
        words = [self.m, self.n, self.k, self.layout, self.wide, self.precision]
        words += [self.batch] if self.batch > 1 else []
        lines = [
            f"problem {' '.join(map(str, words))}",
            f"gpu {self.sm} {self.sm_count} {self.gpu}",
            f"date {self.date}",
            f"with {self.made_with}",
            f"rows {self.rows}",
            f"torch.mm {self.torch_mm:.6g}",
        ]
        by_time = sorted(self.times.items(), key=lambda item: item[1])
        return "\n".join([*lines, *(f"time {us:.6g} {row}" for row, us in by_time), ""])


def path() -> Path | None:
    """The file that ``auto`` reads when it is first asked; None where there is to be none.

    $XGEMM_TUNE_CACHE, or xgemm_torch/tuned.txt in $XDG_CACHE_HOME or ~/.cache. An empty
    XGEMM_TUNE_CACHE turns it off.
    """
    found = _C.tuned_path()
    return Path(found) if found else None


def read(file: str | os.PathLike[str]) -> list[Record]:
    """The records of a file; none where there is no file.

    Raises:
        ValueError: it cannot be read, or is no such file; the message has the line.
    """
    if not os.path.lexists(file):
        return []
    return [
        Record(**{**row, "times": {name: us for us, name in row["times"]}})
        for row in json.loads(_C.tuned_read(os.fspath(file)))
    ]


def add(file: str | os.PathLike[str], records: Iterable[Record]) -> None:
    """Write records into a file, in place of those of the same problems; all others are kept.

    The file is replaced as a whole: whoever reads it meanwhile, or after an interruption, has the
    old one or the new one. Its folder is made where there is none.

    Raises:
        ValueError: there is a file that is no file of tuned problems; it stays as it is.
    """
    kept = {record.key: record for record in read(file)}
    kept |= {record.key: record for record in records}
    target = Path(file)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        partial.write_text("\n".join([f"{_TITLE}\n{_ABOUT}", *map(str, kept.values())]))
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def load(file: str | os.PathLike[str] | None = None) -> int:
    """Have ``auto`` go by a file from now on, in place of what it went by; count its records.

    Args:
        file: as `add` writes it; None for the one at `path`.

    Raises:
        ValueError: it cannot be read, or is no such file; ``auto`` goes on as before. Or there is
            none to read, because XGEMM_TUNE_CACHE is empty.
    """
    file = path() if file is None else file
    if file is None:
        raise ValueError("tuned.load: XGEMM_TUNE_CACHE is empty, so there is no file to load")
    return _C.tuned_load(os.fspath(file))


def clear() -> None:
    """Have ``auto`` go by no such file from now on, and not read the one at `path` either."""
    _C.tuned_clear()
