"""Layers whose weight their owner hands to another function, as ``F.linear``, and may never call.

torchvision's Swin has ``shifted_window_attention(x, self.qkv.weight, self.proj.weight, ...)``,
timm's ``F.linear(x, weight=self.qkv.weight, bias=...)``: a class that such a layer gets changes
nothing there. It is read off the source of the owner's forward, where there is one.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap

from torch import nn

# Calls that look at a weight and multiply by nothing.
_LOOK = frozenset({"isinstance", "hasattr", "getattr", "id", "len", "print", "type"})


def hands_on(modules: dict[str, nn.Module], fqn: str) -> str:
    """Name the class of the owner of a module that hands its weight on; "" where there is none.

    Args:
        modules: a model's, by name.
        fqn: the module's name.
    """
    owner, _, child = fqn.rpartition(".")
    while child:
        module = modules.get(owner)
        if module is not None and child in _handed_on(type(module)):  # type: ignore[arg-type]
            return type(module).__qualname__
        if not owner:
            break
        owner, _, name = owner.rpartition(".")
        child = f"{name}.{child}"
    return ""


@functools.cache
def _handed_on(owner: type[nn.Module]) -> frozenset[str]:
    """The children, "qkv" or "attn.qkv", whose weight is an argument of a call in the forward."""
    if owner.__module__.startswith("torch."):  # its own have notes and rows of their own
        return frozenset()
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(owner.forward)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return frozenset()
    found = set()
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        if isinstance(call.func, ast.Name) and call.func.id in _LOOK:
            continue
        for argument in (*call.args, *(keyword.value for keyword in call.keywords)):
            path = _path(argument)
            if len(path) > 2 and path[0] == "self" and path[-1] == "weight":
                found.add(".".join(path[1:-1]))
    return frozenset(found)


def _path(node: ast.expr) -> list[str]:
    """``self.attn.qkv.weight`` as its names; [] of anything else."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return [node.id, *reversed(names)] if isinstance(node, ast.Name) else []
