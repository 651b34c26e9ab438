"""Convolutions that are products: inside patch(), and as layers that convert made.

Values are compared with float64, and what else a result is, its strides, dtype and errors, with
torch's own.
"""

from __future__ import annotations

import copy
import functools
import io
import math
import pickle
import re
from typing import Any

import problems
import pytest
import test_patch
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from test_patch import counted, everything, on_every_device, reasons
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import xgemm_torch
from xgemm_torch import convnd, convolutions, dispatch

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*(torch.jit|requires gradient and is not a double|padding='same')"
)
CONVOLVE = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
LAYERS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
convert = functools.partial(xgemm_torch.convert, types=LAYERS.values())
FORMATS = {2: torch.channels_last, 3: torch.channels_last_3d}


@pytest.fixture(autouse=True)
def in_fp32():
    """torch's convolutions on a GPU are TF32, and left to it."""
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


def spread(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def strides(t: Tensor) -> list[int]:
    """Those that mean something."""
    return [stride for stride, size in zip(t.stride(), t.shape, strict=True) if size > 1]


def same(got: Any, want: Any, exact: Any) -> None:
    """Values near those of float64, and all else as torch has it."""
    got, want, exact = tree_leaves(got), tree_leaves(want), tree_leaves(exact)
    assert len(got) == len(want) == len(exact)
    for x, y, z in zip(got, want, exact, strict=True):
        assert x.shape == y.shape
        assert x.dtype == y.dtype
        assert strides(x) == strides(y)
        torch.testing.assert_close(x.double(), z, rtol=1e-4, atol=1e-4)


# ------------------------------------------------------------------------------ any of them


@st.composite
def cases(draw: Any) -> dict[str, Any]:
    rank = draw(st.integers(1, 3))
    pointwise = draw(st.booleans())
    kernel = (
        [1] * rank if pointwise else draw(st.lists(st.integers(1, 3), min_size=rank, max_size=rank))
    )
    sizes = [k * draw(st.integers(1, 3)) + draw(st.integers(0, k - 1)) for k in kernel]
    lies = st.sampled_from(["contiguous", "last", "turned", "part"])
    return {
        "kernel": kernel,
        "sizes": sizes,
        "batch": draw(st.integers(1, 3)),
        "channels": draw(st.integers(1, 5)),
        "out": draw(st.integers(1, 5)),
        "bias": draw(st.booleans()),
        "lies": [draw(lies) for _ in range(3)],
        "wanted": draw(st.sampled_from([(1, 1, 1), (1, 0, 0), (0, 1, 0), (0, 1, 1), (1, 0, 1)])),
    }  # fmt: skip


def laid(t: Tensor, how: str) -> Tensor:
    """The same numbers, in memory as it is said."""
    if how == "last":
        return t.movedim(1, -1).contiguous().movedim(-1, 1)
    if how == "turned":
        return t.movedim(0, -1).contiguous().movedim(-1, 0)
    if how == "part":
        return torch.cat([t, t], -1)[..., : t.shape[-1]]
    return t.contiguous()


def run(case: dict[str, Any], dtype: torch.dtype, call: Any, device: str = "cpu") -> list[Tensor]:
    """The result and the gradients that are wanted."""
    rank, out = len(case["kernel"]), case["out"]
    x = laid(spread(case["batch"], case["channels"], *case["sizes"]), case["lies"][0])
    weight = laid(spread(out, case["channels"], *case["kernel"], seed=1), case["lies"][1])
    tensors = [x, weight] + ([spread(out, seed=2)] if case["bias"] else [])
    tensors = [t.to(device, dtype) for t in tensors]
    leaves = [t.requires_grad_() for t, w in zip(tensors, case["wanted"], strict=False) if w]
    y = call(rank, case["kernel"], *tensors)
    grad = laid(spread(*y.shape, seed=3), case["lies"][2]).to(device, dtype)
    return [y.detach(), *torch.autograd.grad(y, leaves, grad)]


def by_torch(rank: int, kernel: list[int], x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    return CONVOLVE[rank](x, w, b, kernel)


def by_layer(rank: int, kernel: list[int], x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    layer = LAYERS[rank](x.shape[1], w.shape[0], kernel, kernel, bias=b is not None, device="meta")
    assert convert(layer)[0].swapped
    given = {"weight": w} if b is None else {"weight": w, "bias": b}
    return torch.func.functional_call(layer, given, (x,))


@on_every_device
def test_any_convolution(device):
    @settings(max_examples=80, deadline=None, derandomize=True, database=None)
    @given(cases())
    def check(case):
        want = run(case, torch.float32, by_torch, device)
        exact = run(case, torch.float64, by_torch, device)
        with everything() as p:
            got = run(case, torch.float32, by_torch, device)
        same(got, want, exact)
        assert p.left == 0, str(p)
        assert counted(p) == {"convolution": 1, "convolution_backward": 1}
        flops = convolutions.flops(
            torch.Size([case["batch"], case["channels"], *case["sizes"]]),
            torch.Size([case["out"], case["channels"], *case["kernel"]]),
        )
        assert sum(r.flops for r in p) == flops * (1 + sum(case["wanted"][:2]))
        got = run(case, torch.float32, by_layer, device)
        if len(case["kernel"]) < 3:  # torch's on a CPU has no channels last for some of three
            assert strides(got[0]) == strides(want[0])
        for x, z in zip(got, exact, strict=True):
            torch.testing.assert_close(x.double(), z, rtol=1e-4, atol=1e-4)

    check()


@on_every_device
@pytest.mark.parametrize(
    "name", [f"nn.functional.conv{'_transpose' * t}{n}d" for t in (0, 1) for n in (1, 2, 3)]
)
def test_opinfo_samples(name, device):
    given = test_patch.samples(name, torch.float32, device, True)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        want = test_patch.results(name, given, True)
        with everything() as p:
            got = test_patch.results(name, given, True)
    test_patch.close(got, want)
    for x, y in zip(tree_leaves(got), tree_leaves(want), strict=True):
        assert strides(x) == strides(y)
    assert p.taken + p.left >= len(given)


# ------------------------------------------------------------------------------ inside patch()


X, W, B = spread(2, 3, 4, 5), spread(6, 3, 1, 1, seed=1), spread(6, seed=2)
W2 = spread(6, 3, 2, 2, seed=1)


def test_precision_and_kernels_reach_the_product():
    """Bits are those of sgemm by the same options, of which stages of limbs have others."""
    x, w = problems.wide(2 * 300, 4).reshape(2, 300, 4), problems.wide(7, 300)
    stages = problems.STRICT[0], *problems.EMULATED[:1]
    found = []
    for options in ({"precision": "ieee"}, *({"kernel": stage} for stage in stages)):
        found.append(xgemm_torch.sgemm(w, x, **options))
        with everything(**options) as p:
            assert torch.equal(F.conv1d(x, w[..., None]), found[-1])
        assert p.taken == 1
        layer = nn.Conv1d(300, 7, 1, bias=False)
        layer.weight.data = w[..., None]
        convert(layer, **options)
        assert torch.equal(layer(x), found[-1])
    assert torch.equal(*found[:2])
    assert not any(torch.equal(found[0], other) for other in found[2:])


NO_PRODUCT = {
    "padding": lambda x, w: F.conv2d(x, w, padding=1),
    "stride": lambda x, w: F.conv2d(x, w, stride=2),
    "overlap": lambda x, w: F.conv2d(x, W2),
    "dilation": lambda x, w: F.conv2d(x, W2, stride=2, dilation=2),
    "groups": lambda x, w: F.conv2d(x, w[:, :1], groups=3),
    "transposed": lambda x, w: F.conv_transpose2d(x, w.transpose(0, 1)),
    "output": lambda x, w: F.conv_transpose2d(x, W2.transpose(0, 1), stride=2, output_padding=1),
}  # fmt: skip


OF_OTHERS = ("overlap", "dilation", "output")  # weights than w


@pytest.mark.parametrize("name", NO_PRODUCT)
def test_what_is_no_product_is_torchs(name):
    want = NO_PRODUCT[name](X, W)
    with everything() as p:
        got = NO_PRODUCT[name](X.clone().requires_grad_(), W.clone().requires_grad_())
        got.sum().backward()
    assert torch.equal(got, want)
    assert p.taken == 0
    assert reasons(p) == {"one operator, no product to take"}
    # A gradient, or two, of as many FLOP each, whatever the groups.
    flops, gradients = {r.product: r.flops for r in p}, 1 if name in OF_OTHERS else 2
    assert flops["convolution_backward"] == gradients * flops["convolution"] > 0


ERRORS = {
    "channels": lambda: F.conv2d(X, spread(6, 4, 1, 1)),
    "rank": lambda: F.conv2d(spread(3, 4), W),
    "too small": lambda: F.conv2d(spread(1, 3, 1, 4), W2, stride=2),
    "bias": lambda: F.conv2d(X, W, spread(5)),
    "bias of one": lambda: F.conv2d(X, W, spread(1)),
    "dtype": lambda: F.conv2d(X, W.double()),
    "dtype of bias": lambda: F.conv2d(X, W, B.double()),
    "dilation": lambda: F.conv2d(X, W, dilation=0),
    "grad": lambda: torch.ops.aten.convolution_backward(
        spread(2, 6, 4, 4), X, W, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True] * 3
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_torchs(name):
    with pytest.raises(Exception) as want:  # noqa: B017, PT011
        ERRORS[name]()
    with everything() as p, pytest.raises(want.type, match=re.escape(str(want.value))):
        ERRORS[name]()
    assert p.taken == 0


def test_small_empty_and_other_dtypes():
    flops = convolutions.flops(X.shape, W.shape)
    assert flops == 2 * 2 * 20 * 3 * 6
    for least, taken in ((flops, 2), (flops + 1, 0)):
        with xgemm_torch.patch(min_flops=least) as p:
            F.conv2d(X, W.clone().requires_grad_()).sum().backward()
        assert (p.taken, p.left) == (taken, 2 - taken)
        assert sum(r.flops for r in p) == 2 * flops
    assert reasons(p) == {"below 1.44 kFLOP"}
    with everything() as p:
        y = F.conv2d(X[:0], W.clone().requires_grad_())
        y.sum().backward()
        assert y.shape == (0, 6, 4, 5)
    assert reasons(p) == {"empty"}
    for dtype in (torch.float64, torch.bfloat16):
        with everything() as p:
            assert torch.equal(
                F.conv2d(X.to(dtype), W.to(dtype)), F.conv2d(X.to(dtype), W.to(dtype))
            )
        assert reasons(p) == {str(dtype).removeprefix("torch.")}
    with everything() as p:
        y = F.conv2d(X, W, B.clone().requires_grad_())
        y.sum().backward()
    assert reasons(p) == {"a sum alone"}


@pytest.mark.parametrize("mode", test_patch.MODES)
@pytest.mark.parametrize("padding", [0, "valid", "same"])
def test_inference_mode_and_padding_by_name(mode, padding):
    with test_patch.MODES[mode](), everything() as p:
        got = F.conv2d(X, W, B, padding=padding)
        one = F.conv2d(X[0], W, B, padding=padding)  # no batch
    torch.testing.assert_close(got, F.conv2d(X, W, B), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(one, got[0], rtol=1e-5, atol=1e-5)
    assert got.is_inference() == (mode == "inference")
    assert p.taken == 2


def test_traced_modules():
    """A script calls another operator."""
    layer = nn.Conv2d(3, 6, 1)
    traced = torch.jit.trace(layer, X)
    with everything() as p:
        traced(X).sum().backward()
    assert counted(p) == {"_convolution": 1, "convolution_backward": 1}


# ------------------------------------------------------------------------------ both ways


def patched(layer: nn.Module) -> Any:
    def call(x: Tensor) -> Tensor:
        with everything() as p:
            y = layer(x)
        assert p.taken
        return y

    return call


def converted(layer: nn.Module) -> nn.Module:
    assert convert(layer)[0].swapped
    return layer


WAYS = pytest.mark.parametrize("way", [patched, converted])
SHAPES = {
    "1x1": (lambda: nn.Conv2d(3, 4, 1), (2, 3, 3, 2)),
    "patches": (lambda: nn.Conv2d(3, 4, 2, 2), (2, 3, 5, 4)),
    "1d": (lambda: nn.Conv1d(3, 4, 1), (2, 3, 5)),
    "3d": (lambda: nn.Conv3d(3, 4, (1, 2, 1), (1, 2, 1)), (1, 3, 2, 4, 2)),
}
of_every_shape = pytest.mark.parametrize("shape", SHAPES)


def layer_and_input(shape: str, last: bool = False) -> tuple[nn.Module, Tensor]:
    """``last``: with a weight that is channels last, where it has such a format."""
    torch.manual_seed(0)
    make, size = SHAPES[shape]
    layer = make()
    if last:
        layer = layer.to(memory_format=FORMATS.get(len(size) - 2, torch.contiguous_format))
    return layer, spread(*size)


@WAYS
@of_every_shape
def test_second_derivatives(way, shape):
    """Of float32, beside float64's."""
    layer, x = layer_and_input(shape)

    def second(call, x, parameters):
        x = x.clone().requires_grad_()
        with everything():
            first = torch.autograd.grad(call(x).sin().sum(), (x, *parameters), create_graph=True)
            total = sum(t.square().sum() for t in first)
            return torch.autograd.grad(total, (x, *parameters))

    exact = copy.deepcopy(layer).double()
    want = second(exact, x.double(), list(exact.parameters()))
    got = second(way(layer), x, list(layer.parameters()))
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g.double(), w, rtol=1e-3, atol=1e-3)


@WAYS
@of_every_shape
@pytest.mark.parametrize("last", [False, True])
def test_gradcheck(way, shape, last):
    layer, x = layer_and_input(shape, last)
    call = way(layer)
    torch.autograd.gradcheck(
        lambda x: call(x).sum((0, 1)), x.requires_grad_(), eps=1e-2, atol=1e-2, rtol=1e-2
    )


@WAYS
@of_every_shape
def test_transforms(way, shape):
    layer, x = layer_and_input(shape)
    xs, weights = torch.stack([x, 2 * x, -x]), torch.stack([layer.weight.detach()] * 2)
    tangent = spread(*x.shape, seed=5)

    def results(call, layer):
        parameters = {"weight": layer.weight.detach(), "bias": layer.bias.detach()}

        def functional(weight, x):
            return torch.func.functional_call(layer, {**parameters, "weight": weight}, (x,))

        plain = functional if call is layer else None
        found = [torch.func.vmap(call)(xs), torch.func.jvp(call, (x,), (tangent,))[1]]
        found.append(torch.func.vmap(torch.func.grad(lambda x: call(x).sin().sum()))(xs))
        if plain is not None:
            found.append(torch.func.vmap(plain, (0, None))(weights, x))
            found.append(torch.func.vmap(plain, (None, 1), 1)(weights[0], xs.movedim(0, 1)))
        return found

    stock = copy.deepcopy(layer)
    call = way(layer)
    want = results(stock, stock)
    got = results(call, layer)
    for g, w in zip(got, want, strict=False):
        torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-4)


@WAYS
@of_every_shape
@pytest.mark.parametrize("last", [False, True])
def test_compiled(way, shape, last):
    layer, x = layer_and_input(shape, last)
    stock = copy.deepcopy(layer)
    if way is converted:
        layer = converted(layer)
    torch._dynamo.reset()
    for dynamic in (False, True):
        compiled = torch.compile(layer, backend="aot_eager", fullgraph=True, dynamic=dynamic)
        for batch in (x, torch.cat([x, x, x])):
            with everything() as p:
                got = compiled(batch)
                grads = torch.autograd.grad(got.sin().sum(), list(layer.parameters()))
            want = stock(batch)
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
            if shape != "3d":
                assert strides(got) == strides(want)
            theirs = torch.autograd.grad(want.sin().sum(), list(stock.parameters()))
            torch.testing.assert_close(grads, theirs, rtol=1e-4, atol=1e-4)
            assert p.taken > 1
            assert p.left == 0


@WAYS
def test_inductor(way):
    torch._dynamo.reset()
    model = nn.Sequential(nn.Conv2d(3, 7, 1), nn.ReLU(), nn.Conv2d(7, 5, 2, 2))
    want = model(X)
    theirs = torch.autograd.grad(want.sin().sum(), list(model.parameters()))
    if way is converted:
        convert(model)
    compiled = torch.compile(model, fullgraph=True)
    with everything() as p:
        got = compiled(X)
        grads = torch.autograd.grad(got.sin().sum(), list(model.parameters()))
    torch.testing.assert_close((got, *grads), (want, *theirs), rtol=1e-4, atol=1e-5)
    assert p.left == 0
    if way is patched:
        assert counted(p) == {"convolution": 2, "convolution_backward": 2}


@pytest.mark.parametrize("last", [False, True])
def test_without_torchs_own_word_on_layouts(last, monkeypatch):
    """It is a name that is not public."""
    monkeypatch.delattr(torch._C, "_select_conv_backend")
    x = X.to(memory_format=torch.channels_last) if last else X
    with everything() as p:
        got = F.conv2d(x, W, B)
    assert p.taken == 1
    assert strides(got) == strides(F.conv2d(x, W, B))


# ------------------------------------------------------------------------------ layers


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 2, 2), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 1, bias=False), nn.ReLU(),
        nn.Conv2d(4, 4, 3), nn.Flatten(2), nn.Conv1d(4, 2, 1),
    )  # fmt: skip


def test_there_and_back():
    model, x = network(), spread(2, 3, 9, 8)
    want, keys = model(x), list(model.state_dict())
    before = [dict(vars(m)) for m in model]
    classes = [type(m) for m in model]
    report = convert(model, precision="ieee")
    assert [(row.fqn, row.reason) for row in report.swapped] == [
        ("0", "2x2 convolution: kernel=auto, precision=ieee"),
        ("2", "1x1 convolution: kernel=auto, precision=ieee"),
        ("6", "convolution of kernel 1: kernel=auto, precision=ieee"),
    ]
    assert len(report) == 3
    assert isinstance(model[0], nn.Conv2d)
    assert list(model.state_dict()) == keys
    assert repr(model[2]) == (
        "Conv2d(8, 4, kernel_size=(1, 1), stride=(1, 1), bias=False, precision=ieee)"
    )
    torch.testing.assert_close(model(x), want)
    network().load_state_dict(model.state_dict())
    assert [row.reason for row in convert(model)] == ["is one already"] * 3
    assert [row.reason for row in xgemm_torch.revert(model)] == [
        *2 * ["torch.nn.modules.conv.Conv2d again"], "torch.nn.modules.conv.Conv1d again",
    ]  # fmt: skip
    assert [type(m) for m in model] == classes
    assert [dict(vars(m)) for m in model] == before
    assert torch.equal(model.eval()(x), network().eval()(x)) is False  # batch norm has seen x


def _saved(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("again", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), _saved])
def test_copies(again):
    model, x = network().eval(), spread(2, 3, 9, 8)
    convert(model)
    other = again(model)
    assert type(other[0]) is convnd.Conv2d
    assert torch.equal(other(x), model(x))
    xgemm_torch.revert(other)
    assert type(other[0]) is nn.Conv2d


class Own(nn.Conv2d):
    pass


LEFT = {
    "padding": (lambda: nn.Conv2d(3, 4, 1, padding=1), None),
    "stride": (lambda: nn.Conv2d(3, 4, 1, 2), None),
    "groups": (lambda: nn.Conv2d(3, 3, 1, groups=3), None),
    "overlap": (lambda: nn.Conv1d(3, 4, 3), None),
    "dilation": (lambda: nn.Conv2d(3, 4, 2, 2, dilation=2), None),
    "same": (lambda: nn.Conv2d(3, 4, 2, padding="same"), None),
    "transposed": (lambda: nn.ConvTranspose2d(3, 4, 1), None),
    "subclass": (lambda: Own(3, 4, 1), "a 1x1 convolution of a class of its own, which may mean"),
    "lazy": (lambda: nn.LazyConv2d(4, 1), "has no shape yet; convert after the first forward"),
    "half": (lambda: nn.Conv2d(3, 4, 1).half(), "its weight is float16, not float32"),
    "parametrized": (
        lambda: nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 4, 1)),
        "a 1x1 convolution, parametrized; its class computes the parameters",
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left(name):
    make, reason = LEFT[name]
    report = convert(nn.Sequential(make()))
    assert report.swapped == []
    assert [row.reason[: len(reason or "")] for row in report] == ([reason] if reason else [])


def test_they_are_left_unless_types_says_so():
    report = xgemm_torch.convert(nn.Sequential(nn.Conv2d(3, 8, 2, 2), nn.Linear(3, 4)))
    assert [(r.swapped, r.reason) for r in report] == [
        (False, "2x2 convolution, in TF32 by torch's default; types=torch.nn.Conv2d takes it"),
        (True, "kernel=auto, precision=fp32"),
    ]
    assert "patch()" in str(report)
    assert not xgemm_torch.convert(nn.Conv2d(3, 8, 1), types=nn.Conv1d).swapped
    assert xgemm_torch.convert(nn.Conv2d(3, 8, 1), types=nn.Conv2d).swapped


@pytest.mark.parametrize("least", [None, 0, 500, 300])
def test_a_least_number_that_is_given_holds_for_convolutions(monkeypatch, least):
    """Forward and backward, and be it the default of other products."""
    monkeypatch.setattr(convolutions, "LEAST_FLOPS", 1000)
    monkeypatch.setattr(dispatch, "MIN_FLOPS", 300)
    x, w = spread(1, 4, 5, 5), spread(2, 4, 1, 1)  # 400 FLOP
    for many in (1, 5):
        with xgemm_torch.patch(min_flops=least) as p:
            y = F.conv2d(x.repeat(many, 1, 1, 1), w.clone().requires_grad_())
            y.sum().backward()
        taken = 400 * many >= (1000 if least is None else least)
        assert (p.taken, p.left) == ((2, 0) if taken else (0, 2))
    assert p.min_flops == least
    with xgemm_torch.patch(min_flops=least) as p:
        for k in (3, 4):
            _ = spread(5, k) @ spread(k, 8)  # 240 and 320 FLOP
    assert p.taken == {None: 1, 0: 2, 500: 0, 300: 1}[least]


def test_patch_leaves_them_to_torch_where_those_are_tf32(monkeypatch):
    assert convolutions.in_tf32("cpu") == ""
    backends = torch.backends.cudnn
    with monkeypatch.context() as m:
        for value, words in {"tf32": "torch's are TF32", "ieee": "", "none": ""}.items():
            m.setattr(convolutions, "_torchs_precision", lambda value=value: value)
            assert convolutions.in_tf32("cuda").startswith(words)
            assert bool(convolutions.in_tf32("cuda")) == bool(words)
    with backends.flags(enabled=True, allow_tf32=False):
        assert convolutions._torchs_precision() != "tf32"
    with backends.flags(enabled=True, allow_tf32=True):
        assert convolutions._torchs_precision() == "tf32"


def test_options_and_features():
    report = convert(nn.Sequential(nn.Conv2d(3, 8, 2, 2), nn.Conv2d(3, 8, 1)), min_features=4)
    assert [(r.swapped, r.reason) for r in report] == [
        (True, "2x2 convolution: kernel=auto, precision=fp32"),
        (False, "fewer than 4 features"),
    ]
    for layer in (
        nn.Conv2d(3, 4, 1, padding="same"),
        nn.Conv2d(3, 4, 2, 2, padding="valid"),
        nn.Conv2d(3, 4, 1, dilation=3),
        nn.Conv2d(3, 4, 1, padding_mode="reflect"),
    ):
        want = layer(X)
        torch.testing.assert_close(converted(layer)(X), want)


def test_other_inputs():
    """Without a batch, of no samples, and what is wrong, with torch's words."""
    stock = nn.Conv2d(3, 4, 1)
    ours = converted(copy.deepcopy(stock))
    for x in (X[0], X[:0], X.to(memory_format=torch.channels_last), X[..., ::2], X.transpose(2, 3)):
        want, got = stock(x), ours(x)
        torch.testing.assert_close(got, want)
        assert got.stride() == want.stride()
    for x in (X[0, 0], X[:, :2], X[:, :, :0], X.double(), X.long()):
        with pytest.raises(Exception) as error:  # noqa: B017, PT011
            stock(x)
        with pytest.raises(error.type, match=re.escape(str(error.value))):
            ours(x)
    with torch.device("meta"):
        assert ours.to("meta")(torch.empty(2, 3, 4, 4)).shape == (2, 4, 4, 4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.double])
def test_other_dtypes_and_autocast_are_torchs(dtype):
    stock = nn.Conv2d(3, 4, 1)
    for autocast in ("torch", "float32"):
        layer = copy.deepcopy(stock)
        convert(layer, autocast=autocast)
        plain = layer(X)
        if dtype is torch.bfloat16:
            with torch.autocast("cpu", dtype):
                assert torch.equal(layer(X), stock(X) if autocast == "torch" else plain)
        other = copy.deepcopy(stock).to(dtype)
        assert torch.equal(layer.to(dtype)(X.to(dtype)), other(X.to(dtype)))


def test_unbacked_rows():
    """Of a batch whose size data decide."""
    layer = converted(nn.Conv2d(3, 4, 1))

    def f(x, keep):
        return layer(x[keep]).sin().sum()

    torch._dynamo.reset()
    keep = torch.tensor([True, False])
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(f, backend="aot_eager", fullgraph=True)
        got = torch.autograd.grad(compiled(X, keep), list(layer.parameters()))
    want = torch.autograd.grad(f(X, keep), list(layer.parameters()))
    torch.testing.assert_close(got, want)


def test_traced_by_fx():
    model = converted(nn.Sequential(nn.Conv2d(3, 4, 1)))
    graph = torch.fx.symbolic_trace(model)
    assert torch.equal(graph(X), model(X))
    assert math.prod(graph(X[0]).shape) == 80
