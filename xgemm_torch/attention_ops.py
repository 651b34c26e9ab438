"""The operators ``attention_forward`` and ``attention_backward``: fakes, autograd, transforms.

They are made for compute capability 9.0, and give what torch's own
``_scaled_dot_product_efficient_attention`` and its backward give, in the same memory: the backward
of one takes the forward of the other. Schemas and kernels are C++'s. A gradient of a gradient, and
forward mode, are products of `attention_products`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from . import _checks, attention_dropout, attention_products, flops, ops
from .ops import _LIB
from .registry import NAMESPACE, OPERATORS, attention_kernels

FORWARD = OPERATORS.attention_forward.default
BACKWARD = OPERATORS.attention_backward.default
BACKWARD_OUT = OPERATORS.attention_backward.out
"""The same into memory that is given (`unbound`), of any strides; it has no gradient."""
LARGEST_HEAD = attention_kernels().largest_head
"""The largest D that the kernels take."""
_LSE_ROWS = 32  # rows of log-sum-exp come in multiples of it


# ---------------------------------------------------------------------------------------------
# The operators: checks, fakes


def _check(name: str, q: Tensor, k: Tensor, v: Tensor, bias: Any = None, **more: Any) -> None:
    """Raise what the C++ side says, as a TypeError or ValueError."""
    operands = {"q": q, "k": k, "v": v, **({} if bias is None else {"bias": bias}), **more}
    for arg, t in operands.items():
        _checks._operand(name, arg, t)
        rank = 3 if arg == "lse" else 4
        if t.dim() != rank:
            raise ValueError(
                f"{name}: {arg} must have {rank} dimensions, got shape {_checks._sizes(t.shape)}"
            )
    _checks._devices(name, operands)
    batch, heads, rows, width = q.shape
    keys = k.shape[2]
    for fits in (1 <= width, width <= LARGEST_HEAD):
        torch._check_value(
            fits, lambda: f"{name}: heads must have 1 to {LARGEST_HEAD} columns, got {width}"
        )
    as_q, as_k = (batch, heads, rows, width), (batch, heads, keys, width)
    shapes = {
        "k": as_k, "v": as_k, "bias": (batch, heads, rows, keys), "grad": as_q, "out": as_q,
        "lse": (batch, heads, _padded(rows)), "dq": as_q, "dk": as_k, "dv": as_k,
    }  # fmt: skip
    for arg, t in operands.items():
        _shape(name, arg, t.shape, shapes.get(arg, t.shape))


def _shape(name: str, arg: str, given: Any, wanted: Any) -> None:
    for have, need in zip(given, wanted, strict=True):
        torch._check_value(
            have == need,
            lambda: (
                f"{name}: {arg} must have shape {_checks._sizes(wanted)}, "
                f"got {_checks._sizes(given)}"
            ),
        )


def _check_dropout(name: str, q: Tensor, dropout_p: float, **numbers: Tensor | None) -> None:
    if dropout_p == 0:
        return
    if not attention_dropout.takes(dropout_p):
        raise ValueError(f"{name}: dropout_p must be in [0, 1), got {dropout_p:g}")
    for arg, t in numbers.items():
        if t is None:
            raise ValueError(f"{name}: dropout needs a seed and an offset, got no {arg}")
        _checks._operand(name, arg, t, torch.int64)
        if t.device.type != "cpu":
            _checks._devices(name, {"q": q, arg: t})
        if t.numel() != 1:
            raise ValueError(
                f"{name}: {arg} must have one element, got shape {_checks._sizes(t.shape)}"
            )


def _padded(rows: Any) -> Any:
    return (rows + _LSE_ROWS - 1) // _LSE_ROWS * _LSE_ROWS


def _like(t: Tensor) -> Tensor:
    """Memory for a result of t's shape: (B, S, H, D) dense, as torch's own attention has it."""
    batch, heads, rows, width = t.shape
    return t.new_empty(batch, rows, heads, width).transpose(1, 2)


@torch.library.register_fake(f"{NAMESPACE}::attention_forward", lib=_LIB)
def _forward_fake(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, is_causal: bool, scale: float,
    dropout_p: float = 0.0, seed: Tensor | None = None, offset: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    _check("attention_forward", q, k, v, bias)
    _check_dropout("attention_forward", q, dropout_p, seed=seed, offset=offset)
    return _like(q), q.new_empty(*q.shape[:2], _padded(q.shape[2]))


@torch.library.register_fake(f"{NAMESPACE}::attention_backward", lib=_LIB)
def _backward_fake(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, out: Tensor, lse: Tensor,
    is_causal: bool, scale: float, dropout_p: float = 0.0, seed: Tensor | None = None,
    offset: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    _check("attention_backward", q, k, v, bias, grad=grad, out=out, lse=lse)
    _check_dropout("attention_backward", q, dropout_p, seed=seed, offset=offset)
    return _like(q), _like(k), _like(v)


@torch.library.register_fake(f"{NAMESPACE}::attention_backward.out", lib=_LIB)
def _backward_out_fake(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, out: Tensor, lse: Tensor,
    is_causal: bool, scale: float, dropout_p: float = 0.0, seed: Tensor | None = None,
    offset: Tensor | None = None, *, dq: Tensor, dk: Tensor, dv: Tensor,
) -> None:  # fmt: skip
    _check("attention_backward", q, k, v, bias, grad=grad, out=out, lse=lse, dq=dq, dk=dk, dv=dv)
    _check_dropout("attention_backward", q, dropout_p, seed=seed, offset=offset)


# ---------------------------------------------------------------------------------------------
# Autograd, transforms, autocast


def _run(op: Any, keyset: torch._C.DispatchKeySet | None, args: tuple[Any, ...]) -> Any:
    """Below autograd: go on from the Autograd key of ``keyset``, or begin anew without one."""
    with ops._BelowAutograd():
        if keyset is None:
            return op(*args)
        return op.redispatch(keyset & torch._C._after_autograd_keyset, *args)


def _refuse_bias(op: Any, bias: Tensor | None) -> None:
    if bias is not None and bias.requires_grad:
        raise RuntimeError(f"{op._opname}: there is no gradient of bias; detach() it")


class _AttentionForward:
    """The rules of the forward operator's autograd Functions, whose nodes are named after it."""

    op = FORWARD
    by_products = staticmethod(attention_products.attention)

    @staticmethod
    def keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        q, k, v, bias, ctx.is_causal, ctx.scale, ctx.dropout_p, *seeds = inputs[1:]
        _refuse_bias(FORWARD, bias)
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(q, k, v, bias, *output, *seeds)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, bias, out, lse, *seeds = ctx.saved_tensors
        found = BACKWARD(
            grads[0], q, k, v, bias, out, lse, ctx.is_causal, ctx.scale, ctx.dropout_p, *seeds
        )
        return None, *found, *(None,) * 6


class _AttentionBackward:
    """Those of the backward operator's."""

    op = BACKWARD

    @staticmethod
    def by_products(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None,
                    out: Tensor, lse: Tensor, *rest: Any) -> Any:  # fmt: skip
        return attention_products.gradients(grad, q, k, v, bias, *rest)

    @staticmethod
    def keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        grad, q, k, v, bias, _, _, ctx.is_causal, ctx.scale, ctx.dropout_p, *seeds = inputs[1:]
        _refuse_bias(BACKWARD, bias)
        ctx.save_for_backward(grad, q, k, v, bias, *seeds)

    @staticmethod
    def backward(ctx: Any, *of_grads: Any) -> tuple[Tensor | None, ...]:
        """``out`` and ``lse`` are functions of q, k and v here: no gradients of their own."""
        grad, q, k, v, bias, *seeds = ctx.saved_tensors
        found = attention_products.second_derivatives(
            of_grads, grad, q, k, v, bias, ctx.is_causal, ctx.scale, ctx.dropout_p, *seeds
        )
        return None, *found, *(None,) * 8


def _plain(rules: Any) -> Any:
    """The Function of eager mode and of tracing: without ``setup_context``, whose calls cost more.

    Its first input, and the other's, is a keyset, which has no gradient.
    """

    def forward(ctx: Any, *inputs: Any) -> Any:
        output = _run(rules.op, inputs[0], inputs[1:])
        rules.keep(ctx, inputs, output)
        return output

    return _function(rules, forward=forward)


def _transformed(rules: Any) -> Any:
    """The Function of ``torch.func``."""

    def forward(*inputs: Any) -> Any:
        return _run(rules.op, None, inputs[1:])

    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> Any:
        return _vmapped(rules.op, info.batch_size, in_dims[1:], inputs[1:])

    return _function(rules, forward=forward, setup_context=rules.keep, vmap=vmap)


def _function(rules: Any, **methods: Any) -> Any:
    bases = rules, torch.autograd.Function
    return type(rules.__name__[1:], bases, {name: staticmethod(f) for name, f in methods.items()})


def _dense_lse(t: Tensor) -> Tensor:
    """An operand of any strides, but the logarithms, which are read dense."""
    return t if t.dim() == 4 else t.contiguous()


def _vmapped(op: Any, size: int, in_dims: tuple[int | None, ...], args: tuple[Any, ...]) -> Any:
    """The rule of vmap: the mapped dimension joins the batch's, in front of it.

    With dropout it does not, for a weight's number depends on its place in the batch.
    """
    if args[-3] != 0:

        def part(t: Any, dim: int | None, i: int) -> Any:
            if dim is None:
                return t
            return _dense_lse(t.select(dim, i))

        pairs = list(zip(args, in_dims, strict=True))
        results = [op(*(part(*pair, i) for pair in pairs)) for i in range(size)]
        return tuple(map(torch.stack, zip(*results, strict=True))), (0,) * len(results[0])

    def joined(t: Any, dim: int | None) -> Any:
        if not isinstance(t, Tensor):
            return t
        t = t.expand(size, *t.shape) if dim is None else t.movedim(dim, 0)
        t = t.flatten(0, 1)  # no copy of what is shared where the batch is 1
        return _dense_lse(t)

    batch = args[0].shape[0 if in_dims[0] is None else int(in_dims[0] == 0)]
    results = op(*(joined(t, dim) for t, dim in zip(args, in_dims, strict=True)))
    return tuple(t.unflatten(0, (size, batch)) for t in results), (0,) * len(results)


def _register(rules: Any) -> None:
    """The kernels of the Autograd key, and of the key at which ``torch.func`` begins."""
    op, plain, transformed = rules.op, _plain(rules), _transformed(rules)
    arity = len(op._schema.arguments)

    def autograd(keyset: torch._C.DispatchKeySet, *args: Any) -> Any:
        args = _whole(args, arity)
        try:
            tensors = [t for t in args if isinstance(t, Tensor)]
            if ops._forward_mode() or ops._traced_tangent(*tensors):
                return rules.by_products(*args)
            if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
                return plain.apply(keyset, *args)
            return _run(op, keyset, args)
        except (AttributeError, TypeError, ValueError, RuntimeError):
            _say_what_is_wrong(op, args)
            raise

    def functorch(*args: Any) -> Any:
        from .levels import functionalized

        if (outer := functionalized()) is not None:
            with outer.redispatch_to_next():
                return outer.wrap_tensors(op(*outer.unwrap_tensors(args)))
        args = _whole(args, arity)
        if op is FORWARD:
            args = (*(ops._float32(t) for t in args[:4]), *args[4:])
        if ops._forward_mode() or _in_jvp():
            return rules.by_products(*args)
        return transformed.apply(None, *args)

    _LIB.impl(op._opname, autograd, "Autograd", with_keyset=True)
    _LIB.impl(op._opname, functorch, "FuncTorchDynamicLayerFrontMode")


def _out_autograd(
    keyset: torch._C.DispatchKeySet, *args: Any, dq: Tensor, dk: Tensor, dv: Tensor
) -> None:
    into = {"dq": dq, "dk": dk, "dv": dv}
    given = dict(zip(_names(BACKWARD), args, strict=False)) | into
    for arg, t in given.items():
        if torch.is_grad_enabled() and t is not None and t.requires_grad:
            raise RuntimeError(
                "attention_backward: functions with out=... arguments don't support automatic "
                f"differentiation, but {arg} requires grad"
            )
    try:
        with ops._BelowAutograd():
            BACKWARD_OUT.redispatch(keyset & torch._C._after_autograd_keyset, *args, **into)
    except (AttributeError, TypeError, ValueError, RuntimeError):
        _say_what_is_wrong(BACKWARD, _whole(args, len(BACKWARD._schema.arguments)), **into)
        raise
    torch.autograd.graph.increment_version(list(into.values()))


def _whole(args: tuple[Any, ...], arity: int) -> tuple[Any, ...]:
    """A call's operands: the dispatcher leaves out those at their end that are the defaults."""
    return args + (0.0, None, None)[3 - (arity - len(args)) :]


def _in_jvp() -> bool:
    """Whether a transform is ``jvp``: in a compiled function forward mode is not known of."""
    jvp = ops.functorch.TransformType.Jvp
    return any(level.key() == jvp for level in ops.functorch.get_interpreter_stack() or ())


def _names(op: Any) -> tuple[str, ...]:
    """Of an operator's tensors but dropout's, its first arguments."""
    forward = "q", "k", "v", "bias"
    return ("grad", *forward, "out", "lse") if op is BACKWARD else forward


def _say_what_is_wrong(op: Any, args: tuple[Any, ...], **into: Tensor) -> None:
    """After a failed call: raise what is wrong with its operands, if it was them."""
    names = _names(op)
    given = {name: t for name, t in zip(names, args, strict=False) if t is not None} | into
    try:
        _check(op._opname, **given)
        for name, t in given.items():
            _checks.storage(op._opname, name, t)
        dropout_p, seed, offset = args[-3:]
        _check_dropout(op._opname, args[names.index("q")], dropout_p, seed=seed, offset=offset)
    except (TypeError, ValueError) as known:
        raise known from None


def _autocast(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, *rest: Any) -> Any:
    q, k, v, bias = ops._float32(q), ops._float32(k), ops._float32(v), ops._float32(bias)
    with torch._C._ExcludeDispatchKeyGuard(ops._AUTOCAST_KEYS):
        return FORWARD(q, k, v, bias, *rest)


for _rules in (_AttentionForward, _AttentionBackward):
    _register(_rules)
_LIB.impl("attention_backward.out", _out_autograd, "Autograd", with_keyset=True)
for _key in ("AutocastCPU", "AutocastCUDA"):
    _LIB.impl("attention_forward", _autocast, _key)


# ---------------------------------------------------------------------------------------------
# FLOP


def flops_of_forward(q: Any, k: Any, *args: Any, **kwargs: Any) -> int:
    """Two products of 2 B H S T D, of the shapes of q and k; all of it where it is causal, too."""
    return 4 * math.prod(q) * k[-2]


def flops_of_backward(grad: Any, q: Any, k: Any, *args: Any, **kwargs: Any) -> int:
    """Five such products: the scores once more, and the gradients."""
    return 10 * math.prod(q) * k[-2]


flops.register([OPERATORS.attention_forward], flops_of_forward)
flops.register([OPERATORS.attention_backward], flops_of_backward)
