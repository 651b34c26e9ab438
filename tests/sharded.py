"""What the ranks of test_sharding.py do: ``python sharded.py CHECKS RANKS`` starts them."""

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

    ranks, stock, x = mesh.size(), model(), torch.randn(4, 6, 16)
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
            size = x.shape[dim] // ranks
            part = (slice(None),) * dim + (
                slice(dist.get_rank() * size, size * dist.get_rank() + size),
            )
        got = m(x.chunk(ranks, -1)[dist.get_rank()] if shard is rows_then_columns else x[part])
        if shard is rows_then_columns:
            expected = want.chunk(ranks, -1)[dist.get_rank()]
        else:
            expected = want[part]
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
        got.square().sum().backward()
        for p, q in zip(m.parameters(), stock.parameters(), strict=True):
            assert isinstance(p.grad, DTensor)
            mean = ranks if shard is shards else 1  # of ranks' losses, not their sum
            torch.testing.assert_close(p.grad.full_tensor() * mean, q.grad, rtol=1e-4, atol=1e-4)
    return len(ways)


def trained(m: nn.Module, inputs: list[torch.Tensor], whole) -> list[torch.Tensor]:
    """Outputs, gradients and weights of a step for each of the inputs, as one machine has them."""
    found = []
    optimizer = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)
    for x in inputs:
        x = x.requires_grad_()
        optimizer.zero_grad()
        out = m(x)
        out.square().mean().backward()
        optimizer.step()
        found += [out.detach(), x.grad, *(p.grad for p in m.parameters())]
        found += [p.detach().clone() for p in m.parameters()]
        x.grad = None
    return [whole(t) for t in found]


def same_bits_at_any_degree(mesh) -> int:
    """Three steps of layers with invariant="tp", sharded by torch's own styles, and on one rank."""
    from problems import same_bits
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    import xgemm_torch

    ranks = mesh.size()

    def converted() -> nn.Module:
        torch.manual_seed(1)
        # Sizes of which torch's GELU on a CPU makes all elements by the same code.
        m = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))
        assert len(xgemm_torch.convert(m, precision="ieee", invariant="tp").swapped) == 2
        return m

    def inputs() -> list[torch.Tensor]:
        torch.manual_seed(2)
        return [torch.randn(4, 8, 64) for _ in range(3)]

    plans = {
        "columns, then rows": {"0": ColwiseParallel(), "2": RowwiseParallel()},
        "rows, then columns": {
            "0": RowwiseParallel(input_layouts=Replicate()),
            "2": ColwiseParallel(output_layouts=Replicate()),
        },
        "sequences": {
            "0": ColwiseParallel(input_layouts=Shard(1)),
            "2": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
        },
    }
    want, checked = trained(converted(), inputs(), lambda t: t), 0
    assert len(want) == 3 * 10 and all(t.isfinite().all() for t in want)
    for name, plan in plans.items():
        m = parallelize_module(converted(), mesh, plan)
        given = inputs()
        if name == "sequences":
            given = [distribute_tensor(x, mesh, [Shard(1)]) for x in given]
        assert isinstance(m[0].weight, DTensor) and not m[0].weight.placements[0].is_replicate()
        got = trained(m, given, lambda t: t.full_tensor() if isinstance(t, DTensor) else t)
        for x, y in zip(got, want, strict=True):
            assert same_bits(x, y)
            checked += 1
    # What exchanges no partial results gathers what is sharded along K: the same bits.
    m = converted()
    m[0].activation = m[2].activation = "relu"
    m[0].bias = m[2].bias = None
    x = inputs()[0]
    whole = m(x)
    m[2].activation = "none"
    open_ended = m(x)
    m[2].activation = "relu"
    assert same_bits(whole, parallelize_module(m, mesh, plans["columns, then rows"])(x))
    m[2].activation = "none"
    assert same_bits(open_ended, m(x))
    a, b = torch.randn(4, 8 * ranks), torch.randn(8 * ranks, 4)
    shards = (distribute_tensor(t, mesh, [Shard(dim)]) for t, dim in ((a, 1), (b, 0)))
    options = {"precision": "ieee", "invariant": "tp"}
    got = xgemm_torch.sgemm(*shards, **options)
    assert same_bits(got.full_tensor(), xgemm_torch.sgemm(a, b, **options))
    # The other rows' number does not matter either.
    few, many = converted(), parallelize_module(converted(), mesh, plans["columns, then rows"])
    assert same_bits(few(x[1, :1]), many(x)[1, :1])
    return checked


def same_bits_of_shards(mesh) -> int:
    """The functions of plain shards: results, first and second derivatives, compiled, in pieces."""
    from problems import same_bits

    import xgemm_torch
    from xgemm_torch import tensor_parallel

    ranks, at, checked = mesh.size(), dist.get_rank(), 0
    # An exchange of pieces, of which the last is shorter, and one of all at once.
    for size in (2**14 + 3, 5):
        torch.manual_seed(4)
        terms = list(torch.randn(ranks, size))
        got = tensor_parallel._sum_of_ranks(terms[at], None)
        while len(terms) > 1:
            terms = [x + y for x, y in zip(terms[::2], terms[1::2], strict=True)]
        assert same_bits(got, terms[0])
    columns, rows = (
        tensor_parallel.column_parallel_linear,
        tensor_parallel.row_parallel_linear,
    )
    # Chains of parts of 5632 are of 352; of 72 rows of 264 columns all ranks make a piece each.
    for leading, inner, outer in (((2, 3), 48, 16), ((5,), 5632, 8), ((72,), 24, 264)):
        torch.manual_seed(3)
        x, weight, bias = (torch.randn(*leading, inner), torch.randn(outer, inner),
                           torch.randn(outer))  # fmt: skip
        dy, ddx = torch.randn(*leading, outer), torch.randn(*leading, inner)

        def derived(layer, *operands, dy, ddx):
            operands = [t.clone().requires_grad_() for t in operands]
            dy = dy.clone().requires_grad_()
            y = layer(*operands)
            first = torch.autograd.grad(y, operands, dy, create_graph=True)
            second = torch.autograd.grad(first[0], (operands[1], dy), ddx)
            return [y.detach(), *(t.detach() for t in first), *second]

        def stock(x, weight, bias):
            return xgemm_torch.linear(x, weight, bias, precision="ieee", invariant="tp")

        def mine(t, dim):
            return t.chunk(ranks, dim)[at].contiguous()

        want = derived(stock, x, weight, bias, dy=dy, ddx=ddx)
        of_columns = [mine(want[0], -1), want[1], *(mine(t, 0) for t in (*want[2:4], want[4])),
                      mine(want[5], -1)]  # fmt: skip
        of_rows = [want[0], mine(want[1], -1), mine(want[2], -1), want[3], mine(want[4], -1),
                   want[5]]  # fmt: skip
        ways = [columns, rows]
        if inner == 48 and ranks == 2:
            ways += [torch.compile(way, backend="aot_eager", fullgraph=True) for way in ways]
        for i, way in enumerate(ways):
            compiled = i > 1
            if i % 2 == 0:
                operands, expected = (x, mine(weight, 0), mine(bias, 0)), of_columns
                given = {"dy": mine(dy, -1), "ddx": ddx}
            else:
                operands, expected = (mine(x, -1), mine(weight, -1), bias), of_rows
                given = {"dy": dy, "ddx": mine(ddx, -1)}
            if compiled:  # which torch differentiates once
                operands = [t.clone().requires_grad_() for t in operands]
                y = way(*operands)
                got = [y.detach(), *torch.autograd.grad(y, operands, given["dy"])]
                expected = expected[: len(got)]
            else:
                got = derived(way, *operands, **given)
            for p, q in zip(got, expected, strict=True):
                assert same_bits(p, q)
                checked += 1
    return checked


CHECKS = {
    f.__name__: f for f in (placements, training, same_bits_at_any_degree, same_bits_of_shards)
}


def rank(number: int, checks: list[str], ranks: int, port: int) -> None:
    from torch.distributed.tensor import init_device_mesh

    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=number, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks,))
    for check in checks:
        checked = CHECKS[check](mesh)
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
    ranks = int(sys.argv[2])
    mp.spawn(rank, (sys.argv[1].split(","), ranks, place), nprocs=ranks)
