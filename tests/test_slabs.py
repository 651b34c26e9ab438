"""The larger operand's limbs slab by slab, and not all at once: the same product in less memory."""

from __future__ import annotations

import math

import problems
import pytest
import torch
from problems import right, same_bits
from test_row_sums import SUMMING, sums_are_right
from test_stages import on_every_device

import xgemm_torch
from xgemm_torch import simt

ROWS = 256  # of a slab, at least
# Rows of the larger operand: three slabs, of which the last is longer; two.
MANY = (3 * ROWS + 45, 2 * ROWS)

on_every_stage = pytest.mark.parametrize("stage", SUMMING)
on_either_side = pytest.mark.parametrize("of", ["a", "b"])


def smallest_slabs():
    """Every operand of two slabs of rows or more comes in such."""
    return simt.configure(slab_bytes=1)


def operands(of: str, many: int, few: int, k: int, device) -> list[torch.Tensor]:
    """a and b, of which `of` has many rows, or columns."""
    m, n = (many, few) if of == "a" else (few, many)
    return [problems.normal(m, k).to(device), problems.normal(k, n).to(device)]


@on_every_device
@on_every_stage
@on_either_side
@pytest.mark.parametrize("many", MANY)
def test_slabs_have_the_bits_of_the_whole(stage, of, many, device):
    """Of a K that stream-K does not cut: where it does, it has other tiles to cut."""
    a, b = operands(of, many, 21, 70, device)
    c = problems.normal(a.shape[0], b.shape[1]).to(device)
    how = {"alpha": 0.5, "activation": "gelu", "kernel": stage}
    whole = [xgemm_torch.sgemm(a, b, **how), xgemm_torch.sgemm(a, b, c, beta=-2.0, **how)]
    at, bt = a.T.contiguous(), b.T.contiguous()
    with smallest_slabs():
        for trans_a, trans_b in ((False, False), (True, False), (False, True), (True, True)):
            x, y = at if trans_a else a, bt if trans_b else b
            got = xgemm_torch.sgemm(x, y, trans_a=trans_a, trans_b=trans_b, **how)
            assert same_bits(got, whole[0]), (trans_a, trans_b)
        out = c.clone()
        xgemm_torch.sgemm(a, b, out, beta=-2.0, out=out, **how)
        assert same_bits(out, whole[1])
        column_major = torch.empty_like(c.T.contiguous()).T
        xgemm_torch.sgemm(a, b, c, beta=-2.0, out=column_major, **how)
        assert same_bits(column_major, whole[1])


@on_every_device
@on_every_stage
@on_either_side
def test_a_deep_product_in_slabs(stage, of, device):
    """Stream-K among the tiles of a slab; what limbs do not give, in each of them."""
    a, b = operands(of, 800, 40, 1100, device)
    many = a if of == "a" else b.T
    many[300] = 0
    many[300, 7] = 3.0
    many[10, 5], many[700, 1000] = math.inf, math.nan
    many[511] *= 1e-30
    # 64 rows of a slab whose results come out of cancellation, so that the unit is made anew
    many[640:704, 550:] = -many[640:704, :550]
    few = b if of == "a" else a.T
    few[550:] = few[:550]
    with smallest_slabs():
        got = xgemm_torch.sgemm(a, b, kernel=stage)
        again = xgemm_torch.sgemm(a, b, kernel=stage)
    assert same_bits(got, again)
    assert right(stage, got.cpu(), a.cpu(), b.cpu())
    line = got[300] if of == "a" else got[:, 300]
    assert same_bits(line, 3.0 * few[7])


@on_every_device
@on_every_stage
@on_either_side
@pytest.mark.parametrize("k", [70, 600])
def test_row_sums_in_slabs(stage, of, k, device):
    """Of each row once, whichever operand is cut."""
    a, b = operands(of, 813, 21, k, device)
    a = a.T.contiguous()
    with smallest_slabs():
        got = torch.ops.xgemm.sgemm_row_sums(a, b, trans_a=True, kernel=stage)
        want = xgemm_torch.sgemm(a, b, trans_a=True, kernel=stage)
    assert same_bits(got[0], want)
    assert sums_are_right(got[1], a.mT)


@on_every_device
@on_every_stage
@pytest.mark.parametrize("shared", ["none", "a", "b"])
@on_either_side
def test_batches_in_slabs(stage, of, shared, device):
    """Each matrix has as many rows of a slab."""
    a, b = operands(of, 600, 9, 40, device)
    a = a.expand(3, *a.shape) if shared == "a" else torch.stack([a, 2 * a.flip(0), a.flip(1)])
    b = b.expand(3, *b.shape) if shared == "b" else torch.stack([b, b.flip(0), -b.flip(1)])
    whole = xgemm_torch.bmm(a, b, kernel=stage)
    with smallest_slabs():
        assert same_bits(xgemm_torch.bmm(a, b, kernel=stage), whole)


@on_every_device
@pytest.mark.parametrize("stage", ["mma_fp16x3", "wgmma_fp16x3"])
@pytest.mark.parametrize("m, n, k", [(20, 813, 500), (813, 130, 500), (512, 540, 70)])
def test_a_packed_weight_is_read_slab_by_slab(stage, m, n, k, device):
    """Its limbs are all there, and are cut where those of the weight itself are."""
    x, w = problems.normal(m, k).to(device), problems.normal(n, k).to(device)
    packed = xgemm_torch.prepack(w, kernel=stage)
    assert packed.limbs is not None
    with smallest_slabs():
        want = xgemm_torch.linear(x, w, kernel=stage)
        assert same_bits(xgemm_torch.linear(x, packed, kernel=stage), want)


@on_every_device
@on_every_stage
def test_operands_of_one_value(stage, device):
    """Strides of 0 both ways: whether lanes walk K depends on the rows, so they are not cut."""
    a = torch.full((1, 1), 1.5, device=device).expand(300, 600)  # trans_a: 600 rows
    b = problems.normal(300, 5).to(device)
    with smallest_slabs():
        got, sums = torch.ops.xgemm.sgemm_row_sums(a, b, trans_a=True, kernel=stage)
    assert right(stage, got.cpu(), a.T.cpu(), b.cpu())
    assert (sums == 450).all()


@on_every_device
def test_recomputed_units_are_counted_in_every_slab(device):
    """As many as without slabs."""
    a, b = operands("a", 813, 21, 70, device)
    a[[5, 300, 700], 0] = 2.0**40  # what the limbs leave of these rows is little,
    b[0] = 0  # and is all of their results
    counts = []
    for slab_bytes in (-1, 1):
        with simt.configure(slab_bytes=slab_bytes), xgemm_torch.count_recomputed(device) as count:
            xgemm_torch.sgemm(a, b, kernel="wgmma_fp16x3")
        counts.append(count.units)
    assert counts == [3, 3]


@pytest.mark.parametrize("m, n, k", [(8192, 768, 50257), (50257, 768, 8192), (768, 50257, 8192)])
@pytest.mark.parametrize("trans_a", [False, True])
def test_memory_is_bounded(m, n, k, trans_a):
    """No more than a slab of the larger operand, the smaller one, and what stream-K hands over."""
    found = xgemm_torch.explain(m, n, k, trans_a=trans_a)
    needed = {c.kernel: c.workspace for c in found.candidates}["wgmma_fp16x3"]
    assert needed <= 512 * 2**20 + 4 * 768 * (k + 64) + 64 * 2**20


@pytest.mark.gpu
def test_slabs_of_their_own_accord():
    """Operands of more than 512 MiB of limbs: the peak is a slab, and not the operand."""
    a = torch.randn(80000, 4096, device="cuda")
    b = torch.randn(4096, 256, device="cuda")
    want = a.double() @ b.double()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    got = xgemm_torch.mm(a, b, kernel="wgmma_fp16x3")
    taken = torch.cuda.max_memory_allocated() - before
    assert taken <= 600 * 2**20 + got.numel() * 4 < a.numel() * 4
    scale = a.double().norm(dim=1)[:, None] * b.double().norm(dim=0)
    assert float(((got - want).abs() / scale).max()) < 2e-6
