"""Which modules are a ``torch.nn.Linear``, or transformers' ``Conv1D``, and nothing besides.

Or a convolution that is a product.

And which others multiply by matrices that they hold themselves, for a report to name them.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin

from . import convnd
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
        return (
            f"a subclass of torch.nn.Linear, {kind.__name__}, which may mean something else; "
            "if its forward is F.linear, convert(types=) takes it"
        )
    if words := convnd.in_words(module):
        return _of_convolution(module, words)
    if any(map(is_conv1d, kind.__mro__)):
        return f"a subclass of transformers' Conv1D, {kind.__name__}"
    if isinstance(module, nn.Bilinear):
        return "a bilinear form is no matrix product"
    if "Linear" in kind.__name__ or "linear" in kind.__module__.rpartition(".")[2]:
        weight = getattr(module, "weight", None)
        like = type(weight) is nn.Parameter and weight.dim() == 2
        hint = "; if its forward is F.linear, convert(types=) takes it" if like else ""
        return f"no torch.nn.Linear{hint}" if weight is not None else None
    return _matrices(module)


def _of_convolution(module: nn.Module, words: str) -> str:
    if type(module) in convnd.CLASSES:
        return replaced(module)
    if nn.utils.parametrize.is_parametrized(module):
        return f"a {words}, parametrized; its class computes the parameters"
    if isinstance(module, LazyModuleMixin):
        return "has no shape yet; convert after the first forward"
    return f"a {words} of a class of its own, which may mean something else"


_HOLDERS = (nn.ParameterList, nn.ParameterDict)
# In a parameter's name: what is looked up or added.
_NO_FACTORS = ("embed", "token", "pos", "bias", "table", "scale", "norm", "gamma", "beta")


def _matrices(module: nn.Module) -> str | None:
    """What a module holds that may be a factor of products, in words; None for nothing.

    Parameters of two or three dimensions, as those of experts, that belong to none of torch's own
    layers, which look them up (Embedding) or convolve with them.
    """
    if isinstance(module, (nn.RNNBase, nn.RNNCellBase)):
        return f"torch computes {type(module).__name__}'s products in a function of its own"
    known = any(
        kind.__module__.startswith("torch.")
        and kind not in (nn.Module, nn.Sequential, nn.ModuleList, nn.ModuleDict, *_HOLDERS)
        for kind in type(module).__mro__
    )
    found = [
        f"{name} {tuple(t.shape)}"
        for name, t in ([] if known else module.named_parameters(recurse=False))
        if not isinstance(t, nn.parameter.UninitializedTensorMixin)  # type: ignore[attr-defined]
        and t.is_floating_point()
        and t.dim() in (2, 3)
        and min(t.shape) > 1
        and not any(word in name.lower() for word in _NO_FACTORS)
    ]
    if not found:
        return None
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return f"has matrices that are no layer's: {', '.join(found[:3])}{more}"


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
