"""Tiles that make no whole wave are cut along K among all clusters (stream_k.h).

The emulator stands for GPUs of few multiprocessors, so that small problems are cut along K.
First those whose sums are added up; then strict ones, where a chain goes on in another block.
"""

from __future__ import annotations

import pytest
import torch
from problems import LAYOUTS, normal, operands, right, same_bits
from test_stages import run

import xgemm_torch
from xgemm_torch import _C, simt
from xgemm_torch.tools import accuracy

# Those of emulated_wgmma.h, whose grids are persistent.
STAGES = {
    s.name: s for s in xgemm_torch.stages() if not s.strict and any(t.by_tma for t in s.tiles)
}
ROWS = [(name, row) for name, stage in STAGES.items() for row in range(len(stage.tiles))]
# (M, N, K): a tile or two for three clusters; tiles for whole waves and a part of one.
SHAPES = [(70, 40, 1600), (33, 200, 1600), (400, 100, 1600)]

on_every_row = pytest.mark.parametrize("stage, row", ROWS)


def few(stage: str, row: int) -> int:
    """Multiprocessors for three clusters."""
    return 3 * STAGES[stage].tiles[row].cluster


def shared_out(header: str = "emulated_wgmma.h") -> bool:
    """Whether some block has left sums for another since the sites were forgotten."""
    return any(site.startswith(f"{header}:") for site in simt.sites("signal"))


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
def test_the_contract_holds_of_shares(stage, row):
    m, n, k = STAGES[stage].tiles[row].BM, STAGES[stage].tiles[row].BN, 1500
    for name in ("normal", "relu", "scaled"):
        a, b = accuracy.DISTRIBUTIONS[name].make(accuracy.Draw("cpu", 3), m, n, k)
        with simt.configure(row=row, sm_count=few(stage, row)):
            found = accuracy.Exact(a, b).errors(run(stage, a, b))
        measure = accuracy.Exact(a, b).errors(accuracy.chain(a, b))
        assert accuracy.broken(found, measure, 1.05) == {}


@on_every_row
@pytest.mark.parametrize("batch", [(4, 4), (4, None), (None, 4)], ids=str)
def test_batches_are_shared_out(stage, row, batch):
    a, b, _ = operands(60, 100, 800, batch=batch)
    _C.simt_forget_sites()
    with simt.configure(row=row, sm_count=few(stage, row)):
        got = run(stage, a, b)
    assert shared_out()
    left, above = a.expand(4, 60, 800), b.expand(4, 800, 100)
    assert all(right(stage, got[z], left[z], above[z]) for z in range(4))


@on_every_row
def test_the_owner_has_the_epilogue(stage, row):
    a, b, _ = operands(70, 40, 1600)
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
    the whole picks three parts, that product is cut along K, too."""
    a, b, _ = operands(70, 40, 1600, data="wide")
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


@on_every_row
def test_nearly_whole_waves_are_left_whole(stage, row):
    """Two tiles for three clusters: cut, each of them would read slices of its own."""
    a, b, _ = operands(60, 200, 700)
    _C.simt_forget_sites()
    with simt.configure(row=row, sm_count=few(stage, row)):
        got = run(stage, a, b)
    assert not shared_out()
    assert right(stage, got, a, b)


# --- chains that go on ----------------------------------------------------------------------------

CHAINS = {
    s.name: s
    for s in xgemm_torch.stages()
    if s.strict and not s.split_k and any(t.producers for t in s.tiles)
}
FEW = 3  # multiprocessors
DEEP = 620  # K that stream-K is worth, for all rows

on_every_chain = pytest.mark.parametrize(
    "stage, row", [(name, row) for name, stage in CHAINS.items() for row in range(len(stage.tiles))]
)


def size(stage: str, row: int, more: int, k: int = DEEP) -> tuple[int, int, int]:
    """M, N, K, partial tiles, of as many as run at a time and `more`, or one more than that."""
    tile = CHAINS[stage].tiles[row]
    columns = -(-(FEW * tile.min_blocks + more) // 2)
    return tile.BM + 5, columns * tile.BN - 3, k


def chain(a: torch.Tensor, b: torch.Tensor, layout: str = "NN") -> torch.Tensor:
    """One chain an element, of operands that are stored so."""
    return accuracy.chain(
        *(t.mT if way == "T" else t for t, way in zip((a, b), layout, strict=True))
    )


@on_every_chain
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("order", simt.ORDERS)
def test_a_chain_goes_on(stage, row, layout, order):
    a, b, flags = operands(*size(stage, row, 1), layout, data="wide")
    _C.simt_forget_sites()
    with simt.configure(row=row, sm_count=FEW, order=order):
        got = run(stage, a, b, **flags)
    assert shared_out("stream_k_fixup.h")
    assert same_bits(got, chain(a, b, layout))


@on_every_chain
@pytest.mark.parametrize("view", ["offset", "padded", "spaced"])
@pytest.mark.parametrize("layout", ["NN", "TN", "NT"])
def test_a_chain_goes_on_in_any_view(stage, row, layout, view):
    """Each way to fetch a slice begins at the slice where a tile is cut."""
    a, b, flags = operands(*size(stage, row, 1), layout, data="wide", views=(view, view))
    with simt.configure(row=row, sm_count=FEW):
        assert same_bits(run(stage, a, b, **flags), chain(a, b, layout))


@on_every_chain
@pytest.mark.parametrize("more", range(1, 5))
def test_rounds_before_the_last_two(stage, row, more):
    """Tiles for one or two whole waves and a part of one; none is left for the last of these."""
    blocks = FEW * CHAINS[stage].tiles[row].min_blocks
    a, b, _ = operands(*size(stage, row, blocks * (more % 2) + more))
    with simt.configure(row=row, sm_count=FEW):
        assert same_bits(run(stage, a, b), chain(a, b))


@on_every_chain
@pytest.mark.parametrize("batch", [(7, 7), (7, None), (None, 7)], ids=str)
@pytest.mark.parametrize("layout", ["NN", "TT"])
def test_chains_of_a_batch(stage, row, batch, layout):
    a, b, flags = operands(66, 120, DEEP, layout, batch=batch, data="wide")
    _C.simt_forget_sites()
    with simt.configure(row=row, sm_count=FEW):
        got = run(stage, a, b, **flags)
    assert shared_out("stream_k_fixup.h")
    left, above = a.expand(7, *a.shape[-2:]), b.expand(7, *b.shape[-2:])
    assert all(same_bits(got[z], chain(left[z], above[z], layout)) for z in range(7))


@on_every_chain
@pytest.mark.parametrize("activation", ["relu", "silu"])
def test_who_ends_a_chain_has_the_epilogue(stage, row, activation):
    m, n, k = size(stage, row, 1)
    a, b, _ = operands(m, n, k)
    c, options = normal(m, n), {"alpha": 1.7, "beta": -0.3, "activation": activation}
    with simt.configure(row=row):
        whole = run(stage, a, b, c, **options)
    _C.simt_forget_sites()
    with simt.configure(row=row, sm_count=FEW):
        assert same_bits(run(stage, a, b, c, **options), whole)
    assert shared_out("stream_k_fixup.h")


@on_every_chain
def test_chains_that_are_left_whole(stage, row):
    """What is shallow, what makes whole waves, and what has fewer tiles than blocks."""
    tile = CHAINS[stage].tiles[row]
    few = FEW * tile.min_blocks
    for m, n, k in [
        size(stage, row, 1, 160),
        (tile.BM, few * tile.BN, DEEP),
        (tile.BM, (few - 1) * tile.BN, DEEP),
    ]:
        a, b, _ = operands(m, n, k, data="wide")
        _C.simt_forget_sites()
        with simt.configure(row=row, sm_count=FEW):
            assert same_bits(run(stage, a, b), chain(a, b))
        assert not shared_out("stream_k_fixup.h")


@pytest.mark.parametrize("stage", CHAINS)
def test_a_workspace_where_chains_are_shared_out(stage, monkeypatch):
    """The sums of a tile and a flag for each block that runs at a time, or nothing."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for n, shares in ((4096, True), (8192, True), (1024, False), (128, False)):
        found = xgemm_torch.explain(n, n, n, kernel=stage)
        for c in found.candidates:
            if c.kernel == stage and c.row == 0:
                tile = c.tile
                least = 132 * tile.min_blocks * 4 * (tile.BM * tile.BN + 1)
                assert least <= c.workspace <= least + 2048 if shares else c.workspace == 0
