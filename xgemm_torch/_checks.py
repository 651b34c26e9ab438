"""The checks of every operator's arguments, with the same texts as the C++ side.

The C++ kernels check everything themselves; this file is for the paths where no C++ kernel runs
(fakes, vmap rules, functorch) and for giving an error of C++ its Python type: what is no float32
tensor is a ``TypeError``, what is a wrong size, value or name is a ``ValueError``.

Sizes are compared with care, so that symbolic sizes (``torch.compile(dynamic=True)``, unbacked
sizes of data-dependent operands) get no needless guards.
"""

from __future__ import annotations

import functools
import math
from numbers import Real
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor
from torch.compiler import is_compiling

from .registry import NAMESPACE, left_out, stages
from .types import Activation, Invariant, Precision

PRECISIONS: tuple[Precision, ...] = get_args(Precision)
INVARIANTS: tuple[Invariant, ...] = get_args(Invariant)
ACTIVATIONS: tuple[Activation, ...] = get_args(Activation)

# Stages that could not be registered, and why.
_LEFT_OUT = left_out()
# Stages that do not keep what precision="ieee" guarantees.
_OTHER_BITS = frozenset(stage.name for stage in stages() if not stage.strict)
_BATCH_INVARIANT = tuple(stage.name for stage in stages() if stage.batch_invariant)


class Words(NamedTuple):
    """The names of a function and of its operands, for what is raised.

    Attributes:
        name: the function's.
        a: its left operand's; the others likewise.
        b: see there.
        c: see there.
        flags: whether it has trans_a and trans_b.
    """

    name: str
    a: str = "a"
    b: str = "b"
    c: str = "c"
    flags: bool = True


own_words = functools.cache(Words)
"""Those of an operator."""

# From here on a number rounds to an infinity.
_MOST = (2 - 2**-24) * 2.0**127


def _sizes(shape: Any) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def _of_torch(thing: object) -> str:
    """``torch.float64`` -> ``float64``."""
    return str(thing).removeprefix("torch.")


def known(fact: Any) -> bool:
    """Whether a comparison of sizes is known to hold; of a size that data decide it may not be."""
    if type(fact) is bool and not is_compiling():
        return fact
    if isinstance(fact, Tensor):  # while torch.jit.trace records sizes
        return bool(fact)
    from torch.fx.experimental.symbolic_shapes import guard_or_false  # not at import: it is large

    return guard_or_false(fact)


def _operand(name: str, arg: str, t: Any, dtype: torch.dtype = torch.float32) -> None:
    if not isinstance(t, Tensor):
        raise TypeError(f"{name}: {arg} must be a tensor, got {type(t).__name__}")
    if t.is_nested:
        raise TypeError(f"{name}: {arg} must be a dense (strided) tensor, got a nested one")
    if t.layout is not torch.strided:
        raise TypeError(
            f"{name}: {arg} must be a dense (strided) tensor, got {_of_torch(t.layout)}"
        )
    if t.dtype is not dtype:
        raise TypeError(f"{name}: {arg} must be {_of_torch(dtype)}, got {_of_torch(t.dtype)}")


def _devices(name: str, operands: dict[str, Tensor]) -> None:
    first, *others = operands.items()
    for arg, t in others:
        if t.device != first[1].device:
            raise ValueError(
                f"{name}: {first[0]} is on {first[1].device}, {arg} is on {t.device}; "
                "all operands must be on one device"
            )


def _string(name: str, arg: str, value: Any) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{name}: {arg} must be a string, got {type(value).__name__}")


def number(name: str, arg: str, value: Any) -> None:
    """Check a factor.

    Raises:
        TypeError: it is no real number; a tensor is none, for it might want a gradient.
        ValueError: a finite number that has no float32.
    """
    if type(value) is not float:
        if isinstance(value, (torch.SymInt, torch.SymFloat)):
            return
        if isinstance(value, bool) or not isinstance(value, Real):
            raise TypeError(f"{name}: {arg} must be a real number, got {type(value).__name__}")
        try:
            value = float(value)
        except OverflowError:
            raise ValueError(f"{name}: {arg} is an int beyond any float") from None
    if _MOST <= abs(value) < math.inf:
        raise ValueError(f"{name}: {arg} is {value:g}, beyond float32's largest number")


def flag(name: str, arg: str, value: Any) -> None:
    """Raise TypeError unless a flag is True or False; the dispatcher would take a number."""
    if not isinstance(value, bool):
        raise TypeError(f"{name}: {arg} must be a bool, got {type(value).__name__}")


def left_out_words(name: str, stage: str) -> str:
    """What is said of a stage that could not be registered."""
    return f"{name}: {stage} is left out of this build: {_LEFT_OUT[stage]}"


def check_options(
    name: str, kernels: tuple[str, ...], kernel: Any, precision: Any, activation: Any = "none"
) -> None:
    """Check the three arguments that are names.

    Raises:
        TypeError: one is no string.
        ValueError: one is unknown, or the kernel does not keep what the precision guarantees.
    """
    for arg, value in (("kernel", kernel), ("precision", precision), ("activation", activation)):
        _string(name, arg, value)
    if activation not in ACTIVATIONS:
        raise ValueError(
            f"{name}: no activation named '{activation}'; there are: {', '.join(ACTIVATIONS)}"
        )
    if precision not in PRECISIONS:
        raise ValueError(f"{name}: precision must be 'fp32' or 'ieee', got '{precision}'")
    if kernel not in kernels:
        if len(kernels) == 2 and kernels[1] == name:
            raise ValueError(
                f"{name}: kernel must be 'auto' or '{name}' here, got '{kernel}'; "
                f"torch.ops.{NAMESPACE}.sgemm takes any"
            )
        if kernel in _LEFT_OUT:
            raise RuntimeError(left_out_words(name, kernel))
        raise ValueError(f"{name}: no kernel named '{kernel}'; there are: {', '.join(kernels)}")
    stage = name if kernel == "auto" else kernel
    if precision == "ieee" and stage in _OTHER_BITS:
        raise ValueError(
            f"{name}: {stage} has other bits than precision='ieee' guarantees; "
            "kernel='auto' takes a stage that has them"
        )


def check_invariant(name: str, invariant: Any, precision: Any) -> None:
    """Check what a product's bits are not to depend on.

    Raises:
        TypeError: it is no string.
        ValueError: it is unknown, or the precision cannot give it.
    """
    if invariant is None:
        return
    _string(name, "invariant", invariant)
    if invariant not in INVARIANTS:
        raise ValueError(f"{name}: invariant must be 'batch', 'tp' or None, got '{invariant}'")
    if invariant == "tp" and precision != "ieee":
        raise ValueError(
            f"{name}: invariant='tp' needs precision='ieee', got '{precision}': limbs of a shard "
            "of K are scaled by that shard's own largest element"
        )


def check_batch_invariant(name: str, kernel: str, strict: bool) -> None:
    """Raise ValueError where no row of a stage's result has bits that rest on it alone.

    Args:
        name: what was called.
        kernel: the stage, or "auto".
        strict: whether a strict one is taken for what it can do.
    """
    if kernel == "auto" or kernel in _BATCH_INVARIANT:
        return
    if kernel in _OTHER_BITS or not strict:
        raise ValueError(
            f"{name}: {kernel} is not batch_invariant; stages that are: "
            f"{', '.join(_BATCH_INVARIANT)}"
        )


def product_sizes(name: str, m: int, n: int, k: int, batch: int) -> None:
    """Check the sizes of a product without operands: all that is made of them fits 64 bits.

    Raises:
        ValueError: one is negative, or an operand or the result would have 2^63 bytes or more.
    """
    given = f"{m} x {n} x {k}, batch {batch}"
    if min(m, n, k, batch) < 0:
        raise ValueError(f"{name}: sizes must not be negative, got {given}")
    elements = max(1, batch) * max(m * n, m * k, k * n)
    if max(m, n, k, batch, 4 * elements) >= 2**63:
        raise ValueError(
            f"{name}: a size, or bytes of an operand or the result, are 2^63 or more, got {given}"
        )


def result_shape(
    call: Words,
    a: Any,
    b: Any,
    c: Any,
    trans_a: bool,
    trans_b: bool,
) -> tuple[Any, ...]:
    """The shape of op(a) op(b), from the shapes of the operands (``c``'s may be None).

    Raises ValueError where they do not fit together.
    """
    for arg, sizes in ((call.a, a), (call.b, b)):
        if len(sizes) not in (2, 3):
            raise ValueError(
                f"{call.name}: {arg} must have 2 or 3 dimensions, got shape {_sizes(sizes)}"
            )
    m, inner_a = (a[-1], a[-2]) if trans_a else (a[-2], a[-1])
    inner_b, n = (b[-1], b[-2]) if trans_b else (b[-2], b[-1])
    flags = f" with trans_a={trans_a}, trans_b={trans_b}" if trans_a or trans_b else ""
    given = f"{call.a} is {_sizes(a)}, {call.b} is {_sizes(b)}"
    torch._check_value(
        inner_a == inner_b,
        lambda: f"{call.name}: inner sizes differ: {given}{flags if call.flags else ''}",
    )
    if len(a) == 2 and len(b) == 2:
        shape: tuple[Any, ...] = (m, n)
    elif len(a) == 2 or len(b) == 2:
        shape = ((b if len(a) == 2 else a)[0], m, n)
    else:
        batch_a, batch_b = a[0], b[0]
        only_b = known(batch_a == 1)
        if not only_b and not known(batch_b == 1):
            torch._check_value(
                batch_a == batch_b, lambda: f"{call.name}: batch sizes differ: {given}"
            )
        shape = (batch_b if only_b else batch_a, m, n)
    if c is not None:
        fits = len(c) <= len(shape) and all(
            have is need or known(have == need) or have == 1
            for have, need in zip(reversed(c), reversed(shape), strict=False)
        )
        if not fits:
            raise ValueError(
                f"{call.name}: {call.c} does not broadcast to the result: {call.c} is {_sizes(c)}, "
                f"the result is {_sizes(shape)}"
            )
    return shape


def check(
    call: Words,
    kernels: tuple[str, ...],
    a: Any,
    b: Any,
    c: Any = None,
    *,
    alpha: Any = 1.0,
    beta: Any = 1.0,
    trans_a: Any = False,
    trans_b: Any = False,
    precision: Any = "fp32",
    kernel: Any = "auto",
    activation: Any = "none",
    packed: Any = None,
    chain: Any = None,
    batch_invariant: Any = None,
    invariant: Any = None,
    parts: Any = None,
    out: Any = None,
    dtype_of_a: torch.dtype = torch.float32,
) -> tuple[Any, ...]:
    """Check a whole call and return the result's shape.

    Args:
        call: what was called, for the messages.
        kernels: the values that ``kernel`` may have.
        a: the left operand.
        b: the right operand.
        c: the addend, or None.
        alpha: as of ``xgemm_torch.sgemm``; and the others likewise.
        beta: see there.
        trans_a: see there.
        trans_b: see there.
        precision: see there.
        kernel: see there.
        activation: see there.
        packed: what the operator ``prepack`` has made of ``b``, or None.
        chain: how long the chains of ``precision="ieee"`` are, or None.
        batch_invariant: whether a row's bits are to rest on no other row, with ``"fp32"``, or None.
        invariant: see there.
        parts: the operator ``sgemm_invariant``'s, or None.
        out: the result's place, or None.
        dtype_of_a: what ``a`` must hold; the others hold float32.

    Raises:
        TypeError: an operand is no dense float32 tensor, or another argument is of a wrong type.
        ValueError: sizes that do not fit, several devices, an unknown name.
    """
    name = call.name
    operands = {call.a: a, call.b: b}
    operands |= {arg: t for arg, t in ((call.c, c), ("out", out)) if t is not None}
    for arg, t in operands.items():
        _operand(name, arg, t, dtype_of_a if arg == call.a else torch.float32)
    if packed is not None:
        _operand(name, "packed", packed, torch.uint8)
        operands["packed"] = packed
    number(name, "alpha", alpha)
    number(name, "beta", beta)
    for arg, value in (("trans_a", trans_a), ("trans_b", trans_b)):
        flag(name, arg, value)
    _devices(name, operands)
    c_shape = None if c is None else c.shape
    shape = result_shape(call, a.shape, b.shape, c_shape, trans_a, trans_b)
    if c is None and beta != 0 and beta != 1:
        raise ValueError(f"{name}: beta is {beta:g} but there is no {call.c}")
    if precision is None and parts is not None:
        precision = "ieee"
    check_invariant(name, invariant, precision)
    check_options(name, kernels, kernel, precision, activation)
    if batch_invariant or (parts is not None and precision == "fp32"):
        if precision != "fp32":
            raise ValueError(f"{name}: batch_invariant is of precision='fp32'; \"ieee\" has chain")
        check_batch_invariant(name, name if len(kernels) == 2 else kernel, not batch_invariant)
    if chain is not None:
        of_limbs = precision == "fp32" and kernel == "auto" and len(kernels) > 2
        _check_chain(name, chain, a.shape[-2 if trans_a else -1], of_limbs)
    if out is not None:
        _shape_of_out(name, out, shape)
    return shape


def _check_chain(name: str, chain: Any, k: Any, of_limbs: bool) -> None:
    if of_limbs:
        raise ValueError(f"{name}: chain is of precision='ieee'; \"fp32\" has sums of other kinds")
    if chain < 1 or (chain % 32 and known(chain < k)):
        raise ValueError(f"{name}: chain must be a multiple of 32 or K, got {chain}")


def linear_backward(
    kernels: tuple[str, ...], grad: Any, x: Any, weight: Any, kernel: Any, precision: Any
) -> None:
    """Check a call of the operator ``linear_backward``.

    Args:
        kernels: the values that ``kernel`` may have.
        grad: (M, N).
        x: (M, K), or None.
        weight: (N, K), or None.
        kernel: as of ``xgemm_torch.sgemm``; and the precision likewise.
        precision: see there.

    Raises:
        TypeError: an operand is no dense float32 tensor.
        ValueError: sizes that do not fit, several devices, an unknown name, or no operand.
    """
    name = "linear_backward"
    operands = {
        arg: t for arg, t in (("grad", grad), ("x", x), ("weight", weight)) if t is not None
    }
    if len(operands) < 2:
        raise ValueError(
            f"{name}: x or weight must be given; a bias's gradient alone is grad.sum(0)"
        )
    for arg, t in operands.items():
        _operand(name, arg, t)
        if t.dim() != 2:
            raise ValueError(f"{name}: {arg} must have 2 dimensions, got shape {_sizes(t.shape)}")
    _devices(name, operands)
    given = ", ".join(
        f"{arg} is {None if t is None else _sizes(t.shape)}"
        for arg, t in (("grad", grad), ("x", x), ("weight", weight))
    )
    fits = [t.shape[0] == grad.shape[i] for i, t in enumerate((x, weight)) if t is not None]
    if x is not None and weight is not None:
        fits.append(x.shape[1] == weight.shape[1])
    for fit in fits:
        torch._check_value(
            fit, lambda: f"{name}: sizes differ: {given}; needed are (M, N), (M, K) and (N, K)"
        )
    check_options(name, kernels, kernel, precision)


def storage(name: str, arg: str, t: Any) -> None:
    """Check that an operand's storage holds all that its view reaches.

    Operands that have no storage of their own, as those of fakes and of transforms, are not looked
    at.

    Raises:
        ValueError: it does not, as after ``untyped_storage().resize_(0)``.
    """
    if type(t) not in (Tensor, torch.nn.Parameter) or t.is_meta or t.numel() == 0:
        return
    try:
        have = t.untyped_storage().nbytes()
    except (RuntimeError, NotImplementedError):
        return
    last = sum((size - 1) * step for size, step in zip(t.shape, t.stride(), strict=True))
    need = (t.storage_offset() + last + 1) * t.element_size()
    if have < need:
        raise ValueError(
            f"{name}: {arg}'s storage has {have} bytes, its view needs {need}: "
            "was it freed (untyped_storage().resize_(0))?"
        )


def takes(name: str, out: Any, result: Tensor) -> None:
    """Check that ``result`` may be copied to ``out`` as if it had been written there.

    Raises:
        TypeError: ``out`` is no dense float32 tensor.
        ValueError: it has another shape, or is on another device.
    """
    _operand(name, "out", out)
    _devices(name, {"a": result, "out": out})
    _shape_of_out(name, out, result.shape)


def _shape_of_out(name: str, out: Tensor, shape: Any) -> None:
    if tuple(out.shape) != tuple(shape):
        raise ValueError(f"{name}: out must have shape {_sizes(shape)}, got {_sizes(out.shape)}")
