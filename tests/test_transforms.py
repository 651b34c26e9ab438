"""Every transform that torch has, over every way to call a product: the same values as ATen's.

The ways are the public function, the operator called directly, and a stage's operator; the products
are the forms that differ in how they are derived (a bias, transposed operands, batches).
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import problems
import pytest
import torch
import torch._dynamo.testing
import torch.autograd.forward_ad as forward_ad
from torch import Tensor
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.utils._pytree import tree_leaves

import xgemm_torch

WAYS: dict[str, Callable[..., Tensor]] = {
    "function": xgemm_torch.sgemm,
    "operator": torch.ops.xgemm.sgemm,
    "stage": getattr(torch.ops.xgemm, problems.STAGES[0]),
}


def aten(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    trans_a: bool = False,
    trans_b: bool = False,
) -> Tensor:
    product = alpha * torch.matmul(a.mT if trans_a else a, b.mT if trans_b else b)
    return product if c is None else product + beta * c


def _form(a: Any, b: Any, c: Any, **flags: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (a, b, c), flags


FORMS = {
    "plain": _form((3, 4), (4, 2), None),
    "bias": _form((3, 4), (4, 2), (2,), alpha=0.5, beta=-2.0),
    "transposed": _form((4, 3), (2, 4), (3, 2), trans_a=True, trans_b=True, beta=0.5),
    "batched": _form((2, 3, 4), (2, 4, 2), (3, 1), alpha=2.0),
    "shared": _form((2, 3, 4), (2, 4), (2,), trans_b=True),
}


def inputs(form: str) -> tuple[list[Tensor], dict[str, Any]]:
    shapes, flags = FORMS[form]
    return [problems.normal(*shape) for shape in shapes if shape is not None], flags


def scalar(product: Callable[..., Tensor], flags: dict[str, Any]) -> Callable[..., Tensor]:
    """A function whose derivatives of every order differ from zero."""
    return lambda *args: product(*args, **flags).pow(3).sum()


def same(got: Any, want: Any) -> None:
    leaves, wanted = tree_leaves(got), tree_leaves(want)
    assert len(leaves) == len(wanted)
    for x, y in zip(leaves, wanted, strict=True):
        torch.testing.assert_close(x, y, rtol=2e-4, atol=2e-4)


def numbers(args: list[Tensor]) -> tuple[int, ...]:
    return tuple(range(len(args)))


def backward(product, args, flags):
    leaves = [t.clone().requires_grad_() for t in args]
    scalar(product, flags)(*leaves).backward()
    return [t.grad for t in leaves]


def double_backward(product, args, flags):
    leaves = [t.clone().requires_grad_() for t in args]
    first = torch.autograd.grad(scalar(product, flags)(*leaves), leaves, create_graph=True)
    return torch.autograd.grad(sum(g.pow(2).sum() for g in first), leaves)


def triple_backward(product, args, flags):
    leaves = [t.clone().requires_grad_() for t in args]
    total = scalar(product, flags)(*leaves)
    for _ in range(2):
        grads = torch.autograd.grad(total, leaves, create_graph=True)
        total = sum(g.pow(2).sum() for g in grads)
    return torch.autograd.grad(total, leaves)


def dual_numbers(product, args, flags):
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(t, t.cos()) for t in args]
        return tuple(forward_ad.unpack_dual(product(*duals, **flags)))


def one_dual_number(product, args, flags):
    results = []
    for i in range(len(args)):
        with forward_ad.dual_level():
            duals = list(args)
            duals[i] = forward_ad.make_dual(args[i], args[i].sin())
            results.append(forward_ad.unpack_dual(product(*duals, **flags)).tangent)
    return results


def dual_over_backward(product, args, flags):
    with forward_ad.dual_level():
        leaves = [t.clone().requires_grad_() for t in args]
        duals = [forward_ad.make_dual(t, t.detach().cos()) for t in leaves]
        grads = torch.autograd.grad(scalar(product, flags)(*duals), leaves)
        return [tuple(forward_ad.unpack_dual(g)) for g in grads]


def func_jvp(product, args, flags):
    return jvp(lambda *a: product(*a, **flags).sin(), tuple(args), tuple(t.cos() for t in args))


def func_vjp(product, args, flags):
    out, back = vjp(lambda *a: product(*a, **flags).sin(), *args)
    return out, back(out.cos())


def func_grad(product, args, flags):
    return grad(scalar(product, flags), argnums=numbers(args))(*args)


def grad_of_grad(product, args, flags):
    inner = grad(scalar(product, flags))
    return grad(lambda *a: inner(*a).pow(2).sum(), argnums=numbers(args))(*args)


def grad_of_grad_of_grad(product, args, flags):
    first = grad(scalar(product, flags))
    second = grad(lambda *a: first(*a).pow(2).sum())
    return grad(lambda *a: second(*a).sum(), argnums=numbers(args))(*args)


def func_jacrev(product, args, flags):
    return jacrev(lambda *a: product(*a, **flags).sin(), argnums=numbers(args))(*args)


def func_jacfwd(product, args, flags):
    return jacfwd(lambda *a: product(*a, **flags).sin(), argnums=numbers(args))(*args)


def func_hessian(product, args, flags):
    return hessian(scalar(product, flags), argnums=numbers(args))(*args)


def one_jacobian(product, args, flags):
    return jacrev(lambda *a: product(*a, **flags).sin())(*args)


def one_hessian(product, args, flags):
    """Of one operand: torch 2.11 cannot compile the basis vectors of several."""
    return hessian(scalar(product, flags))(*args)


def reverse_over_reverse(product, args, flags):
    return jacrev(jacrev(scalar(product, flags)), argnums=numbers(args))(*args)


def forward_over_forward(product, args, flags):
    return jacfwd(jacfwd(scalar(product, flags)), argnums=numbers(args))(*args)


def reverse_over_forward(product, args, flags):
    return jacrev(jacfwd(scalar(product, flags)), argnums=numbers(args))(*args)


def jvp_of_grad(product, args, flags):
    f = grad(scalar(product, flags), argnums=numbers(args))
    return jvp(f, tuple(args), tuple(t.cos() for t in args))


def per_sample_grad(product, args, flags):
    """Of the first operand's samples, the others shared, as of a model's weights."""
    others = args[1:]

    def loss(others, sample):
        return scalar(product, flags)(sample, *others)

    samples = torch.stack([args[0], args[0].sin(), args[0].cos()])
    return vmap(grad(loss), in_dims=(None, 0))(tuple(others), samples)


def grad_of_vmap(product, args, flags):
    stacked = [torch.stack([t, t.sin()]) for t in args]
    return grad(
        lambda *a: vmap(lambda *b: product(*b, **flags))(*a).pow(3).sum(), argnums=numbers(args)
    )(*stacked)


def backward_through_grad(product, args, flags):
    """Ordinary autograd around a transform."""
    leaves = [t.clone().requires_grad_() for t in args]
    grads = grad(scalar(product, flags), argnums=numbers(args))(*leaves)
    return torch.autograd.grad(sum(g.pow(2).sum() for g in grads), leaves)


def batched_backward(product, args, flags):
    leaves = [t.clone().requires_grad_() for t in args]
    out = product(*leaves, **flags)
    seeds = torch.stack([out.detach().sin(), out.detach().cos()])
    return torch.autograd.grad(out, leaves, seeds, is_grads_batched=True)


def checkpoint(product, args, flags):
    leaves = [t.clone().requires_grad_() for t in args]
    out = torch.utils.checkpoint.checkpoint(
        lambda *a: product(*a, **flags).sin(), *leaves, use_reentrant=False
    )
    return torch.autograd.grad(out.pow(2).sum(), leaves)


def reentrant_checkpoint(product, args, flags):
    leaves = [t.clone().requires_grad_() for t in args]
    torch.utils.checkpoint.checkpoint(
        lambda *a: product(*a, **flags).sin(), *leaves, use_reentrant=True
    ).pow(2).sum().backward()
    return [t.grad for t in leaves]


TRANSFORMS = [
    backward,
    double_backward,
    triple_backward,
    dual_numbers,
    one_dual_number,
    dual_over_backward,
    func_jvp,
    func_vjp,
    func_grad,
    grad_of_grad,
    grad_of_grad_of_grad,
    func_jacrev,
    func_jacfwd,
    func_hessian,
    reverse_over_reverse,
    forward_over_forward,
    reverse_over_forward,
    jvp_of_grad,
    per_sample_grad,
    grad_of_vmap,
    backward_through_grad,
    batched_backward,
    checkpoint,
    reentrant_checkpoint,
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("transform", TRANSFORMS, ids=lambda t: t.__name__)
def test_transform(transform, form, way):
    args, flags = inputs(form)
    same(transform(WAYS[way], args, flags), transform(aten, args, flags))


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu"])
@pytest.mark.parametrize(
    "transform", [double_backward, dual_numbers, func_hessian, per_sample_grad]
)
def test_activations_under_transforms(transform, activation):
    args, flags = inputs("bias")
    function = {
        "relu": torch.relu,
        "gelu": torch.nn.functional.gelu,
        "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
        "silu": torch.nn.functional.silu,
    }[activation]
    want = transform(lambda *a, **f: function(aten(*a, **f)), args, flags)
    same(transform(xgemm_torch.sgemm, args, {**flags, "activation": activation}), want)


def test_linear_under_transforms():
    layer = torch.nn.Linear(4, 3)
    ours = xgemm_torch.nn.Linear.from_linear(layer)
    parameters = dict(layer.named_parameters())
    x = problems.normal(5, 4)

    def loss(module, parameters, sample):
        return torch.func.functional_call(module, parameters, (sample,)).pow(2).sum()

    got, want = (
        vmap(grad(lambda p, s, m=m: loss(m, p, s)), in_dims=(None, 0))(parameters, x)
        for m in (ours, layer)
    )
    same(got, want)


# ------------------------------------------------------------------------------ vmap

PLACES = [None, 0, 1, -1]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("form", FORMS)
def test_vmap_in_all_places(form, way):
    args, flags = inputs(form)
    for places in itertools.product(PLACES, repeat=len(args)):
        if all(place is None for place in places):
            continue
        given = [
            t if place is None else torch.stack([t, t.sin(), t.cos()], dim=place)
            for t, place in zip(args, places, strict=True)
        ]
        got = vmap(lambda *a: WAYS[way](*a, **flags), in_dims=places)(*given)
        want = vmap(lambda *a: aten(*a, **flags), in_dims=places)(*given)
        assert got.shape == want.shape, places
        same(got, want)


@pytest.mark.parametrize("way", ["function", "operator"])
@pytest.mark.parametrize("form", FORMS)
def test_nested_vmap(form, way):
    """Two levels, each operand mapped by the outer one, the inner one, both or none."""
    args, flags = inputs(form)
    levels = list(itertools.product([None, 0], repeat=2))
    for choice in itertools.product(levels, repeat=len(args)):
        outer = tuple(levels[0] for levels in choice)
        inner = tuple(levels[1] for levels in choice)
        if set(outer) == {None} or set(inner) == {None}:
            continue
        given = []
        for t, (out, inn) in zip(args, choice, strict=True):
            t = t if inn is None else torch.stack([t, t.sin(), t.cos()])
            given.append(t if out is None else torch.stack([t, -t]))

        def twice(product, outer=outer, inner=inner, given=given):
            once = vmap(lambda *a: product(*a, **flags), in_dims=inner)
            return vmap(once, in_dims=outer)(*given)

        same(twice(WAYS[way]), twice(aten))


@pytest.mark.parametrize("chunk_size", [None, 2])
def test_vmap_out_dims_and_chunks(chunk_size):
    a, b = problems.normal(5, 3, 4), problems.normal(4, 2)
    for out_dim in (0, 1, 2):
        got = vmap(xgemm_torch.sgemm, (0, None), out_dim, chunk_size=chunk_size)(a, b)
        same(got, vmap(torch.mm, (0, None), out_dim)(a, b))


class Operands(torch.utils._python_dispatch.TorchDispatchMode):
    """Records the shapes that the operators get, and copies."""

    def __init__(self):
        super().__init__()
        self.shapes: list[tuple[torch.Size, ...]] = []
        self.copies: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "xgemm":
            self.shapes.append(tuple(t.shape for t in args if isinstance(t, Tensor)))
        elif any(word in str(func) for word in ("clone", "copy", "contiguous")):
            self.copies.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("in_dims", "shapes", "flags", "want"),
    [
        pytest.param((0, None), [(7, 3, 4), (4, 2)], {}, [(21, 4), (4, 2)], id="rows"),
        pytest.param((0, None), [(7, 3, 4), (4, 2), (2,)], {}, [(21, 4), (4, 2), (1, 2)], id="c"),
        pytest.param(
            (1, None), [(4, 7, 3), (4, 2)], {"trans_a": True}, [(21, 4), (4, 2)], id="transposed"
        ),
        pytest.param(
            (0, None), [(7, 4, 3), (4, 2)], {"trans_a": True}, [(7, 3, 4), (4, 2)], id="no rows"
        ),
        pytest.param((None, 0), [(3, 4), (7, 4, 2)], {}, [(3, 4), (7, 4, 2)], id="b"),
        pytest.param((0, 0), [(7, 3, 4), (7, 4, 2)], {}, [(7, 3, 4), (7, 4, 2)], id="both"),
        pytest.param((0, None), [(7, 5, 3, 4), (4, 2)], {}, [(35, 3, 4), (4, 2)], id="batch"),
    ],
)
def test_vmap_is_one_product_without_copies(in_dims, shapes, flags, want):
    tensors = [problems.normal(*shape) for shape in shapes]
    dims = (*in_dims, None)[: len(tensors)]
    with Operands() as seen:
        got = vmap(lambda *t: xgemm_torch.sgemm(*t, **flags), in_dims=dims)(*tensors)
    assert seen.shapes == [tuple(map(torch.Size, want))]
    assert seen.copies == []
    same(got, vmap(lambda *t: aten(*t, **flags), in_dims=dims)(*tensors))


def test_vmap_ensemble():
    """Models stacked: each with its own weight and bias, on the same data."""
    weights, biases = problems.normal(6, 3, 4), problems.normal(6, 3)
    x = problems.normal(5, 4)
    got = vmap(lambda w, b: xgemm_torch.linear(x, w, b, "gelu"))(weights, biases)
    same(
        got,
        torch.stack(
            [
                torch.nn.functional.gelu(torch.nn.functional.linear(x, w, b))
                for w, b in zip(weights, biases, strict=True)
            ]
        ),
    )


def test_out_is_refused_under_transforms():
    a, b, out = torch.ones(2, 3, 4), torch.ones(4, 5), torch.ones(3, 5)
    with pytest.raises(RuntimeError, match="out= does not work under torch.func"):
        vmap(lambda a: xgemm_torch.sgemm(a, b, out=out))(a)
    for way in (xgemm_torch.sgemm, torch.ops.xgemm.sgemm.out):
        for i in range(3):
            with forward_ad.dual_level():
                given = [a[0], b, out.clone()]
                given[i] = forward_ad.make_dual(given[i], given[i])
                with pytest.raises(RuntimeError, match="out= does not work under torch.func"):
                    way(*given[:2], out=given[2])


def test_out_is_taken_while_another_thread_is_in_forward_mode():
    a, b, out = problems.normal(3, 4), problems.normal(4, 5), torch.empty(3, 5)
    begun, end = threading.Event(), threading.Event()

    def work() -> None:
        with forward_ad.dual_level():
            begun.set()
            end.wait()

    other = threading.Thread(target=work)
    other.start()
    begun.wait()
    try:
        same(xgemm_torch.sgemm(a, b, out=out), a @ b)
        same(torch.ops.xgemm.sgemm(-a, b, out=out), -a @ b)
    finally:
        end.set()
        other.join()


# ------------------------------------------------------------------------------ compile, export


@pytest.fixture
def fresh_dynamo():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("form", FORMS)
def test_compile(form, way, dynamic, fresh_dynamo):
    """Fullgraph, forward and backward."""
    args, flags = inputs(form)

    def both(product):
        return backward(product, args, flags)

    compiled = torch.compile(WAYS[way], backend="aot_eager", fullgraph=True, dynamic=dynamic)
    same(both(compiled), both(aten))


@pytest.mark.parametrize("way", ["function", "operator"])
@pytest.mark.parametrize(
    "transform",
    [func_grad, func_vjp, func_jvp, one_jacobian, one_hessian, per_sample_grad, dual_numbers],
    ids=lambda t: t.__name__,
)
def test_compiled_transforms(transform, way, fresh_dynamo):
    args, flags = inputs("bias")
    compiled = torch.compile(
        lambda *a: transform(WAYS[way], a, flags), backend="aot_eager", fullgraph=True
    )
    same(compiled(*args), transform(aten, args, flags))


def test_inductor(fresh_dynamo):
    """The default backend, with an epilogue to fuse after and views before the product."""
    layer = xgemm_torch.nn.Linear(12, 8, activation="gelu")
    twin = layer.__class__.from_linear(layer, activation="gelu")
    x = problems.normal(3, 5, 12)

    def f(module, x):
        return (module(x.transpose(0, 1) * 2) + 1).sin().sum()

    compiled = torch.compile(f, fullgraph=True)
    grads = []
    for call, module in ((compiled, layer), (f, twin)):
        module.zero_grad()
        loss = call(module, x)
        loss.backward()
        grads.append((loss.detach(), module.weight.grad.clone(), module.bias.grad.clone()))
    same(*grads)


def test_dynamic_shapes_compile_once(fresh_dynamo):
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    w, bias = problems.normal(6, 5), problems.normal(6)
    compiled = torch.compile(
        lambda x: xgemm_torch.linear(x, w, bias), backend=counter, fullgraph=True, dynamic=True
    )
    for rows in (3, 4, 7, 40):
        x = problems.normal(2, rows, 5)
        same(compiled(x), torch.nn.functional.linear(x, w, bias))
    assert counter.frame_count == 1


def test_data_dependent_rows(fresh_dynamo):
    w = problems.normal(5, 4)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(
            lambda x, mask: xgemm_torch.sgemm(x[mask], w, torch.ones(4)),
            backend="aot_eager",
            fullgraph=True,
        )
        for seed in range(3):
            torch.manual_seed(seed)
            x = problems.normal(6, 5)
            mask = torch.rand(6) < 0.5
            same(compiled(x, mask), x[mask] @ w + 1)


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda f, r, w: f.addmm(r[:, 0], r[:, 1], w), id="residual"),
        pytest.param(lambda f, r, w: f.linear(r.transpose(0, 1), w), id="transposed"),
        pytest.param(lambda f, r, w: f.linear(r[:, 1:], w), id="sliced"),
        pytest.param(lambda f, r, w: f.matmul(r, w[None]), id="batch of one"),
        pytest.param(lambda f, r, w: f.matmul(r[None], w[None, None]), id="batches of one"),
        pytest.param(lambda f, r, w: f.matmul(w, r.mT), id="shared left"),
        pytest.param(lambda f, r, w: f.bmm(r, r.mT), id="one batch"),
    ],
)
def test_data_dependent_batches(call, fresh_dynamo):
    """Sizes that nobody knows while compiling: what needs no answer is not asked."""
    x, w = problems.normal(6, 3, 4), problems.normal(4, 4)
    mask = torch.tensor([1, 0, 1, 1, 0, 1]).bool()

    def gradients(function):
        leaves = [t.clone().requires_grad_() for t in (x, w)]
        y = function(*leaves)
        return y, torch.autograd.grad(y.square().sum(), leaves, allow_unused=True)

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(
            lambda x, w: call(xgemm_torch, x[mask], w), backend="aot_eager", fullgraph=True
        )
        got = gradients(compiled)
    theirs = SimpleNamespace(
        addmm=torch.addmm, bmm=torch.bmm, matmul=torch.matmul, linear=torch.nn.functional.linear
    )
    same(got, gradients(lambda x, w: call(theirs, x[mask], w)))


@pytest.mark.parametrize("alias", [False, True])
def test_compile_with_out(alias, fresh_dynamo):
    a, b = problems.normal(3, 4), problems.normal(4, 5)
    out = problems.normal(3, 5)

    def f(a, b, out):
        xgemm_torch.sgemm(a, b, out if alias else None, out=out)
        return out * 2

    want = 2 * (a @ b + (out if alias else 0))
    same(torch.compile(f, backend="aot_eager", fullgraph=True)(a, b, out), want)
    same(out, want / 2)


@pytest.mark.parametrize(
    ("out", "kind", "text"),
    [
        (torch.empty(3, 5, dtype=torch.int32), TypeError, "out must be float32, got int32"),
        (torch.empty(3, 5, dtype=torch.float64), TypeError, "out must be float32, got float64"),
        (torch.empty(5, 3), ValueError, r"out must have shape \(3, 5\), got \(5, 3\)"),
    ],
    ids=["int32", "float64", "shape"],
)
def test_compile_with_a_wrong_out(out, kind, text, fresh_dynamo):
    a, b = problems.normal(3, 4), problems.normal(4, 5)

    def f(a, b, out):
        return xgemm_torch.sgemm(a, b, out=out)

    for call in (f, torch.compile(f, backend="aot_eager")):
        with pytest.raises(kind, match=text):
            call(a, b, out)


def test_compile_under_autocast(fresh_dynamo):
    a, b = problems.normal(3, 4).bfloat16(), problems.normal(4, 5).bfloat16()

    @torch.compile(backend="aot_eager", fullgraph=True)
    def f(a, b):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return xgemm_torch.sgemm(a, b)

    got = f(a, b)
    assert got.dtype == torch.float32
    same(got, a.float() @ b.float())


@pytest.mark.parametrize("strict", [False, True])
def test_export(strict, tmp_path):
    model = torch.nn.Sequential(
        xgemm_torch.nn.Linear(6, 8, activation="relu"), xgemm_torch.nn.Linear(8, 3)
    )
    x = problems.normal(5, 6)
    batch = torch.export.Dim("batch", min=2, max=100)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: batch},), strict=strict)
    targets = [str(node.target) for node in program.graph.nodes]
    assert targets.count("xgemm.sgemm.default") == 2
    program = program.run_decompositions()
    torch.export.save(program, tmp_path / "model.pt2")
    loaded = torch.export.load(tmp_path / "model.pt2")
    for rows in (2, 5, 17):
        x = problems.normal(rows, 6)
        same(loaded.module()(x), model(x))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("form", FORMS)
def test_functionalize(form, way):
    args, flags = inputs(form)

    def f(*args):
        y = WAYS[way](*args, **flags)
        y[0].add_(1)
        return y

    functional = torch.func.functionalize(f)
    same(functional(*args), f(*args))
    same(vmap(functional)(*(t[None] for t in args)), f(*args)[None])
    leaves = [t.clone().requires_grad_() for t in args]
    twins = [t.clone().requires_grad_() for t in args]
    functional(*leaves).square().sum().backward()
    f(*twins).square().sum().backward()
    same([t.grad for t in leaves], [t.grad for t in twins])
    graph = torch.fx.experimental.proxy_tensor.make_fx(functional)(*args)
    assert "add_" not in graph.code
    same(graph(*args), f(*args))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("form", FORMS)
def test_flops_are_counted(form, way):
    """Forward and backward, as torch counts its products'; sums and factors are not."""
    from torch.utils.flop_counter import FlopCounterMode

    args, flags = inputs(form)
    counts = []
    for product in (WAYS[way], aten):
        with FlopCounterMode(display=False) as counter:
            backward(product, args, flags)
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0


def test_flops_of_out_are_counted():
    from torch.utils.flop_counter import FlopCounterMode

    a, b, out = problems.normal(3, 4), problems.normal(4, 5), torch.empty(3, 5)
    with FlopCounterMode(display=False) as counter:
        xgemm_torch.sgemm(a, b, out=out)
        torch.ops.xgemm.sgemm(a, b, out=out)
    assert counter.get_total_flops() == 2 * 2 * 3 * 4 * 5


@pytest.mark.parametrize("looked", ["before", "never", "by two"])
def test_flops_are_counted_whoever_looked_for_the_counter(looked):
    """Whether it is installed, as programs ask: that is no import."""
    look = "importlib.util.find_spec('torch.utils.flop_counter')"
    code = (
        "import importlib.util, sys, torch, xgemm_torch\n"
        "finders = len(sys.meta_path)\n"
        "assert 'torch.utils.flop_counter' not in sys.modules\n"
        f"for _ in range({['never', 'before', 'by two'].index(looked)}): assert {look}\n"
        "from torch.utils.flop_counter import FlopCounterMode\n"
        "assert len(sys.meta_path) == finders - 1\n"
        "with FlopCounterMode(display=False) as counter:\n"
        "    xgemm_torch.sgemm(torch.ones(3, 4), torch.ones(4, 5))\n"
        "assert counter.get_total_flops() == 2 * 3 * 4 * 5\n"
    )
    root = Path(xgemm_torch.__file__).resolve().parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_make_fx_and_symbolic_trace():
    a, b = problems.normal(3, 4), problems.normal(4, 5)
    graph = torch.fx.experimental.proxy_tensor.make_fx(lambda a, b: xgemm_torch.sgemm(a, b))(a, b)
    assert "xgemm.sgemm.default" in [str(node.target) for node in graph.graph.nodes]
    same(graph(a, b), a @ b)
    model = torch.nn.Sequential(xgemm_torch.nn.Linear(4, 5), torch.nn.ReLU())
    traced = torch.fx.symbolic_trace(model)
    assert xgemm_torch.linear in [node.target for node in traced.graph.nodes]
    same(traced(a), model(a))


def test_jit_trace():
    a, b = problems.normal(3, 4), problems.normal(4, 5)
    traced = torch.jit.trace(lambda a, b: xgemm_torch.sgemm(a, b), (a, b))
    assert "xgemm::sgemm" in str(traced.graph)
    same(traced(2 * a, b), 2 * a @ b)


@pytest.mark.parametrize("kernel", ["auto", problems.STAGES[0]])
@pytest.mark.parametrize("activation", ["none", "gelu"])
def test_jit_trace_of_a_layer_has_gradients(kernel, activation, tmp_path):
    layer = xgemm_torch.nn.Linear(4, 5, kernel=kernel, activation=activation)
    torch.jit.save(torch.jit.trace(layer, problems.normal(2, 4)), tmp_path / "layer.pt")
    loaded, x = torch.jit.load(tmp_path / "layer.pt"), problems.normal(3, 4)
    same(loaded(x), layer(x))
    for got, want in zip(loaded.parameters(), layer.parameters(), strict=True):
        got, want = (
            torch.autograd.grad(m(x).square().sum(), p) for m, p in ((loaded, got), (layer, want))
        )
        same(got[0], want[0])


def test_torch_function_modes_and_subclasses_see_the_call():
    seen = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    class Logged(Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            seen.append(func)
            return super().__torch_function__(func, types, args, kwargs or {})

    a, b = problems.normal(3, 4), problems.normal(4, 5)
    with Mode():
        same(xgemm_torch.sgemm(a, b), a @ b)
    assert xgemm_torch.sgemm in seen
    seen.clear()
    got = xgemm_torch.linear(a.as_subclass(Logged), b.T)
    assert type(got) is Logged
    assert xgemm_torch.linear in seen
    same(got.as_subclass(Tensor), a @ b)
