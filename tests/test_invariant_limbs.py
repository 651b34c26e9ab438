"""invariant="batch" with precision="fp32": by a stage of limbs, in the emulator or on a GPU.

A row's bits are those of the row alone, whatever the others hold: rows that limbs cannot hold, that
are given by single elements, or that may overflow lie beside such as limbs can.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable

import pytest
import torch
from problems import DATA, LAYOUTS, VIEWS, exact, operands, right, same_bits
from test_emulated import broken
from test_stages import on_every_device
from torch import Tensor, nn

import xgemm_torch
from xgemm_torch import _C, linear, sgemm, simt
from xgemm_torch.tools import accuracy

STAGES = {stage.name: stage for stage in xgemm_torch.stages() if stage.batch_invariant}
if not STAGES:  # a build of some stages alone
    pytest.skip("no stage of this build is batch_invariant", allow_module_level=True)

NAME = next(iter(STAGES))
ROWS = [(name, row) for name, stage in STAGES.items() for row in range(len(stage.tiles))]

M, N = 200, 141  # four units down, two across
SOME = (1, 63, 64, 65, 130)
DEPTHS = (1, 31, 32, 33, 300, 1100)

on_every_row = pytest.mark.parametrize("stage, row", ROWS)


def limbs(a: Tensor, b: Tensor, c: Tensor | None = None, *, kernel: str = NAME, **flags) -> Tensor:
    """The product as the operator makes it, which copies no operand."""
    return torch.ops.xgemm.sgemm(a, b, c, kernel=kernel, batch_invariant=True, **flags)


def product(a: Tensor, b: Tensor, c: Tensor | None = None, **flags) -> Tensor:
    return sgemm(a, b, c, kernel=NAME, invariant="batch", **flags)


# ---------------------------------------------------------------------------------------------
# Rows of all kinds; a column is a row of the other operand.


def _of_kind(kind: str, k: int) -> Tensor:
    """One row of k elements."""
    x = torch.randn(k)
    one = int(torch.randint(k, ()))
    if kind == "lossy":
        x *= torch.exp2(torch.rand(k) * 60 - 30)
    elif kind == "zeros":
        x.zero_()
    elif kind == "one-hot":
        x.zero_()[one] = float(torch.randn(()))
    elif kind in ("nan", "infinity", "-infinity"):
        x[one] = {"nan": math.nan, "infinity": math.inf, "-infinity": -math.inf}[kind]
    elif kind == "infinities":
        x[one], x[-1 - one] = math.inf, -math.inf
        x[int(torch.randint(k, ()))] = math.inf
    elif kind in ("far below", "far above"):
        x *= 1e-38 if kind == "far below" else 1e37
    elif kind == "far one-hot":
        x.zero_()[one] = 3e38
    elif kind == "cancelling":  # limbs lose what is left
        x[: k // 2] *= 2.0**-40
        x[k // 2 :] = 0.0 if k > 1 else x
    return x


KINDS = (
    "normal", "lossy", "zeros", "one-hot", "nan", "infinity", "-infinity", "infinities",
    "far below", "far above", "far one-hot", "cancelling",
)  # fmt: skip


def _some(kinds: tuple[str, ...], rows: int, k: int) -> Tensor:
    """Rows of these kinds in turn, and many plain ones among them."""
    order = (*kinds, *["normal"] * (rows // 4))
    return torch.stack([_of_kind(order[i * 7 % len(order)], k) for i in range(rows)])


def mixed(m: int, n: int, k: int, kinds: tuple[str, ...] = KINDS) -> tuple[Tensor, Tensor]:
    return _some(kinds, m, k), _some(kinds, n, k).T.contiguous()


def _doubtful(m: int, n: int, k: int) -> tuple[Tensor, Tensor]:
    """Few results that limbs cannot give, and many that they can."""
    a, b, _ = operands(m, n, k)
    a[::50, : k // 2] *= 2.0**-36
    b[k // 2 :, ::40] = 0.0
    return a, b


MAKERS: dict[str, Callable[[int, int, int], tuple[Tensor, Tensor]]] = {
    "normal": lambda m, n, k: operands(m, n, k)[:2],
    "wide": lambda m, n, k: operands(m, n, k, data="wide")[:2],
    "doubtful": _doubtful,
    "finite": functools.partial(mixed, kinds=("lossy", "zeros", "one-hot", "cancelling")),
    "far": functools.partial(mixed, kinds=("far below", "far above", "lossy")),
    "all": mixed,
}
on_every_maker = pytest.mark.parametrize("data", MAKERS)


def stored(t: Tensor, transposed: bool) -> Tensor:
    return t.mT.contiguous() if transposed else t


def alone(a: Tensor, b: Tensor, got: Tensor, times: Callable[..., Tensor] = limbs) -> None:
    """That rows have the bits that they have by themselves, and in groups of any size."""
    m = a.shape[0]
    for some in SOME:
        for first in {37, m - some} if a.shape[1] < 1000 else {37}:
            if first + some <= m:
                rows = slice(first, first + some)
                assert same_bits(times(a[rows], b), got[rows]), (some, first)
    for row in range(0, m, 9 if a.shape[1] < 200 else 29):
        assert same_bits(times(a[row : row + 1], b), got[row : row + 1]), row


# ---------------------------------------------------------------------------------------------
# Rows


def test_a_stage_is_batch_invariant():
    assert STAGES and all(not stage.strict for stage in STAGES.values())


@on_every_device
@on_every_maker
@pytest.mark.parametrize("k", DEPTHS)
def test_a_row_has_the_bits_that_it_has_alone(k, data, device):
    a, b = MAKERS[data](M, N, k)
    x, y = a.to(device), b.to(device)
    got = limbs(x, y)
    assert right(NAME, got, a, b)
    alone(x, y, got)
    if device == "cuda":
        assert same_bits(got, limbs(a, b))


@on_every_device
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("k", (33, 300))
def test_layouts_of_rows_do_not_matter(k, layout, device):
    """Those of A; how B lies decides how it is decomposed."""
    a, b = (t.to(device) for t in mixed(M, N, k))
    trans_a, trans_b = (letter == "T" for letter in layout)
    x, y = stored(a, trans_a), stored(b, trans_b)
    got = limbs(x, y, trans_a=trans_a, trans_b=trans_b)
    assert same_bits(got, limbs(a, y, trans_b=trans_b))
    assert right(NAME, got, x, y, trans_a=trans_a, trans_b=trans_b)

    def times(a, b):
        return limbs(stored(a, trans_a), y, trans_a=trans_a, trans_b=trans_b)

    alone(a, b, got, times)


@pytest.mark.parametrize("view", VIEWS)
def test_strides_of_rows_do_not_matter(view):
    a, b = mixed(70, N, 300)
    assert same_bits(limbs(VIEWS[view](a), b), limbs(a, b))


@on_every_device
@pytest.mark.parametrize("k", (32, 600))
def test_other_rows_change_no_bit(k, device):
    a, b = mixed(M, N, k)
    x, y = a.to(device), b.to(device)
    want = limbs(x, y)
    for seed in range(3):
        kept = torch.rand(M, device=device) < 0.3
        others, _ = mixed(M, N, k, KINDS[seed:])
        changed = torch.where(kept[:, None], x, others.to(device))
        assert same_bits(limbs(changed, y)[kept], want[kept])
        order = torch.randperm(M, device=device)
        assert same_bits(limbs(x[order], y), want[order])


def test_without_it_other_rows_change_bits():
    """Or the test above could not fail: how many tiles there are says where K is cut."""
    a, b = MAKERS["doubtful"](M, N, 600)
    plain = functools.partial(torch.ops.xgemm.sgemm, kernel=NAME)
    with simt.configure(sm_count=3):
        assert not same_bits(plain(a[:1], b), plain(a, b)[:1])


@on_every_row
@pytest.mark.parametrize("k", (33, 600))
def test_every_tile_has_the_same_bits(stage, row, k):
    a, b = mixed(M, N, k)
    for sms in (132, 3):
        with simt.configure(row=row, sm_count=sms):
            got = limbs(a, b, kernel=stage)
        assert same_bits(got, limbs(a, b, kernel=stage))


@on_every_device
def test_slabs_have_the_same_bits(device):
    for m, n in ((560, 20), (20, 560)):
        a, b = (t.to(device) for t in mixed(m, n, 70))
        want = limbs(a, b)
        with simt.configure(slab_bytes=1):
            assert same_bits(limbs(a, b), want)


@on_every_device
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_batch_has_the_bits_of_its_matrices(layout, device):
    for batch in ((3, 3), (3, None), (None, 3), (1, 3), (3, 1)):
        a, b, flags = operands(5, 40, 300, layout, batch=batch, data="wide", device=device)
        c = torch.randn(3, 5, 40, device=device)
        for call in (limbs, product):
            got, with_c = call(a, b, **flags), call(a, b, c, **flags)
            for i in range(3):
                one = [t if t.dim() == 2 else t[i if t.shape[0] > 1 else 0] for t in (a, b)]
                assert same_bits(got[i], call(*one, **flags))
                assert same_bits(with_c[i], call(*one, c[i], **flags))


@on_every_device
def test_a_batch_is_decomposed_as_its_matrices_are(device):
    """Three of 17 strips of B's columns are partitioned in another way than one."""
    a, b, _ = operands(3, 544, 1100, batch=(3, 3), data="wide", device=device)
    got = limbs(a, b)
    assert all(same_bits(got[i], limbs(a[i], b[i])) for i in range(3))


# ---------------------------------------------------------------------------------------------
# K in parts (csrc/xgemm/core/k_parts.h)

SLICE = 32
# Columns, K, and how many parts that is: two; more than are added at a time; 16, the last of two
# slices.
CUT = ((141, 1100, 2), (20, 4200, 8), (20, 8224, 16))
# Of 132 multiprocessors several share a tile; of 7 some tiles are shared, and of 1 none is.
SMS = (132, 7, 1)


def parts_of(n: int, k: int) -> list[slice]:
    """Where K is cut, as the header says."""
    slices, tiles = -(-k // SLICE), -(-n // 128)
    most = max(1, min(16, 128 // tiles, slices // 16))
    length = -(-slices // most) * SLICE
    return [slice(first, min(first + length, k)) for first in range(0, k, length)]


def ways(m: int, n: int, k: int) -> set[bool]:
    """Whether some clusters share a tile, for each number of multiprocessors."""
    found = set()
    for sms in SMS:
        _C.simt_forget_sites()
        with simt.configure(sm_count=sms):
            limbs(torch.zeros(m, k), torch.zeros(k, n))
        found.add(any(site.startswith("invariant_wgmma.h:") for site in simt.sites("signal")))
    return found


@pytest.mark.parametrize("n, k, count", CUT)
def test_parts_are_added_in_order(n, k, count):
    """As their products are, where the largest of each row and part are alike."""
    cuts = parts_of(n, k)
    assert len(cuts) == count
    a, b = torch.rand(70, k) + 1, torch.rand(k, n) + 1
    for cut in cuts:
        a[:, cut.start], b[cut.start] = 1.99, 1.99
    a, b = a * torch.randn(70, k).sign(), b * torch.randn(k, n).sign()
    want = torch.full((70, n), -0.0)
    for cut in cuts:
        want += limbs(a[:, cut], b[cut])
    assert same_bits(limbs(a, b), want)
    assert same_bits(limbs(a[:3], b), want[:3])


@on_every_row
@pytest.mark.parametrize("n, k", [cut[:2] for cut in CUT[:2]])
def test_whoever_makes_parts_bits_are_the_same(stage, row, n, k):
    a, b = mixed(130, n, k)
    want = limbs(a, b, kernel=stage)
    assert right(stage, want, a, b)
    for m, sms in itertools.product((1, 64, 130), SMS):
        with simt.configure(row=row, sm_count=sms):
            assert same_bits(limbs(a[:m], b, kernel=stage), want[:m]), (m, sms)


def test_parts_are_made_both_ways():
    """Or the test above could not fail."""
    for m in (1, 130):
        assert ways(m, 141, 1100) == {False, True}
    assert ways(130, 141, 900) == {False}  # one part


@on_every_device
@on_every_maker
def test_a_row_of_many_parts_has_the_bits_that_it_has_alone(data, device):
    a, b = (t.to(device) for t in MAKERS[data](130, 20, 4200))
    got = limbs(a, b)
    assert right(NAME, got, a, b)
    for rows in (slice(37, 38), slice(63, 66), slice(64, 128)):
        assert same_bits(limbs(a[rows], b), got[rows])


@on_every_device
@pytest.mark.parametrize("sms", SMS)
def test_parts_of_batches_and_of_slabs(sms, device):
    a, b, _ = operands(5, 40, 1100, batch=(3, 3), data="wide", device=device)
    x, y = (t.to(device) for t in mixed(560, 20, 1100))
    batch, whole = [limbs(a[i], b[i]) for i in range(3)], limbs(x, y)
    packed = torch.ops.xgemm.prepack(y, kernel=NAME)
    with simt.configure(sm_count=sms):
        assert all(map(same_bits, limbs(a, b), batch))
        assert all(map(same_bits, limbs(a, b[0]), (limbs(a[i], b[0]) for i in range(3))))
        assert same_bits(limbs(x, y, packed=packed), whole)
        assert same_bits(limbs(x[:9], y, packed=packed), whole[:9])
        with simt.configure(slab_bytes=1):
            assert same_bits(limbs(x, y), whole)
            assert same_bits(limbs(x, y, packed=packed), whole)


@on_every_device
@pytest.mark.parametrize("sms", SMS)
def test_the_end_of_parts(sms, device):
    """What an epilogue does is done once, with all parts."""
    a, b = (t.to(device) for t in mixed(130, 40, 1100))
    c = torch.randn(130, 40, device=device)
    options = {"alpha": 0.3, "beta": -0.5, "activation": "gelu"}
    want = limbs(a, b, c, **options)
    with simt.configure(sm_count=sms):
        out = c.clone()
        torch.ops.xgemm.sgemm.out(a, b, out, out=out, kernel=NAME, batch_invariant=True, **options)
        assert same_bits(out, want)
        assert same_bits(limbs(a[7:8], b, c[7:8], **options), want[7:8])


# ---------------------------------------------------------------------------------------------
# Few rows of a B that lies along K (csrc/xgemm/mainloop/few_rows.h): other kernels, the same bits

# Columns, K: columns of a strip that are not there, a last slice that is not filled, and one part,
# several of a cluster, or of a block.
STRIPS = ((13, 20), (24, 32), (141, 36), (141, 300), (50, 1100), (20, 4200), (9, 8224))
GROUPS = ((1, 37), (1, 11), (3, 20), (8, 5), (9, 21), (16, 7))  # rows, and the first of them


def by_strips(a: Tensor, b: Tensor, **flags) -> bool:
    """Whether the emulator makes the product by strips."""
    _C.simt_forget_sites()
    limbs(a, b, **flags)
    return any(site.startswith("few_rows.h:") for site in simt.sites("commit"))


def along_k(b: Tensor) -> Tensor:
    """The same matrix, or matrices, each column of which lies together."""
    return b.mT.contiguous().mT


@on_every_device
@on_every_maker
@pytest.mark.parametrize("n, k", STRIPS)
def test_few_rows_have_the_bits_of_many(n, k, data, device):
    a, b = MAKERS[data](40, n, k)
    a, b = a.to(device), along_k(b.to(device))
    whole = limbs(a, b)
    assert right(NAME, whole, a.cpu(), b.cpu())
    packed = torch.ops.xgemm.prepack(b, kernel=NAME)
    for rows, first in GROUPS:
        some = slice(first, first + rows)
        assert same_bits(limbs(a[some], b), whole[some]), (rows, first)
        assert same_bits(limbs(a[some], b, packed=packed), whole[some]), (rows, first)
    if device == "cpu":
        assert by_strips(a[:16], b) and by_strips(a[:1], b, packed=packed)
        assert not by_strips(a[:17], b) and not by_strips(a[:17], b, packed=packed)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_column_among_plain_ones(kind):
    """One column of a strip, one row of A, or both."""
    k = 300
    plain, odd = torch.randn(20, k), [_of_kind(kind, k) for _ in range(2)]
    b = torch.randn(20, k)
    b[11] = odd[0]
    a = plain.clone()
    a[4] = odd[1]
    for x, y in ((plain, b), (a, b), (a, plain)):
        whole = limbs(x, y.T)
        for some in (slice(4, 5), slice(0, 8), slice(4, 20)):
            assert same_bits(limbs(x[some], y.T), whole[some])


@on_every_device
@pytest.mark.parametrize("sms", SMS)
@pytest.mark.parametrize("m", (5, 11))
def test_few_rows_of_batches(m, sms, device):
    for batch in ((3, 3), (3, None), (None, 3), (1, 3), (3, 1)):
        a, b, _ = operands(m, 40, 1100, batch=batch, data="wide", device=device)
        b, c = along_k(b), torch.randn(3, m, 40, device=device)
        with simt.configure(sm_count=sms):
            got = limbs(a, b, c, activation="gelu")
        for i in range(3):
            x, y = (t if t.dim() == 2 else t[i if t.shape[0] > 1 else 0] for t in (a, b))
            many = torch.cat([x, x, x, x])
            want = limbs(many, y, torch.cat([c[i]] * 4), activation="gelu")[:m]
            assert same_bits(got[i], want)


@on_every_device
@pytest.mark.parametrize("options", [{"beta": -0.5}, {"alpha": 0.3, "beta": 2.0}], ids=str)
def test_the_end_of_few_rows(options, device):
    """Each result is stored once, so that C may be D; of any kind."""
    a, b = (t.to(device) for t in mixed(48, 45, 300))
    b, c = along_k(b), torch.randn(48, 45, device=device)
    want = limbs(a, b, c, **options)
    for first in range(0, 48, 12):
        some = slice(first, first + 12)
        out = c[some].clone()
        torch.ops.xgemm.sgemm.out(
            a[some], b, out, out=out, kernel=NAME, batch_invariant=True, **options
        )
        assert same_bits(out, want[some])


@pytest.mark.parametrize("views", list(itertools.product(VIEWS, VIEWS)), ids="-".join)
def test_operands_of_few_rows_may_lie_anywhere(views):
    a, b = mixed(40, 30, 100)
    x, y = VIEWS[views[0]](a), VIEWS[views[1]](b.T.contiguous()).T
    assert same_bits(limbs(x[9:20], y), limbs(x, y)[9:20])
    if views[1] == "plain":
        assert by_strips(x[9:20], y)
        assert same_bits(limbs(x[9:20], y), limbs(a[9:20], along_k(b)))


def test_what_is_not_made_by_strips():
    """A B whose columns do not lie in vectors of 16 bytes; but its limbs do, once they are kept."""
    a, b = torch.randn(9, 301), torch.randn(301, 20)
    for x, y in ((a, along_k(b)), (a[:, :300], b[:300]), (a[:, :300], along_k(b)[1:])):
        assert not by_strips(x, y)
        packed = torch.ops.xgemm.prepack(y, kernel=NAME)
        assert by_strips(x, y, packed=packed)
        assert same_bits(limbs(x, y, packed=packed), limbs(x, y))
    assert by_strips(a[:, :300], along_k(b[:300]))


@pytest.mark.parametrize("last", (2.0**-25, 2.0**-26, 2.0**-27, 2.0**-28, 2.0**-40))
@pytest.mark.parametrize("parts", (1, 2))
def test_a_scale_that_is_known_in_the_end(parts, last):
    """A warp has scaled a column by what it had seen, and the largest comes last, or elsewhere."""
    k = 1100 if parts == 2 else 300
    a, b = torch.randn(20, k), torch.randn(k, 9)
    b[: k // 2, ::2] *= 2.0**-12
    b[5] = last * (1 + torch.rand(9))
    for largest in (k - 1, k // 4):
        y = b.clone()
        y[largest] = 1.9
        whole = limbs(a, along_k(y))
        assert same_bits(limbs(a[3:4], along_k(y)), whole[3:4])
        assert same_bits(limbs(a[4:20], along_k(y)), whole[4:20])


# ---------------------------------------------------------------------------------------------
# What is made anew, and what is stored


@on_every_device
@pytest.mark.parametrize("k", (64, 300))
def test_what_limbs_cannot_give_is_one_chain(k, device):
    """Few results of a unit, more than are listed, and all."""
    for rows, columns in ((1, 1), (2, 9), (5, 30), (64, 128)):
        a, b, _ = operands(70, 140, k, device=device)
        a[:rows, : k // 2] *= 2.0**-40
        b[k // 2 :, :columns] = 0.0
        got, chain = limbs(a, b), sgemm(a, b, kernel="naive")
        assert same_bits(got[:rows, :columns], chain[:rows, :columns])
        assert not same_bits(got[rows:], chain[rows:])
        assert not same_bits(got[:rows, columns:], chain[:rows, columns:])


@on_every_device
@on_every_maker
@pytest.mark.parametrize(
    "options", [{"beta": -0.5}, {"alpha": 0.3, "beta": 2.0, "activation": "gelu"},
                {"activation": "silu", "beta": 0.0}], ids=str
)  # fmt: skip
def test_each_result_is_stored_once(data, options, device):
    """So C may be D."""
    a, b = (t.to(device) for t in MAKERS[data](M, N, 90))
    c = torch.randn(M, N, device=device)
    want = limbs(a, b, c, **options)
    if "activation" not in options:
        assert right(NAME, *(t.cpu() for t in (want, a, b, c)), **options)
    out = c.clone()
    torch.ops.xgemm.sgemm.out(a, b, out, out=out, kernel=NAME, batch_invariant=True, **options)
    assert same_bits(out, want)
    for row in range(0, M, 11):
        one = slice(row, row + 1)
        assert same_bits(limbs(a[one], b, c[one], **options), want[one])
    assert same_bits(limbs(a, b, c[3], **options)[3:4], limbs(a[3:4], b, c[3], **options))


@on_every_device
def test_a_packed_b_has_the_same_bits(device):
    # B's columns in strips: whole ones, of clusters of four blocks, two (many columns), 8 and 16.
    for k, trans_b in itertools.product((40, 700, 1500, 2100, 4200, 16500), (False, True)):
        n = 1550 if k == 2100 and not trans_b else 40
        a, b = (t.to(device) for t in mixed(20, n, k))
        b = stored(b, trans_b)
        packed = torch.ops.xgemm.prepack(b, trans_b=trans_b, kernel=NAME)
        want = limbs(a, b, trans_b=trans_b)
        assert same_bits(limbs(a, b, trans_b=trans_b, packed=packed), want)


@pytest.mark.parametrize("name", ("normal", "uniform", "relu", "wide"))
def test_no_worse_than_the_chain(name):
    make = accuracy.DISTRIBUTIONS[name].make
    for k in (1, 33, 300):
        a, b = make(accuracy.Draw("cpu", k), 128, 128, k)
        assert broken(name, a, b, limbs(a, b)) == {}


# ---------------------------------------------------------------------------------------------
# The functions


def test_on_a_cpu_auto_makes_the_chains_of_ieee():
    a, b, flags = operands(5, 9, 1500, "NT")
    want = sgemm(a, b, precision="ieee", invariant="batch", **flags)
    assert same_bits(sgemm(a, b, invariant="batch", **flags), want)
    for kernel in ("coalesced", "split_k"):
        assert same_bits(sgemm(a, b, invariant="batch", kernel=kernel, **flags), want)


@on_every_device
@pytest.mark.parametrize("layout", LAYOUTS)
def test_functions_have_the_bits_of_the_operator(layout, device):
    a, b, flags = operands(70, 40, 200, layout, data="wide", device=device)
    c = torch.randn(40, device=device)
    left = a.T.contiguous() if flags["trans_a"] else a
    for options in ({}, {"alpha": 0.5, "activation": "gelu"}, {"beta": 3.0}):
        want = limbs(left, b, c, trans_b=flags["trans_b"], **options)
        assert same_bits(product(a, b, c, **options, **flags), want)
    out = torch.ones(70, 40, device=device)
    assert product(a, b, c, out=out, **flags) is out
    assert same_bits(out, product(a, b, c, **flags))
    x, weight = torch.randn(2, 35, 60, device=device), torch.randn(20, 60, device=device)
    y = linear(x, weight, kernel=NAME, invariant="batch")
    assert same_bits(y.flatten(0, 1), limbs(x.flatten(0, 1), weight, trans_b=True))
    packed = xgemm_torch.prepack(weight, kernel=NAME)
    assert same_bits(linear(x, packed, kernel=NAME, invariant="batch"), y)
    assert same_bits(product(x[0], packed, trans_b=True), y[0])


@on_every_device
def test_sizes_of_nothing_and_of_one(device):
    for m, n, k in ((0, 3, 4), (3, 0, 4), (3, 4, 0), (1, 1, 1), (1, 5, 2), (5, 1, 2)):
        a, b, _ = operands(m, n, k, device=device)
        bias = torch.randn(n, device=device)
        got = product(a, b, bias)
        torch.testing.assert_close(got.double(), exact(a, b, bias), rtol=1e-6, atol=1e-6)


@on_every_device
def test_gradients_are_such_products(device):
    x, weight = torch.randn(66, 40, device=device), torch.randn(50, 40, device=device)
    bias, grad = torch.randn(50, device=device), torch.randn(66, 50, device=device)

    def of(m):
        leaves = [t.clone().requires_grad_() for t in (x[:m], weight, bias)]
        y = linear(*leaves, kernel=NAME, invariant="batch")
        return torch.autograd.grad(y, leaves, grad[:m])

    of_x, of_weight, of_bias = of(66)
    assert same_bits(of_x, limbs(grad, weight))
    assert all(same_bits(of(m)[0], of_x[:m]) for m in (1, 5, 64))
    assert same_bits(of_weight, limbs(x.T, grad).T)
    torch.testing.assert_close(of_bias, grad.sum(0), rtol=1e-4, atol=1e-4)


def test_transforms():
    a, b = torch.randn(3, 4, 40), torch.randn(40, 5)
    mapped = torch.func.vmap(product, (0, None))(a, b)
    assert all(same_bits(mapped[i], product(a[i], b)) for i in range(3))
    _, tangent = torch.func.jvp(product, (a[0], b), (a[1], b))
    torch.testing.assert_close(tangent, a[1] @ b + a[0] @ b, rtol=1e-4, atol=1e-4)


def test_opcheck():
    a, b, c = (torch.randn(size, requires_grad=True) for size in ((3, 70), (70, 5), (5,)))
    flags = {"precision": "fp32", "kernel": NAME, "alpha": 0.5, "activation": "relu"}
    torch.library.opcheck(torch.ops.xgemm.sgemm_invariant.default, (a, b, c), flags)


def test_compiled_without_breaks():
    layer = xgemm_torch.nn.Linear(70, 6, kernel=NAME, invariant="batch")
    compiled = torch.compile(layer, fullgraph=True, dynamic=True)
    for m in (4, 7):
        x = torch.randn(m, 70, requires_grad=True)
        found = []
        for f in (layer, compiled):
            layer.zero_grad()
            y = f(x)
            found.append((y, *torch.autograd.grad(y.square().sum(), (x, *layer.parameters()))))
        assert all(map(same_bits, *found))


def test_layers():
    model = nn.Sequential(nn.Linear(70, 8), nn.ReLU(), nn.Linear(8, 2))
    report = xgemm_torch.convert(model, kernel=NAME, invariant="batch")
    assert "invariant=batch" in str(report) and "invariant=batch" in repr(model[0])
    x = torch.randn(5, 70)
    first = model[0]
    want = product(x, first.weight, first.bias, trans_b=True)
    assert same_bits(first(x), want)
    assert all(same_bits(first(x[i : i + 1]), want[i : i + 1]) for i in range(5))
    assert same_bits(first.eval().prepack()(x), want)


def test_what_is_refused():
    a, b, _ = operands(2, 3, 70)
    other = next(s.name for s in xgemm_torch.stages() if not s.strict and s.name not in STAGES)
    raw = torch.ops.xgemm.sgemm
    stages = "stages that are: " + ", ".join(STAGES)
    for call, words in (
        (lambda: sgemm(a, b, invariant="tp"), "invariant='tp' needs precision='ieee', got 'fp32'"),
        (lambda: linear(a, a, invariant="tp"), "linear: invariant='tp' needs precision='ieee'"),
        (lambda: sgemm(a, b, invariant="batch", kernel=other), f"{other} is not batch_inv"),
        (lambda: raw(a, b, kernel=other, batch_invariant=True), stages),
        (lambda: raw(a, b, kernel="naive", batch_invariant=True), "naive is not batch_invariant"),
        (lambda: raw(a, b, batch_invariant=True), "a CPU's BLAS is not batch_invariant"),
        (lambda: raw(a, b, precision="ieee", batch_invariant=True), "is of precision='fp32'"),
        (lambda: product(a, b.T), "sgemm: inner sizes differ"),
        (lambda: product(a, b, torch.ones(4)), "c does not broadcast"),
        (lambda: product(a, b, beta=2.0), "there is no c"),
        (lambda: torch.ops.xgemm.sgemm_invariant(a, b, precision="fp32", parts=(1, 8, 1)),
         "parts are of precision='ieee'"),
        (lambda: torch.ops.xgemm.sgemm_invariant(a, b, precision="tf32"), "precision must be"),
    ):  # fmt: skip
        with pytest.raises(ValueError) as raised:
            call()
        assert words in str(raised.value)


# ---------------------------------------------------------------------------------------------
# On a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("data", ["normal", "wide"])
@pytest.mark.parametrize("n, k", [(4096, 768), (1500, 4096), (768, 11008), (200, 16384)])
def test_large_products_have_the_bits_of_their_rows(n, k, data):
    a, b = DATA[data](8192, k, device="cuda"), DATA[data](n, k, device="cuda")
    bias = torch.randn(n, device="cuda")
    how = {"invariant": "batch", "trans_b": True}
    whole = sgemm(a, b, bias, **how)
    for m in (1, 2, 63, 64, 65, 200, 1024, 4097):
        rows = slice(8192 - m, 8192)
        assert same_bits(sgemm(a[rows], b, bias, **how), whole[rows])
        assert same_bits(linear(a[:m], b, bias, invariant="batch"), whole[:m])
    packed = xgemm_torch.prepack(b)
    assert same_bits(linear(a, packed, bias, invariant="batch"), whole)
    for m in (1, 5, 8, 9, 16):
        assert same_bits(linear(a[:m], b, bias, invariant="batch"), whole[:m])
        assert same_bits(linear(a[:m], packed, bias, invariant="batch"), whole[:m])
    assert same_bits(sgemm(a[:3].cpu(), b.cpu(), bias.cpu(), kernel=NAME, **how), whole[:3])


@pytest.mark.gpu
def test_a_cuda_graph_holds_it():
    a, b = (t.cuda() for t in mixed(130, 200, 600))
    want = sgemm(a, b, invariant="batch")
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph, stream=stream):
        got = sgemm(a, b, invariant="batch")
    graph.replay()
    assert same_bits(got, want)
