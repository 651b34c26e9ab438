"""Checkpoints: files that are whole or absent, and end in a sum of what is in them.

A checkpoint ends in a SHA-256 of all before it: torch checks no sums, and loads a file whose
weights a disk has changed as if nothing had happened.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import torch

from ..tools.files import write_atomically

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


def save(path: Path, state: dict[str, Any]) -> None:
    """Put a state of tensors, numbers, text, lists and dicts into ``path``, whole or not at all."""

    def write(file: BinaryIO) -> None:
        summed = _Summed(file)
        try:
            torch.save({"format": FORMAT, **state}, summed)
        except RuntimeError as error:
            raise summed.error or error from None
        file.write(_MARK + summed.sum.digest())

    write_atomically(path, write, who="train")


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
