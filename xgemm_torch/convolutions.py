"""Convolutions that are products: of kernels of one place, or of patches side by side.

Where the stride is the kernel's size, and nothing is padded, no place of the input meets two places
of the kernel: y (places, O) = patches (places, C K) W^T (C K, O), K the kernel's size. Of a kernel
of one place (1x1, pointwise) the patches are the input as it lies, without a copy; of others, as of
a vision transformer's patch embedding, they are the input in another order, copied once.

Results are in the memory format that torch's convolution gives: contiguous, a matrix of O rows for
each sample, or channels last, one matrix of all places.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Size, Tensor

from . import ops
from ._checks import known
from .registry import OPERATORS

_CALL = ops.OPS["sgemm"]._op
_ROW_SUMS = OPERATORS.sgemm_row_sums.default._op


LEAST_FLOPS = 2**32
"""The default of ``min_flops`` for convolutions. On an H100 a product of 3 GFLOP takes 0.9 to 1.8
times as long as cuDNN's FP32, in large part a call's time on the host; of 7 GFLOP and more, 0.4 to
0.9 times (2026-11-27)."""


def in_tf32(device: str) -> str:
    """Why torch's own convolutions are left there as they are, "" where they are FP32.

    They are faster then, and what the model was to have.
    """
    if device != "cuda" or _torchs_precision() != "tf32":
        return ""
    return "torch's are TF32 (torch.backends.cudnn.allow_tf32)"


def _torchs_precision() -> str:
    cudnn: Any = torch.backends.cudnn
    return str(cudnn.conv.fp32_precision)


def is_product(
    kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    transposed: bool, output_padding: Sequence[int], groups: int,
) -> bool:  # fmt: skip
    """Whether a convolution of these options is one product; of one number each is for all sizes.

    A dilation of a kernel of one place does nothing.
    """

    def all_are(numbers: Sequence[int], wanted: Sequence[int]) -> bool:
        given = list(numbers) * (len(wanted) if len(numbers) == 1 else 1)
        return given == list(wanted)

    zeros, ones = [0] * len(kernel), [1] * len(kernel)
    return (
        not transposed
        and groups == 1
        and len(kernel) in (1, 2, 3)
        and all_are(stride, kernel)
        and all_are(padding, zeros)
        and all_are(output_padding, zeros)
        and (all_are(dilation, ones) or (all_are(kernel, ones) and min(dilation) > 0))
    )


def fits(x: Size, weight: Size) -> bool:
    """Whether an input (B, C, *sizes) goes with a weight (O, C, *kernel), and holds a patch."""
    return (
        len(x) == len(weight)
        and x[1] == weight[1]
        and all(size >= k for size, k in zip(x[2:], weight[2:], strict=True))
    )


def places(x: Size, weight: Size) -> list[int]:
    """How many patches an input has along each of its sizes."""
    return [size // k for size, k in zip(x[2:], weight[2:], strict=True)]


def flops(x: Size, weight: Size, out: Size | None = None, transposed: bool = False) -> int:
    """Count FLOP of a convolution, and of each of its gradients: input's and weight's.

    Args:
        x: (B, C, *sizes).
        weight: (O, C / groups, *kernel).
        out: of the result, (B, O, *places), where it is no product of ours.
        transposed: whether the convolution is.
    """
    at = x[2:] if transposed else places(x, weight) if out is None else out[2:]
    return 2 * x[0] * math.prod(at) * math.prod(weight)


# ---------------------------------------------------------------------------------------------
# Layouts


def is_channels_last(x: Tensor, weight: Tensor) -> bool:
    """Whether the result is to be channels last: where one of the two is, as strides tell.

    Inputs of one size never are, as torch has it.
    """
    if x.dim() == 3:
        return _lies_last(weight.unsqueeze(2))
    return _lies_last(x) or _lies_last(weight)


def torchs_is_channels_last(x: Tensor, weight: Tensor, dilation: Sequence[int]) -> bool:
    """What torch says itself of a convolution that is a product, for the library it would call."""
    if x.dim() == 3:  # two-dimensional to torch, and the input contiguous
        if not _lies_last(weight.unsqueeze(2)):
            return False
        x, weight, dilation = x.contiguous().unsqueeze(2), weight.unsqueeze(2), (1, *dilation)
    kernel, zeros = list(weight.shape[2:]), [0] * (x.dim() - 2)
    try:
        library = torch._C._select_conv_backend(
            x, weight, None, kernel, zeros, dilation, False, zeros, 1
        )
        form = torch._C._conv_determine_backend_memory_format(x, weight, library)
    except AttributeError:  # names that are not public
        return is_channels_last(x, weight)
    return form is not torch.contiguous_format


def _lies_last(t: Tensor) -> bool:
    """As torch's own test, C++'s ``suggest_memory_format``: channels' stride is the smallest.

    Where sizes of one leave it open, the answer is contiguous.
    """
    if t.stride(1) == 0:
        return False
    least: Any = 0
    for d in (1, *range(t.dim() - 1, 1, -1), 0):
        size, stride = t.shape[d], t.stride(d)
        if known(size == 0) or stride < least or (d == 0 and least == t.stride(1)):
            return False
        least = stride * size if size != 1 else stride
    return True


def _windows(x: Tensor, kernel: Sequence[int]) -> Tensor:
    """A view of (B, C, *sizes): (B, *places, C, *kernel); what is over at an end is left out."""
    n = len(kernel)
    if math.prod(kernel) == 1:
        return x.movedim(1, -1)[(..., *(None,) * n)]
    for i, k in enumerate(kernel):
        d = 2 + 2 * i
        x = x.narrow(d, 0, x.shape[d] // k * k).unflatten(d, (x.shape[d] // k, k))
    return x.permute(0, *range(2, 2 * n + 2, 2), 1, *range(3, 2 * n + 3, 2))


def _patches(x: Tensor, kernel: Sequence[int]) -> Tensor:
    """(B, C, *sizes) -> (B, places, C K): a view where K is 1 and the sizes lie as one."""
    n = len(kernel)
    return _windows(x, kernel).flatten(n + 1).flatten(1, n)


def _matrix(t: Tensor) -> Tensor:
    """(B, rows, columns) as one matrix of all rows where that is no copy."""
    return t.flatten(0, 1) if ops._stacks(t) else t


def _to_channels_last(t: Tensor, batch: Any, sizes: Sequence[int]) -> Tensor:
    """(B, places, O), or as one matrix, as (B, O, *sizes)."""
    return t.view(batch, *sizes, t.shape[-1]).movedim(-1, 1)


# ---------------------------------------------------------------------------------------------
# The products

Product = Callable[..., Tensor]


def convolve(
    product: Product, x: Tensor, weight: Tensor, bias: Tensor | None, last: bool
) -> Tensor:
    """The convolution of ``x`` by ``weight``, by ``product``, which is called as ``sgemm`` is.

    Args:
        product: of two operands, an addend and the flags ``trans_a`` and ``trans_b``.
        x: (B, C, *sizes).
        weight: (O, C, *kernel).
        bias: (O,), or None.
        last: whether the result is to be channels last.

    Returns:
        (B, O, *places).
    """
    sizes, kernel = places(x.shape, weight.shape), weight.shape[2:]
    patches, matrix = _patches(x, kernel), weight.flatten(1)
    if last:
        out = product(_matrix(patches), matrix, bias, trans_b=True)
        return _to_channels_last(out, x.shape[0], sizes)
    column = None if bias is None else bias.unsqueeze(1)
    out = product(matrix, patches, column, trans_b=True)
    return out.view(x.shape[0], weight.shape[0], *sizes)


def gradients(
    grad: Tensor, x: Tensor, weight: Tensor, last: bool, wanted: Sequence[bool], how: dict[str, Any]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of input, weight and bias that are wanted, in torch's memory format.

    Args:
        grad: (B, O, *places).
        x: (B, C, *sizes).
        weight: (O, C, *kernel).
        last: whether torch's are channels last.
        wanted: for each of the three.
        how: options of ``sgemm``.
    """
    kernel = weight.shape[2:]
    rows, matrix = grad.flatten(2).mT, weight.flatten(1)  # (B, places, O), (O, C K)
    of_x = of_weight = of_bias = None
    if wanted[0]:
        of_x = _gradient_of_input(rows, matrix, x, kernel, last, how)
    if wanted[1]:
        patches = _patches(x, kernel)
        pair = ops._one_product(rows, patches)
        if pair is None:
            of_weight = _CALL(rows, patches, None, trans_a=True, **how).sum(0)
        elif wanted[2]:
            of_weight, of_bias = _ROW_SUMS(*pair, trans_a=True, **how)
        else:
            of_weight = _CALL(*pair, None, trans_a=True, **how)
        of_weight = _of_kernels(of_weight, weight.shape, last)
    if wanted[2] and of_bias is None:
        of_bias = grad.sum((0, *range(2, grad.dim())))
    return of_x, of_weight, of_bias


def _gradient_of_input(
    rows: Tensor, matrix: Tensor, x: Tensor, kernel: Sequence[int], last: bool, how: dict[str, Any]
) -> Tensor:
    batch, channels, *sizes = x.shape
    pointwise = math.prod(kernel) == 1
    if pointwise and not last:
        return _CALL(matrix, rows, None, trans_a=True, trans_b=True, **how).view(x.shape)
    patches = _CALL(_matrix(rows), matrix, None, **how)
    if pointwise:
        return _to_channels_last(patches, batch, sizes)
    if last:
        out = x.new_empty(batch, *sizes, channels).movedim(-1, 1)
    else:
        out = x.new_empty(x.shape)
    windows = _windows(out, kernel)
    if windows.numel() != out.numel():  # what is over at an end
        out.zero_()
    windows.copy_(patches.view(windows.shape))
    return out


def _of_kernels(matrix: Tensor, shape: Size, last: bool) -> Tensor:
    """(O, C K) as (O, C, *kernel) in the memory format."""
    if not last:
        return matrix.view(shape)
    if math.prod(shape[2:]) == 1:
        return _to_channels_last(matrix, shape[0], shape[2:])
    return matrix.view(shape).movedim(1, -1).contiguous().movedim(-1, 1)
