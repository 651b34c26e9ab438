"""Files that are whole or absent: written beside, flushed to the disk, renamed over the old one.

A checkpoint ends in a SHA-256 of all before it: torch checks no sums, and loads a file whose
weights a disk has changed as if nothing had happened.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import torch

FORMAT = 2
# Before the sum. What reads an archive from its end, as torch does, passes over both.
_MARK = b"xgemm_torch sha256 "
_SUM_BYTES = hashlib.sha256().digest_size


class _Summed:
    """A file to write into that keeps a sum of what it was given, and its first error.

    torch.save raises a RuntimeError about positions where a write fails.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.sum, self.error = file, hashlib.sha256(), None

    def write(self, data: Any) -> int:
        try:
            written = self.file.write(data)
        except OSError as error:
            self.error = self.error or error
            raise
        self.sum.update(data)
        return written

    def flush(self) -> None:
        self.file.flush()


def write_atomically(path: Path, write: Callable[[Any], object]) -> None:
    """Let ``write`` fill a new file, then put it in ``path``'s place in one step.

    A process killed at any moment leaves the old file or the new one, never half of one. So does an
    OSError, as of a full disk, whose message has the path; what was written until then is removed.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        with open(partial, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        raise OSError(f"train: {path} cannot be written: {error.strerror or error}") from error
    # The rename itself lives in the folder: without this a power cut could take it back.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Keep other processes out of a run's folder; ValueError where one is in it."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"train: another process trains in {folder}; name another folder with --out"
            ) from None
        yield


def write_text(path: Path, text: str) -> None:
    """Put ``text`` into ``path``, whole or not at all."""
    write_atomically(path, lambda file: file.write(text.encode()))


def save(path: Path, state: dict[str, Any]) -> None:
    """Put a state of tensors, numbers, text, lists and dicts into ``path``, whole or not at all."""

    def write(file: BinaryIO) -> None:
        summed = _Summed(file)
        try:
            torch.save({"format": FORMAT, **state}, summed)
        except RuntimeError as error:
            raise summed.error or error from None
        file.write(_MARK + summed.sum.digest())

    write_atomically(path, write)


def _is_summed(file: BinaryIO) -> bool:
    """Whether a file ends in a sum; ValueError where that is not the sum of what is before it."""
    end = len(_MARK) + _SUM_BYTES
    left = file.seek(0, os.SEEK_END) - end
    if left < 0:
        return False
    file.seek(left)
    last = file.read(end)
    if not last.startswith(_MARK):
        return False
    found = hashlib.sha256()
    file.seek(0)
    while left and (data := file.read(min(left, 1 << 20))):
        found.update(data)
        left -= len(data)
    if found.digest() != last[len(_MARK) :]:
        raise ValueError("its bytes are not those that were written (SHA-256)")
    return True


def load(path: Path) -> dict[str, Any] | None:
    """Read what ``save`` wrote, on the CPU; None when nothing was.

    Raises:
        ValueError: it is damaged, of another format, or no checkpoint.
    """
    if not path.exists():
        return None
    try:
        with open(path, "rb") as file:
            is_summed = _is_summed(file)
            file.seek(0)
            state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # of any kind: torch parses bytes that may be anything
        words = str(error).partition("\n")[0] or type(error).__name__
        raise ValueError(f"train: {path} cannot be read: {words}") from error
    if not isinstance(state, dict):
        raise ValueError(f"train: {path} is no checkpoint: it holds a {type(state).__name__}")
    if state.get("format") != FORMAT:
        raise ValueError(f"train: {path} has format {state.get('format')}, this reads {FORMAT}")
    if not is_summed:
        raise ValueError(f"train: {path} cannot be read: the sum at its end is missing")
    return state
