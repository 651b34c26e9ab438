"""Tensor parallelism whose communication overlaps its products, on torch's symmetric memory.

With sequence parallelism a layer that is split by its columns gathers the shards of its input, and
one that is split by its rows scatters the sum of its results:

- `all_gather_linear`: a rank multiplies a shard while it copies the next one out of another rank's
  memory;
- `linear_reduce_scatter`: a rank multiplies what the next rank needs while the one before copies
  its part; partial results are then added in the order of the ranks.

torch's ``symm_mem.fused_all_gather_matmul`` and ``fused_matmul_reduce_scatter`` do so with torch's
products; here the consumers and producers are ``sgemm``. The backward of one is the other.
Symmetric memory needs GPUs of one host that reach each other's memory. Elsewhere, as with gloo,
both are a collective and a product: the same results but for their rounding. So they are by
default: see `OVERLAPS`.

`ColwiseParallel` and `RowwiseParallel` are torch's styles of these names on the two functions, for
inputs and results that are sharded along the sequence.
"""

from __future__ import annotations

import socket
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import Function, once_differentiable
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard, distribute_module
from torch.distributed.tensor import distribute_tensor as _distribute
from torch.distributed.tensor.parallel import ParallelStyle

from .ops import sgemm
from .registry import OPERATORS
from .types import Precision

__all__ = ["ColwiseParallel", "RowwiseParallel", "all_gather_linear", "linear_reduce_scatter"]

_LINEAR_BACKWARD = OPERATORS.linear_backward.default

# Their names since torch 2.13, which warns of the others.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


OVERLAPS = False
"""What ``overlap=None`` is. On two and four H100s a product of ours takes so little time that what
parts of it cost beside the whole, and torch's schedules cost the host, is more than what they hide
(docs/measurements.md)."""


@dataclass(frozen=True)
class _Way:
    """How a call goes: what its products and its communication are asked for."""

    group: ProcessGroup
    dim: int
    overlaps: bool
    precision: Precision
    kernel: str

    @property
    def flags(self) -> dict[str, Any]:
        return {"precision": self.precision, "kernel": self.kernel}


def all_gather_linear(
    x_shard: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    gather_dim: int = 0,
    group: ProcessGroup | None = None,
    precision: Precision = "fp32",
    kernel: str = "auto",
    overlap: bool | None = None,
) -> Tensor:
    """The shards of all ranks, laid one behind the other, times weight^T, plus the bias.

    Its input is kept for the backward as this rank's shard, and gathered again there. Compiled, it
    breaks the graph; it has no second derivative.

    Args:
        x_shard: (..., in_features), this rank's part along ``gather_dim``, as large on every rank.
        weight: (out_features, in_features), this rank's rows of it.
        bias: (out_features,), this rank's part.
        gather_dim: along which the input is sharded; not the last one.
        group: the ranks; by default all.
        precision: "fp32" or "ieee", as of ``sgemm``.
        kernel: "auto" or a stage's name.
        overlap: whether products and communication overlap; by default as `OVERLAPS` says.

    Returns:
        (..., out_features), ``gather_dim`` as large as all shards'.

    Raises:
        TypeError: an operand is no float32 tensor.
        ValueError: sizes or a dimension that do not fit.
        RuntimeError: ``overlap=True`` where there is no symmetric memory.
    """
    name = "all_gather_linear"
    x_shard, weight, bias = _without_autocast(x_shard, weight, bias)
    way = _way(name, x_shard, weight, gather_dim, group, precision, kernel, overlap)
    _check_bias(name, bias, weight)
    return _call(_AllGatherLinear, x_shard, weight, bias, way)


def linear_reduce_scatter(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    scatter_dim: int = 0,
    group: ProcessGroup | None = None,
    precision: Precision = "fp32",
    kernel: str = "auto",
    overlap: bool | None = None,
) -> Tensor:
    """The sum over the ranks of x weight^T, of which each rank has its part, plus the bias.

    Compiled, it breaks the graph; it has no second derivative.

    Args:
        x: (..., in_features), this rank's part of the input's last dimension.
        weight: (out_features, in_features), this rank's columns of it.
        bias: (out_features,), the same on every rank, added once.
        scatter_dim: along which the result is sharded; its size a multiple of the ranks' number.
        group: the ranks; by default all.
        precision: "fp32" or "ieee", as of ``sgemm``; each rank's product has its accuracy.
        kernel: "auto" or a stage's name.
        overlap: whether products and communication overlap; by default as `OVERLAPS` says.

    Returns:
        (..., out_features), this rank's part along ``scatter_dim``.

    Raises:
        TypeError: an operand is no float32 tensor.
        ValueError: sizes or a dimension that do not fit.
        RuntimeError: ``overlap=True`` where there is no symmetric memory.
    """
    name = "linear_reduce_scatter"
    x, weight, bias = _without_autocast(x, weight, bias)
    way = _way(name, x, weight, scatter_dim, group, precision, kernel, overlap)
    _check_bias(name, bias, weight)
    ranks, size = way.group.size(), x.shape[scatter_dim]
    if size % ranks:
        raise ValueError(
            f"{name}: dimension {scatter_dim} of x must be a multiple of the {ranks} ranks, "
            f"got {tuple(x.shape)}"
        )
    return _call(_LinearReduceScatter, x, weight, bias, way)


def _apply(function: type[Function], *args: Any) -> Tensor:
    return function.apply(*args)


_call: Any = torch.compiler.disable(_apply)


# ---------------------------------------------------------------------------------------------
# Checks, before any rank waits for another.


def _without_autocast(
    x: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Operands in float32 where autocast is on, as of the other functions."""
    if not torch.is_autocast_enabled(x.device.type):
        return x, weight, bias
    return x.float(), weight.float(), None if bias is None else bias.float()


def _way(
    name: str, x: Tensor, weight: Tensor, dim: int, group: ProcessGroup | None,
    precision: Precision, kernel: str, overlap: bool | None,
) -> _Way:  # fmt: skip
    for arg, t in (("x", x), ("weight", weight)):
        if t.dtype is not torch.float32:
            raise TypeError(f"{name}: {arg} must be float32, got {t.dtype}")
    if x.dim() < 2 or weight.dim() != 2 or x.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"{name}: x must be (..., in_features) and weight (out_features, in_features), "
            f"got {tuple(x.shape)} and {tuple(weight.shape)}"
        )
    if not -x.dim() <= dim < x.dim() or dim % x.dim() == x.dim() - 1:
        raise ValueError(f"{name}: dimension {dim} is none of x {tuple(x.shape)} but its last")
    group = group or dist.group.WORLD
    if group is None:
        raise ValueError(f"{name}: there is no process group; torch.distributed has none yet")
    overlap = OVERLAPS if overlap is None else overlap
    can = overlap and _can_overlap(x, group)
    if overlap and not can:
        raise RuntimeError(f"{name}: no symmetric memory among the ranks on {x.device}")
    return _Way(group, dim % x.dim(), can and x.numel() > 0, precision, kernel)


def _check_bias(name: str, bias: Tensor | None, weight: Tensor) -> None:
    if bias is not None and bias.dtype is not torch.float32:
        raise TypeError(f"{name}: bias must be float32, got {bias.dtype}")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(
            f"{name}: bias must be ({weight.shape[0]},) as weight's rows, got {tuple(bias.shape)}"
        )


def _can_overlap(x: Tensor, group: ProcessGroup) -> bool:
    return x.device == _current_device(x) and group.size() > 1 and _reach(group)


def _current_device(x: Tensor) -> torch.device | None:
    """The GPU whose memory torch's symmetric memory is; None where ``x`` is on none."""
    return torch.device("cuda", torch.cuda.current_device()) if x.is_cuda else None


_reaches: weakref.WeakKeyDictionary[ProcessGroup, bool] = weakref.WeakKeyDictionary()


def _reach(group: ProcessGroup) -> bool:
    """Whether every rank of a group can read the memory of every other: asked of all, once."""
    if group not in _reaches:
        here = (socket.gethostname(), torch.cuda.current_device())
        places: list[Any] = [None] * group.size()
        dist.all_gather_object(places, here, group=group)
        mine = _pipelines() is not None and all(
            host == here[0]
            and (device == here[1] or torch.cuda.can_device_access_peer(here[1], device))
            for host, device in places
        )
        answers: list[Any] = [None] * group.size()
        dist.all_gather_object(answers, mine, group=group)
        _reaches[group] = all(answers) and len(set(places)) == len(places)
    return _reaches[group]


def _pipelines() -> tuple[Callable[..., None], Callable[..., None]] | None:
    """Torch's two schedules of copies and products, which have no public names; None without."""
    try:
        from torch.distributed._symmetric_memory import (
            _pipelined_all_gather_and_consume,
            _pipelined_produce_and_all2all,
        )
    except ImportError:
        return None
    return _pipelined_all_gather_and_consume, _pipelined_produce_and_all2all


# ---------------------------------------------------------------------------------------------
# Matrices: the sharded dimension first, the others but the last below it, so that ranks' parts are
# blocks of rows.


def _rows(t: Tensor, dim: int) -> Tensor:
    return t.movedim(dim, 0).flatten(0, -2).contiguous()


def _unrows(rows: Tensor, like: Tensor, dim: int) -> Tensor:
    """The inverse, for a result whose other dimensions but the last are those of ``like``."""
    others = like.movedim(dim, 0).shape[1:-1]
    return rows.unflatten(0, (-1, *others) if rows.numel() else (0, *others)).movedim(0, dim)


def _all_gather(rows: Tensor, group: ProcessGroup) -> tuple[Tensor, Any]:
    """The rows of all ranks once the second thing, if it is none, has been waited for."""
    if group.size() == 1:
        return rows, None
    gathered = rows.new_empty(rows.shape[0] * group.size(), rows.shape[1])
    return gathered, all_gather(gathered, rows, group=group, async_op=True)


def _gathered_product(
    rows: Tensor, b: Tensor, c: Tensor | None, trans_b: bool, way: _Way, keep: bool
) -> tuple[Tensor, Tensor | None]:
    """The product of all ranks' rows with ``b``, and those rows, if they are to be kept."""
    if not way.overlaps:
        gathered, pending = _all_gather(rows, way.group)
        if pending is not None:
            pending.wait()
        return sgemm(gathered, b, c, trans_b=trans_b, **way.flags), gathered if keep else None
    ranks = way.group.size()
    gathered = rows.new_empty(rows.shape[0] * ranks, rows.shape[1])
    out = rows.new_empty(gathered.shape[0], b.shape[0 if trans_b else 1])
    parts = out.chunk(ranks)

    def consume(shard: Tensor, rank: int) -> None:
        sgemm(shard, b, c, trans_b=trans_b, out=parts[rank], **way.flags)

    pipelines = _pipelines()
    assert pipelines is not None
    pipelines[0](rows, consume, gathered, way.group.group_name, keep)
    return out, gathered if keep else None


def _scattered_product(rows: Tensor, b: Tensor, trans_b: bool, way: _Way) -> Tensor:
    """This rank's rows of the sum over the ranks of their products with ``b``."""
    ranks = way.group.size()
    if not way.overlaps:
        partial = sgemm(rows, b, trans_b=trans_b, **way.flags)
        if ranks == 1:
            return partial
        out = partial.new_empty(partial.shape[0] // ranks, partial.shape[1])
        reduce_scatter(out, partial, group=way.group)
        return out
    parts = rows.chunk(ranks)
    partials = rows.new_empty(rows.shape[0], b.shape[0 if trans_b else 1])

    def produce(rank: int, out: Tensor) -> None:
        sgemm(parts[rank], b, trans_b=trans_b, out=out, **way.flags)

    pipelines = _pipelines()
    assert pipelines is not None
    pipelines[1](produce, partials, way.group.group_name)
    return partials.unflatten(0, (ranks, -1)).sum(0)


def _of_weight(
    grad: Tensor, x: Tensor, needed: tuple[bool, ...], way: _Way
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of weight and bias that are needed, both by one reading of ``grad``."""
    weight, bias = needed
    if weight:
        return _LINEAR_BACKWARD(grad, x, None, bias, **way.flags)[1:]
    return None, grad.sum(0) if bias else None


class _AllGatherLinear(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, way: _Way) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.way = way
        out, _ = _gathered_product(_rows(x, way.dim), weight, bias, True, way, keep=False)
        return _unrows(out, x, way.dim)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad: Tensor
    ) -> tuple[Any, ...]:
        (x, weight), way = ctx.saved_tensors, ctx.way
        of_x = of_weight = of_bias = None
        rows = _rows(grad, way.dim)
        gathered, pending = x, None
        if ctx.needs_input_grad[1]:  # on its way during the product for the input's gradient
            gathered, pending = _all_gather(_rows(x, way.dim), way.group)
        if ctx.needs_input_grad[0]:
            of_x = _unrows(_scattered_product(rows, weight, False, way), x, way.dim)
        if pending is not None:
            pending.wait()
        of_weight, of_bias = _of_weight(rows, gathered, ctx.needs_input_grad[1:3], way)
        return of_x, of_weight, of_bias, None


class _LinearReduceScatter(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, way: _Way) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.way = way
        out = _scattered_product(_rows(x, way.dim), weight, True, way)
        if bias is not None:
            out += bias
        return _unrows(out, x, way.dim)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad: Tensor
    ) -> tuple[Any, ...]:
        (x, weight), way = ctx.saved_tensors, ctx.way
        of_x, rows = None, _rows(grad, way.dim)
        whole: Tensor | None
        if ctx.needs_input_grad[0]:
            needed = any(ctx.needs_input_grad[1:3])
            of_rows, whole = _gathered_product(rows, weight, None, False, way, keep=needed)
            of_x = _unrows(of_rows, x, way.dim)
        else:
            whole, pending = _all_gather(rows, way.group)
            if pending is not None:
                pending.wait()
        if whole is None:
            return of_x, None, None, None
        of_weight, of_bias = _of_weight(whole, _rows(x, way.dim), ctx.needs_input_grad[1:3], way)
        return of_x, of_weight, of_bias, None


# ---------------------------------------------------------------------------------------------
# Styles for parallelize_module


class _Style(ParallelStyle):
    """A linear layer's parameters are DTensors, and its forward is one of the functions above."""

    placements: dict[str, Any]
    function: Callable[..., Tensor]
    dim_name: str

    def __init__(self, *, sequence_dim: int = 1, overlap: bool | None = None) -> None:
        super().__init__()
        self.sequence_dim = sequence_dim
        self.overlap = overlap

    def _partition(self, _: str, module: torch.nn.Module, mesh: DeviceMesh) -> None:
        for name, parameter in list(module.named_parameters(recurse=False)):
            shared = _distribute(
                parameter, mesh, [self.placements[name]], src_data_rank=self.src_data_rank
            )
            new = torch.nn.Parameter(shared, requires_grad=parameter.requires_grad)
            module.register_parameter(name, new)

    def _apply(self, module: torch.nn.Module, device_mesh: DeviceMesh) -> torch.nn.Module:
        name = type(self).__name__
        if not isinstance(module, torch.nn.Linear):
            raise NotImplementedError(f"{name}: needs a Linear, got {type(module).__name__}")
        if getattr(module, "activation", "none") != "none":
            raise NotImplementedError(f"{name}: a layer with an activation of its own")
        distribute_module(module, device_mesh, self._partition)
        group = device_mesh.get_group()
        how = {
            self.dim_name: self.sequence_dim,
            "overlap": self.overlap,
            "precision": getattr(module, "precision", "fp32"),
            "kernel": getattr(module, "kernel", "auto"),
        }
        function = type(self).function

        def forward(module: Any, input: Tensor) -> Tensor:
            bias = None if module.bias is None else module.bias.to_local()
            return function(input, module.weight.to_local(), bias, group=group, **how)

        module.forward = MethodType(forward, module)  # type: ignore[method-assign]
        return module


class ColwiseParallel(_Style):
    """``torch.distributed.tensor.parallel.ColwiseParallel`` on `all_gather_linear`.

    As of torch's with ``input_layouts=Shard(sequence_dim)``: the input is this rank's part of the
    sequence, the result this rank's columns of the whole sequence, both local tensors.

    Args:
        sequence_dim: along which the input is sharded.
        overlap: as of `all_gather_linear`.

    Raises:
        NotImplementedError: the module is no ``nn.Linear``, or has an activation.
    """

    placements = {"weight": Shard(0), "bias": Shard(0)}
    function = staticmethod(all_gather_linear)
    dim_name = "gather_dim"


class RowwiseParallel(_Style):
    """``torch.distributed.tensor.parallel.RowwiseParallel`` on `linear_reduce_scatter`.

    As of torch's with ``output_layouts=Shard(sequence_dim)``: the input is this rank's columns of
    the whole sequence, the result this rank's part of the sequence, both local tensors.

    Args:
        sequence_dim: along which the result is sharded.
        overlap: as of `linear_reduce_scatter`.

    Raises:
        NotImplementedError: the module is no ``nn.Linear``, or has an activation.
    """

    placements = {"weight": Shard(1), "bias": Replicate()}
    function = staticmethod(linear_reduce_scatter)
    dim_name = "scatter_dim"
