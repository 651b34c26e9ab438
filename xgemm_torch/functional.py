"""torch's functions for matrix products, on ``sgemm``: linear, mm, addmm, bmm, matmul.

They take what torch's take, with ``precision`` and ``kernel`` besides, and differ from them in
raising ValueError where torch raises RuntimeError, in giving float32 under autocast, and in that
``out`` must have the result's shape already.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.compiler import is_compiling
from torch.overrides import has_torch_function_variadic

from . import told
from ._checks import Words, check_invariant, known
from .ops import (
    are_matrices,
    linear_of_matrices,
    overridden,
    refuse_grad,
    sgemm_as,
    transforming,
)
from .types import Activation, Invariant, Precision

if TYPE_CHECKING:
    from .packed import PackedWeight

__all__ = ["addmm", "bmm", "linear", "matmul", "mm"]


def linear(
    x: Tensor,
    weight: Tensor | PackedWeight,
    bias: Tensor | None = None,
    activation: Activation = "none",
    *,
    precision: Precision = "fp32",
    kernel: str = "auto",
    invariant: Invariant | None = None,
) -> Tensor:
    """activation(x weight^T + bias), as ``torch.nn.functional.linear`` with an activation.

    Args:
        x: (..., in_features), any leading shape, none too; a nested tensor of layout torch.jagged.
        weight: (out_features, in_features), or (in_features,) for one output without a dimension.
        bias: (out_features,), or () with a weight of one dimension.
        activation: "none", "relu", "gelu", "gelu_tanh" or "silu".
        precision: "fp32" or "ieee", as of ``sgemm``.
        kernel: "auto" or a stage's name.
        invariant: "batch" or "tp", as of ``sgemm``. With "tp" a weight may be a DTensor that is
            sharded by its rows or its columns on 2, 4 or 8 ranks; ``x`` is one, too.

    Returns:
        (..., out_features), or (...) with a weight of one dimension.

    Raises:
        TypeError: an operand is no dense float32 tensor.
        ValueError: sizes, devices or names that do not fit.
    """
    if has_torch_function_variadic(x, weight, bias):
        return overridden(
            linear,
            (x, weight, bias),
            x,
            weight,
            bias,
            activation,
            precision=precision,
            kernel=kernel,
            **({} if invariant is None else {"invariant": invariant}),
        )
    if TYPE_CHECKING:  # a packed weight has gone its way
        assert isinstance(weight, Tensor)
    options = activation, precision, kernel, invariant
    tell = None
    if invariant is None and not is_compiling() and not transforming():
        tell = told.only_patch(x, weight, bias)
    if tell is None:
        return _linear(x, weight, bias, *options)
    with told.unseen():
        out = _linear(x, weight, bias, *options)
    tell("sgemm", 2 * out.numel() * weight.shape[-1])
    return out


def _linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation, precision: Precision,
    kernel: str, invariant: Invariant | None,
) -> Tensor:  # fmt: skip
    if invariant is None and not is_compiling() and are_matrices(x, weight, bias):
        try:
            return linear_of_matrices(LINEAR, x, weight, bias, activation, precision, kernel)
        except ValueError:
            _bias_fits(bias, weight)
            raise
    how: dict[str, Any] = {"precision": precision, "kernel": kernel, "activation": activation}
    if invariant is not None:
        how["invariant"] = invariant
        check_invariant("linear", invariant, precision)
        if invariant == "tp" and type(weight) not in (Tensor, torch.nn.Parameter):
            from . import tensor_parallel  # not at import: DTensor is a large module

            found = tensor_parallel.of_dtensors(x, weight, bias, activation, kernel)
            if found is not None:
                return found
    if isinstance(x, Tensor) and x.is_nested and x.layout is torch.jagged:
        ragged: Any = x
        if ragged._ragged_idx == x.dim() - 1:
            raise ValueError("linear: the last dimension of a jagged x must not be the ragged one")
        return _of_rows(x, lambda rows: linear(rows, weight, bias, **how))
    rank = _rank("linear", "x", x)
    if rank == 2 and _rank("linear", "weight", weight) == 2:
        _bias_fits(bias, weight)
        return sgemm_as(LINEAR, x, weight, bias, trans_b=True, **how)
    if _rank("linear", "weight", weight) not in (1, 2) or rank == 0:
        raise ValueError(
            "linear: x must have a dimension at least and weight one or two, "
            f"got x {_sizes(x)}, weight {_sizes(weight)}"
        )
    _bias_fits(bias, weight)
    if x.shape[-1] != weight.shape[-1]:
        raise ValueError(
            f"linear: inner sizes differ: x is {_sizes(x)}, weight is {_sizes(weight)}"
        )
    matrix = weight if weight.dim() == 2 else weight.unsqueeze(0)
    out = sgemm_as(LINEAR, _rows(x), matrix, bias, trans_b=True, **how)
    return out.reshape((*x.shape[:-1], *weight.shape[:-1]))


def mm(
    input: Tensor,
    mat2: Tensor | PackedWeight,
    *,
    out: Tensor | None = None,
    precision: Precision = "fp32",
    kernel: str = "auto",
) -> Tensor:
    """The product of two matrices, as ``torch.mm``.

    Args:
        input: (M, K).
        mat2: (K, N).
        out: (M, N), where to write the result.
        precision: "fp32" or "ieee", as of ``sgemm``.
        kernel: "auto" or a stage's name.

    Returns:
        The product, (M, N); ``out`` itself where it is given.

    Raises:
        TypeError: an operand is no dense float32 tensor.
        ValueError: no matrices, or sizes, devices or names that do not fit.
        RuntimeError: ``out`` where something requires grad.
    """
    if has_torch_function_variadic(input, mat2, out):
        return overridden(
            mm, (input, mat2, out), input, mat2, out=out, precision=precision, kernel=kernel
        )
    if TYPE_CHECKING:  # a packed weight has gone its way
        assert isinstance(mat2, Tensor)
    _ranks("mm", 2, input=input, mat2=mat2)
    return sgemm_as(MM, input, mat2, precision=precision, kernel=kernel, out=out)


def addmm(
    input: Tensor,
    mat1: Tensor,
    mat2: Tensor | PackedWeight,
    *,
    beta: float = 1,
    alpha: float = 1,
    out: Tensor | None = None,
    precision: Precision = "fp32",
    kernel: str = "auto",
) -> Tensor:
    """The sum beta * input + alpha * mat1 mat2, as ``torch.addmm``.

    Args:
        input: any shape that can be broadcast to (M, N); not read where ``beta`` is 0.
        mat1: (M, K).
        mat2: (K, N).
        beta: factor of ``input``.
        alpha: factor of the product.
        out: (M, N), where to write the result; it may be ``input``.
        precision: "fp32" or "ieee", as of ``sgemm``.
        kernel: "auto" or a stage's name.

    Returns:
        The sum, (M, N); ``out`` itself where it is given.

    Raises:
        TypeError: an operand is no dense float32 tensor.
        ValueError: no matrices, or sizes, devices or names that do not fit.
        RuntimeError: ``out`` where something requires grad.
    """
    if has_torch_function_variadic(input, mat1, mat2, out):
        return overridden(
            addmm,
            (input, mat1, mat2, out),
            input,
            mat1,
            mat2,
            beta=beta,
            alpha=alpha,
            out=out,
            precision=precision,
            kernel=kernel,
        )
    if TYPE_CHECKING:  # a packed weight has gone its way
        assert isinstance(mat2, Tensor)
    _ranks("addmm", 2, mat1=mat1, mat2=mat2)
    _rank("addmm", "input", input)
    how: dict[str, Any] = {"precision": precision, "kernel": kernel, "out": out}
    return sgemm_as(ADDMM, mat1, mat2, input, alpha=alpha, beta=beta, **how)


def bmm(
    input: Tensor,
    mat2: Tensor,
    *,
    out: Tensor | None = None,
    precision: Precision = "fp32",
    kernel: str = "auto",
) -> Tensor:
    """The products of two batches of matrices, as ``torch.bmm``: nothing is broadcast.

    Args:
        input: (batch, M, K).
        mat2: (batch, K, N).
        out: (batch, M, N), where to write the result.
        precision: "fp32" or "ieee", as of ``sgemm``.
        kernel: "auto" or a stage's name.

    Returns:
        The products, (batch, M, N); ``out`` itself where it is given.

    Raises:
        TypeError: an operand is no dense float32 tensor.
        ValueError: no batches, or sizes, devices or names that do not fit.
        RuntimeError: ``out`` where something requires grad.
    """
    if has_torch_function_variadic(input, mat2, out):
        return overridden(
            bmm, (input, mat2, out), input, mat2, out=out, precision=precision, kernel=kernel
        )
    _ranks("bmm", 3, input=input, mat2=mat2)
    if input.shape[0] != mat2.shape[0]:
        raise ValueError(
            f"bmm: batch sizes differ: input is {_sizes(input)}, mat2 is {_sizes(mat2)}"
        )
    return sgemm_as(BMM, input, mat2, precision=precision, kernel=kernel, out=out)


def matmul(
    input: Tensor,
    other: Tensor | PackedWeight,
    *,
    out: Tensor | None = None,
    precision: Precision = "fp32",
    kernel: str = "auto",
) -> Tensor:
    """The matrix product with torch's rules for vectors and batches, as ``torch.matmul``.

    A vector on the left is a row, one on the right a column, and its dimension goes again. Leading
    dimensions are batch dimensions and are broadcast. An operand is copied only where its own and
    its broadcast batch dimensions do not make one dimension.

    Args:
        input: (K,) or (..., M, K).
        other: (K,) or (..., K, N).
        out: where to write the result, of its shape.
        precision: "fp32" or "ieee", as of ``sgemm``.
        kernel: "auto" or a stage's name.

    Returns:
        The product: the broadcast batch dimensions, then M and N where the operands have them;
        ``out`` itself where it is given.

    Raises:
        TypeError: an operand is no dense float32 tensor.
        ValueError: sizes, devices or names that do not fit.
        RuntimeError: ``out`` where something requires grad.
    """
    if has_torch_function_variadic(input, other, out):
        return overridden(
            matmul, (input, other, out), input, other, out=out, precision=precision, kernel=kernel
        )
    if TYPE_CHECKING:  # a packed weight has gone its way
        assert isinstance(other, Tensor)
    how: dict[str, Any] = {"precision": precision, "kernel": kernel}
    rank, rank2 = _rank("matmul", "input", input), _rank("matmul", "other", other)
    if rank == 2 and rank2 == 2:
        return sgemm_as(MATMUL, input, other, out=out, **how)
    if rank == 0 or rank2 == 0:
        raise ValueError(
            "matmul: both operands must have a dimension at least, "
            f"got input {_sizes(input)}, other {_sizes(other)}"
        )
    a = input.unsqueeze(0) if rank == 1 else input
    b = other.unsqueeze(1) if rank2 == 1 else other
    if a.shape[-1] != b.shape[-2]:
        raise ValueError(
            f"matmul: inner sizes differ: input is {_sizes(input)}, other is {_sizes(other)}"
        )
    lead_a, lead_b = a.shape[:-2], b.shape[:-2]
    try:
        lead = torch.broadcast_shapes(lead_a, lead_b)
    except RuntimeError:
        raise ValueError(
            "matmul: batch sizes cannot be broadcast: "
            f"input is {_sizes(input)}, other is {_sizes(other)}"
        ) from None
    shape = (
        *lead,
        *(() if rank == 1 else (a.shape[-2],)),
        *(() if rank2 == 1 else (b.shape[-1],)),
    )
    if b.dim() == 2:
        a = _rows(a)
    elif len(lead) > 1:  # sgemm broadcasts one batch dimension itself
        a, b = _one_batch(a, lead), _one_batch(b, lead)
    if out is None:
        return sgemm_as(MATMUL, a, b, **how).reshape(shape)
    if not isinstance(out, Tensor):
        raise TypeError(f"matmul: out must be a tensor, got {type(out).__name__}")
    if tuple(out.shape) != shape:
        raise ValueError(f"matmul: out must have shape {tuple(shape)}, got {_sizes(out)}")
    refuse_grad(input, other, None, out, MATMUL)
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    try:
        target = out.view(*batch, a.shape[-2], b.shape[-1])
    except RuntimeError:  # strides that no such shape has
        target = out.new_empty(*batch, a.shape[-2], b.shape[-1])
        sgemm_as(MATMUL, a, b, out=target, **how)
        return out.copy_(target.view(shape))
    sgemm_as(MATMUL, a, b, out=target, **how)
    return out


# The operands' names, for what is raised.
LINEAR = Words("linear", a="x", b="weight", c="bias", flags=False)
MM = Words("mm", a="input", b="mat2", flags=False)
BMM = Words("bmm", a="input", b="mat2", flags=False)
ADDMM = Words("addmm", a="mat1", b="mat2", c="input", flags=False)
MATMUL = Words("matmul", a="input", b="other", flags=False)


def _sizes(t: Tensor) -> str:
    return str(tuple(t.shape))


def _rank(name: str, arg: str, t: Any) -> int:
    if not isinstance(t, Tensor):
        raise TypeError(f"{name}: {arg} must be a tensor, got {type(t).__name__}")
    if t.is_nested:
        raise TypeError(f"{name}: {arg} must be a dense (strided) tensor, got a nested one")
    return t.dim()


def _ranks(name: str, rank: int, **operands: Any) -> None:
    for arg, t in operands.items():
        if _rank(name, arg, t) != rank:
            raise ValueError(f"{name}: {arg} must have {rank} dimensions, got {_sizes(t)}")


def _bias_fits(bias: Tensor | None, weight: Tensor, name: str = "linear") -> None:
    """A bias has the weight's output shape; what ``sgemm`` would broadcast besides is a mistake."""
    if bias is None:
        return
    rank = _rank(name, "bias", bias)
    if rank != weight.dim() - 1 or (rank == 1 and bias.shape[0] not in (1, weight.shape[0])):
        raise ValueError(
            f"{name}: bias must be of shape {tuple(weight.shape[:-1])}, got {_sizes(bias)}"
        ) from None


def _rows(x: Tensor) -> Tensor:
    """``x`` as a matrix of its rows, or as a batch of matrices where a matrix would be a copy.

    The result's rows are in the same order either way. Only leading dimensions that not even a
    batch of matrices can have without a copy are copied.
    """
    if x.dim() == 1:
        return x.unsqueeze(0)
    if x.dim() == 2 or (not is_compiling() and x.is_contiguous()):  # the breaks say the same
        return x.flatten(0, -2)
    y = x
    for i in reversed(range(x.dim() - 2)):
        if known(x.shape[i] == 1):
            y = y.squeeze(i)
    breaks = [
        i for i in range(y.dim() - 2) if not known(y.stride(i) == y.shape[i + 1] * y.stride(i + 1))
    ]
    if len(breaks) == 1:
        return y.flatten(breaks[0] + 1, -2).flatten(0, breaks[0])
    return y.flatten(0, -2)


def _of_rows(x: Any, function: Callable[[Tensor], Tensor]) -> Tensor:
    """The jagged tensor of what ``function`` makes of the rows of a jagged one."""
    out = function(x.values())
    return torch.nested.nested_tensor_from_jagged(
        out, x.offsets(), x.lengths(), x._ragged_idx, x._maybe_min_seqlen, x._maybe_max_seqlen
    )


def _one_batch(t: Tensor, lead: torch.Size) -> Tensor:
    """The batch dimensions of ``t`` as one; none where ``t`` is the same for the whole batch."""
    if all(known(size == 1) for size in t.shape[:-2]):
        return t.reshape(t.shape[-2:])
    return t.expand(*lead, *t.shape[-2:]).flatten(0, -3)
