"""One measured comparison under pytest-benchmark: a contender and its yardstick, turn by turn.

pytest-benchmark reads a clock before and after a call, which on a GPU would time the launch. Its
clock here is one that moves on by what a turn measured: by CUDA events on a GPU, by
``time.perf_counter`` on a CPU. So its table shows the device's time, and the yardstick's turn
between two of the contender's does not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import provenance
import torch
from torch import Tensor

from xgemm_torch.tools import timing

EMULATOR = "emulator: every access is checked, so this time is no performance"


class MeasuredClock:
    """A clock that stands still except when a measured time is added."""

    __name__ = "measured"  # pytest-benchmark prints its timer's name

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Give the measured time so far, in seconds."""
        return self.now


CLOCK = MeasuredClock()


class HostTurn:
    """A turn on the CPU: calls over rotating operands until ``seconds`` have gone by."""

    def __init__(self, call: Callable[..., Any], sets: Sequence[Any], seconds: float) -> None:
        self._call, self._sets = call, sets
        call(*sets[0])
        start = time.perf_counter()
        call(*sets[-1])
        once = max(time.perf_counter() - start, 1e-7)
        self.calls = max(1, min(1000, round(seconds / once)))

    def sample(self) -> float:
        """Time one turn; seconds a call."""
        start = time.perf_counter()
        for i in range(self.calls):
            self._call(*self._sets[i % len(self._sets)])
        return (time.perf_counter() - start) / self.calls


def compare(
    benchmark: Any, contender: Callable[..., Any], yardstick: Callable[..., Any],
    sets: Sequence[Any], *, host: bool = False, rounds: int = 7, sample_ms: float = 5.0,
) -> tuple[float, float]:  # fmt: skip
    """Measure both in turns; the medians in seconds a call, contender first.

    ``sets`` are argument tuples to rotate through; ``host`` times the host also where a GPU is.
    """
    gpu = torch.cuda.is_available() and not host
    make = timing.Turn if gpu else HostTurn
    unit = sample_ms if gpu else sample_ms / 1e3
    ours, theirs = make(contender, sets, unit), make(yardstick, sets, unit)
    mine: list[float] = []
    other: list[float] = []

    def turn() -> None:
        other.append(theirs.sample())
        mine.append(ours.sample())
        CLOCK.now += mine[-1]

    with timing.Clocks() as clocks:
        benchmark.pedantic(turn, rounds=rounds, warmup_rounds=1)
    if len(mine) > 1:  # the warm-up round came first; --benchmark-disable makes one round in all
        del mine[0], other[0]
    benchmark.extra_info.update(provenance.facts())
    benchmark.extra_info.update(
        {
            "timer": "CUDA events" if gpu else "time.perf_counter",
            "ratio": median(other) / median(mine),
            "clocks": clocks.summary(),
        }
    )
    return median(mine), median(other)


def record_product(
    benchmark: Any, size: tuple[int, int, int], layout: str, seconds: tuple[float, float],
    result: Tensor, a: Tensor, b: Tensor, *, performance: bool = True,
) -> None:  # fmt: skip
    """Add speed and error of a product to the benchmark's extra_info; fail where it is wrong.

    Without ``performance`` (the emulator) no speed is recorded, for there is none.
    """
    error = timing.float64_error(result, a, b, layout)
    benchmark.extra_info.update(
        {
            "m": size[0], "n": size[1], "k": size[2], "layout": layout, **error,
        }
    )  # fmt: skip
    if performance:
        benchmark.extra_info["tflops"] = timing.tflops(*size, seconds[0])
        benchmark.extra_info["torch_mm_tflops"] = timing.tflops(*size, seconds[1])
    else:
        benchmark.extra_info["note"] = EMULATOR
        del benchmark.extra_info["ratio"]
    assert error["error_u"] <= error["allowed_u"]
