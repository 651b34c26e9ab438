"""Attention in one kernel, in FP32: ``scaled_dot_product_attention``, forward and backward.

The kernels are operators (`attention_ops`), for compute capability 9.0. Here is the function that
is torch's in them, and what ``patch()`` puts in the place of torch's own fused attention.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.compiler import is_compiling
from torch.overrides import has_torch_function_variadic

from . import attention_dropout, ops, unbound
from ._checks import known
from .attention_ops import BACKWARD, BACKWARD_OUT, FORWARD, LARGEST_HEAD, flops_of_forward
from .deploy import to_onnx
from .ops import overridden
from .registry import attention_kernels

__all__ = ["scaled_dot_product_attention"]


@functools.cache
def _of_gpu(index: int) -> bool:
    major, minor = torch.cuda.get_device_capability(index)
    its = attention_kernels()
    return its.min_sm <= 10 * major + minor <= its.max_sm


def has_kernels(device: torch.device) -> bool:
    """Whether this build has the kernels for a device: a GPU of compute capability 9.0."""
    if device.type != "cuda":
        return False
    return _of_gpu(torch.cuda.current_device() if device.index is None else device.index)


# What torch.compiler.assume_constant_result sets, which imports Dynamo.
has_kernels._dynamo_marked_constant = True  # type: ignore[attr-defined]


# ---------------------------------------------------------------------------------------------
# torch's operators, which patch() takes


def why_torchs(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, dropout_p: float, how: dict[str, Any]
) -> str:  # fmt: skip
    """Why a call of torch's fused attention is left there, of any size; "" where kernels take it.

    Args:
        q: (B, H, S, D), float32, as the others; all on one device.
        k: (B, H, T, D).
        v: likewise.
        bias: (B, H, S, T), or None.
        dropout_p: the probability with which a weight becomes zero.
        how: options of ``sgemm``, those that are no defaults.
    """
    if not has_kernels(q.device):
        return "attention's kernels are for compute capability 9.0"
    if how:
        return "attention has precision='fp32' and kernel='auto' alone"
    if not attention_dropout.takes(dropout_p):
        return "dropout of all weights"
    if v.shape != k.shape:
        return "a value's width is not its key's"
    if not 1 <= q.shape[-1] <= LARGEST_HEAD:
        return f"heads of more than {LARGEST_HEAD}"
    if bias is not None and bias.shape != (*q.shape[:3], k.shape[2]):
        return "a bias of another shape"
    return ""


# A tile has 64 rows, and a call three launches. On an H100 forward passes of fewer queries or keys
# take 0.7 to 2.5 times torch's time, gradients of fewer keys 0.7 to 1.6; calls of fewer FLOP up to
# 1.5 times.
_FEW_ROWS, _FEW_FLOPS = 64, 2**29


def is_small(q: Tensor, k: Tensor, backward: bool = False) -> bool:
    """Whether torch's own is as fast, of the forward pass or of its gradients.

    Not where a size is not known.
    """
    few = known(k.shape[-2] < _FEW_ROWS) or (not backward and known(q.shape[-2] < _FEW_ROWS))
    return few or known(flops_of_forward(q.shape, k.shape) < _FEW_FLOPS)


def as_torchs_forward(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, wants_lse: bool, dropout_p: float,
    is_causal: bool, scale: float | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """What ``aten._scaled_dot_product_efficient_attention`` gives, for operands that are ours.

    Returns:
        The result; the logarithms, of no rows where they are not wanted; and the seed and the
        offset of dropout, which without it are not written, and lie on the CPU but in a graph.
    """
    seed, offset = attention_dropout.draw(dropout_p, q, k.shape[2])
    out, lse = FORWARD(q, k, v, bias, is_causal, _factor(q, scale), dropout_p, seed, offset)
    if not wants_lse:
        lse = lse.new_empty(*q.shape[:2], 0)
    if seed is None or offset is None:
        where = q.device if q.is_cuda and torch.cuda.is_current_stream_capturing() else "cpu"
        seed, offset = (torch.empty((), dtype=torch.int64, device=where) for _ in range(2))
    return out, lse, seed, offset


def as_torchs_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, out: Tensor, lse: Tensor,
    seed: Tensor, offset: Tensor, dropout_p: float, is_causal: bool, scale: float | None,
) -> tuple[Tensor, Tensor, Tensor, None]:  # fmt: skip
    """What ``aten._scaled_dot_product_efficient_attention_backward`` gives, without a bias's.

    Where q, k and v are parts of one projection, so are their gradients (`unbound`).
    """
    given = grad, q, k, v, bias, out, lse, is_causal, _factor(q, scale), dropout_p, seed, offset
    parts = unbound.parts_of_attention(q, k, v)
    if parts is None:
        return *BACKWARD(*given), None
    dq, dk, dv = parts
    BACKWARD_OUT(*given, dq=dq, dk=dk, dv=dv)
    return dq, dk, dv, None


def _factor(q: Tensor, scale: float | None) -> float:
    return 1 / math.sqrt(q.shape[-1]) if scale is None else scale


# ---------------------------------------------------------------------------------------------
# The public function


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attention, as ``torch.nn.functional.scaled_dot_product_attention``, at FP32 accuracy.

    softmax(scale query key^T + mask) value, over the keys. A query that sees no key gets zeros.
    Differentiable to any order; a gradient of a gradient, and forward mode, keep matrices of S x T
    elements. The same call gives the same bits, gradients included. Dropout draws from the device's
    generator as torch's fused kernel does, and drops the weights that it drops.

    The kernels are made for compute capability 9.0, and take float32 heads of one width of 1 to 128
    elements. The call is torch's own, with its result or error, where they do not take it: other
    devices and dtypes, another width or another number of keys of ``value``, a mask that requires
    grad, dropout of all weights, nested and sharded tensors; and where it is as fast: fewer than 64
    queries or keys, or than 2^29 FLOP. Under autocast it is computed in float32,
    lower precisions cast to it, whoever computes it.

    Args:
        query: (..., S, D), any strides; leading dimensions are broadcast, and the last of them are
            the heads.
        key: (..., T, D).
        value: (..., T, D).
        attn_mask: of a shape that can be broadcast to (..., S, T): of bool, True where a query sees
            a key, or of float32, added to the scaled products.
        dropout_p: the probability with which a weight becomes zero.
        is_causal: query i sees the keys 0 to i alone; not together with ``attn_mask``.
        scale: the factor of the products; 1 / sqrt(D) where it is None.
        enable_gqa: ``key`` and ``value`` may have fewer heads, each for several of ``query``, in
            order. They are copied for it.

    Returns:
        (..., S, D), the heads of a position side by side in memory, as torch's fused kernels give
        it.

    Raises:
        RuntimeError: what torch raises of such a call, or trouble with the device.

    Example:
        >>> y = xgemm_torch.scaled_dot_product_attention(q, k, v, is_causal=True)
    """
    operands: tuple[Any, ...] = query, key, value, attn_mask
    if has_torch_function_variadic(*operands):
        if isinstance(query, Tensor) and query.is_nested:
            return F.scaled_dot_product_attention(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale,
                enable_gqa=enable_gqa,
            )  # fmt: skip
        return overridden(
            scaled_dot_product_attention, operands, *operands, dropout_p=dropout_p,
            is_causal=is_causal, scale=scale, enable_gqa=enable_gqa,
        )  # fmt: skip
    options = dropout_p, is_causal, scale, enable_gqa
    if (is_compiling() or ops.any_autocast()) and isinstance(query, Tensor):
        device = query.device.type
        if torch.is_autocast_enabled(device):
            operands = tuple(ops._float32(t) if isinstance(t, Tensor) else t for t in operands)
            with torch.autocast(device, enabled=False):
                return _attention(operands, *options)
    return _attention(operands, *options)


def _attention(
    operands: tuple[Any, ...],
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> Tensor:
    query, key, value, mask = operands
    out = by_kernels(query, key, value, mask, dropout_p, is_causal, scale, enable_gqa)
    if out is not None:
        return out
    return F.scaled_dot_product_attention(
        query, key, value, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )


def by_kernels(
    query: Any, key: Any, value: Any, mask: Any, dropout_p: Any, is_causal: Any, scale: Any,
    enable_gqa: bool,
) -> Tensor | None:  # fmt: skip
    """The result, or None where the call is torch's own: what does not fit, and what is small."""
    if not _is_ours(query, key, value, mask, dropout_p, is_causal, scale):
        return None
    found = _in_four_dimensions(query, key, value, mask, enable_gqa)
    if found is None or is_small(found[0], found[1]):
        return None
    q, k, v, bias, lead = found
    seeds = attention_dropout.draw(dropout_p, q, k.shape[2])
    out, _ = FORWARD(q, k, v, bias, is_causal, _factor(q, scale), dropout_p, *seeds)
    if len(lead) == 2:
        return out
    if len(lead) < 2:
        return out.squeeze(1) if lead else out[0, 0]
    return out.unflatten(0, lead[:-1])


def _is_ours(q: Any, k: Any, v: Any, mask: Any, dropout_p: Any, is_causal: Any, scale: Any) -> bool:
    """Whether the kernels take such tensors and options, whatever the leading dimensions."""
    tensors = (q, k, v) if mask is None else (q, k, v, mask)
    if not all(isinstance(t, Tensor) for t in tensors):
        return False
    if not has_kernels(q.device) or any(_is_wrapped(t) for t in tensors):
        return False
    if any(
        t.dtype is not torch.float32 or t.layout is not torch.strided or t.dim() < 2
        for t in (q, k, v)
    ):
        return False
    if any(t.device != q.device for t in tensors):
        return False
    if mask is not None and (
        mask.dtype not in (torch.bool, torch.float32)
        or mask.layout is not torch.strided
        or (mask.requires_grad and torch.is_grad_enabled())
        or is_causal
    ):
        return False
    if not attention_dropout.takes(dropout_p) or not isinstance(is_causal, bool):
        return False
    if not isinstance(scale, (float, int, torch.SymFloat, torch.SymInt, type(None))):
        return False
    if (is_compiling() or torch._C._get_tracing_state() is not None) and to_onnx():
        return False
    width = q.shape[-1]
    return bool(
        1 <= width <= LARGEST_HEAD
        and k.shape[-1] == width
        and v.shape[-1] == width
        and k.shape[-2] == v.shape[-2]
    )


def _is_wrapped(t: Tensor) -> bool:
    """Whether a tensor is none of numbers in one place: nested, or sharded (DTensor)."""
    if t.is_nested:
        return True
    if type(t) in ops._UNTRACED:
        return False
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    return is_traceable_wrapper_subclass(t)


def _in_four_dimensions(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, enable_gqa: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, torch.Size] | None:
    """The operators' q, k, v and bias, and the leading dimensions of the result.

    None where they do not fit, which torch has its words for.
    """
    if enable_gqa and not _same(q.shape[:-2], k.shape[:-2], v.shape[:-2]):
        k, v = (_with_heads_of(q, t) for t in (k, v))  # type: ignore[assignment]
        if k is None or v is None:
            return None
    lead = of_scores = q.shape[:-2]
    if not _same(lead, k.shape[:-2], v.shape[:-2]):
        try:
            of_scores = torch.broadcast_shapes(lead, k.shape[:-2])
            lead = torch.broadcast_shapes(of_scores, v.shape[:-2])
        except RuntimeError:
            return None
    bias: Tensor | None = None
    if mask is not None:
        try:
            mask = mask.expand(*of_scores, q.shape[-2], k.shape[-2])
        except RuntimeError:
            return None
        bias = mask
        if mask.dtype is torch.bool:
            bias = _added(mask)
        bias = _four(bias, lead)
    return _four(q, lead), _four(k, lead), _four(v, lead), bias, lead


def _same(*shapes: torch.Size) -> bool:
    return all(shape == shapes[0] for shape in shapes[1:])


def _added(mask: Tensor) -> Tensor:
    """What a mask of bool adds: 0 where a query sees a key, else -inf; no larger than the mask."""
    small = mask
    for i, step in enumerate(mask.stride()):
        if step == 0:
            small = small[(slice(None),) * i + (slice(1),)]
    added = torch.zeros_like(small, dtype=torch.float32).masked_fill(~small, float("-inf"))
    return added.expand(mask.shape)


def _with_heads_of(q: Tensor, t: Tensor) -> Tensor | None:
    """Keys or values, with each head repeated for those of q that share it."""
    if q.dim() < 3 or t.dim() < 3 or t.shape[-3] == 0 or q.shape[-3] % t.shape[-3] != 0:
        return None
    each = q.shape[-3] // t.shape[-3]
    shape = (*t.shape[:-2], each, *t.shape[-2:])
    return t.unsqueeze(-3).expand(shape).flatten(-4, -3)


def _four(t: Tensor, lead: torch.Size) -> Tensor:
    """A tensor broadcast to leading dimensions, as (B, H, rows, columns); one of them is B."""
    if t.shape[:-2] != lead:
        t = t.expand(*lead, *t.shape[-2:])
    if len(lead) == 2:
        return t
    if len(lead) < 2:
        return t.unsqueeze(1) if lead else t[None, None]
    return t.flatten(0, -4)
