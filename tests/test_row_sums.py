"""The sums of a's rows that the decomposition makes beside the product: a bias's gradient."""

from __future__ import annotations

import math
from typing import Any

import problems
import pytest
import torch
from problems import same_bits
from test_stages import on_every_device
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import xgemm_torch
from xgemm_torch import simt

row_sums = torch.ops.xgemm.sgemm_row_sums
EPS = 2.0**-24
# Stages that have limbs in memory, and so read each row in a launch of its own.
SUMMING = ("mma_fp16x3", "wgmma_fp16x3", "wgmma_bf16x6")
# Rows and K: whole strips of 8 rows and of 16, strips of clusters of four blocks, eight and
# sixteen, with shares of k that are short or empty.
SIZES = ((5, 1), (37, 300), (13, 700), (2113, 600), (1540, 1100), (33, 1057), (40, 4200),
         (40, 16500))  # fmt: skip


def sums_are_right(got: Tensor, a: Tensor) -> bool:
    """Within what a tree of blocks' sums of 200 elements or fewer loses, of rows a."""
    exact, magnitude = a.double().sum(1), a.double().abs().sum(1)
    return bool(((got.double() - exact).abs() <= 200 * EPS * magnitude).all())


@on_every_device
@pytest.mark.parametrize("stage", SUMMING)
@pytest.mark.parametrize("m, k", SIZES)
def test_sums_and_product(stage, m, k, device):
    """The product has the bits that it has without sums, which are right, and the same again."""
    # Many rows are for more blocks than multiprocessors, of which the emulator can have few.
    m, sm_count = (70, 4) if device == "cpu" and m > 70 else (m, 132)
    a, b = problems.normal(k, m).to(device), problems.normal(k, 3).to(device)
    with simt.configure(sm_count=sm_count):
        product, sums = row_sums(a, b, trans_a=True, kernel=stage)
        assert sums.shape == (m,) and product.shape == (m, 3)
        assert sums_are_right(sums, a.mT)
        assert same_bits(product, torch.ops.xgemm.sgemm(a, b, trans_a=True, kernel=stage))
        again = row_sums(a, b, trans_a=True, kernel=stage)[1]
        assert same_bits(sums, again)


@on_every_device
@pytest.mark.parametrize("stage", SUMMING)
def test_sums_of_rows_that_are_decomposed_again(stage, device):
    """The first scale is too small for elements that come late: none is counted twice."""
    a = problems.normal(4200, 37)
    a[4199, 3], a[4190, 36] = 1e6, -1e20
    a, b = a.to(device), problems.normal(4200, 3).to(device)
    assert sums_are_right(row_sums(a, b, trans_a=True, kernel=stage)[1], a.mT)


@on_every_device
@pytest.mark.parametrize("stage", SUMMING)
@pytest.mark.parametrize("k", [600, 1100])
def test_sums_of_what_is_not_finite(stage, k, device):
    a = problems.normal(k, 9)
    a[5, 0], a[k - 1, 1], a[7, 2] = math.inf, -math.inf, math.nan
    a[8, 3], a[9, 3] = math.inf, -math.inf
    a[:, 4], a[:, 5] = 3e38, 1e-42
    got = row_sums(a.to(device), problems.normal(k, 3).to(device), trans_a=True, kernel=stage)[1]
    assert got[[0, 1, 4]].tolist() == [math.inf, -math.inf, math.inf]
    assert got[[2, 3]].isnan().all()
    assert sums_are_right(got[5:].cpu(), a.mT[5:])


@on_every_device
@pytest.mark.parametrize("kernel", ["auto", "naive", "wgmma_fp16x3"])
@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("m, k", [(0, 4), (4, 0), (1, 5), (6, 7)])
def test_sums_of_any_stage(kernel, trans_a, m, k, device):
    """A stage that does not make them leaves them to ATen; so does an A that lies along k."""
    a = problems.normal(*((k, m) if trans_a else (m, k))).to(device)
    b = problems.normal(k, 5).to(device)
    product, sums = row_sums(a, b, alpha=2.0, trans_a=trans_a, kernel=kernel)
    rows = a.mT if trans_a else a
    assert sums.shape == (m,) and sums_are_right(sums, rows)
    assert torch.allclose(product, 2 * (rows @ b), atol=1e-4)


def test_refusals():
    a, b = torch.zeros(3, 4), torch.zeros(4, 5)
    with pytest.raises((ValueError, RuntimeError), match="inner sizes differ"):
        row_sums(b, a)
    with pytest.raises((ValueError, RuntimeError), match="2 dimensions"):
        row_sums(a[None], b)
    with pytest.raises(RuntimeError, match="has no derivatives"):
        row_sums(a.requires_grad_(), b)
    with torch.no_grad():
        row_sums(a, b)


def test_opcheck():
    torch.library.opcheck(
        row_sums.default,
        (torch.randn(4, 3), torch.randn(4, 5)),
        {"trans_a": True},
        test_utils=("test_schema", "test_faketensor"),
    )


# --------------------------------------------------------------------------- a layer's backward


class _Calls(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def _gradients(kernel: str, shape: tuple[int, ...], device: str) -> tuple[list[str], Any, Any]:
    torch.manual_seed(0)
    layer = xgemm_torch.nn.Linear(shape[-1], 6, kernel=kernel, device=device)
    x = torch.randn(shape, device=device, requires_grad=True)
    y = layer(x)
    grad = torch.randn_like(y)
    with _Calls() as calls:
        y.backward(grad)
    rows, of_rows = grad.reshape(-1, 6).double(), x.detach().reshape(-1, shape[-1]).double()
    want = ((grad.double() @ layer.weight.double()), rows.mT @ of_rows, rows.sum(0))
    return calls.names, (x.grad, layer.weight.grad, layer.bias.grad), want


@on_every_device
@pytest.mark.parametrize("kernel", ["auto", "wgmma_fp16x3"])
@pytest.mark.parametrize("shape", [(9, 5), (2, 9, 5), (1, 5)])
def test_backward_of_a_layer_reads_its_gradient_once(kernel, shape, device):
    names, got, want = _gradients(kernel, shape, device)
    assert "xgemm.linear_backward.default" in names
    assert not [name for name in names if name.startswith("aten.sum")]
    for mine, exact in zip(got, want, strict=True):
        assert torch.allclose(mine.double(), exact, rtol=1e-5, atol=1e-5)


@on_every_device
@pytest.mark.parametrize("kernel", ["auto", "naive", "wgmma_fp16x3"])
@pytest.mark.parametrize("bias", ["its own", "frozen", "of a matrix", "none"])
def test_a_compiled_backward_reads_it_once(kernel, bias, device):
    """Where a bias is a layer's own and has a gradient: the same gradients as in eager mode."""
    x, weight = torch.randn(9, 5, device=device), torch.randn(6, 5, device=device)
    c = None if bias == "none" else torch.randn(*((9,) if bias == "of a matrix" else ()), 6)
    operands = [x.requires_grad_(), weight.requires_grad_()]
    if c is not None:
        operands.append(c.to(device).requires_grad_(bias != "frozen"))
    wanted = [t for t in operands if t.requires_grad]

    def loss(a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
        return xgemm_torch.sgemm(a, b, c, trans_b=True, kernel=kernel).sin().sum()

    torch._dynamo.reset()
    compiled = torch.compile(loss, backend="aot_eager")(*operands)
    with _Calls() as calls:
        got = torch.autograd.grad(compiled, wanted)
    for mine, eager in zip(got, torch.autograd.grad(loss(*operands), wanted), strict=True):
        assert torch.allclose(mine, eager, rtol=1e-5, atol=1e-5)
    assert ("xgemm.sgemm_row_sums.default" in calls.names) == (bias == "its own")
    assert not [name for name in calls.names if name.startswith("aten.sum")]


def test_compiled_gradients_of_each_sample():
    """Of a vmap of gradients the sums are operations of their own, which torch batches."""
    layer = xgemm_torch.nn.Linear(4, 3)
    parameters = {name: p.detach() for name, p in layer.named_parameters()}

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(layer, parameters, (x,)).sin().sum()

    each = torch.func.vmap(torch.func.grad(loss), (None, 0))
    x = torch.randn(5, 2, 4)
    torch._dynamo.reset()
    got, want = torch.compile(each, backend="aot_eager")(parameters, x), each(parameters, x)
    for name in parameters:
        assert torch.allclose(got[name], want[name], rtol=1e-5, atol=1e-5)


def test_gradients_that_are_to_be_differentiated_again():
    """There the sum is an operation of its own."""
    layer = xgemm_torch.nn.Linear(4, 3)
    x = torch.randn(5, 4, requires_grad=True)
    y = layer(x).pow(3).sum()
    (bias,) = torch.autograd.grad(y, layer.bias, create_graph=True)
    (again,) = torch.autograd.grad(bias.sum(), layer.bias)
    want = (6 * (x @ layer.weight.mT + layer.bias)).sum(0)
    assert torch.allclose(again, want, rtol=1e-4)


def test_frozen_parameters():
    """Of a bias alone, of a weight alone: one of the two is made, and no more."""
    layer = xgemm_torch.nn.Linear(4, 3)
    layer.weight.requires_grad_(False)
    layer(torch.randn(5, 4)).sum().backward()
    assert layer.weight.grad is None and torch.equal(layer.bias.grad, torch.full((3,), 5.0))
    layer.requires_grad_(True).bias.requires_grad_(False)
    layer.bias.grad = None
    layer(torch.randn(5, 4)).sum().backward()
    assert layer.bias.grad is None and layer.weight.grad is not None


def test_flops_are_the_products():
    layer = xgemm_torch.nn.Linear(4, 3)
    with FlopCounterMode(display=False) as counter:
        layer(torch.randn(5, 4)).sum().backward()
    assert counter.get_total_flops() == 2 * 2 * 5 * 4 * 3


def test_few_multiprocessors():
    """Strips of 16 whole rows are taken where they fill the GPU."""
    a, b = problems.normal(700, 70), problems.normal(700, 3)
    with simt.configure(sm_count=2):
        sums = row_sums(a, b, trans_a=True, kernel="wgmma_fp16x3")[1]
    assert sums_are_right(sums, a.mT)
