"""Host time of a call: products so small that nothing but the way to the kernel is left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import turns

import xgemm_torch

pytestmark = pytest.mark.benchmark(timer=turns.CLOCK)

CALLS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "ops.sgemm": (lambda a, b: torch.ops.xgemm.sgemm(a, b), torch.mm),
    "sgemm": (lambda a, b: xgemm_torch.sgemm(a, b), torch.mm),
    "mm": (lambda a, b: xgemm_torch.mm(a, b), torch.mm),
    "linear": (lambda a, b: xgemm_torch.linear(a, b), torch.nn.functional.linear),
}


@pytest.mark.parametrize("gradients", [False, True], ids=["plain", "requires-grad"])
@pytest.mark.parametrize("call", list(CALLS))
def bench_call(benchmark: Any, call: str, gradients: bool) -> None:
    """One call on 8 x 8 operands, timed on the host, against torch's own."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    operands = tuple(torch.randn(8, 8, device=device, requires_grad=gradients) for _ in range(2))
    ours, theirs = CALLS[call]
    turns.compare(benchmark, ours, theirs, [operands], host=True)
    if device == "cuda":
        torch.cuda.synchronize()
