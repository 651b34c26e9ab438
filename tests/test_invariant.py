"""Bits that depend on no other row ("batch"), nor on the degree of tensor parallelism ("tp").

What ranks do with "tp" is in test_sharding.py.
"""

from __future__ import annotations

import copy
import itertools
import pickle

import pytest
import torch
from problems import EMPTY, LAYOUTS, VIEWS, exact, operands, same_bits
from test_stages import on_every_device
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import xgemm_torch
from xgemm_torch import invariant, linear, sgemm, simt, split_k_size
from xgemm_torch.types import Invariant

ROWS = (1, 2, 3, 17, 64, 130, 300)
# (N, K): one chain that ieee would cut or not, two, three, a shorter one; parts of several chains.
SIZES = ((33, 500), (300, 768), (5, 1600), (200, 2177), (8, 8512))
INVARIANTS: tuple[Invariant, ...] = ("batch", "tp")

on_every_invariant = pytest.mark.parametrize("what", INVARIANTS)


def product(a, b, c=None, *, what: Invariant = "batch", **flags):
    return sgemm(a, b, c, precision="ieee", invariant=what, **flags)


def in_one(monkeypatch, yes: bool) -> None:
    """Which way chains are made, whatever the device and the sizes."""
    monkeypatch.setattr(
        invariant._Calls, "in_one", lambda self, a, b, chain: yes or chain >= a.shape[-1]
    )


# ---------------------------------------------------------------------------------------------
# Rows


@on_every_device
@on_every_invariant
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("n, k", SIZES)
def test_a_row_has_the_same_bits_among_any_others(n, k, layout, what, device):
    a, b, flags = operands(ROWS[-1], n, k, layout, device=device)
    bias = torch.randn(n, device=device)
    whole = product(a, b, bias, what=what, **flags)
    for m in ROWS:
        rows = slice(ROWS[-1] - m, ROWS[-1])
        some = a[:, rows] if flags["trans_a"] else a[rows]
        assert same_bits(product(some, b, bias, what=what, **flags), whole[rows])
    if device == "cuda":
        assert same_bits(whole, product(a.cpu(), b.cpu(), bias.cpu(), what=what, **flags))


def test_without_it_bits_depend_on_the_rows():
    """Or the test above could not fail."""
    for n, k in ((300, 768), (200, 1377)):
        a, b, _ = operands(ROWS[-1], n, k)
        assert not same_bits(sgemm(a[:3], b, precision="ieee"), sgemm(a, b, precision="ieee")[:3])


@on_every_device
@on_every_invariant
def test_a_batch_has_the_bits_of_its_matrices(what, device):
    for batch in ((3, 3), (3, None), (None, 3), (1, 3), (3, 1)):
        a, b, flags = operands(4, 6, 1400, "NT", batch=batch, device=device)
        c = torch.randn(3, 4, 6, device=device)
        got = product(a, b, c, what=what, **flags)
        for i in range(3):
            one = [t if t.dim() == 2 else t[i if t.shape[0] > 1 else 0] for t in (a, b)]
            assert same_bits(got[i], product(*one, c[i], what=what, **flags))


# ---------------------------------------------------------------------------------------------
# Chains and parts


def test_lengths_of_chains():
    assert split_k_size(1, 256, 768, 1) > 0  # one chain where ieee makes several
    for k in (*range(900, 3000), 4096, 6144, 11008, 14336, 16384, 10**6):
        each = invariant.chain_length(k)
        assert each <= 1024
        assert each == k or (each % 32 == 0 and (k % each == 0 or each == 1024))
    assert [invariant.chain_length(6144, n) for n in (None, 8, 2047, 2048)] == [
        1024,
        512,
        512,
        1024,
    ]
    assert [invariant.chain_length(k) for k in (1, 768, 1024, 1025, 1280, 4096, 11008)] == [
        1, 768, 1024, 1024, 640, 1024, 1024
    ]  # fmt: skip


@pytest.mark.parametrize("n, k", SIZES)
@pytest.mark.parametrize(
    "options", [{}, {"alpha": 0.3, "beta": -0.7}, {"activation": "gelu"}, {"beta": 0.0}], ids=str
)
def test_batch_has_the_bits_of_chains_of_that_length(n, k, options):
    a, b, flags = operands(7, n, k, "TN", data="wide")
    c = torch.randn(n)
    with simt.configure(split_k_size=invariant.chain_length(k, n) if k > 1024 else 0):
        want = sgemm(a, b, c, precision="ieee", **options, **flags)
    assert same_bits(product(a, b, c, **options, **flags), want)


def test_the_length_is_checked():
    a, b, _ = operands(4, 5, 100)
    sgemm_op = torch.ops.xgemm.sgemm
    for chain in (-32, 0, 33, 99):
        with pytest.raises(ValueError, match=f"chain must be a multiple of 32 or K, got {chain}"):
            sgemm_op(a, b, precision="ieee", chain=chain)
    with pytest.raises(ValueError, match="chain is of precision='ieee'"):
        sgemm_op(a, b, chain=32)
    whole = sgemm_op(a, b, precision="ieee", chain=100)
    assert same_bits(whole, torch.ops.xgemm.naive(a, b))
    cut = torch.ops.xgemm.split_k(a, b, chain=32)
    assert same_bits(cut, sgemm_op(a, b, precision="ieee", chain=32)) and not same_bits(cut, whole)


def in_pairs(terms):
    while len(terms) > 1:
        terms = [x + y for x, y in zip(terms[::2], terms[1::2], strict=True)]
    return terms[0]


@pytest.mark.parametrize("k", [8, 24, 760, 5632])
def test_tp_adds_eight_parts_in_pairs(k):
    a, b, _ = operands(5, 9, k, data="wide")
    each = [product(x, y) for x, y in zip(a.chunk(8, 1), b.chunk(8, 0), strict=True)]
    assert same_bits(product(a, b, what="tp"), in_pairs(each))


@pytest.mark.parametrize("k", [8, 12, 14, 24, 2000, 5632, 11008])
def test_a_rank_has_whole_subtrees(k):
    a, b, _ = operands(3, 9, k, data="wide")
    op = torch.ops.xgemm.sgemm_invariant
    for ranks in (1, 2, 4, 8):
        if k % ranks == 0:
            shards = zip(a.chunk(ranks, 1), b.chunk(ranks, 0), strict=True)
            each = [op(x, y, parts=(8, 8, 8 // ranks)) for x, y in shards]
            assert same_bits(in_pairs(each), product(a, b, what="tp"))


@on_every_device
@on_every_invariant
@pytest.mark.parametrize("n, k", [*SIZES, (64, 4096), (3, 24)])
def test_both_ways_of_making_chains_have_the_same_bits(monkeypatch, n, k, what, device):
    a, b, flags = operands(20, n, k, "NT", data="wide", device=device)
    for c, options in (
        (None, {}),
        (torch.randn(n, device=device), {"activation": "relu"}),
        (torch.randn(n, device=device), {"alpha": 0.5, "beta": 3.0}),
        (torch.randn(20, 1, device=device), {}),
        (torch.randn(1, device=device), {"activation": "silu"}),
    ):
        found = []
        for way in (False, True):
            with monkeypatch.context() as patched:
                in_one(patched, way)
                found.append(product(a, b, c, what=what, **options, **flags))
        assert same_bits(*found)


@on_every_device
@on_every_invariant
def test_zeros_have_the_same_sign_both_ways(monkeypatch, what, device):
    """A chain may end in -0, where a product underflows, and so may a sum of several."""
    a = torch.full((2, 1280), 1e-30, device=device)
    b = torch.full((1280, 3), -1e-30, device=device)
    assert (product(a[:, :8], b[:8]).view(torch.int32) == -(2**31)).all()
    c = torch.full((3,), -0.0, device=device)
    for addend, options in itertools.product((None, c), ({}, {"alpha": 2.0})):
        with monkeypatch.context() as patched:
            in_one(patched, False)
            one = product(a, b, addend, what=what, **options)
            in_one(patched, True)
            assert same_bits(one, product(a, b, addend, what=what, **options))


@on_every_invariant
def test_sizes_of_nothing_and_of_few(what):
    for m, n, k in [*EMPTY, *((2, 3, k) for k in range(1, 18))]:
        a, b, _ = operands(m, n, k)
        nan, bias = torch.full((m, n), torch.nan), torch.randn(n)
        for got, want in (
            (product(a, b, what=what), exact(a, b)),
            (product(a, b, bias, what=what), exact(a, b, bias)),
            (product(a, b, nan, beta=0.0, what=what), exact(a, b)),
        ):
            torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


@on_every_invariant
@pytest.mark.parametrize("way", ["at once", "in turn"])
def test_small_sizes_and_batches_both_ways(monkeypatch, way, what):
    in_one(monkeypatch, way == "at once")
    test_sizes_of_nothing_and_of_few(what)
    test_a_batch_has_the_bits_of_its_matrices(what, "cpu")


@on_every_invariant
@pytest.mark.parametrize("views", list(zip(VIEWS, reversed(VIEWS), strict=True)), ids="-".join)
def test_strides_do_not_matter(views, what):
    a, b, _ = operands(3, 5, 700, views=views)
    assert same_bits(product(a, b, what=what), product(a.contiguous(), b.contiguous(), what=what))


@on_every_invariant
def test_any_strict_stage_has_these_bits(what):
    a, b, _ = operands(3, 5, 700)
    for kernel in ("coalesced", "split_k"):
        assert same_bits(product(a, b, what=what, kernel=kernel), product(a, b, what=what))


def test_it_is_as_accurate_as_several_chains():
    a, b, _ = operands(20, 30, 11008)
    size = (a.abs().double() @ b.abs().double()) * 2.0**-24
    for what in INVARIANTS:
        assert ((product(a, b, what=what).double() - exact(a, b)).abs() / size).max() < 8


# ---------------------------------------------------------------------------------------------
# Gradients and transforms


def derived(f, operands, grad, tangent):
    """First and second derivatives."""
    operands = [t.detach().clone().requires_grad_() for t in operands]
    out = f(*operands)
    first = torch.autograd.grad(out, operands, grad, create_graph=True)
    return *first, *torch.autograd.grad(first[0], operands[1], tangent)


@on_every_device
@on_every_invariant
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "batch, c",
    [((None, None), (6,)), ((2, 2), (3, 1)), ((2, None), (2, 3, 6)), ((None, 2), (6,)),
     ((1, 2), (1, 6)), ((2, 1), (2, 1, 6))],
)  # fmt: skip
def test_gradients(batch, c, layout, what, device):
    a, b, flags = operands(3, 6, 650, layout, batch=batch, device=device)
    c = torch.randn(c, device=device)
    ta, tb = flags.values()
    grad = torch.randn_like(product(a, b, c, **flags))

    def stock(a, b, c):
        return 0.5 * torch.matmul(a.mT if ta else a, b.mT if tb else b) + 2 * c

    def ours(a, b, c):
        return product(a, b, c, alpha=0.5, beta=2.0, what=what, **flags)

    tangent = torch.randn_like(a)
    got = derived(ours, (a, b, c), grad, tangent)
    want = derived(stock, (a.double(), b.double(), c.double()), grad.double(), tangent.double())
    for x, y in zip(got, want, strict=True):
        torch.testing.assert_close(
            x.double(), y, rtol=1e-4, atol=1e-4 * float(y.detach().abs().max())
        )


@on_every_device
def test_gradients_of_rows_have_the_same_bits_among_any_others(device):
    x, weight = torch.randn(300, 40, device=device), torch.randn(1377, 40, device=device)
    bias, grad = torch.randn(1377, device=device), torch.randn(300, 1377, device=device)

    def of(m):
        rows = x[:m].clone().requires_grad_()
        y = linear(rows, weight, bias, precision="ieee", invariant="batch")
        return torch.autograd.grad(y, rows, grad[:m])[0]

    for m in ROWS:
        assert same_bits(of(m), of(300)[:m])


def test_sums_of_gradients_are_in_one_order():
    """The bias's gradient is a product with ones; torch's sum has other bits."""
    grad, other = torch.randn(1000, 40), 0
    for what in INVARIANTS:
        bias = torch.zeros(40, requires_grad=True)
        x, weight = torch.randn(1000, 3), torch.randn(40, 3)
        linear(x, weight, bias, precision="ieee", invariant=what).backward(grad)
        assert same_bits(bias.grad, product(torch.ones(1, 1000), grad, what=what)[0])
        other += not same_bits(bias.grad, grad.sum(0))
    assert other


@on_every_invariant
def test_transforms(what):
    a, b = torch.randn(4, 3, 650), torch.randn(650, 5)
    tan_a, tan_b = torch.randn(3, 650), torch.randn(650, 5)

    def f(a, b):
        return product(a, b, what=what)

    mapped = torch.func.vmap(f, (0, None))(a, b)
    assert all(same_bits(mapped[i], f(a[i], b)) for i in range(4))
    _, tangent = torch.func.jvp(f, (a[0], b), (tan_a, tan_b))
    torch.testing.assert_close(tangent, tan_a @ b + a[0] @ tan_b, rtol=1e-3, atol=1e-3)
    per_sample = torch.func.vmap(torch.func.grad(lambda a, b: f(a, b).sum(), 1), (0, None))(a, b)
    want = a.sum(1).unsqueeze(-1).expand(4, 650, 5)
    torch.testing.assert_close(per_sample, want, rtol=1e-4, atol=1e-4)
    traced = torch.jit.trace(f, (a[0], b), check_trace=False)
    assert same_bits(traced(a[0], b), f(a[0], b))


@on_every_invariant
def test_opcheck(what):
    a, b, c = (torch.randn(size, requires_grad=True) for size in ((3, 700), (700, 5), (5,)))
    flags = {"parts": invariant.PARTS_OF[what], "alpha": 0.5, "activation": "relu"}
    torch.library.opcheck(torch.ops.xgemm.sgemm_invariant.default, (a, b, c), flags)


@on_every_invariant
def test_compiled_without_breaks(what):
    layer = xgemm_torch.nn.Linear(700, 6, precision="ieee", invariant=what)
    compiled = torch.compile(layer, fullgraph=True, dynamic=True)
    for m in (4, 7):
        x = torch.randn(m, 700, requires_grad=True)
        found = []
        for f in (layer, compiled):
            layer.zero_grad()
            y = f(x)
            found.append((y, *torch.autograd.grad(y.square().sum(), (x, *layer.parameters()))))
        assert all(map(same_bits, *found))


# ---------------------------------------------------------------------------------------------
# Arguments


def test_what_is_refused():
    a, b, _ = operands(2, 3, 700)
    for call, error, words in (
        (lambda: sgemm(a, b, invariant="tp"), ValueError,
         "sgemm: invariant='tp' needs precision='ieee', got 'fp32': limbs of a shard of K"),
        (lambda: sgemm(a, b, precision="ieee", invariant="rows"), ValueError,
         "sgemm: invariant must be 'batch', 'tp' or None, got 'rows'"),
        (lambda: sgemm(a, b, precision="ieee", invariant=True), TypeError, "must be a string"),
        (lambda: linear(a, a, invariant="tp"), ValueError, "linear: invariant='tp' needs"),
        (lambda: linear(a, a[:, :9], precision="ieee", invariant="tp"), ValueError,
         "linear: inner sizes differ"),
        (lambda: xgemm_torch.nn.Linear(2, 2, invariant="tp"), ValueError, "Linear: invariant"),
        (lambda: xgemm_torch.convert(nn.Linear(2, 2), invariant="tp"), ValueError,
         "convert: invariant='tp' needs precision='ieee'"),
        (lambda: product(a, b.T), ValueError, "sgemm: inner sizes differ: a is"),
        (lambda: product(a, b, torch.ones(4)), ValueError, "c does not broadcast"),
        (lambda: product(a, b, torch.ones(4), beta=0.0), ValueError, "c does not broadcast"),
        (lambda: product(a, b, torch.ones(3).double()), TypeError, "c must be float32"),
        (lambda: product(a, b, beta=2.0), ValueError, "there is no c"),
        (lambda: product(a, b, kernel="dot"), ValueError, "other bits than precision='ieee'"),
        (lambda: product(a, b, activation="tanh"), ValueError, "no activation named"),
        (lambda: product(a, b, out=torch.ones(3, 3)), ValueError, "out must have shape"),
        (lambda: product(a, b.clone().requires_grad_(), out=torch.ones(2, 3)), RuntimeError,
         "don't support automatic"),
        (lambda: torch.ops.xgemm.sgemm_invariant(a, b, parts=(1, 3, 1)), ValueError,
         "three of 1, 2, 4 and 8"),
    ):  # fmt: skip
        with pytest.raises(error) as raised:
            call()
        assert words in str(raised.value)


def test_other_numbers_of_ranks_are_refused(monkeypatch):
    from xgemm_torch import tensor_parallel as tp

    monkeypatch.setattr(tp.dist, "get_world_size", lambda group: 6)
    for layer in (tp.column_parallel_linear, tp.row_parallel_linear):
        with pytest.raises(ValueError, match="the ranks must be 1, 2, 4 or 8, got 6"):
            layer(torch.randn(2, 3), torch.randn(4, 3))


@on_every_invariant
def test_out(what):
    a, b, _ = operands(2, 3, 700)
    out, room = torch.ones(2, 3), torch.ones(3, 2).T
    assert product(a, b, out, what=what, out=out) is out
    assert same_bits(out, product(a, b, torch.ones(2, 3), what=what))
    assert same_bits(product(a, b, what=what, out=room), product(a, b, what=what))


def test_layers():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(700, 8), nn.ReLU(), nn.Linear(8, 2))
    stock = copy.deepcopy(model)
    report = xgemm_torch.convert(model, precision="ieee", invariant="batch")
    assert "precision=ieee, invariant=batch" in str(report)
    assert "invariant=batch" in repr(model[0]) and model[0].invariant == "batch"
    x = torch.randn(5, 700)
    want = product(x, model[0].weight, model[0].bias, trans_b=True)
    assert same_bits(model[0](x), want)
    assert same_bits(pickle.loads(pickle.dumps(model))(x), model(x))
    torch.testing.assert_close(model(x), stock(x))
    again = xgemm_torch.nn.Linear.from_linear(model[0])
    assert again.invariant == "batch" and same_bits(again(x), want)
    other = xgemm_torch.nn.Linear.from_linear(stock[0], precision="ieee", invariant="tp")
    assert same_bits(other(x), product(x, stock[0].weight, stock[0].bias, trans_b=True, what="tp"))
    assert same_bits(other.eval().prepack()(x), other.unprepack()(x))
    xgemm_torch.revert(model)
    assert type(model[0]) is nn.Linear and "invariant" not in vars(model[0])


def test_leading_dimensions_are_rows():
    x, weight, bias = torch.randn(3, 5, 700), torch.randn(8, 700), torch.randn(8)
    for what in INVARIANTS:
        got = linear(x, weight, bias, precision="ieee", invariant=what)
        assert same_bits(got[2, 1:2], product(x[2, 1:2], weight, bias, what=what, trans_b=True))
        vector = linear(x, weight[0], bias[0], precision="ieee", invariant=what)
        assert same_bits(vector, got[..., 0])


def test_packed_weights_give_way():
    x, weight = torch.randn(3, 700), torch.randn(8, 700)
    want = product(x, weight, trans_b=True)
    packed = xgemm_torch.prepack(weight)
    assert same_bits(linear(x, packed, precision="ieee", invariant="batch"), want)
    assert same_bits(product(x, packed, trans_b=True), want)


def test_it_is_counted_and_cast():
    a, b, _ = operands(2, 3, 700)
    with FlopCounterMode(display=False) as counter:
        product(a, b)
    assert counter.get_total_flops() == 2 * 2 * 3 * 700
    with xgemm_torch.patch(min_flops=0) as p:
        got = product(a, b)
    assert same_bits(got, product(a, b))
    assert [(row.product, row.calls) for row in p] == [("xgemm.sgemm_invariant", 1)]
    with torch.autocast("cpu", torch.bfloat16):
        got = product(a.bfloat16(), b)
    assert same_bits(got, product(a.bfloat16().float(), b))


@pytest.mark.gpu
def test_a_cuda_graph_holds_it():
    a, b, _ = operands(4, 256, 4096, device="cuda")
    for what in INVARIANTS:
        want = product(a, b, what=what)
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        with torch.cuda.graph(graph, stream=stream):
            got = product(a, b, what=what)
        graph.replay()
        assert same_bits(got, want)
