"""Tiles of D that are staged in shared memory and stored behind the next main loop (staged.h).

On few multiprocessors clusters have two tiles each, of many slices: what they store has the bits of
the kernel that stores tiles itself, which a problem of one wave takes.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from problems import normal, right, same_bits
from test_stages import run

import xgemm_torch
from xgemm_torch import _C, simt

M, N, K = 290, 250, 544
STAGES = {
    s.name: s for s in xgemm_torch.stages()
    if s.unit_rows and s.auto_choice and any(t.by_tma and t.BM == 128 for t in s.tiles)
}  # fmt: skip
ROWS = [(s.name, n) for s in STAGES.values() for n, t in enumerate(s.tiles) if t.BM == 128]
HEADER = Path(xgemm_torch.__file__).parents[1] / "csrc/xgemm/mainloop/emulated_wgmma.h"

on_every_row = pytest.mark.parametrize("stage, row", ROWS)


def two_waves(stage: str, row: int) -> int:
    """Multiprocessors whose clusters have two tiles each."""
    tile = STAGES[stage].tiles[row]
    return -(-M // (tile.BM * tile.cluster)) * -(-N // tile.BN) // 2 * tile.cluster


def staged() -> bool:
    """Whether some warp has waited for a staged tile since the sites were forgotten."""
    lines = HEADER.read_text().splitlines()
    waits = {
        f"{HEADER.name}:{number}" for number, line in enumerate(lines, 1)
        if "mbarrier_wait(&unit.full" in line
    }  # fmt: skip
    assert waits
    return bool(waits & set(simt.sites("mbarrier wait")))


def of_both(stage, row, a, b, c=None, **how):
    """The result in two waves, which are staged, and in one, which is not."""
    results = []
    for sm_count in (two_waves(stage, row), 2 * two_waves(stage, row)):
        _C.simt_forget_sites()
        with simt.configure(row=row, sm_count=sm_count):
            results.append(run(stage, a, b, c, **how))
        assert staged() == (not results[1:])
    return results


@pytest.fixture(autouse=True)
def _has_sources():
    if not HEADER.exists():
        pytest.skip("needs the sources")


def with_rows_of(data: str, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    a = a.clone()
    if data == "one-hot":
        a[::3] = 0
        a[::3, 7] = 2.5
    if data == "not finite":
        a[5, 9], a[200, 3] = torch.nan, torch.inf
        a[70, :3] = torch.inf
    if data == "far":
        a[20] *= 1e35
        a[150] *= 1e-37
    if data == "lossy":
        a[:, 5] *= 2.0**-40  # of which the last bits are cut off; all results stand
    return a, b


@on_every_row
@pytest.mark.parametrize("data", ["normal", "one-hot", "not finite", "far", "lossy"])
def test_staged_tiles_have_the_bits_of_the_others(stage, row, data):
    """Also where a unit is not stored, or by those who multiply."""
    a, b = with_rows_of(data, normal(M, K), normal(K, N))
    bias = normal(N)
    two, one = of_both(stage, row, a, b, bias, alpha=1.5, beta=-0.5)
    assert same_bits(two, one)
    if data == "normal":
        product, _ = of_both(stage, row, a, b)
        assert right(stage, product, a, b)


@on_every_row
@pytest.mark.parametrize("where", ["beside others", "transposed"])
def test_they_go_to_any_place(stage, row, where):
    """Rows that are not aligned, and columns."""
    a, b, bias = normal(M, K), normal(K, N), normal(N)
    results = []
    for sm_count in (two_waves(stage, row), 2 * two_waves(stage, row)):
        whole = torch.full((M, N + 3), 7.0)
        out = whole[:, 1 : N + 1] if where == "beside others" else torch.empty(N, M).T
        with simt.configure(row=row, sm_count=sm_count):
            xgemm_torch.sgemm(a, b, bias, kernel=stage, out=out)
        assert (whole[:, 0] == 7).all() and (whole[:, N + 1 :] == 7).all()
        results.append(out.clone())
    assert same_bits(*results)


@on_every_row
def test_what_those_who_store_are_slow_at_is_not_staged(stage, row):
    """A whole C takes as long to come as D to go; an activation is a call."""
    a, b, c = normal(M, K), normal(K, N), normal(M, N)
    _C.simt_forget_sites()
    with simt.configure(row=row, sm_count=two_waves(stage, row)):
        added = run(stage, a, b, c, beta=0.5)
        activated = run(stage, a, b, activation="relu")
        assert not staged()
        product = run(stage, a, b)
        assert staged()
    assert same_bits(added, (product.double() + 0.5 * c.double()).float())
    assert same_bits(activated, torch.relu(product))


def test_shallow_products_are_not_staged():
    stage, row = ROWS[0]
    _C.simt_forget_sites()
    with simt.configure(row=row, sm_count=two_waves(stage, row)):
        run(stage, normal(M, 500), normal(500, N))
    assert not staged()


@pytest.mark.parametrize("order", simt.ORDERS)
def test_any_order_of_threads_gives_the_same_bits(order):
    stage, row = ROWS[0]
    a, b = normal(M, K), normal(K, N)
    with simt.configure(row=row, sm_count=two_waves(stage, row)):
        first = run(stage, a, b)
        with simt.configure(row=row, sm_count=two_waves(stage, row), order=order):
            assert same_bits(run(stage, a, b), first)


@pytest.mark.parametrize("stage", [s.name for s in STAGES.values() if s.takes_half_a])
def test_products_of_16_bit_floats_are_staged(stage):
    """Their tile is the stage's own: of 128 rows, in clusters of two."""
    x, weight = normal(M, K).bfloat16(), normal(K, N)
    results = []
    for sm_count in (4, 8):
        _C.simt_forget_sites()
        with simt.configure(sm_count=sm_count):
            results.append(torch.ops.xgemm.mixed_mm(x, weight, kernel=stage))
        assert staged() == (sm_count == 4)
    assert same_bits(*results)
