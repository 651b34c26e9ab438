"""Products: ``auto`` and every stage against torch.mm, operands from memory and from the cache."""

from __future__ import annotations

from typing import Any

import pytest
import shapes
import torch
import turns

import xgemm_torch
from xgemm_torch.tools import timing

pytestmark = pytest.mark.benchmark(timer=turns.CLOCK)

GPU = torch.cuda.is_available()
STAGES = [stage.name for stage in xgemm_torch.stages()]
FEW = [
    shapes.Problem("square 1024 NN", 1024, 1024, 1024),
    shapes.Problem("square 4096 NN", 4096, 4096, 4096),
    shapes.Problem("square 4096 NT", 4096, 4096, 4096, "NT"),
    shapes.Problem("square 4095 TN", 4095, 4095, 4095, "TN"),
    shapes.Problem("linear 768-3072 rows 8192 forward", 8192, 3072, 768, "NT"),
    shapes.Problem("skinny 16384x128x128", 16384, 128, 128),
]
ON_CPU = [
    shapes.Problem("square 256 NN", 256, 256, 256),
    shapes.Problem("square 512 TN", 512, 512, 512, "TN"),
    shapes.Problem("linear 768-768 rows 64 forward", 64, 768, 768, "NT"),
]
CACHES = {
    "cold": "cold: operands rotate through 256 MiB, read from memory",
    "hot": "hot: the same operands every call",
}


def problems(config: pytest.Config) -> list[shapes.Problem]:
    """Choose what to measure here."""
    if not GPU:
        return ON_CPU
    return list(shapes.suite()) if config.getoption("--all-shapes") else FEW


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give the tests their problems, which depend on the command line."""
    if "problem" in metafunc.fixturenames:
        metafunc.parametrize("problem", problems(metafunc.config), ids=lambda p: p.label)


def measure(benchmark: Any, name: str, problem: shapes.Problem, cache: str) -> None:
    """Compare operator ``name`` with torch.mm on one problem and record it."""
    size, layout = (problem.m, problem.n, problem.k), problem.layout
    device = "cuda" if GPU else "cpu"
    sets = timing.operands(*size, layout, device=device, rotate=cache == "cold")
    call = timing.stage_call(name, layout)
    seconds = turns.compare(benchmark, call, timing.torch_mm(layout), sets)
    benchmark.extra_info["cache"] = CACHES[cache]
    turns.record_product(benchmark, size, layout, seconds, call(*sets[0]), *sets[0])


@pytest.mark.parametrize("cache", list(CACHES))
def bench_auto(benchmark: Any, problem: shapes.Problem, cache: str) -> None:
    """``sgemm`` with kernel="auto"."""
    measure(benchmark, "sgemm", problem, cache)


if GPU:

    @pytest.mark.parametrize("stage", STAGES)
    def bench_stage(benchmark: Any, problem: shapes.Problem, stage: str) -> None:
        """A stage of the ladder, operands from memory."""
        measure(benchmark, stage, problem, "cold")

else:

    @pytest.mark.parametrize("stage", STAGES)
    def bench_stage_on_host(benchmark: Any, stage: str) -> None:
        """A stage through the emulator: it is right; its time says nothing of its speed."""
        sets = timing.operands(40, 36, 24, "NN", device="cpu", rotate=False)
        call = timing.stage_call(stage, "NN")
        seconds = turns.compare(benchmark, call, timing.torch_mm("NN"), sets, rounds=3)
        result = call(*sets[0])
        turns.record_product(
            benchmark, (40, 36, 24), "NN", seconds, result, *sets[0], performance=False
        )
