"""What the ranks of test_async_tp.py do: ``python overlapped.py`` starts two, over gloo."""

from __future__ import annotations

import contextlib
import itertools
import socket
from copy import deepcopy

import sharded
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from xgemm_torch import async_tp

NAN, RANKS = float("nan"), 2


# What torch's two schedules do, said by their docstrings, without symmetric memory: one shard after
# another, in the order of a rank's own; what a schedule does not fill in is NaN.


def consume_in_turns(shard, consumer, gathered, name, keep=True):
    group = dist.distributed_c10d._resolve_process_group(name)
    whole = torch.empty_like(gathered)
    async_tp.all_gather(whole, shard, group=group)
    assert shard.is_contiguous() and gathered.is_contiguous()
    gathered.copy_(whole)
    here, ranks = dist.get_rank(group), group.size()
    if not keep:
        gathered.chunk(ranks)[here].fill_(NAN)
    for step in range(ranks):
        rank = (here + step) % ranks
        consumer(shard if rank == here else gathered.chunk(ranks)[rank], rank)


def produce_in_turns(producer, output, name, out_chunk_dim=0):
    assert out_chunk_dim == 0
    group = dist.distributed_c10d._resolve_process_group(name)
    here, ranks = dist.get_rank(group), group.size()
    mine = torch.full_like(output, NAN)
    for step in range(1, ranks + 1):
        rank = (here + step) % ranks
        producer(rank, mine.chunk(ranks)[rank])
    everyones = [torch.empty_like(output) for _ in range(ranks)]
    dist.all_gather(everyones, mine, group=group)
    for part, of_rank in zip(output.chunk(ranks), everyones, strict=True):
        part.copy_(of_rank.chunk(ranks)[here])


@contextlib.contextmanager
def schedules():
    """Products in turns with the communication, as where there is symmetric memory."""
    kept = async_tp.OVERLAPS, async_tp._can_overlap, async_tp._pipelines
    async_tp.OVERLAPS = True
    async_tp._can_overlap = lambda x, group: True
    async_tp._pipelines = lambda: (consume_in_turns, produce_in_turns)
    try:
        yield
    finally:
        async_tp.OVERLAPS, async_tp._can_overlap, async_tp._pipelines = kept


def part(t, dim):
    return t.chunk(RANKS, dim)[dist.get_rank()]


def close(got, want):
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def one_problem(shape, dim, bias, flags) -> None:
    """Both functions against one layer on whole tensors: results and all gradients."""
    torch.manual_seed(0)
    x, weight, b = torch.randn(*shape), torch.randn(12, shape[-1]), torch.randn(12)
    grad = torch.randn(*shape[:-1], 12)
    whole = [t.clone().requires_grad_() for t in (x, weight, b)]
    want = nn.functional.linear(whole[0], whole[1], whole[2] if bias else None)
    want.backward(grad)

    # By columns: this rank's part of the input, of the weight's rows, of the result's columns.
    operands = [part(x, dim), part(weight, 0), part(b, 0)]
    leaves = [t.clone().requires_grad_() for t in operands]
    y = async_tp.all_gather_linear(
        leaves[0], leaves[1], leaves[2] if bias else None, gather_dim=dim, **flags
    )
    close(y, part(want, -1))
    y.backward(part(grad, -1))
    close(leaves[0].grad, part(whole[0].grad, dim))
    close(leaves[1].grad, part(whole[1].grad, 0))
    if bias:
        close(leaves[2].grad, part(whole[2].grad, 0))

    # By rows: this rank's columns of input and weight, its part of the result.
    leaves = [t.clone().requires_grad_() for t in (part(x, -1), part(weight, 1), b)]
    y = async_tp.linear_reduce_scatter(
        leaves[0], leaves[1], leaves[2] if bias else None, scatter_dim=dim, **flags
    )
    close(y, part(want, dim))
    y.backward(part(grad, dim))
    close(leaves[0].grad, part(whole[0].grad, -1))
    close(leaves[1].grad, part(whole[1].grad, 1))
    if bias:
        close(leaves[2].grad, whole[2].grad)


PROBLEMS = list(
    itertools.product(
        [((8, 12), 0), ((4, 3, 12), 0), ((3, 4, 12), 1), ((3, 4, 12), -2), ((2, 3, 4, 8), 2)],
        (True, False),
        ({}, {"precision": "ieee"}, {"kernel": "naive"}),
    )
)


def plain(mesh) -> int:
    """A collective and a product."""
    for (shape, dim), bias, flags in PROBLEMS:
        one_problem(shape, dim, bias, flags)
    return len(PROBLEMS)


def in_turns(mesh) -> int:
    """Parts of products in turns with parts of the communication."""
    with schedules():
        for (shape, dim), bias, flags in PROBLEMS:
            one_problem(shape, dim, bias, flags)
            one_problem(shape, dim, bias, {**flags, "overlap": False})
    return 2 * len(PROBLEMS)


def some_gradients(mesh) -> int:
    """Whichever gradients are asked for, and no others, plain and in turns."""
    checked = 0
    for turns, needs in itertools.product((False, True), itertools.product((0, 1), repeat=3)):
        for function in (async_tp.all_gather_linear, async_tp.linear_reduce_scatter):
            torch.manual_seed(0)
            operands = [torch.randn(4, 6), torch.randn(4, 6), torch.randn(4)]
            leaves = [
                t.clone().requires_grad_(bool(n)) for t, n in zip(operands, needs, strict=True)
            ]
            every = [t.clone().requires_grad_() for t in operands]
            with schedules() if turns else contextlib.nullcontext():
                y, z = function(*leaves), function(*every)
                assert y.requires_grad == any(needs)
                if any(needs):
                    y.square().sum().backward()
                z.square().sum().backward()
            for t, u, need in zip(leaves, every, needs, strict=True):
                assert (t.grad is not None) == bool(need)
                if need:
                    close(t.grad, u.grad)
            checked += 1
    return checked


def styles(mesh) -> int:
    """Layers of a model in training, stock and converted: torch's styles' results."""
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.parallel import parallelize_module

    import xgemm_torch

    x = torch.randn(3, 8, 16, generator=torch.Generator().manual_seed(2))
    stock = sharded.model()
    want = stock(x)
    want.square().sum().backward()
    ways = list(itertools.product((False, True), repeat=2))
    for converted, turns in ways:
        m = sharded.model()
        if converted:
            assert len(xgemm_torch.convert(m).swapped) == 2
        plan = {"0": async_tp.ColwiseParallel(), "2": async_tp.RowwiseParallel()}
        m = deepcopy(parallelize_module(m, mesh, plan))
        with schedules() if turns else contextlib.nullcontext():
            got = m(part(x, 1))
            close(got, part(want, 1))
            got.square().sum().backward()
        for p, q in zip(m.parameters(), stock.parameters(), strict=True):
            assert isinstance(p.grad, DTensor)
            torch.testing.assert_close(p.grad.full_tensor(), q.grad, rtol=1e-4, atol=1e-4)
    return len(ways)


def raises(kind, words, function, *args, **kwargs) -> int:
    try:
        function(*args, **kwargs)
    except kind as error:
        assert words in str(error), error
        return 1
    raise AssertionError(f"no {kind.__name__}: {words}")


def errors(mesh) -> int:
    """What does not fit is told before a rank waits for another; a group of one rank is none."""
    gather, scatter = async_tp.all_gather_linear, async_tp.linear_reduce_scatter
    x, w, b = torch.ones(4, 6), torch.ones(5, 6), torch.ones(5)
    checked = 0
    for f in (gather, scatter):
        name = f.__name__
        checked += raises(TypeError, f"{name}: x must be float32", f, x.double(), w)
        checked += raises(TypeError, f"{name}: bias must be float32", f, x, w, b.double())
        checked += raises(ValueError, f"{name}: bias must be (5,)", f, x, w, torch.ones(6))
        checked += raises(ValueError, f"{name}: x must be (..., in_features)", f, x, w.T)
        checked += raises(RuntimeError, f"{name}: no symmetric memory", f, x, w, overlap=True)
    for dim in (1, -1, 2):
        checked += raises(ValueError, f"dimension {dim} is none of x", gather, x, w, gather_dim=dim)
    checked += raises(ValueError, f"a multiple of the {RANKS} ranks", scatter, torch.ones(3, 6), w)
    needs = x.clone().requires_grad_()
    (first,) = torch.autograd.grad(gather(needs, w).square().sum(), needs, create_graph=True)
    checked += raises(RuntimeError, "once_differentiable", first.sum().backward)
    alone = [dist.new_group([rank]) for rank in range(RANKS)][dist.get_rank()]
    for f in (gather, scatter):
        y = f(x, w, b, group=alone)
        assert torch.equal(y, nn.functional.linear(x, w, b))
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(f(x.bfloat16(), w, b, group=alone), y)
        checked += 2
    from torch.distributed.tensor.parallel import parallelize_module

    for layer, words in ((nn.Embedding(4, 4), "needs a Linear"), (activated(), "an activation")):
        style = async_tp.ColwiseParallel()
        checked += raises(NotImplementedError, words, parallelize_module, layer, mesh, style)
    return checked


def activated():
    import xgemm_torch

    return xgemm_torch.nn.Linear(4, 4, activation="relu")


CHECKS = {f.__name__: f for f in (plain, in_turns, some_gradients, styles, errors)}


def all_checks(mesh) -> int:
    for name, check in CHECKS.items():
        checked = check(mesh)
        if dist.get_rank() == 0:
            print(f"{name}: {checked} checked", flush=True)
    return len(CHECKS)


def rank(number: int, port: int) -> None:
    sharded.CHECKS["all"] = all_checks
    sharded.rank(number, ["all"], RANKS, port)


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = free.getsockname()[1]
    mp.spawn(rank, (place,), nprocs=RANKS)
