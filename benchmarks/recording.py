"""What the programs that measure into a record, or show one, have in common.

``--json FILE`` measures and writes, ``--show FILE`` shows what is there; a record is begun only
where torch.mm is an FP32 yardstick. ``finished`` in a record says that all of it is there:
suites.py takes no other.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import provenance
import records
import torch

from xgemm_torch.tools import environment, timing


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


def in_turns(
    calls: Mapping[str, Callable[[], Any]], rounds: int, warm_up: int = 1
) -> dict[str, float]:
    """Median ms of a call that finds the GPU idle, the host's part included; ways take turns."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(warm_up + rounds):
        for name, call in calls.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            start.record()
            call()
            end.record()
            end.synchronize()
            if turn >= warm_up:
                samples[name].append(start.elapsed_time(end))
    return {name: median(times) for name, times in samples.items()}


def run(
    text: str | None, who: str, key: str, cases: Callable[[], Iterable[Any]], seed: int,
    table: Callable[[dict[str, Any]], str], arguments: Sequence[str] | None,
) -> int:  # fmt: skip
    """Measure all cases of a program that has no other options, or show what is there.

    Args:
        text: the program's docstring.
        who: its name.
        key: under which a record has the cases.
        cases: measures them, one after another.
        seed: of what is measured.
        table: a record as text.
        arguments: of the command line.
    """
    options = parser(text).parse_args(arguments)
    if options.json:
        require_yardstick(who)
        began = time.monotonic()
        record: dict[str, Any] = {"facts": provenance.facts(), "seed": seed}
        with timing.Clocks() as clocks:
            timing.heat(1.0)
            clocks.mark()
            record[key] = []
            for case in cases():
                record[key].append(case)
                torch.cuda.empty_cache()
            record["clocks"] = clocks.summary()
        record |= {"seconds": time.monotonic() - began, "finished": True}
        records.write(options.json, record)
    else:
        record = records.read(options.show)
    print(table(record))
    return 0


@contextmanager
def tf32(on: bool) -> Iterator[None]:
    """Let torch's products be TF32's, and put back what was."""
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32" if on else before
    try:
        yield
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
