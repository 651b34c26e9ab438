"""Attention's kernels, in the emulator and on a GPU, and the function that is torch's in them.

An element's error is measured in units of 2^-24 of what its terms' roundings come to, the root of
the sum of their squares in float64, and held beside that of torch's own FP32 on the same device.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import problems
import pytest
import torch
import torch.nn.functional as F
from problems import same_bits
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import functionalize, grad, jacfwd, jacrev, jvp, vjp, vmap
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import xgemm_torch
from xgemm_torch import attention, attention_dropout, attention_products, registry, simt

FORWARD, BACKWARD = torch.ops.xgemm.attention_forward, torch.ops.xgemm.attention_backward
EFFICIENT = torch.ops.aten._scaled_dot_product_efficient_attention
sdpa = xgemm_torch.scaled_dot_product_attention

U = 2.0**-24
BESIDE = 2.5  # the largest error may be as many times that of torch's own FP32,
ALONE = 12.0  # and as many units more: an error of one limb is 2^11.
# Limbs keep what is 2^-29 of the largest of its tile of rows, and smaller elements to 2^-51 of it.
FLOOR, TILE = 2.0**-51 / U, 64
RESULTS = ("out", "lse", "dq", "dk", "dv")

on_a_gpu = pytest.mark.gpu
pytestmark = pytest.mark.usefixtures("small_attention")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=on_a_gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """One that the kernels run on: the emulator, or a GPU that they are made for."""
    if request.param == "cuda":
        needs_kernels()
    return request.param


def needs_kernels() -> None:
    if not attention.has_kernels(torch.device("cuda")):
        pytest.skip("the kernels are made for compute capability 9.0")


def test_small_calls_are_torchs(monkeypatch, kernels_of_attention):
    """Of few queries, of few keys, of few FLOP; gradients' where keys are few."""
    monkeypatch.undo()
    q, k = (torch.empty(64, 16, rows, 64, device="meta") for rows in (64, 512))
    assert not attention.is_small(q, k)
    assert attention.is_small(q[:, :, :63], k)
    assert not attention.is_small(q[:, :, :63], k, backward=True)
    assert attention.is_small(k, q[:, :, :63])
    assert attention.is_small(k, q[:, :, :63], backward=True)
    assert attention.is_small(q[:1, :1], k)


def test_which_gpus_have_the_kernels(monkeypatch):
    """Those that the build has them for; a build without CUDA has them for none."""
    its = registry.attention_kernels()
    built = any(stage.cuda and stage.min_sm == 90 for stage in registry.stages())
    assert (its.largest_head, its.min_sm, its.max_sm) == (128, 90 * built, 90 * built)
    for kernels, of in (((90, 90), {(9, 0)}), ((90, 100), {(9, 0), (10, 0)}), ((0, 0), set())):
        kinds = registry.AttentionKernels(128, *kernels)
        monkeypatch.setattr(attention, "attention_kernels", lambda kinds=kinds: kinds)
        for capability in ((7, 5), (8, 9), (9, 0), (10, 0), (12, 0)):
            monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, c=capability: c)
            assert attention._of_gpu.__wrapped__(0) == (capability in of)


# ------------------------------------------------------------------------------ the oracle


def seen(rows: int, keys: int, causal: bool, device: Any) -> Tensor:
    mask = torch.ones(rows, keys, dtype=torch.bool, device=device)
    return mask.tril() if causal else mask


def exact(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, causal: bool, scale: float,
          dout: Tensor, *dropout: Any) -> tuple[Any, Any]:  # fmt: skip
    """Results in float64, and the sizes that their errors are measured by."""
    factor: Any = 1.0
    if dropout:
        factor = left_by(*dropout, (*q.shape[:3], k.shape[2]), q.device).double()
    q, k, v, dout = (t.double() for t in (q, k, v, dout))
    see = seen(q.shape[2], k.shape[2], causal, q.device)
    never = torch.tensor(-math.inf, device=q.device, dtype=torch.float64)

    def masked(x: Tensor, value: Any = 0.0) -> Tensor:  # a NaN behind the mask is none
        return torch.where(see, x, value)

    added = 0.0 if bias is None else bias.double()
    s = masked(scale * (q @ k.mT) + added, never)
    lse = torch.logsumexp(s, -1, keepdim=True)
    lse = torch.where(lse == never, math.inf, lse)
    p = masked((s - lse).exp())
    left = factor * p
    out = _of_keys(left, v, see)
    dp = masked(factor * (dout @ v.mT))
    delta = (p * dp).sum(-1, keepdim=True)
    ds = scale * masked(p * (dp - delta))
    found = out, lse.squeeze(-1), _of_keys(ds, k, see), ds.mT @ q, left.mT @ dout

    def rss(*terms: Any) -> Tensor:
        return sum(t * t for t in terms).sqrt()

    def product(a: Tensor, b: Tensor) -> Tensor:
        return ((a * a) @ (b * b)).sqrt()

    q_, k_, v_, dout_ = (_sizes(t) for t in (q, k, v, dout))
    of_bias = 0.0 if bias is None else torch.where(bias.isinf(), 0.0, bias).double()
    s_ = rss(1.0, scale * product(q_, k_.mT), of_bias)
    p = p.nan_to_num()
    p_ = masked(p * s_ + FLOOR * p.amax(-1, keepdim=True)) if p.numel() else p
    left_ = factor * p_
    dp_ = masked(factor * product(dout_, v_.mT))
    dp, delta = dp.nan_to_num(0.0, 0.0, 0.0), delta.nan_to_num(0.0, 0.0, 0.0)
    delta_ = rss(p_ * dp, p * dp_).square().sum(-1, keepdim=True).sqrt()
    ds_ = abs(scale) * masked(rss(p * dp_, p * delta_, p_ * (dp - delta)))
    ds_ = masked(ds_ + FLOOR * _largest(ds_))
    lse_ = rss(lse.squeeze(-1).nan_to_num(0.0, 0.0, 0.0), product(p, s_.mT).diagonal(0, -2, -1))
    sizes = (product(left_, v_), lse_, product(ds_, k_), product(ds_.mT, q_),
             product(left_.mT, dout_))  # fmt: skip
    return found, sizes


def _largest(t: Tensor) -> Tensor:
    """Of each row its tile's largest element."""
    if not t.numel():
        return t[..., :1]
    rows = t.shape[-2]
    tiles = F.pad(t, (0, 0, 0, -rows % TILE)).unflatten(-2, (-1, TILE))
    each = tiles.amax((-2, -1), keepdim=True).expand(*tiles.shape[:-1], 1)
    return each.flatten(-3, -2)[..., :rows, :]


def _sizes(t: Tensor) -> Tensor:
    t = t.nan_to_num(0.0, 0.0, 0.0).abs()
    return t + FLOOR * _largest(t)


def _of_keys(weights: Tensor, t: Tensor, see: Tensor) -> Tensor:
    """weights t, in which what is not finite reaches the rows that see it alone."""
    if t.isfinite().all():
        return weights @ t
    terms = torch.where(see[..., None], weights[..., None] * t[..., None, :, :], 0.0)
    return terms.sum(-2)


def torchs(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, causal: bool, scale: float,
           dout: Tensor, *dropout: Any) -> Iterator[tuple[Tensor, ...]]:  # fmt: skip
    """torch's own FP32 on that device: the fused kernel and, on a CPU, by products besides.

    Dropout with a given seed is by products alone.
    """
    rows, width = q.shape[2:]
    if q.is_cuda and not dropout:  # heads as its kernel wants them: of 16 bytes, aligned
        *x, dout = (F.pad(t, (0, -width % 8)).contiguous().clone() for t in (q, k, v, dout))
        x = [t.requires_grad_() for t in x]
        aligned = None if bias is None else _aligned(bias)
        out, lse, _, _ = EFFICIENT(*x, aligned, True, 0.0, causal, scale=scale)
        grads = torch.autograd.grad(out, x, dout)
        out, *grads = (t.detach()[..., :width] for t in (out, *grads))
        yield out, lse.detach()[..., :rows], *grads
        return
    x = [t.detach().requires_grad_() for t in (q, k, v)]
    out, lse = attention_products.attention(*x, bias, causal, scale, *dropout)
    yield out.detach(), lse[..., :rows], *torch.autograd.grad(out, x, dout)
    if not dropout and (
        bias is None or not causal
    ):  # whether torch takes both depends on its version
        out = F.scaled_dot_product_attention(*x, bias, is_causal=causal, scale=scale)
        yield out.detach(), lse[..., :rows], *torch.autograd.grad(out, x, dout)


def _aligned(bias: Tensor) -> Tensor:
    """As torch's kernel wants a bias: rows begin at 16 bytes."""
    pad = -bias.shape[-1] % 8
    return F.pad(bias, (0, pad))[..., : bias.shape[-1]]


def ours_of(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, causal: bool, scale: float,
            dout: Tensor, *dropout: Any) -> tuple[Tensor, ...]:  # fmt: skip
    out, lse = FORWARD(q, k, v, bias, causal, scale, *dropout)
    grads = BACKWARD(dout, q, k, v, bias, out, lse, causal, scale, *dropout)
    check_memory(q, k, out, lse, grads)
    return out, lse[..., : q.shape[2]], *grads


def check_memory(q: Tensor, k: Tensor, out: Tensor, lse: Tensor, grads: Any) -> None:
    """Shapes and strides as torch's kernels give them, and infinities in the padding."""
    for t, like in ((out, q), (grads[0], q), (grads[1], k), (grads[2], k)):
        assert t.shape == like.shape
        assert t.transpose(1, 2).is_contiguous()
    rows = q.shape[2]
    assert lse.shape == (*q.shape[:2], -(-rows // 32) * 32)
    assert lse.is_contiguous()
    assert bool((lse[..., rows:] == math.inf).all())


def errors(got: Any, want: Any, sizes: Any) -> dict[str, float]:
    """By result the largest error of its finite elements, in units."""
    found = {}
    for name, x, y, size in zip(RESULTS, got, want, sizes, strict=True):
        finite = y.isfinite() & (size > 0)
        off = (x.double() - y).abs()[finite] / (U * size[finite])
        found[name] = float(off.max()) if off.numel() else 0.0
    return found


def check(*problem: Any) -> None:
    """Ours beside torch's own and float64: errors, and where something is not finite.

    With dropout beside torch's own without it, too, whose kernel has seeds of its own.
    """
    want, sizes = exact(*problem)
    got = ours_of(*problem)
    theirs = [errors(results, want, sizes) for results in torchs(*problem)]
    if dropout := problem[7:]:
        plain = problem[: -len(dropout)]
        theirs += [errors(results, *exact(*plain)) for results in torchs(*plain)]
    for name, x, y in zip(RESULTS, got, want, strict=True):
        assert torch.equal(x.isfinite(), y.isfinite()), name
    for name, error in errors(got, want, sizes).items():
        beside = [found[name] for found in theirs if math.isfinite(found[name])]
        if not beside:  # torch's own is not finite: its other results have such errors, too
            beside = [x for found in theirs for x in found.values() if math.isfinite(x)]
        assert error <= BESIDE * max(beside, default=0.0) + ALONE, (name, error, beside)


def operands(b: int, h: int, s: int, t: int, d: int, device: Any = "cpu") -> list[Tensor]:
    """q, k, v and the gradient of the result."""
    shapes = (b, h, s, d), (b, h, t, d), (b, h, t, d), (b, h, s, d)
    return [problems.normal(*shape, device=device) for shape in shapes]


def biased(kind: str | None, b: int, h: int, s: int, t: int, device: Any) -> Tensor | None:
    """A bias, None without: numbers, one row for all, or masks, of which one row hides all."""
    if kind is None:
        return None
    if kind == "numbers":
        return problems.normal(b, h, s, t, device=device)
    if kind == "row":
        return problems.normal(1, 1, 1, t, device=device).expand(b, h, s, t)
    mask = torch.rand(b, 1, s, t, device=device) < 0.4
    mask[:, :, s // 2] = True
    added = torch.zeros(b, 1, s, t, device=device).masked_fill(mask, -math.inf)
    return added.expand(b, h, s, t)


# ------------------------------------------------------------------------------ the operators

# B, H, S, T, D, causal, bias.
SMALL = [
    (1, 1, 1, 1, 8, False, None),
    (1, 2, 5, 64, 64, False, "numbers"),
    (2, 1, 64, 5, 8, True, None),
    (1, 1, 65, 65, 64, True, None),
    (1, 1, 64, 130, 100, False, "row"),
    (1, 2, 65, 64, 128, False, None),
    (1, 1, 130, 130, 64, True, "masks"),
    (1, 1, 5, 130, 1, True, None),
    (1, 1, 65, 1, 127, False, "masks"),
    (1, 1, 80, 81, 64, False, None),  # a last tile that is just short, and one that is not
    (1, 1, 81, 80, 32, False, None),
]
LARGE = [
    (2, 3, 257, 300, d, causal, bias)
    for d in (8, 32, 40, 64, 80, 96, 128)
    for causal in (False, True)
    for bias in (None, "numbers", "masks")
] + [(1, 16, 1024, 1024, 64, True, None), (1, 2, 2048, 4096, 128, False, None)]  # fmt: skip


def check_sizes(case: tuple[Any, ...], device: str, scale: float | None = None) -> None:
    b, h, s, t, d, causal, bias = case
    q, k, v, dout = operands(b, h, s, t, d, device)
    factor = d**-0.5 if scale is None else scale
    check(q, k, v, biased(bias, b, h, s, t, device), causal, factor, dout)


@pytest.mark.parametrize("case", SMALL, ids=str)
def test_beside_float64(case, device):
    check_sizes(case, device)


@on_a_gpu
@pytest.mark.parametrize("case", LARGE, ids=str)
def test_beside_float64_on_a_gpu(case):
    needs_kernels()
    check_sizes(case, "cuda")


@pytest.mark.parametrize("scale", [1.0, -0.3, 0.0])
def test_any_scale(scale, device):
    check_sizes((1, 1, 20, 70, 16, True, None), device, scale)


def _packed(b: int, h: int, s: int, d: int, device: str) -> list[Tensor]:
    return list(problems.normal(b, s, 3, h, d, device=device).permute(2, 0, 3, 1, 4))


STRIDED: dict[str, Callable[[str], list[Tensor]]] = {
    # As of one projection, whose rows hold the heads of q, k and v.
    "packed": lambda device: _packed(1, 2, 33, 16, device),
    "odd offsets": lambda device: [
        problems.VIEWS["offset"](problems.normal(1, 2, 33, 15, device=device)) for _ in range(3)
    ],
    "spaced": lambda device: [
        problems.VIEWS["spaced"](problems.normal(1, 2, 33, 12, device=device)) for _ in range(3)
    ],
    "columns dense": lambda device: [
        problems.VIEWS["column_major"](problems.normal(1, 2, 33, 12, device=device))
        for _ in range(3)
    ],
    "one head of keys": lambda device: [
        problems.normal(1, 2, 33, 16, device=device),
        *(problems.normal(1, 1, 40, 16, device=device).expand(1, 2, 40, 16) for _ in range(2)),
    ],
}


@pytest.mark.parametrize("name", STRIDED)
def test_any_strides(name, device):
    """Neither do strides matter to bits, nor is an operand copied for them."""
    q, k, v = STRIDED[name](device)
    dout = problems.normal(1, 1, 1, q.shape[-1], device=device).expand(q.shape)
    bias = problems.normal(1, 1, 33, k.shape[2] + 1, device=device)[..., 1:].expand(1, 2, -1, -1)
    rest = (True, 0.25)
    got = ours_of(q, k, v, bias, *rest, dout)
    dense = [t.contiguous() for t in (q, k, v, bias)]
    for x, y in zip(got, ours_of(*dense, *rest, dout.contiguous()), strict=True):
        assert same_bits(x, y)
    check(q, k, v, bias, *rest, dout)


@pytest.mark.parametrize(
    "sizes", [(1, 2, 0, 5, 8), (1, 2, 5, 0, 8), (0, 2, 5, 5, 8), (2, 0, 5, 5, 8)]
)
def test_empty_operands(sizes, device):
    q, k, v, dout = operands(*sizes, device)
    for causal in (False, True):
        out, lse, *grads = ours_of(q, k, v, None, causal, 0.3, dout)
        assert not out.any()
        assert bool((lse == math.inf).all())
        assert not any(t.any() for t in grads)


def test_results_are_the_same_each_time(device):
    b, h, s, t, d = (1, 2, 65, 130, 64) if device == "cpu" else (2, 8, 1024, 1500, 64)
    q, k, v, dout = operands(b, h, s, t, d, device)
    first = ours_of(q, k, v, None, True, 0.125, dout)
    for _ in range(1 if device == "cpu" else 5):
        again = ours_of(q, k, v, None, True, 0.125, dout)
        assert all(same_bits(x, y) for x, y in zip(first, again, strict=True))


# ------------------------------------------------------------------------------ dropout

MULTIPLIERS, STEPS = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)


def philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x32-10, as its authors define it."""
    for _ in range(10):
        a, b = counter[0] * MULTIPLIERS[0], counter[2] * MULTIPLIERS[1]
        counter = [b >> 32 ^ counter[1] ^ key[0], b, a >> 32 ^ counter[3] ^ key[1], a]
        counter = [x % 2**32 for x in counter]
        key = [(x + step) % 2**32 for x, step in zip(key, STEPS, strict=True)]
    return counter


@pytest.mark.parametrize(("counter", "key", "words"), [
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
])  # fmt: skip
def test_philox_gives_its_authors_words(counter, key, words):
    """Of the vectors that Random123 comes with."""
    assert philox(*([int(x, 16) for x in text.split()] for text in (counter, key))) == [
        int(x, 16) for x in words.split()
    ]


def left_by(p: float, seed: Tensor, offset: Tensor, shape: tuple[int, ...], device: Any) -> Tensor:
    """What weights are multiplied by, a number at a time."""
    number = int(seed) % 2**64
    key, first = [number % 2**32, number >> 32], int(offset)
    words: list[int] = []
    for call in range(first // 4, (first + math.prod(shape)) // 4 + 1):
        words += philox([call % 2**32, call >> 32, 0, 0], key)
    mine = torch.tensor(words[first % 4 :][: math.prod(shape)])
    uniform = mine.float() * 2.0**-32 + 2.0**-33
    single = torch.tensor(p, dtype=torch.float32)
    left = (uniform > single).float() / (1 - single)
    return left.view(shape).to(device)


def numbers(seed: int, offset: int, device: Any = "cpu") -> tuple[Tensor, Tensor]:
    return torch.tensor(seed, device=device), torch.tensor(offset, device=device)


# B, H, S, T, D, causal, bias; p, seed, offset.
DROPPED = [
    ((2, 2, 5, 64, 8, False, None), (0.1, 3, 0)),
    ((1, 1, 130, 65, 64, True, None), (0.5, -3, 8)),  # fours begin anywhere
    ((1, 2, 65, 70, 32, False, "masks"), (0.3, 2**62 + 5, 2**40)),
    ((1, 1, 80, 77, 96, False, None), (0.9, 7, 3)),
    ((1, 2, 20, 81, 128, True, "numbers"), (1e-9, -(2**63), 4)),
]


@pytest.mark.parametrize(("case", "by"), DROPPED, ids=str)
def test_dropout_beside_float64(case, by, device):
    b, h, s, t, d, causal, bias = case
    p, *seeds = by
    q, k, v, dout = operands(b, h, s, t, d, device)
    added = biased(bias, b, h, s, t, device)
    check(q, k, v, added, causal, d**-0.5, dout, p, *numbers(*seeds, device))


def test_dropout_of_a_head_that_is_made_anew(device):
    q, k, v, dout = operands(1, 2, 70, 75, 16, device)
    q[:, 1, 3] *= 2.0**-40
    check(q, k, v, None, False, 0.1, dout, 0.25, *numbers(11, 4, device))


def test_where_seed_and_offset_are_does_not_matter(device):
    q, k, v, dout = operands(1, 2, 65, 66, 16, device)
    on_cpu = ours_of(q, k, v, None, True, 0.1, dout, 0.25, *numbers(11, 4))
    for seeds in (numbers(11, 4, device), (torch.tensor([11]), torch.tensor(4, device=device))):
        again = ours_of(q, k, v, None, True, 0.1, dout, 0.25, *seeds)
        assert all(same_bits(x, y) for x, y in zip(on_cpu, again, strict=True))


@pytest.mark.parametrize("offset", [0, 3, 2**34 - 4, 2**40 + 8])
def test_the_products_drop_the_same_weights(offset):
    for p, shape in ((0.1, (1, 2, 5, 7)), (0.5, (2, 1, 3, 8)), (1 - 2.0**-24, (1, 1, 9, 9))):
        got = attention_dropout.factors(p, *numbers(-5, offset), shape, torch.device("cpu"))
        assert same_bits(got, left_by(p, *numbers(-5, offset), shape, "cpu"))


def test_which_probabilities_the_kernels_take():
    below = 1 - 2.0**-24
    assert all(map(attention_dropout.takes, (0, 0.0, 1e-30, 0.5, below)))
    assert not any(map(attention_dropout.takes, (1, 1 - 2.0**-25, 1.5, -0.1, math.nan, "0", None)))


def test_dropout_is_reproducible(kernels_of_attention):
    """By torch's seed; and each call drops others."""
    q, k, v = _shapes(*TINY)
    torch.manual_seed(3)
    first, second = (sdpa(q, k, v, dropout_p=0.5) for _ in range(2))
    torch.manual_seed(3)
    assert same_bits(first, sdpa(q, k, v, dropout_p=0.5))
    assert not torch.equal(first, second)


def test_a_tenth_is_dropped(kernels_of_attention):
    """Of weights that are all the same the mean stays, and a tenth are zeros."""
    q, eye = torch.zeros(4, 4, 64, 64), torch.eye(64).expand(4, 4, 64, 64)
    left = sdpa(q, q, eye, dropout_p=0.1) * 64
    assert set(left.unique().tolist()) == {0.0, left.max().item()}
    assert left.max().item() == pytest.approx(1 / 0.9)
    assert float((left == 0).float().mean()) == pytest.approx(0.1, abs=0.01)


def _dropped(dtype: torch.dtype) -> Callable[..., Tensor]:
    """Attention that drops the same weights each time, by the operator, or in another dtype."""
    seeds = 0.4, *numbers(9, 8)

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if dtype is torch.float32:
            return FORWARD(q, k, v, None, True, 0.3, *seeds)[0]
        left = left_by(*seeds, (*q.shape[-4:-1], k.shape[-2]), "cpu").to(dtype)
        see = seen(q.shape[-2], k.shape[-2], True, "cpu")
        weights = (0.3 * q @ k.mT).masked_fill(~see, -math.inf).softmax(-1)
        return (left * weights) @ v

    return function


def test_derivatives_of_dropped_weights():
    tensors = _shapes(*TINY)
    got = three_orders(_dropped(torch.float32), tensors)
    want = three_orders(_dropped(torch.float64), [t.double() for t in tensors])
    for x, y in zip(got, want, strict=True):
        beside = 2e-5 * max(1.0, float(y.detach().abs().max()))
        torch.testing.assert_close(x.double(), y, rtol=2e-4, atol=beside)


@pytest.mark.parametrize("kind", ["grad of grad", "vmap of grad", "jvp", "jacrev", "jacfwd"])
def test_transforms_of_dropped_weights(kind):
    """Samples of a vmap drop the same weights by the same seed, of which each has its own place."""

    def run(dtype: torch.dtype) -> Any:
        q, k, v = (t.to(dtype) for t in _shapes_again())
        function = _dropped(dtype)

        def loss(*x: Tensor) -> Tensor:
            return function(*x).sin().sum()

        if kind == "grad of grad":
            return grad(lambda q: grad(loss, 1)(q, k, v).cos().sum())(q)
        if kind == "vmap of grad":
            return vmap(grad(loss, (0, 1, 2)), (0, None, 3))(
                torch.stack([q, 2 * q]), k, torch.stack([v, v + 1], 3)
            )
        if kind == "jvp":
            return jvp(loss, (q, k, v), (q + 1, k + 1, v + 1))
        jacobian = jacrev if kind == "jacrev" else jacfwd
        return jacobian(lambda q: function(q, k, v))(q[:, :, :2])

    got, want = run(torch.float32), run(torch.float64)
    torch.testing.assert_close(
        torch.utils._pytree.tree_map(lambda t: t.double(), got), want, rtol=1e-4, atol=1e-5
    )


def _shapes_again() -> list[Tensor]:
    torch.manual_seed(1)
    return _shapes(*TINY)


@pytest.mark.parametrize("randomness", ["same", "different", "error"])
def test_vmap_has_its_say_in_what_is_dropped(randomness, kernels_of_attention):
    q, k, v = _shapes(*TINY)

    def mapped() -> Tensor:
        each = vmap(lambda q: sdpa(q, k, v, dropout_p=0.5), randomness=randomness)
        return each(torch.stack([q, q]))

    if randomness == "error":
        with pytest.raises(RuntimeError, match="random"):
            mapped()
        return
    first, second = mapped()
    assert torch.equal(first, second) is (randomness == "same")


def test_a_checkpoint_drops_the_same_weights(kernels_of_attention):
    q, k, v = _shapes(*TINY)
    grads = []
    for wrap in (lambda f, x: f(x), functools.partial(checkpoint, use_reentrant=False)):
        torch.manual_seed(5)
        x = q.clone().requires_grad_()
        wrap(lambda x: sdpa(x, k, v, dropout_p=0.5), x).sin().sum().backward()
        grads.append(x.grad)
    assert same_bits(*grads)


@pytest.mark.parametrize("dynamic", [False, True])
def test_dropout_compiles(dynamic, kernels_of_attention):
    """Each call of the graph drops others, and its backward what its forward dropped."""
    eye = torch.eye(16).expand(2, 2, 16, 16)

    def call(q: Tensor, v: Tensor) -> Tensor:
        return sdpa(q, q, v, dropout_p=0.5)

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    q = torch.zeros(2, 2, 16, 16)
    found = []
    for _ in range(2):
        v = eye.clone().requires_grad_()
        left = compiled(q, v)
        (of_v,) = torch.autograd.grad(left.sum(), v)
        assert same_bits(of_v[..., 0], left.detach().sum(-2))
        found.append(left.detach())
    assert not torch.equal(*found)


@on_a_gpu
@pytest.mark.parametrize("sizes", [(2, 3, 64, 64), (1, 2, 65, 77), (3, 1, 130, 200)])
def test_the_numbers_are_torchs(sizes, gpu):
    mine = attention_dropout.factors(0.3, *numbers(-7, 12), sizes, gpu)
    uniform = torch.empty(sizes, device=gpu)
    torch.ops.aten._fill_mem_eff_dropout_mask_(uniform, 0.3, -7, 12)
    assert torch.equal(mine > 0, uniform > 0.3)


@on_a_gpu
@pytest.mark.parametrize("sizes", [(2, 3, 200, 264, 64), (1, 2, 197, 197, 32), (1, 2, 80, 77, 128)])
@pytest.mark.parametrize("causal", [False, True])
def test_each_drops_what_the_other_dropped(sizes, causal, gpu):
    """At one state of the generator, which both leave alike; backward passes change places."""
    q, k, v, dout = operands(*sizes, gpu)
    generator = torch.cuda.default_generators[q.get_device()]
    torch.manual_seed(5)
    torch.rand(7, device=gpu)
    theirs = EFFICIENT(q, k, v, None, True, 0.2, causal, scale=0.125)
    after = generator.get_offset()
    torch.manual_seed(5)
    torch.rand(7, device=gpu)
    seeds = attention_dropout.draw(0.2, q, k.shape[2])
    assert generator.get_offset() == after
    for mine, its in zip(seeds, theirs[2:], strict=True):
        assert (mine.device, mine.dtype, mine.shape) == (its.device, its.dtype, its.shape)
        assert torch.equal(mine, its)
    mine = FORWARD(q, k, v, None, causal, 0.125, 0.2, *seeds)
    torch.testing.assert_close(mine[0], theirs[0], rtol=1e-4, atol=1e-5)
    backward = torch.ops.aten._scaled_dot_product_efficient_attention_backward
    wanted = [True, True, True, False]
    grads = []
    for out, lse in (mine, theirs[:2]):
        grads.append(backward(dout, q, k, v, None, out, lse, *theirs[2:], 0.2, wanted, causal,
                              scale=0.125)[:3])  # fmt: skip
        grads.append(BACKWARD(dout, q, k, v, None, out, lse, causal, 0.125, 0.2, *seeds))
    for others in grads[1:]:
        for x, y in zip(others, grads[0], strict=True):
            torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)


def captured(step: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A CUDA graph of a step, which has run on another stream first; and the results it writes."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        held = step()
    return graph, held


@on_a_gpu
def test_a_graph_drops_others_each_time(gpu):
    eye = torch.eye(64, device=gpu).expand(2, 4, 64, 64).clone().requires_grad_()
    q = torch.zeros(2, 4, 64, 64, device=gpu)

    def step() -> tuple[Tensor, Tensor]:
        out = sdpa(q, q, eye, dropout_p=0.5)
        return out.detach(), torch.autograd.grad(out.sum(), eye)[0]

    graph, (left, of_v) = captured(step)
    found = []
    for _ in range(2):
        graph.replay()
        torch.testing.assert_close(of_v[..., 0], left.sum(-2))
        found.append(left.clone())
    assert not torch.equal(*found)


@on_a_gpu
def test_inductor_drops_on_a_gpu(gpu):
    eye = torch.eye(64, device=gpu).expand(2, 4, 64, 64)
    q = torch.zeros(2, 4, 64, 64, device=gpu)
    call = torch.compile(lambda v: sdpa(q, q, v, dropout_p=0.5) * 2, fullgraph=True)
    found = []
    for _ in range(2):
        v = eye.clone().requires_grad_()
        left = call(v)
        (of_v,) = torch.autograd.grad(left.sum(), v)
        torch.testing.assert_close(of_v[..., 0], left.detach().sum(-2))
        found.append(left.detach())
    assert not torch.equal(*found)
    assert float((found[0] == 0).float().mean()) == pytest.approx(0.5, abs=0.02)


FILES = ("forward.h:", "backward.h:", "products.h:", "tiles.h:", "plain.h:")


def test_every_wait_is_needed():
    """The mutation test. Warps' own barriers are left in: their lanes need not meet here."""

    def run() -> None:
        for s, t, d, bias in ((130, 200, 64, None), (70, 130, 128, "numbers")):
            q, k, v, dout = operands(1, 1, s, t, d)
            ours_of(q, k, v, biased(bias, 1, 1, s, t, "cpu"), bias is None, 0.1, dout)
        q, k, v, dout = operands(1, 2, 80, 130, 16)
        k[:, 1, 7] *= 1e20  # of the other head, too, a block looks at the scales
        with simt.configure(sm_count=2):  # so that a block has several parts
            ours_of(q, k, v, None, False, 0.1, dout)

    run()
    kinds = [kind for kind in simt.SITES if kind != "warp barrier"]
    sites = [site for kind in kinds for site in simt.sites(kind) if site.startswith(FILES)]
    assert {site.partition(":")[0] + ":" for site in sites} == set(FILES)
    for site in sites:
        with simt.configure(skip=site), pytest.raises(RuntimeError, match="xgemm simt: "):
            run()


def _rows(t: Tensor, row: int, factor: float) -> Tensor:
    t = t.clone()
    t[:, :, row] *= factor
    return t


def _steps(t: Tensor, span: int = 20) -> Tensor:
    """Rows that differ by up to 2^span."""
    steps = torch.arange(t.shape[2], device=t.device) * 7 % (span + 1) - span // 2
    return t * torch.exp2(steps.float())[:, None]


def _learned(dout: Tensor) -> Tensor:
    """Gradients of samples of which most are learned: nearly nothing, but for every seventh row."""
    dout = dout.clone()
    rows = torch.arange(dout.shape[2], device=dout.device) % 7 != 0
    dout[:, :, rows] *= 2.0**-60
    return dout


Data = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor, Tensor]]
DATA: dict[str, Data] = {
    "zeros": lambda q, k, v, g: (q * 0, k * 0, v * 0, g * 0),
    "no gradient": lambda q, k, v, g: (q, k, v, g * 0),
    "a row of q of 1e20": lambda q, k, v, g: (_rows(q, 3, 1e20), k, v, g),
    "a row of v of 1e20": lambda q, k, v, g: (q, k, _rows(v, 3, 1e20), g),
    "a row of the gradient of 1e20": lambda q, k, v, g: (q, k, v, _rows(g, 3, 1e20)),
    "rows of q": lambda q, k, v, g: (_steps(q, 8), k, v, g),
    "rows of k": lambda q, k, v, g: (q, _steps(k, 8), v, g),
    "rows of v": lambda q, k, v, g: (q, k, _steps(v), g),
    "rows of the gradient": lambda q, k, v, g: (q, k, v, _steps(g)),
    "small": lambda q, k, v, g: (q * 2.0**-40, k, v * 2.0**-20, g * 2.0**-20),
    "large": lambda q, k, v, g: (q * 2.0**-30, k * 2.0**30, v * 2.0**40, g * 2.0**20),
    "learned samples": lambda q, k, v, g: (q, k, v, _learned(g)),
    "one mean": lambda q, k, v, g: (q + 3, k + 3, v + 100, g),
    "sharp": lambda q, k, v, g: (q * 10, k * 10, v, g),
}


@pytest.mark.parametrize("causal", [False, pytest.param(True, marks=on_a_gpu)])
@pytest.mark.parametrize("data", DATA)
def test_kinds_of_data(data, causal, device):
    sizes = (1, 1, 70, 70, 16) if device == "cpu" else (2, 4, 400, 400, 64)
    q, k, v, dout = DATA[data](*operands(*sizes, device))
    check(q, k, v, None, causal, sizes[-1] ** -0.5, dout)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_key_that_is_not_finite_reaches_the_rows_that_see_it(value, device):
    """Of a causal mask those from the key on. They are NaN, of a product of -inf too."""
    s, key = (70, 66) if device == "cpu" else (300, 130)
    q, k, v, dout = operands(1, 1, s, s, 16, device)
    k[0, 0, key, 5] = value
    got = ours_of(q, k, v, None, True, 0.25, dout)
    want, _ = exact(q, k, v, None, True, 0.25, dout)
    for x, y in zip(got[:2], want[:2], strict=True):
        torch.testing.assert_close(x[:, :, :key], y[:, :, :key].float(), rtol=1e-4, atol=1e-5)
        if math.isnan(value):
            assert torch.equal(x.isnan(), y.isnan())
    for name, x, y in zip(RESULTS, got, want, strict=True):
        assert not bool((x.isfinite() & ~y.isfinite()).any()), name


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_reaches_the_rows_that_see_it(value, device):
    """In its column. Of rows that do not, zero times it is NaN in torch's own, too."""
    s, key = (70, 66) if device == "cpu" else (300, 130)
    q, k, v, dout = operands(1, 1, s, s, 16, device)
    v[0, 0, key, 5] = value
    out = ours_of(q, k, v, None, True, 0.25, dout)[0][:, :, key:]
    want = exact(q, k, v, None, True, 0.25, dout)[0][0][:, :, key:]
    assert torch.equal(out.isfinite(), want.isfinite())
    finite = want.isfinite()
    torch.testing.assert_close(out[finite], want[finite].float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("data", ["plain", "anew"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_no_query_sees_is_not_read(value, data, device):
    """Keys and values behind the last query, by causality; also of a head that is made anew."""
    q, k, v, dout = operands(1, 1, 20, 100, 16, device)
    if data == "anew":
        k[:, :, 7, 3] *= 2.0**40
    want = ours_of(q, k, v, None, True, 0.25, dout)
    k, v = k.clone(), v.clone()
    k[:, :, 20:] = v[:, :, 20:] = value
    got = ours_of(q, k, v, None, True, 0.25, dout)
    assert all(same_bits(x, y) for x, y in zip(got, want, strict=True))
    assert not any(t[:, :, 20:].any() for t in got[3:])


# ------------------------------------------------------------------------------ bad input

Q, BIAS = torch.ones(1, 2, 5, 8), torch.zeros(1, 2, 5, 5)
BAD: dict[str, tuple[tuple[Any, ...], type[Exception], str]] = {
    "dtype": ((Q, Q.double(), Q, None), TypeError, "k must be float32, got float64"),
    "mask": ((Q, Q, Q, BIAS > 0), TypeError, "bias must be float32, got bool"),
    "layout": ((Q.to_sparse(), Q, Q, None), TypeError, "q must be a dense (strided) tensor"),
    "rank": ((Q[0], Q, Q, None), ValueError, "q must have 4 dimensions, got shape (2, 5, 8)"),
    "heads": ((Q, Q[:, :1], Q, None), ValueError,
              "k must have shape (1, 2, 5, 8), got (1, 1, 5, 8)"),
    "keys": ((Q, Q, Q[:, :, 1:], None), ValueError,
             "v must have shape (1, 2, 5, 8), got (1, 2, 4, 8)"),
    "width": ((Q, Q[..., 1:], Q, None), ValueError,
              "k must have shape (1, 2, 5, 8), got (1, 2, 5, 7)"),
    "bias": ((Q, Q, Q, BIAS[:, :1]), ValueError,
             "bias must have shape (1, 2, 5, 5), got (1, 1, 5, 5)"),
    "large heads": ((*[torch.ones(1, 1, 2, 129)] * 3, None), ValueError,
                    "heads must have 1 to 128 columns, got 129"),
    "no width": ((*[torch.ones(1, 1, 2, 0)] * 3, None), ValueError,
                 "heads must have 1 to 128 columns, got 0"),
    "devices": ((Q, Q.to("meta"), Q, None), ValueError, "q is on cpu, k is on meta"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_operands(name):
    operands, error, words = BAD[name]
    with pytest.raises(error, match=re.escape(f"attention_forward: {words}")):
        FORWARD(*operands, False, 1.0)


@pytest.mark.parametrize(("name", "value", "error", "words"), [
    ("grad", Q[..., :7], ValueError, "grad must have shape (1, 2, 5, 8), got (1, 2, 5, 7)"),
    ("out", Q.double(), TypeError, "out must be float32, got float64"),
    ("lse", torch.zeros(1, 2, 5), ValueError, "lse must have shape (1, 2, 32), got (1, 2, 5)"),
    ("lse", torch.zeros(2, 32), ValueError, "lse must have 3 dimensions, got shape (2, 32)"),
])  # fmt: skip
def test_bad_operands_of_the_backward(name, value, error, words):
    given = {"grad": Q, "out": Q, "lse": torch.zeros(1, 2, 32), name: value}
    with pytest.raises(error, match=re.escape(f"attention_backward: {words}")):
        BACKWARD(given["grad"], Q, Q, Q, None, given["out"], given["lse"], False, 1.0)


def _into(**more: Tensor) -> dict[str, Tensor]:
    """Memory for gradients of Q, K and V of `Q`'s shape, of which some is another."""
    return {name: torch.empty_like(Q) for name in ("dq", "dk", "dv")} | more


@pytest.mark.parametrize("sizes", [(2, 3, 33, 33, 16), (1, 2, 5, 70, 8), (2, 0, 4, 4, 8)])
def test_gradients_into_memory_that_is_given(sizes, device):
    """Of any strides, what lies between stays; the same bits."""
    q, k, v, dout = operands(*sizes, device)
    out, lse = FORWARD(q, k, v, None, False, 0.25)
    given = dout, q, k, v, None, out, lse, False, 0.25
    want = BACKWARD(*given)
    room = [torch.full((*reversed(t.shape), 2), 7.0, device=device) for t in want]
    into = [t.permute(4, 3, 2, 1, 0)[0] for t in room]
    versions = [t._version for t in into]
    assert BACKWARD.out(*given, dq=into[0], dk=into[1], dv=into[2]) is None
    for mine, its, whole, version in zip(into, want, room, versions, strict=True):
        assert same_bits(mine, its)
        assert bool((whole[..., 1] == 7).all()) and mine._version > version


@pytest.mark.parametrize(("into", "error", "words"), [
    (_into(dq=Q[..., :7]), ValueError, "dq must have shape (1, 2, 5, 8), got (1, 2, 5, 7)"),
    (_into(dk=Q.double()), TypeError, "dk must be float32, got float64"),
    (_into(dv=Q[0]), ValueError, "dv must have 4 dimensions, got shape (2, 5, 8)"),
    (_into(dv=Q.to("meta")), ValueError, "q is on cpu, dv is on meta"),
    (_into(dk=Q[:, :1].expand(1, 2, 5, 8)), ValueError, "dk has elements that share memory"),
    (_into(dv=Q), ValueError, "dv shares memory with an operand"),
    (dict.fromkeys(("dq", "dk", "dv"), torch.empty_like(Q)), ValueError, "dq, dk, dv has elements"),
    (_into(dq=(room := torch.empty(17, 2, 5, 8))[:1], dk=room[0:1]), ValueError,
     "dq, dk and dv share memory"),
    (_into(dq=Q.clone().requires_grad_()), RuntimeError,
     "functions with out=... arguments don't support automatic differentiation, but dq requires"),
])  # fmt: skip
def test_bad_memory_for_gradients(into, error, words):
    given = Q, Q, Q, Q, None, Q, torch.zeros(1, 2, 32), False, 1.0
    with pytest.raises(error, match=re.escape(f"attention_backward: {words}")):
        BACKWARD.out(*given, **into)


ONE, HALF = torch.tensor(1), torch.tensor(0.5)


@pytest.mark.parametrize(("dropout", "error", "words"), [
    ((1.0, ONE, ONE), ValueError, "dropout_p must be in [0, 1), got 1"),
    ((-0.5, ONE, ONE), ValueError, "dropout_p must be in [0, 1), got -0.5"),
    ((math.nan, ONE, ONE), ValueError, "dropout_p must be in [0, 1), got nan"),
    ((0.5,), ValueError, "dropout needs a seed and an offset, got no seed"),
    ((0.5, ONE, None), ValueError, "dropout needs a seed and an offset, got no offset"),
    ((0.5, HALF, ONE), TypeError, "seed must be int64, got float32"),
    ((0.5, ONE, ONE.int()), TypeError, "offset must be int64, got int32"),
    ((0.5, ONE.expand(2), ONE), ValueError, "seed must have one element, got shape (2,)"),
    ((0.5, ONE, ONE.to("meta")), ValueError, "q is on cpu, offset is on meta"),
])  # fmt: skip
def test_bad_dropout(dropout, error, words):
    with pytest.raises(error, match=re.escape(f"attention_forward: {words}")):
        FORWARD(Q, Q, Q, None, False, 1.0, *dropout)
    given = Q, Q, Q, Q, None, Q, torch.zeros(1, 2, 32)
    with pytest.raises(error, match=re.escape(f"attention_backward: {words}")):
        BACKWARD(*given, False, 1.0, *dropout)


def test_a_bias_has_no_gradient():
    with pytest.raises(RuntimeError, match="attention_forward: there is no gradient of bias"):
        FORWARD(Q, Q, Q, BIAS.clone().requires_grad_(), False, 1.0)


def test_a_freed_storage_is_refused():
    q = torch.ones(1, 2, 5, 8)
    q.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="was it freed"):
        FORWARD(q, Q, Q, None, False, 1.0)


# ------------------------------------------------------------------------------ the function


def _float64(*args: Any, **options: Any) -> Tensor:
    """torch's own of the same call in float64."""
    wide = [t.double() if isinstance(t, Tensor) and t.is_floating_point() else t for t in args]
    return by_math(*wide, **options)


def by_math(*args: Any, **options: Any) -> Tensor:
    """torch's own, by the products that it is defined by, which have every derivative."""
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return F.scaled_dot_product_attention(*args, **options)


def _shapes(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [problems.normal(*shape) for shape in shapes]


LEADING = {
    "none": ((5, 8), (7, 8), (7, 8)),
    "batch": ((3, 5, 8), (3, 7, 8), (3, 7, 8)),
    "five": ((2, 1, 2, 5, 8), (2, 1, 2, 7, 8), (2, 1, 2, 7, 8)),
    "broadcast keys": ((1, 2, 5, 8), (1, 7, 8), (1, 1, 7, 8)),
    "broadcast queries": ((5, 8), (1, 2, 7, 8), (2, 1, 7, 8)),
}


@pytest.mark.parametrize("leading", LEADING)
def test_leading_dimensions(leading, kernels_of_attention):
    tensors = _shapes(*LEADING[leading])
    with FlopCounterMode(display=False) as count:
        got = sdpa(*tensors, is_causal=True)
    want = _float64(*tensors, is_causal=True)
    assert got.shape == want.shape
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)
    assert "xgemm.attention_forward" in map(str, count.get_flop_counts()["Global"])


MASKS: dict[str, Callable[[], Tensor]] = {
    "bool": lambda: torch.rand(1, 2, 5, 7) < 0.7,
    "keys alone": lambda: torch.tensor([True, False, True, True, False, True, True]),
    "no key": lambda: torch.zeros(5, 7, dtype=torch.bool),
    "expanded": lambda: (torch.rand(1, 1, 1, 7) < 0.7).expand(1, 2, 5, 7),
    "numbers": lambda: problems.normal(2, 5, 7),
    "one number": lambda: problems.normal(1),
}


@pytest.mark.parametrize("mask", MASKS)
def test_masks(mask, kernels_of_attention):
    q, k, v = _shapes((1, 2, 5, 8), (1, 2, 7, 8), (1, 2, 7, 8))
    added = MASKS[mask]()
    got = sdpa(q, k, v, attn_mask=added, scale=0.5)
    want = _float64(q, k, v, added, scale=0.5)
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("heads", [(2, 2), (2, 1), (6, 6)])
def test_heads_that_share_keys(heads, kernels_of_attention):
    q, k, v = _shapes((1, 6, 5, 8), (1, heads[0], 7, 8), (1, heads[1], 7, 8))
    got = sdpa(q, k, v, enable_gqa=True)
    each = [t.repeat_interleave(6 // t.shape[1], 1) for t in (k, v)]
    torch.testing.assert_close(got.double(), _float64(q, *each), rtol=1e-5, atol=1e-5)


class Wrapped(Tensor):
    """A class that torch's functions ask."""


def _nested() -> Tensor:
    parts = [problems.normal(2, n, 8).transpose(0, 1) for n in (3, 5)]
    return torch.nested.nested_tensor(parts, layout=torch.jagged).transpose(1, 2)


NOT_OURS: dict[str, Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "float64": lambda: ((Q.double(),) * 3, {}),
    "bfloat16": lambda: ((Q.bfloat16(),) * 3, {}),
    "dropout of all": lambda: ((Q, Q, Q), {"dropout_p": 1.0}),
    "large heads": lambda: ((torch.ones(1, 1, 5, 129),) * 3, {}),
    "another width": lambda: ((Q, Q, torch.ones(1, 2, 5, 9)), {}),
    "a mask that requires grad": lambda: ((Q, Q, Q, BIAS.clone().requires_grad_()), {}),
    "a mask and causal": lambda: ((Q, Q, Q, BIAS), {"is_causal": True}),
    "meta": lambda: ((Q.to("meta"),) * 3, {}),
    "nested": lambda: ((_nested(),) * 3, {}),
    # What is wrong.
    "no tensor": lambda: ((Q, Q, None), {}),
    "inner sizes": lambda: ((Q, Q[..., :7], Q), {}),
    "heads": lambda: ((Q, *[torch.ones(1, 3, 5, 8)] * 2), {}),
    "shared heads": lambda: ((Q, *[torch.ones(1, 3, 5, 8)] * 2), {"enable_gqa": True}),
    "a mask's shape": lambda: ((Q, Q, Q, torch.zeros(4, 5)), {}),
    "a mask's dtype": lambda: ((Q, Q, Q, BIAS.double()), {}),
    "dtypes": lambda: ((Q, Q.double(), Q), {}),
    "scale": lambda: ((Q, Q, Q), {"scale": "1"}),
    "one dimension": lambda: ((Q[0, 0, 0],) * 3, {}),
    "dropout of 2": lambda: ((Q, Q, Q), {"dropout_p": 2.0}),
}


@pytest.fixture
def no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> Any:
        raise AssertionError("a kernel was called")

    monkeypatch.setattr(attention, "FORWARD", refuse)


def _outcome(function: Any, args: Any, options: Any) -> Any:
    try:
        out = function(*args, **options)
    except Exception as error:
        return type(error), str(error)
    if out.is_nested:
        return type(out), out.values().detach()
    return type(out), out.device.type, out.requires_grad, out.detach()


@pytest.mark.parametrize("name", NOT_OURS)
def test_what_the_kernels_do_not_take_is_torchs(name, kernels_of_attention, no_kernel):
    """Results and errors."""
    args, options = NOT_OURS[name]()
    *got, value = _outcome(sdpa, args, options)
    *want, wanted = _outcome(F.scaled_dot_product_attention, args, options)
    assert got == want
    if not isinstance(wanted, Tensor):
        assert value == wanted
    elif not wanted.is_meta:
        assert value.dtype is wanted.dtype
        assert torch.allclose(value, wanted, 0, 0, equal_nan=True)


def test_on_a_cpu_it_is_torchs(no_kernel):
    assert same_bits(sdpa(Q, Q, Q), F.scaled_dot_product_attention(Q, Q, Q))


def test_a_class_of_ones_own_is_asked(kernels_of_attention):
    q = Q.as_subclass(Wrapped)
    assert type(sdpa(q, Q, Q)) is Wrapped


def test_autocast_keeps_float32(kernels_of_attention):
    q, k, v = _shapes(*[(1, 2, 5, 8)] * 3)
    with torch.autocast("cpu", torch.bfloat16):
        got = sdpa(q.bfloat16(), k, v, torch.zeros(5, 5, dtype=torch.bfloat16))
        dropped = sdpa(q.bfloat16(), k, v, dropout_p=0.5)
        by_hand = FORWARD(q.bfloat16(), k, v, None, False, 8**-0.5)[0]
    assert dropped.dtype is torch.float32
    assert same_bits(got, sdpa(q.bfloat16().float(), k, v))
    assert same_bits(by_hand, got)


def test_flops_are_counted(kernels_of_attention):
    q, k = (t.requires_grad_() for t in _shapes((2, 1, 5, 8), (2, 1, 7, 8)))
    with FlopCounterMode(display=False) as count:
        sdpa(q, k, k).sum().backward()
    each = 2 * 2 * 5 * 7 * 8
    found = {str(op): n for op, n in count.get_flop_counts()["Global"].items()}
    assert found == {"xgemm.attention_forward": 2 * each, "xgemm.attention_backward": 5 * each}


# ------------------------------------------------------------------------------ derivatives

TINY = ((1, 2, 5, 8), (1, 2, 7, 8), (1, 2, 7, 8))


def _mask() -> Tensor:
    mask = torch.rand(1, 2, 5, 7) < 0.6
    mask[:, :, 2] = False
    return mask


def three_orders(function: Any, tensors: list[Tensor], *args: Any, **options: Any) -> list[Tensor]:
    x = [t.detach().requires_grad_() for t in tensors]
    out = function(*x, *args, **options)
    first = torch.autograd.grad(out.sin().sum(), x, create_graph=True)
    second = torch.autograd.grad(sum((g * g.cos()).sum() for g in first), x, create_graph=True)
    third = torch.autograd.grad(sum(g.square().sum() for g in second), x)
    return [out, *first, *second, *third]


@pytest.mark.parametrize("kind", ["plain", "causal", "mask", "numbers"])
def test_derivatives_of_derivatives(kind, kernels_of_attention):
    tensors = _shapes(*TINY)
    mask = {"mask": _mask(), "numbers": problems.normal(5, 7)}.get(kind)
    got = three_orders(sdpa, tensors, mask, is_causal=kind == "causal")
    wide = mask.double() if kind == "numbers" else mask
    doubles = [t.double() for t in tensors]
    want = three_orders(by_math, doubles, wide, is_causal=kind == "causal")
    for x, y in zip(got, want, strict=True):
        beside = 2e-5 * max(1.0, float(y.detach().abs().max()))
        torch.testing.assert_close(x.double(), y, rtol=2e-4, atol=beside)


def test_the_first_gradient_is_the_kernels_whatever_follows(kernels_of_attention):
    q, k, v = _shapes(*TINY)
    q.requires_grad_()
    for create in (False, True):
        out = sdpa(q, k, v)
        (got,) = torch.autograd.grad(out.sin().sum(), q, create_graph=create)
        out, lse = FORWARD(q.detach(), k, v, None, False, 8**-0.5)
        want = BACKWARD(out.cos(), q.detach(), k, v, None, out, lse, False, 8**-0.5)[0]
        assert same_bits(got.detach(), want)


Loss = Callable[..., Any]


def _loss(function: Any) -> Loss:
    return lambda q, k, v: function(q, k, v, is_causal=True).sin().sum()


TRANSFORMS: dict[str, Callable[[Loss, list[Tensor]], Any]] = {
    "grad": lambda f, x: grad(f, (0, 1, 2))(*x),
    "grad of grad": lambda f, x: grad(lambda q: grad(f, 1)(q, *x[1:]).cos().sum())(x[0]),
    "vjp": lambda f, x: vjp(f, *x)[1](torch.ones((), dtype=x[0].dtype)),
    "vmap": lambda f, x: vmap(f)(*x),
    "vmap of grad": lambda f, x: vmap(grad(f, (0, 1, 2)), (1, 1, 1))(*x),
    "vmap of grad, shared": lambda f, x: vmap(grad(f, (0, 1)), (0, None, None))(
        torch.stack([x[0], 2 * x[0]]), *x[1:]
    ),
    "grad of vmap": lambda f, x: grad(lambda q: vmap(f)(q, *x[1:]).cos().sum())(x[0]),
    "jacrev of grad": lambda f, x: jacrev(grad(lambda q: f(q, *x[1:])))(x[0][:, :1, :1]),
    "jvp": lambda f, x: jvp(f, tuple(x), tuple(t.flip(-1) for t in x)),
    "jvp of grad": lambda f, x: jvp(grad(f), tuple(x), tuple(t.flip(-1) for t in x)),
    "jacfwd of grad": lambda f, x: jacfwd(grad(lambda q: f(q, *x[1:])))(x[0][:, :1, :1]),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(name, kernels_of_attention):
    tensors = _shapes(*TINY)
    got = TRANSFORMS[name](_loss(sdpa), tensors)
    want = TRANSFORMS[name](_loss(by_math), [t.double() for t in tensors])
    torch.testing.assert_close(
        torch.utils._pytree.tree_map(lambda t: t.double(), got), want, rtol=1e-4, atol=1e-5
    )


def test_vmap_of_a_mask(kernels_of_attention):
    q, k, v = _shapes(*TINY)
    masks = torch.stack([_mask(), _mask()])
    got = vmap(lambda m: sdpa(q, k, v, m))(masks)
    want = torch.stack([sdpa(q, k, v, m) for m in masks])
    torch.testing.assert_close(got, want)


def test_forward_mode(kernels_of_attention):
    q, k, v = _shapes(*TINY)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(q, k[:, :, :5])
        got = forward_ad.unpack_dual(sdpa(dual, k, v, is_causal=True))
    primal, tangent = jvp(
        lambda q: _float64(q, k, v, is_causal=True), (q.double(),), (k[:, :, :5].double(),)
    )
    torch.testing.assert_close(got.primal.double(), primal, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got.tangent.double(), tangent, rtol=1e-5, atol=1e-5)


def test_functionalize(kernels_of_attention):
    q, k, v = _shapes(*TINY)
    assert same_bits(functionalize(lambda q: sdpa(q, k, v))(q), sdpa(q, k, v))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(reentrant, kernels_of_attention):
    q, k, v = _shapes(*TINY)
    grads = []
    for wrap in (lambda f, x: f(x), functools.partial(checkpoint, use_reentrant=reentrant)):
        x = q.clone().requires_grad_()
        wrap(lambda x: sdpa(x, k, v), x).sin().sum().backward()
        grads.append(x.grad)
    assert same_bits(*grads)


# ------------------------------------------------------------------------------ compilers


@pytest.mark.parametrize("dynamic", [False, True])
def test_it_compiles(dynamic, kernels_of_attention):
    """Whole, with gradients, under autocast, and where the call is torch's."""
    q, k, v = _shapes(*TINY)
    mask = _mask()

    def call(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        plain, masked = sdpa(q, k, v, is_causal=True), sdpa(q, k, v, mask, scale=0.5)
        shared = sdpa(torch.cat([q, q], 1), k, v, enable_gqa=True)
        return plain, masked, shared, sdpa(q, k, torch.cat([v, v], -1))

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    found = []
    for function in (call, compiled):
        x = [t.detach().requires_grad_() for t in (q, k, v)]
        out = function(*x)
        grads = torch.autograd.grad(sum(y.sin().sum() for y in out), x)
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            cast = function(*x)
        found.append([*(t.detach() for t in out), *cast, *grads])
    for x, y in zip(*found, strict=True):
        assert x.dtype is torch.float32
        assert x.stride() == y.stride()
        torch.testing.assert_close(x, y)


def test_sizes_that_data_decide(kernels_of_attention):
    def call(q: Tensor, k: Tensor, n: Tensor) -> Tensor:
        rows = n.item()
        torch._check(rows >= 2)
        torch._check(rows <= 5)
        return sdpa(q.narrow(2, 0, rows), k, k)

    q, k, _ = _shapes(*TINY)
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        got = torch.compile(call, fullgraph=True, backend="aot_eager")(q, k, torch.tensor(3))
    assert same_bits(got, sdpa(q[:, :, :3], k, k))


def test_torchs_rules_for_operators():
    q, k, v = (t.requires_grad_() for t in _shapes(*TINY))
    bias = problems.normal(5, 7).expand(1, 2, 5, 7)
    torch.library.opcheck(FORWARD.default, (q, k, v, bias, False, 0.3))
    torch.library.opcheck(FORWARD.default, (q, k, v, None, True, 0.3))
    out, lse = (t.detach() for t in FORWARD(q, k, v, None, True, 0.3))
    dout = problems.normal(*out.shape)
    torch.library.opcheck(BACKWARD.default, (dout, q, k, v, None, out, lse, True, 0.3))
    dropout = 0.4, *numbers(9, 8)
    torch.library.opcheck(FORWARD.default, (q, k, v, None, True, 0.3, *dropout))
    torch.library.opcheck(BACKWARD.default, (dout, q, k, v, None, out, lse, True, 0.3, *dropout))
    given = [t.detach() for t in (dout, q, k, v)]
    into = {f"d{name}": torch.empty_like(t) for name, t in zip("qkv", given[1:], strict=True)}
    torch.library.opcheck(BACKWARD.out, (*given, None, out, lse, True, 0.3), into)


def test_export(kernels_of_attention):
    class Model(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return sdpa(q, k, v)

    q, k, v = _shapes(*TINY)
    rows, keys = torch.export.Dim("rows", min=2, max=64), torch.export.Dim("keys", min=2, max=64)
    program = torch.export.export(
        Model(), (q, k, v), dynamic_shapes=({2: rows}, {2: keys}, {2: keys})
    )
    assert any(n.target is FORWARD.default for n in program.graph.nodes)
    longer = problems.normal(1, 2, 9, 8)
    assert same_bits(program.module()(longer, k, v), sdpa(longer, k, v))


# ------------------------------------------------------------------------------ on a GPU


@pytest.fixture
def gpu() -> Iterator[torch.device]:
    needs_kernels()
    yield torch.device("cuda")


@on_a_gpu
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_each_backward_takes_the_others_forward(causal, masked, gpu):
    """The result and the logarithms are those of torch's kernel, in the same memory."""
    b, h, s, t, d = 2, 3, 200, 264, 64
    q, k, v, dout = operands(b, h, s, t, d, gpu)
    bias = biased("masks", b, h, s, t, gpu) if masked else None
    theirs = EFFICIENT(q, k, v, bias, True, 0.0, causal, scale=0.125)
    mine = FORWARD(q, k, v, bias, causal, 0.125)
    for x, y in zip(mine, theirs[:2], strict=True):
        assert (x.shape, x.stride()) == (y.shape, y.stride())
    torch.testing.assert_close(mine[0], theirs[0], rtol=1e-5, atol=1e-5)
    # Of a query that sees no key torch has 0, and the backward kernels take either.
    logarithms = theirs[1].masked_fill(mine[1] == torch.inf, torch.inf)
    torch.testing.assert_close(mine[1], logarithms, rtol=1e-5, atol=1e-5)
    problem = (q, k, v, bias, causal, 0.125, dout)
    want, sizes = exact(*problem)
    backward = torch.ops.aten._scaled_dot_product_efficient_attention_backward
    wanted = [True, True, True, False]
    for out, lse in (mine, theirs[:2]):
        of_torch = backward(dout, q, k, v, bias, out, lse, *theirs[2:], 0.0, wanted, causal,
                            scale=0.125)[:3]  # fmt: skip
        of_ours = BACKWARD(dout, q, k, v, bias, out, lse, causal, 0.125)
        for grads in (of_torch, of_ours):
            found = errors((out, lse[..., :s], *grads), want, sizes)
            assert max(found.values()) < 64, found


@on_a_gpu
def test_a_graph_holds_the_calls(gpu):
    q, k, v, dout = operands(1, 4, 300, 300, 64, gpu)
    q.requires_grad_()

    def step() -> tuple[Tensor, Tensor]:
        out = sdpa(q, k, v, is_causal=True)
        return out.detach(), torch.autograd.grad(out, q, dout)[0]

    graph, held = captured(step)
    for _ in range(2):
        with torch.no_grad():
            q.normal_()
        graph.replay()
        assert all(same_bits(x, y) for x, y in zip(held, step(), strict=True))


@on_a_gpu
def test_the_host_waits_for_nothing(gpu):
    q, k, v, dout = operands(1, 4, 300, 300, 64, gpu)
    mask = torch.rand(300, 300, device=gpu) < 0.5
    q.requires_grad_()
    sdpa(q, k, v, mask)
    torch.cuda.set_sync_debug_mode("error")
    try:
        out = sdpa(q, k, v, mask)
        torch.autograd.grad(out, q, dout)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@on_a_gpu
@pytest.mark.parametrize("shape", [(2, 4, 128, 64), (4, 128, 64), (128, 64)])
def test_the_function_on_a_gpu(shape, gpu):
    """By kernels of its own, beside torch's of float64, with gradients."""
    tensors = [problems.normal(*shape, device=gpu) for _ in range(3)]
    with FlopCounterMode(display=False) as count:
        got = three_orders(sdpa, tensors, is_causal=True)[:4]
    assert {"xgemm.attention_forward", "xgemm.attention_backward"} <= {
        str(op) for op in count.get_flop_counts()["Global"]
    }
    want = three_orders(by_math, [t.double() for t in tensors], is_causal=True)[:4]
    for x, y in zip(got, want, strict=True):
        torch.testing.assert_close(x.double(), y, rtol=1e-4, atol=1e-5)


@on_a_gpu
def test_inductor_on_a_gpu(gpu):
    q, k, v, _ = operands(2, 4, 128, 128, 64, gpu)
    call = torch.compile(lambda q: sdpa(q, k, v, is_causal=True).relu() * 2, fullgraph=True)
    found = []
    for function in (call, lambda q: sdpa(q, k, v, is_causal=True).relu() * 2):
        x = q.clone().requires_grad_()
        out = function(x)
        found.append((out.detach(), torch.autograd.grad(out.sin().sum(), x)[0]))
    for x, y in zip(*found, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-5)


@on_a_gpu
def test_kernels_run_on_the_current_stream(gpu):
    q, k, v, _ = operands(1, 2, 64, 64, 32, gpu)
    want = sdpa(q, k, v)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        got = sdpa(q, k, v)
    torch.cuda.current_stream().wait_stream(stream)
    assert same_bits(got, want)
