"""Products of groups, as those of experts (``torch._grouped_mm``), by ``sgemm`` group by group.

torch's own of float32 are made like that, too: the host waits for where groups end, and calls a
product for each. Of lower precisions they are one kernel, which is left alone.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

_OUT = torch.ops.xgemm.sgemm.out


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


def _ends(offs: Tensor | None, a: Tensor, groups: int | None, whole: int) -> list[int] | None:
    """Where groups begin and end; None where torch would not have it, or read beyond."""
    if offs is None or offs.dtype is not torch.int32 or offs.dim() != 1 or offs.device != a.device:
        return None
    if len(offs) == 0 or len(offs) != (groups or len(offs)):
        return None
    ends = [0, *offs.tolist()]
    fits = ends[-1] <= whole and all(x <= y for x, y in itertools.pairwise(ends))
    return ends if fits else None


def product(a: Tensor, b: Tensor, offs: Tensor | None, how: dict[str, Any]) -> Tensor | None:
    """What ``torch._grouped_mm(a, b, offs)`` gives, in memory as torch lays it out.

    Args:
        a: (rows of all groups, K), (groups, M, K), or (M, K of all groups).
        b: (groups, K, N), (K, columns of all groups), or (K of all groups, N).
        offs: (groups,), int32, where each group ends; None where both have a dimension for them.
        how: options of ``sgemm``.

    Returns:
        (rows, N), (M, columns) or (groups, M, N), or None where the call is not as torch wants it.
        What belongs to no group is not written.
    """
    ranks = a.dim(), b.dim()
    if a.shape[-1] != b.shape[-2] or not _aligned(a) or not _aligned(b):
        return None
    m, n = a.shape[-2], b.shape[-1]
    row = -(-n // 4) * 4  # torch aligns the rows of the result
    if ranks == (3, 3):
        if offs is not None or a.shape[0] != b.shape[0]:
            return None
        out = a.new_empty_strided((a.shape[0], m, n), (m * row, row, 1))
        return _OUT(a, b, None, out=out, **how)
    groups, whole = {
        (2, 3): (b.shape[0], m),
        (3, 2): (a.shape[0], n),
        (2, 2): (None, a.shape[1]),
    }[ranks]
    ends = _ends(offs, a, groups, whole)
    if ends is None:
        return None
    if ranks == (2, 2):
        out = a.new_empty_strided((len(ends) - 1, m, n), (m * row, row, 1))
    else:
        out = a.new_empty_strided((m, n), (row, 1))
    for i, (start, end) in enumerate(itertools.pairwise(ends)):
        if ranks == (2, 2):  # of no K, zeros
            _OUT(a[:, start:end], b[start:end], None, out=out[i], **how)
        elif start == end:
            continue
        elif ranks == (2, 3):
            _OUT(a[start:end], b[i], None, out=out[start:end], **how)
        else:
            _OUT(a[i], b[:, start:end], None, out=out[:, start:end], **how)
    return out
