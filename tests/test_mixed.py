"""Products of 16-bit activations and FP32 weights: by the stage that reads them, and by a copy."""

from __future__ import annotations

import problems
import pytest
import torch
from problems import right, same_bits
from test_stages import on_every_device
from torch import Tensor

import xgemm_torch
from xgemm_torch import count_recomputed, mixed_linear, simt

STAGES = [stage.name for stage in xgemm_torch.stages() if stage.takes_half_a]
OP = torch.ops.xgemm.mixed_mm
DTYPES = [torch.bfloat16, torch.float16]
# Of fewer tiles than blocks and of more, around a tile's edges; K of a slice, and of many.
SIZES = [(1, 1, 1), (70, 45, 50), (129, 131, 33), (300, 257, 96), (64, 40, 1100)]

on_every_stage = pytest.mark.parametrize("stage", STAGES)
on_every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def operands(m: int, n: int, k: int, dtype: torch.dtype, data: str = "normal"):
    """x, a weight and a bias."""
    a, b, _ = problems.operands(m, n, k, "NT", data=data)
    return a.to(dtype), b, torch.randn(n)


def correct(stage: str, out: Tensor, x: Tensor, b: Tensor, c: Tensor | None = None, **how) -> bool:
    """`right` of the copy to floats, wherever operands are."""
    x, b, c = (None if t is None else t.cpu() for t in (x, b, c))
    return right(stage, out, x.float(), b, c, **how)


def views(x: Tensor) -> dict[str, Tensor]:
    """x in other memory: all but the last are read as they are."""
    m, k = x.shape
    wide = torch.full((m, k + 8), float("nan"), dtype=x.dtype, device=x.device)
    odd = torch.full((m, k + 7), float("nan"), dtype=x.dtype, device=x.device)
    twice = torch.full((m, 2 * k), float("nan"), dtype=x.dtype, device=x.device)
    spaced, late, strided = wide[:, :k], odd[:, 3 : 3 + k], twice[:, ::2]
    for view in (spaced, late, strided):
        view.copy_(x)
    return {"rows apart": spaced, "unaligned": late, "a step": strided, "turned": x.mT.clone().mT}


def test_a_stage_takes_half_a():
    assert STAGES and not {s.name for s in xgemm_torch.stages() if s.strict} & set(STAGES)


@on_every_device
@on_every_stage
@on_every_dtype
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("trans_b", [False, True])
def test_right(stage, dtype, size, trans_b, device):
    x, weight, bias = (t.to(device) for t in operands(*size, dtype))
    b = weight if trans_b else weight.mT.clone()
    for c in (None, bias, torch.randn(size[:2], device=device)):
        out = OP(x, b, c, trans_b=trans_b, kernel=stage)
        assert out.dtype == torch.float32 and out.is_contiguous()
        assert correct(stage, out, x, b, c, trans_b=trans_b)
    assert same_bits(out, OP(x, b, c, trans_b=trans_b, kernel=stage))


@on_every_device
@on_every_stage
@on_every_dtype
def test_views_have_the_same_bits(stage, dtype, device):
    x, weight, bias = (t.to(device) for t in operands(70, 45, 50, dtype))
    want = OP(x, weight, bias, trans_b=True, kernel=stage)
    for name, view in views(x).items():
        got = OP(view, weight, bias, trans_b=True, kernel=stage)
        if name in ("a step", "turned"):  # a copy's
            assert correct("auto", got, x, weight, bias, trans_b=True)
        else:
            assert same_bits(got, want), name


@on_every_device
@on_every_stage
@on_every_dtype
@pytest.mark.parametrize("data", ["wide", "nan", "inf", "one-hot", "zeros", "far"])
def test_what_operands_hold(stage, dtype, data, device):
    """What is given or made anew is by FP32 operations on the copy; one-hot rows are exact."""
    x, weight, bias = operands(150, 140, 70, dtype)
    x, weight = x.clone(), weight.clone()
    if data == "wide":
        x[20:30] = (problems.wide(10, 70) / 64).to(dtype)
        weight[:5] = problems.wide(5, 70)
    elif data in ("nan", "inf"):
        x[5, 30], x[90, 2], x[90, 3] = float(data), float(data), -float(data)
        weight[7, 30] = -float(data)
    elif data == "one-hot":
        x = torch.eye(150, 70).to(dtype) * 3
    elif data == "zeros":
        x[10:90] = 0
    else:  # beyond FP32's range on the way, within it at the end
        x[3], weight[4] = 2.0**15, 2.0**110
        weight[4, 35:] *= -1
    x, weight, bias = x.to(device), weight.to(device), bias.to(device)
    out = OP(x, weight, bias, trans_b=True, kernel=stage)
    assert correct("auto", out, x, weight, bias, trans_b=True)
    if data == "one-hot":
        exact = x.double() @ weight.mT.double()
        assert torch.equal(OP(x, weight, trans_b=True, kernel=stage), exact.float())


@on_every_device
@on_every_stage
def test_what_is_not_certified_is_made_anew(stage, device):
    """Elements of x far below the largest of their row, which alone meet weights but zeros."""
    x = torch.ones(64, 64, dtype=torch.bfloat16, device=device)
    x[:, 32:] *= 2.0**-30 * 1.0078125
    weight = torch.zeros(128, 64, device=device)
    weight[:, 32:] = torch.randn(128, 32, device=device)
    with count_recomputed(device) as counted:
        out = OP(x, weight, trans_b=True, kernel=stage)
    assert counted.units > 0
    assert correct(stage, out, x, weight, trans_b=True)


@on_every_device
@on_every_stage
@on_every_dtype
@pytest.mark.parametrize("larger", ["m", "n"])
def test_parts_have_the_bits_of_the_whole(stage, dtype, larger, device):
    """Limbs of many rows or columns are made part by part; K is cut by how many tiles there are."""
    m, n = (600, 40) if larger == "m" else (40, 600)
    x, weight, _ = (t.to(device) for t in operands(m, n, 64, dtype))
    bias = torch.randn(m, n, device=device)
    x[5] = float("nan")
    with simt.configure(slab_bytes=1):
        parts = OP(x, weight, bias, trans_b=True, kernel=stage)
    assert correct("auto", parts, x, weight, bias, trans_b=True)
    if device == "cpu":  # one multiprocessor cuts nothing
        assert same_bits(parts, OP(x, weight, bias, trans_b=True, kernel=stage))


@pytest.mark.parametrize("size", [*problems.EMPTY, (5, 4, 3)], ids=str)
@on_every_device
def test_every_kernel_and_precision(size, device):
    """What no stage reads as it is goes by a copy, whose bits are sgemm's."""
    m, n, k = size
    x, weight, bias = (t.to(device) for t in operands(m, n, k, torch.bfloat16))
    for how in ({}, {"precision": "ieee"}, {"kernel": "naive"}):
        out = mixed_linear(x, weight, bias, **how)
        assert same_bits(out, xgemm_torch.linear(x.float(), weight, bias, **how))


@on_every_device
@on_every_dtype
def test_gradients(dtype, device):
    x, weight, bias = (t.to(device).requires_grad_() for t in operands(6, 5, 7, dtype))
    out = mixed_linear(x.reshape(2, 3, 7), weight, bias)
    assert out.shape == (2, 3, 5)
    grad = torch.randn_like(out)
    got = torch.autograd.grad(out, (x, weight, bias), grad, create_graph=True)
    y = x.detach().double().requires_grad_()
    w, b = weight.detach().double(), bias.detach().double()
    want = torch.autograd.grad(
        torch.nn.functional.linear(y.reshape(2, 3, 7), w.requires_grad_(), b.requires_grad_()),
        (y, w, b), grad.double(),
    )  # fmt: skip
    assert [t.dtype for t in got] == [dtype, torch.float32, torch.float32]
    for t, exact, tolerance in zip(got, want, (1e-2, 1e-5, 1e-5), strict=True):
        torch.testing.assert_close(t.double(), exact, rtol=tolerance, atol=tolerance)
    (second,) = torch.autograd.grad(got[0].float().square().sum(), weight)
    assert second.isfinite().all() and second.any()


def test_only_what_needs_a_gradient_gets_one():
    x, weight, bias = operands(6, 5, 7, torch.bfloat16)
    mixed_linear(x, weight.requires_grad_(), bias).sum().backward()
    assert weight.grad is not None and x.grad is None and bias.grad is None


def test_transforms():
    x, weight, bias = operands(6, 5, 7, torch.bfloat16)
    want = mixed_linear(x, weight, bias)
    rows = torch.func.vmap(mixed_linear, (0, None, None))(x.unsqueeze(1), weight, bias)
    torch.testing.assert_close(rows.squeeze(1), want)
    jacobian = torch.func.jacrev(lambda w: mixed_linear(x, w).sum())(weight)
    torch.testing.assert_close(jacobian, x.float().sum(0).expand(5, 7))
    _, tangent = torch.func.jvp(lambda w: mixed_linear(x, w), (weight,), (weight,))
    torch.testing.assert_close(tangent, mixed_linear(x, weight))


@on_every_device
def test_compiled(device):
    x, weight, bias = (t.to(device) for t in operands(6, 5, 7, torch.bfloat16))

    def model(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return mixed_linear(x * 2, weight, bias).relu()

    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    weights = [weight.clone().requires_grad_() for _ in range(2)]
    for function, w in zip((model, compiled), weights, strict=True):
        function(x, w, bias).sum().backward()
    assert same_bits(*(w.grad for w in weights))
    assert same_bits(model(x, weight, bias), compiled(x, weight, bias))


def test_counted():
    from torch.utils.flop_counter import FlopCounterMode

    x, weight, bias = operands(6, 5, 7, torch.bfloat16)
    with FlopCounterMode(display=False) as counter:
        mixed_linear(x, weight, bias)
    assert counter.get_total_flops() == 2 * 6 * 5 * 7


def test_under_autocast():
    """Activations that autocast has made bf16 are read as they are; the result is float32."""
    x, weight, bias = operands(6, 5, 7, torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        out = mixed_linear(x, weight, bias)
    assert same_bits(out, mixed_linear(x, weight, bias))


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"x": torch.ones(3, 4)}, TypeError, "x must be a tensor of bfloat16 or float16, got fl"),
        ({"x": [1.0]}, TypeError, "x must be a tensor of bfloat16 or float16, got list"),
        ({"weight": torch.ones(5, 4).half()}, TypeError, "weight must be float32, got float16"),
        ({"weight": torch.ones(5, 3)}, ValueError, "inner sizes differ: x is (3, 4), weight is"),
        ({"weight": torch.ones(5, 4, device="meta")}, ValueError, "x is on cpu, weight is on"),
        ({"bias": torch.ones(4)}, ValueError, "bias must be of shape (5,), got (4,)"),
        ({"bias": torch.ones(5).half()}, TypeError, "bias must be float32, got float16"),
        ({"kernel": "none"}, ValueError, "no kernel named 'none'"),
        ({"precision": "tf32"}, ValueError, "precision must be 'fp32' or 'ieee'"),
        ({"precision": "tf32", "kernel": "wgmma_fp16x3"}, ValueError, "precision must be 'fp32'"),
        ({"kernel": "wgmma_fp16x3", "precision": "ieee"}, ValueError, "has other bits"),
    ],
)  # fmt: skip
def test_mistakes(change, error, words):
    call = {"x": torch.ones(3, 4).bfloat16(), "weight": torch.ones(5, 4), "bias": torch.ones(5)}
    with pytest.raises(error) as caught:
        mixed_linear(**{**call, **change})
    assert words in str(caught.value) and str(caught.value).startswith("mixed_linear")


def test_the_operator_checks_itself():
    x, weight, _ = operands(3, 5, 4, torch.bfloat16)
    for args, words in [
        ((x.float(), weight), "a must be bfloat16, got float32"),
        ((x[None], weight), "must have 2 dimensions"),
        ((x, weight.mT), "inner sizes differ"),
        ((x, weight, torch.ones(2)), "c does not broadcast"),
    ]:
        with pytest.raises((RuntimeError, ValueError), match=words):
            OP(*args, trans_b=True)
    freed = x.clone()
    freed.untyped_storage().resize_(0)
    with pytest.raises((RuntimeError, ValueError), match="storage has 0 bytes"):
        OP(freed, weight, trans_b=True)


@pytest.mark.gpu
@pytest.mark.parametrize("m", [1, 8, 64, 512, 4096])
def test_auto_on_a_gpu(m):
    """Whatever auto takes, by a copy or not."""
    x, weight, bias = (t.cuda() for t in operands(m, 256, 1024, torch.bfloat16))
    assert correct("auto", mixed_linear(x, weight, bias), x, weight, bias, trans_b=True)
    graph = torch.cuda.CUDAGraph()
    mixed_linear(x, weight, bias)
    with torch.cuda.graph(graph):
        out = mixed_linear(x, weight, bias)
    x.copy_(x.flip(0))
    graph.replay()
    assert same_bits(out, mixed_linear(x, weight, bias))


@pytest.mark.gpu
@on_every_stage
def test_a_gpu_has_the_emulators_bits(stage):
    """One tile, whose K nobody cuts."""
    x, weight, bias = operands(100, 90, 300, torch.bfloat16)
    want = OP(x, weight, bias, trans_b=True, kernel=stage)
    got = OP(x.cuda(), weight.cuda(), bias.cuda(), trans_b=True, kernel=stage)
    assert same_bits(got.cpu(), want)
