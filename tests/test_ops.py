"""The operators: schemas, fakes, derivatives, agreement with ATen, autocast, errors."""

from __future__ import annotations

import functools
import math
import re
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy
import problems
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import xgemm_torch
from xgemm_torch.tools import accuracy

ACTIVATIONS = {
    "none": lambda x: x,
    "relu": torch.nn.functional.relu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "silu": torch.nn.functional.silu,
}
BATCHES = [(None, None), (2, None), (None, 2), (2, 2), (1, 3), (3, 1), (1, 1), (1, None)]


def op(name: str):
    return getattr(torch.ops.xgemm, name)


def close(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got, want.to(got.dtype), rtol=2e-5, atol=2e-5)


def differentiable(function, inputs, order: int = 1) -> None:
    """Gradcheck in float32: the functions are polynomials, so a large step costs no accuracy."""
    how = {"eps": 0.25, "atol": 5e-3, "rtol": 5e-3, "nondet_tol": 0.0}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not a double precision.*")
        assert torch.autograd.gradcheck(
            function, inputs, check_forward_ad=True, check_batched_grad=order == 1, **how
        )
        if order == 2:
            assert torch.autograd.gradgradcheck(
                function, inputs, check_fwd_over_rev=True, check_rev_over_rev=True, **how
            )


# ------------------------------------------------------------------------------ registration


def test_operators_are_sgemm_and_the_stages():
    assert problems.STAGES
    schemas = {name: str(op(name).default._schema) for name in problems.OPERATORS}
    arguments = {text.removeprefix(f"xgemm::{name}") for name, text in schemas.items()}
    assert len(arguments) == 1, "all operators have one schema"
    assert torch.Tag.pt2_compliant_tag in op("sgemm").default.tags


@pytest.mark.parametrize("name", problems.OPERATORS)
@pytest.mark.parametrize("grad", [False, True], ids=["nograd", "grad"])
def test_opcheck(name, grad):
    a, b, flags = problems.operands(4, 5, 3, "TN")
    a, b = a.requires_grad_(grad), b.requires_grad_(grad)
    bias = problems.normal(5).requires_grad_(grad)
    precision = problems.PRECISIONS["auto" if name == "sgemm" else name][-1]
    samples = [
        ((a, b), flags),
        ((a, b, bias), {**flags, "alpha": 0.5, "beta": 2.0, "precision": precision}),
        ((problems.normal(2, 3, 4), problems.normal(4, 5)), {"activation": "relu"}),
    ]
    for args, kwargs in samples:
        torch.library.opcheck(op(name).default, args, kwargs)


@pytest.mark.parametrize("kernel", ["auto", *(s.name for s in xgemm_torch.stages() if s.packs)])
def test_opcheck_prepack(kernel):
    b = problems.normal(4, 5)
    torch.library.opcheck(torch.ops.xgemm.prepack.default, (b,), {"kernel": kernel})


def test_opcheck_out():
    a, b = problems.normal(3, 4), problems.normal(4, 5)
    torch.library.opcheck(
        op("sgemm").out,
        (a, b),
        {"out": torch.empty(3, 5)},
        test_utils=("test_schema", "test_faketensor"),
    )


@pytest.mark.parametrize("name", problems.OPERATORS)
@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize("layout", ["NN", "TT"])
def test_fake_is_like_the_real_result(name, batch, layout):
    a, b, flags = problems.operands(4, 5, 3, layout, batch=batch, views=("spaced", "padded"))
    real = op(name)(a, b, **flags)
    with FakeTensorMode() as mode:
        fake = op(name)(mode.from_tensor(a), mode.from_tensor(b), **flags)
    meta = op(name)(a.to("meta"), b.to("meta"), **flags)
    for other in (fake, meta):
        assert other.shape == real.shape
        assert other.stride() == real.stride()
        assert other.dtype == real.dtype == torch.float32
    assert fake.device == real.device
    assert meta.is_meta
    assert real.is_contiguous()
    assert real.storage_offset() == 0


@pytest.mark.parametrize("shape", problems.EMPTY, ids=str)
@pytest.mark.parametrize("name", problems.OPERATORS)
def test_fake_of_empty_operands(name, shape):
    a, b, _ = problems.operands(*shape)
    real, fake = op(name)(a, b), op(name)(a.to("meta"), b.to("meta"))
    assert real.shape == fake.shape
    assert real.stride() == fake.stride()


# ------------------------------------------------------------------------------ agreement


@pytest.mark.parametrize("layout", problems.LAYOUTS)
@pytest.mark.parametrize("shape", problems.SMALL + problems.RAGGED + problems.EMPTY, ids=str)
@pytest.mark.parametrize("precision", ["fp32", "ieee"])
def test_sgemm_is_the_product(shape, layout, precision):
    m, n, _ = shape
    a, b, flags = problems.operands(*shape, layout)
    c = problems.normal(m, n)
    close(xgemm_torch.sgemm(a, b, precision=precision, **flags), problems.exact(a, b, **flags))
    how = {"alpha": -1.5, "beta": 0.25, **flags}
    close(xgemm_torch.sgemm(a, b, c, precision=precision, **how), problems.exact(a, b, c, **how))


@pytest.mark.parametrize("kernel", ["auto", *problems.STAGES])
@pytest.mark.parametrize("view_a", problems.VIEWS)
@pytest.mark.parametrize("view_b", problems.VIEWS)
def test_any_view_is_taken(kernel, view_a, view_b):
    a, b, flags = problems.operands(5, 6, 7, data="integers", views=(view_a, view_b))
    got = xgemm_torch.sgemm(a, b, kernel=kernel, **flags)
    assert torch.equal(got, problems.exact(a, b, **flags).float())


@pytest.mark.parametrize("name", problems.OPERATORS)
@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_batches_are_broadcast(name, batch):
    a, b, flags = problems.operands(3, 4, 5, "NT", batch=batch, data="integers")
    got = op(name)(a, b, **flags)
    assert torch.equal(got, problems.exact(a, b, **flags).float())


@pytest.mark.parametrize("kernel", ["auto", *problems.STAGES])
@pytest.mark.parametrize("shape", [(), (5,), (1, 5), (4, 1), (4, 5), (1, 4, 5), (3, 1, 5)], ids=str)
def test_c_is_broadcast(kernel, shape):
    a, b, flags = problems.operands(4, 5, 3, batch=(3, None), data="integers")
    c = problems.integers(*shape)
    got = xgemm_torch.sgemm(a, b, c, beta=2.0, kernel=kernel)
    assert torch.equal(got, problems.exact(a, b, c, beta=2.0).float())


@pytest.mark.parametrize(
    "kernel, precision", [(k, p) for k, all_of_it in problems.PRECISIONS.items() for p in all_of_it]
)
def test_c_is_not_read_where_beta_is_zero(kernel, precision):
    a, b, _ = problems.operands(4, 5, 3, data="integers")
    nan = torch.full((4, 5), torch.nan)
    got = xgemm_torch.sgemm(a, b, nan, beta=0.0, kernel=kernel, precision=precision)
    assert torch.equal(got, (a @ b))


@pytest.mark.parametrize("kernel", ["auto", *problems.STAGES])
def test_empty_inner_size_gives_c(kernel):
    c = problems.normal(3, 4)
    a, b = torch.empty(3, 0), torch.empty(0, 4)
    how = {"kernel": kernel}
    assert torch.equal(xgemm_torch.sgemm(a, b, **how), torch.zeros(3, 4))
    assert torch.equal(xgemm_torch.sgemm(a, b, c, beta=2.0, **how), 2 * c)
    got = xgemm_torch.sgemm(a, b, c, beta=-1.0, activation="relu", **how)
    assert torch.equal(got, torch.relu(-c))


@pytest.mark.parametrize("kernel", ["auto", *problems.STAGES])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("grad", [False, True], ids=["fused", "composed"])
def test_activations(kernel, activation, grad):
    a, b, _ = problems.operands(5, 6, 4)
    bias = problems.normal(6)
    a.requires_grad_(grad)
    got = xgemm_torch.sgemm(a, b, bias, activation=activation, kernel=kernel)
    assert got.requires_grad == grad
    close(got, ACTIVATIONS[activation](problems.exact(a, b, bias).float()))


@given(data=st.data())
def test_strided_operands(data):
    """Any strides, expanded ones too: views are drawn, not listed."""

    def draw_view(rows: int, columns: int) -> Tensor:
        strides = [data.draw(st.sampled_from([0, 1, 2, 3, columns, columns + 1])) for _ in "rc"]
        offset = data.draw(st.integers(0, 3))
        room = problems.integers(offset + sum((s + 1) * 8 for s in strides) * 2 + 64)
        return room.as_strided((rows, columns), strides, offset)

    m, n, k = (data.draw(st.integers(1, 8)) for _ in "mnk")
    a, b = draw_view(m, k), draw_view(k, n)
    kernel = data.draw(st.sampled_from(["auto", *problems.STAGES]))
    precision = data.draw(st.sampled_from(problems.PRECISIONS[kernel]))
    got = xgemm_torch.sgemm(a, b, kernel=kernel, precision=precision)
    assert torch.equal(got, problems.exact(a, b).float())


def test_negative_bit_and_zero_tensors_are_materialized():
    z = torch.randn(3, 4, dtype=torch.complex64)
    imaginary = z.conj().imag
    assert imaginary.is_neg()
    b = problems.normal(4, 5)
    close(xgemm_torch.sgemm(imaginary, b), imaginary @ b)
    zeros = torch._efficientzerotensor((3, 4))
    assert torch.equal(xgemm_torch.sgemm(zeros, b), torch.zeros(3, 5))


def test_ieee_and_the_strict_stages_have_the_same_bits():
    a, b, flags = problems.operands(33, 18, 40, "TN", data="wide")
    c = problems.normal(18)
    how = {"alpha": 0.3, "beta": 0.7, **flags}
    want = xgemm_torch.sgemm(a, b, c, precision="ieee", **how)
    for name in problems.STRICT:
        assert torch.equal(op(name)(a, b, c, **how), want), name
        assert torch.equal(xgemm_torch.sgemm(a, b, c, kernel=name, **how), want), name


@pytest.mark.parametrize("name", problems.EMULATED)
def test_a_stage_with_other_bits_refuses_ieee(name):
    """On every device, and where nothing is computed: a contract is not a matter of sizes."""
    a, b, _ = problems.operands(3, 4, 5)
    for left, right in ((a, b), (a[:0], b), (a.to("meta"), b.to("meta"))):
        for call in (op(name), functools.partial(op("sgemm"), kernel=name)):
            with pytest.raises(ValueError, match=f"{name} has other bits than precision='ieee'"):
                call(left, right, precision="ieee")
    with (
        torch._C._AutoDispatchBelowADInplaceOrView(),
        pytest.raises(ValueError, match=f"{name} has other bits than precision='ieee'"),
    ):
        op(name)(a, b, precision="ieee")


@pytest.mark.parametrize("arg", ["alpha", "beta"])
@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (torch.tensor(2.0, requires_grad=True), TypeError, "must be a real number, got Tensor"),
        (torch.tensor(1.0), TypeError, "must be a real number, got Tensor"),
        ("2", TypeError, "must be a real number, got str"),
        (2j, TypeError, "must be a real number, got complex"),
        (True, TypeError, "must be a real number, got bool"),
        (1e39, ValueError, r"is 1e\+39, beyond float32's largest number"),
        (-(10**40), ValueError, r"is -1e\+40, beyond float32's largest number"),
        (10**400, ValueError, "is an int beyond any float"),
        (3.4028235677973366e38, ValueError, r"is 3.40282e\+38, beyond float32's largest number"),
    ],
    ids="with a gradient,tensor,str,complex,bool,large,large int,huge int,rounds up".split(","),
)
def test_factors_that_are_refused(arg, value, kind, text):
    a, b, c = torch.zeros(2, 3), torch.ones(4, 3), torch.zeros(2, 4)
    with pytest.raises(kind, match=f"^sgemm: {arg} {text}"):
        xgemm_torch.sgemm(a, b, c, trans_b=True, **{arg: value})
    if isinstance(value, float):
        with pytest.raises(ValueError, match=f"{arg} {text}"):
            op("sgemm")(a, b, c, trans_b=True, **{arg: value})


@pytest.mark.parametrize(
    "value", [2, -0.5, 0, numpy.float32(2), numpy.int64(3), accuracy.FLT_MAX, math.inf, -math.inf]
)
@pytest.mark.filterwarnings("error")
def test_factors_that_are_taken(value):
    a, b, c = torch.ones(2, 3), torch.ones(3, 4), torch.zeros(2, 4)
    got = xgemm_torch.sgemm(a, b, alpha=value)
    assert torch.equal(got, torch.full((2, 4), float(value)).mul(3))
    got = xgemm_torch.sgemm(a, b, c + 1, beta=value)
    assert torch.equal(got, 3 + torch.full((2, 4), float(value)))


# ------------------------------------------------------------------------------ out=


@pytest.mark.parametrize("kernel", ["auto", *problems.STAGES])
@pytest.mark.parametrize("view", problems.VIEWS)
def test_out_takes_any_view(kernel, view):
    a, b, _ = problems.operands(4, 5, 6, data="integers")
    out = problems.VIEWS[view](torch.zeros(4, 5))
    version = out._version
    got = xgemm_torch.sgemm(a, b, kernel=kernel, out=out)
    assert got is out
    assert torch.equal(out, a @ b)
    assert out._version > version


@pytest.mark.parametrize("kernel", ["auto", *problems.STAGES])
def test_out_may_be_c(kernel):
    a, b, _ = problems.operands(4, 5, 6, data="integers")
    c = problems.integers(4, 5)
    want = problems.exact(a, b, c, beta=3.0).float()
    xgemm_torch.sgemm(a, b, c, beta=3.0, kernel=kernel, out=c)
    assert torch.equal(c, want)


@pytest.mark.parametrize("kernel", ["auto", problems.STAGES[0]])
@pytest.mark.parametrize(
    "shape", [(16, 1), (1, 16), (1, 1), (3, 4, 1), (3, 1, 5), (1, 4, 5), (1, 1, 1)], ids=str
)
def test_out_may_be_c_whatever_the_strides_of_axes_of_size_1(shape, kernel):
    *batch, m, n = shape
    a, b = problems.integers(*batch, m, 7), problems.integers(*batch, 7, n)
    c = problems.integers(*shape)
    want = c + a @ b
    assert xgemm_torch.sgemm(a, b, c, kernel=kernel, out=c) is c
    assert torch.equal(c, want)


def test_out_spoils_graphs_that_hold_its_old_value():
    x = torch.ones(2, 2, requires_grad=True)
    for call in (xgemm_torch.sgemm, op("sgemm").out):
        out = torch.ones(2, 2)
        y = (x * out).sum()
        call(torch.ones(2, 2), torch.ones(2, 2), out=out)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward()


@pytest.mark.parametrize("call", [xgemm_torch.sgemm, op("sgemm").out], ids=["function", "op"])
def test_a_call_that_fails_leaves_the_graphs_of_out(call):
    x, out = torch.ones(2, 2, requires_grad=True), torch.full((2, 2), 3.0)
    y = (x * out).sum()
    with pytest.raises(ValueError, match="inner sizes differ"):
        call(torch.ones(2, 3), torch.ones(2, 2), out=out)
    y.backward()
    assert torch.equal(x.grad, out)


def test_out_of_an_inference_tensor():
    with torch.inference_mode():
        out = torch.zeros(2, 2)
        xgemm_torch.sgemm(torch.ones(2, 3), torch.ones(3, 2), out=out)
        assert torch.equal(out, torch.full((2, 2), 3.0))


@pytest.mark.parametrize("part", ["a", "b", "c", "out"])
@pytest.mark.parametrize("direct", [False, True])
def test_out_refuses_gradients(part, direct):
    t = {"a": torch.ones(2, 3), "b": torch.ones(3, 2), "c": torch.ones(2), "out": torch.ones(2, 2)}
    t[part].requires_grad_()
    call = op("sgemm").out if direct else xgemm_torch.sgemm
    with pytest.raises(RuntimeError, match=f"automatic differentiation, but {part} requires grad"):
        call(**t)
    with torch.no_grad():
        call(**t)
    assert torch.equal(t["out"], torch.full((2, 2), 4.0))


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda a, b: a[:, :3], id="a"),
        pytest.param(lambda a, b: b[:3, :3], id="b"),
        pytest.param(lambda a, b: torch.ones(3).expand(3, 3), id="expanded"),
        pytest.param(lambda a, b: torch.ones(9).as_strided((3, 3), (1, 1)), id="overlapping"),
    ],
)
def test_out_must_not_overlap(make):
    a, b = torch.ones(3, 4), torch.ones(4, 3)
    with pytest.raises(ValueError, match="share memory"):
        xgemm_torch.sgemm(a, b, out=make(a, b))


def test_out_must_not_overlap_c_otherwise():
    room = torch.ones(4, 3)
    with pytest.raises(ValueError, match="share memory"):
        xgemm_torch.sgemm(torch.ones(3, 4), torch.ones(4, 3), room[:3], out=room[1:])


# ------------------------------------------------------------------------------ derivatives


@pytest.mark.parametrize("layout", problems.LAYOUTS)
@pytest.mark.parametrize("name", problems.QUICK)
def test_gradcheck(name, layout):
    a, b, flags = problems.operands(3, 2, 4, layout)
    inputs = [t.requires_grad_() for t in (a, b, problems.normal(3, 2))]
    differentiable(lambda a, b, c: op(name)(a, b, c, alpha=0.5, beta=-2.0, **flags), inputs)


@pytest.mark.parametrize("layout", problems.LAYOUTS)
def test_gradgradcheck(layout):
    a, b, flags = problems.operands(2, 3, 2, layout)
    inputs = [t.requires_grad_() for t in (a, b, problems.normal(3))]
    differentiable(
        lambda a, b, c: xgemm_torch.sgemm(a, b, c, alpha=0.5, beta=2.0, **flags), inputs, order=2
    )


@pytest.mark.parametrize("name", problems.QUICK)
def test_gradgradcheck_of_a_stage(name):
    a, b, _ = problems.operands(2, 2, 2)
    differentiable(op(name), [a.requires_grad_(), b.requires_grad_()], order=2)


C_SHAPES = [None, (), (2,), (3, 1), (1, 2)]
BATCHES_OF_C = [(2, 3, 2), (2, 1, 2)]
"""Shapes of c with a batch of two, for products that have one."""


@pytest.mark.parametrize(
    ("batch", "c_shape"),
    [
        (batch, c_shape)
        for batch in BATCHES
        for c_shape in (*C_SHAPES, *(BATCHES_OF_C if 2 in batch else []))
    ],
    ids=str,
)
@pytest.mark.parametrize("layout", ["NN", "TT"])
def test_gradients_of_what_was_broadcast(batch, c_shape, layout):
    a, b, flags = problems.operands(3, 2, 4, layout, batch=batch, data="integers")
    inputs = [a, b] if c_shape is None else [a, b, problems.integers(*c_shape)]
    leaves = [t.detach().requires_grad_() for t in inputs]
    twins = [t.double().requires_grad_() for t in inputs]
    got = xgemm_torch.sgemm(*leaves, alpha=2.0, beta=1.0 if c_shape is None else -3.0, **flags)
    want = problems.exact(*twins, alpha=2.0, beta=-3.0, **flags)
    weight = problems.integers(*want.shape)
    (got * weight).sum().backward()
    (want * weight).sum().backward()
    for leaf, twin in zip(leaves, twins, strict=True):
        assert leaf.grad.shape == leaf.shape
        assert torch.equal(leaf.grad, twin.grad.float())


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients_through_activations(activation):
    a, b, _ = problems.operands(4, 3, 5)
    bias = problems.normal(3)
    leaves = [t.clone().requires_grad_() for t in (a, b, bias)]
    twins = [t.clone().requires_grad_() for t in (a, b, bias)]
    xgemm_torch.sgemm(*leaves, activation=activation).square().sum().backward()
    ACTIVATIONS[activation](twins[0] @ twins[1] + twins[2]).square().sum().backward()
    for leaf, twin in zip(leaves, twins, strict=True):
        torch.testing.assert_close(leaf.grad, twin.grad, rtol=1e-4, atol=1e-4)


class Count(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts the operators' calls, and copies."""

    def __init__(self):
        super().__init__()
        self.calls: list[str] = []
        self.largest = 0  # elements of a result
        self.kernels: list[str] = []
        self.multiplied = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls.append(str(func))
        if func.namespace == "xgemm":
            # A layer's backward is a product for each of the two operands that it is given.
            each = args[1:3] if "linear_backward" in self.calls[-1] else args[:1]
            self.multiplied += sum(t is not None for t in each)
            self.kernels.append((kwargs or {}).get("kernel", "auto"))
        result = func(*args, **(kwargs or {}))
        self.largest = max(self.largest, result.numel() if isinstance(result, Tensor) else 0)
        return result

    def products(self) -> int:
        return self.multiplied

    def copies(self) -> list[str]:
        return [c for c in self.calls if any(w in c for w in ("clone", "copy", "contiguous"))]


@pytest.mark.parametrize("needed", [(1, 1, 1), (1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 0, 1)], ids=str)
@pytest.mark.parametrize("layout", problems.LAYOUTS)
def test_backward_computes_what_is_needed_without_copies(needed, layout):
    a, b, flags = problems.operands(3, 2, 4, layout)
    inputs = [t.requires_grad_(bool(n)) for t, n in zip((a, b, torch.ones(2)), needed, strict=True)]
    y = xgemm_torch.sgemm(*inputs, **flags)
    with Count() as count:
        y.backward(torch.ones_like(y))
    assert count.products() == sum(needed[:2])
    assert count.copies() == []
    assert [t.grad is not None for t in inputs] == [bool(n) for n in needed]


def test_shared_weight_has_one_product_for_a_batch():
    x, w = problems.normal(4, 3, 5), problems.normal(2, 5).requires_grad_()
    y = xgemm_torch.sgemm(x, w, trans_b=True)
    with Count() as count:
        y.backward(torch.ones_like(y))
    assert count.products() == 1
    assert count.copies() == []
    assert not any("sum" in call for call in count.calls)
    close(w.grad, torch.einsum("bmn,bmk->nk", torch.ones_like(y), x))


@pytest.mark.parametrize("layout", problems.LAYOUTS)
@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
def test_gradients_of_a_shared_operand_take_no_more_than_the_others(left, layout):
    """Of many small samples of any strides; the gradients of all of them are never in memory."""
    m, n, k, batch = (20, 2, 20, 50) if left else (2, 20, 20, 50)
    sizes = (None, batch) if left else (batch, None)
    a, b, flags = problems.operands(m, n, k, layout, batch=sizes)
    w, x = (a.requires_grad_(), b) if left else (b.requires_grad_(), a)
    lie = {
        "plain": x,
        "sequence": x.transpose(0, 1).contiguous().transpose(0, 1),
        "sliced": torch.cat((x, x), 1)[:, : x.shape[1]],
        "transposed": x.mT.contiguous().mT,
    }
    weight = problems.normal(batch, m, n)
    for name, t in lie.items():
        operands = (w, t.requires_grad_()) if left else (t.requires_grad_(), w)
        want = torch.autograd.grad(problems.exact(*operands, **flags), w, weight.double())
        with Count() as count:
            y = xgemm_torch.sgemm(*operands, **flags)
            (got,) = torch.autograd.grad(y, w, weight, create_graph=True)
            (again,) = torch.autograd.grad(got.square().sum(), t)
        assert count.largest == x.numel(), name
        assert again.shape == x.shape, name
        close(got, want[0])


def test_gradients_of_a_shared_operand_copy_no_more_than_they_save():
    x, w = problems.normal(2, 61, 4)[:, 1:], problems.normal(4, 3).requires_grad_()
    y = xgemm_torch.sgemm(x, w)
    with Count() as count:
        y.backward(torch.ones_like(y))
    assert count.copies() == []
    close(w.grad, x.sum((0, 1))[:, None].expand(4, 3))


def test_the_graphs_nodes_have_their_names():
    a = problems.normal(3, 3).requires_grad_()
    for call in (xgemm_torch.sgemm, op("sgemm")):
        y = call(a, a)
        assert y.grad_fn.name() == type(y.grad_fn).__name__


def test_only_what_backward_needs_is_kept():
    a, b = problems.normal(3, 4), problems.normal(4, 5).requires_grad_()
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        xgemm_torch.sgemm(a, b, problems.normal(5))
    assert [t.shape for t in kept] == [a.shape]


@pytest.mark.parametrize("name", problems.STAGES)
def test_backward_of_a_stage_runs_that_stage(name):
    a, b, _ = problems.operands(3, 4, 5)
    a.requires_grad_(), b.requires_grad_()
    for call, want, kernel in (
        (lambda: op(name)(a, b), name, "auto"),
        (lambda: xgemm_torch.sgemm(a, b, kernel=name), "sgemm", name),
    ):
        y = call()
        with Count() as count:
            y.backward(torch.ones_like(y))
        products = [c for c in count.calls if c.startswith("xgemm.")]
        assert products == [f"xgemm.{want}.default"] * 2
        assert count.kernels == [kernel] * 2


def test_backward_keeps_precision_and_kernel():
    a, b, _ = problems.operands(30, 40, 50)
    a.requires_grad_(), b.requires_grad_()
    how = {"precision": "ieee"}
    g = problems.normal(30, 40)
    ga, gb = torch.autograd.grad(xgemm_torch.sgemm(a, b, **how), (a, b), g)
    with torch.no_grad():
        assert torch.equal(ga, xgemm_torch.sgemm(g, b, trans_b=True, **how))
        assert torch.equal(gb, xgemm_torch.sgemm(a, g, trans_a=True, **how))


def test_gradient_of_c_where_beta_is_zero():
    a, b, _ = problems.operands(3, 4, 5)
    c = torch.full((3, 4), torch.nan, requires_grad=True)
    y = xgemm_torch.sgemm(a.requires_grad_(), b, c, beta=0.0)
    grads = torch.autograd.grad(y, (a, c), torch.full((3, 4), torch.inf))
    assert torch.equal(grads[1], torch.zeros(3, 4)), "as torch.addmm's"
    assert torch.autograd.grad(xgemm_torch.sgemm(a, b, c, beta=0.0).sum(), a)[0].isfinite().all()


# ------------------------------------------------------------------------------ autocast


@pytest.mark.parametrize("name", problems.OPERATORS)
@pytest.mark.parametrize("direct", [False, True])
def test_autocast_computes_in_float32(name, direct):
    a, b, _ = problems.operands(4, 5, 6)
    a, b = a.bfloat16().requires_grad_(), b.bfloat16().requires_grad_()

    def call(*args, **kwargs):
        if direct:
            return op(name)(*args, **kwargs)
        kernel = "auto" if name == "sgemm" else name
        return xgemm_torch.sgemm(*args, kernel=kernel, **kwargs)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = call(a, b, torch.ones(5).bfloat16())
        with torch.no_grad():
            plain = call(a.detach(), b.detach(), torch.ones(5).bfloat16())
    assert y.dtype == plain.dtype == torch.float32
    close(y, a.float() @ b.float() + 1)
    assert torch.equal(y, plain)
    y.sum().backward()
    assert a.grad.dtype == torch.bfloat16
    close(a.grad.float(), b.float().sum(1).expand(4, 6).bfloat16().float())


def test_autocast_under_functorch():
    a, b = problems.normal(4, 3).bfloat16(), problems.normal(3, 2).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        grad = torch.func.grad(lambda a: xgemm_torch.sgemm(a, b).sum())(a)
    assert grad.dtype == torch.bfloat16


def test_autocast_leaves_float64_alone():
    a = torch.ones(2, 2, dtype=torch.float64)
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        pytest.raises(TypeError, match="a must be float32, got float64"),
    ):
        xgemm_torch.sgemm(a, a)


@pytest.mark.parametrize("early_stop", [True, False])
def test_autocast_in_a_checkpoint(early_stop):
    """The exception that ends a recomputation early is no mistake of the call that it ends."""
    x, w = problems.normal(3, 4).bfloat16().requires_grad_(), problems.normal(5, 4).requires_grad_()
    checkpoint = torch.utils.checkpoint
    with (
        checkpoint.set_checkpoint_early_stop(early_stop),
        torch.autocast("cpu", dtype=torch.bfloat16),
    ):
        y = checkpoint.checkpoint(xgemm_torch.linear, x, w, use_reentrant=False)
    y.sum().backward()
    close(w.grad, x.detach().float().sum(0).expand(5, 4))


@pytest.mark.parametrize("call", [xgemm_torch.sgemm, op("sgemm")], ids=["function", "operator"])
def test_an_error_under_autocast_is_its_own(call):
    def refuse(t: Tensor) -> Tensor:
        raise RuntimeError("not packed today")

    a, b = torch.ones(2, 2, requires_grad=True), torch.ones(2, 2).bfloat16()
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        torch.autograd.graph.saved_tensors_hooks(refuse, lambda t: t),
        pytest.raises(RuntimeError, match="not packed today"),
    ):
        call(a, b)


def test_autocast_and_out():
    a = torch.ones(2, 2).bfloat16()
    out = torch.empty(2, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        xgemm_torch.sgemm(a, a, out=out)
    assert torch.equal(out, torch.full((2, 2), 2.0))


# ------------------------------------------------------------------------------ errors
# "A wrong argument raises before any launch: ValueError / TypeError / RuntimeError with what was
# given and what is needed, never a crash, never a wrong answer."

A, B = torch.ones(3, 4), torch.ones(4, 5)
WRONG = {
    "inner": (
        (A, torch.ones(5, 6)),
        {},
        ValueError,
        "sgemm: inner sizes differ: a is (3, 4), b is (5, 6)",
    ),
    "inner, transposed": (
        (A, B),
        {"trans_a": True},
        ValueError,
        "sgemm: inner sizes differ: a is (3, 4), b is (4, 5) with trans_a=True, trans_b=False",
    ),
    "rank": (
        (torch.ones(4), B),
        {},
        ValueError,
        "sgemm: a must have 2 or 3 dimensions, got shape (4,)",
    ),
    "rank of b": (
        (A, torch.ones(1, 1, 4, 5)),
        {},
        ValueError,
        "sgemm: b must have 2 or 3 dimensions, got shape (1, 1, 4, 5)",
    ),
    "batch": (
        (torch.ones(2, 3, 4), torch.ones(3, 4, 5)),
        {},
        ValueError,
        "sgemm: batch sizes differ: a is (2, 3, 4), b is (3, 4, 5)",
    ),
    "c": (
        (A, B, torch.ones(3)),
        {},
        ValueError,
        "sgemm: c does not broadcast to the result: c is (3,), the result is (3, 5)",
    ),
    "c of higher rank": (
        (A, B, torch.ones(1, 3, 5)),
        {},
        ValueError,
        "sgemm: c does not broadcast to the result: c is (1, 3, 5), the result is (3, 5)",
    ),
    "c, beta 0": (
        (A, B, torch.ones(3)),
        {"beta": 0.0},
        ValueError,
        "sgemm: c does not broadcast to the result: c is (3,), the result is (3, 5)",
    ),
    "beta without c": ((A, B), {"beta": 2.0}, ValueError, "sgemm: beta is 2 but there is no c"),
    "float64": ((A.double(), B), {}, TypeError, "sgemm: a must be float32, got float64"),
    "float16": ((A, B.half()), {}, TypeError, "sgemm: b must be float32, got float16"),
    "int64": ((A, B.long()), {}, TypeError, "sgemm: b must be float32, got int64"),
    "bool": ((A.bool(), B), {}, TypeError, "sgemm: a must be float32, got bool"),
    "c's dtype": (
        (A, B, torch.ones(5, dtype=torch.float64)),
        {},
        TypeError,
        "sgemm: c must be float32, got float64",
    ),
    "complex": (
        (A, B.to(torch.complex64)),
        {},
        TypeError,
        "sgemm: b must be float32, got complex64",
    ),
    "conjugate": (
        (A.to(torch.complex64).conj(), B),
        {},
        TypeError,
        "sgemm: a must be float32, got complex64",
    ),
    "sparse": (
        (A.to_sparse(), B),
        {},
        TypeError,
        "sgemm: a must be a dense (strided) tensor, got sparse_coo",
    ),
    "sparse csr": (
        (A, B.to_sparse_csr()),
        {},
        TypeError,
        "sgemm: b must be a dense (strided) tensor, got sparse_csr",
    ),
    "quantized": (
        (torch.quantize_per_tensor(A, 0.1, 0, torch.qint8), B),
        {},
        TypeError,
        "sgemm: a must be float32, got qint8",
    ),
    "nested": (
        (torch.nested.nested_tensor([A, A]), B),
        {},
        TypeError,
        "sgemm: a must be a dense (strided) tensor, got a nested one",
    ),
    "devices": (
        (A, B.to("meta")),
        {},
        ValueError,
        "sgemm: a is on cpu, b is on meta; all operands must be on one device",
    ),
    "c's device": (
        (A, B, torch.ones(5, device="meta")),
        {},
        ValueError,
        "sgemm: a is on cpu, c is on meta; all operands must be on one device",
    ),
    "no tensor": (([[1.0]], B), {}, TypeError, "sgemm: a must be a tensor, got list"),
    "none": ((None, B), {}, TypeError, "sgemm: a must be a tensor, got NoneType"),
    "number": ((A, 2.0), {}, TypeError, "sgemm: b must be a tensor, got float"),
    "c a number": ((A, B, 1.0), {}, TypeError, "sgemm: c must be a tensor, got float"),
    "alpha": ((A, B), {"alpha": "2"}, TypeError, "sgemm: alpha must be a real number, got str"),
    "complex alpha": (
        (A, B),
        {"alpha": 1j},
        TypeError,
        "sgemm: alpha must be a real number, got complex",
    ),
    "beta None": (
        (A, B, B[0]),
        {"beta": None},
        TypeError,
        "sgemm: beta must be a real number, got NoneType",
    ),
    "trans": ((A, B), {"trans_a": "yes"}, TypeError, "sgemm: trans_a must be a bool, got str"),
    "kernel": (
        (A, B),
        {"kernel": "nope"},
        ValueError,
        "sgemm: no kernel named 'nope'; there are: auto, " + ", ".join(problems.STAGES),
    ),
    "kernel's type": ((A, B), {"kernel": 3}, TypeError, "sgemm: kernel must be a string, got int"),
    "precision": (
        (A, B),
        {"precision": "tf32"},
        ValueError,
        "sgemm: precision must be 'fp32' or 'ieee', got 'tf32'",
    ),
    "precision's type": (
        (A, B),
        {"precision": None},
        TypeError,
        "sgemm: precision must be a string, got NoneType",
    ),
    "activation": (
        (A, B),
        {"activation": "swish"},
        ValueError,
        "sgemm: no activation named 'swish'; there are: none, relu, gelu, gelu_tanh, silu",
    ),
    "out's shape": (
        (A, B),
        {"out": torch.ones(3, 4)},
        ValueError,
        "sgemm: out must have shape (3, 5), got (3, 4)",
    ),
    "out's dtype": (
        (A, B),
        {"out": torch.ones(3, 5, dtype=torch.float64)},
        TypeError,
        "sgemm: out must be float32, got float64",
    ),
    "out's device": (
        (A, B),
        {"out": torch.ones(3, 5, device="meta")},
        ValueError,
        "sgemm: a is on cpu, out is on meta; all operands must be on one device",
    ),
    "out no tensor": ((A, B), {"out": [1]}, TypeError, "sgemm: out must be a tensor, got list"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments(case):
    args, kwargs, kind, text = WRONG[case]
    with pytest.raises(kind, match=re.escape(text)) as caught:
        xgemm_torch.sgemm(*args, **kwargs)
    assert caught.type is kind


@pytest.mark.parametrize("case", [c for c in WRONG if "out" not in WRONG[c][1]])
def test_wrong_arguments_with_gradients(case):
    args, kwargs, kind, text = WRONG[case]
    a = torch.ones(3, 4, requires_grad=True) if args[0] is A else args[0]
    with pytest.raises(kind, match=re.escape(text)):
        xgemm_torch.sgemm(a, *args[1:], **kwargs)


@pytest.mark.parametrize("flag", ["trans_a", "trans_b"])
@pytest.mark.parametrize("value", [0, 1, 2, None])
def test_a_flag_is_a_bool_in_every_call(flag, value):
    a, x = torch.ones(3, 3), torch.ones(3, 3, requires_grad=True)
    for call in (xgemm_torch.sgemm, torch.func.vmap(xgemm_torch.sgemm, (0, None))):
        for left in (a, x):
            with pytest.raises(TypeError, match=f"sgemm: {flag} must be a bool, got"):
                call(left.expand(2, 3, 3), a, **{flag: value})


@pytest.mark.parametrize("case", [c for c in WRONG if "out" not in WRONG[c][1]])
def test_wrong_arguments_under_transforms(case):
    args, kwargs, kind, text = WRONG[case]
    with pytest.raises(kind, match=re.escape(text)):
        torch.func.vmap(lambda x: xgemm_torch.sgemm(*args, **kwargs) + x)(torch.ones(2))


@pytest.mark.parametrize("case", [c for c in WRONG if "out" not in WRONG[c][1]])
def test_wrong_arguments_of_the_operator(case):
    """torch itself refuses what no schema allows, with a RuntimeError; the rest is ours."""
    args, kwargs, kind, text = WRONG[case]
    for inference in (False, True):
        with torch.inference_mode(inference):
            given = [t.clone() if isinstance(t, Tensor) and t is A else t for t in args]
            with pytest.raises((ValueError, TypeError, RuntimeError)) as caught:
                op("sgemm")(*given, **kwargs)
        schema = "xgemm::sgemm() Expected a value of type"
        if not inference and schema not in str(caught.value):
            assert caught.type is kind
            assert text in str(caught.value)


@pytest.mark.parametrize("name", problems.STAGES)
def test_a_stage_takes_its_own_name_only(name):
    a, b, _ = problems.operands(3, 4, 5)
    assert torch.equal(op(name)(a, b, kernel=name), op(name)(a, b))
    other = next(n for n in problems.STAGES if n != name)
    for t in (a, a.to("meta")):
        with pytest.raises(ValueError, match=f"{name}: kernel must be 'auto' or '{name}' here"):
            op(name)(t, b.to(t.device), kernel=other)


def reaches_cpp(case: str) -> bool:
    """No C++ kernel gets a meta tensor."""
    args, kwargs, _, _ = WRONG[case]
    return not any(isinstance(t, Tensor) and t.is_meta for t in (*args, *kwargs.values()))


@pytest.mark.parametrize("case", [c for c in WRONG if WRONG[c][2] is ValueError and reaches_cpp(c)])
def test_cpp_says_the_same(case):
    """Without Python's kernels in the way, C++ finds every wrong size and name itself."""
    args, kwargs, kind, text = WRONG[case]
    call = op("sgemm").out if "out" in kwargs else op("sgemm").default
    with (
        torch._C._AutoDispatchBelowADInplaceOrView(),
        pytest.raises(kind, match=re.escape(text)),
    ):
        call(*args, **kwargs)


@pytest.mark.parametrize("case", [c for c in WRONG if "got float64" in WRONG[c][3]])
def test_cpp_refuses_dtypes(case):
    args, kwargs, _, text = WRONG[case]
    call = op("sgemm").out if "out" in kwargs else op("sgemm").default
    with (
        torch._C._AutoDispatchBelowADInplaceOrView(),
        pytest.raises((TypeError, ValueError), match=re.escape(text)),
    ):
        call(*args, **kwargs)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("call", [xgemm_torch.sgemm, op("sgemm")], ids=["function", "operator"])
def test_no_memory_for_a_result_is_torchs_own_error(call, grad):
    """What programs look for that try again with less."""
    a = torch.zeros(1, requires_grad=grad).expand(2**22, 1)
    with pytest.raises(RuntimeError) as theirs:
        torch.mm(a, a.T)
    with pytest.raises(RuntimeError, match="can't allocate memory: you tried to") as ours:
        call(a, a.T)
    assert ours.type is theirs.type


def freed(*shape: int, bytes_left: int = 0, device: str = "cpu") -> Tensor:
    """A tensor whose storage has been resized under it, as FSDP frees a parameter's."""
    t = torch.ones(*shape, device=device)
    t.untyped_storage().resize_(bytes_left)
    return t


def expect_freed(call, *, name: str, part: str, device: str, bytes_left: int) -> None:
    """What ``call`` makes of ``part`` without its memory, by the function's own words."""
    said = f"{name}: {part}'s storage has {bytes_left} bytes, its view needs 48: was it freed"
    sizes = (3, 4) if part in "ab" else (4, 3)
    t = freed(*sizes, bytes_left=bytes_left, device=device)
    with pytest.raises(ValueError, match=re.escape(said)):
        call(t)


@pytest.mark.parametrize("bytes_left", [0, 44])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", problems.OPERATORS)
def test_freed_storage_is_refused_by_every_operator(name, grad, device, bytes_left):
    a, b = (torch.ones(*s, device=device) for s in ((4, 3), (3, 3)))
    x = a.clone().requires_grad_(grad)
    expect = functools.partial(expect_freed, name=name, device=device, bytes_left=bytes_left)
    expect(lambda t: op(name)(t, x), part="a")
    expect(lambda t: op(name)(x, t), part="b")
    expect(lambda t: op(name)(x, b, t), part="c")
    c = freed(4, 3, bytes_left=bytes_left, device=device)
    assert torch.equal(op(name)(a, b, c, beta=0.0), a @ b), "nothing of c is read"


@pytest.mark.parametrize("bytes_left", [0, 44])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_freed_storage_is_refused_by_every_function(device, bytes_left):
    a, b = torch.ones(4, 3, device=device), torch.ones(3, 3, device=device)
    expect = functools.partial(expect_freed, device=device, bytes_left=bytes_left)
    expect(lambda t: xgemm_torch.sgemm(t, a), name="sgemm", part="a")
    expect(lambda t: xgemm_torch.sgemm(a, b, out=t), name="sgemm", part="out")
    expect(lambda t: op("sgemm").out(a, b, out=t), name="sgemm", part="out")
    expect(lambda t: op("prepack")(t), name="prepack", part="b")
    for name, call, part in (
        ("linear", lambda t: xgemm_torch.linear(torch.ones(2, 4, device=device), t), "weight"),
        ("mm", lambda t: xgemm_torch.mm(a, t), "mat2"),
        ("prepack", xgemm_torch.prepack, "weight"),
    ):
        with pytest.raises(ValueError, match=f"{name}: {part}'s storage has {bytes_left} bytes"):
            call(freed(3, 4, bytes_left=bytes_left, device=device))


def test_freed_storage_in_backward():
    """A weight whose memory went after the forward product, and did not come back."""
    for name in ("sgemm", "naive"):
        x, w = torch.ones(2, 3, requires_grad=True), torch.ones(3, 4)
        y = op(name)(x, w)
        w.untyped_storage().resize_(0)
        with pytest.raises(ValueError, match=f"{name}: b's storage has 0 bytes"):
            y.sum().backward()


def test_freed_storage_of_packed_limbs():
    stages = [stage.name for stage in xgemm_torch.stages() if stage.packs]
    for name in stages:
        a, b = torch.ones(2, 3), torch.ones(3, 4)
        packed = op("prepack")(b, kernel=name)
        packed.untyped_storage().resize_(0)
        with pytest.raises(ValueError, match=f"{name}: packed's storage has 0 bytes"):
            op(name)(a, b, packed=packed)


def test_storage_that_suffices_is_taken():
    base = torch.ones(40)
    views = [base.as_strided((4, 3), (3, 1), 28), base[-1:].expand(4, 3)]
    views += [base.as_strided((4, 3), (1, 10), 16), torch.ones(4, 0, 3).sum(1)]
    for view in views:
        want = torch.ones(2, 4) @ view
        assert torch.equal(xgemm_torch.sgemm(torch.ones(2, 4), view), want)
    base.untyped_storage().resize_(39 * 4)
    for view, needs in zip(views[:2], (160, 160), strict=True):
        with pytest.raises(ValueError, match=f"b's storage has 156 bytes, its view needs {needs}"):
            xgemm_torch.sgemm(torch.ones(2, 4), view)
    nothing = freed(4, 3)[:, :0]
    assert xgemm_torch.sgemm(torch.ones(2, 4), nothing).shape == (2, 0)


def test_meta_operands_give_meta_results():
    a, b = A.to("meta"), B.to("meta")
    assert xgemm_torch.sgemm(a, b).is_meta
    out = torch.empty(3, 5, device="meta")
    assert xgemm_torch.sgemm(a, b, out=out) is out
    with pytest.raises(ValueError, match="inner sizes differ"):
        xgemm_torch.sgemm(b, b)


ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2**40),
    st.floats(),
    st.text(max_size=3),
    st.sampled_from(["auto", "fp32", "ieee", "relu", "naive", "", "\x00"]),
    st.lists(st.integers(), max_size=2),
    st.builds(
        lambda shape, dtype: torch.ones(shape, dtype=dtype),
        st.lists(st.integers(0, 3), max_size=4),
        st.sampled_from([torch.float32, torch.float64, torch.int32, torch.complex64, torch.bool]),
    ),
)
FLAGS = ["alpha", "beta", "trans_a", "trans_b", "precision", "kernel", "activation", "out"]


@given(
    operands=st.lists(ANYTHING, min_size=2, max_size=3),
    flags=st.dictionaries(st.sampled_from(FLAGS), ANYTHING, max_size=3),
    name=st.sampled_from(["xgemm_torch.sgemm", *problems.OPERATORS]),
)
def test_fuzzed_arguments_do_not_crash(operands, flags, name):
    if name == "xgemm_torch.sgemm":
        call = xgemm_torch.sgemm
    else:
        call = op(name)
        flags.pop("out", None)
    try:
        result = call(*operands, **flags)
    except (TypeError, ValueError, RuntimeError):
        return
    assert isinstance(result, Tensor)
    assert result.dtype == torch.float32


FITTING = st.builds(
    lambda shape, seed: torch.randn(shape, generator=torch.Generator().manual_seed(seed)),
    st.lists(st.integers(0, 4), min_size=2, max_size=3),
    st.integers(0, 9),
)


@given(a=FITTING, b=FITTING, c=st.none() | FITTING, trans_a=st.booleans(), trans_b=st.booleans())
def test_fuzzed_shapes_are_right_or_refused(a, b, c, trans_a, trans_b):
    flags = {"trans_a": trans_a, "trans_b": trans_b}
    try:
        want = problems.exact(a, b, c, **flags)
        fits = want.shape == problems.exact(a, b, **flags).shape  # c must not widen the result
    except RuntimeError:
        fits = False
    if fits:
        close(xgemm_torch.sgemm(a, b, c, **flags), want)
    else:
        with pytest.raises(ValueError):
            xgemm_torch.sgemm(a, b, c, **flags)


# ------------------------------------------------------------------------------ a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", ["auto", *problems.STRICT])
@pytest.mark.parametrize("layout", problems.LAYOUTS)
def test_cuda_agrees_with_the_cpu(kernel, layout):
    a, b, flags = problems.operands(70, 50, 90, layout)
    want = xgemm_torch.sgemm(a, b, precision="ieee", **flags)
    got = xgemm_torch.sgemm(a.cuda(), b.cuda(), kernel=kernel, precision="ieee", **flags)
    assert got.is_cuda
    assert torch.equal(got.cpu(), want)


@pytest.mark.gpu
def test_cuda_side_stream():
    a, b = problems.normal(512, 512, device="cuda"), problems.normal(512, 512, device="cuda")
    want = xgemm_torch.sgemm(a, b)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        x = a * 1.0
        for _ in range(50):
            x = x * 1.0  # work that a product on another stream would not wait for
        got = xgemm_torch.sgemm(x, b)
    stream.synchronize()
    assert torch.equal(got, want)


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", ["auto", *problems.STAGES])
def test_cuda_graph(kernel):
    a, b = problems.normal(100, 60, device="cuda"), problems.normal(60, 80, device="cuda")
    xgemm_torch.sgemm(a, b, kernel=kernel)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = xgemm_torch.sgemm(a, b, kernel=kernel)
    a.copy_(problems.normal(100, 60, device="cuda"))
    graph.replay()
    assert torch.equal(out, xgemm_torch.sgemm(a, b, kernel=kernel))


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", problems.EMULATED)
def test_cuda_without_memory_for_a_workspace(kernel):
    """auto gives the bits of a stage that needs none; a stage by its name says so."""
    n = 4096
    a, b = problems.normal(n, n, device="cuda"), problems.normal(n, n, device="cuda")
    poor = xgemm_torch.sgemm(a, b, kernel=xgemm_torch.explain(a, b, workspace=0).kernel)
    before, by_name = xgemm_torch.sgemm(a, b), xgemm_torch.sgemm(a, b, kernel=kernel)
    torch.cuda.empty_cache()  # or `out` takes a part of an old workspace, and leaves the rest
    out = torch.empty_like(before)
    needed = xgemm_torch.explain(a, b, kernel=kernel).workspace
    total = torch.cuda.mem_get_info()[1]  # what fractions are of
    try:
        # What earlier tests' graphs have left is given back only when an allocation fails.
        torch.cuda.set_per_process_memory_fraction(0.5)
        with pytest.raises(torch.cuda.OutOfMemoryError):
            torch.empty(total, dtype=torch.int8, device="cuda")
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 2**25) / total)
        assert torch.equal(xgemm_torch.sgemm(a, b, out=out), poor)
        text = f"{kernel} needs a workspace of {needed} bytes, and cuda:0 has no memory for it"
        if needed:
            held = []  # what would do for it between what others have
            with pytest.raises(torch.cuda.OutOfMemoryError):
                while True:
                    held.append(torch.empty(needed, dtype=torch.int8, device="cuda"))
            with pytest.raises(RuntimeError, match=text):
                xgemm_torch.sgemm(a, b, kernel=kernel, out=out)
            del held
        else:
            assert torch.equal(xgemm_torch.sgemm(a, b, kernel=kernel, out=out), by_name)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert torch.equal(xgemm_torch.sgemm(a, b), before)


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", problems.STAGES)
def test_cuda_in_a_thread_of_its_own(kernel):
    """Its first work for the GPU: nothing has made a context current there yet."""
    a, b = problems.normal(300, 200, device="cuda"), problems.normal(200, 260, device="cuda")
    want = xgemm_torch.sgemm(a, b, kernel=kernel)  # torch keeps the memory that a thread then gets
    with ThreadPoolExecutor(1) as pool:
        got = pool.submit(xgemm_torch.sgemm, a, b, kernel=kernel).result()
    assert torch.equal(got, want)


@pytest.mark.gpu
def test_cuda_without_memory_for_a_result():
    a = torch.zeros(1, device="cuda").expand(2**22, 1)
    for call in (xgemm_torch.sgemm, op("sgemm")):
        with pytest.raises(torch.OutOfMemoryError):
            call(a, a.T)


@pytest.mark.gpu
def test_cuda_autocast():
    a = problems.normal(8, 8, device="cuda").half()
    with torch.autocast("cuda"):
        assert xgemm_torch.sgemm(a, a).dtype == torch.float32


@pytest.mark.gpu
def test_cuda_and_cpu_operands_do_not_mix():
    a, b = problems.normal(3, 4, device="cuda"), problems.normal(4, 5)
    text = "sgemm: a is on cuda:0, b is on cpu; all operands must be on one device"
    with pytest.raises(ValueError, match=text):
        xgemm_torch.sgemm(a, b)


@pytest.mark.multi_gpu
@pytest.mark.parametrize("kernel", ["auto", *problems.STAGES])
def test_second_device_is_used(kernel):
    a, b = problems.normal(30, 40, device="cuda:1"), problems.normal(40, 50, device="cuda:1")
    assert torch.cuda.current_device() == 0
    got = xgemm_torch.sgemm(a, b, kernel=kernel)
    assert got.device == torch.device("cuda:1")
    close(got.cpu(), problems.exact(a, b).cpu())
    with pytest.raises(ValueError, match="a is on cuda:1, b is on cuda:0"):
        xgemm_torch.sgemm(a, b.to("cuda:0"))
