"""Controls of the host SIMT flavour, in which a stage's CUDA source runs on the CPU.

It runs a stage's threads in an order of its own choosing and reports races, divergent barriers,
deadlocks, and accesses that are out of bounds or misaligned, as a RuntimeError with file and line.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

from . import _C

ORDERS = ("forward", "reverse", "random")


@contextlib.contextmanager
def configure(
    *,
    order: str | None = None,
    seed: int | None = None,
    skip_barrier: str | None = None,
    row: int | None = None,
) -> Iterator[dict[str, Any]]:
    """Change how the host flavour runs, until the end of the ``with`` block.

    The settings are the process's, not the thread's. What is left out stays as it is.

    Args:
        order: "forward", "reverse" or "random": the order in which threads and blocks run.
        seed: of the random order.
        skip_barrier: "file.cu:LINE", a barrier to leave out, to see that its absence is noticed;
            "" for none.
        row: of the tile table of a stage that is called by its name, on a GPU as well; -1 to have
            it chosen. A stage without such a row raises ValueError then.

    Yields:
        The settings in force inside the block.

    Raises:
        ValueError: an unknown order.
    """
    if order is not None and order not in ORDERS:
        raise ValueError(f"simt: no order named '{order}'; there are: {', '.join(ORDERS)}")
    changes = {"order": order, "seed": seed, "skip_barrier": skip_barrier, "row": row}
    settings = _settings()
    now = settings | {key: value for key, value in changes.items() if value is not None}
    _set(now)
    try:
        yield now
    finally:
        _set(settings)


def barriers() -> list[str]:
    """The barriers that stages have come to so far in this process, as "file.cu:LINE"."""
    return list(json.loads(_C.simt_barriers()))


def _set(settings: dict[str, Any]) -> dict[str, Any]:
    """Write all settings and return those before."""
    return json.loads(
        _C.simt_configure(
            settings["order"], settings["seed"], settings["skip_barrier"], settings["row"]
        )
    )


def _settings() -> dict[str, Any]:
    """The settings in force: what a write returns, written back at once."""
    before = _set({"order": "random", "seed": 0, "skip_barrier": "", "row": -1})
    _set(before)
    return before
