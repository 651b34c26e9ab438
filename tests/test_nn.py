"""linear, mm, addmm, bmm, matmul and nn.Linear: what torch's do."""

from __future__ import annotations

import copy
import io
import itertools
import pickle
import re

import problems
import pytest
import torch
from test_transforms import Operands
from torch.nn.utils import prune

import xgemm_torch

F = torch.nn.functional
WAYS = [{}, {"precision": "ieee"}, {"kernel": problems.STRICT[-1]}]
WAYS += [{"kernel": name} for name in problems.EMULATED[-1:]]


def close(got, want):
    torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5)


# ------------------------------------------------------------------------------ linear

LEADING = [(), (1,), (5,), (2, 3), (2, 1, 3), (0,), (2, 0, 3), (1, 1)]


@pytest.mark.parametrize("how", WAYS, ids=str)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("leading", LEADING, ids=str)
def test_linear(leading, bias, how):
    x, w = problems.normal(*leading, 4), problems.normal(6, 4)
    b = problems.normal(6) if bias else None
    got = xgemm_torch.linear(x, w, b, **how)
    want = F.linear(x, w, b)
    assert got.shape == want.shape
    close(got, want)


@pytest.mark.parametrize("leading", LEADING, ids=str)
@pytest.mark.parametrize("bias", [False, True])
def test_linear_with_a_vector_as_weight(leading, bias):
    x, w = problems.normal(*leading, 4), problems.normal(4)
    b = problems.normal() if bias else None
    want = F.linear(x, w) + (0 if b is None else b)
    got = xgemm_torch.linear(x, w, b)
    assert got.shape == want.shape
    close(got, want)


@pytest.mark.parametrize("sizes", [(0, 4), (4, 0), (0, 0)], ids=str)
def test_linear_without_features(sizes):
    """No input features leave the bias; no output features nothing."""
    out, inn = sizes
    x, w, b = problems.normal(2, 3, inn), problems.normal(out, inn), problems.normal(out)
    close(xgemm_torch.linear(x, w, b), F.linear(x, w, b))


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
@pytest.mark.parametrize("extra", [False, True])
def test_linear_of_permuted_inputs(order, extra):
    shape = (3, 4, 5)
    x = problems.normal(*shape, *((6,) if extra else ())).permute(*order, *((3,) if extra else ()))
    w = problems.normal(7, x.shape[-1])
    close(xgemm_torch.linear(x, w), F.linear(x, w))


def test_linear_copies_only_what_has_no_strides():
    w = problems.normal(7, 6)
    x = problems.normal(3, 4, 5, 6)
    cases = {
        "contiguous": x,
        "transposed": x[0].transpose(0, 1),
        "sliced": x[:, :, ::2],
        "swapped": x.transpose(0, 1)[:, :, 0],
        "expanded": problems.normal(6).expand(2, 3, 4, 6),
        "batch of one": x.transpose(0, 1)[:1],
    }
    for name, t in cases.items():
        with Operands() as seen:
            got = xgemm_torch.linear(t, w)
        assert seen.copies == [], name
        assert len(seen.shapes) == 1, name
        close(got, F.linear(t, w))
    with Operands() as seen:  # three dimensions that no two of are one
        got = xgemm_torch.linear(x.permute(2, 1, 0, 3), w)
    assert len(seen.copies) == 1
    close(got, F.linear(x.permute(2, 1, 0, 3), w))


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu"])
def test_linear_with_activation(activation):
    x, w, b = problems.normal(2, 3, 4), problems.normal(5, 4), problems.normal(5)
    function = {
        "relu": F.relu,
        "gelu": F.gelu,
        "gelu_tanh": lambda t: F.gelu(t, approximate="tanh"),
        "silu": F.silu,
    }[activation]
    close(xgemm_torch.linear(x, w, b, activation), function(F.linear(x, w, b)))


JAGGED = {
    "sequences": lambda: torch.nested.nested_tensor(
        [problems.normal(2, 4), problems.normal(3, 4)], layout=torch.jagged
    ),
    "heads": lambda: torch.nested.nested_tensor(
        [problems.normal(2, 5, 4), problems.normal(3, 5, 4)], layout=torch.jagged
    ),
    "holes": lambda: torch.nested.narrow(
        problems.normal(2, 6, 4), 1, torch.tensor([0, 1]), torch.tensor([2, 3]), torch.jagged
    ),
}


@pytest.mark.parametrize(
    ("kind", "compiled"),
    [*((kind, False) for kind in JAGGED), ("sequences", True), ("heads", True)],
)
def test_linear_of_jagged_inputs(kind, compiled):
    given, w, b = JAGGED[kind](), problems.normal(6, 4), problems.normal(6)

    def results(function):
        leaves = [t.detach().requires_grad_() for t in (given, w, b)]
        y = function(*leaves)
        rows = y.values() if y.is_nested else y
        rows.square().sum().backward()
        return y.shape, rows, [t.grad.values() if t.is_nested else t.grad for t in leaves]

    ours = xgemm_torch.linear
    if compiled:
        torch.compiler.reset()
        ours = torch.compile(ours, backend="aot_eager", fullgraph=True)
    shape, *got = results(ours)
    assert shape[-1] == 6
    if not compiled:
        assert shape[:-1] == given.shape[:-1], "the same lengths, so that they can be added"
    _, *want = results(lambda x, w, b: F.linear(x.values(), w, b))
    close(got, want)


def test_linear_of_jagged_inputs_is_refused():
    x, w = JAGGED["sequences"](), problems.normal(6, 4)
    with pytest.raises(ValueError, match="linear: the last dimension of a jagged x must not be"):
        xgemm_torch.linear(x.transpose(1, 2), problems.normal(6, 5))
    with pytest.raises(ValueError, match="linear: inner sizes differ"):
        xgemm_torch.linear(x, w[:, 1:])
    with pytest.raises(TypeError, match="linear: weight must be float32, got float64"):
        xgemm_torch.linear(x, w.double())


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_nested_operands_are_refused(layout):
    x = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)], layout=layout)
    text = "must be a dense .strided. tensor, got a nested one"
    w = torch.ones(4, 4)
    for call in (
        lambda: xgemm_torch.mm(x, w),
        lambda: xgemm_torch.bmm(x, w.expand(2, 4, 4)),
        lambda: xgemm_torch.matmul(x, w),
        lambda: xgemm_torch.addmm(w, x, w),
        lambda: xgemm_torch.linear(w, x),
        lambda: xgemm_torch.linear(w, w, x),
        *([] if layout is torch.jagged else [lambda: xgemm_torch.linear(x, w)]),
    ):
        for grad in (False, True):
            with torch.set_grad_enabled(grad), pytest.raises(TypeError, match=text):
                call()


@pytest.mark.parametrize(
    ("args", "kind", "text"),
    [
        ((torch.ones(2, 3), torch.ones(4, 5)), ValueError, "inner sizes differ"),
        ((torch.ones(2, 2, 3), torch.ones(4, 5)), ValueError, "linear: inner sizes differ: x is"),
        ((torch.ones(3), torch.ones(2, 4, 3)), ValueError, "weight one or two"),
        ((torch.ones(()), torch.ones(4, 3)), ValueError, "x must have a dimension"),
        ((torch.ones(2, 3), torch.ones(4, 3), torch.ones(2, 4)), ValueError, "bias must be of"),
        ((torch.ones(2, 3), torch.ones(4, 3), torch.ones(3)), ValueError, "bias must be"),
        ((torch.ones(2, 3), torch.ones(4, 3).double()), TypeError, "must be float32, got float64"),
        (([1.0], torch.ones(4, 3)), TypeError, "x must be a tensor, got list"),
        ((torch.ones(2, 3), None), TypeError, "weight must be a tensor, got NoneType"),
        ((torch.ones(2, 3), torch.ones(4, 3), 1.0), TypeError, "bias must be a tensor, got float"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_linear_refuses(args, kind, text):
    with pytest.raises(kind, match=text):
        xgemm_torch.linear(*args)


# ------------------------------------------------------------------------------ mm and others


@pytest.mark.parametrize("how", WAYS, ids=str)
@pytest.mark.parametrize("shape", problems.SMALL + problems.EMPTY, ids=str)
def test_mm_addmm_bmm(shape, how):
    m, n, k = shape
    a, b = problems.normal(m, k), problems.normal(k, n)
    close(xgemm_torch.mm(a, b, **how), torch.mm(a, b))
    for c_shape in ((m, n), (n,), (1, n), (m, 1), ()):
        c = problems.normal(*c_shape)
        want = torch.addmm(c, a, b, beta=0.5, alpha=-2)
        close(xgemm_torch.addmm(c, a, b, beta=0.5, alpha=-2, **how), want)
    a, b = problems.normal(3, m, k), problems.normal(3, k, n)
    close(xgemm_torch.bmm(a, b, **how), torch.bmm(a, b))


def test_out_of_mm_addmm_bmm_matmul():
    a, b, c = problems.normal(3, 4), problems.normal(4, 5), problems.normal(3, 5)
    x, y = problems.normal(2, 3, 4), problems.normal(2, 4, 5)
    for call, args, shape in (
        (xgemm_torch.mm, (a, b), (3, 5)),
        (xgemm_torch.addmm, (c, a, b), (3, 5)),
        (xgemm_torch.bmm, (x, y), (2, 3, 5)),
        (xgemm_torch.matmul, (a, b), (3, 5)),
        (xgemm_torch.matmul, (x, b), (2, 3, 5)),
        (xgemm_torch.matmul, (a, b[:, 0]), (3,)),
        (xgemm_torch.matmul, (a[0], b), (5,)),
        (xgemm_torch.matmul, (a[0], b[:, 0]), ()),
        (xgemm_torch.matmul, (x[:, None], y), (2, 2, 3, 5)),
    ):
        want = getattr(torch, call.__name__)(*args)
        spaced = torch.zeros(tuple(2 * s for s in shape))[
            tuple(slice(None, None, 2) for _ in shape)
        ]
        for out in (torch.zeros(shape), spaced):
            assert call(*args, out=out) is out
            close(out, want)
        with pytest.raises(ValueError, match="out must have shape"):
            call(*args, out=torch.zeros(7, 7))
        out = torch.zeros(shape, requires_grad=True)
        with pytest.raises(RuntimeError, match="automatic differentiation"):
            call(*args, out=out)


def test_addmm_does_not_read_its_input_where_beta_is_zero():
    a, b = problems.normal(3, 4), problems.normal(4, 5)
    close(xgemm_torch.addmm(torch.full((5,), torch.nan), a, b, beta=0), a @ b)


@pytest.mark.parametrize(
    ("call", "shapes", "text"),
    [
        ("mm", [(2, 3, 4), (4, 5)], "mm: input must have 2 dimensions, got"),
        ("mm", [(3, 4), (4,)], "mm: mat2 must have 2 dimensions, got"),
        ("mm", [(3, 4), (5, 6)], "mm: inner sizes differ: input is .3, 4., mat2 is .5, 6."),
        ("addmm", [(5,), (3, 4), (2, 4, 5)], "addmm: mat2 must have 2 dimensions"),
        ("addmm", [(4,), (3, 4), (4, 5)], "addmm: input does not broadcast to the result"),
        ("bmm", [(3, 4), (4, 5)], "bmm: input must have 3 dimensions"),
        ("bmm", [(1, 3, 4), (2, 4, 5)], "bmm: batch sizes differ"),
        ("matmul", [(), (4, 5)], "both operands must have a dimension"),
        ("matmul", [(3, 4), (5,)], "matmul: inner sizes differ: input is"),
        ("matmul", [(2, 1, 3, 4), (3, 1, 4, 5)], "batch sizes cannot be broadcast"),
        ("matmul", [(4,), (5,)], "inner sizes differ"),
    ],
)
def test_functions_refuse(call, shapes, text):
    with pytest.raises(ValueError, match=text):
        getattr(xgemm_torch, call)(*(torch.ones(shape) for shape in shapes))
    with pytest.raises(TypeError, match="must be a tensor, got float"):
        getattr(xgemm_torch, call)(*(1.0 for _ in shapes))
    with pytest.raises(TypeError, match="must be float32, got float64"):
        good = [torch.ones(3, 3, 3) if call == "bmm" else torch.ones(3, 3) for _ in shapes]
        getattr(xgemm_torch, call)(*(t.double() for t in good))


SIDES = [(4,), (3, 4), (1, 4), (2, 3, 4), (1, 3, 4), (5, 1, 3, 4), (5, 2, 3, 4), (1, 1, 3, 4)]
SIDES_B = [(4,), (4, 6), (4, 1), (2, 4, 6), (1, 4, 6), (5, 1, 4, 6), (1, 2, 4, 6), (0, 1, 4, 6)]


@pytest.mark.parametrize("left", SIDES, ids=str)
@pytest.mark.parametrize("right", SIDES_B, ids=str)
def test_matmul(left, right):
    a, b = problems.normal(*left), problems.normal(*right)
    try:
        want = torch.matmul(a, b)
    except RuntimeError:
        with pytest.raises(ValueError):
            xgemm_torch.matmul(a, b)
        return
    got = xgemm_torch.matmul(a, b)
    assert got.shape == want.shape
    close(got, want)
    for how in WAYS[1:]:
        close(xgemm_torch.matmul(a, b, **how), want)


@pytest.mark.parametrize("left", SIDES, ids=str)
@pytest.mark.parametrize("right", SIDES_B[:-1], ids=str)
def test_matmul_gradients(left, right):
    given = [problems.normal(*shape) for shape in (left, right)]
    try:
        torch.matmul(*given)
    except RuntimeError:
        with pytest.raises(ValueError):
            xgemm_torch.matmul(*(t.requires_grad_() for t in given))
        return
    grads = []
    for call in (xgemm_torch.matmul, torch.matmul):
        leaves = [t.clone().requires_grad_() for t in given]
        grads.append(torch.autograd.grad(call(*leaves).sin().sum(), leaves))
    close(*grads)


def test_matmul_of_views_copies_nothing():
    x = problems.normal(2, 3, 4, 5)
    pairs = [
        (x, x.mT),
        (x, problems.normal(5, 2)),
        (x[:, 1:], problems.normal(5, 2)),
        (x[0], problems.normal(1, 5, 2)),
        (x, problems.normal(1, 1, 5, 2)),
        (problems.normal(6, 4), x),
        (problems.normal(4), x),
        (x, problems.normal(5)),
    ]
    for a, b in pairs:
        with Operands() as seen:
            got = xgemm_torch.matmul(a, b)
        assert seen.copies == []
        (shapes,) = seen.shapes
        for given, seen_as in zip((a, b), shapes, strict=True):
            if given.dim() != 3 and given.numel() == given.shape[-2:].numel():
                assert len(seen_as) == 2, "what the whole batch shares is no batch"
        close(got, torch.matmul(a, b))


# ------------------------------------------------------------------------------ nn.Linear


@pytest.mark.parametrize("bias", [True, False])
def test_same_initial_values_and_keys(bias):
    torch.manual_seed(3)
    ours = xgemm_torch.nn.Linear(5, 7, bias=bias)
    torch.manual_seed(3)
    theirs = torch.nn.Linear(5, 7, bias=bias)
    assert isinstance(ours, torch.nn.Linear)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert dict(ours.named_buffers()) == {}
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(mine, other)
    ours.load_state_dict(theirs.state_dict(), strict=True)
    theirs.load_state_dict(ours.state_dict(), strict=True)
    x = problems.normal(2, 3, 5)
    close(ours(x), theirs(x))


def test_device_dtype_and_meta():
    layer = xgemm_torch.nn.Linear(3, 4, device="meta", dtype=torch.float32, kernel="auto")
    assert layer.weight.is_meta
    assert layer(torch.ones(2, 3, device="meta")).shape == (2, 4)
    layer = layer.to_empty(device="cpu")
    assert layer(torch.ones(2, 3)).device.type == "cpu"
    with pytest.raises(TypeError, match="linear: x must be float32, got float64"):
        layer(torch.ones(2, 3, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.half, torch.double], ids=str)
@pytest.mark.parametrize("activation", ["none", "relu", "gelu", "gelu_tanh", "silu"])
def test_other_dtypes_are_torchs(activation, dtype, monkeypatch):
    """Forward and backward, by torch's own products, to the bit; wrong calls raise as torch's."""
    functions = {"none": lambda x: x, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh")}
    apply = functions.get(activation) or getattr(F, activation)
    layer = xgemm_torch.nn.Linear(4, 3, activation=activation)
    stock = torch.nn.Linear(4, 3)
    stock.load_state_dict(layer.state_dict())
    layer, stock = layer.to(dtype), stock.to(dtype)
    x = problems.normal(2, 5, 4).to(dtype)
    monkeypatch.setattr(xgemm_torch.nn, "linear", None)  # nobody asks for ours
    got, want = layer(x), apply(stock(x))
    got.sum().backward()
    want.sum().backward()
    assert got.dtype == dtype
    assert torch.equal(got, want)
    assert torch.equal(layer.weight.grad, stock.weight.grad)
    for wrong in (x.float(), x[..., :3]):
        if wrong.dtype != dtype or wrong.shape != x.shape:
            with pytest.raises(RuntimeError) as expected:
                stock(wrong)
            with pytest.raises(RuntimeError, match=re.escape(str(expected.value))):
                layer(wrong)
    monkeypatch.undo()
    close(layer.float()(x.float()), apply(stock.float()(x.float())))


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.half], ids=str)
@pytest.mark.parametrize("kind", ["module", "converted"])
def test_autocast(kind, dtype, compiled):
    """As torch's module by default, its dtype and bits; in float32 where that is asked for."""
    torch._dynamo.reset()
    x = problems.normal(5, 4)
    stock = torch.nn.Linear(4, 3)

    def made(autocast):
        if kind == "module":
            layer = xgemm_torch.nn.Linear.from_linear(stock, autocast=autocast)
        else:
            layer = copy.deepcopy(stock)
            options = {} if autocast is None else {"autocast": autocast}
            xgemm_torch.convert(layer, **options)
        return torch.compile(layer, backend="eager", fullgraph=True) if compiled else layer

    for autocast in (None, "torch", "float32"):
        layer = made(autocast)
        plain = layer(x)
        with torch.autocast("cpu", dtype):
            got, want = layer(x), stock(x)
            with torch.autocast("cpu", enabled=False):
                assert torch.equal(layer(x), plain)
        if autocast == "float32":
            assert torch.equal(got, plain)
            assert got.dtype == torch.float32
        else:
            assert torch.equal(got, want)
            assert got.dtype == want.dtype == dtype


def test_autocast_says_what_it_may_be():
    for call in (
        lambda: xgemm_torch.nn.Linear(2, 2, autocast="half"),
        lambda: xgemm_torch.convert(torch.nn.Linear(2, 2), autocast="half"),
    ):
        with pytest.raises(ValueError, match=": autocast must be 'torch' or 'float32', got 'half'"):
            call()
    assert "autocast=float32" in repr(xgemm_torch.nn.Linear(2, 2, autocast="float32"))


def test_repr_says_what_differs():
    plain = xgemm_torch.nn.Linear(3, 4)
    assert repr(plain) == "Linear(in_features=3, out_features=4, bias=True)"
    name = problems.STAGES[0]
    special = xgemm_torch.nn.Linear(
        3, 4, bias=False, kernel=name, precision="ieee", activation="relu"
    )
    want = f"bias=False, kernel={name}, precision=ieee, activation=relu)"
    assert repr(special).endswith(want)


def test_options_reach_the_product():
    x = problems.normal(9, 33)
    for name in problems.STAGES:
        layer = xgemm_torch.nn.Linear(33, 5, kernel=name, activation="relu")
        with torch.no_grad():
            how = {"precision": "ieee"} if name in problems.STRICT else {"kernel": name}
            want = xgemm_torch.linear(x, layer.weight, layer.bias, "relu", **how)
            assert torch.equal(layer(x), want)
    with pytest.raises(ValueError, match="Linear: no kernel named 'nope'"):
        xgemm_torch.nn.Linear(3, 4, kernel="nope")
    with pytest.raises(ValueError, match="Linear: precision must be"):
        xgemm_torch.nn.Linear(3, 4, precision="tf32")
    with pytest.raises(ValueError, match="Linear: no activation named 'tanh'"):
        xgemm_torch.nn.Linear(3, 4, activation="tanh")


def _saved(layer):
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize(
    "again",
    [copy.deepcopy, copy.copy, lambda m: pickle.loads(pickle.dumps(m)), _saved],
    ids=["deepcopy", "copy", "pickle", "save"],
)
def test_copies_keep_everything(again):
    layer = xgemm_torch.nn.Linear(3, 4, precision="ieee", activation="gelu").eval()
    other = again(layer)
    assert type(other) is xgemm_torch.nn.Linear
    assert repr(other) == repr(layer)
    assert not other.training
    x = problems.normal(2, 3)
    assert torch.equal(other(x), layer(x))


def test_from_and_to_linear_share_parameters():
    theirs = torch.nn.Linear(3, 4, bias=False).eval()
    ours = xgemm_torch.nn.Linear.from_linear(theirs, precision="ieee")
    assert ours.weight is theirs.weight
    assert ours.bias is None
    assert not ours.training
    assert ours.precision == "ieee"
    back = ours.to_linear()
    assert type(back) is torch.nn.Linear
    assert back.weight is theirs.weight
    assert not back.training
    with pytest.raises(TypeError, match="needs a torch.nn.Linear, got ReLU"):
        xgemm_torch.nn.Linear.from_linear(torch.nn.ReLU())
    with pytest.raises(ValueError, match="has no activation 'relu'"):
        xgemm_torch.nn.Linear(3, 4, activation="relu").to_linear()
    weighted = torch.nn.utils.parametrizations.weight_norm(xgemm_torch.nn.Linear(3, 4))
    with pytest.raises(TypeError, match="must be parameters of the module"):
        weighted.to_linear()


class Named(xgemm_torch.nn.Linear):
    pass


def test_from_linear_of_a_subclass_of_ours():
    assert type(Named.from_linear(torch.nn.Linear(3, 3))) is Named
    assert type(Named.from_linear(Named(3, 3, precision="ieee"))) is Named
    with pytest.raises(TypeError, match="a subclass of torch.nn.Linear, Named"):
        xgemm_torch.nn.Linear.from_linear(Named(3, 3))


def test_from_linear_of_a_pruned_module():
    pruned = prune.random_unstructured(torch.nn.Linear(3, 3), "weight", amount=0.5)
    with pytest.raises(TypeError, match="from_linear: weight and bias must be parameters"):
        xgemm_torch.nn.Linear.from_linear(pruned)


def test_from_linear_keeps_the_options_of_ours():
    layer = xgemm_torch.nn.Linear(3, 4, precision="ieee", activation="relu")
    new = xgemm_torch.nn.Linear.from_linear(layer)
    assert (new.kernel, new.precision, new.activation) == ("auto", "ieee", "relu")
    new = xgemm_torch.nn.Linear.from_linear(layer, precision="fp32", activation="none")
    assert (new.precision, new.activation) == ("fp32", "none")


class Doubled(torch.nn.Linear):
    def forward(self, input):
        return 2 * super().forward(input)


def _patched() -> torch.nn.Linear:
    layer = torch.nn.Linear(3, 3)
    layer.forward = lambda x: x
    return layer


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Doubled(3, 3), "a subclass of torch.nn.Linear, Doubled"),
        (lambda: torch.nn.LazyLinear(3), "has no shape yet"),
        (
            lambda: torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(3, 3)),
            "parametrized",
        ),
        (_patched, "its forward was replaced"),
    ],
    ids=["subclass", "lazy", "parametrized", "patched"],
)
def test_from_linear_refuses_what_means_something_else(make, text):
    with pytest.raises(TypeError, match=f"needs a torch.nn.Linear as it is; this one: {text}"):
        xgemm_torch.nn.Linear.from_linear(make())


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda f, x: f.mm(x, x), ValueError, "mm: inner sizes differ: input is .2, 3., mat2 is"),
        (lambda f, x: f.mm(x, x.T.double()), TypeError, "mm: mat2 must be float32, got float64"),
        (lambda f, x: f.addmm(x, x, x.T), ValueError, "addmm: input does not broadcast"),
        (lambda f, x: f.addmm(x.half(), x, x.T), TypeError, "addmm: input must be float32"),
        (lambda f, x: f.addmm(x, x.half(), x.T), TypeError, "addmm: mat1 must be float32"),
        (lambda f, x: f.bmm(x[None].half(), x.T[None]), TypeError, "bmm: input must be float32"),
        (lambda f, x: f.matmul(x, x.T.to("meta")), ValueError, "input is on cpu, other is on meta"),
        (lambda f, x: f.matmul(x[0], x.T.half()), TypeError, "matmul: other must be float32"),
        (lambda f, x: f.linear(x.half(), x), TypeError, "linear: x must be float32, got float16"),
        (lambda f, x: f.linear(x[None], x.half()), TypeError, "linear: weight must be float32"),
        (lambda f, x: f.linear(x, x, x[0].half()[:2]), TypeError, "linear: bias must be float32"),
        (lambda f, x: f.linear(x, x, x[0]), ValueError, "linear: bias must be of shape .2,., got"),
        (lambda f, x: f.linear(x, x[:, 1:]), ValueError, "linear: inner sizes differ: x is"),
        (lambda f, x: f.linear(x, x, kernel="nope"), ValueError, "linear: no kernel named 'nope'"),
        (lambda f, x: f.mm(x, x.T, out=x), ValueError, r"mm: out must have shape .2, 2., got"),
        (lambda f, x: f.mm(x, x.T, out=x.half()), TypeError, "mm: out must be float32"),
        (
            lambda f, x: f.addmm(x[:, :2], x, x.T.clone().requires_grad_(), out=torch.ones(2, 2)),
            RuntimeError, "addmm: .* but mat2 requires grad",
        ),
        (
            lambda f, x: f.matmul(x.requires_grad_(), x[0], out=torch.ones(2)),
            RuntimeError, "matmul: .* but input requires grad",
        ),
    ],
)  # fmt: skip
def test_errors_name_what_was_called(call, kind, text):
    with pytest.raises(kind, match=text):
        call(xgemm_torch, torch.ones(2, 3))


def test_swapped_class_works_without_attributes():
    layer = torch.nn.Linear(3, 4)
    x = problems.normal(2, 3)
    want = layer(x)
    layer.__class__ = xgemm_torch.nn.Linear
    close(layer(x), want)
    assert repr(layer) == "Linear(in_features=3, out_features=4, bias=True)"


def test_training_follows_torchs():
    torch.manual_seed(0)
    theirs = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    ours = copy.deepcopy(theirs)
    xgemm_torch.convert(ours)
    x, y = problems.normal(16, 6), problems.normal(16, 2)
    losses = []
    for model in (theirs, ours):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        rows = []
        for _ in range(20):
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            optimizer.step()
            rows.append(loss.item())
        losses.append(torch.tensor(rows))
    torch.testing.assert_close(*losses, rtol=1e-3, atol=1e-5)
    assert losses[0][-1] < losses[0][0]
