"""Products of 16-bit activations and FP32 weights: a router's gate, an FP32 head of a bf16 model.

torch has no such product: a program calls ``x.float()`` first, which writes twice the bytes that it
reads, and multiplies in FP32. Elements of 8 or 11 bits need no second fp16 limb: on compute
capability 9.0 the rung ``wgmma_fp16x3`` reads them as they are, in two tensor-core products in
place of three. Where that is not the quickest way, or not there, the operator makes the FP32 copy
itself. The contract is that of ``sgemm`` on the copy, which holds x exactly.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function
from torch.compiler import is_compiling

from . import _checks, flops, inductor
from ._checks import Words, own_words
from .functional import _bias_fits, linear
from .ops import _LIB, _UNTRACED, KERNELS, _BelowAutograd, sgemm, transforming
from .registry import NAMESPACE, OPERATORS
from .types import Precision

_OP = OPERATORS.mixed_mm.default
_LINEAR = Words("mixed_linear", a="x", b="weight", c="bias", flags=False)
DTYPES = (torch.bfloat16, torch.float16)
"""What ``x`` may hold."""


def _check(words: Words, a: Tensor, b: Any, c: Any = None, **flags: Any) -> tuple[int, ...]:
    """Raise what is wrong, as C++ says it or as a TypeError; give the result's shape."""
    dtype = a.dtype if a.dtype in DTYPES else torch.bfloat16
    shape = _checks.check(words, KERNELS["sgemm"], a, b, c, dtype_of_a=dtype, **flags)
    for t in (a, b):
        if t.dim() != 2:
            raise ValueError(
                f"{words.name}: {words.a} and {words.b} must have 2 dimensions, got shapes "
                f"{tuple(a.shape)} and {tuple(b.shape)}"
            )
    return shape


@torch.library.register_fake(f"{NAMESPACE}::mixed_mm", lib=_LIB)
def _fake(a: Tensor, b: Tensor, c: Tensor | None = None, **flags: Any) -> Tensor:
    inductor.register()
    shape = _check(own_words("mixed_mm"), a, b, c, **flags)
    return a.new_empty(shape, dtype=torch.float32)


def _keep(ctx: Any, a: Tensor, b: Tensor, c: Tensor | None, flags: dict[str, Any]) -> None:
    """Keep what gradients need: each operand where the other's is."""
    need_a, need_b, *_ = ctx.needs_input_grad
    ctx.save_for_backward(a if need_b else None, b if need_a else None)
    ctx.dtype, ctx.shape_of_c, ctx.flags = a.dtype, None if c is None else c.shape, flags


def _setup(ctx: Any, inputs: Any, keyword_only_inputs: dict[str, Any], output: Tensor) -> None:
    a, b, c = inputs
    _keep(ctx, a, b, c, keyword_only_inputs)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of a, b and c, by operations that have gradients."""
    a, b = ctx.saved_tensors
    of_a = of_b = of_c = None
    trans_b = ctx.flags.get("trans_b", False)
    how = {key: ctx.flags[key] for key in ("precision", "kernel") if key in ctx.flags}
    if b is not None:
        of_a = sgemm(grad, b, trans_b=not trans_b, **how).to(ctx.dtype)
    if a is not None:
        x, y = (grad, a.float()) if trans_b else (a.float(), grad)
        of_b = sgemm(x, y, trans_a=True, **how)
    if ctx.needs_input_grad[2]:
        of_c = grad.sum_to_size(ctx.shape_of_c)
    return of_a, of_b, of_c


class _Mixed(Function):
    """The operator in eager mode: torch.library's own Function takes 30 us a call."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, c: Tensor | None, flags: dict[str, Any]) -> Tensor:
        _keep(ctx, a, b, c, flags)
        with _BelowAutograd():
            return _OP._op(a, b, c, **flags)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return *_backward(ctx, *grads), None


torch.library.register_autograd(f"{NAMESPACE}::mixed_mm", _backward, setup_context=_setup, lib=_LIB)
flops.register([OPERATORS.mixed_mm])


def _call(a: Tensor, b: Tensor, c: Tensor | None, flags: dict[str, Any]) -> Tensor:
    """The operator, of tensors that override nothing, by the shortest way."""
    if is_compiling():
        return _OP(a, b, c, **flags)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (a, b, c)):
        return _Mixed.apply(a, b, c, flags)
    with _BelowAutograd():
        return _OP._op(a, b, c, **flags)


def mixed_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    precision: Precision = "fp32",
    kernel: str = "auto",
) -> Tensor:
    """Give x weight^T + bias in FP32, as ``linear(x.float(), weight, bias)``, of 16-bit x.

    Gradients of every order: that of ``x`` is rounded to its dtype, the others are float32, and the
    weight's is a product with an FP32 copy of ``x``.

    Args:
        x: (..., in_features), bfloat16 or float16. It is read as it is where in_features lie dense
            and a stage reads such an operand (``Stage.takes_half_a``), and copied elsewhere: on a
            CPU, for few rows, inside ``torch.func``.
        weight: (out_features, in_features), float32.
        bias: (out_features,), float32.
        precision: "fp32" or "ieee", as of ``sgemm``.
        kernel: "auto" or a stage's name.

    Returns:
        (..., out_features), float32.

    Raises:
        TypeError: operands of other types, or none that are dense.
        ValueError: sizes, devices or names that do not fit.
        RuntimeError: trouble with the device.
    """
    if not isinstance(x, Tensor) or x.dtype not in DTYPES:
        held = str(x.dtype).removeprefix("torch.") if isinstance(x, Tensor) else type(x).__name__
        raise TypeError(f"mixed_linear: x must be a tensor of bfloat16 or float16, got {held}")
    known = is_compiling() or all(t is None or type(t) in _UNTRACED for t in (x, weight, bias))
    if not known or transforming() or x.dim() == 0 or weight.dim() != 2:
        return linear(x.float(), weight, bias, precision=precision, kernel=kernel)
    _bias_fits(bias, weight, _LINEAR.name)
    rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    flags: dict[str, Any] = {"trans_b": True}
    if precision != "fp32":
        flags["precision"] = precision
    if kernel != "auto":
        flags["kernel"] = kernel
    try:
        out = _call(rows, weight, bias, flags)
    except (TypeError, ValueError, RuntimeError):
        _check(_LINEAR, rows, weight, bias, **flags)
        raise
    return out if x.dim() == 2 else out.view(*x.shape[:-1], out.shape[-1])
