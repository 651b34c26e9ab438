"""DTensors: products of sharded operands, and layers by tensor parallelism, on 2 and 4 ranks."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import sharded
import torch
import torch.distributed as dist

import xgemm_torch

SAME_BITS = "same_bits_at_any_degree,same_bits_of_shards"


@pytest.mark.parametrize(
    "checks, ranks", [("placements", 2), ("training", 2), (SAME_BITS, 2), (SAME_BITS, 4)]
)
def test_ranks(checks, ranks):
    script = Path(__file__).with_name("sharded.py")
    done = subprocess.run(
        [sys.executable, str(script), checks, str(ranks)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    for check in checks.split(","):
        found = re.search(rf"{check}: (\d+) checked", done.stdout)
        assert found and int(found[1]) > 3


def test_every_check_is_run():
    mark = next(m for m in test_ranks.pytestmark if m.name == "parametrize")
    assert {c for checks, _ in mark.args[1] for c in checks.split(",")} == set(sharded.CHECKS)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("how", [{}, {"precision": "ieee", "invariant": "tp"}], ids=str)
def test_all_ranks_in_one_process(ranks, how):
    """Torch's LocalTensorMode: what a rank does is done to the shards of all of them."""
    from torch.distributed._local_tensor import LocalTensorMode
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )
    from torch.testing._internal.distributed.fake_pg import FakeStore

    def converted() -> torch.nn.Module:
        torch.manual_seed(1)
        layers = torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8)
        model = torch.nn.Sequential(*layers)
        xgemm_torch.convert(model, **how)
        return model

    x, whole, model = torch.randn(6, 16), converted(), converted()
    out = whole(x)
    out.square().sum().backward()
    want = [out.detach(), *(p.grad for p in whole.parameters())]
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        with LocalTensorMode(ranks):
            mesh = dist.init_device_mesh("cpu", (ranks,))
            parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
            out = model(x)
            out.square().sum().backward()
            found = [out.detach(), *(p.grad.full_tensor() for p in model.parameters())]
            found = [(t.wait() if hasattr(t, "wait") else t).reconcile() for t in found]
    finally:
        dist.destroy_process_group()
    for got, exact in zip(found, want, strict=True):
        if how:
            assert torch.equal(got, exact)
        else:
            torch.testing.assert_close(got, exact)


def test_dtensor_is_not_imported_with_the_package():
    code = "import sys, xgemm_torch; print('torch.distributed.tensor' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr
