"""Products of groups, as those of a model's experts: ``torch.nn.functional.grouped_mm``'s, in FP32.

Groups lie one after another, along the rows of one operand or along K, and a tensor on the device
says where each ends. Where a stage takes groups (compute capability 9.0), it reads that tensor
itself: the host waits for nothing, and a CUDA graph may hold the call. Elsewhere the product is
made group by group, as torch makes its own of float32 everywhere: the host waits for where groups
end, and calls a product for each.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .ops import _LIB, sgemm
from .registry import NAMESPACE, OPERATORS, stages

_OUT = OPERATORS.sgemm.out
_OP = OPERATORS.grouped_mm.default
# Of fewer rows a group, and matrices of more bytes, going group by group is quicker: it reads each
# matrix once, and does not make limbs of all. On an H100 8 experts of 2 rows and 235 MB take 0.7 ms
# so, and 1.9 in one launch; 64 of 16 rows and 4 MB take 5.1 and 0.42.
_FEW_ROWS, _LARGE_BYTES = 64, 96 << 20
# Of so few a group, where both operands lie along k, one launch reads each matrix once as well
# (csrc/torch/grouped.cpp says the same).
_ROWS_OF_TEAMS = 4


@functools.cache
def _in_one(device: torch.device) -> bool:
    """Whether a stage of this build takes groups of any size on a GPU."""
    major, minor = torch.cuda.get_device_capability(device)
    sm = 10 * major + minor
    return any(
        s.takes_groups
        and not s.teams
        and s.cuda
        and s.min_sm <= sm
        and (not s.max_sm or sm <= s.max_sm)
        for s in stages()
    )


def _in_one_launch(a: Tensor, b: Tensor, offs: Tensor, how: dict[str, Any]) -> bool:
    """Whether the device is to find the groups itself."""
    if not a.is_cuda or how.get("precision", "fp32") != "fp32" or not _in_one(a.device):
        return False
    if how.get("kernel", "auto") != "auto":
        return False
    matrices = b if b.dim() == 3 else a
    if matrices.dim() < 3 or torch.cuda.is_current_stream_capturing():
        return True
    rows, columns = (a, b) if b.dim() == 3 else (b.mT, a.mT)
    along_k = rows.stride(-1) == 1 and columns.stride(-2) == 1
    by_teams = along_k and len(rows) <= _ROWS_OF_TEAMS * len(offs)
    few = len(rows) < _FEW_ROWS * len(offs)
    large = 4 * matrices.shape[1] * matrices.shape[2] >= _LARGE_BYTES
    return by_teams or not (few and large)


def _check(a: Tensor, b: Tensor, offs: Tensor) -> tuple[int, ...]:
    """Raise what the C++ side says, as a TypeError or ValueError; give the result's shape."""
    name = "grouped_mm"
    for arg, t in (("mat_a", a), ("mat_b", b), ("offs", offs)):
        if not isinstance(t, Tensor):
            raise TypeError(f"{name}: {arg} must be a tensor, got {type(t).__name__}")
        wanted = torch.int32 if t is offs else torch.float32
        if t.dtype != wanted:
            raise TypeError(f"{name}: {arg} must be {wanted}, got {t.dtype}")
        if t.layout != torch.strided:
            raise TypeError(f"{name}: {arg} must be a dense (strided) tensor, got {t.layout}")
        if t.device != a.device:
            raise ValueError(f"{name}: mat_a is on {a.device}, {arg} is on {t.device}")
    if offs.dim() != 1:
        raise ValueError(f"{name}: offs must have 1 dimension, got shape {tuple(offs.shape)}")
    ranks = a.dim(), b.dim()
    if ranks not in ((2, 3), (3, 2), (2, 2)):
        raise ValueError(
            f"{name}: mat_a and mat_b must have 2 and 3, 3 and 2, or 2 and 2 dimensions, got "
            f"shapes {tuple(a.shape)} and {tuple(b.shape)}"
        )
    if a.shape[-1] != b.shape[-2]:
        raise ValueError(
            f"{name}: inner sizes differ: mat_a is {tuple(a.shape)}, mat_b is {tuple(b.shape)}"
        )
    groups = offs.shape[0]
    if ranks != (2, 2) and (a if ranks[0] == 3 else b).shape[0] != groups:
        raise ValueError(
            f"{name}: offs has {groups} ends for {(a if ranks[0] == 3 else b).shape[0]} matrices"
        )
    return (groups,) * (ranks == (2, 2)) + (a.shape[-2], b.shape[-1])


def _result(a: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Give memory for a result: its rows begin at multiples of 16 bytes, as torch's do."""
    row = (shape[-1] + 3) // 4 * 4
    return a.new_empty_strided(shape, (shape[-2] * row, row, 1)[-len(shape) :])


@torch.library.register_fake(f"{NAMESPACE}::grouped_mm", lib=_LIB)
def _fake(a: Tensor, b: Tensor, offs: Tensor, *, kernel: str = "auto") -> Tensor:
    return _result(a, _check(a, b, offs))


def _setup(ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: Any, output: Tensor) -> None:
    ctx.save_for_backward(*inputs)
    ctx.kernel = keyword_only_inputs["kernel"]


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    a, b, offs = ctx.saved_tensors
    needs = ctx.needs_input_grad
    return (
        _OP(grad, b.mT, offs, kernel=ctx.kernel) if needs[0] else None,
        _OP(a.mT, grad, offs, kernel=ctx.kernel) if needs[1] else None,
        None,
    )


torch.library.register_autograd(
    f"{NAMESPACE}::grouped_mm", _backward, setup_context=_setup, lib=_LIB
)


def grouped_mm(mat_a: Tensor, mat_b: Tensor, *, offs: Tensor) -> Tensor:
    """Multiply groups, as ``torch.nn.functional.grouped_mm`` does, at FP32 accuracy.

    With ``s, e`` the beginning and the end of group g, by shapes of ``mat_a`` and ``mat_b``:

    - (M, K) and (G, K, N): rows ``out[s:e] = mat_a[s:e] @ mat_b[g]``, as experts' layers;
    - (G, M, K) and (K, N): columns ``out[:, s:e] = mat_a[g] @ mat_b[:, s:e]``;
    - (M, K) and (K, N): ``out[g] = mat_a[:, s:e] @ mat_b[s:e]``, as their weights' gradients.

    Gradients of the operands are products of groups, too, of any order. On compute capability 9.0
    a call is one launch each of a table of groups, decomposition, product and recompute, or of up
    to four rows a group, along K, of the table and ``dot``, and waits for nothing; elsewhere the
    host reads ``offs``.

    Args:
        mat_a: float32, any strides; M, N and K may be zero.
        mat_b: float32, any strides.
        offs: (G,), int32, on the operands' device: where each group ends, ascending. Where its
            values do not ascend, or lie beyond the operand, groups are cut to what is there.

    Returns:
        (M, N), or (G, M, N) where K is cut; rows begin at multiples of 16 bytes. What belongs to
        no group is not written, here as in gradients: torch does so, too.

    Raises:
        TypeError: an operand that is no dense float32 tensor, ``offs`` that is none of int32.
        ValueError: sizes, dimensions or devices that do not fit.
        RuntimeError: no memory, or trouble with the device.
    """
    _check(mat_a, mat_b, offs)
    if mat_a.is_cuda and not _in_one(mat_a.device):
        return _by_group(mat_a, mat_b, offs)
    return _OP(mat_a, mat_b, offs.contiguous())


def _pieces(a: Tensor, b: Tensor, ends: list[int]) -> Iterator[tuple[Tensor, Tensor, Any]]:
    """Of each group, its operands and its place in the result; ``ends`` begins with 0."""
    for i, (start, end) in enumerate(itertools.pairwise(ends)):
        if a.dim() == b.dim():
            yield a[:, start:end], b[start:end], i
        elif a.dim() == 2:
            yield a[start:end], b[i], slice(start, end)
        else:
            yield a[i], b[:, start:end], (slice(None), slice(start, end))


def _by_group(a: Tensor, b: Tensor, offs: Tensor) -> Tensor:
    """The same by differentiable products, where no stage takes groups."""
    whole = b.shape[1] if a.dim() == 3 else a.shape[0] if b.dim() == 3 else a.shape[1]
    ends = list(itertools.accumulate((min(x, whole) for x in offs.tolist()), max, initial=0))
    parts = [sgemm(left, right) for left, right, _ in _pieces(a, b, ends)]
    m, n, rest = a.shape[-2], b.shape[-1], whole - ends[-1]
    if a.dim() == b.dim():
        return torch.stack(parts) if parts else a.new_zeros(0, m, n)
    by_rows = a.dim() == 2
    return torch.cat([*parts, a.new_zeros((rest, n) if by_rows else (m, rest))], int(not by_rows))


def flops(a: torch.Size, b: torch.Size) -> int:
    """Count FLOP: where one operand has no dimension for groups, a size is the sum of theirs."""
    groups = a[0] if len(a) == len(b) == 3 else 1
    return 2 * groups * a[-2] * a[-1] * b[-1]


def _aligned(t: Tensor) -> bool:
    """Whether torch takes an operand: rows or columns lie dense, and begin at 16 bytes."""
    inner, outer = t.stride(-1), t.stride(-2)
    if inner != 1:
        inner, outer = outer, inner
    lead = t.stride(0) if t.dim() == 3 else 0
    return inner == 1 and outer % 4 == 0 and lead % 4 == 0 and t.data_ptr() % 16 == 0


def _fits(offs: Tensor | None, a: Tensor, groups: int | None) -> bool:
    """Whether torch takes it, whatever its values."""
    if offs is None or offs.dtype is not torch.int32 or offs.dim() != 1 or offs.device != a.device:
        return False
    return len(offs) > 0 and len(offs) == (groups or len(offs))


def _ends(offs: Tensor, whole: int) -> list[int] | None:
    """Where groups begin and end; None where torch would not have it, or read beyond."""
    ends = [0, *offs.tolist()]
    fits = ends[-1] <= whole and all(x <= y for x, y in itertools.pairwise(ends))
    return ends if fits else None


def product(
    a: Tensor, b: Tensor, offs: Tensor | None, how: dict[str, Any], *, in_one: bool | None = None
) -> Tensor | None:
    """What ``torch._grouped_mm(a, b, offs)`` gives, in memory as torch lays it out.

    Args:
        a: (rows of all groups, K), (groups, M, K), or (M, K of all groups).
        b: (groups, K, N), (K, columns of all groups), or (K of all groups, N).
        offs: (groups,), int32, where each group ends; None where both have a dimension for them.
        how: options of ``sgemm``.
        in_one: whether the device finds the groups; by default where that is quicker.

    Returns:
        (rows, N), (M, columns) or (groups, M, N), or None where the call is not as torch wants it.
        What belongs to no group is not written.
    """
    ranks = a.dim(), b.dim()
    if a.shape[-1] != b.shape[-2] or not _aligned(a) or not _aligned(b):
        return None
    m, n = a.shape[-2], b.shape[-1]
    if ranks == (3, 3):
        if offs is not None or a.shape[0] != b.shape[0]:
            return None
        return _OUT(a, b, None, out=_result(a, (a.shape[0], m, n)), **how)
    groups, whole = {
        (2, 3): (b.shape[0], m),
        (3, 2): (a.shape[0], n),
        (2, 2): (None, a.shape[1]),
    }[ranks]
    if offs is None or not _fits(offs, a, groups):
        return None
    if _in_one_launch(a, b, offs, how) if in_one is None else in_one:
        return _OP(a, b, offs.contiguous())
    ends = _ends(offs, whole)
    if ends is None:
        return None
    out = _result(a, (m, n) if groups else (len(ends) - 1, m, n))
    for left, right, place in _pieces(a, b, ends):
        if (part := out[place]).numel():  # of no K, zeros
            _OUT(left, right, None, out=part, **how)
    return out
