"""Layers inside ``patch()`` tell it what they multiply; its mode sees none of their operators.

An operator that a mode sees is a call of Python's, 5 us or more of the host's time (torch 2.13, one
core of an EPYC), whatever the mode does. A layer's forward is three of them: the product and two
views. Where the only mode is a patch's, and operands are torch's own tensors, it needs but the
count: a layer's forward takes 64 us in place of 136, and 58 without a patch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

PLAIN = (Tensor, torch.nn.Parameter)
"""Classes of tensors that are numbers and nothing else."""

# Names of torch's that are not public: without them a patch sees all.
unseen: Any = getattr(torch._C, "_DisableTorchDispatch", None)
"""The context in which operators pass modes by."""
_mode_at: Any = getattr(torch._C, "_get_dispatch_stack_at", None)


class Told(TorchDispatchMode):
    """A mode that is told what layers multiply. Another copy's of this package is none."""

    def tell(self, name: str, flops: int) -> None:
        """Count a call of our operator ``name``, without its namespace."""
        raise NotImplementedError


def only_patch(*operands: Tensor | None) -> Callable[[str, int], None] | None:
    """Give ``tell`` of a patch, if its mode is the only one and operands are torch's own."""
    if torch._C._len_torch_dispatch_stack() != 1 or unseen is None or _mode_at is None:
        return None
    if not all(t is None or type(t) in PLAIN for t in operands):
        return None
    mode = _mode_at(0)
    return mode.tell if isinstance(mode, Told) else None
