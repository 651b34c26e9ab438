"""When the product of a layer of ours is torch's own: where it is none of float32."""

from __future__ import annotations

from typing import get_args

import torch
from torch import Tensor
from torch.compiler import is_compiling

from .deploy import to_onnx
from .ops import any_autocast
from .types import Autocast

AUTOCASTS: tuple[Autocast, ...] = get_args(Autocast)
"""What a layer may do under autocast: what torch's does, or compute and give float32."""
_tracing_state = torch._C._get_tracing_state


def check_autocast(name: str, autocast: object) -> None:
    """Raise ValueError unless ``autocast`` is one of `AUTOCASTS`."""
    if autocast not in AUTOCASTS:
        raise ValueError(f"{name}: autocast must be 'torch' or 'float32', got {autocast!r}")


def is_torchs(weight: Tensor, autocast: Autocast) -> bool:
    """Whether a layer's product is torch's own.

    Its weight is of another dtype than float32, as after ``module.bfloat16()``, or autocast would
    cast it and ``autocast`` says "torch", or it is exported to ONNX.
    """
    if weight.dtype is not torch.float32:
        return isinstance(weight.dtype, torch.dtype)  # torch.fx's tracer knows none
    tracing = is_compiling() or _tracing_state() is not None
    if not tracing and not any_autocast():  # at once: every call of a layer asks
        return False
    if tracing and to_onnx():
        return True
    if autocast == "float32" or weight.is_meta:
        return False
    device = weight.device.type
    return (
        torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) is not torch.float32
    )
