"""Attention in one kernel, in FP32: ``scaled_dot_product_attention``, forward and backward.

Two operators, ``attention_forward`` and ``attention_backward``, are made for compute capability
9.0, and give what torch's own ``_scaled_dot_product_efficient_attention`` and its backward give, in
the same memory: the backward of one takes the forward of the other. Schemas and kernels are C++'s;
here are fakes, autograd, autocast and vmap, and the public function. A gradient of a gradient, and
forward mode, are products of `attention_products`.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.compiler import is_compiling
from torch.overrides import has_torch_function_variadic

from . import _checks, attention_products, flops, ops
from .deploy import to_onnx
from .ops import _LIB, overridden
from .registry import stages

FORWARD = torch.ops.xgemm.attention_forward.default
BACKWARD = torch.ops.xgemm.attention_backward.default
LARGEST_HEAD = 128
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
        "lse": (batch, heads, _padded(rows)),
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


def _padded(rows: Any) -> Any:
    return (rows + _LSE_ROWS - 1) // _LSE_ROWS * _LSE_ROWS


def _like(t: Tensor) -> Tensor:
    """Memory for a result of t's shape: (B, S, H, D) dense, as torch's own attention has it."""
    batch, heads, rows, width = t.shape
    return t.new_empty(batch, rows, heads, width).transpose(1, 2)


@torch.library.register_fake("xgemm::attention_forward", lib=_LIB)
def _forward_fake(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, is_causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    _check("attention_forward", q, k, v, bias)
    return _like(q), q.new_empty(*q.shape[:2], _padded(q.shape[2]))


@torch.library.register_fake("xgemm::attention_backward", lib=_LIB)
def _backward_fake(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, out: Tensor, lse: Tensor,
    is_causal: bool, scale: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    _check("attention_backward", q, k, v, bias, grad=grad, out=out, lse=lse)
    return _like(q), _like(k), _like(v)


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
        q, k, v, bias, ctx.is_causal, ctx.scale = inputs[1:]
        _refuse_bias(FORWARD, bias)
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(q, k, v, bias, *output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, bias, out, lse = ctx.saved_tensors
        found = BACKWARD(grads[0], q, k, v, bias, out, lse, ctx.is_causal, ctx.scale)
        return None, *found, None, None, None


class _AttentionBackward:
    """Those of the backward operator's."""

    op = BACKWARD

    @staticmethod
    def by_products(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None,
                    out: Tensor, lse: Tensor, is_causal: bool, scale: float) -> Any:  # fmt: skip
        return attention_products.gradients(grad, q, k, v, bias, is_causal, scale)

    @staticmethod
    def keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        grad, q, k, v, bias, _, _, ctx.is_causal, ctx.scale = inputs[1:]
        _refuse_bias(BACKWARD, bias)
        ctx.save_for_backward(grad, q, k, v, bias)

    @staticmethod
    def backward(ctx: Any, *of_grads: Any) -> tuple[Tensor | None, ...]:
        """``out`` and ``lse`` are functions of q, k and v here: no gradients of their own."""
        grad, q, k, v, bias = ctx.saved_tensors
        found = attention_products.second_derivatives(
            of_grads, grad, q, k, v, bias, ctx.is_causal, ctx.scale
        )
        return None, *found, *(None,) * 5


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


def _vmapped(op: Any, size: int, in_dims: tuple[int | None, ...], args: tuple[Any, ...]) -> Any:
    """The rule of vmap: the mapped dimension joins the batch's, in front of it."""

    def joined(t: Any, dim: int | None) -> Any:
        if not isinstance(t, Tensor):
            return t
        t = t.expand(size, *t.shape) if dim is None else t.movedim(dim, 0)
        t = t.flatten(0, 1)  # no copy of what is shared where the batch is 1
        return t if t.dim() == 4 else t.contiguous()  # the logarithms are read dense

    batch = args[0].shape[0 if in_dims[0] is None else int(in_dims[0] == 0)]
    results = op(*(joined(t, dim) for t, dim in zip(args, in_dims, strict=True)))
    return tuple(t.unflatten(0, (size, batch)) for t in results), (0,) * len(results)


def _register(rules: Any) -> None:
    """The kernels of the Autograd key, and of the key at which ``torch.func`` begins."""
    op, plain, transformed = rules.op, _plain(rules), _transformed(rules)

    def autograd(keyset: torch._C.DispatchKeySet, *args: Any) -> Any:
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
        if (outer := ops._functionalized()) is not None:
            with outer.redispatch_to_next():
                return outer.wrap_tensors(op(*outer.unwrap_tensors(args)))
        if op is FORWARD:
            args = (*(ops._float32(t) for t in args[:4]), *args[4:])
        if ops._forward_mode() or _in_jvp():
            return rules.by_products(*args)
        return transformed.apply(None, *args)

    _LIB.impl(op._opname, autograd, "Autograd", with_keyset=True)
    _LIB.impl(op._opname, functorch, "FuncTorchDynamicLayerFrontMode")


def _in_jvp() -> bool:
    """Whether a transform is ``jvp``: in a compiled function forward mode is not known of."""
    functorch = ops._functorch()
    jvp = functorch.TransformType.Jvp
    return any(level.key() == jvp for level in functorch.get_interpreter_stack() or ())


def _say_what_is_wrong(op: Any, args: tuple[Any, ...]) -> None:
    """After a failed call: raise what is wrong with its operands, if it was them."""
    names: tuple[str, ...] = ("q", "k", "v", "bias")
    if op is BACKWARD:
        names = ("grad", *names, "out", "lse")
    given = {name: t for name, t in zip(names, args, strict=False) if t is not None}
    try:
        _check(op._opname, **given)
        for name, t in given.items():
            _checks.storage(op._opname, name, t)
    except (TypeError, ValueError) as known:
        raise known from None


def _autocast(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, is_causal: bool, scale: float
) -> Any:
    q, k, v, bias = ops._float32(q), ops._float32(k), ops._float32(v), ops._float32(bias)
    with torch._C._ExcludeDispatchKeyGuard(ops._AUTOCAST_KEYS):
        return FORWARD(q, k, v, bias, is_causal, scale)


for _rules in (_AttentionForward, _AttentionBackward):
    _register(_rules)
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


flops.register([torch.ops.xgemm.attention_forward], flops_of_forward)
flops.register([torch.ops.xgemm.attention_backward], flops_of_backward)


# ---------------------------------------------------------------------------------------------
# torch's operators, which patch() takes


def why_torchs(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, dropout_p: float, how: dict[str, Any]
) -> str:
    """Why a call of torch's fused attention is left there, "" where the kernels take it.

    Args:
        q: (B, H, S, D), float32, as the others; all on one device.
        k: (B, H, T, D).
        v: likewise.
        bias: (B, H, S, T), or None.
        dropout_p: the probability with which a weight becomes zero.
        how: options of ``sgemm``, those that are no defaults.
    """
    if not has_kernels(q.device):
        return "attention's kernels are for compute capability 9.0"
    if how:
        return "attention has precision='fp32' and kernel='auto' alone"
    if dropout_p != 0:
        return "dropout"
    if v.shape != k.shape:
        return "a value's width is not its key's"
    if not 1 <= q.shape[-1] <= LARGEST_HEAD:
        return f"heads of more than {LARGEST_HEAD}"
    if bias is not None and bias.shape != (*q.shape[:3], k.shape[2]):
        return "a bias of another shape"
    return ""


def as_torchs_forward(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, wants_lse: bool, is_causal: bool,
    scale: float | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """What ``aten._scaled_dot_product_efficient_attention`` gives, for operands that are ours.

    Returns:
        The result; the logarithms, of no rows where they are not wanted; and a seed and an offset
        of random numbers, which without dropout are not written, and lie on the CPU but in a graph.
    """
    out, lse = FORWARD(q, k, v, bias, is_causal, _factor(q, scale))
    if not wants_lse:
        lse = lse.new_empty(*q.shape[:2], 0)
    where = q.device if q.is_cuda and torch.cuda.is_current_stream_capturing() else "cpu"
    seed, offset = (torch.empty((), dtype=torch.int64, device=where) for _ in range(2))
    return out, lse, seed, offset


def as_torchs_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, out: Tensor, lse: Tensor,
    is_causal: bool, scale: float | None,
) -> tuple[Tensor, Tensor, Tensor, None]:  # fmt: skip
    """What ``aten._scaled_dot_product_efficient_attention_backward`` gives, without a bias's."""
    grads = BACKWARD(grad, q, k, v, bias, out, lse, is_causal, _factor(q, scale))
    return *grads, None


def _factor(q: Tensor, scale: float | None) -> float:
    return 1 / math.sqrt(q.shape[-1]) if scale is None else scale


# ---------------------------------------------------------------------------------------------
# The public function


@functools.cache
def _of_gpu(index: int) -> bool:
    major, minor = torch.cuda.get_device_capability(index)
    sm = 10 * major + minor
    return sm == 90 and any(s.cuda and s.min_sm == sm for s in stages())


def has_kernels(device: torch.device) -> bool:
    """Whether this build has the kernels for a device: a GPU of compute capability 9.0."""
    if device.type != "cuda":
        return False
    return _of_gpu(torch.cuda.current_device() if device.index is None else device.index)


# What torch.compiler.assume_constant_result sets, which imports Dynamo.
has_kernels._dynamo_marked_constant = True  # type: ignore[attr-defined]


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attention, as ``torch.nn.functional.scaled_dot_product_attention``, at FP32 accuracy.

    softmax(scale query key^T + mask) value, over the keys. A query that sees no key gets zeros.
    Differentiable to any order; a gradient of a gradient, and forward mode, keep matrices of S x T
    elements. The same call gives the same bits, gradients included.

    The kernels are made for compute capability 9.0, and take float32 heads of one width of 1 to 128
    elements. The call is torch's own, with its result or error, where they do not take it: other
    devices and dtypes, ``dropout_p`` above 0, another width or another number of keys of ``value``,
    a mask that requires grad, nested and sharded tensors. Under autocast it is computed in float32,
    lower precisions cast to it, whoever computes it.

    Args:
        query: (..., S, D), any strides; leading dimensions are broadcast, and the last of them are
            the heads.
        key: (..., T, D).
        value: (..., T, D).
        attn_mask: of a shape that can be broadcast to (..., S, T): of bool, True where a query sees
            a key, or of float32, added to the scaled products.
        dropout_p: the probability with which a weight becomes zero.
        is_causal: query i sees the keys 0 to i alone; not together with ``attn_mask``.
        scale: the factor of the products; 1 / sqrt(D) where it is None.
        enable_gqa: ``key`` and ``value`` may have fewer heads, each for several of ``query``, in
            order. They are copied for it.

    Returns:
        (..., S, D), the heads of a position side by side in memory, as torch's fused kernels give
        it.

    Raises:
        RuntimeError: what torch raises of such a call, or trouble with the device.

    Example:
        >>> y = xgemm_torch.scaled_dot_product_attention(q, k, v, is_causal=True)
    """
    operands: tuple[Any, ...] = query, key, value, attn_mask
    if has_torch_function_variadic(*operands):
        if isinstance(query, Tensor) and query.is_nested:
            return F.scaled_dot_product_attention(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale,
                enable_gqa=enable_gqa,
            )  # fmt: skip
        return overridden(
            scaled_dot_product_attention, operands, *operands, dropout_p=dropout_p,
            is_causal=is_causal, scale=scale, enable_gqa=enable_gqa,
        )  # fmt: skip
    options = dropout_p, is_causal, scale, enable_gqa
    if (is_compiling() or ops.any_autocast()) and isinstance(query, Tensor):
        device = query.device.type
        if torch.is_autocast_enabled(device):
            operands = tuple(ops._float32(t) if isinstance(t, Tensor) else t for t in operands)
            with torch.autocast(device, enabled=False):
                return _attention(operands, *options)
    return _attention(operands, *options)


def _attention(
    operands: tuple[Any, ...],
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> Tensor:
    query, key, value, mask = operands
    found = None
    if _is_ours(query, key, value, mask, dropout_p, is_causal, scale):
        found = _in_four_dimensions(query, key, value, mask, enable_gqa)
    if found is None:
        return F.scaled_dot_product_attention(
            query, key, value, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    q, k, v, bias, lead = found
    out, _ = FORWARD(q, k, v, bias, is_causal, _factor(q, scale))
    if len(lead) == 2:
        return out
    if len(lead) < 2:
        return out.squeeze(1) if lead else out[0, 0]
    return out.unflatten(0, lead[:-1])


def _is_ours(q: Any, k: Any, v: Any, mask: Any, dropout_p: Any, is_causal: Any, scale: Any) -> bool:
    """Whether the kernels take such tensors and options, whatever the leading dimensions."""
    tensors = (q, k, v) if mask is None else (q, k, v, mask)
    if not all(isinstance(t, Tensor) for t in tensors):
        return False
    if not has_kernels(q.device) or any(_is_wrapped(t) for t in tensors):
        return False
    if any(
        t.dtype is not torch.float32 or t.layout is not torch.strided or t.dim() < 2
        for t in (q, k, v)
    ):
        return False
    if any(t.device != q.device for t in tensors):
        return False
    if mask is not None and (
        mask.dtype not in (torch.bool, torch.float32)
        or mask.layout is not torch.strided
        or (mask.requires_grad and torch.is_grad_enabled())
        or is_causal
    ):
        return False
    if type(dropout_p) not in (int, float) or dropout_p != 0 or not isinstance(is_causal, bool):
        return False
    if not isinstance(scale, (float, int, torch.SymFloat, torch.SymInt, type(None))):
        return False
    if (is_compiling() or torch._C._get_tracing_state() is not None) and to_onnx():
        return False
    width = q.shape[-1]
    return bool(
        1 <= width <= LARGEST_HEAD
        and k.shape[-1] == width
        and v.shape[-1] == width
        and k.shape[-2] == v.shape[-2]
    )


def _is_wrapped(t: Tensor) -> bool:
    """Whether a tensor is none of numbers in one place: nested, or sharded (DTensor)."""
    if t.is_nested:
        return True
    if type(t) in ops._UNTRACED:
        return False
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    return is_traceable_wrapper_subclass(t)


def _in_four_dimensions(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, enable_gqa: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, torch.Size] | None:
    """The operators' q, k, v and bias, and the leading dimensions of the result.

    None where they do not fit, which torch has its words for.
    """
    if enable_gqa and not _same(q.shape[:-2], k.shape[:-2], v.shape[:-2]):
        k, v = (_with_heads_of(q, t) for t in (k, v))  # type: ignore[assignment]
        if k is None or v is None:
            return None
    lead = of_scores = q.shape[:-2]
    if not _same(lead, k.shape[:-2], v.shape[:-2]):
        try:
            of_scores = torch.broadcast_shapes(lead, k.shape[:-2])
            lead = torch.broadcast_shapes(of_scores, v.shape[:-2])
        except RuntimeError:
            return None
    bias: Tensor | None = None
    if mask is not None:
        try:
            mask = mask.expand(*of_scores, q.shape[-2], k.shape[-2])
        except RuntimeError:
            return None
        bias = mask
        if mask.dtype is torch.bool:
            bias = _added(mask)
        bias = _four(bias, lead)
    return _four(q, lead), _four(k, lead), _four(v, lead), bias, lead


def _same(*shapes: torch.Size) -> bool:
    return all(shape == shapes[0] for shape in shapes[1:])


def _added(mask: Tensor) -> Tensor:
    """What a mask of bool adds: 0 where a query sees a key, else -inf; no larger than the mask."""
    small = mask
    for i, step in enumerate(mask.stride()):
        if step == 0:
            small = small[(slice(None),) * i + (slice(1),)]
    added = torch.zeros_like(small, dtype=torch.float32).masked_fill(~small, float("-inf"))
    return added.expand(mask.shape)


def _with_heads_of(q: Tensor, t: Tensor) -> Tensor | None:
    """Keys or values, with each head repeated for those of q that share it."""
    if q.dim() < 3 or t.dim() < 3 or t.shape[-3] == 0 or q.shape[-3] % t.shape[-3] != 0:
        return None
    each = q.shape[-3] // t.shape[-3]
    shape = (*t.shape[:-2], each, *t.shape[-2:])
    return t.unsqueeze(-3).expand(shape).flatten(-4, -3)


def _four(t: Tensor, lead: torch.Size) -> Tensor:
    """A tensor broadcast to leading dimensions, as (B, H, rows, columns); one of them is B."""
    if t.shape[:-2] != lead:
        t = t.expand(*lead, *t.shape[-2:])
    if len(lead) == 2:
        return t
    if len(lead) < 2:
        return t.unsqueeze(1) if lead else t[None, None]
    return t.flatten(0, -4)
