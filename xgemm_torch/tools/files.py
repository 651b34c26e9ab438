"""Files that are whole or absent: written beside, flushed to the disk, renamed over the old one."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any


def write_atomically(
    path: Path, write: Callable[[Any], object], *, who: str, suffix: str = ".partial"
) -> None:
    """Let ``write`` fill a new file, then put it in ``path``'s place in one step.

    A process killed at any moment leaves the old file or the new one, never half of one. So does an
    exception, as of a full disk; what was written until then is removed.

    Args:
        path: the file; its folder is there.
        write: is given a binary file to write into.
        who: the command or program that writes; an error's message begins with it.
        suffix: what the file is called until it is whole, after ``path``'s name. Where several
            processes may write ``path`` at a time, each needs its own.

    Raises:
        OSError: it cannot be written; the message has ``who``, the path and the reason.
    """
    partial = path.with_name(path.name + suffix)
    try:
        try:
            with open(partial, "wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
        except BaseException:
            with suppress(OSError):
                partial.unlink()
            raise
    except OSError as error:
        raise OSError(f"{who}: {path} cannot be written: {error.strerror or error}") from error
    # The rename itself lives in the folder: without this a power cut could take it back.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_text(path: Path, text: str, *, who: str, suffix: str = ".partial") -> None:
    """Put ``text`` into ``path`` as UTF-8, whole or not at all; see `write_atomically`."""
    write_atomically(path, lambda file: file.write(text.encode()), who=who, suffix=suffix)
