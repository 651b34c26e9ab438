"""``patch()``: torch's own functions inside it give torch's results, by way of xgemm.

On a CPU tensor sgemm's "auto" is ATen's BLAS, so that values alone would not show who made them:
every test asks the patch's count, too, or the bits of a precision that torch has not.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import re
import subprocess
import sys
import threading
import unittest
import warnings
from types import ModuleType
from typing import Any

import problems
import pytest
import test_transforms
import torch
import torch._dynamo.testing
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode

import xgemm_torch
from build_tools.settings import ROOT
from xgemm_torch import attention, dispatch

on_every_device = pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
)
MODES = {
    "grad": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
}


def everything(**options: Any) -> xgemm_torch.Patch:
    """A patch that takes products of every size but empty ones."""
    return xgemm_torch.patch(min_flops=0, **options)


def close(got: Any, want: Any) -> None:
    """Beside the largest element of all: of products that cancel, others are as far off."""
    got, want = tree_leaves(got), tree_leaves(want)
    assert len(got) == len(want)
    sizes = [y.detach().nan_to_num(0.0, 0.0, 0.0).abs().max().item() for y in want if y.numel()]
    beside = 2e-5 * max([1.0, *sizes])
    for x, y in zip(got, want, strict=True):
        torch.testing.assert_close(x, y, rtol=2e-4, atol=beside, equal_nan=True)


def counted(p: xgemm_torch.Patch, taken: bool = True) -> dict[str, int]:
    counts: dict[str, int] = {}
    for row in p:
        if row.taken == taken:
            counts[row.product] = counts.get(row.product, 0) + row.calls
    return counts


def reasons(p: xgemm_torch.Patch) -> set[str]:
    return {row.reason for row in p if not row.taken}


@pytest.fixture(autouse=True)
def _no_mode_is_left():
    yield
    assert _get_current_dispatch_mode_stack() == []


# ------------------------------------------------------------------------------ OpInfo


@functools.cache
def opinfos() -> dict[str, Any]:
    """torch's own samples, by operator and variant.

    The module that has them needs a package of which it uses one name, and it forbids to set
    torch's flags from then on, for all tests.
    """
    stub = ModuleType("expecttest")
    stub.TestCase = unittest.TestCase
    forbid, torch.backends.disable_global_flags = torch.backends.disable_global_flags, lambda: None
    try:
        if importlib.util.find_spec("expecttest") is None:
            sys.modules["expecttest"] = stub
        module = importlib.import_module("torch.testing._internal.common_methods_invocations")
    finally:
        torch.backends.disable_global_flags = forbid
    return {f"{op.name} {op.variant_test_name}".strip(): op for op in module.op_db}


PRODUCTS = [
    "mm", "addmm", "addmm decomposed", "bmm", "baddbmm", "addbmm", "mv", "addmv", "matmul",
    "__rmatmul__", "einsum", "tensordot", "nn.functional.linear", "linalg.multi_dot",
    "linalg.matrix_power", "corrcoef", "cov",
    "nn.functional.multi_head_attention_forward", "nn.functional.scaled_dot_product_attention",
]  # fmt: skip
NO_PRODUCTS = ["dot", "outer", "linalg.vecdot", "inner", "nn.functional.bilinear"]
"""Operators that are none to the dispatcher; torch's samples of inner are vectors."""
IN_FLOAT32 = ["cov", "nn.functional.scaled_dot_product_attention"]
"""Those that compute lower precisions in float32, on some devices."""
FEW = 24  # samples of an operator


def samples(name: str, dtype: torch.dtype, device: str, grad: bool) -> list[Any]:
    torch.manual_seed(0)
    op = opinfos()[name]
    given = op.sample_inputs(device, dtype, requires_grad=grad)
    return list(itertools.islice(given, FEW))


def results(name: str, given: list[Any], grad: bool) -> list[Any]:
    """Results, and gradients by weights of both signs; of each sample by the same seed."""
    op = opinfos()[name]
    found = []
    for sample in given:
        torch.manual_seed(0)
        out = op.op(sample.input, *sample.args, **sample.kwargs)
        found.append(tree_map(lambda t: t.detach() if isinstance(t, Tensor) else t, out))
        first = out[0] if isinstance(out, tuple) else out
        if not grad or not first.requires_grad:
            continue
        leaves = [
            t
            for t in tree_leaves((sample.input, sample.args, sample.kwargs))
            if isinstance(t, Tensor) and t.requires_grad
        ]
        weights = torch.linspace(-1, 1, first.numel(), dtype=first.dtype, device=first.device)
        found.append(torch.autograd.grad(first, leaves, weights.view_as(first), allow_unused=True))
    return found


@on_every_device
@pytest.mark.parametrize("name", PRODUCTS + NO_PRODUCTS)
def test_opinfo_samples(name, device):
    given = samples(name, torch.float32, device, True)
    want = results(name, given, True)
    with everything() as p:
        got = results(name, given, True)
    close(got, want)
    assert (p.taken > 0) == (name in PRODUCTS), str(p)


@on_every_device
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.complex64])
@pytest.mark.parametrize("name", PRODUCTS)
def test_other_dtypes_are_torchs(name, dtype, device):
    op = opinfos()[name]
    if dtype not in op.supported_dtypes(device):
        pytest.skip(f"{name} has no {dtype}")
    given = samples(name, dtype, device, False)
    want = results(name, given, False)
    with everything() as p:
        got = results(name, given, False)
    # torch's own complex products differ by alignment, and on some CPUs those in double do: by
    # 3e-15 of a result where it was seen.
    last_bits = 1e-12 if device == "cpu" and dtype is torch.float64 else 0
    loose = dtype.is_complex or name in IN_FLOAT32
    exact = {} if loose else {"rtol": last_bits, "atol": last_bits}
    torch.testing.assert_close(got, want, equal_nan=True, **exact)
    if name not in IN_FLOAT32:
        assert p.taken == 0
        assert p.left > 0
    assert reasons(p) - {"empty", "one operator, no product to take"} <= {
        str(dtype).removeprefix("torch.")
    }


@on_every_device
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("name", [*PRODUCTS, *NO_PRODUCTS])
def test_opinfo_out(name, device):
    """An out of the result's shape, of no elements, transposed in memory."""
    op = opinfos()[name]
    if not op.supports_out:
        pytest.skip(f"{name} has no out=")
    taken = 0
    for sample in samples(name, torch.float32, device, False):
        torch.manual_seed(0)
        want = op.op(sample.input, *sample.args, **sample.kwargs)
        if not isinstance(want, Tensor):
            continue
        turned = want.mT.contiguous() if want.dim() >= 2 else want
        for make in (
            lambda like=want: torch.full_like(like, 7.0),
            lambda like=want: like.new_empty(0),
            lambda like=turned: torch.full_like(like, 7.0).mT if like.dim() >= 2 else like.clone(),
        ):
            place = make()
            try:
                with Seen():
                    op.op(sample.input, *sample.args, **sample.kwargs, out=make())
            except RuntimeError as error:  # some places are none to torch, one under no mode
                with everything(), pytest.raises(RuntimeError, match=re.escape(str(error))):
                    op.op(sample.input, *sample.args, **sample.kwargs, out=place)
                continue
            with everything() as p:
                out = op.op(sample.input, *sample.args, **sample.kwargs, out=place)
            assert out is place
            assert out.shape == want.shape
            close(out, want)
            taken += p.taken
    # With out= linear is an operator of its own.
    assert (taken > 0) == (name in PRODUCTS and name != "nn.functional.linear")


# ------------------------------------------------------------------------------ what torch says


def _a(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.arange(1.0, 1.0 + torch.Size(shape).numel()).reshape(shape).sin().to(dtype)


A, B = _a(4, 4), _a(4, 4).cos()
NAN = torch.full((4, 4), torch.nan)
ERRORS = {
    "inner sizes": lambda: torch.mm(A, _a(3, 4)),
    "ranks": lambda: torch.mm(A, _a(1, 4, 4)),
    "batches": lambda: torch.bmm(_a(2, 4, 4), _a(1, 4, 4)),
    "vector": lambda: torch.mv(A, _a(3)),
    "addend": lambda: torch.addmm(_a(3), A, B),
    "addend of baddbmm": lambda: torch.baddbmm(_a(3, 4, 4), _a(2, 4, 4), _a(2, 4, 4)),
    "in place, broadcast": lambda: _a(4).addmm_(A, B),
    "complex alpha": lambda: torch.addmm(A, A, B, alpha=2j),
    "alpha beyond float32": lambda: torch.addmm(A, A, B, alpha=1e39),
    "dtypes": lambda: torch.mm(A, B.double()),
    "integer operand": lambda: torch.mm(A, B.long()),
    "dtype of the addend": lambda: torch.addmm(A.double(), A, B),
    "dtype of out": lambda: torch.mm(A, B, out=A.double()),
    "overlapping out": lambda: torch.mm(A, B, out=torch.empty(1, 1).expand(4, 4)),
    "out requires grad": lambda: torch.mm(A, B, out=_a(4, 4).requires_grad_()),
    "einsum": lambda: torch.einsum("ij,jk->il", A, B),
    "matmul": lambda: torch.matmul(A, _a(3)),
    "linear": lambda: F.linear(A, _a(2, 3)),
    "saved tensor changed": lambda: _changed(),
}  # fmt: skip


def _changed() -> None:
    x, y = A.clone().requires_grad_(), B.clone().requires_grad_()
    z = y * 1
    out = (x @ z).sum()
    z.addmm_(A, B)
    out.backward()


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_torchs(name):
    with pytest.raises(Exception) as want:  # noqa: B017, PT011
        ERRORS[name]()
    with everything(), pytest.raises(want.type) as got:
        ERRORS[name]()
    assert got.type is want.type
    assert str(got.value) == str(want.value)


FACTORS = [{}, {"beta": 0}, {"alpha": 3, "beta": -2}, {"alpha": 0.5}, {"beta": float("nan")}]
ADDENDS = {"same": (4, 4), "row": (4,), "column": (4, 1), "one": (1, 1), "scalar": ()}


@on_every_device
@pytest.mark.parametrize("factors", FACTORS, ids=str)
@pytest.mark.parametrize("addend", ADDENDS)
def test_addends_and_factors(addend, factors, device):
    a, b, c = A.to(device), B.to(device), _a(*ADDENDS[addend]).to(device)
    forms = {
        "addmm": lambda: torch.addmm(c, a, b, **factors),
        "baddbmm": lambda: torch.baddbmm(c, a.expand(3, 4, 4), b.repeat(3, 1, 1), **factors),
        "addbmm": lambda: torch.addbmm(c, a.expand(3, 4, 4), b.repeat(3, 1, 1), **factors),
    }
    if addend in ("row", "scalar"):
        forms["addmv"] = lambda: torch.addmv(c, a, b[0], **factors)
    if addend == "same":
        forms |= {
            "addmm_": lambda: c.clone().addmm_(a, b, **factors),
            "addbmm_": lambda: c.clone().addbmm_(a[None], b[None], **factors),
            "baddbmm_": lambda: c.repeat(2, 1, 1).baddbmm_(a.repeat(2, 1, 1), b.repeat(2, 1, 1),
                                                           **factors),
            "addmv_": lambda: c[0].clone().addmv_(a, b[0], **factors),
            "addmm.out": lambda: torch.addmm(c, a, b, **factors, out=torch.empty_like(a)),
        }  # fmt: skip
    want = {name: form() for name, form in forms.items()}
    with everything() as p:
        got = {name: form() for name, form in forms.items()}
    close(got, want) if factors.get("beta", 0) == factors.get("beta", 0) else None
    nan = any(value != value for value in factors.values())
    assert counted(p, taken=not nan) == dict.fromkeys(forms, 1)
    for name in forms:
        assert got[name].stride() == want[name].stride()
        assert torch.equal(got[name].isnan(), want[name].isnan())


def test_beta_of_zero_does_not_read_the_addend():
    with everything() as p:
        got = [torch.addmm(NAN, A, B, beta=0), torch.addmv(NAN[0], A, B[0], beta=0)]
    assert not any(t.isnan().any() for t in got)
    assert counted(p) == {"addmm": 1, "addmv": 1}


EMPTY = {
    "no rows": lambda: torch.mm(A[:0], B),
    "no inner size": lambda: torch.mm(A[:, :0], B[:0]),
    "no inner size, NaN": lambda: torch.addmm(NAN, A[:, :0], B[:0], beta=0),
    "no inner size, addend": lambda: torch.addmm(A, A[:, :0], B[:0], beta=2),
    "no batch": lambda: torch.bmm(_a(0, 4, 4), _a(0, 4, 4)),
    "no vector": lambda: torch.mv(A[:, :0], A[0, :0]),
}


@pytest.mark.parametrize("name", EMPTY)
def test_empty_products(name):
    want = EMPTY[name]()
    with everything() as p:
        got = EMPTY[name]()
    assert torch.equal(got, want)
    assert reasons(p) == {"empty"}


def _nested() -> Tensor:
    return torch.nested.nested_tensor([_a(2, 4), _a(3, 4)])


LEFT = {
    "float64": lambda: torch.mm(A.double(), B.double()),
    "bfloat16": lambda: torch.mm(A.bfloat16(), B.bfloat16()),
    "int64": lambda: torch.mm(A.long(), B.long()),
    "complex64": lambda: torch.mm(A.to(torch.complex64).conj(), B.to(torch.complex64)),
    "sparse_coo": lambda: torch.mm(A.to_sparse(), B),
    "sparse_csr": lambda: torch.mm(A.to_sparse_csr(), B),
    "nested": lambda: torch.bmm(_nested(), _a(2, 4, 4)),
    "on meta": lambda: torch.mm(A.to("meta"), B.to("meta")),
    "out= of another shape": lambda: torch.mm(A, B, out=torch.empty(0)),
    "sgemm: out and a share memory": lambda: torch.mm(C, B, out=C),
    "one operator, no product to take": lambda: F.conv1d(_a(2, 4, 5), _a(3, 4, 2)),
}
C = A.clone()


@pytest.mark.filterwarnings("ignore:.*(nested|Sparse)")
@pytest.mark.parametrize("reason", LEFT)
def test_what_does_not_fit_is_torchs(reason):
    want = LEFT[reason]()
    with everything() as p:
        got = LEFT[reason]()
    assert reasons(p) == {reason}
    assert p.taken == 0
    assert got.layout == want.layout
    assert got.dtype == want.dtype
    if reason == "nested":
        got, want = got.to_padded_tensor(0.0), want.to_padded_tensor(0.0)
    if reason not in ("on meta", "sgemm: out and a share memory"):
        torch.testing.assert_close(got, want, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("call", "shape"),
    [
        (lambda out: torch.mm(A, B, out=out), (2, 2)),
        (lambda out: torch.addmv(A[0], A, B[0], out=out), (4, 1)),
        (lambda out: torch.mv(A, B[0], out=out), ()),
        (lambda out: torch.addbmm(A, _a(2, 4, 4), _a(2, 4, 4), out=out), (1, 4, 4)),
        (lambda out: torch.bmm(_a(2, 4, 4), _a(2, 4, 4), out=out), (8, 4)),
    ],
)
def test_resizing_warns_as_torch_does(call, shape):
    with warnings.catch_warnings(record=True) as wanted:
        want = call(torch.empty(shape))
    with everything() as p, warnings.catch_warnings(record=True) as warned:
        out = call(torch.empty(shape))
    assert [str(w.message) for w in warned] == [str(w.message) for w in wanted]
    assert out.shape == want.shape
    close(out, want)
    assert reasons(p) == {"out= of another shape"}


@pytest.mark.parametrize("overload", ["mm.dtype", "bmm.dtype", "addmm.dtype", "baddbmm.dtype"])
def test_out_dtype_overloads_are_no_products_of_ours(overload):
    name = overload.partition(".")[0]
    op = getattr(getattr(torch.ops.aten, name), "dtype", None)
    if op is None:
        pytest.skip("this torch has no such overload")
    with everything() as p:
        pass
    assert op.name() not in {f"aten::{t.name}" for m in p._modes for t in m.tallies}


def test_views_and_bits():
    """A negated view, a zero tensor without memory, expanded and strided operands."""
    imaginary = torch.complex(A, B).conj().imag
    assert imaginary.is_neg()
    operands = [
        imaginary,
        torch._efficientzerotensor((4, 4)),
        A[:1].expand(4, 4),
        A.T,
        _a(8, 8)[::2, ::2],
    ]
    want = [x @ B for x in operands]
    with everything() as p:
        got = [x @ B for x in operands]
    close(got, want)
    assert counted(p) == {"mm": len(operands)}


def test_versions_views_and_graphs_are_those_of_torch():
    x = torch.zeros(4, 4)
    with everything() as p:
        x.addmm_(A, B)
        torch.mm(A, B, out=x)
        assert x._version == 2
        y = torch.mv(A.clone().requires_grad_(), B[0])
    assert not y._is_view()
    assert type(y.grad_fn).__name__ == "MvBackward0"
    assert p.taken == 3


# ------------------------------------------------------------------------------ models


def _attention(x: Tensor) -> Tensor:
    q, k, v = (x @ _a(8, 8) for _ in "qkv")
    return torch.softmax(q @ k.mT / 8**0.5, -1) @ v


MODULES = {
    "mha": lambda: torch.nn.MultiheadAttention(8, 2, batch_first=True),
    "gru": lambda: torch.nn.GRU(8, 6, batch_first=True),
    "gru cell": lambda: torch.nn.GRUCell(8, 6),
    "lstm cell": lambda: torch.nn.LSTMCell(8, 6),
    "rnn": lambda: torch.nn.RNN(8, 6, batch_first=True),
    "encoder": lambda: torch.nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True),
}


@functools.cache
def _module(name: str, device: torch.device) -> torch.nn.Module:
    torch.manual_seed(1)
    return MODULES[name]().to(device)


USES = {
    "@": (lambda x: x @ x.mT, {"bmm"}),
    "matrix @ vector": (lambda x: x[0] @ x[0, 0], {"mv"}),
    "reflected @": (lambda x: torch.Tensor.__rmatmul__(x[0].T, x[0]), {"mm"}),
    "einsum": (lambda x: torch.einsum("bij,bkj,kl->bil", x, x, _a(5, 3)), {"bmm"}),
    "tensordot": (lambda x: torch.tensordot(x, _a(5, 8, 3), 2), {"mm"}),
    "inner": (lambda x: torch.inner(x, x[0]), {"mm"}),
    "multi_dot": (lambda x: torch.linalg.multi_dot([x[0], _a(8, 3), _a(3, 9)]), {"mm"}),
    "linear": (lambda x: F.linear(x, _a(3, 8), _a(3)), {"addmm"}),
    "linear, no bias": (lambda x: F.linear(x, _a(3, 8)), {"mm"}),
    "matrix_power": (lambda x: torch.linalg.matrix_power(x[:, :5, :5], 3), {"bmm"}),
    "attention by hand": (_attention, {"mm", "bmm"}),
    "mha": (lambda x: _module("mha", x.device)(x, x, x)[0], {"addmm", "bmm"}),
    "gru": (lambda x: _module("gru", x.device)(x)[0], {"addmm"}),
    "rnn": (lambda x: _module("rnn", x.device)(x)[0], {"addmm"}),
    "gru cell": (lambda x: _module("gru cell", x.device)(x[:, 0]), {"addmm"}),
    "lstm cell": (lambda x: _module("lstm cell", x.device)(x[:, 0])[0], {"addmm"}),
    "encoder": (lambda x: _module("encoder", x.device)(x), {"addmm"}),
}


@on_every_device
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", USES)
def test_what_is_made_of_products(name, mode, device):
    """The same with autograd, without, and in inference mode, where torch breaks nothing up."""
    use, products = USES[name]
    if device == "cuda" and name in ("gru", "rnn"):
        pytest.skip("cuDNN's RNN layers are one operator")
    with torch.device(device):
        x = _a(3, 5, 8).to(device)
    if name in MODULES:
        _module(name, x.device)  # made outside of modes
    with torch.device(device), MODES[mode]():
        want = use(x)
        with everything() as p:
            got = use(x)
    close(got, want)
    taken = counted(p).keys()  # a GPU's cells add their biases elsewhere
    assert products <= taken if device == "cpu" else taken, str(p)
    assert got.is_inference() == (mode == "inference")


@pytest.mark.parametrize("name", ["mha", "gru", "encoder", "attention by hand"])
def test_backward_is_taken_where_it_is_called_inside(name):
    use, _ = USES[name]
    x = _a(3, 5, 8).requires_grad_()
    (want,) = torch.autograd.grad(use(x).sin().sum(), x)
    with everything() as p:
        loss = use(x).sin().sum()
        forward = p.taken
        (got,) = torch.autograd.grad(loss, x, retain_graph=True)
    close(got, want)
    inside = p.taken
    assert inside > forward > 0
    torch.autograd.grad(loss, x)
    assert p.taken == inside, "outside it is torch's"


def test_precision_reaches_the_products():
    """The bits are those of sgemm with "ieee", forward and backward, which torch's BLAS has not.

    K is cut: of a shorter one some CPUs' BLAS makes one chain of FMAs, too.
    """
    a, b = problems.wide(9, 2000), problems.wide(2000, 7)
    ieee = xgemm_torch.sgemm(a, b, precision="ieee")
    a.requires_grad_()
    assert not torch.equal(ieee, torch.mm(a, b))
    with everything(precision="ieee"):
        assert torch.equal(torch.mm(a, b), ieee)
        assert torch.equal(F.linear(a, b.T.contiguous()), ieee)
        assert torch.equal(torch.einsum("ij,jk->ik", a, b), ieee)
        (grad,) = torch.autograd.grad(torch.mm(a, b), a, ieee)
    assert torch.equal(grad, xgemm_torch.sgemm(ieee, b, trans_b=True, precision="ieee"))


@pytest.mark.parametrize("kernel", [*problems.STRICT[:1], *problems.EMULATED[-1:]])
def test_a_stage_by_its_name(kernel):
    """Its own bits, from the emulator; of batches, vectors and sums over a batch, too."""
    a, b = problems.wide(5, 70), problems.wide(70, 6)
    want = xgemm_torch.sgemm(a, b, kernel=kernel)
    column = xgemm_torch.sgemm(a, b[:, :1], kernel=kernel)[:, 0]
    with everything(kernel=kernel) as p:
        assert torch.equal(a @ b, want)
        assert torch.equal(torch.addmm(torch.zeros(6), a, b), want)
        assert torch.equal(torch.bmm(a[None], b[None])[0], want)
        assert torch.equal(torch.mv(a, b[:, 0]), column)
        assert torch.equal(torch.addbmm(torch.zeros(1), a[None], b[None]), want)
    assert p.taken == 5
    assert p.left == 0


# ------------------------------------------------------------------------------ transforms


@pytest.mark.parametrize("form", ["bias", "batched"])
@pytest.mark.parametrize("transform", test_transforms.TRANSFORMS, ids=lambda t: t.__name__)
def test_transform(transform, form):
    args, flags = test_transforms.inputs(form)
    want = transform(test_transforms.aten, args, flags)
    with everything() as p:
        got = transform(test_transforms.aten, args, flags)
    test_transforms.same(got, want)
    assert p.taken > 0


def test_vmap_of_vectors():
    a, x = _a(3, 4), _a(5, 4)
    with everything() as p:
        got = torch.func.vmap(lambda v: a @ v)(x)
    close(got, x @ a.T)
    assert p.taken == 1


def test_functionalize_and_make_fx():
    """A trace by make_fx has the operators that run; one that torch.export makes has ATen's."""

    def f(a, b):
        return torch.mm(a, b).add_(1)

    def patched(a, b):
        with everything():
            return f(a, b)

    def traced(f):
        graph = torch.fx.experimental.proxy_tensor.make_fx(torch.func.functionalize(f))(A, B)
        close(graph(A, B), f(A, B))
        return {str(node.target) for node in graph.graph.nodes}

    assert "aten.mm.default" in traced(f)
    assert "xgemm.sgemm.default" in traced(patched)
    with everything() as p:
        assert "xgemm.sgemm.default" in traced(f)
        exported = torch.export.export(torch.nn.Bilinear(4, 4, 3), (A, B)).run_decompositions()
        graph = torch.export.export(torch.nn.Linear(4, 3), (A,)).run_decompositions().graph
    assert all("xgemm" not in str(node.target) for node in (*graph.nodes, *exported.graph.nodes))
    assert "aten.addmm.default" in {str(node.target) for node in graph.nodes}
    assert p.taken > 0


def test_operators_of_higher_order():
    """They run; what is multiplied inside them is torch's."""
    with everything() as p:
        got = torch.cond(torch.tensor(True), lambda x: x @ x, lambda x: x + 1, (A,))
    close(got, A @ A)
    assert p.left == 0


def _linear(x: Tensor, weight: Tensor) -> Tensor:
    return F.linear(torch.relu(x @ weight), weight, x[0]).sin()


@pytest.mark.parametrize("compiled_first", [False, True], ids=["inside", "before"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_compiled_functions(backend, compiled_first):
    """One graph, for inside and outside; inside it calls ATen's products, which are taken."""
    x, weight = _a(6, 6).requires_grad_(), _a(6, 6).cos().requires_grad_()

    def grads(f):
        return torch.autograd.grad(f(x, weight).sum(), (x, weight))

    want = grads(_linear)
    torch._dynamo.reset()
    graphs = torch._dynamo.testing.CompileCounterWithBackend(backend)
    compiled = torch.compile(_linear, backend=graphs, fullgraph=True)
    if compiled_first:
        close(grads(compiled), want)
    with everything() as p:
        got = grads(compiled)
    close(got, want)
    assert p.taken == 6, str(p)
    close(grads(compiled), want)
    assert p.taken == 6
    assert graphs.frame_count == 1


def test_graph_breaks_inside():
    """What runs between two graphs is taken, and Dynamo does not compile what takes it."""

    def f(x):
        y = x @ x
        torch._dynamo.graph_break()
        return _eager(y)

    @torch._dynamo.disable(recursive=False)
    def _eager(y):
        return torch.bmm(y[None], y[None]).sin()

    torch._dynamo.reset()
    graphs = torch._dynamo.testing.CompileCounterWithBackend("eager")
    with everything() as p:
        close(torch.compile(f, backend=graphs)(A), torch.bmm((A @ A)[None], (A @ A)[None]).sin())
    assert counted(p) == {"mm": 3, "bmm": 2}
    assert graphs.frame_count == 1


def test_a_patch_inside_a_compiled_function_breaks_the_graph():
    p = everything()

    def f(x):
        y = torch.relu(x @ x)
        with p:
            y = y @ x
        return y @ x

    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of what Dynamo cannot trace
        close(torch.compile(f, backend="eager")(A), torch.relu(A @ A) @ A @ A)
    assert p.taken == 1
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="context manager"):
        torch.compile(f, backend="eager", fullgraph=True)(A)


# ------------------------------------------------------------------------------ autograd's ways


@pytest.mark.parametrize("early_stop", [True, False])
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint(reentrant, early_stop):
    x, w = _a(4, 4).requires_grad_(), _a(4, 4).cos().requires_grad_()

    def f(x):
        return torch.relu(x @ w) @ w

    (want,) = torch.autograd.grad(f(x).sum(), w)
    with everything() as p, torch.utils.checkpoint.set_checkpoint_early_stop(early_stop):
        out = checkpoint(f, x, use_reentrant=reentrant)
        forward = p.taken
        out.sum().backward()
    close(w.grad, want)
    assert forward == 2
    # Four gradients, and both products again; an early stop spares the last, whose result nobody
    # needs.
    assert p.taken - forward == 4 + (1 if early_stop and not reentrant else 2)


def test_a_checkpoints_policy_sees_atens_products():
    saved = create_selective_checkpoint_contexts
    x, w = _a(4, 4).requires_grad_(), _a(4, 4).cos().requires_grad_()

    def f(x):
        return torch.relu(x @ w) @ w

    (want,) = torch.autograd.grad(f(x).sum(), w, retain_graph=False)
    counts = []
    for ops in ([torch.ops.aten.mm.default], [torch.ops.aten.relu.default]):
        w.grad = None
        with everything() as p:
            checkpoint(
                f, x, use_reentrant=False, context_fn=functools.partial(saved, ops)
            ).sum().backward()
        close(w.grad, want)
        counts.append(p.taken)
    assert counts[0] < counts[1], "what the policy keeps is not computed again"


def test_saved_tensors_hooks():
    x, w = _a(4, 4).requires_grad_(), _a(4, 4).cos().requires_grad_()
    packed = []

    def pack(t):
        packed.append(t)
        return t @ torch.eye(4)

    want = torch.autograd.grad((x @ w).sum(), (x, w))
    with everything() as p, torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t * 1):
        got = torch.autograd.grad((x @ w).sum(), (x, w))
    close(got, want)
    assert len(packed) == 2
    assert counted(p) == {"mm": 5}


def test_backward_in_another_thread_is_taken():
    """Autograd's threads have the modes of the thread that called backward().

    On a CPU that needs backward passes inside backward passes: from a depth of 60 on autograd
    takes threads of a pool.
    """
    threads = set()

    class Deeper(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, depth):
            ctx.depth = depth
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            threads.add(threading.get_ident())
            if ctx.depth:
                with torch.enable_grad():
                    x = torch.ones(2, 2, requires_grad=True)
                    (Deeper.apply(x, ctx.depth - 1) @ torch.ones(2, 2)).sum().backward()
                    assert torch.equal(x.grad, torch.full((2, 2), 2.0))
            return grad, None

    x = torch.ones(2, 2, requires_grad=True)
    with everything() as p:
        Deeper.apply(x, 70).sum().backward()
    assert len(threads) > 1
    assert p.taken == 70 * 2


@pytest.mark.gpu
def test_backward_on_a_gpu_is_taken():
    x, w = _a(4, 4).cuda().requires_grad_(), _a(4, 4).cuda().requires_grad_()
    threads = set()
    x.register_hook(lambda grad: threads.add(threading.get_ident()))
    with everything() as p:
        (x @ w).sum().backward()
    assert threads != {threading.get_ident()}
    assert counted(p) == {"mm": 3}


@on_every_device
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_is_as_without(dtype, device):
    """Its casts are above: products of lower precision are torch's, bit for bit."""
    a, b = A.to(device), B.to(device)
    with torch.autocast(device, dtype):
        want = a @ b
        with everything() as p:
            got = a @ b
            with torch.autocast(device, enabled=False):
                close(a @ b, A.to(device).mm(b))
    assert got.dtype == dtype
    assert torch.equal(got, want)
    assert reasons(p) == {str(dtype).removeprefix("torch.")}
    assert counted(p)["mm"] == 2


# ------------------------------------------------------------------------------ tensors' classes


class Wrapped(Tensor):
    """A wrapper, as quantized and sharded tensors are."""

    @staticmethod
    def __new__(cls, inner):
        return Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        plain = tree_map(lambda t: t.inner if isinstance(t, cls) else t, args)
        return cls(func(*plain, **(kwargs or {})))


@pytest.mark.parametrize("mode", ["grad", "inference"])
def test_a_wrappers_own_products_are_taken(mode):
    with MODES[mode](), everything() as p:
        got = torch.nn.functional.linear(Wrapped(A), Wrapped(B))
    assert type(got) is Wrapped
    close(got.inner, A @ B.T)
    assert counted(p) == {"mm": 1}


def test_a_plain_subclass():
    class Named(Tensor):
        pass

    a = A.clone().as_subclass(Named)
    with everything() as p:
        got = a @ B
    assert type(got) is Named
    close(got.as_subclass(Tensor), A @ B)
    assert p.taken == 1


@pytest.mark.filterwarnings("ignore:.*nested")
def test_jagged_tensors():
    x = torch.nested.nested_tensor([_a(2, 4), _a(3, 4)], layout=torch.jagged)
    with everything() as p:
        got = F.linear(x, B, A[0])
    close(got.values(), F.linear(x.values(), B, A[0]))
    assert p.taken == 1


def test_fake_tensors():
    for outside in (True, False):
        fakes = torch._subclasses.fake_tensor.FakeTensorMode()
        a, b = fakes.from_tensor(A), fakes.from_tensor(B)
        modes = [fakes, everything()] if outside else [everything(), fakes]
        with modes[0], modes[1]:
            got = a @ b
        assert type(got) is type(a)
        assert got.shape == (4, 4)


def test_dtensor():
    """The products of the shards, in a process that is all of its group."""
    code = """
import torch, torch.distributed as dist, xgemm_torch
from torch.distributed.tensor import DTensor, Shard, Replicate, distribute_tensor, init_device_mesh
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,))
a, b = torch.randn(4, 6), torch.randn(6, 4)
x = distribute_tensor(a, mesh, [Shard(0)]).requires_grad_()
y = distribute_tensor(b, mesh, [Replicate()]).requires_grad_()
for inference in (False, True):
    with xgemm_torch.patch(min_flops=0) as p, torch.inference_mode(inference):
        z = x @ y
        if not inference:
            z.sum().backward()
    assert type(z) is DTensor and torch.allclose(z.to_local(), a @ b, atol=1e-5)
    assert p.taken == (1 if inference else 3), str(p)
dist.destroy_process_group()
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


class Seen(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_other_modes_inside_and_outside():
    with everything() as p, Seen() as inside:
        _ = A @ B
    with Seen() as outside, everything():
        _ = A @ B
    assert inside.names == ["aten.mm.default"]
    assert outside.names == ["xgemm.sgemm.default"]
    assert p.taken == 1
    for order in (0, 1):
        counter, p = FlopCounterMode(display=False), everything()
        modes = [counter, p]
        with modes[order], modes[1 - order]:
            _ = A @ B
        assert counter.get_total_flops() == p.rows[0].flops == 2 * 4**3


def test_a_torch_function_mode():
    class Functions(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    with Functions(), everything() as p, Functions():
        close(A @ B, A.mm(B))
    assert p.taken == 2


# ------------------------------------------------------------------------------ entering, leaving


def test_a_decorator():
    p = everything()

    @p
    def product(x):
        """Doc."""
        return x @ x

    assert product.__name__ == "product"
    assert product.__doc__ == "Doc."
    _ = product(A)
    _ = A @ A
    assert p.taken == 1

    @everything()
    def again(depth):
        return again(depth - 1) @ A if depth else A

    close(again(2), A @ A @ A)


def test_what_a_decorator_does_not_take():
    def generator():
        yield A @ A

    async def coroutine():
        return A @ A

    for function in (generator, coroutine):
        with pytest.raises(TypeError, match=f"{function.__name__} runs after the call"):
            everything()(function)
    for thing in (torch.nn.Linear, 3):
        with pytest.raises(TypeError, match="patch: decorates functions"):
            everything()(thing)


def test_start_and_stop():
    p = everything()
    with pytest.raises(RuntimeError, match="not active in this thread"):
        p.stop()
    assert p.start() is p
    _ = A @ B
    with Seen() as seen:
        _ = A @ B
        p.stop()  # below another mode
        _ = A @ B
    _ = A @ B
    assert p.taken == 2
    assert seen.names == ["aten.mm.default"] * 2
    p.start()
    _ = A @ B
    p.stop()
    assert p.taken == 3


@pytest.mark.parametrize("how", ["other", "same"])
def test_the_innermost_patch_decides(how):
    outer = everything()
    inner = outer if how == "same" else xgemm_torch.patch(min_flops=1e9)
    with outer:
        _ = A @ B
        with inner:
            _ = A @ B
            with everything() as third:
                _ = A @ B
            _ = A @ B
        _ = A @ B
    assert third.taken == 1
    assert outer.taken == (4 if how == "same" else 2)
    assert outer.left == 0
    if how == "other":
        assert inner.taken == 0
        assert inner.left == 2


def test_exceptions_end_a_patch():
    p = everything()
    with pytest.raises(ZeroDivisionError), p:
        _ = A @ B
        _ = 1 / 0
    _ = A @ B
    with pytest.raises(RuntimeError, match="cannot be multiplied"), p:
        _ = A @ _a(3, 3)
    assert p.taken == 1


def test_threads_are_apart():
    """One that is started inside has no patch; one that enters the same patch counts with it."""
    p, plain = everything(), []

    def work(enter):
        with p if enter else contextlib.nullcontext():
            for _ in range(20):
                plain.append(A @ B)

    for enter, taken in ((False, 1), (True, 1 + 4 * 20 + 1)):
        with p:
            _ = A @ B
            threads = [threading.Thread(target=work, args=(enter,)) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert p.taken == taken
    with p, pytest.raises(RuntimeError, match="not active in this thread"):
        _raised_in_thread(p.stop)


def _raised_in_thread(f):
    errors = []

    def run():
        try:
            f()
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    raise errors[0]


def test_nothing_global_changes():
    def flags():
        return (
            torch.get_float32_matmul_precision(), torch.is_grad_enabled(),
            torch.are_deterministic_algorithms_enabled(), torch.backends.mkldnn.enabled,
            torch.backends.cuda.matmul.allow_tf32, torch._C._len_torch_dispatch_stack(),
        )  # fmt: skip

    before, state = flags(), torch.random.get_rng_state()
    with everything():
        first = A @ B
    assert flags() == before
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.use_deterministic_algorithms(True)
    try:
        with everything() as p:
            assert torch.equal(A @ B, first)
        assert p.taken == 1
    finally:
        torch.use_deterministic_algorithms(False)


def test_dynamo_is_not_imported():
    code = (
        "import sys, torch, xgemm_torch\n"
        "with xgemm_torch.patch(min_flops=0) as p: torch.ones(3, 3) @ torch.ones(3, 3)\n"
        "assert p.taken == 1\n"
        "assert 'torch._dynamo' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# ------------------------------------------------------------------------------ settings, report


def test_small_products_are_left():
    least = 2 * 4 * 4 * 4
    for min_flops, taken in ((least, 1), (least + 1, 0), (0, 1), (float("inf"), 0)):
        with xgemm_torch.patch(min_flops=min_flops) as p:
            _ = A @ B
        assert p.taken == taken
        assert p.left == 1 - taken
    with xgemm_torch.patch() as p:
        _ = A @ B
        _ = torch.bmm(_a(16, 64, 128), _a(16, 128, 64))
    assert p.min_flops is None and dispatch.MIN_FLOPS == 2 * 16 * 64 * 128 * 64
    assert repr(p) == "patch(precision='fp32', min_flops=None, kernel='auto')"
    assert counted(p) == {"bmm": 1}
    assert reasons(p) == {"below 16.8 MFLOP"}


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (
            {"precision": "tf32"},
            ValueError,
            "patch: precision must be 'fp32' or 'ieee', got 'tf32'",
        ),
        ({"kernel": "nope"}, ValueError, "patch: no kernel named 'nope'"),
        ({"kernel": 3}, TypeError, "patch: kernel must be a string"),
        ({"min_flops": "1"}, TypeError, "patch: min_flops must be a number or None, got str"),
        ({"min_flops": True}, TypeError, "patch: min_flops must be a number or None, got bool"),
        ({"min_flops": -1}, ValueError, "patch: min_flops must not be negative, got -1"),
        ({"min_flops": float("nan")}, ValueError, "patch: min_flops must not be negative"),
    ],
)
def test_wrong_settings(options, error, text):
    with pytest.raises(error, match=text):
        xgemm_torch.patch(**options)


def test_the_report():
    p = everything()
    assert str(p) == "patch(precision='fp32', min_flops=0, kernel='auto'): no products yet"
    assert p.share == 0.0
    with p:
        for _ in range(3):
            torch.addmm(A[0], _a(20, 4), B)
        _ = A.double() @ B.double()
        F.conv1d(_a(1, 4, 5), _a(3, 4, 2))
        torch.mm(A[:0], B)
    assert str(p).splitlines() == [
        "product      by     calls    FLOP  share  why torch",
        "-----------  -----  -----  ------  -----  --------------------------------",
        "addmm        xgemm      3  1.92 k  85.7%",
        "convolution  torch      1    192    8.6%  one operator, no product to take",
        "mm           torch      1    128    5.7%  float64",
        "mm           torch      1              ?  empty",
        "xgemm made 3 of 6 products, 85.7% of 2.24 kFLOP",
    ]
    assert len(p.rows) == len(list(p)) == 4
    assert p.rows[0] == xgemm_torch.PatchRow("addmm", True, 3, 3 * 2 * 20 * 4 * 4)
    assert p.share == pytest.approx(1920 / 2240)
    p.reset()
    assert p.rows == ()
    with p:
        _ = A @ B
    assert [(r.product, r.calls) for r in p] == [("mm", 1)]


def test_converted_layers_are_counted():
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU())
    x = A.clone().requires_grad_()
    xgemm_torch.convert(model)
    with everything() as p:
        (model(x) @ _a(6, 2)).sum().backward()
    ours = {row.product: row.calls for row in p if row.product.startswith("xgemm.")}
    assert ours == {"xgemm.sgemm": 1, "xgemm.linear_backward": 1}
    assert counted(p)["mm"] == 2
    assert p.share == 1.0
    flops = {row.product: row.flops for row in p}
    assert flops["xgemm.linear_backward"] == 2 * flops["xgemm.sgemm"] == 2 * 2 * 4 * 4 * 6


def test_attention_in_one_operator_is_counted():
    q = _a(1, 2, 16, 8)
    with everything() as p:
        F.scaled_dot_product_attention(q, q, q)
    (row,) = p.rows
    assert (row.taken, row.reason) == (False, "one operator, no product to take")
    assert "scaled_dot_product" in row.product
    assert row.flops == 2 * (2 * 2 * 16 * 16 * 8)
    assert "unknown" not in str(p)


GROUPED = {
    "rows": ((10, 8), (2, 8, 6), [4, 10]),
    "rows, an empty group": ((10, 8), (3, 8, 6), [4, 4, 10]),
    "columns": ((2, 5, 8), (8, 12), [4, 12]),
    "inner sizes": ((5, 12), (12, 8), [4, 4, 12]),
    "batches": ((2, 5, 8), (2, 8, 6), None),
}


@on_every_device
@pytest.mark.skipif(not hasattr(torch.ops.aten, "_grouped_mm"), reason="not in this torch")
@pytest.mark.parametrize("name", GROUPED)
def test_grouped_products(name, device):
    """Values, strides and gradients; of lower precision torch's one kernel is left alone."""
    left, right, ends = GROUPED[name]

    def operand(*shape):  # torch wants rows of 16 bytes
        rows = torch.zeros(*shape[:-1], -(-shape[-1] // 4) * 4)
        rows[..., : shape[-1]] = _a(*shape)
        return rows.to(device)[..., : shape[-1]].requires_grad_()

    a, b = operand(*left), operand(*right)
    offs = None if ends is None else torch.tensor(ends, dtype=torch.int32, device=device)
    flops = 2 * (2 if name == "batches" else 1) * left[-2] * left[-1] * right[-1]

    def run():
        out = torch.ops.aten._grouped_mm(a, b, offs)
        grads = torch.autograd.grad(out.sin().sum(), (a, b)) if right[-1] % 4 == 0 else ()
        return out, *grads

    want = run()
    with everything() as p:
        got = run()
    close(got, want)
    assert [t.stride() for t in got] == [t.stride() for t in want]
    assert p.left == 0
    assert [(r.product, r.calls, r.flops) for r in p][0] == (
        "_grouped_mm", len(want), flops * len(want),
    )  # fmt: skip
    with xgemm_torch.patch(min_flops=flops + 1) as small, torch.no_grad():
        run_once = torch.ops.aten._grouped_mm(a, b, offs)
    close(run_once, want[0])
    assert (small.taken, small.left) == (0, 1)


@pytest.mark.skipif(not hasattr(torch.ops.aten, "_grouped_mm"), reason="not in this torch")
def test_grouped_products_that_are_wrong_are_torchs():
    a, b, offs = _a(12, 8), _a(2, 8, 8), torch.tensor([4, 12], dtype=torch.int32)
    for args in (
        (_a(12, 6)[:, :6], _a(2, 6, 8), offs),
        (a, _a(2, 7, 8), offs),
        (a, b, None),
        (a, b, offs.long()),
        (a, b, offs[:1]),
        (a, b[0], offs, torch.ones(8)),
    ):
        with pytest.raises(Exception) as want:  # noqa: B017, PT011
            torch.ops.aten._grouped_mm(*args)
        with everything(), pytest.raises(want.type, match=re.escape(str(want.value))):
            torch.ops.aten._grouped_mm(*args)
    with everything() as p:
        torch.ops.aten._grouped_mm(a.bfloat16(), b.bfloat16(), offs)
    assert reasons(p) == {"bfloat16"}


EFFICIENT = torch.ops.aten._scaled_dot_product_efficient_attention
EFFICIENT_BACKWARD = torch.ops.aten._scaled_dot_product_efficient_attention_backward


def heads(*sizes: int, device: str = "cpu") -> list[Tensor]:
    """Of one projection, as a model's are: (B, S, 3, H, D) as three (B, H, S, D)."""
    b, h, s, d = sizes
    return list(_a(b, s, 3, h, d).to(device).permute(2, 0, 3, 1, 4))


# How a projection of (B, S, 3 H D) is cut: view, permutation, dimension to unbind.
CUTS = {
    "timm's": ((2, 5, 3, 2, 4), (2, 0, 3, 1, 4), 0),
    "from the end": ((2, 5, 3, 2, 4), (-3, 0, -2, 1, -1), 0),
    "in the middle": ((2, 5, 3, 2, 4), (0, 3, 2, 1, 4), 2),
    "last": ((2, 5, 2, 4, 3), (0, 2, 1, 3, 4), -1),
    "first": ((3, 2, 5, 2, 4), (0, 1, 3, 2, 4), 0),
}


@on_every_device
@pytest.mark.parametrize("shape", [(5, 4), (2, 5, 4), (4,), (2, 0, 4)])
def test_layers_tell_a_patch_what_they_multiply(shape, device):
    """None of their operators is seen where the patch is the only mode; bits and counts are those
    of a patch beside another mode, which sees all of them."""
    layer = xgemm_torch.nn.Linear(4, 6, device=device)
    x = _a(*shape).to(device).requires_grad_()
    names: list[str] = []

    def seen(func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        names.append(func.name())
        return func(*args, **kwargs)

    def run() -> list[Tensor]:
        out = layer(x)
        return [out, *torch.autograd.grad(out.sin().sum(), [x, *layer.parameters()])]

    with everything() as alone:
        (mode,) = alone._modes
        for op in (torch.ops.aten.view.default, torch.ops.xgemm.sgemm.default,
                   torch.ops.xgemm.linear_backward.default):  # fmt: skip
            mode.handlers[id(op)] = seen
        got = run()
    assert not [name for name in names if name.startswith("xgemm::")]
    for order in (lambda: (Seen(), everything()), lambda: (everything(), Seen())):
        outer, inner = order()
        with outer, inner:
            want = run()
        other, p = (outer, inner) if isinstance(outer, Seen) else (inner, outer)
        assert {"xgemm.sgemm.default", "xgemm.linear_backward.default"} <= set(other.names)
        assert alone.rows == p.rows and alone.taken == 2
        for mine, theirs in zip(got, want, strict=True):
            assert torch.equal(mine, theirs)


def test_what_is_told_is_the_innermost_patchs_and_no_errors():
    layer, x = xgemm_torch.nn.Linear(4, 6), _a(5, 4)
    with everything() as outer, everything() as inner:
        layer(x)
    assert (outer.taken, inner.taken) == (0, 1)
    with everything() as p, pytest.raises(ValueError, match="inner sizes differ"):
        layer(_a(5, 3))
    assert p.taken == 0
    with everything() as p:
        torch.func.vmap(layer)(_a(2, 5, 4))
        layer(x)
        after = torch.mm(x, x.mT)
    assert counted(p)["mm"] == 1 and after.shape == (5, 5)  # seen again


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_the_gradient_of_what_was_unbound(cut):
    """It is dense as the projection is: nothing copies it into that order. Values are torch's."""
    view, dims, dim = cut

    def run(x):
        whole = x.view(view)
        whole.register_hook(arrived.append)
        parts = whole.permute(dims).unbind(dim)
        return sum((i + part.sin()).square().sum() for i, part in enumerate(parts))

    arrived: list[Tensor] = []
    x = _a(2, 5, 24).requires_grad_()
    (want,) = torch.autograd.grad(run(x), x)
    with everything():
        (got,) = torch.autograd.grad(run(x), x)
        (first,) = torch.autograd.grad(run(x), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        each = torch.func.vmap(torch.func.grad(run))(torch.stack([x.detach(), -x.detach()]))
    (other,) = torch.autograd.grad(run(x), x, create_graph=True)
    assert torch.equal(got, want)
    assert torch.equal(first, want)
    assert torch.equal(each[0], want)
    assert torch.equal(second, torch.autograd.grad(other.sum(), x)[0])
    assert arrived[1].is_contiguous()
    assert got.stride() == want.stride()


def cut_attention(x: Tensor, kept: list[Tensor], **options: Any) -> Tensor:
    """Attention of a projection (B, S, 3 H D), whose gradients' parts and whole are ``kept``."""
    whole = (x * 1).view(1, 40, 3, 2, 16)
    whole.register_hook(kept.append)
    q, k, v = whole.permute(2, 0, 3, 1, 4).unbind()
    out = EFFICIENT(q, k, v, None, True, **options)[0]
    for t in (q, k, v):
        t.register_hook(kept.append)
    return out.sin().sum()


@pytest.mark.parametrize("causal", [False, True])
def test_attention_writes_its_gradients_side_by_side(causal, kernels_of_attention):
    """In the projection's order, so that nothing is copied; the bits are those of other memory."""
    x = _a(1, 40, 96).requires_grad_()
    kept: list[Tensor] = []
    with everything() as p:
        (got,) = torch.autograd.grad(cut_attention(x, kept, is_causal=causal), x)
        cut = x.detach().view(1, 40, 3, 2, 16).permute(2, 0, 3, 1, 4)
        apart = [t.clone().requires_grad_() for t in cut]
        out = EFFICIENT(*apart, None, True, is_causal=causal)[0]
        want = torch.autograd.grad(out.sin().sum(), apart)
    assert p.left == 0
    *parts, whole = kept
    assert sorted(t.data_ptr() for t in parts) == [
        whole.data_ptr() + i * 2 * 16 * whole.element_size() for i in range(3)
    ]
    assert whole.is_contiguous() and problems.same_bits(got.view(whole.shape), whole)
    assert problems.same_bits(got, torch.stack(want, 2).transpose(1, 3).reshape(got.shape))


def test_gradients_side_by_side_are_no_other_graphs(kernels_of_attention):
    """Parts of other tensors, some of them alone, changed by a hook, used twice; second orders."""

    def run(change: str) -> list[Tensor]:
        torch.manual_seed(3)
        x = _a(1, 40, 96).requires_grad_()
        parts = list((x * 1).view(1, 40, 3, 2, 16).permute(2, 0, 3, 1, 4).unbind())
        q, k, v = parts
        more = 0.0
        if change == "in another order":
            q, k, v = k, v, q
        elif change == "two alone":
            v = q
        elif change == "changed by a hook":
            k.register_hook(lambda t: t * 2)
        elif change == "used twice":
            more = k.square().sum()
        elif change == "another permutation":
            q, k, v = (x * 1).view(1, 40, 3, 2, 16).permute(0, 3, 1, 2, 4).unbind(3)
        elif change == "retained":
            k.retain_grad()
        out = EFFICIENT(q, k, v, None, True)[0]
        (got,) = torch.autograd.grad(out.sin().sum() + more, x)
        return [got, *([k.grad] if change == "retained" else [])]

    for change in ("none", "in another order", "two alone", "changed by a hook", "used twice",
                   "another permutation", "retained"):  # fmt: skip
        with everything():
            got = run(change)
        with everything(), pytest.MonkeyPatch.context() as patch:
            patch.setattr(attention.unbound, "parts_of_attention", lambda *_: None)
            want = run(change)
        for mine, its in zip(got, want, strict=True):
            assert mine.stride() == its.stride() and problems.same_bits(mine, its), change


def test_other_stacks_are_torchs():
    parts = [_a(2, 3, 4).transpose(0, 1).requires_grad_() for _ in range(2)]
    x = _a(2, 5, 6).requires_grad_()

    def run():
        stacks = [torch.stack(parts), torch.stack(parts, -1), x.unbind(1)[2]]
        found = torch.autograd.grad(sum(s.sin().sum() for s in stacks), [*parts, x])
        return [*stacks, *found]

    want = run()
    with everything():
        got = run()
    for have, need in zip(got, want, strict=True):
        assert torch.equal(have, need)
        assert have.stride() == need.stride()


@pytest.mark.parametrize("how", ["plain", "causal", "masked"])
def test_attention_in_one_operator(how, kernels_of_attention):
    """Forward and backward; memory is that of torch's kernels, as its own fakes have it."""
    tensors = heads(1, 2, 40, 16)
    bias = None
    if how == "masked":
        bias = torch.zeros(40, 48).masked_fill(torch.rand(40, 48) < 0.3, -torch.inf)
        bias = bias[:, :40].expand(1, 2, 40, 40)
    causal = how == "causal"

    def run(function, *args, **options):
        x = [t.detach().requires_grad_() for t in tensors]
        out = function(*x, *args, **options)
        first = out[0] if isinstance(out, tuple) else out
        return out, torch.autograd.grad(first.sin().sum(), x)

    want, want_grads = run(F.scaled_dot_product_attention, bias, is_causal=causal)
    with everything() as p:
        got, grads = run(EFFICIENT, bias, True, 0.0, causal)
        alone = EFFICIENT(*tensors, bias, False, is_causal=causal, scale=0.25)
    close((got[0], *grads), (want, *want_grads))
    close(alone[0], want.detach())
    flops = 2 * 1 * 2 * 40 * 40 * 16
    assert {(r.product, r.taken, r.calls, r.flops) for r in p if "scaled" in r.product} == {
        ("_scaled_dot_product_efficient_attention", True, 2, 2 * 2 * flops),
        ("_scaled_dot_product_efficient_attention_backward", True, 1, 5 * flops),
    }
    assert p.left == 0
    on_meta = [t.to("meta") for t in tensors]
    bias_on_meta = None if bias is None else bias.to("meta")
    for found, wants_lse in ((got, True), (alone, False)):
        fake = EFFICIENT(*on_meta, bias_on_meta, wants_lse, 0.0, causal)
        for x, y in zip(found, fake, strict=True):
            assert (x.shape, x.stride(), x.dtype) == (y.shape, y.stride(), y.dtype)
    assert [t.device.type for t in got[2:]] == ["cpu", "cpu"]


def test_why_attention_is_torchs(kernels_of_attention):
    q, k, v = heads(1, 2, 8, 16)
    bias = torch.zeros(1, 2, 8, 8)
    how = {"precision": "ieee"}
    assert attention.why_torchs(q, k, v, None, 0.0, {}) == ""
    assert attention.why_torchs(q, k, v, bias, 0.0, {}) == ""
    assert attention.why_torchs(q, k, v, bias, 0.5, {}) == ""
    for args, words in (
        ((q.to("meta"), k, v, None, 0.0, {}), "compute capability 9.0"),
        ((q, k, v, None, 0.0, how), "attention has precision='fp32' and kernel='auto' alone"),
        ((q, k, v, None, 1.0, {}), "dropout of all weights"),
        ((q, k, v[..., :8], None, 0.0, {}), "a value's width is not its key's"),
        ((*(t.repeat(1, 1, 1, 9) for t in (q, k, v)), None, 0.0, {}), "heads of more than 128"),
        ((q, k, v, bias[:, :1], 0.0, {}), "a bias of another shape"),
    ):
        assert words in attention.why_torchs(*args)


def test_our_own_attention_is_counted(kernels_of_attention):
    q, k, v = heads(1, 2, 8, 16)
    q = q.detach().requires_grad_()
    with everything() as p:
        xgemm_torch.scaled_dot_product_attention(q, k, v).sum().backward()
    flops = {row.product: row.flops for row in p}
    each = 2 * 2 * 8 * 8 * 16
    assert flops["xgemm.attention_forward"] == 2 * each
    assert flops["xgemm.attention_backward"] == 5 * each
    assert p.left == 0


class _StandsIn(TorchDispatchMode):
    """Takes what a patch inside leaves of fused attention, which torch has not on a CPU."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if "efficient_attention" in func.name():
            return tuple(torch.empty(0) for _ in range(4))
        return func(*args, **(kwargs or {}))


def test_bounds_of_attention(monkeypatch):
    """A number that is given is the bound; without one they are the function's own."""
    monkeypatch.setattr(attention, "has_kernels", lambda device: device.type == "cpu")
    q, k, v = heads(1, 2, 8, 16)
    out, lse = torch.ops.xgemm.attention_forward(q, k, v, None, False, 0.25)
    seeds = torch.zeros((), dtype=torch.int64), torch.zeros((), dtype=torch.int64)
    rest = out, lse, *seeds, 0.0, [True, True, True, False]
    each = 2 * 2 * 8 * 8 * 16

    def left(**options: Any) -> list[str]:
        """Why the forward pass was left to torch, and why its gradients; "" where they were not."""
        with _StandsIn(), xgemm_torch.patch(**options) as p:
            EFFICIENT(q, k, v, None, True, scale=0.25)
            EFFICIENT_BACKWARD(out, q, k, v, None, *rest, scale=0.25)
        assert {row.flops for row in p} == {2 * each, 5 * each}
        return [row.reason for row in sorted(p, key=lambda row: row.flops)]

    assert left(min_flops=0) == left(min_flops=2 * each) == ["", ""]
    assert left(min_flops=2 * each + 1) == ["below 8.19 kFLOP", ""]
    assert left(min_flops=5 * each) == ["below 20.5 kFLOP", ""]
    assert left(min_flops=5 * each + 1) == ["below 20.5 kFLOP"] * 2
    assert left() == ["too small to gain"] * 2
    monkeypatch.setattr(attention, "_FEW_FLOPS", 2 * each)
    assert left() == ["too small to gain"] * 2
    monkeypatch.setattr(attention, "_FEW_ROWS", 8)
    assert left() == ["", ""]
    monkeypatch.setattr(attention, "_FEW_FLOPS", 2 * each + 1)
    assert left() == ["too small to gain"] * 2


def test_empty_attention_is_torchs(kernels_of_attention):
    q = torch.empty(1, 2, 0, 16)
    with _StandsIn(), everything() as p:
        EFFICIENT(q, q, q, None, True)
    assert reasons(p) == {"empty"}


@pytest.fixture
def sm90():
    if not attention.has_kernels(torch.device("cuda")):
        pytest.skip("attention's kernels are made for compute capability 9.0")


ATTENTION: dict[str, Any] = {
    "plain": {},
    "causal": {"is_causal": True},
    "scale": {"scale": -0.3},
    "mask": {"attn_mask": lambda: torch.rand(1, 1, 70, 70, device="cuda") < 0.7},
    "odd keys": {"attn_mask": lambda: torch.zeros(70, 70, device="cuda")},
    "dropout": {"dropout_p": 0.3, "is_causal": True},
}


@pytest.mark.gpu
@pytest.mark.parametrize("inside", ["both", "forward", "backward"])
@pytest.mark.parametrize("name", ATTENTION)
def test_attention_on_a_gpu(name, inside, sm90):
    """Wherever the patch begins and ends: the backward of one takes the forward of the other."""
    options = {key: x() if callable(x) else x for key, x in ATTENTION[name].items()}
    tensors = heads(2, 3, 70, 32, device="cuda")

    def run(forward, backward):
        torch.manual_seed(0)
        x = [t.detach().requires_grad_() for t in tensors]
        with forward:
            out = F.scaled_dot_product_attention(*x, **options)
        with backward:
            return out.detach(), *torch.autograd.grad(out, x, out.detach().cos())

    nothing = contextlib.nullcontext()
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION):
        want = run(nothing, nothing)
        p = everything()
        got = run(p if inside != "backward" else nothing, p if inside != "forward" else nothing)
    close(got, want)
    assert [t.stride() for t in got] == [t.stride() for t in want]
    taken = counted(p)
    parts = {"both": ("", "_backward"), "forward": ("",), "backward": ("_backward",)}[inside]
    for part in parts:
        assert taken[f"_scaled_dot_product_efficient_attention{part}"] == 1, str(p)


@pytest.mark.gpu
def test_what_of_attention_is_left_to_torch_on_a_gpu(sm90):
    q, k, v = (t.detach().requires_grad_() for t in heads(1, 2, 64, 32, device="cuda"))
    bias = torch.zeros(1, 2, 64, 64, device="cuda", requires_grad=True)
    flops = 4 * 2 * 64 * 64 * 32
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION):
        with everything() as p:
            F.scaled_dot_product_attention(q, k, v, bias).sum().backward()
            F.scaled_dot_product_attention(q, k, v, dropout_p=1.0)
        assert {"a gradient of the bias", "dropout of all weights"} <= reasons(p), str(p)
        with everything(precision="ieee") as p:
            F.scaled_dot_product_attention(q, k, v)
        assert "attention has precision='fp32' and kernel='auto' alone" in reasons(p)
        with xgemm_torch.patch(min_flops=flops + 1) as small, torch.no_grad():
            F.scaled_dot_product_attention(q, k, v)
        assert (small.taken, small.left) == (0, 1)
        with xgemm_torch.patch(min_flops=flops) as large, torch.no_grad():
            F.scaled_dot_product_attention(q, k, v)
        assert (large.taken, large.left) == (1, 0)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["mha", "encoder"])
@pytest.mark.parametrize("mode", MODES)
def test_modules_with_attention_on_a_gpu(name, mode, sm90):
    """As they train; and in inference mode, where torch breaks nothing up."""
    model = {
        "mha": lambda: torch.nn.MultiheadAttention(64, 2, batch_first=True),
        "encoder": lambda: torch.nn.TransformerEncoderLayer(64, 2, 128, 0.0, batch_first=True),
    }[name]().cuda()
    x = _a(3, 33, 64).cuda()

    def run():
        with MODES[mode]():
            out = model(x, x, x, need_weights=False)[0] if name == "mha" else model(x)
        if mode != "grad":
            return [out]
        grads = torch.autograd.grad(out.sin().sum(), list(model.parameters()))
        return [out, *grads]

    want = run()
    with everything() as p:
        got = run()
    close(got, want)
    taken = counted(p)
    assert taken["_scaled_dot_product_efficient_attention"] == 1, str(p)
    if mode == "grad":
        assert taken["_scaled_dot_product_efficient_attention_backward"] == 1
        assert p.share == 1.0, str(p)


@pytest.mark.gpu
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_compiled_attention_on_a_gpu(dropout, sm90):
    q, k, v = heads(2, 3, 70, 32, device="cuda")

    @torch.compile
    def call(q):
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True) * 2

    found = []
    for around in (contextlib.nullcontext(), p := everything()):
        torch.manual_seed(0)
        x = q.detach().requires_grad_()
        with around:
            out = call(x)
            found.append((out.detach(), *torch.autograd.grad(out.sin().sum(), x)))
    close(found[1], found[0])
    assert counted(p)["_scaled_dot_product_efficient_attention"] == 1, str(p)


@pytest.mark.gpu
def test_a_graph_holds_attention(sm90):
    q, k, v = heads(1, 2, 70, 32, device="cuda")
    with everything() as p:
        want = F.scaled_dot_product_attention(q, k, v)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            held = F.scaled_dot_product_attention(q, k, v)
    graph.replay()
    assert torch.equal(held, want)
    assert counted(p)["_scaled_dot_product_efficient_attention"] == 2, str(p)


def test_flops_of_rnn_layers():
    """Those that are one operator: of every row, by every matrix, and twice of it in backward."""
    x, layer = _a(5, 3, 8).requires_grad_(), torch.nn.LSTM(8, 6, 2, bidirectional=True)
    with everything() as p:
        layer(x)[0].sum().backward()
    forward = 2 * 5 * 3 * sum(w.numel() for w in layer.parameters() if w.dim() == 2)
    assert sum(row.flops for row in p) == 3 * forward
    assert "unknown" not in str(p)


def test_unknown_flops_are_said_to_be():
    with everything() as p:
        F.bilinear(A, B, _a(3, 4, 4))
    assert str(p).endswith("; 1 of the others have unknown FLOP")
