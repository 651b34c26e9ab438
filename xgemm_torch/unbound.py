"""The gradient of a tensor that was permuted and unbound, in the layout that the tensor came in.

A packed projection is cut as ``qkv.view(B, S, 3, H, D).permute(2, 0, 3, 1, 4).unbind()``. torch's
gradient of ``unbind`` stacks those of q, k and v along a new first dimension, and the gradient of
the view copies the stack into the order of the projection. Stacked in that order at once, parts
that attention has written dense are read dense, and the view has nothing to copy.
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
    node = _node()
    if node is None or node.name() != "UnbindBackward0":
        return None
    source = node.next_functions[0][0]
    if source is None or source.name() != "PermuteBackward0":
        return None
    dims = source._saved_dims
    return tuple(_signed(d) % len(dims) for d in dims)


def _signed(dim: int) -> int:
    """A dimension as it was given: a node has it without a sign."""
    return dim - 2**64 if dim >= 2**63 else dim


def stack(tensors: Sequence[Tensor], dim: int = 0, *, dims: tuple[int, ...]) -> Tensor:
    """``torch.stack``, dense in the order before a permutation.

    Args:
        tensors: the parts.
        dim: where the new dimension goes in the result.
        dims: the permutation: dimension i of the result is dimension ``dims[i]`` of its memory.

    Returns:
        What ``torch.stack(tensors, dim)`` gives, strides apart; where ``dims`` is not of the
        result's rank, as of physical tensors under ``vmap``, with its strides.
    """
    if tensors[0].dim() + 1 != len(dims):
        return STACK(tensors, dim)
    dim %= len(dims)
    order = [i for i in sorted(range(len(dims)), key=dims.__getitem__) if i != dim]
    parts = [t.permute([i - (i > dim) for i in order]) for t in tensors]
    return STACK(parts, dims[dim]).permute(dims)
