"""Linear layers whose bits do not depend on the degree of tensor parallelism: 1, 2, 4 or 8 ranks.

A product that is sharded along K gives each rank a partial result, and a collective's own sum of
them depends on how many there are. Here K is cut into 8 parts at boundaries that no degree moves,
added in pairs (invariant.py). A rank's shard is one, two or four of them, a subtree, so that a rank
has one partial result to send, and the ranks' are added in pairs, in the order of the ranks. The
result, forward and in gradients, is that of ``linear(..., precision="ieee", invariant="tp")`` on
one machine, a GPU or a CPU.

    column-parallel: x, y_r = x W_r^T + b_r         dx = sum of dy_r W_r
    row-parallel:    x_r,  y = sum of x_r W_r^T + b  dx_r = dy W_r

The exchange takes what an all-reduce takes: each rank gets a part of all partial results
(all-to-all), adds up, and gives the sums to all (all-gather). Two ranks, and what is small, send
each other everything at once.

Layers need nothing of this: convert a model with ``invariant="tp"``, then ``parallelize_module`` it
with torch's own ``ColwiseParallel`` and ``RowwiseParallel``. The functions are for programs that
hold their shards as plain tensors.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import Function
from torch.distributed.tensor import DTensor, Replicate, Shard

from .functional import LINEAR, _bias_fits, _rows
from .invariant import PARTS, in_pairs, summed
from .ops import _product, in_parts
from .types import Activation

__all__ = ["column_parallel_linear", "row_parallel_linear"]

WAYS = (1, 2, 4, PARTS)
"""How many ranks a layer may have."""

# Its name before torch 2.13.
_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
# Elements of a partial result of which another exchange would take longer than what it saves.
_FEW = 1 << 14


def column_parallel_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: Activation = "none",
    *,
    group: dist.ProcessGroup | None = None,
    kernel: str = "auto",
) -> Tensor:
    """activation(x weight^T + bias) of a rank's output features.

    The gradient of ``x`` is the sum of all ranks', the same on each. Differentiable to any order,
    and once if compiled; not under ``torch.func``.

    Args:
        x: (..., in_features), the same on all ranks.
        weight: (out_features / ranks, in_features), this rank's rows, as many as each rank has.
        bias: (out_features / ranks,).
        activation: "none", "relu", "gelu", "gelu_tanh" or "silu".
        group: the ranks, in the order of their shards; the default group.
        kernel: "auto" or a stage's name.

    Returns:
        (..., out_features / ranks).

    Raises:
        TypeError: an operand is no dense float32 tensor.
        ValueError: another number of ranks than 1, 2, 4 or 8; sizes, devices or names that do not
            fit.
    """
    ranks = _ranks("column_parallel_linear", group)
    if ranks > 1:
        x = _SumOfGradients.apply(x, group)
    out = _linear(x, weight, bias, (PARTS, PARTS // ranks, PARTS), kernel, activation)
    return out.reshape(*x.shape[:-1], weight.shape[0])


def row_parallel_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    group: dist.ProcessGroup | None = None,
    kernel: str = "auto",
) -> Tensor:
    """The sum x weight^T + bias, of which a rank has some of the input features.

    Differentiable to any order, and once if compiled; not under ``torch.func``.

    Args:
        x: (..., in_features / ranks), this rank's columns.
        weight: (out_features, in_features / ranks), this rank's columns, as many as each rank has.
        bias: (out_features,), the same on all ranks.
        group: the ranks, in the order of their shards; the default group.
        kernel: "auto" or a stage's name.

    Returns:
        (..., out_features), the same on all ranks.

    Raises:
        TypeError: an operand is no dense float32 tensor.
        ValueError: another number of ranks than 1, 2, 4 or 8; sizes, devices or names that do not
            fit.
    """
    ranks = _ranks("row_parallel_linear", group)
    first = None if ranks > 1 else bias
    out = _linear(x, weight, first, (PARTS, PARTS, PARTS // ranks), kernel)
    if ranks > 1:
        out = _Sum.apply(out, group)
        if bias is not None:
            _bias_fits(bias, weight)
            out = _AddBias.apply(out, bias)
    return out.reshape(*x.shape[:-1], weight.shape[0])


def of_dtensors(
    x: Any, weight: Any, bias: Any, activation: Activation, kernel: str
) -> DTensor | None:
    """``linear`` with ``invariant="tp"`` of DTensors, where partial results are exchanged.

    None where that is not the way: nothing is cut, or not evenly, or along several dimensions of a
    mesh. The operator's own rules for DTensor then gather what is sharded along K: the same bits.
    """
    given = [t for t in (x, weight, bias) if t is not None]
    if not all(isinstance(t, DTensor) for t in given) or weight.dim() != 2 or x.dim() < 2:
        return None
    mesh, (placement, *more) = weight.device_mesh, weight.placements
    ranks = mesh.size()
    if more or ranks not in WAYS or any(t.device_mesh != mesh for t in given):
        return None
    last, whole = Shard(x.dim() - 1), Replicate()

    def local(t: DTensor, at: Any) -> Tensor:
        return t.redistribute(mesh, [at]).to_local(grad_placements=[at])

    if placement == Shard(0) and weight.shape[0] % ranks == 0:
        out = column_parallel_linear(
            local(x, whole), local(weight, placement),
            None if bias is None else local(bias, Shard(0)),
            activation, group=mesh.get_group(), kernel=kernel,
        )  # fmt: skip
        return DTensor.from_local(out, mesh, [last], run_check=False)
    if placement == Shard(1) and weight.shape[1] % ranks == 0 and activation == "none":
        out = row_parallel_linear(
            local(x, last), local(weight, placement), None if bias is None else local(bias, whole),
            group=mesh.get_group(), kernel=kernel,
        )  # fmt: skip
        return DTensor.from_local(out, mesh, [whole], run_check=False)
    return None


def _ranks(name: str, group: dist.ProcessGroup | None) -> int:
    ranks = dist.get_world_size(group)
    if ranks not in WAYS:
        raise ValueError(
            f"{name}: K is cut into {PARTS} parts, so the ranks must be 1, 2, 4 or 8, got {ranks}"
        )
    return ranks


def _linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, parts: tuple[int, int, int], kernel: str,
    activation: Activation = "none",
) -> Tensor:  # fmt: skip
    """``linear`` of the rows of x, with the parts of M, N and K."""
    how: dict[str, Any] = {"kernel": kernel} if kernel != "auto" else {}
    if activation != "none":
        how["activation"] = activation
    _bias_fits(bias, weight)
    return in_parts(_rows(x), weight, bias, parts, words=LINEAR, trans_b=True, **how)


# ---------------------------------------------------------------------------------------------
# Between ranks


def _sum_of_ranks(t: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """The sum of all ranks' tensors, added in pairs, on each of them."""
    ranks = dist.get_world_size(group)
    flat = t.reshape(-1)
    size = flat.shape[0]
    if ranks > 2 and size > _FEW:
        flat = torch.nn.functional.pad(flat, (0, -size % ranks))
        pieces = torch.empty_like(flat)
        dist.all_to_all_single(pieces, flat, group=group)
        mine = in_pairs(pieces.view(ranks, -1))
        total = torch.empty_like(flat)
        _all_gather(total, mine, group=group)
        total = total[:size]
    else:
        every = flat.new_empty(ranks * size)
        _all_gather(every, flat, group=group)
        total = in_pairs(every.view(ranks, size))
    return total.view(t.shape)


class _Sum(Function):
    """The sum of the ranks' tensors; its gradient is each one's."""

    @staticmethod
    def forward(ctx: Any, t: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ctx.group = group
        return _sum_of_ranks(t, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return _SumOfGradients.apply(grads[0], ctx.group), None


class _SumOfGradients(Function):
    """The tensor itself; its gradient is the sum of the ranks'."""

    @staticmethod
    def forward(ctx: Any, t: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ctx.group = group
        return t.view_as(t)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return _Sum.apply(grads[0], ctx.group), None


class _AddBias(Function):
    """Rows and a bias, whose gradient adds in the order of one machine's."""

    @staticmethod
    def forward(ctx: Any, t: Tensor, bias: Tensor) -> Tensor:
        ctx.shape = bias.shape
        return t + bias

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        return grad, summed(grad, ctx.shape, (PARTS, PARTS), _product)
