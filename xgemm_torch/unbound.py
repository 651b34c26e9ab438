"""The gradient of a tensor that was permuted and unbound, in the layout that the tensor came in.

A packed projection is cut as ``qkv.view(B, S, 3, H, D).permute(2, 0, 3, 1, 4).unbind()``. torch's
gradient of ``unbind`` stacks those of q, k and v along a new first dimension, and the gradient of
the view copies the stack into the order of the projection. Stacked in that order at once, the view
has nothing to copy; and where attention has written its gradients side by side in that order, as
`parts_of_attention` has it, neither has the stack. On an H200 torch's stacks and copies are 2.8 ms
of a step of ViT-B, 58 ms; stacks in the projection's order 0.6.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

STACK = torch.ops.aten.stack.default
# A name of torch's that is not public: without it stacks are torch's.
_node: Any = getattr(torch._C, "_current_autograd_node", lambda: None)


def permuted() -> tuple[int, ...] | None:
    """How what was unbound had been permuted; None elsewhere than in ``unbind``'s gradient."""
    return _permuted(_node())


def _permuted(unbind: Any) -> tuple[int, ...] | None:
    """The permutation before a node of the graph, where that is ``unbind``'s gradient."""
    if unbind is None or unbind.name() != "UnbindBackward0":
        return None
    source = unbind.next_functions[0][0]
    if source is None or source.name() != "PermuteBackward0":
        return None
    dims = source._saved_dims
    return tuple(_signed(d) % len(dims) for d in dims)


def _signed(dim: int) -> int:
    """A dimension as it was given: a node has it without a sign."""
    return dim - 2**64 if dim >= 2**63 else dim


def parts_of_attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """Memory for the gradients of q, k and v, side by side in the order of their projection.

    None elsewhere than in torch's gradient of attention, where the three are not all that was
    unbound, and where a graph of the gradient is made.
    """
    node = _node()
    if node is None or node.name() != "ScaledDotProductEfficientAttentionBackward0":
        return None
    (unbind, first), *others = node.next_functions[:3]
    if first != 0 or others != [(unbind, 1), (unbind, 2)] or torch.is_grad_enabled():
        return None
    dims = _permuted(unbind)
    if dims is None or len(dims) != q.dim() + 1 or not q.shape == k.shape == v.shape:
        return None
    dim = _signed(unbind._saved_dim) % len(dims)
    shape = _before([*q.shape[:dim], 3, *q.shape[dim:]], dims)
    parts = q.new_empty(shape).permute(dims).unbind(dim)
    return parts[0], parts[1], parts[2]


def _before(shape: Sequence[int], dims: tuple[int, ...]) -> list[int]:
    """The shape before a permutation, of the one after it."""
    sizes = dict(zip(dims, shape, strict=True))
    return [sizes[i] for i in range(len(dims))]


def stack(tensors: Sequence[Tensor], dim: int = 0, *, dims: tuple[int, ...]) -> Tensor:
    """``torch.stack``, dense in the order before a permutation.

    Args:
        tensors: the parts.
        dim: where the new dimension goes in the result.
        dims: the permutation: dimension i of the result is dimension ``dims[i]`` of its memory.

    Returns:
        What ``torch.stack(tensors, dim)`` gives, strides apart; where ``dims`` is not of the
        result's rank, as of physical tensors under ``vmap``, with its strides. Parts that lie side
        by side in that order already are returned as they lie.
    """
    first = tensors[0]
    if first.dim() + 1 != len(dims):
        return STACK(tensors, dim)
    dim %= len(dims)
    if (whole := _side_by_side(tensors, dim, dims)) is not None:
        return whole
    order = [i for i in sorted(range(len(dims)), key=dims.__getitem__) if i != dim]
    parts = [t.permute([i - (i > dim) for i in order]) for t in tensors]
    return STACK(parts, dims[dim]).permute(dims)


def _side_by_side(tensors: Sequence[Tensor], dim: int, dims: tuple[int, ...]) -> Tensor | None:
    """The stack of parts that are `parts_of_attention`, without a copy; None of others."""
    first = tensors[0]
    if torch.is_grad_enabled() or not all(type(t) is Tensor for t in tensors):
        return None
    shape = _before([*first.shape[:dim], len(tensors), *first.shape[dim:]], dims)
    strides, dense = [0] * len(shape), 1
    for i in reversed(range(len(shape))):
        strides[i] = dense
        dense *= shape[i]
    of_parts = [strides[i] for i in dims]
    step = of_parts.pop(dim)
    begin, storage = first.storage_offset(), first.untyped_storage()._cdata
    for i, t in enumerate(tensors):
        if t.shape != first.shape or t.storage_offset() != begin + i * step:
            return None
        if list(t.stride()) != of_parts or t.untyped_storage()._cdata != storage:
            return None
    return first.as_strided(shape, strides).permute(dims) if dense else None
