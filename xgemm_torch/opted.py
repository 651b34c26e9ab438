"""Subclasses of ``torch.nn.Linear`` that ``convert(types=)`` is told of.

A class with a forward of its own may mean anything, so that ``convert`` leaves its modules alone
unless somebody says that it is ``F.linear(input, weight, bias)``, as that of transformers'
``FalconLinear`` and timm's ``Linear`` is.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from torch import nn

from .nn import Linear


class _Opted(Linear):
    """What the class of such a module has besides: our product, and how it is pickled."""

    stock: type[nn.Linear]

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """By the class that it was, which has a name."""
        reduced: Any = super().__reduce_ex__(protocol)
        _, _, *state = reduced
        return (_new, (self.stock,), *state)


def _new(stock: type[nn.Linear]) -> nn.Linear:
    kind = opted(stock)  # type: ignore[arg-type]
    return kind.__new__(kind)


@functools.cache
def opted(stock: type[nn.Linear]) -> type[nn.Linear]:
    """Make the class with our product of ``stock``, a subclass of it for those who ask."""
    return type(stock.__name__, (_Opted, stock), {"__module__": __name__, "stock": stock})


def check_types(types: Any) -> frozenset[type[nn.Linear]]:
    """Check what ``convert`` is given, a class or several.

    Raises:
        TypeError: one is no subclass of ``torch.nn.Linear``, or is one of ours.
    """
    given = tuple(types) if isinstance(types, Iterable) else (types,)
    for kind in given:
        if not isinstance(kind, type) or not issubclass(kind, nn.Linear) or kind is nn.Linear:
            name = kind.__name__ if isinstance(kind, type) else repr(kind)
            raise TypeError(f"convert: types are subclasses of torch.nn.Linear, got {name}")
        if issubclass(kind, Linear):
            raise TypeError(f"convert: types has {kind.__name__}, whose product is ours already")
    return frozenset(given)
