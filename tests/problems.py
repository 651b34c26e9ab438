"""Problems for the tests: shapes, layouts, data and views, each by name.

A problem is two operands and the flags with which an operator gives their product. A view has the
values of the tensor that it is made of, in other strides, at another offset.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import xgemm_torch

STAGES = [stage.name for stage in xgemm_torch.stages()]
"""The stages of this build."""

STRICT = [stage.name for stage in xgemm_torch.stages() if stage.strict]
"""Those whose bits are those of chains of fused multiply-adds."""

SPLITS = [stage.name for stage in xgemm_torch.stages() if stage.split_k]
"""Those of them that make several chains of an element where `split_k_size` says so."""

AUTO = [stage.name for stage in xgemm_torch.stages() if stage.auto_choice]
"""Those that "auto" considers."""

EMULATED = [stage.name for stage in xgemm_torch.stages() if not stage.strict]
"""Those that are as accurate as the chain, with other bits."""

OPERATORS = ["sgemm", *STAGES]
"""The names of torch.ops.xgemm."""

QUICK = ["sgemm", *STRICT, *EMULATED[:1]]
"""Those for tests of what all have in common that call them hundreds of times."""

TELLING = {name: "wide" for name in STRICT} | {name: "normal" for name in EMULATED}
"""Data that shows a stage's own arithmetic: the order of a chain; limbs, which leave wide rows to
the chain."""

PRECISIONS = {"auto": ["fp32", "ieee"]} | {
    stage.name: ["fp32", "ieee"] if stage.strict else ["fp32"] for stage in xgemm_torch.stages()
}
"""The values of ``precision`` that a value of ``kernel`` goes with."""

LAYOUTS = ["NN", "NT", "TN", "TT"]
"""Which operand is stored transposed: the first letter is a's, the second b's."""

SMALL = [(1, 1, 1), (1, 7, 3), (6, 1, 5), (5, 4, 1), (8, 8, 8), (13, 9, 11)]
"""(M, N, K), quick in the emulator."""

RAGGED = [(33, 31, 17), (31, 65, 8), (65, 33, 36), (129, 5, 7), (3, 131, 10)]
"""Around the tiles' edges."""

EMPTY = [(0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0), (0, 4, 0)]
"""With a size of 0."""


def normal(*shape: int, device: Any = "cpu") -> Tensor:
    """Standard normal values."""
    return torch.randn(shape, device=device)


def integers(*shape: int, device: Any = "cpu") -> Tensor:
    """Integers in [-4, 4]: every sum of products up to K = 2^19 is exact."""
    return torch.randint(-4, 5, shape, device=device, dtype=torch.float32)


def uniform(*shape: int, device: Any = "cpu") -> Tensor:
    """In [0, 1): sums that grow."""
    return torch.rand(shape, device=device)


def wide(*shape: int, device: Any = "cpu") -> Tensor:
    """Both signs, sizes log-uniform over 2^-20 to 2^20."""
    size = torch.exp2(torch.rand(shape, device=device) * 40 - 20)
    return size * torch.randn(shape, device=device).sign()


DATA: dict[str, Callable[..., Tensor]] = {
    "normal": normal,
    "integers": integers,
    "uniform": uniform,
    "wide": wide,
}


def _plain(t: Tensor) -> Tensor:
    return t.contiguous()


def _padded(t: Tensor) -> Tensor:
    """A leading dimension larger than the row, not a multiple of 4."""
    return torch.nn.functional.pad(t, (0, 3), value=torch.nan)[..., : t.shape[-1]]


def _offset(t: Tensor) -> Tensor:
    """Begins 4 bytes past a 16-byte boundary."""
    room = torch.full((t.numel() + 1,), torch.nan, device=t.device)
    return room[1:].view(t.shape).copy_(t)


def _column_major(t: Tensor) -> Tensor:
    return t.mT.contiguous().mT


def _spaced(t: Tensor) -> Tensor:
    """Neither rows nor columns have stride 1."""
    room = torch.full((*t.shape[:-2], t.shape[-2] * 2, t.shape[-1] * 3), torch.nan, device=t.device)
    return room[..., ::2, ::3].copy_(t)


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": _plain,
    "padded": _padded,
    "offset": _offset,
    "column_major": _column_major,
    "spaced": _spaced,
}
"""View makers: the same values, other strides; what lies between them is NaN."""


def operands(
    m: int,
    n: int,
    k: int,
    layout: str = "NN",
    *,
    batch: tuple[int | None, int | None] = (None, None),
    data: str = "normal",
    views: tuple[str, str] = ("plain", "plain"),
    device: Any = "cpu",
) -> tuple[Tensor, Tensor, dict[str, bool]]:
    """Operands of an (m, n, k) product and its flags, stored as ``layout`` says.

    ``batch`` gives each operand's batch size, None for no batch dimension.
    """
    trans_a, trans_b = (letter == "T" for letter in layout)
    shape_a, shape_b = (k, m) if trans_a else (m, k), (n, k) if trans_b else (k, n)
    made = [
        VIEWS[view](DATA[data](*(() if size is None else (size,)), *shape, device=device))
        for shape, size, view in zip((shape_a, shape_b), batch, views, strict=True)
    ]
    return made[0], made[1], {"trans_a": trans_a, "trans_b": trans_b}


def one_product(m: int, n: int, k: int) -> tuple[Tensor, Tensor]:
    """Of each sum the first product is nearly all, and no two limbs hold less of its factors.

    They are 1 and nearly half a unit of fp16's last place, which are 2^12 units of FP32's. An odd
    number of these is one more than a second limb holds.
    """
    a, b = (1e-6 * torch.randn(*shape) for shape in ((m, k), (k, n)))
    for first in (a[:, 0], b[0]):
        first[:] = 1 + (2 * torch.randint(2000, 2048, first.shape) - 1) * 2.0**-23
    return a * torch.randn(m, 1).sign(), b * torch.randn(1, n).sign()


def same_bits(x: Tensor, y: Tensor) -> bool:
    """Equal in every bit; a NaN is a NaN, since its payload is no part of the arithmetic."""
    x, y = x.cpu(), y.cpu()
    nan = x.isnan() & y.isnan()
    same = x.contiguous().view(torch.int32) == y.contiguous().view(torch.int32)
    return x.shape == y.shape and bool((same | nan).all())


def exact(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    trans_a: bool = False,
    trans_b: bool = False,
) -> Tensor:
    """The result in float64."""
    left, right = a.double(), b.double()
    product = alpha * torch.matmul(left.mT if trans_a else left, right.mT if trans_b else right)
    return product if c is None or beta == 0 else product + beta * c.double()


def right(
    stage: str, got: Tensor, a: Tensor, b: Tensor, c: Tensor | None = None, **options: Any
) -> bool:
    """Whether a stage's result keeps what it guarantees of each element by itself.

    A strict stage has the bits of one chain, or of the sum of several if it splits. Another is
    within (34 + K / 16) u of |A| |B|: more than is ever found, and a hundredth of what a lost limb
    of an operand costs. What is not finite is so just where the chain is not.
    """
    got, a, b = got.cpu(), a.cpu(), b.cpu()
    with xgemm_torch.simt.configure(split_k_size=None if stage in SPLITS else 0):
        chain = xgemm_torch.sgemm(a, b, c, precision="ieee", **options)
    if stage in STRICT:
        return same_bits(got, chain)
    finite = chain.isfinite()
    if got.shape != chain.shape or not same_bits(got[~finite], chain[~finite]):
        return False
    k = a.shape[-2 if options.get("trans_a") else -1]
    sizes = options | {name: abs(options.get(name, 1.0)) for name in ("alpha", "beta")}
    size = exact(a.abs(), b.abs(), None if c is None else c.abs(), **sizes)
    error = (got.double() - exact(a, b, c, **options)).abs()
    # Half of the least subnormal for each rounding of what is so small, the last one too.
    return bool((error <= (34 + k / 16) * 2.0**-24 * size + (k + 1) * 2.0**-150)[finite].all())
