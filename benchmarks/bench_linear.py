"""Linear layers, forward and with gradients, against the same layer before ``convert``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import turns
from torch import nn

import xgemm_torch

pytestmark = pytest.mark.benchmark(timer=turns.CLOCK)

GPU = torch.cuda.is_available()
# (rows, in_features, out_features)
LAYERS = [(8192, 768, 3072), (2048, 4096, 4096), (8, 4096, 4096)] if GPU else [(256, 256, 1024)]


@pytest.mark.parametrize("gradients", [False, True], ids=["forward", "with-gradients"])
@pytest.mark.parametrize("rows, inside, outside", LAYERS)
def bench_linear(benchmark: Any, rows: int, inside: int, outside: int, gradients: bool) -> None:
    """A layer's step: the product, or the product and both its gradients."""
    device = "cuda" if GPU else "cpu"
    stock = nn.Linear(inside, outside, device=device)
    ours = xgemm_torch.nn.Linear(inside, outside, device=device)
    ours.load_state_dict(stock.state_dict())
    sets = [(torch.randn(rows, inside, device=device, requires_grad=gradients),) for _ in range(4)]
    upstream = torch.randn(rows, outside, device=device)

    def step(layer: nn.Linear) -> Any:
        def run(x: torch.Tensor) -> None:
            if gradients:
                torch.autograd.grad(layer(x), (x, *layer.parameters()), upstream)
            else:
                with torch.no_grad():
                    layer(x)

        return run

    turns.compare(benchmark, step(ours), step(stock), sets)
    x = sets[0][0].detach()
    with torch.no_grad():
        torch.testing.assert_close(ours(x), stock(x), rtol=1e-4, atol=1e-4)
    benchmark.extra_info.update(
        {"rows": rows, "in_features": inside, "out_features": outside, "gradients": gradients}
    )
