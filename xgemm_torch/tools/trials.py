"""Rows on trial: whether their bits are right, and what time they take beside torch.mm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor

from .. import ops, simt
from ..registry import split_k_size
from . import accuracy, timing
from .contenders import Problem, Row, kind

TORCH_MM = "torch.mm"
# Of a result that the CPU computes again; of a batch's first and last.
CHAIN_ROWS = 4
# What a row that is no chain may be off, over the largest error of the chain.
COARSER = 1.5


class Fault(NamedTuple):
    """What is wrong with a row's result: the row's key, and the whole in words."""

    key: str
    text: str


def stage_call(row: Row, layout: str) -> timing.Call:
    """A row's operator for operands stored in ``layout``."""
    call = timing.stage_call(row.stage, layout)

    def forced(a: Tensor, b: Tensor) -> Tensor:
        with simt.configure(row=row.row):
            return call(a, b)

    return forced


def check(p: Problem, rows: Sequence[Row], device: str = "cuda") -> list[Fault]:
    """Compare the rows' bits with each other and, on a few rows of the result, with the CPU's.

    Strict rows have the bits of the chain, or chains, there. The errors of the others, against
    float64, are held to the chain's.
    """
    trans_a, trans_b = timing.LAYOUTS[p.layout]
    a, b = timing.operands(
        p.m, p.n, p.k, p.layout, batch=p.batch, device=device, rotate=False
    )[0]  # fmt: skip
    sampled = torch.linspace(0, p.m - 1, min(CHAIN_ROWS, p.m)).round().long().to(device)

    def picked(t: Tensor, dim: int | None = None) -> Tensor:
        t = t if p.batch == 1 else t[[0, -1]]
        return (t if dim is None else t.index_select(dim, sampled)).cpu()

    some, whole = picked(a, -1 if trans_a else -2), picked(b)
    chains, first = {}, {}
    for name, share in (("chain", 0), ("chains", split_k_size(p.m, p.n, p.k, p.batch))):
        with simt.configure(split_k_size=share):
            chains[name] = ops.sgemm(
                some, whole, trans_a=trans_a, trans_b=trans_b, precision="ieee"
            )
    wide_a = some.double().mT if trans_a else some.double()
    wide_b = whole.double().mT if trans_b else whole.double()
    exact, size = wide_a @ wide_b, wide_a.abs() @ wide_b.abs()

    def error_of(c: Tensor) -> float:
        return float(((c.double() - exact).abs() / size).max())

    faults = []

    def expect(good: bool, row: Row, what: str) -> None:
        if not good:
            faults.append(Fault(row.key, f"{p.label}: {row.key} {what}"))

    for row in rows:
        # The allocator gives this block to the result: what is left unwritten is then NaN.
        torch.full((p.batch, p.m, p.n), float("nan"), device=device)
        result = stage_call(row, p.layout)(a, b)
        here = picked(result, -2)
        if not row.strict:
            # Of a few elements the chain's may all be lucky: a unit is nobody's loss.
            well = error_of(here) <= max(COARSER * error_of(chains["chain"]), accuracy.U)
            expect(well, row, "is less accurate than the CPU's chain")
            continue
        its = kind(row)
        expect(torch.equal(here, chains[its]), row, f"has not the bits of the CPU's {its}")
        of_first, name = first.setdefault(its, (result, row.key))
        expect(torch.equal(result, of_first), row, f"has not the bits of {name}")
    return faults


def microseconds(
    p: Problem, rows: Sequence[Row], *, rounds: int = 5, turn: Callable[[], None] | None = None
) -> dict[str, float]:
    """Time rows and torch.mm on the current GPU in turns: medians by row key, and by `TORCH_MM`.

    Operands are random normal and rotate through memory; heating the chip is left to the caller.
    ``turn`` is called after each of the ``rounds`` turns of each contender.
    """
    contenders = {TORCH_MM: timing.torch_mm(p.layout)}
    contenders |= {row.key: stage_call(row, p.layout) for row in rows}
    sets = timing.operands(p.m, p.n, p.k, p.layout, batch=p.batch, seed=1)
    after = None if turn is None else lambda *_: turn()
    samples = timing.interleaved(contenders, sets, rounds=rounds, sample_ms=2.0, after=after)
    del sets
    torch.cuda.empty_cache()
    return {name: 1e6 * median(times) for name, times in samples.items()}
