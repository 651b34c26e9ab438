"""transformers' ``Conv1D`` on ``sgemm``: a Linear whose weight is (in, out), as GPT-2 has it.

transformers is not imported here: ``convert`` meets its class, and the one with our product is made
of that.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

from torch import Tensor, nn

from ._checks import Words
from .deploy import Deployed
from .functional import _rows
from .ops import sgemm_as
from .stock import is_torchs
from .types import Autocast, Invariant, Precision

HOME, NAME = "transformers.pytorch_utils", "Conv1D"
WORDS = Words(NAME, a="x", b="weight", c="bias", flags=False)


def is_conv1d(kind: type) -> bool:
    """Whether a class is transformers' own."""
    return (kind.__module__, kind.__qualname__) == (HOME, NAME)


class Product(Deployed, nn.Module):
    """What a converted ``Conv1D`` has besides: our product, and its options."""

    weight: Tensor
    bias: Tensor
    kernel: str = "auto"
    precision: Precision = "fp32"
    autocast: Autocast = "torch"
    invariant: Invariant | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Give x weight + bias: (..., in_features) -> (..., out_features)."""
        if is_torchs(self.weight, self.autocast):
            return super().forward(x)  # transformers' own
        out = sgemm_as(
            WORDS, _rows(x), self.weight, self.bias, precision=self.precision, kernel=self.kernel,
            invariant=self.invariant,
        )  # fmt: skip
        return out.reshape(*x.shape[:-1], self.weight.shape[1])


@functools.cache
def product_of(stock: type[nn.Module]) -> type[nn.Module]:
    """Make the class with our product of transformers', a subclass of it for those who ask."""
    return type(NAME, (Product, stock), {"__module__": __name__, "stock": stock})


def __getattr__(name: str) -> Any:
    """Find that class by its name, as pickle does."""
    if name == NAME:
        return product_of(getattr(importlib.import_module(HOME), NAME))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
