"""Which modules are a ``torch.nn.Linear``, or transformers' ``Conv1D``, and nothing besides."""

from __future__ import annotations

import torch
from torch import nn

from .conv1d import is_conv1d


def obstacle(module: nn.Module) -> str | None:
    """Why a module is no mere Linear, "" where it is one, None where it is nothing like one."""
    kind = type(module)
    if kind is nn.Linear or is_conv1d(kind):
        return replaced(module)
    if isinstance(module, nn.MultiheadAttention):
        return "its input projection is no module; torch computes it inside its attention function"
    if isinstance(module, torch.jit.ScriptModule):
        original = getattr(module, "original_name", "")
        return "scripted: its code is fixed" if "Linear" in original else None
    if isinstance(module, nn.LazyLinear):
        return "has no shape yet; convert after the first forward"
    if isinstance(module, nn.modules.linear.NonDynamicallyQuantizableLinear):
        return "torch's attention function takes its parameters and never calls it"
    if nn.utils.parametrize.is_parametrized(module) and isinstance(module, nn.Linear):
        return "parametrized; its class computes the parameters"
    if isinstance(module, nn.Linear):
        return f"a subclass of torch.nn.Linear, {kind.__name__}, which may mean something else"
    if any(map(is_conv1d, kind.__mro__)):
        return f"a subclass of transformers' Conv1D, {kind.__name__}"
    if isinstance(module, nn.Bilinear):
        return "a bilinear form is no matrix product"
    if "Linear" in kind.__name__ or "linear" in kind.__module__.rpartition(".")[2]:
        return "no torch.nn.Linear" if getattr(module, "weight", None) is not None else None
    return None


def replaced(module: nn.Module) -> str:
    """What of one such module is not its class's any more; "" where all is."""
    if "forward" in vars(module):
        return "its forward was replaced on the instance"
    if getattr(module, "weight", None) is None:
        return "it has no weight"
    for arg in ("weight", "bias"):
        t = getattr(module, arg, None)
        if t is not None and type(t) not in (nn.Parameter, torch.Tensor):
            return f"its {arg} is a {type(t).__name__}"
    return ""
