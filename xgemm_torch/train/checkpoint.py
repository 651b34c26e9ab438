"""Files that are whole or absent: written beside, flushed to the disk, renamed over the old one."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, BinaryIO

import torch

FORMAT = 1


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Let ``write`` fill a new file, then put it in ``path``'s place in one step.

    A process killed at any moment leaves the old file or the new one, never half of one.
    """
    partial = path.with_name(path.name + ".partial")
    with open(partial, "wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
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
    write_atomically(path, lambda file: torch.save({"format": FORMAT, **state}, file))


def load(path: Path) -> dict[str, Any] | None:
    """Read what ``save`` wrote, on the CPU; None when nothing was. ValueError on another format."""
    if not path.exists():
        return None
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, UnpicklingError) as error:
        raise ValueError(f"train: {path} cannot be read: {error}") from error
    if not isinstance(state, dict):
        raise ValueError(f"train: {path} is no checkpoint: it holds a {type(state).__name__}")
    if state.get("format") != FORMAT:
        raise ValueError(f"train: {path} has format {state.get('format')}, this reads {FORMAT}")
    return state
