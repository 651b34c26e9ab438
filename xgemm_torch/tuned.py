"""The file of problems that a user has tuned, and which such file ``auto`` goes by.

``python -m xgemm_torch tune`` writes it. The one at `path` is read when a kernel is first to run on
a CUDA tensor, and at exactly those problems ``auto`` takes what was fastest there, and a stage that
is called by its name its own fastest tile; `load` and `clear` change that at any time, from any
thread. Rows that are gone, that cannot run, or that would break the precision's contract are passed
over: the bits of "ieee" are the same with any file.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from . import _C
from .types import Layout, Precision

_TITLE = "xgemm_torch tuned 1"
# As csrc/xgemm/dispatch/tuned_cache.cpp has it: thousands of problems.
_MOST_BYTES = 64 << 20
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
    layout: Layout
    wide: int
    precision: Precision
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
    XGEMM_TUNE_CACHE turns it off, and so does a missing HOME where neither is set.
    """
    try:
        found = _C.tuned_path()
    except UnicodeDecodeError as error:  # the name of a file is any bytes
        found = os.fsdecode(error.object)
    return Path(found) if found else None


def why_no_path() -> str:
    """Why `path` is None, in words."""
    if "XGEMM_TUNE_CACHE" in os.environ:
        return "XGEMM_TUNE_CACHE is empty"
    return "XGEMM_TUNE_CACHE, XDG_CACHE_HOME and HOME are not set"


def shown(file: str | os.PathLike[str]) -> str:
    r"""The name of a file for a message, which is UTF-8: a byte that is not is told as ``\xff``."""
    return os.fsencode(file).decode("utf-8", "backslashreplace")


def read(file: str | os.PathLike[str]) -> list[Record]:
    """The records of a file; none where there is no file.

    Raises:
        ValueError: it cannot be read, is no regular file (a pipe would be waited for) or is larger
            than 64 MiB, or is no such file; the message has the line.
    """
    if not os.path.lexists(file):
        return []
    try:
        found = os.stat(file)
    except OSError as error:
        raise ValueError(f"{shown(file)} cannot be read: {error.strerror}") from error
    # Before it is opened: a pipe has no end before somebody closes it, /dev/zero none at all.
    if not stat.S_ISREG(found.st_mode):
        raise ValueError(f"{shown(file)} cannot be read: it is not a regular file")
    if found.st_size > _MOST_BYTES:
        raise ValueError(
            f"{shown(file)} cannot be read: it has {found.st_size} bytes, and at most "
            f"{_MOST_BYTES} are read"
        )
    with _named(file) as name:
        rows = json.loads(_C.tuned_read(name))
    return [Record(**{**row, "times": {row: us for us, row in row["times"]}}) for row in rows]


@contextmanager
def _named(file: str | os.PathLike[str]) -> Iterator[str]:
    """A name of a file that the compiled module takes, which is to be UTF-8."""
    name = os.fsdecode(file)
    try:
        name.encode()
    except UnicodeEncodeError:
        pass
    else:
        yield name
        return
    try:
        opened = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise ValueError(f"{shown(file)} cannot be read: {error.strerror}") from error
    name = f"/proc/self/fd/{opened}"
    try:
        yield name
    except ValueError as error:
        raise ValueError(str(error).replace(name, shown(file))) from None
    finally:
        os.close(opened)


@contextmanager
def _alone(file: Path) -> Iterator[None]:
    """Keep other threads and processes from writing a file, by a lock beside it.

    Who has the lock removes its file at the end; who waited for a file that is removed meanwhile
    tries again. Where the file system has no locks, nobody is kept out.
    """
    beside = file.with_name(f".{file.name}.lock")
    while True:
        lock = os.open(beside, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            with suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                is_there = os.path.samestat(os.fstat(lock), os.stat(beside))
            except FileNotFoundError:
                is_there = False
            if is_there:
                try:
                    yield
                finally:
                    with suppress(FileNotFoundError):
                        os.unlink(beside)
                return
        finally:
            os.close(lock)


def add(file: str | os.PathLike[str], records: Iterable[Record]) -> None:
    """Write records into a file, in place of those of the same problems; all others are kept.

    The file is replaced as a whole: whoever reads it meanwhile, or after an interruption, has the
    old one or the new one. Those who write at the same time wait for each other, so that no record
    is lost. Its folder is made where there is none.

    Raises:
        ValueError: there is a file that is no file of tuned problems; it stays as it is.
    """
    target, added = Path(file), {record.key: record for record in records}
    target.parent.mkdir(parents=True, exist_ok=True)
    with _alone(target):
        kept = {record.key: record for record in read(target)} | added
        partial = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            with open(partial, "w", encoding="ascii") as text:
                text.write("\n".join([f"{_TITLE}\n{_ABOUT}", *map(str, kept.values())]))
                text.flush()
                os.fsync(text.fileno())  # or a power cut leaves the new name without its text
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)


def load(file: str | os.PathLike[str] | None = None) -> int:
    """Have ``auto`` go by a file from now on, in place of what it went by; count its records.

    Args:
        file: as `add` writes it; None for the one at `path`.

    Raises:
        ValueError: it cannot be read, or is no such file, as `read` has it; ``auto`` goes on as
            before. Or there is none to read, because XGEMM_TUNE_CACHE is empty.
    """
    file = path() if file is None else file
    if file is None:
        raise ValueError(f"tuned.load: {why_no_path()}, so there is no file to load")
    with _named(file) as name:
        return _C.tuned_load(name)


def clear() -> None:
    """Have ``auto`` go by no such file from now on, and not read the one at `path` either."""
    _C.tuned_clear()
