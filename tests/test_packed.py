"""prepack: products with a weight whose limbs are kept have the bits of those with the weight."""

from __future__ import annotations

import copy
import io
import math
import pickle
import weakref

import problems
import pytest
import torch
from problems import same_bits
from test_stages import on_every_device
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import xgemm_torch
from xgemm_torch import simt

F = torch.nn.functional
PACKS = [stage.name for stage in xgemm_torch.stages() if stage.packs]
ROWS = [
    (stage.name, row)
    for stage in xgemm_torch.stages()
    if stage.packs
    for row in range(len(stage.tiles))
]

K = 130  # deep enough that rows of normal numbers are multiplied by their limbs

if not PACKS:  # a build of some stages alone
    pytest.skip("no stage of this build packs", allow_module_level=True)

on_every_packing_stage = pytest.mark.parametrize("stage", PACKS)
on_every_row = pytest.mark.parametrize("stage, row", ROWS)


def kept(weight: Tensor, stage: str = PACKS[0], trans_b: bool = True):
    packed = xgemm_torch.prepack(weight, trans_b=trans_b, kernel=stage)
    assert packed.limbs is not None
    return packed


def hard(*shape: int) -> Tensor:
    """Rows of every kind: sizes far apart, subnormal, zero, with what is not finite."""
    t = problems.normal(*shape)
    t[0::7] = problems.wide(*t[0::7].shape)
    t[1::7] *= 2.0**-130
    t[2::7] *= 2.0**100
    t[3::7] = 0.0
    t[4, shape[1] // 2], t[5, 0], t[6, -1] = math.inf, math.nan, -math.inf
    return t


# ------------------------------------------------------------------------------ bits


@on_every_device
@on_every_row
@pytest.mark.parametrize("trans_b", [False, True])
@pytest.mark.parametrize("make", [problems.normal, problems.wide, hard])
def test_the_bits_of_the_weight_itself(stage, row, trans_b, make, device):
    """Also of limbs that another stage has made: all make the same."""
    for k in (1, 32, 65, 130):
        a, b = problems.normal(37, k, device=device), make(50, k).to(device)
        b = b if trans_b else b.T.contiguous()
        with simt.configure(row=row):
            want = xgemm_torch.sgemm(a, b, trans_b=trans_b, kernel=stage)
            for maker in PACKS:
                packed = kept(b, maker, trans_b)
                got = xgemm_torch.sgemm(a, packed, trans_b=trans_b, kernel=stage)
                assert same_bits(got, want), (k, maker)


@on_every_device
@pytest.mark.parametrize("view", problems.VIEWS.values(), ids=problems.VIEWS)
@pytest.mark.parametrize("size", [(9, 1), (9, 16), (33, 600), (70, 1100), (5, 4200)], ids=str)
def test_limbs_are_of_values_and_made_alike(view, size, device):
    """Of every depth of the split, from every layout: the weight's values; by every stage alike.

    Where rows do not lie along k their scales may be smaller by two binades; how a row's norm is
    rounded up depends on who adds it up.
    """
    weight = problems.wide(*size)
    for trans_b, w in ((True, weight), (False, weight.T.contiguous())):
        moved = view(w.to(device))
        limbs = [kept(moved, stage, trans_b).limbs.cpu() for stage in PACKS]
        for one in limbs:
            assert same_values(one, weight)
            assert torch.equal(*(x[: halves_of(weight)] for x in (one, limbs[0])))


def halves_of(weight: Tensor) -> int:
    """Bytes of a weight's fp16 limbs."""
    return weight.shape[0] * -(-weight.shape[1] // 32) * 128


def same_values(limbs: Tensor, weight: Tensor) -> bool:
    """Whether fp16 limbs and scales (csrc/xgemm/emulation) are of this weight."""
    rows, k = weight.shape
    size = halves_of(weight)
    halves = limbs[:size].view(torch.float16).reshape(rows, -1, 2, 32).double()
    if k <= 16:  # half of the only slice has the second limbs once more, scaled down
        again = halves[:, 0, :, 16:].clone()
        halves[:, 0, :, 16:] = 0
        if (again[:, 0] - halves[:, 0, 1, :16] / 64).abs().max() > 2.0**-25 or again[:, 1].any():
            return False
    t = (halves[:, :, 0] + halves[:, :, 1] / 2048).reshape(rows, -1)
    at = -(-size // 1024) * 1024
    scales = limbs[at : at + 16 * rows].reshape(rows, 16)
    exponent = scales[:, :4].contiguous().view(torch.int32).double()
    norm = scales[:, 8:12].contiguous().view(torch.float32).double()[:, 0]
    wanted = weight.double() * 2.0**exponent
    largest = wanted.abs().amax(1)
    error = (t[:, :k] - wanted).abs()
    right = error <= torch.maximum(wanted.abs() * 2.0**-23, torch.tensor(2.0**-36).double())
    true_norm = wanted.square().sum(1).sqrt()
    return bool(
        right.all()
        and (t[:, k:] == 0).all()
        and ((largest >= 2.0**12) & (largest < 2.0**15)).all()
        and ((norm >= true_norm) & (norm <= 1.05 * true_norm)).all()
    )


@pytest.mark.gpu
@on_every_packing_stage
@pytest.mark.parametrize("k", [1100, 3000, 4200])
@pytest.mark.parametrize("m", [64, 9000])
@pytest.mark.parametrize("trans_a", [False, True])
def test_the_bits_whatever_m_is_and_however_a_lies(stage, k, m, trans_a):
    """A deep B that does not lie along k: its scales are guessed, and of the same elements."""
    a = problems.normal(k, m, device="cuda").T if trans_a else problems.normal(m, k, device="cuda")
    b = problems.normal(k, 96, device="cuda") ** 5  # the largest are few
    packed = kept(b, stage, trans_b=False)
    got = xgemm_torch.sgemm(a, packed, kernel=stage)
    assert same_bits(got, xgemm_torch.sgemm(a, b, kernel=stage))


@on_every_device
@on_every_packing_stage
def test_the_parts_are_what_is_multiplied(stage, device):
    """And not b, which is looked at only where limbs do not suffice."""
    x, w = problems.normal(40, K, device=device), problems.normal(30, K, device=device)
    packed, other = kept(w, stage), kept(2 * w, stage)
    packed.limbs.copy_(other.limbs)
    want = 2 * xgemm_torch.linear(x, w, kernel=stage)
    assert same_bits(xgemm_torch.linear(x, packed, kernel=stage), want)
    if device == "cpu":  # where auto is ATen
        assert not same_bits(xgemm_torch.linear(x, packed), want)


@on_every_packing_stage
@pytest.mark.parametrize("batch", [1, 3])
def test_batches_share_the_weight(stage, batch):
    a, w = problems.normal(batch, 20, 70), problems.normal(70, K)
    got = xgemm_torch.sgemm(a, kept(w, stage, False), kernel=stage)
    assert same_bits(got, xgemm_torch.sgemm(a, w, kernel=stage))


@on_every_packing_stage
def test_the_epilogue(stage):
    a, b, c = problems.normal(20, 70), problems.normal(70, K), problems.normal(K)
    how = {"kernel": stage, "alpha": -1.5, "beta": 0.5, "activation": "relu"}
    want = xgemm_torch.sgemm(a, b, c, **how)
    packed = kept(b, stage, False)
    assert same_bits(xgemm_torch.sgemm(a, packed, c, **how), want)
    out = torch.full((20, K), math.nan)
    assert xgemm_torch.sgemm(a, packed, c, out=out, **how) is out
    assert same_bits(out, want)
    how.pop("alpha"), how.pop("beta")
    at = xgemm_torch.sgemm(a.T, packed, trans_a=True, kernel=stage)
    assert same_bits(at, xgemm_torch.sgemm(a, b, kernel=stage))


LEADING = [(), (1,), (5,), (2, 3), (2, 1, 3), (0,), (2, 0, 3)]


@on_every_device
@pytest.mark.parametrize("kernel", ["auto", PACKS[-1], problems.STRICT[-1]])
@pytest.mark.parametrize("leading", LEADING, ids=str)
def test_the_functions(leading, kernel, device):
    """Every kernel takes a packed weight; one that has no use for the limbs takes the weight."""
    x = problems.normal(*leading, K, device=device)
    w, bias = problems.normal(30, K, device=device), problems.normal(30, device=device)
    how = {"kernel": kernel}
    packed, upright = kept(w, PACKS[-1]), kept(w.T.contiguous(), PACKS[-1], False)
    plain = w.T.contiguous()
    for activation in ("none", "gelu"):
        want = xgemm_torch.linear(x, w, bias, activation, **how)
        assert same_bits(xgemm_torch.linear(x, packed, bias, activation, **how), want)
    want = xgemm_torch.linear(x, w, precision="ieee")
    assert same_bits(xgemm_torch.linear(x, packed, precision="ieee"), want)
    got = xgemm_torch.matmul(x, upright, **how)
    assert same_bits(got, xgemm_torch.matmul(x, plain, **how))
    if len(leading) == 1:
        got = xgemm_torch.mm(x, upright, **how)
        assert same_bits(got, xgemm_torch.mm(x, plain, **how))
        got = xgemm_torch.addmm(bias, x, upright, beta=2, **how)
        assert same_bits(got, xgemm_torch.addmm(bias, x, plain, beta=2, **how))
        out = torch.empty(*leading, 30, device=device)
        assert xgemm_torch.matmul(x, upright, out=out, **how) is out
        assert same_bits(out, xgemm_torch.mm(x, plain, **how))


@pytest.mark.parametrize("size", [(0, 5), (5, 0), (0, 0)], ids=str)
def test_weights_without_elements(size):
    w, x = torch.empty(size), problems.normal(3, size[1])
    packed = xgemm_torch.prepack(w, kernel=PACKS[0])
    assert packed.limbs is None
    assert same_bits(xgemm_torch.linear(x, packed), xgemm_torch.linear(x, w))


def test_auto_on_a_cpu_keeps_nothing():
    w, x = problems.normal(30, K), problems.normal(20, K)
    packed = xgemm_torch.prepack(w)
    assert packed.limbs is None
    assert "no limbs" in repr(packed)
    assert same_bits(xgemm_torch.linear(x, packed), xgemm_torch.linear(x, w))
    got = xgemm_torch.linear(x, packed, kernel=PACKS[0])
    assert same_bits(got, xgemm_torch.linear(x, w, kernel=PACKS[0]))


# ------------------------------------------------------------------------------ gradients


@pytest.mark.parametrize("activation", ["none", "gelu"])
def test_gradients_are_those_of_the_weight(activation):
    """x's, the weight's and the bias's, to the second order."""
    results = []
    for pack in (False, True):
        torch.manual_seed(3)
        x, w, bias = (problems.normal(*s).requires_grad_() for s in ((9, K), (20, K), (20,)))
        y = xgemm_torch.linear(x, kept(w) if pack else w, bias, activation, kernel=PACKS[0])
        first = torch.autograd.grad(y.square().sum(), (x, w, bias), create_graph=True)
        second = torch.autograd.grad(first[0].square().sum(), (x, w, bias))
        results.append([y, *first, *second])
    assert all(same_bits(one, other) for one, other in zip(*results, strict=True))


def test_only_x_has_gradients():
    x, w = problems.normal(9, K).requires_grad_(), problems.normal(20, K)
    xgemm_torch.linear(x, kept(w), kernel=PACKS[0]).sum().backward()
    want = xgemm_torch.sgemm(torch.ones(9, 20), w, kernel=PACKS[0])
    assert same_bits(x.grad, want)


def test_transforms():
    w, x = problems.normal(20, K), problems.normal(6, 9, K)
    packed = kept(w)

    def f(x, weight=packed):
        return xgemm_torch.linear(x, weight, kernel=PACKS[0]).square().sum()

    def of_w(x):
        return f(x, w)

    func = torch.func
    assert same_bits(func.grad(f)(x[0]), func.grad(of_w)(x[0]))
    assert same_bits(func.vmap(f)(x), func.vmap(of_w)(x))
    for got, want in zip(
        func.jvp(f, (x[0],), (x[1],)), func.jvp(of_w, (x[0],), (x[1],)), strict=True
    ):
        assert same_bits(got, want)


def test_autocast():
    x, w = problems.normal(9, K), problems.normal(20, K)
    want = xgemm_torch.linear(x.bfloat16().float(), w, kernel=PACKS[0])
    with torch.autocast("cpu"):
        got = xgemm_torch.linear(x.bfloat16(), kept(w), kernel=PACKS[0])
    assert same_bits(got, want)


# ------------------------------------------------------------------------------ stale weights


def _other_memory(w: Tensor) -> None:
    w.data = problems.normal(*w.shape)


def _in_inference_mode(w: Tensor) -> None:
    with torch.inference_mode():
        w.add_(1.0)


def _no_memory(w: Tensor) -> None:
    w.untyped_storage().resize_(0)


CHANGES = {
    "add_": (lambda w: w.add_(1.0), "has been written to"),
    "a view": (lambda w: w[3].zero_(), "has been written to"),
    "an optimizer": (lambda w: torch.optim.SGD([w], lr=0.1).step(), "has been written to"),
    "inference mode": (_in_inference_mode, "has been written to"),
    "data": (_other_memory, "has other memory"),
    "no memory": (_no_memory, "has other memory"),
    "set_": (lambda w: w.set_(problems.normal(7)), "has other memory"),
}


@pytest.mark.parametrize("kernel", ["auto", PACKS[0], problems.STRICT[0]])
@pytest.mark.parametrize("case", CHANGES)
def test_a_stale_weight_is_refused(case, kernel):
    change, text = CHANGES[case]
    w, x = torch.nn.Parameter(problems.normal(20, K)), problems.normal(9, K)
    w.grad = torch.ones_like(w)
    packed = kept(w)
    packed.check()
    with torch.no_grad():
        change(w)
    out = torch.full((9, 20), math.nan)
    text = f": the packed weight is stale: since prepack the weight {text}; pack it again"
    with pytest.raises(RuntimeError, match=f"^linear{text}"):
        xgemm_torch.linear(x, packed, kernel=kernel)
    with pytest.raises(RuntimeError, match=f"^sgemm{text}"):
        xgemm_torch.sgemm(x, packed, trans_b=True, kernel=kernel, out=out)
    assert bool(out.isnan().all()), "nothing was launched"
    with pytest.raises(RuntimeError, match=f"^prepack{text}"):
        packed.check()


@pytest.mark.parametrize("size", [(7, 5), (16, 64), (128, 512)], ids=str)
def test_memory_that_comes_back_is_other_memory(size):
    """Freed with the old weight, and given to the new one at the same address."""
    layer = xgemm_torch.nn.Linear(*size[::-1], kernel=PACKS[0]).eval().prepack()
    address, x = layer.weight.data_ptr(), problems.normal(9, size[1])
    for _ in range(20):
        layer.weight.data = problems.normal(*size)
        if layer.weight.data_ptr() == address:
            break
    with pytest.raises(RuntimeError, match="since prepack the weight has other memory"):
        layer(x)


def _backward(w: Tensor, kernel: str) -> None:
    x = problems.normal(9, K, device=w.device)
    xgemm_torch.linear(x, w, kernel=kernel).sum().backward()


def _by_hand(w: Tensor, kernel: str) -> None:
    w.grad = torch.ones_like(w)


OPTIMIZERS = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)
FUSED = [
    *((optimizer, "cpu") for optimizer in OPTIMIZERS),
    (torch.optim.Adagrad, "cpu"),  # torch has none for CUDA
    *(pytest.param(optimizer, "cuda", marks=pytest.mark.gpu) for optimizer in OPTIMIZERS),
]


@pytest.mark.parametrize(("optimizer", "device"), FUSED)
@pytest.mark.parametrize("gradient", [_backward, _by_hand])
def test_what_a_fused_optimizer_changes_is_packed_anew(optimizer, gradient, device):
    """torch counts no such step."""
    w = torch.nn.Parameter(problems.normal(20, K, device=device))
    x, packed = problems.normal(9, K, device=device), kept(w)
    step, address = optimizer([w], lr=0.5, fused=True), packed.limbs.data_ptr()
    for _ in range(2):
        gradient(w, PACKS[0])
        version = w._version
        step.step()
        want = xgemm_torch.linear(x, w, kernel=PACKS[0])
        got = xgemm_torch.linear(x, packed, kernel=PACKS[0])
        if w._version == version:
            assert same_bits(got, want)
        step.zero_grad()
        xgemm_torch.linear(x, packed, kernel=PACKS[0])
    assert packed.limbs.data_ptr() == address, "a CUDA graph may have it"


def test_a_fused_step_on_a_weight_that_was_frozen():
    w, x = torch.nn.Parameter(problems.normal(20, K), requires_grad=False), problems.normal(9, K)
    packed = kept(w)
    w.requires_grad_()
    _backward(w, PACKS[0])
    torch.optim.AdamW([w], lr=0.5, fused=True).step()
    w.grad = None
    want = xgemm_torch.linear(x, w, kernel=PACKS[0])
    assert same_bits(xgemm_torch.linear(x, packed, kernel=PACKS[0]), want)


def test_where_nothing_can_be_packed_a_trained_weight_is_used_itself():
    w, x = torch.nn.Parameter(problems.normal(20, K)), problems.normal(9, K)
    packed = kept(w)
    _backward(w, PACKS[0])
    torch.optim.AdamW([w], lr=0.5, fused=True).step()
    with torch.no_grad():
        got = _as_a_graph(lambda x: xgemm_torch.linear(x, packed, kernel=PACKS[0]), x)
        assert same_bits(got, xgemm_torch.linear(x, w, kernel=PACKS[0]))


def test_a_packed_weight_leaves_no_hook():
    w = torch.nn.Parameter(problems.normal(20, K))
    packed = kept(w)
    for _ in range(3):
        packed.renew()
        assert packed.limbs is not None
        assert len(w._post_accumulate_grad_hooks) == 1
    limbs = weakref.ref(packed.limbs)
    del packed
    assert limbs() is None and not w._post_accumulate_grad_hooks


def test_renew():
    w, x = problems.normal(20, K), problems.normal(9, K)
    packed = kept(w)
    w.untyped_storage().fill_(0)
    packed.renew()
    assert not xgemm_torch.linear(x, packed, kernel=PACKS[0]).any()


def test_reading_is_no_change():
    w, x = torch.nn.Parameter(problems.normal(20, K)), problems.normal(9, K)
    packed = kept(w)
    xgemm_torch.linear(x, packed, kernel=PACKS[0]).sum().backward()
    w.grad.zero_()
    w.detach()[2:].sum()
    packed.check()


def test_a_copy_packs_its_own_weight():
    w, x = problems.normal(20, K), problems.normal(9, K)
    packed = kept(w)
    file = io.BytesIO()
    torch.save(packed, file)
    file.seek(0)
    copies = [
        copy.deepcopy(packed),
        pickle.loads(pickle.dumps(packed)),
        torch.load(file, weights_only=False),
    ]
    want = xgemm_torch.linear(x, w, kernel=PACKS[0])
    w.zero_()
    for other in copies:
        assert (other.trans_b, other.kernel) == (packed.trans_b, packed.kernel)
        assert same_bits(xgemm_torch.linear(x, other, kernel=PACKS[0]), want)


def test_a_copy_is_packed_when_it_is_used():
    """Loaders may fill its weight after they have made it."""
    w, x = problems.normal(20, K), problems.normal(9, K)
    other = copy.deepcopy(kept(w))
    assert "no limbs" in repr(other)
    other.weight.mul_(2.0)
    other.check()
    want = xgemm_torch.linear(x, 2 * w, kernel=PACKS[0])
    assert same_bits(xgemm_torch.linear(x, other, kernel=PACKS[0]), want)
    assert "bytes of limbs" in repr(other)
    other.weight.mul_(2.0)
    with pytest.raises(RuntimeError, match="stale"):
        other.check()


def test_torchs_old_format_of_files():
    """It fills storages after all objects are made, and no version tells of that."""
    layer = xgemm_torch.nn.Linear(K, 20, kernel=PACKS[0]).eval().prepack()
    file = io.BytesIO()
    torch.save(layer, file, _use_new_zipfile_serialization=False)
    file.seek(0)
    loaded, x = torch.load(file, weights_only=False), problems.normal(9, K)
    assert same_bits(loaded(x), layer(x))
    assert "bytes of limbs" in repr(loaded.packed)


def test_copies_whose_weight_cannot_be_packed():
    layer = xgemm_torch.nn.Linear(K, 20, kernel=PACKS[0]).eval().prepack()
    x = problems.normal(9, K)
    want = layer(x)
    with torch.inference_mode():
        other = copy.deepcopy(layer)
        assert same_bits(other(x), want)
    assert other.packed.limbs is None
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False, map_location="meta")
    assert loaded(x.to("meta")).shape == (9, 20)
    half = copy.deepcopy(copy.deepcopy(layer).half())  # torch's own, by the weight itself
    assert torch.equal(half(x.half()), F.linear(x.half(), half.weight, half.bias))


def _traced(layer, x):
    return torch.jit.trace(layer, x, check_trace=False)(x)


def _as_a_graph(layer, x):
    with torch.no_grad():
        graph = torch.fx.experimental.proxy_tensor.make_fx(layer)(x)
    assert "prepack" not in graph.code
    return graph(x)


def _with_fakes(layer, x):
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert layer(x).shape == (9, 20)
    return layer(x)


def _differentiated(layer, x):
    return torch.func.jvp(layer, (x,), (x,))[0]


@pytest.mark.parametrize("way", [_traced, _as_a_graph, _with_fakes, _differentiated])
def test_a_copy_is_packed_in_plain_calls_only(way):
    layer = xgemm_torch.nn.Linear(K, 20, kernel=PACKS[0]).eval().prepack()
    x, other = problems.normal(9, K), copy.deepcopy(layer)
    with torch.no_grad():
        assert same_bits(way(other, x), layer(x))
        assert same_bits(other(x), layer(x))
    assert type(other.packed.limbs) is Tensor
    assert not torch._C._functorch.is_functorch_wrapped_tensor(other.packed.limbs)


# ------------------------------------------------------------------------------ errors

W = torch.ones(6, 5)


class Tagged(Tensor):
    """A tensor that means something more."""


@pytest.mark.parametrize(
    ("weight", "how", "kind", "text"),
    [
        (W.tolist(), {}, TypeError, "weight must be a tensor, got list"),
        (W.double(), {}, TypeError, "weight must be float32, got float64"),
        (W.half(), {}, TypeError, "weight must be float32, got float16"),
        (W.to_sparse(), {}, TypeError, "must be a dense .strided. tensor, got sparse_coo"),
        (W.as_subclass(Tagged), {}, TypeError, "must be a plain tensor, got Tagged"),
        (W[0], {}, ValueError, "must have 2 dimensions, got shape .5,."),
        (W[None], {}, ValueError, "must have 2 dimensions, got shape .1, 6, 5."),
        (W.to("meta"), {}, ValueError, "weight is on meta; cpu and cuda are supported"),
        (W, {"trans_b": 1}, TypeError, "trans_b must be a bool, got int"),
        (W, {"kernel": 1}, TypeError, "kernel must be a string, got int"),
        (W, {"kernel": "nope"}, ValueError, "no kernel named 'nope'; there are: auto, "),
        (
            W, {"kernel": problems.STRICT[0]}, ValueError,
            f"{problems.STRICT[0]} takes no limbs; stages that do: {PACKS[0]}",
        ),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_packed(weight, how, kind, text):
    with pytest.raises(kind, match=f"^prepack: .*{text}"):
        xgemm_torch.prepack(weight, **how)


def test_inference_mode():
    """An inference tensor is no weight to pack; limbs made in that mode are good outside, too."""
    x, w = problems.normal(9, K).requires_grad_(), problems.normal(20, K).requires_grad_()
    with torch.inference_mode():
        with pytest.raises(RuntimeError, match="does not count the changes of an inference tensor"):
            xgemm_torch.prepack(problems.normal(4, 4))
        packed = kept(w)
        inside = xgemm_torch.linear(x, packed, kernel=PACKS[0])
    outside = xgemm_torch.linear(x, packed, kernel=PACKS[0])
    assert same_bits(inside, xgemm_torch.linear(x, w, kernel=PACKS[0]).detach())
    outside.sum().backward()
    grads = torch.autograd.grad(xgemm_torch.linear(x, w, kernel=PACKS[0]).sum(), (x, w))
    assert same_bits(x.grad, grads[0]) and same_bits(w.grad, grads[1])


def test_wrong_products():
    x, packed, upright = torch.ones(3, 5), kept(W), kept(W, trans_b=False)
    for call, kind, text in [
        (lambda: xgemm_torch.sgemm(x, packed), ValueError, "packed for trans_b=True"),
        (lambda: xgemm_torch.matmul(x, packed), ValueError, "packed for trans_b=True"),
        (lambda: xgemm_torch.linear(x, upright), ValueError, "packed for trans_b=False"),
        (lambda: xgemm_torch.linear(x[:, :4], packed), ValueError, "inner sizes differ"),
        (lambda: xgemm_torch.linear(x[0, 0], packed), ValueError, "inner sizes differ"),
        (lambda: xgemm_torch.sgemm(x, upright), ValueError, "inner sizes differ"),
        (lambda: xgemm_torch.matmul(x, upright), ValueError, "inner sizes differ"),
        (lambda: xgemm_torch.matmul(x[None], upright), ValueError, "inner sizes differ"),
        (lambda: xgemm_torch.linear(x.double(), packed), TypeError, "linear: x must be float32"),
        (lambda: xgemm_torch.linear(x, packed, x), ValueError, "bias must be of shape"),
        (lambda: xgemm_torch.linear(packed, W), TypeError, "x must be a tensor"),
        (
            lambda: xgemm_torch.sgemm(torch.ones(4, 3), packed, trans_a=True, trans_b=True),
            ValueError, "inner sizes differ: .* with trans_a=True, trans_b=True",
        ),
        (
            lambda: xgemm_torch.addmm(W[0, :1], x, upright, alpha=torch.tensor(2.0)),
            TypeError, "addmm: alpha must be a real number, got Tensor",
        ),
        (lambda: xgemm_torch.linear(packed, packed), TypeError, "weight alone may be packed"),
        (lambda: xgemm_torch.sgemm(x, W.T, packed), TypeError, "must be a tensor"),
        (lambda: xgemm_torch.mm(x[None], upright), ValueError, "2 dimensions"),
        (lambda: xgemm_torch.bmm(x[None], packed), TypeError, "takes no PackedWeight"),
        (lambda: torch.mm(x, packed), TypeError, "mm takes no PackedWeight, only its .weight"),
        (lambda: F.linear(x, packed), TypeError, "linear takes no PackedWeight"),
        (lambda: torch.ops.xgemm.sgemm(x, packed), TypeError, "takes no PackedWeight"),
        (
            lambda: xgemm_torch.linear(x, packed, kernel=PACKS[0], precision="ieee"),
            ValueError, "other bits than precision='ieee' guarantees",
        ),
    ]:  # fmt: skip
        with pytest.raises(kind, match=text):
            call()


def test_wrong_parts():
    """The operator itself, with what is not of its b."""
    x, limbs = torch.ones(3, 5), kept(W).limbs
    product = torch.ops.xgemm.sgemm
    how = {"trans_b": True, "kernel": PACKS[0]}
    want = xgemm_torch.linear(x, W, kernel=PACKS[0])
    assert same_bits(product(x, W, packed=limbs, **how), want)
    for bad, b, kind, text in [
        (limbs[:-1], W, Exception, f"it has {len(limbs) - 1} bytes, prepack gives {len(limbs)}"),
        (kept(torch.ones(300, 5)).limbs, W, Exception, "packed is not of this b"),
        (limbs.float(), W, TypeError, "packed must be uint8, got float32"),
        (limbs.expand(2, -1), W, Exception, "packed must be what prepack has made"),
        (limbs, W[None], Exception, "of a b of 2 dimensions"),
        (limbs.to("meta"), W, ValueError, "a is on cpu, packed is on meta"),
        (_off_by(4, limbs), W, Exception, "packed is at an address that is no multiple of 16"),
    ]:
        with pytest.raises(kind, match=text):
            product(x, b, packed=bad, **how)


def _off_by(bytes_: int, limbs: Tensor) -> Tensor:
    room = limbs.new_empty(bytes_ + len(limbs))
    return room[bytes_:].copy_(limbs)


@pytest.mark.parametrize("stage", PACKS)
def test_no_k(stage):
    """Nothing is packed then, and nothing needed."""
    a, b, c = torch.empty(8, 0), torch.empty(0, 64), problems.normal(8, 64)
    packed = xgemm_torch.prepack(b, trans_b=False, kernel=stage)
    assert same_bits(xgemm_torch.sgemm(a, packed, c, kernel=stage), c)
    limbs = torch.ops.xgemm.prepack(b, kernel=stage)
    assert same_bits(torch.ops.xgemm.sgemm(a, b, c, kernel=stage, packed=limbs), c)


@pytest.mark.gpu
def test_devices_do_not_mix():
    x, packed = torch.ones(3, 5), xgemm_torch.prepack(W.cuda())
    with pytest.raises(ValueError, match="x is on cpu, weight is on cuda:0"):
        xgemm_torch.linear(x, packed)
    with pytest.raises(ValueError, match="x is on cuda:0, weight is on cpu"):
        xgemm_torch.linear(x.cuda(), kept(W))


# ------------------------------------------------------------------------------ nn.Linear


def test_module():
    layer = xgemm_torch.nn.Linear(K, 20, kernel=PACKS[0]).eval()
    x, keys = problems.normal(3, 4, K), list(layer.state_dict())
    want = layer(x)
    assert layer.prepack() is layer
    assert "prepacked" in repr(layer)
    assert layer.packed.limbs is not None
    assert same_bits(layer(x), want)
    assert list(layer.state_dict()) == keys
    other = copy.deepcopy(layer)
    layer.packed.limbs.zero_()
    assert not same_bits(layer(x), want), "the limbs are what is used"
    assert same_bits(layer.train()(x), want), "but not in training"
    assert layer.eval().unprepack() is layer
    assert layer.packed is None and "prepacked" not in repr(layer)
    assert same_bits(layer(x), want)
    assert other.packed.weight is other.weight
    assert same_bits(other(x), want)


def test_a_module_refuses_stale_weights():
    layer = xgemm_torch.nn.Linear(K, 20, kernel=PACKS[0]).eval().prepack()
    x = problems.normal(3, K)
    layer.load_state_dict(xgemm_torch.nn.Linear(K, 20).state_dict())
    with pytest.raises(RuntimeError, match="since prepack the weight has been written to"):
        layer(x)
    want = layer.train()(x)
    assert same_bits(layer.eval().prepack()(x), want)
    layer.weight = torch.nn.Parameter(torch.ones(20, K))
    with pytest.raises(RuntimeError, match="stale: the module has another weight since prepack"):
        layer(x)
    want = xgemm_torch.linear(x, layer.weight, layer.bias, kernel=PACKS[0])
    assert same_bits(layer.unprepack()(x), want)


def test_parameters_that_stand_in_are_refused_with_a_way_out():
    """In a call they are the module's own: nothing tells that they are so for this call only."""
    layer = xgemm_torch.nn.Linear(K, 20, kernel=PACKS[0]).eval().prepack()
    other, x = xgemm_torch.nn.Linear(K, 20, kernel=PACKS[0]), problems.normal(3, K)
    with pytest.raises(RuntimeError, match="before a functional_call with Parameters, or give it"):
        torch.func.functional_call(layer, dict(other.named_parameters()), (x,))
    given = {name: p.data for name, p in other.named_parameters()}
    assert same_bits(torch.func.functional_call(layer, given, (x,)), other(x))
    assert layer.packed.limbs is not None


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("way", ["train()", "a forward", "compiled"])
def test_a_module_that_was_trained_packs_its_weight_anew(fused, way):
    layer = xgemm_torch.nn.Linear(K, 20, kernel=PACKS[0]).eval().prepack()
    optimizer, x = torch.optim.AdamW(layer.parameters(), lr=0.5, fused=fused), problems.normal(9, K)
    forward = layer
    if way == "a forward":
        layer.training = True
    else:
        layer.train()
    if way == "compiled":
        torch.compiler.reset()
        forward = torch.compile(layer, backend="aot_eager", fullgraph=True)
    for _ in range(2):
        forward(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    layer.eval()
    limbs, want = layer.packed.limbs, layer(x)
    assert limbs is not None
    assert same_bits(want, layer.unprepack()(x))


def test_a_collective_in_training_is_seen():
    """What writes to a weight and does not count it is a change all the same, in training mode."""
    layer, x = xgemm_torch.nn.Linear(K, 20, kernel=PACKS[0]).eval().prepack(), problems.normal(9, K)
    layer.train()
    layer.weight.data.copy_(problems.normal(20, K))
    got = layer.eval()(x)
    assert same_bits(got, layer.unprepack()(x))


def test_a_weight_for_one_call_is_used_itself():
    layer = xgemm_torch.nn.Linear(K, 20, kernel=PACKS[0]).eval().prepack()
    x, call = problems.normal(3, K), torch.func.functional_call
    other = {"weight": problems.normal(20, K)}
    want = xgemm_torch.linear(x, other["weight"], layer.bias, kernel=PACKS[0])
    assert same_bits(call(layer, other, (x,)), want)
    grads = torch.func.grad(lambda p: call(layer, p, (x,)).square().sum())(other)
    assert grads["weight"].shape == (20, K)
    torch.nn.utils.parametrizations.weight_norm(layer)
    want = xgemm_torch.linear(x, layer.weight, layer.bias, kernel=PACKS[0])
    assert same_bits(layer(x), want)
    with pytest.raises(TypeError, match="needs a weight that is a parameter of the module"):
        layer.prepack()


def test_a_reverted_module_has_no_parts():
    layer = torch.nn.Linear(K, 20).eval()
    xgemm_torch.convert(layer, kernel=PACKS[0])
    layer.prepack()
    xgemm_torch.revert(layer)
    assert type(layer) is torch.nn.Linear
    assert not hasattr(layer, "packed")


def test_a_module_of_a_stage_that_does_not_pack():
    layer = xgemm_torch.nn.Linear(K, 20, kernel=problems.STRICT[0])
    with pytest.raises(ValueError, match="takes no limbs"):
        layer.prepack()


def test_compiled_modules_use_the_weight():
    layer = xgemm_torch.nn.Linear(K, 20, kernel=PACKS[0]).eval().prepack()
    x = problems.normal(3, K)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    with torch.no_grad():
        assert same_bits(compiled(x), layer(x))
        layer.weight.mul_(2.0)
        want = xgemm_torch.linear(x, layer.weight, layer.bias, kernel=PACKS[0])
        assert same_bits(compiled(x), want)


COMPILED = {
    "linear": lambda x, w, wt, bias: xgemm_torch.linear(x, w),
    "linear with a bias": lambda x, w, wt, bias: xgemm_torch.linear(x, w, bias),
    "linear of a batch": lambda x, w, wt, bias: xgemm_torch.linear(x[None], w),
    "mm": lambda x, w, wt, bias: xgemm_torch.mm(x, wt),
    "addmm": lambda x, w, wt, bias: xgemm_torch.addmm(bias, x, wt),
    "matmul": lambda x, w, wt, bias: xgemm_torch.matmul(x, wt),
    "sgemm": lambda x, w, wt, bias: xgemm_torch.sgemm(x, w, trans_b=True),
    "out": lambda x, w, wt, bias: xgemm_torch.sgemm(x, wt, out=x.new_empty(3, 20)),
}


@pytest.mark.parametrize("case", COMPILED)
def test_compiled_products_use_the_weight(case):
    """Changed or not: a graph has no look at a weight's version."""
    torch.compiler.reset()
    x, w, bias = problems.normal(3, K), problems.normal(20, K), problems.normal(20)
    call, packed = COMPILED[case], (kept(w), kept(w.T.contiguous(), trans_b=False))
    compiled = torch.compile(
        lambda x, bias: call(x, *packed, bias), backend="aot_eager", fullgraph=True
    )
    for _ in range(2):
        want = call(x, packed[0].weight, packed[1].weight, bias)
        torch.testing.assert_close(compiled(x, bias), want, rtol=1e-4, atol=1e-4)
        for each in packed:
            each.weight.mul_(2.0)


# ------------------------------------------------------------------------------ the operator


def test_products_with_parts_can_be_traced():
    x, w = problems.normal(3, K), problems.normal(20, K)
    limbs = kept(w).limbs

    @torch.compile(backend="aot_eager", fullgraph=True)
    def f(x, w, limbs):
        return torch.ops.xgemm.sgemm(x, w, trans_b=True, kernel=PACKS[0], packed=limbs)

    assert same_bits(f(x, w, limbs), xgemm_torch.linear(x, w, kernel=PACKS[0]))


# ------------------------------------------------------------------------------ a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("n", [256, 1024, 2048, 4096])
@pytest.mark.parametrize("data", problems.DATA)
@pytest.mark.parametrize("wide_x", [False, True])
def test_auto_on_a_gpu(n, data, wide_x):
    """Large products decide on the device, and split a wide weight anew."""
    x = problems.DATA["wide" if wide_x else "normal"](n, n, device="cuda")
    w = problems.DATA[data](n, n, device="cuda")
    packed = xgemm_torch.prepack(w)
    for kernel in ("auto", *PACKS):
        want = xgemm_torch.linear(x, w, kernel=kernel)
        assert same_bits(xgemm_torch.linear(x, packed, kernel=kernel), want)


@pytest.mark.gpu
def test_a_graph_has_the_parts_of_its_capture():
    x, w = problems.normal(512, 512, device="cuda"), problems.normal(512, 512, device="cuda")
    packed = xgemm_torch.prepack(w)
    xgemm_torch.linear(x, packed)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = xgemm_torch.linear(x, packed)
    x.copy_(problems.normal(512, 512, device="cuda"))
    graph.replay()
    assert same_bits(out, xgemm_torch.linear(x, w))
