"""Layers for ``kernels.kernelize``: each has a ``forward`` for a layer of another class, no more.

They have no state of their own; what ``self`` must have is annotated. Where the weight is not
float32, and under autocast, the product is torch's own, as it is of converted layers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .functional import addmm, linear
from .stock import is_torchs

__all__ = ["Conv1D", "Linear"]


class Linear(torch.nn.Module):
    """For ``torch.nn.Linear``."""

    has_backward = True
    can_torch_compile = True

    weight: Tensor
    bias: Tensor | None

    def forward(self, input: Tensor) -> Tensor:
        """Give input weight^T + bias: (..., in_features) -> (..., out_features)."""
        if is_torchs(self.weight, "torch"):
            return torch.nn.functional.linear(input, self.weight, self.bias)
        return linear(input, self.weight, self.bias)


class Conv1D(torch.nn.Module):
    """For ``transformers.pytorch_utils.Conv1D``, a Linear whose weight is (in, out)."""

    has_backward = True
    can_torch_compile = True

    weight: Tensor
    bias: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """Give x weight + bias: (..., in_features) -> (..., out_features)."""
        product = torch.addmm if is_torchs(self.weight, "torch") else addmm
        out = product(self.bias, x.reshape(-1, x.shape[-1]), self.weight)
        return out.reshape(*x.shape[:-1], self.weight.shape[1])
