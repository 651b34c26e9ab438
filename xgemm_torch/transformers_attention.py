"""Attention of transformers' models by our kernels: an implementation that they know by name.

transformers calls attention through a table, by the name in a model's ``config``: ``"eager"``,
``"sdpa"``, or one that a library has added. ``convert(attention=True)`` puts `NAME` in the place of
``"sdpa"``, so that a model's attention is ours in eager mode and under ``torch.compile`` without
``patch()``, whose mode costs the host time for every operator inside.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from . import attention
from .registry import NAMESPACE

__all__ = ["NAME", "register"]

NAME = NAMESPACE
"""What the implementation is called in transformers' tables, as in ``attn_implementation=``:
"xgemm", but in a Hub's kernel, which has a name of its own."""

_INSTEAD_OF = "sdpa"
_OPTIONS = ("position_bias", "softcap", "output_attentions")  # theirs alone


@functools.cache
def register() -> str:
    """Add the implementation to transformers' tables, of attention and of masks, in this process.

    For ``from_pretrained(..., attn_implementation=register())`` and configs that have the name
    already; ``convert(attention=True)`` does it by itself.

    Returns:
        Its name, `NAME`.

    Raises:
        ImportError: there is no transformers, or one without these tables.
    """
    theirs = importlib.import_module("transformers")
    for name, added in (
        ("AttentionInterface", lambda sdpa: functools.partial(_forward, sdpa)),
        ("AttentionMaskInterface", lambda mask: mask),
    ):
        table = getattr(theirs, name, None)
        if table is None:
            raise ImportError(f"transformers {theirs.__version__} has no {name}")
        table.register(NAME, added(table()[_INSTEAD_OF]))
    return NAME


def _forward(
    sdpa: Any, module: nn.Module, query: Tensor, key: Tensor, value: Tensor,
    attention_mask: Tensor | None, dropout: float = 0.0, scaling: float | None = None,
    is_causal: bool | None = None, **more: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """Attention as transformers' modules ask for it: (B, S, heads, D), and no weights.

    ``sdpa`` is transformers' own function by torch's, which takes the same arguments. What the
    kernels do not take is left to it.
    """
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    causal = query.shape[-2] > 1 and attention_mask is None and is_causal
    out = None
    if not torch.is_autocast_enabled(query.device.type) and all(
        more.get(name) is None for name in _OPTIONS
    ):
        out = attention.by_kernels(
            query, key, value, attention_mask, dropout, causal, scaling, enable_gqa=True
        )
    if out is not None:
        return out.transpose(1, 2).contiguous(), None
    return sdpa(
        module, query, key, value, attention_mask, dropout=dropout, scaling=scaling,
        is_causal=is_causal, **more,
    )  # fmt: skip


def models(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """The models of transformers in ``model``, one for each config, by their names in it."""
    modeling = sys.modules.get("transformers.modeling_utils")
    if modeling is None:
        return
    seen = set()
    for fqn, module in model.named_modules():
        if isinstance(module, modeling.PreTrainedModel) and id(module.config) not in seen:
            seen.add(id(module.config))
            yield fqn, module


def obstacle(model: Any) -> str:
    """Why a model's attention stays as it is, or ""."""
    its = model.config._attn_implementation
    if its == NAME:
        return "is one already"
    if its != _INSTEAD_OF:
        return f'its attention is "{its}", not "{_INSTEAD_OF}"'
    if not getattr(model, "_can_set_attn_implementation", lambda: False)():
        return "its class calls torch's attention itself; patch() takes it"
    return ""


def swap(model: Any) -> None:
    """Have a model's attention be `NAME`; nothing of the models inside that have other configs."""
    model.set_attn_implementation({"": register()})


def swap_back(model: Any) -> None:
    """Have it be what it was."""
    model.set_attn_implementation({"": _INSTEAD_OF})


def is_swapped(model: Any) -> bool:
    """Whether a model's attention is `NAME`."""
    return model.config._attn_implementation == NAME
