"""The gradients of a linear layer in one call of an operator, ``linear_backward``."""

from __future__ import annotations

import itertools
from typing import Any

import problems
import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from problems import same_bits
from test_stages import on_every_device
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import xgemm_torch

ops = torch.ops.xgemm
linear_backward = ops.linear_backward
OPERATOR = "xgemm.linear_backward.default"
# By ATen or the device's choice, a chain of FP32, and stages that make the sums themselves.
HOW: tuple[dict[str, Any], ...] = (
    {},
    {"precision": "ieee"},
    {"kernel": "naive"},
    {"kernel": "tma_specialized", "precision": "ieee"},
    {"kernel": "wgmma_fp16x3"},
    {"kernel": "wgmma_bf16x6"},
)


def apart(grad: Tensor, x: Tensor, weight: Tensor, **how: Any) -> tuple[Tensor, ...]:
    """What two operators give."""
    return ops.sgemm(grad, weight, **how), *ops.sgemm_row_sums(grad, x, trans_a=True, **how)


def operands(m: int, n: int, k: int, device: str = "cpu") -> list[Tensor]:
    """(M, N), (M, K) and (N, K)."""
    return [problems.normal(*size).to(device) for size in ((m, n), (m, k), (n, k))]


@on_every_device
@pytest.mark.parametrize("how", HOW, ids=str)
@pytest.mark.parametrize("m, n, k", [(9, 6, 5), (1, 4, 3), (5, 1, 1), (130, 70, 33)])
def test_bits_are_those_of_two_operators(how, m, n, k, device):
    grad, x, weight = operands(m, n, k, device)
    got = linear_backward(grad, x, weight, True, **how)
    assert all(map(same_bits, got, apart(grad, x, weight, **how)))
    assert all(t.is_contiguous() for t in got)


@pytest.mark.gpu
@pytest.mark.parametrize("how", [{}, {"precision": "ieee"}], ids=str)
@pytest.mark.parametrize("sizes", [(16384, 256, 256), (1024, 3072, 768), (40, 32, 9000)], ids=str)
def test_the_device_chooses_what_it_does_for_two_operators(how, sizes):
    """Sizes for stages with limbs, and such that a long k is cut where a stage says so."""
    grad, x, weight = operands(*sizes, "cuda")
    got = linear_backward(grad, x, weight, True, **how)
    assert all(map(same_bits, got, apart(grad, x, weight, **how)))


@on_every_device
@pytest.mark.parametrize("how", HOW, ids=str)
def test_any_strides(how, device):
    """Transposed, with gaps, from an offset on, and the gradient of a sum, one number for all."""
    m, n, k = 8, 6, 5
    base = problems.normal(400).to(device)
    grads = [
        base[:1].expand(m, n),
        base.as_strided((m, n), (1, m), 3),
        base.as_strided((m, n), (13, 2), 7),
    ]
    x, weight = base.as_strided((m, k), (1, 11), 50), base.as_strided((n, k), (17, 3), 1)
    for grad in grads:
        got = linear_backward(grad, x, weight, True, **how)
        assert all(map(same_bits, got, apart(grad, x, weight, **how)))


@on_every_device
@pytest.mark.parametrize("how", [HOW[0], HOW[4]], ids=str)
def test_what_is_not_asked_for_is_none(how, device):
    grad, x, weight = operands(9, 6, 5, device)
    want = apart(grad, x, weight, **how)
    for of_x, of_weight, of_bias in itertools.product([False, True], repeat=3):
        if not of_x and not of_weight:
            continue
        given = x if of_weight else None, weight if of_x else None
        got = linear_backward(grad, *given, of_bias, **how)
        for mine, other, asked in zip(got, want, (of_x, of_weight, of_bias), strict=True):
            assert (mine is not None) == asked
            if asked and mine.dim() == 1 and not of_weight:
                other = grad.sum(0)  # no product reads it
            assert not asked or same_bits(mine, other)


@on_every_device
@pytest.mark.parametrize("how", HOW, ids=str)
@pytest.mark.parametrize("sizes", [(0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0)])
def test_nothing(how, sizes, device):
    grad, x, weight = operands(*sizes, device)
    for mine, want in zip(
        linear_backward(grad, x, weight, True, **how),
        (grad @ weight, grad.mT @ x, grad.sum(0)),
        strict=True,
    ):
        assert same_bits(mine, want)


def _freed(*shape: int) -> Tensor:
    t = torch.ones(shape)
    t.untyped_storage().resize_(0)
    return t


G, X, W = torch.ones(2, 3), torch.ones(2, 4), torch.ones(3, 4)
REFUSED = {
    "rows": ((G, X[:1], None), ValueError, r"grad is \(2, 3\), x is \(1, 4\), weight is None; n"),
    "columns": ((G, None, W[:2]), ValueError, r"x is None, weight is \(2, 4\); needed are \(M, N"),
    "inner sizes": ((G, X, W[:, :3]), ValueError, r"x is \(2, 4\), weight is \(3, 3\); needed"),
    "dimensions": ((G[None], X, W), ValueError, r"grad must have 2 dimensions, got shape \(1, 2,"),
    "a vector": ((G, X[0], W), ValueError, r"x must have 2 dimensions, got shape \(4,\)"),
    "no operand": ((G, None, None), ValueError, "x or weight must be given"),
    "dtype": ((G, X, W.double()), TypeError, "weight must be float32, got float64"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_refused(why):
    """The kernel knows fewer kinds of errors than the fake; both have the same words."""
    tensors, kind, words = REFUSED[why]
    with pytest.raises((kind, ValueError), match="^linear_backward: .*" + words):
        linear_backward(*tensors, True)
    metas = [t if t is None else t.to("meta") for t in tensors]
    with pytest.raises(kind, match="^linear_backward: .*" + words):
        linear_backward(*metas, True)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"kernel": "nope"}, "no kernel named 'nope'"),
        ({"precision": "nope"}, "precision must be 'fp32' or 'ieee', got 'nope'"),
        ({"precision": "ieee", "kernel": "wgmma_fp16x3"}, "wgmma_fp16x3 has other bits than"),
    ],
)
def test_names(how, words):
    for device in ("cpu", "meta"):
        with pytest.raises(ValueError, match="linear_backward: " + words):
            linear_backward(G.to(device), X.to(device), None, False, **how)


def test_memory_that_is_gone():
    for i, name in enumerate(("grad", "x", "weight")):
        given = [G, X, W]
        given[i] = _freed(*given[i].shape)
        with pytest.raises(ValueError, match=f"linear_backward: {name}'s storage has 0 bytes"):
            linear_backward(*given, True)


def test_it_has_no_derivatives():
    x = X.clone().requires_grad_()
    with pytest.raises(RuntimeError, match="linear_backward has no derivatives: use sgemm"):
        linear_backward(G, x, W, True)
    with torch.no_grad():
        linear_backward(G, x, W, True)


@pytest.mark.parametrize("given", [(X, W, True), (None, W, False), (X, None, True)])
def test_opcheck(given):
    tests = "test_schema", "test_faketensor", "test_aot_dispatch_dynamic"
    torch.library.opcheck(linear_backward.default, (G, *given), test_utils=tests)


# --------------------------------------------------------------------------- a layer's backward


class Calls(TorchDispatchMode):
    """The names of the operators called; which operands ours was given, and with what flags."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.given: list[tuple[bool, ...]] = []
        self.flags: list[dict[str, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        if self.names[-1] == OPERATOR:
            self.given.append((args[1] is not None, args[2] is not None, args[3]))
            self.flags.append(kwargs or {})
        return func(*args, **(kwargs or {}))

    @property
    def products(self) -> list[str]:
        return [name for name in self.names if "xgemm" in name or "aten.sum" in name]


def layers(bias: bool = True, **how: Any) -> tuple[torch.nn.Linear, torch.nn.Linear]:
    """torch's, and ours with the same parameters."""
    torch.manual_seed(0)
    stock = torch.nn.Linear(5, 6, bias=bias)
    return stock, xgemm_torch.nn.Linear.from_linear(stock, **how)


@pytest.mark.parametrize("shape", [(9, 5), (2, 9, 5), (5,), (0, 5)])
@pytest.mark.parametrize(
    "how", [{}, {"activation": "gelu"}, {"kernel": "naive", "precision": "ieee"}], ids=str
)
@pytest.mark.parametrize("need", list(itertools.product([False, True], repeat=3)), ids=str)
def test_a_layer_calls_it_once(need, how, shape):
    """Also for a part of the gradients, but for a bias's alone, which is a sum."""
    _, layer = layers(**how)
    layer.weight.requires_grad_(need[1])
    layer.bias.requires_grad_(need[2])
    x = torch.randn(shape).requires_grad_(need[0])
    leaves = [t for t in (x, layer.weight, layer.bias) if t.requires_grad]
    if not leaves:
        return
    y = layer(x)
    with Calls() as calls:
        got = torch.autograd.grad(y.pow(2).sum(), leaves)
    once = need[0] or need[1]
    assert [name for name in calls.products if "xgemm" in name] == [OPERATOR] * once
    assert calls.given == [(need[1], need[0], need[2])] * once
    assert calls.flags == [{key: how[key] for key in how if key != "activation"}] * once
    activation = xgemm_torch.ops.ACTIVATIONS.get(layer.activation, lambda y: y)
    want = activation(torch.nn.functional.linear(x, layer.weight, layer.bias)).pow(2).sum()
    for mine, other in zip(got, torch.autograd.grad(want, leaves), strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("kernel", ["auto", "naive", "wgmma_fp16x3"])
def test_a_layer_without_a_bias(kernel):
    stock, layer = layers(bias=False, kernel=kernel)
    x = torch.randn(9, 5, requires_grad=True)
    loss = layer(x).sum()
    with Calls() as calls:
        got = torch.autograd.grad(loss, (x, layer.weight))
    assert calls.products == [OPERATOR] and calls.given == [(True, True, False)]
    want = torch.autograd.grad(stock(x).sum(), (x, stock.weight))
    for mine, other in zip(got, want, strict=True):
        torch.testing.assert_close(mine, other)


def gradients(layer: Any, x: Tensor, **how: Any) -> tuple[Tensor, ...]:
    loss = layer(x).pow(3).sum()
    return torch.autograd.grad(loss, (x, *layer.parameters()), **how)


def test_what_is_to_be_differentiated_again_is_made_of_sgemm():
    stock, layer = layers()
    x = torch.randn(9, 5, requires_grad=True)
    with Calls() as calls:
        once = gradients(layer, x, create_graph=True)
    assert OPERATOR not in calls.names and calls.names.count("xgemm.sgemm.default") == 3
    second = [
        torch.autograd.grad(sum(t.pow(2).sum() for t in first), (x, *module.parameters()))
        for first, module in ((once, layer), (gradients(stock, x, create_graph=True), stock))
    ]
    for mine, other in zip(*second, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-3)


def test_transforms_take_sgemm():
    """``torch.func``, forward mode over a backward, and batches of gradients."""
    stock, layer = layers()
    x = torch.randn(9, 5)

    def loss(module: Any, x: Tensor) -> Tensor:
        return module(x).pow(2).sum()

    ways: list[Any] = [
        lambda m: torch.func.grad(lambda x: loss(m, x))(x),
        lambda m: torch.func.vmap(torch.func.grad(lambda x: loss(m, x)))(x),
        lambda m: torch.func.jvp(torch.func.grad(lambda x: loss(m, x)), (x,), (x,))[1],
        lambda m: torch.func.hessian(lambda x: loss(m, x))(x),
    ]
    for way in ways:
        torch.testing.assert_close(way(layer), way(stock), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("need", [(True, True), (True, False), (False, True)], ids=str)
def test_batches_of_gradients(need):
    """By autograd, in a loop of the dispatcher's, and by ``vmap``, whose rule is that of sgemm."""
    seeds = torch.randn(4, 9, 6)
    ways, found = ("autograd", "vmap"), {}
    for name, module in zip(("ours", "torch's"), reversed(layers()), strict=True):
        torch.manual_seed(1)
        x = torch.randn(9, 5, requires_grad=need[0])
        module.weight.requires_grad_(need[1])
        y, leaves = module(x), [t for t in (x, *module.parameters()) if t.requires_grad]

        def of(seed: Tensor, y: Any = y, leaves: Any = leaves, **how: Any) -> tuple[Tensor, ...]:
            return torch.autograd.grad(y, leaves, seed, retain_graph=True, **how)

        found["autograd", name] = of(seeds, is_grads_batched=True)
        with Calls() as calls:
            found["vmap", name] = torch.func.vmap(of)(seeds)
        assert OPERATOR not in calls.names
    for way in ways:
        for mine, other in zip(found[way, "ours"], found[way, "torch's"], strict=True):
            torch.testing.assert_close(mine, other)


def test_tangents_of_a_gradient():
    """Forward mode over a backward that makes no graph."""
    stock, layer = layers()
    x = torch.randn(9, 5, requires_grad=True)
    grad, tangent = torch.randn(9, 6), torch.randn(9, 6)
    found = []
    for module in (layer, stock):
        with forward_ad.dual_level():
            seed = forward_ad.make_dual(grad, tangent)
            got = torch.autograd.grad(module(x), (x, *module.parameters()), seed)
            found.append([forward_ad.unpack_dual(t).tangent for t in got])
    for mine, other in zip(*found, strict=True):
        torch.testing.assert_close(mine, other)


def test_subclasses_of_a_gradient_see_sgemm():
    """A wrapper's own rules count, such as DTensor's."""

    class Named(Tensor):
        pass

    stock, layer = layers()
    y, grad = layer(X[:, :1].expand(2, 5)), torch.randn(2, 6)
    with Calls() as calls:
        got = torch.autograd.grad(y, list(layer.parameters()), grad.as_subclass(Named))
    assert calls.names.count("xgemm.sgemm.default") == 1 and OPERATOR not in calls.names
    want = torch.autograd.grad(stock(X[:, :1].expand(2, 5)), list(stock.parameters()), grad)
    for mine, other in zip(got, want, strict=True):
        torch.testing.assert_close(mine.as_subclass(Tensor), other)


def test_saved_tensors_are_unpacked_once():
    stock, layer = layers()
    x = torch.randn(9, 5, requires_grad=True)
    packed, unpacked = [], []

    def pack(t: Tensor) -> int:
        packed.append(t.clone())
        return len(packed) - 1

    def unpack(i: int) -> Tensor:
        unpacked.append(i)
        return packed[i]

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        y = layer(x)
    got = torch.autograd.grad(y.sum(), (x, *layer.parameters()))
    assert sorted(unpacked) == [0, 1]
    want = torch.autograd.grad(stock(x).sum(), (x, *stock.parameters()))
    for mine, other in zip(got, want, strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints(reentrant):
    stock, layer = layers()
    x = torch.randn(9, 5, requires_grad=True)
    y = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=reentrant)
    with Calls() as calls:
        y.pow(3).sum().backward()
    assert calls.products.count(OPERATOR) == 1
    got = [t.grad for t in (x, *layer.parameters())]
    want = torch.autograd.grad(stock(x).pow(3).sum(), (x, *stock.parameters()))
    for mine, other in zip(got, want, strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize(
    "how",
    [
        {"alpha": 2.0}, {"beta": 3.0}, {"trans_a": True},
        {"c": (1, 6)}, {"c": (6, 6)}, {"c": (1,)}, {"c": ()},
    ],
    ids=str,
)  # fmt: skip
def test_products_that_are_no_layer_of_torchs(how):
    """Their gradients are operations of their own."""
    how = {"alpha": 1.0, "beta": 1.0, "trans_a": False, **how}
    x = torch.randn((5, 6) if how["trans_a"] else (6, 5), requires_grad=True)
    weight = torch.randn(6, 5, requires_grad=True)
    c = torch.randn(how.pop("c", (6,)), requires_grad=True)
    y = xgemm_torch.sgemm(x, weight, c, trans_b=True, **how)
    rows = x.mT if how["trans_a"] else x
    want = how["alpha"] * rows @ weight.mT + how["beta"] * c
    grad = torch.randn(6, 6)
    with Calls() as calls:
        got = torch.autograd.grad(y, (x, weight, c), grad)
    assert OPERATOR not in calls.names
    for mine, other in zip(got, torch.autograd.grad(want, (x, weight, c), grad), strict=True):
        torch.testing.assert_close(mine, other)


def test_the_operators_of_stages_pass_their_name_on():
    x, weight = torch.randn(9, 5, requires_grad=True), torch.randn(6, 5, requires_grad=True)
    grad = torch.randn(9, 6)
    got = torch.autograd.grad(ops.wgmma_fp16x3(x, weight, trans_b=True), (x, weight), grad)
    with torch.no_grad():
        want = linear_backward(grad, x, weight, False, kernel="wgmma_fp16x3")
    assert all(map(same_bits, got, want[:2]))


def test_flops():
    _, layer = layers()
    each = 2 * 9 * 5 * 6
    for need, products in ((True, 2), (False, 1)):
        y = layer(torch.randn(9, 5, requires_grad=need))
        with FlopCounterMode(display=False) as counter:
            y.sum().backward()
        assert counter.get_total_flops() == products * each


def test_patch_counts_it():
    _, layer = layers()
    y = layer(torch.randn(9, 5, requires_grad=True))
    with xgemm_torch.patch() as p:
        y.sum().backward()
    rows = [(row.product, row.taken, row.calls, row.flops) for row in p]
    assert rows == [("xgemm.linear_backward", True, 1, 2 * 2 * 9 * 5 * 6)]


def test_tensors_that_outlive_a_transform_are_unwrapped():
    """As torch's own ``Function.apply`` does it."""
    kept: list[Tensor] = []

    def f(x: Tensor) -> Tensor:
        kept.append(x)
        return x.sum()

    x = torch.randn(9, 5)
    torch.func.grad(f)(x)
    stock, layer = layers()
    y = layer(kept[0])
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    assert wrapped(kept[0]) and not any(map(wrapped, y.grad_fn.saved_tensors[:1]))
    (got,) = torch.autograd.grad(y.sum(), layer.weight)
    torch.testing.assert_close(got, torch.autograd.grad(stock(x).sum(), stock.weight)[0])


@on_every_device
def test_a_relu_is_the_epilogues(device):
    """No call of ATen's ReLU forward; its gradient, of every order, as ATen's."""

    class Names(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.called = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.called.append(str(func))
            return func(*args, **(kwargs or {}))

    operands = [torch.randn(s, device=device, requires_grad=True) for s in ((6, 7), (5, 7), (5,))]
    operands[0].data[0] = 0
    operands[2].data[1] = 0  # a result of 0 lets nothing through
    with Names() as names:
        out = xgemm_torch.linear(*operands, "relu")
    assert "aten.relu.default" not in names.called
    apart = torch.relu(xgemm_torch.linear(*operands))
    grad = torch.randn_like(out)
    first = [torch.autograd.grad(y, operands, grad, create_graph=True) for y in (out, apart)]
    assert torch.equal(out, apart) and all(map(torch.equal, *first))
    second = [torch.autograd.grad(sum(t.square().sum() for t in g), operands[:2]) for g in first]
    assert all(map(torch.equal, *second))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out = xgemm_torch.linear(*operands, "relu")
        out.detach().add_(1)
        out.sum().backward()
