"""Stages that multiply limbs of FP32 numbers, or add in another order: as accurate as the strict
chain, on any operands.

Every row of their tile tables is held to the contract of precision="fp32", which is about many
elements (`accuracy.broken`), and to a bound on each (`problems.right`). Samples are one tile of the
row, which the emulator computes whole anyway: 8192 elements and more, whose root mean square is
known within 1%, 3% where tails are long. SLACK is for that; the largest error needs none, as half
as much again is allowed.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable

import problems
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import right, same_bits
from test_stages import on_every_device, run
from torch import Tensor

import xgemm_torch
from xgemm_torch import simt
from xgemm_torch.tools import accuracy

STAGES = {stage.name: stage for stage in xgemm_torch.stages() if not stage.strict}
ROWS = [(name, row) for name, stage in STAGES.items() for row in range(len(stage.tiles))]
# Every depth around the slices of the tiles for these, a few for the others.
COMMON = ("normal", "uniform", "relu", "wide")
DEPTHS = (1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 129, 300)
SLACK = 1.05

on_every_stage = pytest.mark.parametrize("stage", list(STAGES))
on_every_row = pytest.mark.parametrize("stage, row", ROWS)
on_every_distribution = pytest.mark.parametrize("name", list(accuracy.DISTRIBUTIONS))


def chain(a: Tensor, b: Tensor) -> Tensor:
    """The strict product, where the operands are."""
    return accuracy.chain(a, b)


def broken(name: str, a: Tensor, b: Tensor, got: Tensor) -> dict[str, str]:
    """Terms of the contract that a product of these operands breaks."""
    exact = accuracy.Exact(a, b)
    found, measure = exact.errors(got), exact.errors(chain(a, b))
    return accuracy.broken(found, measure, SLACK)


# ------------------------------------------------------------------------------ the contract


@on_every_device
@on_every_row
@on_every_distribution
def test_no_worse_than_the_chain(stage, row, name, device):
    tile = STAGES[stage].tiles[row]
    make = accuracy.DISTRIBUTIONS[name].make
    failures = {}
    with simt.configure(row=row):
        for k in DEPTHS if row == 0 and name in COMMON else (1, 33, 64, 129):
            a, b = make(accuracy.Draw("cpu", k), tile.BM, tile.BN, k)
            got = run(stage, a, b, device=device)
            if terms := broken(name, a, b, got):
                failures[k] = terms
            assert right(stage, got, a, b), k
    assert failures == {}


@on_every_device
@on_every_row
@pytest.mark.parametrize("k", [2, 9, 16])
def test_short_sums_lose_no_product(stage, row, k, device):
    """Without lo times lo they would be off by 8 u, besides what is rounded."""
    tile = STAGES[stage].tiles[row]
    a, b = problems.one_product(tile.BM, tile.BN, k)
    with simt.configure(row=row):
        got = run(stage, a, b, device=device)
    assert accuracy.errors(got, a, b).largest < 6


def _infinities() -> tuple[Tensor, Tensor]:
    """inf meets numbers, inf, -inf, and NaN."""
    a, b, _ = problems.operands(40, 36, 70)
    a[3, 5], a[4, 5], a[5, 69], a[7, 2], a[8, 0] = math.inf, -math.inf, math.inf, math.nan, math.inf
    b[5, 9], b[6, 10], b[0, 11], b[69, 12], b[2, 3] = -math.inf, math.inf, math.nan, math.inf, 0.0
    b[3, 13] = math.nan  # at another k than an infinity at 0
    return a, b


def _infinities_of_both_signs() -> tuple[Tensor, Tensor]:
    """A sum of infinities: inf where they agree, NaN where they do not."""
    a, b = torch.ones(4, 65), torch.ones(65, 3)
    a[0, 1], a[1, 1], a[2, 1], a[2, 64] = math.inf, -math.inf, math.inf, math.inf
    a[3, 1], a[3, 64] = math.inf, -math.inf
    b[64, 1] = -1.0
    return a, b


def _zeros_and_infinities() -> tuple[Tensor, Tensor]:
    """Rows of +0 and of -0 are 0 with all columns but the infinite one."""
    a, b, _ = problems.operands(6, 5, 66)
    a[0], a[1], b[:, 0], b[17, 3] = 0.0, -0.0, 0.0, math.inf
    return a, b


def _overflow() -> tuple[Tensor, Tensor]:
    """Sums that pass FLT_MAX for good, on the way and back again, or come near it."""
    top = accuracy.FLT_MAX
    a = torch.zeros(8, 70)
    a[0, :2], a[1, 0], a[1, 69] = top, top, -top
    a[2, :3] = torch.tensor([top, top, -top])  # the exact sum is finite, the chain's is not
    a[3], a[4], a[5, 5], a[6] = top / 70, top, 1e-3, -top / 35
    a[7] = top * torch.rand(70)
    b = torch.ones(70, 4)
    b[:, 1], b[:, 2] = 0.25, -2.0
    b[:, 3] = problems.normal(70)
    return a, b


def _subnormal() -> tuple[Tensor, Tensor]:
    """Subnormal rows and columns, and products of every size down to nothing."""
    a, b, _ = problems.operands(40, 40, 70)
    a = (a.double() * torch.exp2(-120.0 - torch.arange(40.0).double()[:, None])).float()
    b = (b.double() * torch.exp2(30.0 - 2 * torch.arange(40.0).double())).float()
    a[:, 3], b[7, 5] = 2.0**-149, -(2.0**-149)
    return a, b


def _tiny_meets_huge() -> tuple[Tensor, Tensor]:
    """An element far below its row's largest carries the result: 2^-35 times 2^40."""
    a, b = torch.zeros(6, 70), torch.zeros(70, 6)
    a[:, 0], a[:, 1] = 1.0, 2.0**-35 * (1 + torch.rand(6))
    b[0], b[1] = 2.0**-40, 2.0**40 * (1 + torch.rand(6))
    # Among zeros, among ones, among others of each size.
    a[1, 2:], a[2, 2:], a[3, 2:] = 1.0, 2.0**-35, 2.0**-12
    a[4, 2:] = problems.normal(68)
    a[5, 2:] = problems.wide(68)
    b[2:, 1], b[2:, 2], b[2:, 3] = 2.0**40, 2.0**-40, 2.0**10
    b[2:, 4], b[2:, 5] = problems.normal(68), problems.wide(68)
    return a, b


def _both_far_below() -> tuple[Tensor, Tensor]:
    """Each result is one product, of elements ever farther below their row's and column's largest.

    The largest elements meet zeros. What is scaled by them has products below FP32's range.
    """
    a, b = torch.zeros(30, 70), torch.zeros(70, 30)
    a[:, 0], b[2] = 2.0**50, 2.0**50
    far = torch.exp2(50 - 4.0 * torch.arange(30))
    a[:, 1], b[1] = far * (1 + torch.rand(30)), far * (1 + torch.rand(30))
    return a, b


def _few_of_many_are_tiny() -> tuple[Tensor, Tensor]:
    """Shares of tiny elements from one to all, in rows against columns that have them elsewhere."""
    k = 128
    a, b = torch.ones(k, k), torch.ones(k, k)
    for i in range(k):
        a[i, : i + 1] = 2.0**-34 * (1 + torch.rand(i + 1))
        b[i:, i] = 2.0**34 * (1 + torch.rand(k - i))
    return a, b


def _wide_rows() -> tuple[Tensor, Tensor]:
    """Exponents over 2^-24 to 2^24 within a row, and against each other in A and B."""
    k = 90
    size = torch.exp2(torch.linspace(-24, 24, k))
    a, b = problems.normal(30, k) * size, problems.normal(k, 30)
    b[:, :10] *= size[:, None]
    b[:, 10:20] /= size[:, None]
    a[20:] = a[20:].flip(1)
    return a, b


def _scales_apart() -> tuple[Tensor, Tensor]:
    """Rows' and columns' largest elements 2^96 apart, what carries the results far below both.

    A sum of limbs is so small then that a row's scale alone would take it out of FP32's range.
    """
    a, b = torch.zeros(15, 128), torch.zeros(128, 13)
    a[:, :32], b[96:] = 2.0**-46, 2.0**50
    a[:, 32:96] = torch.exp2(-46.0 - torch.arange(60, 75))[:, None] * (1 + torch.rand(15, 64))
    b[32:96] = torch.exp2(50.0 - torch.arange(50, 63)) * (1 + torch.rand(64, 13))
    return a, b


def _nothing_of_scaled_rows() -> tuple[Tensor, Tensor]:
    """Half of each row is so far below the other half that scaling leaves nothing of it."""
    a, b = torch.zeros(20, 256), torch.zeros(256, 20)
    a[:, :128] = 2.0**60
    a[:, 128:] = torch.exp2(-85.0 - 2 * torch.arange(20))[:, None] * (1 + torch.rand(20, 128))
    b[128:] = torch.exp2(50.0 - 8 * torch.arange(20))
    return a, b


def _no_first_part() -> tuple[Tensor, Tensor]:
    """Rows of numbers around the smallest that bf16 has, among rows of others."""
    a, b, _ = problems.operands(40, 40, 70)
    a = (a.double() * torch.exp2(-130.0 - torch.arange(40.0).double()[:, None])).float()
    a[20:24] = problems.normal(4, 70)
    a[24:, 5] = 1.0
    b *= torch.exp2(50.0 - torch.arange(40.0))
    b[5] = 0.0
    return a, b


def _zeros_and_the_largest() -> tuple[Tensor, Tensor]:
    """What rounds to infinity as a bf16 number meets rows of zeros, and others."""
    a, b, _ = problems.operands(40, 40, 70)
    a[:10], a[10:20] = 0.0, -0.0
    b[3, 5], b[4, 6], b[5, 7] = accuracy.FLT_MAX, -3.3962e38, 3.389e38
    return a, b


SPECIALS: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {
    make.__name__.strip("_"): make
    for make in (
        _infinities, _infinities_of_both_signs, _zeros_and_infinities, _overflow, _subnormal,
        _tiny_meets_huge, _both_far_below, _few_of_many_are_tiny, _wide_rows, _scales_apart,
        _nothing_of_scaled_rows, _no_first_part, _zeros_and_the_largest,
    )
}  # fmt: skip


@on_every_device
@on_every_row
@pytest.mark.parametrize("case", SPECIALS)
def test_specials(stage, row, case, device):
    a, b = SPECIALS[case]()
    with simt.configure(row=row):
        for left, above in ((a, b), (b.T, a.T)):
            got = run(stage, left, above, device=device)
            assert right(stage, got, left, above)


def test_the_specials_are_what_they_are_called():
    """An oracle that is never inf or NaN would make tests of nothing."""
    nan = {case: int(chain(*make()).isnan().sum()) for case, make in SPECIALS.items()}
    inf = {case: int(chain(*make()).isinf().sum()) for case, make in SPECIALS.items()}
    assert min(nan[c] for c in SPECIALS if "infinities" in c) > 0
    assert min(inf[c] for c in ("infinities", "infinities_of_both_signs", "overflow")) > 0
    odd = (
        "infinities", "infinities_of_both_signs", "zeros_and_infinities", "overflow",
        "zeros_and_the_largest",
    )  # fmt: skip
    assert not any(nan[c] + inf[c] for c in SPECIALS if c not in odd)
    a, b = _overflow()
    assert bool((problems.exact(a, b).abs() < accuracy.FLT_MAX)[chain(a, b).isinf()].any())


@on_every_device
@on_every_row
@given(
    k=st.integers(1, 130),
    reach=st.integers(0, 120).flatmap(lambda r: st.tuples(st.just(r), st.integers(0, 120 - r))),
    zeros=st.tuples(*[st.sampled_from([0.0, 0.5, 0.97])] * 2),
    together=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_any_exponents(stage, row, device, k, reach, zeros, together, seed):
    """Exponents drawn over +-reach, B's those of A turned round or its own, zeros in between."""
    draw = accuracy.Draw("cpu", seed)
    m, n = 24, 17
    exponents = draw.uniform(-1, 1, k)
    operands = []
    for rows, far, sign in ((m, reach[0], 1), (n, reach[1], -1)):
        own = draw.uniform(-1, 1, rows, k)
        size = torch.exp2(far * (sign * exponents if together else own))
        share = zeros[0] if sign > 0 else zeros[1]
        operands.append(draw.normal(rows, k) * size * (draw.uniform(0, 1, rows, k) >= share))
    a, b = operands[0], operands[1].T
    with simt.configure(row=row):
        assert right(stage, run(stage, a, b, device=device), a, b)


# ------------------------------------------------------------------------------ bits


@on_every_device
@on_every_row
def test_layouts_and_views_have_the_same_bits(stage, row, device):
    """The limbs of an operand are of its values, wherever these lie."""
    m, n, k = 50, 45, 129
    a, b = problems.normal(m, k), problems.uniform(k, n)
    a[5], b[:, 9] = problems.wide(k), problems.wide(k)  # which limbs cannot give
    results = []
    with simt.configure(row=row):
        other = [name for name in problems.VIEWS if name != "plain"]
        cases = [(layout, "plain") for layout in problems.LAYOUTS]
        for layout, view in cases + list(zip(problems.LAYOUTS, other, strict=True)):
            left, above = (
                problems.VIEWS[view](x.T if letter == "T" else x)
                for x, letter in zip((a, b), layout, strict=True)
            )
            flags = {"trans_a": layout[0] == "T", "trans_b": layout[1] == "T"}
            results.append(run(stage, left, above, device=device, **flags))
            assert same_bits(results[0], results[-1]), (layout, view)


@on_every_device
@on_every_row
@pytest.mark.parametrize("batch", [(3, 3), (3, None), (None, 3), (1, 3), (3, 1)], ids=str)
def test_batches_have_the_bits_of_their_matrices(stage, row, batch, device):
    a, b, _ = problems.operands(33, 40, 70, batch=batch)
    with simt.configure(row=row):
        got = run(stage, a, b, device=device)
        left, above = a.expand(3, 33, 70), b.expand(3, 70, 40)
        for z in range(3):
            assert same_bits(got[z], run(stage, left[z], above[z], device=device))


@on_every_device
@on_every_row
def test_the_epilogue_is_of_the_product(stage, row, device):
    """alpha, beta, c of any shape and a ReLU: one fused operation on the product's own bits."""
    a, b, _ = problems.operands(37, 70, 66)
    a[3], b[:, 5], a[4, 7] = a[3] * 2.0**70, b[:, 5] * 2.0**-80, math.nan
    alpha, beta = torch.tensor(1.7), torch.tensor(-0.3)
    with simt.configure(row=row):
        product = run(stage, a, b, device=device)
        for shape in [(37, 70), (70,), (37, 1), (1, 1)]:
            c = problems.normal(*shape)
            scaled = alpha.double() * product.double() + (beta * c).double()
            got = run(stage, a, b, c, device, alpha=alpha.item(), beta=beta.item())
            assert same_bits(got, scaled.float())
        got = run(stage, a, b, device=device, alpha=-2.0, activation="relu")
        assert same_bits(got, torch.relu(-2.0 * product))
        c = torch.full((37, 70), math.nan)
        assert same_bits(run(stage, a, b, c, device, beta=0.0), product)


@on_every_device
@on_every_row
def test_no_k_gives_c(stage, row, device):
    a, b, c = torch.empty(33, 0), torch.empty(0, 40), problems.normal(33, 40)
    with simt.configure(row=row):
        assert same_bits(run(stage, a, b, device=device), torch.zeros(33, 40))
        assert same_bits(run(stage, a, b, c, device, beta=0.5), 0.5 * c)
        got = run(stage, a[None].expand(2, 33, 0), b, c, device, beta=2.0, activation="relu")
        assert same_bits(got, torch.relu(2 * c).expand(2, 33, 40))


@on_every_device
@on_every_stage
@given(
    k=st.integers(1, 140),
    data=st.sampled_from(["normal", "wide", "uniform"]),
    power=st.integers(-64, 64),
    seed=st.integers(0, 2**31),
)
def test_powers_of_two_change_exponents_only(stage, device, k, data, power, seed):
    """A row times 2^n gives 2^n times the result's row in every bit; a column likewise."""
    torch.manual_seed(seed)
    a, b, _ = problems.operands(20, 30, k, data=data)
    # Of two rows and columns one is left as it was: scales belong to rows, not to operands.
    up, down = torch.ones(20, 1).double(), torch.ones(30).double()
    up[::2], down[1::2] = 2.0**power, 2.0**-power
    plain = run(stage, a, b, device=device)
    got = run(stage, (a * up).float(), (b * down).float(), device=device)
    assert same_bits(got, (plain * up * down).float())


@on_every_device
@on_every_stage
@settings(max_examples=10)
@given(k=st.integers(1, 140), data=st.sampled_from(["normal", "wide"]), seed=st.integers(0, 2**31))
def test_permuted_rows_have_permuted_bits(stage, device, k, data, seed):
    torch.manual_seed(seed)
    a, b, _ = problems.operands(40, 50, k, data=data)
    rows, columns = torch.randperm(40), torch.randperm(50)
    plain = run(stage, a, b, device=device)
    assert same_bits(run(stage, a[rows], b[:, columns], device=device), plain[rows][:, columns])


@on_every_device
@on_every_row
def test_a_row_has_no_say_in_another(stage, row, device):
    """What is not finite, zero, or one element is seen to where it is, and nowhere else."""
    a, b, _ = problems.operands(60, 50, 100)
    changed, other = a.clone(), b.clone()
    changed[30, 3], other[5, 33], changed[31] = math.nan, math.inf, 0.0
    changed[7], other[:, 20] = 0.0, 0.0
    changed[7, 9], other[99, 20] = 3.0, -math.pi
    rows = [i for i in range(60) if i not in (7, 30, 31)]
    columns = [j for j in range(50) if j not in (20, 33)]
    with simt.configure(row=row):
        want = run(stage, a, b, device=device)
        got = run(stage, changed, other, device=device)
    assert same_bits(got[rows][:, columns], want[rows][:, columns])
    assert right(stage, got, changed, other)


# ------------------------------------------------------------------------------ made anew

# Stages whose results have a certificate by rows, and units that are made anew.
CERTIFIED = ("mma_fp16x3", "wgmma_fp16x3", "wgmma_bf16x6")
CERTIFIED_ROWS = [(name, row) for name, row in ROWS if name in CERTIFIED]


def graded(m: int, n: int, k: int, reach: int) -> tuple[Tensor, Tensor]:
    """A's columns over 2^-reach to 2^reach, B's rows the other way: limbs lose all of it."""
    size = torch.exp2(torch.linspace(-reach, reach, k))
    return problems.normal(m, k) * size, problems.normal(k, n) / size[:, None]


@on_every_device
@on_every_row
@pytest.mark.parametrize("of", ["a", "b"])
def test_selections_are_exact(stage, row, of, device):
    """Identity, permutation, one-hot and zero rows; where rows are known, scaled ones."""
    k = 96
    picks = torch.zeros(70, k)
    picks[torch.arange(60), torch.randint(k, (60,))] = 1.0
    if stage in (*CERTIFIED, "wgmma_narrow"):
        picks[10:20] *= math.pi
    picks[60:, 1::9] = 0.0
    other = problems.normal(k, 45) * torch.exp2(problems.uniform(k, 45) * 20)
    want = torch.zeros(70, 45)
    for i in range(60):
        at = int(picks[i].argmax())
        want[i] = picks[i, at] * other[at]
    left, above = (picks, other) if of == "a" else (other.T, picks.T)
    with simt.configure(row=row):
        got = run(stage, left, above, device=device)
    assert torch.equal(got, want if of == "a" else want.T)


@on_every_device
@pytest.mark.parametrize("stage, row", CERTIFIED_ROWS)
@pytest.mark.parametrize("k, beta", [(200, 0.0), (1500, -0.5)])
def test_what_is_not_certain_is_made_anew(stage, row, k, beta, device):
    """A unit by one chain, or, of a long K, by several that are added in order; C may be D."""
    tile = STAGES[stage].tiles[row]
    m, n = 2 * tile.BM + 3, tile.BN + 5
    reach = 70 if stage == "wgmma_bf16x6" else 30
    a, b = problems.normal(m, k), problems.normal(k, n)
    bad_a, bad_b = graded(8, 4, k, reach)
    a[:8], b[:, -4:] = bad_a, bad_b
    c = problems.normal(m, n)
    with simt.configure(row=row):
        plain = run(stage, a, b, device=device)
        place = c.clone().to(device)
        xgemm_torch.sgemm(
            a.to(device), b.to(device), place, beta=beta, kernel=stage, out=place
        )  # fmt: skip
    assert right(stage, plain, a, b)
    exact = accuracy.Exact(a[:8], b[:, -4:])
    assert exact.errors(plain[:8, -4:]).largest <= 8
    want = (plain.double() + (beta * c).double()).float() if beta else plain
    assert same_bits(place.cpu(), want)


@on_every_device
@pytest.mark.parametrize("stage, row", CERTIFIED_ROWS)
def test_sums_that_overflow_on_their_way_are_the_chain(stage, row, device):
    a, b = problems.normal(20, 700) * 2.0**125, problems.normal(700, 30)
    with simt.configure(row=row):
        assert same_bits(run(stage, a, b, device=device), chain(a, b))


def _inf_in_a_slice(a: Tensor, b: Tensor, k: int) -> None:
    a[1, k], a[2, k], b[k + 1, 3], b[k, 4] = math.inf, -math.inf, math.inf, 0.0


def _nan_in_a_slice(a: Tensor, b: Tensor, k: int) -> None:
    a[1, k], b[k + 2, 3] = math.nan, math.nan


def _infinities_in_slices(a: Tensor, b: Tensor, k: int) -> None:
    """Of one sign in the first and in another, and of both."""
    a[1, 0], a[1, k], a[2, 0], a[2, k] = math.inf, math.inf, math.inf, -math.inf
    b[0], b[k] = 1.0, 1.0


def _subnormal_in_a_slice(a: Tensor, b: Tensor, k: int) -> None:
    a[1, k : k + 3] *= 2.0**-128
    a[2] *= 2.0**-110
    a[2, k] = 2.0**-149
    b[:, 5] *= 2.0**-20


def _overflow_in_a_slice(a: Tensor, b: Tensor, k: int) -> None:
    """The sum is finite, the chain is not: within a slice, and from slice to slice."""
    top = accuracy.FLT_MAX
    b[0], b[k : k + 3], b[-1] = 1.0, 1.0, 1.0
    a[1, k : k + 3] = torch.tensor([top, top, -top])
    a[2, 0], a[2, k], a[2, -1] = top, top, -top


def _infinity_and_overflow(a: Tensor, b: Tensor, k: int) -> None:
    _overflow_in_a_slice(a, b, k)
    a[3, k + 1] = math.inf


# A K that more blocks of wgmma_narrow have shares of than make a cluster.
BY_MORE = 2100


@functools.cache
def _few_rows(k: int) -> tuple[Tensor, Tensor]:
    """Operands that limbs hold."""
    return problems.normal(7, k), problems.normal(k, 130)


@functools.cache
def _of_few_rows(k: int, row: int, device: str) -> Tensor:
    """Their product, which every change of some of their elements is compared with."""
    with simt.configure(row=row):
        return run("wgmma_narrow", *_few_rows(k), device=device)


@on_every_device
@pytest.mark.parametrize("row", [row for name, row in ROWS if name == "wgmma_narrow"])
@pytest.mark.parametrize("k", [64, 300, BY_MORE])
@pytest.mark.parametrize(
    "change",
    [
        _inf_in_a_slice, _nan_in_a_slice, _infinities_in_slices, _subnormal_in_a_slice,
        _overflow_in_a_slice, _infinity_and_overflow,
    ],
    ids=lambda change: change.__name__.strip("_"),
)  # fmt: skip
def test_a_slice_is_made_anew(change, k, row, device):
    """One block's, a cluster's or a workspace's: what limbs do not hold is in some slices only."""
    other, above = (x.clone() for x in _few_rows(k))
    change(other, above, k // 2)
    with simt.configure(row=row):
        for view in ("plain", "column_major") if k < 1000 else ("plain",):
            changed = [problems.VIEWS[view](x) for x in (other, above)]
            got = run("wgmma_narrow", *changed, device=device)
            assert right("wgmma_narrow", got, *changed)
            if "overflow" in change.__name__:
                assert bool(got[1:3].isinf().all())
            elif "infinities" not in change.__name__:
                want = _of_few_rows(k, row, device)
                assert same_bits(got[4:, 6:], want[4:, 6:])


def _one_nonzero(rows: int, k: int) -> Tensor:
    """Of each row one element but zeros, or none: anywhere, and at both ends."""
    at = torch.randint(k, (rows, 1))
    at[:2, 0] = torch.tensor([0, k - 1])
    x = torch.zeros(rows, k).scatter_(1, at, problems.normal(rows, 1))
    x[2] = 0.0
    x[3] = -x[3].abs()  # with zeros of both signs
    return x


SIDES = ("rows", "columns", "both")


def _mostly_zeros(rows: int, k: int) -> Tensor:
    """Few elements, of rows with none to five of them; two in one slice, and in the first and last.

    Every block may find another number of them in its share of K.
    """
    x = problems.normal(rows, k) * (problems.uniform(rows, k).abs() < 1.5 / k)
    x[0], x[1] = 0.0, 0.0
    x[0, k // 2 : k // 2 + 2] = math.pi
    x[1, 0], x[1, -1] = math.pi, 1 / 3
    return x


@on_every_device
@pytest.mark.parametrize("row", [row for name, row in ROWS if name == "wgmma_narrow"])
@pytest.mark.parametrize(
    ("make", "k", "of"),
    [(_one_nonzero, 1, of) for of in SIDES]
    + list(itertools.product((_one_nonzero, _mostly_zeros), (31, 64, 300, BY_MORE), SIDES))
    + [(_mostly_zeros, 6000, "both")],  # a block's share is longer than the ring
)
def test_single_nonzeros_are_exact(make, of, k, row, device):
    """Of rows and columns, K in one block, in a cluster's and in a workspace's; one NaN elsewhere.

    What has one nonzero at most is as the chain has it, bits of zeros included.
    """
    m, n = min(STAGES["wgmma_narrow"].tiles[row].BM, 20) - 1, 141
    a = problems.normal(m, k) if of == "columns" else make(m, k)
    b = (problems.normal(n, k) if of == "rows" else make(n, k)).T.contiguous()
    if of == "rows":
        b[:, 7] *= 2.0**-100  # products are subnormal, or zeros
        a[1] *= 2.0**-45
    want = chain(a, b)
    single = ((a != 0).sum(1) <= 1)[:, None] | ((b != 0).sum(0) <= 1)
    views = problems.VIEWS
    with simt.configure(row=row):
        # One layout of the longest, whose emulation takes minutes.
        layouts = ("plain",) if k >= BY_MORE else ("plain", "column_major")
        for of_a, of_b in itertools.product(layouts, repeat=2):
            got = run("wgmma_narrow", views[of_a](a), views[of_b](b), device=device)
            assert same_bits(got[single], want[single]), (of_a, of_b)
            assert right("wgmma_narrow", got, a, b)
        a[5, k // 3] = math.nan
        got = run("wgmma_narrow", a, b, device=device)
    assert bool(got[5].isnan().all())
    single[5] = False
    assert same_bits(got[single], want[single])


@on_every_device
@pytest.mark.parametrize("row", [row for name, row in ROWS if name == "wgmma_narrow"])
@pytest.mark.parametrize("k", [300, BY_MORE])
@pytest.mark.parametrize("of", ["rows", "columns"])
@pytest.mark.parametrize("reach", [123.5, 125.5, 127.5, 128.5])
def test_sums_near_the_end_of_the_range(reach, of, k, row, device):
    """Magnitudes of each element's products add up to 2^reach: by far less than FLT_MAX, no chain
    of all K is made; by more, results are infinite or not just as the chain's."""
    a, b = problems.uniform(7, k).sign(), problems.normal(k, 130)
    if reach > 128:  # no others overflow
        a = a.abs()
        b = b.abs()
    a *= 2.0**127
    b *= (2.0 ** (reach - 127) / b.abs().sum(0)).float()
    if of == "columns":
        a, b = b.T.contiguous(), a.T.contiguous()
    want = chain(a, b)
    with simt.configure(row=row):
        got = run("wgmma_narrow", a, b, device=device)
    assert right("wgmma_narrow", got, a, b)
    assert bool(want.isinf().all()) == (reach > 128)
    if reach > 126:
        assert same_bits(got, want)
    elif k == BY_MORE and reach < 124:
        assert not same_bits(got, want)


# ------------------------------------------------------------------------------ a GPU


def test_limbs_beyond_64_bits_are_no_memory():
    """2^31 rows of 2^31 elements that all are one: their limbs would take 2^64 bytes."""
    weight = torch.ones(1).expand(2**31, 2**31)
    with pytest.raises(RuntimeError, match="take 18446744073709550592 bytes, and cpu has no"):
        xgemm_torch.prepack(weight, kernel="mma_fp16x3")


@pytest.mark.parametrize(
    "kernel, k, why",
    [(name, 2**32, r"fewer than 2\^32") for name in STAGES if "x" in name],
)
def test_a_k_that_is_too_deep_is_refused(kernel, k, why):
    a, b = torch.ones(1).expand(1, k), torch.ones(1).expand(k, 1)
    with pytest.raises(ValueError, match=f"{kernel}: .*{why}"):
        xgemm_torch.sgemm(a, b, kernel=kernel)
    for sizes in ((64, 64, k), (1, 1, k), (300, 200, k)):
        assert xgemm_torch.explain(*sizes).kernel != kernel


@pytest.mark.gpu
@on_every_distribution
@pytest.mark.parametrize("k", [128, 1000, 4096, 65536])
def test_no_worse_than_the_chain_on_a_gpu(name, k):
    """All stages that run there, and what `auto` chooses; 512 x 512 elements."""
    assert accuracy.measure(name, k, size=512, device="cuda")["broken"] == {}


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", ["auto", *STAGES])
@pytest.mark.parametrize("name", ["normal", "uniform", "scaled"])
@pytest.mark.parametrize("layout", problems.LAYOUTS)
def test_large_products_on_a_gpu(kernel, name, layout):
    """4096 x 4096 x 4096, every element against float64 and the chain."""
    kind = accuracy.DISTRIBUTIONS[name]
    a, b = kind.make(accuracy.Draw("cuda", 0), 4096, 4096, 4096)
    flags = {"trans_a": layout[0] == "T", "trans_b": layout[1] == "T"}
    stored = [
        x.T.contiguous().T if letter == "T" else x for x, letter in zip((a, b), layout, strict=True)
    ]
    left, above = (x.T if flag else x for x, flag in zip(stored, flags.values(), strict=True))
    got = xgemm_torch.sgemm(left, above, kernel=kernel, **flags)
    assert broken(name, a, b, got) == {}


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", ["auto", *STAGES])
@pytest.mark.parametrize("size", [(4096, 4096, 4096), (1000, 777, 5001), (129, 130, 70)], ids=str)
def test_fifty_runs_on_a_gpu_are_equal(kernel, size):
    m, n, k = size
    # Wide rows are left to the chain: not those of the largest.
    for make in (problems.normal, problems.wide)[: 1 if m > 1000 else 2]:
        a, b = make(m, k, device="cuda"), make(k, n, device="cuda")
        first = xgemm_torch.sgemm(a, b, kernel=kernel)
        again = torch.empty_like(first)
        for _ in range(49):
            xgemm_torch.sgemm(a, b, kernel=kernel, out=again.fill_(math.nan))
            assert torch.equal(first.view(torch.int32), again.view(torch.int32))


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", ["auto", *STAGES])
def test_a_graph_takes_operands_of_any_kind(kernel):
    """Captured with normal operands; replayed with those that need another way, and back again."""
    m, n, k = 512, 384, 1000
    a, b = problems.normal(m, k, device="cuda"), problems.normal(k, n, device="cuda")
    xgemm_torch.sgemm(a, b, kernel=kernel)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = xgemm_torch.sgemm(a, b, kernel=kernel)
    draw = accuracy.Draw("cuda", 5)
    for name in ["normal", "graded", "normal", "wide", "outlier", "largest", "nan", "normal"]:
        left, above = accuracy.DISTRIBUTIONS[name if name != "nan" else "normal"].make(
            draw, m, n, k
        )
        if name == "nan":
            left[5, 7], left[100, 3], above[9, 11] = math.nan, math.inf, -math.inf
        a.copy_(left), b.copy_(above), out.fill_(-1.0)
        graph.replay()
        assert same_bits(out, xgemm_torch.sgemm(a, b, kernel=kernel)), name
        finite, measure = out.isfinite(), chain(a, b)
        assert torch.equal(finite, measure.isfinite()), name
        assert same_bits(out[~finite], measure[~finite]), name
        if name != "nan":
            assert broken(name, a, b, out) == {}, name


# ------------------------------------------------------------------------------ deep strips

# Stages whose decomposition guesses a row's scale of the first elements of a strip's shares, where
# the operand does not lie along k and is deep: 320 of the 544 of each of a cluster's eight blocks,
# or of all.
GUESSING = ("mma_fp16x3", "wgmma_fp16x3", "wgmma_bf16x6")
DEEP, SHARE, FIRST = 4200, 544, 320
SEEN = torch.arange(DEEP) % SHARE < FIRST  # by a cluster
UNSEEN = [k for k in range(FIRST, DEEP) if not SEEN[k]]  # by both


def _grown(a: Tensor) -> None:
    """Elements far larger than those that are looked at first, just as large, just too large."""
    a[0, UNSEEN[5]] = 1e6
    a[1, UNSEEN[-1]] = -1e30
    a[2:4, 0] = 8.0
    a[2, UNSEEN[300]], a[3, UNSEEN[700]] = 8 * 7.99, 8 * 8
    a[35, UNSEEN[1]], a[36, UNSEEN[2]] = 1e6, -1e6


def _nothing_seen(a: Tensor) -> None:
    """Rows that are zero where they are looked at first, or everywhere."""
    a[0, SEEN], a[33, :FIRST] = 0.0, 0.0
    a[1], a[2] = 0.0, -0.0
    a[3] = 0.0
    a[3, UNSEEN[200]] = 3e-39


def _not_finite(a: Tensor) -> None:
    a[0, 1], a[1, 0], a[2, DEEP - 1], a[3, 5] = math.inf, -math.inf, math.nan, math.inf
    a[3, 6], a[32, 900] = -math.inf, math.nan


def _wide_and_deep(a: Tensor) -> None:
    """Rows of which much is lost, by the guess or by any scale."""
    far = torch.linspace(-1, 1, DEEP)
    a[0] *= torch.exp2(12.5 * far)
    a[1] *= torch.exp2(60 * far)
    a[2, 1:] *= 2.0**-26
    a[3, ::2] *= 2.0**-25.0
    a[34] *= 2.0**-140


DEEP_ROWS = (_grown, _nothing_seen, _not_finite, _wide_and_deep)


@on_every_device
@pytest.mark.parametrize("stage", GUESSING)
@pytest.mark.parametrize("change", DEEP_ROWS, ids=lambda f: f.__name__.strip("_"))
def test_what_a_guessed_scale_cannot_hold(stage, change, device):
    """Strips are split again where they have to, and so are as right as rows along k."""
    a, b = problems.normal(37, DEEP), problems.normal(DEEP, 9)
    change(a)
    strips = a.T.contiguous().T
    with simt.configure(row=len(STAGES[stage].tiles) - 1):
        for left, above in ((strips, b), (b.T.contiguous(), strips.T)):
            got = run(stage, left, above, device=device)
            assert right(stage, got, left, above)
            along_k = run(stage, left.contiguous(), above.T.contiguous().T, device=device)
            if change is not _wide_and_deep:  # there, less is lost by the largest's own scale
                assert same_bits(got, along_k)


@on_every_device
@pytest.mark.parametrize("stage", GUESSING)
@pytest.mark.parametrize("n", [1, 31, 33, 64])
@pytest.mark.parametrize("k", [1025, 1057, 4100])
def test_deep_strips_of_any_size(stage, n, k, device):
    """Vectors or not, whole strips or not, with shares of k that are short or empty."""
    a, b = problems.normal(5, k), problems.normal(k, n)
    with simt.configure(row=len(STAGES[stage].tiles) - 1):
        got = run(stage, a, b, device=device)
        assert right(stage, got, a, b)
        assert same_bits(got, run(stage, a, b.T.contiguous().T, device=device))
        moved = torch.empty(k, n + 3)[:, 1 : n + 1].copy_(b)
        assert same_bits(got, run(stage, a, moved, device=device))


@on_every_device
@pytest.mark.parametrize("k", [600, 1100])
def test_many_strips(k, device):
    """Sixteen whole rows a block, or strips that two blocks share."""
    a, b = problems.normal(3, k), problems.normal(k, 2113)
    with simt.configure(row=len(STAGES["wgmma_fp16x3"].tiles) - 1):
        got = run("wgmma_fp16x3", a, b, device=device)
        assert right("wgmma_fp16x3", got, a, b)
        assert same_bits(got, run("wgmma_fp16x3", a, b.T.contiguous().T, device=device))
