"""``torch.nn.Conv1d``, ``Conv2d`` and ``Conv3d`` on ``sgemm``, where they are products.

``convert`` makes these classes of torch's own: same parameters, same ``state_dict``, and a result
that lies in memory as torch's does, channels last where input or weight is.
"""

from __future__ import annotations

import functools
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import has_torch_function_variadic

from . import convolutions
from ._checks import Words
from .deploy import Deployed
from .ops import overridden, sgemm_as
from .stock import is_torchs
from .types import Autocast, Invariant, Precision

# By whether the result is channels last.
WORDS = (
    Words("convolution", a="weight", b="input", c="bias", flags=False),
    Words("convolution", a="input", b="weight", c="bias", flags=False),
)
_TORCHS = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}


def convolution(
    input: Tensor, weight: Tensor, bias: Tensor | None, *, precision: Precision, kernel: str,
    invariant: Invariant | None = None,
) -> Tensor:  # fmt: skip
    """The convolution whose stride is its kernel's size, without padding, as a product.

    Args:
        input: (B, C, *sizes) or (C, *sizes); of another shape it is torch's, as its errors are.
        weight: (O, C, *kernel).
        bias: (O,), or None.
        precision: "fp32" or "ieee", as of ``sgemm``.
        kernel: "auto" or a stage's name.
        invariant: "batch" or "tp", as of ``sgemm``; None.

    Returns:
        (B, O, *places) or (O, *places).
    """
    how: dict[str, Any] = {"precision": precision, "kernel": kernel}
    if invariant is not None:
        how["invariant"] = invariant
    if has_torch_function_variadic(input, weight, bias):
        return overridden(convolution, (input, weight, bias), input, weight, bias, **how)
    x = input if input.dim() == weight.dim() else input.unsqueeze(0)
    if input.dtype is not weight.dtype or not convolutions.fits(x.shape, weight.shape):
        return _TORCHS[weight.dim()](input, weight, bias, stride=weight.shape[2:])
    last = convolutions.is_channels_last(x, weight)
    product = functools.partial(sgemm_as, WORDS[last], **how)
    out = convolutions.convolve(product, x, weight, bias, last)
    return out if x is input else out.squeeze(0)


class Product(Deployed, nn.modules.conv._ConvNd):
    """What a converted convolution has besides: our product, and its options."""

    kernel: str = "auto"
    precision: Precision = "fp32"
    autocast: Autocast = "torch"
    invariant: Invariant | None = None

    def forward(self, input: Tensor) -> Tensor:
        """(B, C, *sizes) or (C, *sizes) -> (B, O, *places) or (O, *places), as torch's."""
        if is_torchs(self.weight, self.autocast):
            return super().forward(input)
        return convolution(
            input, self.weight, self.bias, precision=self.precision, kernel=self.kernel,
            invariant=self.invariant,
        )  # fmt: skip

    def extra_repr(self) -> str:
        """torch's, and what differs from the defaults."""
        given = {
            key: getattr(self, key) for key in ("kernel", "precision", "autocast", "invariant")
        }
        extra = [f"{key}={value}" for key, value in given.items() if value != getattr(Product, key)]
        return ", ".join([super().extra_repr(), *extra])


class Conv1d(Product, nn.Conv1d):
    """``torch.nn.Conv1d``, a product of ours."""

    stock = nn.Conv1d


class Conv2d(Product, nn.Conv2d):
    """``torch.nn.Conv2d``, a product of ours."""

    stock = nn.Conv2d


class Conv3d(Product, nn.Conv3d):
    """``torch.nn.Conv3d``, a product of ours."""

    stock = nn.Conv3d


CLASSES: dict[type[nn.Module], type[Product]] = {
    nn.Conv1d: Conv1d, nn.Conv2d: Conv2d, nn.Conv3d: Conv3d
}  # fmt: skip


def in_words(module: nn.Module) -> str:
    """What a convolution is that is a product, "" of others, and of what is none."""
    if not isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
        return ""
    kernel: tuple[int, ...] = module.kernel_size
    padding: Any = module.padding
    if isinstance(padding, str):  # of a kernel of one place "same" pads nothing
        padding = (int(padding == "same" and max(kernel) > 1),) * len(kernel)
    if not convolutions.is_product(
        kernel, module.stride, padding, module.dilation, module.transposed, module.output_padding,
        module.groups,
    ):  # fmt: skip
        return ""
    size = "x".join(map(str, kernel))
    return f"{size} convolution" if len(kernel) > 1 else f"convolution of kernel {size}"
