"""The text: the Python standard library's own sources, which every machine that runs this has.

The order of the files is fixed, so the same Python gives the same bytes; the fingerprint says so.
Four spaces of indentation become one tab and trailing spaces go.
"""

from __future__ import annotations

import hashlib
import platform
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

# Not the library's own prose and code: other people's packages, tests, generated tables.
SKIPPED = {
    "__pycache__", "dist-packages", "encodings", "html", "idlelib", "lib2to3", "pydoc_data",
    "site-packages", "test", "tests", "turtledemo",
}  # fmt: skip
SIZE_CAP = 4 << 20
VALIDATION_EVERY = 10


@dataclass(frozen=True)
class Corpus:
    """Bytes for training and for validation, and where they came from."""

    train: Tensor
    validation: Tensor
    files: tuple[str, ...]
    validation_files: tuple[str, ...]
    source: str
    fingerprint: str

    def facts(self) -> dict[str, object]:
        """What a report says about the text."""
        return {
            "source": self.source,
            "form": "four spaces of indentation are one tab; trailing spaces dropped",
            "python": platform.python_version(),
            "files": len(self.files),
            "validation_files": len(self.validation_files),
            "train_bytes": len(self.train),
            "validation_bytes": len(self.validation),
            "fingerprint": self.fingerprint,
        }


def standard_library() -> Path:
    """Give the folder of this Python's standard library; RuntimeError when there is none."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    if not (folder / "argparse.py").is_file():
        raise RuntimeError(f"train: no standard library sources in {folder}; they are the text")
    return folder


def load(folder: Path | None = None, size_cap: int = SIZE_CAP) -> Corpus:
    """Read the ``.py`` files under ``folder`` (the standard library) up to ``size_cap`` bytes.

    Files come in the order of their paths' SHA-256, which is the same everywhere and mixes the
    packages; every tenth goes to validation. Raises RuntimeError when there is too little text.
    """
    folder = standard_library() if folder is None else folder
    names = [
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*.py")
        if not SKIPPED & set(path.relative_to(folder).parts) and path.is_file()
    ]
    names.sort(key=lambda name: hashlib.sha256(name.encode()).digest())
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    kept: tuple[list[str], list[str]] = ([], [])
    total = 0
    for name in names:
        text = _dense((folder / name).read_bytes())
        if not text.strip() or total + len(text) > size_cap:
            continue
        validation = len(kept[0]) + len(kept[1]) + 1
        side = 1 if validation % VALIDATION_EVERY == 0 else 0
        parts[side].append(text)
        kept[side].append(name)
        total += len(text)
    train, validation = b"\n".join(parts[0]), b"\n".join(parts[1])
    if min(len(train), len(validation)) < 1 << 13:
        raise RuntimeError(f"train: only {total} bytes of Python text under {folder}")
    fingerprint = hashlib.sha256(train + b"\0" + validation).hexdigest()[:16]
    return Corpus(
        torch.frombuffer(bytearray(train), dtype=torch.uint8),
        torch.frombuffer(bytearray(validation), dtype=torch.uint8),
        tuple(kept[0]),
        tuple(kept[1]),
        str(folder),
        fingerprint,
    )


def _dense(source: bytes) -> bytes:
    """Turn each four spaces of indentation into one tab: a short window then sees more code."""
    lines = []
    for line in source.splitlines():
        code = line.lstrip(b" ")
        tabs, spaces = divmod(len(line) - len(code), 4)
        lines.append(b"\t" * tabs + b" " * spaces + code.rstrip())
    return b"\n".join(lines) + b"\n"


class Batches:
    """Random windows of a text; the generator's state is the position in the data."""

    def __init__(self, text: Tensor, batch: int, seq: int, seed: int) -> None:
        """Draw ``batch`` windows of ``seq`` bytes at a time from ``text`` (bytes,) uint8."""
        if len(text) <= seq + 1:
            raise ValueError(f"train: seq is {seq}, but the text has only {len(text)} bytes")
        self.text, self.batch, self.seq = text, batch, seq
        self.generator = torch.Generator().manual_seed(seed)
        self._window = torch.arange(seq + 1, device=text.device)

    def next(self) -> tuple[Tensor, Tensor]:
        """Draw ids and targets, both (batch, seq) int64 on the text's device."""
        last = len(self.text) - self.seq
        starts = torch.randint(0, last, (self.batch, 1), generator=self.generator)
        windows = self.text[starts.to(self.text.device) + self._window].long()
        return windows[:, :-1], windows[:, 1:]

    def state(self) -> Tensor:
        """Say where in the data this is, for a checkpoint."""
        return self.generator.get_state()

    def restore(self, state: Tensor) -> None:
        """Go on from a ``state()``."""
        self.generator.set_state(state)
