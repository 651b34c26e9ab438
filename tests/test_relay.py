"""Tiles that make no whole rounds are shared out along K among all clusters (relay.h).

The host flavour stands for GPUs of few multiprocessors, so that small problems are shared out.
"""

from __future__ import annotations

import pytest
import torch
from problems import normal, operands, right, same_bits
from test_stages import run

import xgemm_torch
from xgemm_torch import _C, accuracy, simt

# Those of wgmma_gemm.h, whose grids are persistent.
STAGES = {
    s.name: s for s in xgemm_torch.stages() if not s.strict and any(t.producers for t in s.tiles)
}
ROWS = [(name, row) for name, stage in STAGES.items() for row in range(len(stage.tiles))]
# (M, N, K): a tile or two for three clusters; tiles for whole rounds and a part of one.
SHAPES = [(70, 40, 1100), (33, 200, 700), (400, 130, 900)]

on_every_row = pytest.mark.parametrize("stage, row", ROWS)


def few(stage: str, row: int) -> int:
    """Multiprocessors for three clusters."""
    return 3 * STAGES[stage].tiles[row].cluster


def shared_out() -> bool:
    """Whether some block has left sums for another since the sites were forgotten."""
    return any(site.startswith("wgmma_gemm.h:") for site in simt.sites("signal"))


@on_every_row
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shares_add_up(stage, row, shape):
    """Against float64, in every order of threads and clusters, with the same bits each time."""
    a, b, _ = operands(*shape)
    _C.simt_forget_sites()
    results = []
    for order in simt.ORDERS:
        with simt.configure(row=row, sm_count=few(stage, row), order=order):
            results.append(run(stage, a, b))
    assert shared_out()
    assert right(stage, results[0], a, b)
    assert all(same_bits(results[0], other) for other in results[1:])


@on_every_row
def test_the_promise_holds_of_shares(stage, row):
    m, n, k = STAGES[stage].tiles[row].BM, STAGES[stage].tiles[row].BN, 1500
    for name in ("normal", "relu", "scaled"):
        a, b = accuracy.DISTRIBUTIONS[name].make(accuracy.Draw("cpu", 3), m, n, k)
        with simt.configure(row=row, sm_count=few(stage, row)):
            found = accuracy.Exact(a, b).errors(run(stage, a, b))
        measure = accuracy.Exact(a, b).errors(accuracy.chain(a, b))
        positive = accuracy.DISTRIBUTIONS[name].positive
        assert accuracy.broken(found, measure, k, positive, 1.05) == {}


@on_every_row
@pytest.mark.parametrize("batch", [(4, 4), (4, None), (None, 4)], ids=str)
def test_batches_are_shared_out(stage, row, batch):
    a, b, _ = operands(66, 140, 600, batch=batch)
    _C.simt_forget_sites()
    with simt.configure(row=row, sm_count=few(stage, row)):
        got = run(stage, a, b)
    assert shared_out()
    left, above = a.expand(4, 66, 600), b.expand(4, 600, 140)
    assert all(right(stage, got[z], left[z], above[z]) for z in range(4))


@on_every_row
def test_the_owner_has_the_epilogue(stage, row):
    a, b, _ = operands(70, 40, 1100)
    c = normal(70, 40)
    alpha, beta = torch.tensor(1.7), torch.tensor(-0.3)
    with simt.configure(row=row, sm_count=few(stage, row)):
        product = run(stage, a, b)
        got = run(stage, a, b, c, alpha=alpha.item(), beta=beta.item())
        assert same_bits(got, (alpha.double() * product.double() + (beta * c).double()).float())
        got = run(stage, a, b, alpha=-2.0, activation="relu")
        assert same_bits(got, torch.relu(-2.0 * product))


@on_every_row
def test_wide_operands_are_shared_out(stage, row):
    """What parts cannot give is left to a chain by whoever stores a tile; or, where the verdict on
    the whole picks three parts, that product is shared out, too."""
    a, b, _ = operands(70, 40, 1100, data="wide")
    with simt.configure(row=row, sm_count=few(stage, row)):
        assert right(stage, run(stage, a, b), a, b)


@on_every_row
def test_shallow_products_are_left_whole(stage, row):
    """A share of a few slices would save less than it takes to hand sums over."""
    a, b, _ = operands(300, 70, 128)
    _C.simt_forget_sites()
    with simt.configure(row=row, sm_count=few(stage, row)):
        got = run(stage, a, b)
    assert not shared_out()
    with simt.configure(row=row):
        assert same_bits(got, run(stage, a, b))
