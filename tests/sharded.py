"""What the ranks of test_sharding.py do: ``python sharded.py CHECK`` starts two, over gloo."""

from __future__ import annotations

import itertools
import os
import socket
import sys
from copy import deepcopy

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

RANKS = 2


def placements(mesh) -> int:
    """Every placement of a, b and c, with flags that allow partial sums and that do not."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    import xgemm_torch

    torch.manual_seed(0)
    problems = {
        "NN": ((8, 12), (12, 4), {}),
        "TT": ((12, 8), (4, 12), {"trans_a": True, "trans_b": True}),
        "batch": ((2, 8, 12), (2, 12, 4), {}),
        "shared": ((2, 8, 12), (4, 12), {"trans_b": True}),
    }
    ways = ({}, {"activation": "relu"}, {"precision": "ieee"}, {"alpha": 2.0, "beta": 0.5})
    checked = 0
    for (size_a, size_b, turned), flags in itertools.product(problems.values(), ways):
        a, b = torch.randn(size_a), torch.randn(size_b)
        rank = max(a.dim(), b.dim())
        for c in (None, torch.randn(4), torch.randn(8, 1), torch.randn((2, 8, 4)[3 - rank :])):
            if c is None and "beta" in flags:
                continue
            want = xgemm_torch.sgemm(a, b, c, **turned, **flags)
            for at in itertools.product(*map(places, (a, b) if c is None else (a, b, c))):
                shards = [Replicate() if dim is None else Shard(dim) for dim in at]
                operands = [
                    distribute_tensor(t, mesh, [shard])
                    for t, shard in zip((a, b, c), shards, strict=False)
                ]
                got = torch.ops.xgemm.sgemm(*operands, **turned, **flags)
                torch.testing.assert_close(got.full_tensor(), want, rtol=1e-5, atol=1e-5)
                checked += 1
                if at == (1, 0) and not turned and rank == 2:  # along K, without c
                    linear = "activation" not in flags and "precision" not in flags
                    assert got.placements[0].is_partial() == linear
    return checked


def places(t):
    """The dimensions along which a tensor may be sharded, and None."""
    return [None, *(dim for dim in range(t.dim()) if t.shape[dim] > 1)]


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))


def training(mesh) -> int:
    """Outputs and gradients of a converted model, by tensor parallelism and by others."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    import xgemm_torch

    stock, x = model(), torch.randn(4, 6, 16)
    want = stock(x)
    want.square().sum().backward()

    def columns_then_rows(m):
        parallelize_module(m, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})

    def sequences(m):
        plan = {
            "0": ColwiseParallel(input_layouts=Shard(1)),
            "2": RowwiseParallel(output_layouts=Shard(1)),
        }
        parallelize_module(m, mesh, plan)

    def rows_then_columns(m):
        plan = {"0": RowwiseParallel(), "2": ColwiseParallel(output_layouts=Shard(-1))}
        parallelize_module(m, mesh, plan)

    def shards(m):
        fully_shard(m)

    ways = {columns_then_rows: None, sequences: 1, rows_then_columns: None, shards: 0}
    for shard, dim in ways.items():
        m = deepcopy(model())
        assert len(xgemm_torch.convert(m).swapped) == 2
        shard(m)
        part = slice(None)
        if dim is not None:
            size = x.shape[dim] // RANKS
            part = (slice(None),) * dim + (
                slice(dist.get_rank() * size, size * dist.get_rank() + size),
            )
        got = m(x.chunk(RANKS, -1)[dist.get_rank()] if shard is rows_then_columns else x[part])
        if shard is rows_then_columns:
            expected = want.chunk(RANKS, -1)[dist.get_rank()]
        else:
            expected = want[part]
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
        got.square().sum().backward()
        for p, q in zip(m.parameters(), stock.parameters(), strict=True):
            assert isinstance(p.grad, DTensor)
            mean = RANKS if shard is shards else 1  # of ranks' losses, not their sum
            torch.testing.assert_close(p.grad.full_tensor() * mean, q.grad, rtol=1e-4, atol=1e-4)
    return len(ways)


CHECKS = {f.__name__: f for f in (placements, training)}


def rank(number: int, check: str, port: int) -> None:
    from torch.distributed.tensor import init_device_mesh

    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=number, world_size=RANKS)
    checked = CHECKS[check](init_device_mesh("cpu", (RANKS,)))
    if number == 0:
        print(f"{check}: {checked} checked")
    dist.barrier()
    dist.destroy_process_group()
    # What is left is the process's end, in which a thread of gloo's that nobody joins may abort it.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = free.getsockname()[1]
    mp.spawn(rank, (sys.argv[1], place), nprocs=RANKS)
