"""Host time of a call: products so small that nothing but the way to the kernel is left."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
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


@pytest.mark.parametrize("size", [8, 64, 256])
def bench_linear_step(benchmark: Any, size: int) -> None:
    """Forward and backward of a Linear with a bias, all gradients, against torch's own."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    stock = torch.nn.Linear(size, size, device=device)
    ours = xgemm_torch.nn.Linear.from_linear(stock)
    x = torch.randn(size, size, device=device, requires_grad=True)

    def step(layer: torch.nn.Module, x: torch.Tensor, g: torch.Tensor) -> None:
        torch.autograd.grad(layer(x), (x, layer.weight, layer.bias), g)

    turns.compare(
        benchmark, partial(step, ours), partial(step, stock), [(x, x.detach())], host=True
    )
    if device == "cuda":
        torch.cuda.synchronize()


def bench_gradients_of_samples(benchmark: Any) -> None:
    """``vmap(grad)`` of a Linear over 8 samples, against torch's own."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    weight = torch.randn(8, 8, device=device)
    xs = torch.randn(8, 4, 8, device=device)

    def of(linear: Callable[..., Any]) -> Callable[..., Any]:
        one = torch.func.grad(lambda w, x: linear(x, w).square().sum())
        return torch.func.vmap(one, (None, 0))

    ours, theirs = of(xgemm_torch.linear), of(torch.nn.functional.linear)
    turns.compare(benchmark, ours, theirs, [(weight, xs)], host=True)
    if device == "cuda":
        torch.cuda.synchronize()
