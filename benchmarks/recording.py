"""What the programs that measure into a record, or show one, have in common.

``--json FILE`` measures and writes, ``--show FILE`` shows what is there; a record is begun only
where torch.mm is an FP32 yardstick. ``finished`` in a record says that all of it is there:
suites.py takes no other.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from xgemm_torch.tools import environment


def parser(text: str | None) -> argparse.ArgumentParser:
    """Make a parser that demands one of ``--json`` and ``--show``; ``text`` is a docstring."""
    made = argparse.ArgumentParser(description=(text or "").partition("\n")[0])
    where = made.add_mutually_exclusive_group(required=True)
    where.add_argument("--json", type=Path, metavar="JSON", help="measure into this record")
    where.add_argument("--show", type=Path, metavar="JSON", help="show this record")
    return made


def require_yardstick(who: str, *, gpu: bool = True) -> None:
    """SystemExit where ``who`` cannot measure: without a GPU, or where torch.mm is not FP32's.

    Args:
        who: the program, for the message.
        gpu: whether it needs a GPU.
    """
    if gpu and not torch.cuda.is_available():
        raise SystemExit(f"{who}: measuring needs a GPU")
    if (reason := environment.strict_reference()) is not None:
        raise SystemExit(f"{who}: torch.mm is not the FP32 yardstick here: {reason}")


@contextmanager
def tf32(on: bool) -> Iterator[None]:
    """Let torch's products be TF32's, and put back what was."""
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32" if on else before
    try:
        yield
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
