"""Classes of layers that ``convert(types=)`` is told of.

A class with a forward of its own may mean anything, so that ``convert`` leaves its modules alone
unless somebody says that it is ``F.linear(input, weight, bias)``, as that of transformers'
``FalconLinear`` is, of timm's ``Linear``, and of torch_geometric's, which is none of torch's.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, cast

from torch import Tensor, nn

from . import convnd
from .deploy import Deployed
from .functional import linear
from .nn import Linear
from .stock import is_torchs
from .types import Autocast, Invariant, Precision


class _Named:
    """How such a module is pickled: by the class that it was, which has a name."""

    stock: type[nn.Module]

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        reduced: Any = super().__reduce_ex__(protocol)
        _, _, *state = reduced
        return (_new, (self.stock,), *state)


class _Opted(_Named, Linear):
    """What the class has of a subclass of ``torch.nn.Linear``."""


class Other(_Named, Deployed):
    """What the class has of another module that has a weight (out, in) and perhaps a bias."""

    weight: Tensor
    kernel: str = "auto"
    precision: Precision = "fp32"
    autocast: Autocast = "torch"
    invariant: Invariant | None = None

    def forward(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        """Give input weight^T + bias; the input by whatever name its class has for it."""
        if is_torchs(self.weight, self.autocast):
            return super().forward(*inputs, **named)  # type: ignore[misc]
        (input,) = (*inputs, *named.values())
        bias = getattr(self, "bias", None)
        return linear(
            input, self.weight, bias, precision=self.precision, kernel=self.kernel,
            invariant=self.invariant,
        )  # fmt: skip


def _copied(self: Any, memo: Any) -> Any:
    """A deep copy by the class's own way, which makes one of that class."""
    new = self.stock.__deepcopy__(self, memo)
    for name, value in vars(self).items():
        vars(new).setdefault(name, value)
    new.__class__ = type(self)
    return new


def _new(stock: type[nn.Module]) -> nn.Module:
    kind = opted(stock)  # type: ignore[arg-type]
    return kind.__new__(kind)


@functools.cache
def opted(stock: type[nn.Module]) -> type[nn.Module]:
    """Make the class with our product of ``stock``, a subclass of it for those who ask."""
    base = _Opted if issubclass(stock, nn.Linear) else Other
    has = {"__module__": __name__, "stock": stock}
    if hasattr(stock, "__deepcopy__"):
        has["__deepcopy__"] = _copied
    return cast("type[nn.Module]", type(stock.__name__, (base, stock), has))


def misfit(module: nn.Module) -> str:
    """What of a module of such a class is no layer's; "" where all is."""
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    if weight is None or weight.dim() != 2:
        return "its weight is no matrix"
    return "" if bias is None or bias.shape == weight.shape[:1] else "its bias is no vector"


def check_types(types: Any) -> frozenset[type[nn.Module]]:
    """Check what ``convert`` is given, a class or several.

    Raises:
        TypeError: one is no class of modules, is torch's own and no convolution, or is ours.
    """
    given = tuple(types) if isinstance(types, Iterable) else (types,)
    for kind in given:
        if (
            not isinstance(kind, type)
            or not issubclass(kind, nn.Module)
            or (kind.__module__.startswith("torch.") and kind not in convnd.CLASSES)
        ):
            name = kind.__name__ if isinstance(kind, type) else repr(kind)
            raise TypeError(
                "convert: types are subclasses of torch.nn.Linear, other layers, or torch's "
                f"Conv1d, Conv2d and Conv3d, got {name}"
            )
        if issubclass(kind, (Linear, Other, convnd.Product)):
            raise TypeError(f"convert: types has {kind.__name__}, whose product is ours already")
    return frozenset(given)
