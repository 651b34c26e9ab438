"""How much of a product could not be certified and was made anew by FP32 operations.

The tensor-core stages certify each result by its own magnitude (docs/design.md). Units of 64 rows
by 128 columns (64 in `mma_fp16x3`'s smallest tile) in which some are uncertain are made anew in a
launch behind the product; those of a tile of `mma_fp16x3` together. Of a unit of `wgmma_fp16x3` or
`wgmma_bf16x6` with up to 16 such results (4 if K > 4096, none if K < 64 or C is added) those alone
are made anew, and it does not count. Nobody counts units unless asked to.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from . import _C


class Recomputed:
    """A count of units of results that were made anew.

    Attributes:
        device: where they are counted.
    """

    def __init__(self, device: torch.device) -> None:
        """Begin at zero."""
        self.device = device
        self._words = torch.zeros(1, dtype=torch.int32, device=device)

    @property
    def units(self) -> int:
        """How many so far; waits for the device."""
        return int(self._words.item()) & 0xFFFFFFFF

    def snapshot(self) -> Tensor:
        """What the current stream has counted when it comes here, modulo 2^32; waits for nothing.

        Returns:
            An int32 tensor of shape (1,) on the device.
        """
        return self._words.clone()

    def __repr__(self) -> str:
        """Say how many, and where; waits for the device."""
        return f"{self.units} units made anew on {self.device}"


@contextlib.contextmanager
def count_recomputed(device: Any = None) -> Iterator[Recomputed]:
    """Count the units of results that are made anew on a device inside the ``with`` block.

    Products of all threads and streams count, those of a CUDA graph if it is captured inside: it
    counts whenever it is replayed, so the count must be kept for as long.

    Args:
        device: a torch.device or its name; by default the current GPU, or the CPU, where stages
            that are called by their names run through the emulator.

    Returns:
        A context manager that gives the count, a `Recomputed`, whose ``units`` can be read at any
        time.

    Example:
        >>> with xgemm_torch.count_recomputed() as count:
        ...     loss = model(batch).backward()
        >>> count.units
    """
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    place = torch.device(device)
    if place.type == "cuda" and place.index is None:
        place = torch.device("cuda", torch.cuda.current_device())
    if place.type not in ("cpu", "cuda"):
        raise ValueError(f"count_recomputed: device is {place}; cpu and cuda are supported")
    count = Recomputed(place)
    index = -1 if place.type == "cpu" else place.index
    before = _C.count_recomputed(index, _address(count._words))
    try:
        yield count
    finally:
        _C.count_recomputed(index, before)


def _address(words: Tensor) -> int:
    # Another stream may be the first to count.
    if words.is_cuda:
        torch.cuda.synchronize(words.device)
    return words.data_ptr()
