"""The operators ``torch.ops.xgemm.*`` and the function ``sgemm``.

Here are the operators' fakes, autograd, autocast and vmap. There is one operator for each stage of
the ladder and ``sgemm``, which picks one; all have the same schema. Schemas and the CPU and CUDA
kernels are C++'s, which registers them when the library is loaded: a program without Python has the
operators by that alone. Before 2.12 torch's stable ABI has no tags, and the schemas are defined
here. The gradients of a product are two products with other transpose flags: no copies, and the
same operator, kernel and precision as the forward product.

Which way a call goes:

- ``sgemm`` in eager mode, nothing to differentiate: straight to the CPU or CUDA kernel. This way is
  short on purpose; a call's host time counts for small products.
- gradients and forward mode: an ``autograd.Function`` with ``backward`` and ``jvp``, made of the
  same functions; under ``torch.func`` one for each level of a transform, or the rule of ``vmap``
  (levels.py). So every order and nesting is right.
- while compiling or exporting, and under ``torch.func.functionalize``: the operator itself.
- the operator itself, also where it is called directly: its kernels for the Autograd key and for
  the key at which ``torch.func`` begins lead to the same functions.

``linear_backward`` makes the gradients of a linear layer in one call: two products, and the bias's
from the same reading of the output's gradient as the weight's. ``sgemm_row_sums`` is that product
with the sums of a's rows alone, for convolutions and for layers while compiling. Neither is
differentiable, and DTensor has no rules for them: what is to be differentiated again, and tensors
of other classes, go by ``sgemm``.

``sgemm_invariant`` is ``sgemm`` in chains of a length that K and N decide, or by limbs of which no
other row decides anything (invariant.py): the same functions make it differentiable, by rules of
its own.

``sgemm.out`` is not, either, and torch does not compile an operator that returns what it
writes; ``xgemm_torch.sgemm(out=...)`` compiles, as a product and a copy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.autograd.function import Function
from torch.compiler import is_compiling
from torch.overrides import handle_torch_function, has_torch_function_variadic

from . import _C, _checks, deploy, flops, inductor, invariant, sharding, told
from ._checks import Words, own_words
from .registry import DECLARED, NAMESPACE, OPERATORS, left_out, stages
from .types import Activation, Invariant, Precision

if TYPE_CHECKING:
    from .packed import PackedWeight

__all__ = ["sgemm"]

NAMES: tuple[str, ...] = ("sgemm", *(stage.name for stage in stages()))
"""The operators: ``sgemm`` and one a stage."""

KERNELS: dict[str, tuple[str, ...]] = {
    name: ("auto", *NAMES[1:]) if name == "sgemm" else ("auto", name) for name in NAMES
}
"""The values that ``kernel`` may have, by operator."""
KERNELS[invariant.NAME] = KERNELS["sgemm"]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
}
"""ATen's functions, where an activation is not part of the product."""

_LIB = torch.library.Library(NAMESPACE, "FRAGMENT" if DECLARED["defined"] else "DEF")
if not DECLARED["defined"]:
    for _schema, _flexible in DECLARED["operators"]:
        _tags = (torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout)
        _LIB.define(_schema, tags=_tags if _flexible else _tags[:1])
    _C.register_kernels()


def _define_left_out(name: str) -> None:
    """An operator for a stage that could not be registered, to say why when it is called."""

    def raises(*args: Any, **flags: Any) -> Tensor:
        raise RuntimeError(_checks.left_out_words(name, name))

    _LIB.define(DECLARED["operators"][0][0].replace("sgemm", name, 1))  # as sgemm's
    _LIB.impl(name, raises, "CompositeImplicitAutograd")


for _name in left_out():
    if _name.isidentifier() and _name.isascii() and _name not in ("sgemm", "prepack", "auto"):
        _define_left_out(_name)

_LIB.define(
    f"{invariant.NAME}(Tensor a, Tensor b, Tensor? c=None, *, float alpha=1.0, float beta=1.0, "
    'bool trans_a=False, bool trans_b=False, str kernel="auto", str activation="none", '
    "int[] parts=[1, 1, 1], str? precision=None, Tensor? packed=None) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout),
)
for _key in ("CPU", "CUDA"):
    _LIB.impl(invariant.NAME, invariant.product, _key)

OPS: dict[str, torch._ops.OpOverload] = {
    name: getattr(OPERATORS, name).default for name in (*NAMES, invariant.NAME)
}
_SGEMM = OPS["sgemm"]
_SGEMM_OUT = OPERATORS.sgemm.out
_LINEAR_BACKWARD = OPERATORS.linear_backward.default
_ROW_SUMS = OPERATORS.sgemm_row_sums.default

# ---------------------------------------------------------------------------------------------
# What has no public name in torch. Without these names the calls below take the slower way.


functorch: Any = vars(torch._C)["_functorch"]  # no name of torch._C in torch's stubs


def _functorch_probe() -> Callable[[], bool]:
    probe = getattr(torch._C, "_are_functorch_transforms_active", None)
    if probe is not None:
        return probe
    peek = functorch.peek_interpreter_stack
    return lambda: peek() is not None


_functorch_active = _functorch_probe()
any_autocast: Callable[[], bool] = getattr(
    torch._C, "_is_any_autocast_enabled", torch.is_autocast_enabled
)
_BelowAutograd = torch._C._AutoDispatchBelowAutograd
_BelowInplace = torch._C._AutoDispatchBelowADInplaceOrView


def _forward_mode() -> bool:
    return forward_ad._current_level >= 0


def transforming() -> bool:
    """Whether operands may be more than numbers: under ``torch.func``, or in forward mode."""
    return _functorch_active() or _forward_mode()


_unwraps_dead = hasattr(functorch, "unwrap_if_dead")


def alive(a: Tensor, b: Tensor, c: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Unwrap operands that are of a level of ``torch.func`` that has ended since they were kept."""
    unwrap = functorch.unwrap_if_dead
    return unwrap(a), unwrap(b), None if c is None else unwrap(c)


_UNTRACED = told.PLAIN


def _traced_tangent(*operands: Tensor | None) -> bool:
    """Whether an operand has a tangent while a compiled function that makes it is traced.

    Then Python does not know that forward mode is on: the graph has the calls that switch it.
    """
    return type(operands[0]) not in _UNTRACED and any(
        t is not None and torch._VF._unpack_dual(t, level=0)[1] is not None for t in operands
    )


def _any_tangent(*operands: Tensor | None) -> bool:
    """Whether an operand has a tangent: forward mode may be another thread's.

    Compiled, only the graph knows tangents: there may be one.
    """
    return is_compiling() or any(
        isinstance(t, Tensor) and forward_ad.unpack_dual(t).tangent is not None for t in operands
    )


# ---------------------------------------------------------------------------------------------
# One product, differentiable in every way that torch has.


def _product(name: str, a: Tensor, b: Tensor, c: Tensor | None = None, **flags: Any) -> Tensor:
    """Call operator ``name`` in the way that the transforms in force ask for."""
    if is_compiling():
        return OPS[name](a, b, c, **flags)
    if _functorch_active():
        from .levels import at_level

        return at_level(name, a, b, c, flags)
    if _forward_mode() or _any_requires_grad(a, b, c):
        return _recorded(name, a, b, c, flags, None)
    return _forward(name, a, b, c, flags, None)


def _reverse_alone(*operands: Tensor | None) -> bool:
    """Whether plain tensors are only to be differentiated backwards, in eager mode."""
    return (
        not is_compiling()
        and forward_ad._current_level < 0
        and all(t is None or type(t) in _UNTRACED for t in operands)
        and torch._C._get_tracing_state() is None
    )


def _any_requires_grad(a: Tensor, b: Tensor, c: Tensor | None) -> bool:
    return (
        a.requires_grad or b.requires_grad or (c is not None and c.requires_grad)
    ) and torch.is_grad_enabled()


def _forward(
    name: str,
    a: Tensor,
    b: Tensor,
    c: Tensor | None,
    flags: dict[str, Any],
    keyset: torch._C.DispatchKeySet | None,
) -> Tensor:
    """Below autograd: go on from the Autograd key of ``keyset``, or begin anew without one."""
    if type(a) not in _UNTRACED or type(b) not in _UNTRACED:
        sharding.register()
    with _BelowAutograd():
        if keyset is None:
            return OPS[name]._op(a, b, c, **flags)
        return OPS[name].redispatch(keyset & torch._C._after_autograd_keyset, a, b, c, **flags)


def _keep(ctx: Any, inputs: tuple[Any, ...], *result: Tensor) -> None:
    """Keep what ``backward`` and ``jvp`` need of the inputs of ``_forward``, and no more.

    And the result, if it is given.
    """
    ctx.op, a, b, c, ctx.flags, _ = inputs  # a node has a method `name`
    _, need_a, need_b, _, _, _ = ctx.needs_input_grad
    ctx.save_for_backward(a if need_b else None, b if need_a else None, *result)
    ctx.shapes = a.shape, b.shape, None if c is None else c.shape
    ctx.set_materialize_grads(False)
    # Kept as long as the graph lives, so only where forward mode may ask for it.
    if _forward_mode() or _functorch_active() or type(a) not in _UNTRACED:
        ctx.save_for_forward(a, b)


def _split(flags: dict[str, Any]) -> tuple[bool, bool, float, dict[str, Any]]:
    """The flags as trans_a, trans_b, beta, and those that a product's derivatives keep."""
    kept: dict[str, Any] = {
        key: flags[key] for key in ("alpha", "precision", "kernel", "parts") if key in flags
    }
    return flags.get("trans_a", False), flags.get("trans_b", False), flags.get("beta", 1.0), kept


def _one_product(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor] | None:
    """Batches of ``x`` and ``y`` laid one below the other.

    Then the sum over the batch of x_i^T y_i is one product of the results. None where there is no
    such sum, or where laying them so takes a copy larger than the products of all samples.
    """
    if x.dim() != 3 or y.dim() != 3 or not _checks.known(x.shape[0] == y.shape[0]):
        return None
    copied = sum(t.numel() for t in (x, y) if not _stacks(t))
    if _checks.known(copied > x.shape[0] * x.shape[2] * y.shape[2]):
        return None
    x, y = (t.reshape(t.shape[0] * t.shape[1], t.shape[2]) for t in (x, y))
    return x, y


def _stacks(t: Tensor) -> bool:
    """Whether dimensions -3 and -2 of ``t`` are one dimension without a copy."""
    above, below = t.shape[-3], t.shape[-2]
    return (
        _checks.known(t.stride(-3) == below * t.stride(-2))
        or _checks.known(above == 1)
        or _checks.known(below == 1)
    )


def _of_linear(
    ctx: Any, grad: Tensor, a: Tensor | None, b: Tensor | None
) -> tuple[Tensor | None, ...] | None:
    """The gradients of a b^T + c, c the bias of a linear layer or none, by one operator.

    An operand was kept where the other's gradient is needed. None where this is not one call of the
    operator, and each gradient is an operation of its own.
    """
    flags, need_c = ctx.flags, ctx.needs_input_grad[3]
    if (
        not _is_layers(ctx, grad)
        or (a is None and b is None)
        or flags.get("alpha", 1.0) != 1
        or is_compiling()
        or type(grad) not in _UNTRACED
        or (a is not None and type(a) not in _UNTRACED)
        or (b is not None and type(b) not in _UNTRACED)
    ):
        return None
    kept = _named(ctx.op, {key: flags[key] for key in ("precision", "kernel") if key in flags})
    tell = told.only_patch()
    with _BelowAutograd():
        if tell is None:
            return _LINEAR_BACKWARD._op(grad, a, b, need_c, **kept)
        with told.unseen():
            grads = _LINEAR_BACKWARD._op(grad, a, b, need_c, **kept)
    shapes = (None if t is None else t.shape for t in (grad, a, b))
    tell("linear_backward", flops.of_linear_backward(*shapes))
    return grads


def _named(op: str, kept: dict[str, Any]) -> dict[str, Any]:
    """The flags of a product by ``op`` as another operator's, which has no kernel of its own."""
    return kept if op == "sgemm" else {**kept, "kernel": op}


def _is_layers(ctx: Any, grad: Tensor) -> bool:
    """Whether gradients are of a linear layer's product, and are not to be differentiated."""
    flags, shape = ctx.flags, ctx.shapes[2]
    return (
        flags.get("trans_b", False)
        and not flags.get("trans_a")
        and grad.dim() == 2
        and (
            not ctx.needs_input_grad[3]
            or (
                len(shape) == 1
                and _checks.known(shape[0] == grad.shape[1])
                and flags.get("beta", 1.0) == 1
            )
        )
        and not torch.is_grad_enabled()
        and not _functorch_active()
        and forward_ad._current_level < 0
    )


def _sums_rows(ctx: Any, grad: Tensor) -> bool:
    """Whether gradients of a weight and a bias that are traced are one product with row sums.

    A graph has the gradient of the input, which Inductor gives memory, apart from them. That it is
    being compiled is not known to the thread in which autograd has gradients of CUDA tensors: these
    are fake, or functional.
    """
    return isinstance(grad, (FakeTensor, FunctionalTensor)) and _is_layers(ctx, grad)


def _reduced(grad: Tensor, shape: torch.Size) -> Tensor:
    """Sum ``grad`` over what was broadcast; a size that data decide was not."""
    known, lead = _checks.known, grad.dim() - len(shape)
    ones = [
        lead + i
        for i, size in enumerate(shape)
        if known(size == 1) and not known(grad.shape[lead + i] == 1)
    ]
    if not lead and not ones:
        return grad
    return grad.sum((*range(lead), *ones), keepdim=True).view(shape)


def _of_product(ctx: Any, grad: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients of a, b and c that are needed, each by operations that have gradients."""
    grad_a = grad_b = grad_c = None
    ta, tb, beta, kept = _split(ctx.flags)
    a_shape, b_shape, c_shape = ctx.shapes
    _, need_a, need_b, need_c, _, _ = ctx.needs_input_grad

    def times(x: Tensor, y: Tensor, trans_x: bool, trans_y: bool) -> Tensor:
        flags = dict(kept)
        if trans_x:
            flags["trans_a"] = True
        if trans_y:
            flags["trans_b"] = True
        return _product(ctx.op, x, y, **flags)

    def shared(shape: torch.Size) -> bool:
        return grad.dim() == 3 and (len(shape) == 2 or _checks.known(shape[0] == 1))

    if need_a:
        if shared(a_shape) and (pair := _one_product(grad.mT, b if tb else b.mT)):
            x, y = reversed(pair) if ta else pair
            grad_a = times(x, y, True, False).view(a_shape)
        else:
            grad_a = times(b, grad, tb, True) if ta else times(grad, b, False, not tb)
            grad_a = _reduced(grad_a, a_shape)
    if need_b and need_c and _sums_rows(ctx, grad):
        grad_b, grad_c = _ROW_SUMS(grad, a, trans_a=True, **_named(ctx.op, kept))
        return grad_a, grad_b, grad_c
    if need_b:
        if shared(b_shape) and (pair := _one_product(a.mT if ta else a, grad)):
            x, y = reversed(pair) if tb else pair
            grad_b = times(x, y, True, False).view(b_shape)
        else:
            grad_b = times(grad, a, True, ta) if tb else times(a, grad, not ta, False)
            grad_b = _reduced(grad_b, b_shape)
    if need_c and beta == 0:
        grad_c = grad.new_zeros(c_shape)
    elif need_c:
        grad_c = _reduced(grad, c_shape)
        if beta != 1:
            grad_c = grad_c * beta
    return grad_a, grad_b, grad_c


def _of_operands(ctx: Any, grad: Tensor, a: Any, b: Any) -> tuple[Tensor | None, ...]:
    """The gradients of a, b and c, by the operator's own rules."""
    if ctx.op == invariant.NAME:
        return invariant.gradients(ctx, grad, a, b, _product)
    return _of_linear(ctx, grad, a, b) or _of_product(ctx, grad, a, b)


class _Rules:
    """What `_Plain` and ``levels.Level`` share: the derivatives of one product."""

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        if grad is None:
            return (None,) * 6
        a, b = ctx.saved_tensors
        return None, *_of_operands(ctx, grad, a, b), None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor | None:
        a, b = ctx.saved_tensors
        ta, tb, beta, kept = _split(ctx.flags)
        _, tan_a, tan_b, tan_c, *_ = tangents
        if beta == 0:
            tan_c = None
        total = tan_c
        for x, y in ((tan_a, b), (a, tan_b)):
            if x is not None and y is not None:
                scale = {} if total is None else {"beta": beta}
                total = _product(ctx.op, x, y, total, trans_a=ta, trans_b=tb, **kept, **scale)
                beta = 1.0
        if total is not tan_c or tan_c is None:
            return total
        a_shape, b_shape, c_shape = ctx.shapes
        words = own_words(ctx.op)
        shape = _checks.result_shape(words, a_shape, b_shape, c_shape, ta, tb)
        return (tan_c * beta).expand(shape)


class _Plain(_Rules, Function):
    """Reverse mode and ``forward_ad`` in eager mode and while tracing.

    The same as ``levels.Level``, without ``setup_context``: with it each call would pay for
    binding the arguments to a signature.
    """

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        _keep(ctx, inputs)
        return _forward(*inputs)


class _Relu(Function):
    """A product whose epilogue has a ReLU, in reverse mode: its result tells where it let through.

    The others' gradients need what they were given, which the epilogue does not store.
    """

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        name, a, b, c, flags, keyset = inputs
        out = _forward(*inputs)
        _keep(ctx, (name, a, b, c, _without_activation(flags), keyset), out)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        if grad is None:
            return (None,) * 6
        a, b, out = ctx.saved_tensors
        grad = torch.ops.aten.threshold_backward(grad, out, 0)
        return None, *_of_operands(ctx, grad, a, b), None, None


def _without_activation(flags: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in flags.items() if key != "activation"}


def _recorded(
    name: str, a: Tensor, b: Tensor, c: Tensor | None, flags: dict[str, Any],
    keyset: torch._C.DispatchKeySet | None,
) -> Tensor:  # fmt: skip
    """``_Plain.apply``, without the time in which torch's own looks for arguments' defaults.

    A tensor that has outlived a transform of ``torch.func`` is unwrapped, as it is there.
    """
    if not _unwraps_dead:
        return _Plain.apply(name, a, b, c, flags, keyset)
    return _APPLY(name, *alive(a, b, c), flags, keyset)


_base_of_functions: Any = super(Function, _Plain)  # torch's stubs have no `apply` of it
_APPLY: Callable[..., Tensor] = _base_of_functions.apply


def _differentiable(
    name: str,
    a: Tensor,
    b: Tensor,
    c: Tensor | None,
    flags: dict[str, Any],
    keyset: torch._C.DispatchKeySet | None = None,
) -> Tensor:
    """One product as an autograd Function; but for a ReLU the activation is ATen's."""
    if keyset is None and any_autocast():
        # Below a Function's forward it is too late: the operands kept would be the uncast ones.
        a, b, c = _float32(a), _float32(b), _float32(c)
    activation = flags.get("activation", "none")
    if _functorch_active():
        from .levels import at_level

        apart = ("activation", "packed")  # a transform would wrap it; the bits are the same without
        kept = {key: value for key, value in flags.items() if key not in apart}
        out = at_level(name, a, b, c, kept)
    else:
        if activation == "relu" and _reverse_alone(a, b, c):
            operands = alive(a, b, c) if _unwraps_dead else (a, b, c)
            return _Relu.apply(name, *operands, flags, keyset)
        if activation != "none":
            flags = _without_activation(flags)
        out = _recorded(name, a, b, c, flags, keyset)
    return out if activation == "none" else ACTIVATIONS[activation](out)


# ---------------------------------------------------------------------------------------------
# vmap


def _vmapped(
    name: str,
    size: int,
    in_dims: tuple[int | None, ...],
    a: Tensor,
    b: Tensor,
    c: Tensor | None,
    trans_a: bool,
    trans_b: bool,
    beta: float,
    kept: dict[str, Any],
) -> tuple[Tensor, int]:
    """The rule of vmap: the result and the place of the mapped dimension in it.

    Where ``a`` alone is mapped and lies so that its rows of all samples are the rows of one matrix,
    it is one product of that matrix. Else the mapped dimension joins the batch dimension.
    """
    dim_a, dim_b, dim_c = in_dims

    def shape_of(t: Tensor, dim: int | None) -> tuple[Any, ...]:
        return tuple(s for i, s in enumerate(t.shape) if i != dim)

    shape = _checks.result_shape(
        own_words(name),
        shape_of(a, dim_a),
        shape_of(b, dim_b),
        None if c is None else shape_of(c, dim_c),
        trans_a,
        trans_b,
    )
    rank = len(shape)
    if c is not None and beta == 0:
        c = dim_c = None

    def product(a: Tensor, b: Tensor, c: Tensor | None) -> Tensor:
        return _product(name, a, b, c, **kept, **({} if c is None else {"beta": beta}))

    def in_front(t: Tensor, dim: int | None, trans: bool) -> Tensor:
        t = t if dim is None else t.movedim(dim, 0)
        return t.mT if trans else t

    a, b = in_front(a, dim_a, trans_a), in_front(b, dim_b, trans_b)
    if c is not None:
        c = in_front(c, dim_c, False)
        mapped = 0 if dim_c is None else 1
        c = c.reshape(*c.shape[:mapped], *(1,) * (rank - c.dim() + mapped), *c.shape[mapped:])

    if dim_a is not None and dim_b is None:
        rows = a.movedim(0, -3)
        rows_c: Any = c if c is None or dim_c is None else c.movedim(0, -3)
        if c is None:
            fits = True
        elif dim_c is None:
            fits = c.shape[-2] == 1
        else:
            fits = c.shape[-2] == shape[-2] and _stacks(rows_c)
        if fits and _stacks(rows):
            if dim_c is not None:
                rows_c = rows_c.flatten(-3, -2)
            out = product(rows.flatten(-3, -2), b, rows_c)
            return out.unflatten(-2, (size, shape[-2])), out.dim() - 2

    if dim_a is None and dim_b is None:  # only c is mapped
        a, dim_a = a.expand(size, *a.shape), 0

    if rank == 3:
        batch = shape[0]

        def joined(t: Tensor, dim: int | None) -> Tensor:
            """(size, batch) as one dimension; what is shared by all samples stays as it is."""
            if dim is None:
                if t.dim() == 2 or t.shape[0] == 1:
                    return t
                t = t.unsqueeze(0)
            elif t.dim() == 3:
                t = t.unsqueeze(1)
            return t.expand(size, batch, *t.shape[-2:]).flatten(0, 1)

        a, b = joined(a, dim_a), joined(b, dim_b)
        c = None if c is None else joined(c, dim_c)
        return product(a, b, c).unflatten(0, (size, batch)), 0
    return product(a, b, c), 0


def _transformed(
    name: str, a: Tensor, b: Tensor, c: Tensor | None, flags: dict[str, Any]
) -> Tensor:
    """One call under a transform of ``torch.func``."""
    from .levels import functionalized

    if (outer := functionalized()) is not None:
        a, b, c = outer.unwrap_tensors((a, b, c))
        with outer.redispatch_to_next():
            return outer.wrap_tensors(OPS[name](a, b, c, **flags))
    a, b, c = (_float32(t) if isinstance(t, Tensor) else t for t in (a, b, c))  # type: ignore[assignment]
    _checks.check(own_words(name), KERNELS[name], a, b, c, **flags)
    return _differentiable(name, a, b, c, flags)


def _register_functorch(name: str) -> None:
    """Let direct calls of the operator under ``torch.func`` go the way of ``sgemm``.

    This is the dispatcher's first key under a transform, so nothing has been unwrapped yet.
    """

    def kernel(a: Tensor, b: Tensor, c: Tensor | None = None, **flags: Any) -> Tensor:
        return _transformed(name, a, b, c, flags)

    _LIB.impl(name, kernel, "FuncTorchDynamicLayerFrontMode")


# ---------------------------------------------------------------------------------------------
# Fakes, autograd kernels, autocast


# What an operator's schema has other defaults for than `_checks.check`.
_DEFAULTS: dict[str, dict[str, Any]] = {
    invariant.NAME: {"parts": invariant.PARTS_OF["batch"], "precision": None}
}


def _raise_as_python(
    error: Exception, name: str, *operands: Any, words: Words | None = None, **flags: Any
) -> None:
    """After a failed call: raise what is wrong with its arguments, if it was them.

    The kernels check everything, but the dispatcher and C++ know fewer kinds of exception, and not
    by what name their caller was called. Exceptions of other kinds are no mistakes in a call: one
    ends a recomputation (torch.utils.checkpoint). The lack of memory for a result, whose message
    the stable ABI loses, becomes torch's own.
    """
    if not isinstance(error, (AttributeError, KeyError, TypeError, ValueError, RuntimeError)):
        return
    call = words or own_words(name)
    try:
        operands = tuple(_float32(t) if isinstance(t, Tensor) else t for t in operands)
        flags = _DEFAULTS.get(name, {}) | flags
        shape = _checks.check(call, KERNELS[name], *operands, **flags)
        if flags.get("out") is not None:
            refuse_grad(*operands, flags["out"], call)  # type: ignore[call-arg]
        elif "aoti_torch_empty_strided" in str(error):
            operands[0].new_empty(shape)
        elif "'s storage has" in str(error):
            for arg, t in zip((call.a, call.b, call.c), operands, strict=False):
                _checks.storage(call.name, arg, t)
    except (TypeError, ValueError, RuntimeError) as known:
        raise known from None


def _register_fake(name: str) -> None:
    def fake(a: Tensor, b: Tensor, c: Tensor | None = None, **flags: Any) -> Tensor:
        inductor.register()
        flags = _DEFAULTS.get(name, {}) | flags
        return a.new_empty(_checks.check(own_words(name), KERNELS[name], a, b, c, **flags))

    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=_LIB)


def _register_autograd(name: str) -> None:
    op = OPS[name]

    def kernel(
        keyset: torch._C.DispatchKeySet,
        a: Tensor,
        b: Tensor,
        c: Tensor | None = None,
        **flags: Any,
    ) -> Tensor:
        try:
            if _forward_mode() or _any_requires_grad(a, b, c) or _traced_tangent(a, b, c):
                return _differentiable(name, a, b, c, flags, keyset)
            if type(a) not in _UNTRACED or type(b) not in _UNTRACED:
                sharding.register()
            with _BelowAutograd():
                return op.redispatch(keyset & torch._C._after_autograd_keyset, a, b, c, **flags)
        except Exception as error:
            _raise_as_python(error, name, a, b, c, **flags)
            raise

    _LIB.impl(name, kernel, "Autograd", with_keyset=True)


_Operand = TypeVar("_Operand", Tensor, Tensor | None)


def _float32(t: _Operand) -> _Operand:
    """Autocast's cast: the floating types that it may change, on the devices where it is on."""
    if (
        t is None
        or not t.is_floating_point()
        or t.dtype in (torch.float32, torch.float64)
        or not torch.is_autocast_enabled(t.device.type)
    ):
        return t
    return t.to(torch.float32)


_AUTOCAST_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU) | (
    torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)
)


def _register_autocast(name: str, op: torch._ops.OpOverload) -> None:
    def kernel(a: Tensor, b: Tensor, c: Tensor | None = None, **flags: Any) -> Tensor:
        a, b, c = _float32(a), _float32(b), _float32(c)
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST_KEYS):
            return op(a, b, c, **flags)

    for key in ("AutocastCPU", "AutocastCUDA"):
        _LIB.impl(name, kernel, key)


for _name in OPS:
    _register_fake(_name)
    _register_autograd(_name)
    _register_functorch(_name)
    _register_autocast(_name, OPS[_name])


flops.register(getattr(OPERATORS, name) for name in (*OPS, "sgemm_row_sums"))
flops.register([OPERATORS.linear_backward], flops.of_linear_backward)

SGEMM = own_words("sgemm")


def refuse_grad(a: Tensor, b: Tensor, c: Tensor | None, out: Tensor, words: Words = SGEMM) -> None:
    """Raise as torch's own out= functions do."""
    if _functorch_active() or (_forward_mode() and _any_tangent(a, b, c, out)):
        raise RuntimeError(
            f"{words.name}: out= does not work under torch.func transforms or forward-mode "
            "differentiation; leave it out"
        )
    if torch.is_grad_enabled():
        for arg, t in ((words.a, a), (words.b, b), (words.c, c), ("out", out)):
            if t is not None and t.requires_grad:
                raise RuntimeError(
                    f"{words.name}: functions with out=... arguments don't support automatic "
                    f"differentiation, but {arg} requires grad"
                )


@torch.library.register_fake(f"{NAMESPACE}::sgemm.out", lib=_LIB)
def _out_fake(
    a: Tensor, b: Tensor, c: Tensor | None = None, *, out: Tensor, **flags: Any
) -> Tensor:
    _checks.check(SGEMM, KERNELS["sgemm"], a, b, c, out=out, **flags)
    return out


def _out_autograd(
    keyset: torch._C.DispatchKeySet,
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    out: Tensor,
    **flags: Any,
) -> Tensor:
    refuse_grad(a, b, c, out)
    try:
        with _BelowAutograd():
            _SGEMM_OUT.redispatch(
                keyset & torch._C._after_autograd_keyset, a, b, c, out=out, **flags
            )
    except Exception as error:
        _raise_as_python(error, "sgemm", a, b, c, out=out, **flags)
        raise
    return out


def _out_inplace(
    keyset: torch._C.DispatchKeySet,
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    out: Tensor,
    **flags: Any,
) -> Tensor:
    """Tell autograd that ``out`` has changed, for graphs that hold its old value."""
    with _BelowInplace():
        _SGEMM_OUT.redispatch(
            keyset & torch._C._after_ADInplaceOrView_keyset, a, b, c, out=out, **flags
        )
    torch.autograd.graph.increment_version(out)  # a call that fails has changed nothing
    return out


_LIB.impl("sgemm.out", _out_autograd, "Autograd", with_keyset=True)
_LIB.impl("sgemm.out", _out_inplace, "ADInplaceOrView", with_keyset=True)
_register_autocast("sgemm.out", _SGEMM_OUT)


@torch.library.register_fake(f"{NAMESPACE}::sgemm_row_sums", lib=_LIB)
def _row_sums_fake(a: Tensor, b: Tensor, **flags: Any) -> tuple[Tensor, Tensor]:
    inductor.register()
    m, n = _checks.check(Words("sgemm_row_sums"), KERNELS["sgemm"], a, b, None, **flags)
    return a.new_empty(m, n), a.new_empty(m)


@torch.library.register_fake(f"{NAMESPACE}::linear_backward", lib=_LIB)
def _linear_backward_fake(
    grad: Tensor, x: Tensor | None, weight: Tensor | None, bias: bool, *,
    precision: str = "fp32", kernel: str = "auto",
) -> tuple[Tensor | None, ...]:  # fmt: skip
    inductor.register()
    _checks.linear_backward(KERNELS["sgemm"], grad, x, weight, kernel, precision)
    return (
        None if weight is None else grad.new_empty(grad.shape[0], weight.shape[1]),
        None if x is None else grad.new_empty(grad.shape[1], x.shape[1]),
        grad.new_empty(grad.shape[1]) if bias else None,
    )


def _register_without_derivatives(name: str, instead: str) -> None:
    op = getattr(OPERATORS, name).default

    def kernel(keyset: torch._C.DispatchKeySet, *operands: Any, **flags: Any) -> Any:
        needs = (t.requires_grad for t in operands if isinstance(t, Tensor))
        if torch.is_grad_enabled() and any(needs):
            raise RuntimeError(f"{name} has no derivatives: use {instead}, or no_grad()")
        with _BelowAutograd():
            return op.redispatch(keyset & torch._C._after_autograd_keyset, *operands, **flags)

    _LIB.impl(name, kernel, "Autograd", with_keyset=True)


_register_without_derivatives("sgemm_row_sums", "sgemm and a.sum")
_register_without_derivatives("linear_backward", "sgemm and grad.sum")


@torch.library.register_fake(f"{NAMESPACE}::prepack", lib=_LIB)
def _prepack_fake(b: Tensor, *, trans_b: bool = False, kernel: str = "auto") -> Tensor:
    inductor.register()
    # How many bytes, if any, depends on the stage and on the device.
    return b.new_empty(torch.library.get_ctx().new_dynamic_size(), dtype=torch.uint8)


# ---------------------------------------------------------------------------------------------
# The public function


def sgemm(
    a: Tensor,
    b: Tensor | PackedWeight,
    c: Tensor | None = None,
    *,
    alpha: float = 1,  # an int, as in torch.addmm: Dynamo would take a float for a dynamic one
    beta: float = 1,
    trans_a: bool = False,
    trans_b: bool = False,
    precision: Precision = "fp32",
    kernel: str = "auto",
    activation: Activation = "none",
    invariant: Invariant | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """FP32 matrix product: activation(alpha * op(a) op(b) + beta * c).

    Any strides, offsets and alignments are taken as they are, without a copy. Differentiable to any
    order, in reverse and forward mode, under ``torch.func`` and ``vmap``, compiled and exported.

    Args:
        a: (M, K) or (batch, M, K); stored as (K, M) or (batch, K, M) with ``trans_a``.
        b: (K, N) or (batch, K, N); stored as (N, K) or (batch, N, K) with ``trans_b``. A batch size
            of 1 or none is broadcast to that of the other operand.
        c: any shape that can be broadcast to the result's, so a bias of (N,) too. Not read where
            ``beta`` is 0.
        alpha: factor of the product.
        beta: factor of ``c``; 0 or 1 where there is no ``c``.
        trans_a: use ``a`` transposed.
        trans_b: use ``b`` transposed.
        precision: "fp32": no element less accurate than FP32 arithmetic gives; "ieee": IEEE fused
            multiply-adds in the order of k, the same bits on every machine; an element is one chain
            of them, or the sum of several as `xgemm_torch.split_k_size` says.
        kernel: "auto" or the name of a stage (``xgemm_torch.stages()``), which must be able to take
            the problem. On a CPU "auto" is ATen's BLAS, and a stage runs its CUDA source there.
        activation: "none", "relu", "gelu" (with erf), "gelu_tanh" or "silu". It is part of the
            product's last step where nothing is to be differentiated, and "relu" where gradients
            alone are; ATen's function otherwise.
        invariant: what the bits are not to depend on besides. "batch": a row of the result depends
            on that row and ``b``, and not on M or the batch; by either precision. "tp", with
            ``precision="ieee"``: K is cut into 8 parts that are added in pairs, so that 2, 4 or 8
            ranks that have a shard of K each can give the same bits
            (`xgemm_torch.tensor_parallel`). Gradients are such products, too; that of ``b`` adds
            over rows, and so depends on them. Sums of gradients over what ``c`` was broadcast to
            are in a fixed order.
        out: where to write the result: any strides without overlap; it may be ``c`` itself, and may
            share no memory with an operand otherwise (compiled, where it is a copy, it may). Not
            differentiable.

    Returns:
        ``out``, or a new contiguous tensor of shape (M, N) or (batch, M, N).

    Raises:
        TypeError: an operand is no dense float32 tensor. (Under autocast lower precisions are cast
            to float32, and the result is float32.)
        ValueError: sizes, devices or names that do not fit, with what was given.
        RuntimeError: ``out`` where something requires grad, or trouble with the device.
    """
    flags: dict[str, Any] = {}
    try:
        # The dispatcher's work grows with the arguments given, so only what is no default is.
        if trans_a is not False:
            flags["trans_a"] = trans_a
            _checks.flag("sgemm", "trans_a", trans_a)
        if trans_b is not False:
            flags["trans_b"] = trans_b
            _checks.flag("sgemm", "trans_b", trans_b)
        _add_names(flags, precision, kernel, activation)
        if (type(alpha) is not int and type(alpha) is not float) or alpha != 1:
            _number(flags, "alpha", alpha)
        if (type(beta) is not int and type(beta) is not float) or beta != 1:
            _number(flags, "beta", beta)
        if invariant is not None:
            return _without_rows(a, b, c, flags, invariant, out)
        if is_compiling() and isinstance(b, Tensor):  # not a PackedWeight
            if out is not None:
                return _copy_out(out, a, b, c, flags)
            return _SGEMM(a, b, c, **flags)
        if has_torch_function_variadic(a, b, c, out):
            return overridden(sgemm, (a, b, c, out), a, b, c, out=out, **flags)
        if TYPE_CHECKING:  # a packed weight has gone its way
            assert isinstance(b, Tensor)
        if out is not None:
            return _into(out, a, b, c, flags)
        return _eager(a, b, c, flags)
    except Exception as error:
        if not has_torch_function_variadic(a, b, c, out):  # else they have raised it themselves
            _raise_as_python(error, "sgemm", a, b, c, out=out, **flags)
        raise


def _without_rows(
    a: Tensor, b: Tensor | PackedWeight, c: Tensor | None, flags: dict[str, Any],
    what: Invariant, out: Tensor | None,
) -> Tensor:  # fmt: skip
    """``sgemm`` with ``invariant=what``."""
    if has_torch_function_variadic(a, b, c, out):
        operands = (a, b, c, out)
        return overridden(sgemm, operands, a, b, c, out=out, invariant=what, **flags)
    if TYPE_CHECKING:  # a packed weight has gone its way
        assert isinstance(b, Tensor)
    precision = flags.pop("precision", "fp32")
    _checks.check_invariant("sgemm", what, precision)
    if precision != "ieee":  # the operator's own
        flags["precision"] = precision
    return in_parts(a, b, c, invariant.PARTS_OF[what], out=out, **flags)


def in_parts(
    a: Tensor, b: Tensor, c: Tensor | None, parts: tuple[int, int, int], *,
    out: Tensor | None = None, words: Words = SGEMM, **flags: Any,
) -> Tensor:  # fmt: skip
    """Call ``sgemm_invariant`` with the parts of M, N and K; the rest as of ``sgemm``."""
    flags["parts"] = parts
    try:
        if out is not None:
            refuse_grad(a, b, c, out, words)
        if is_compiling():
            result = OPS[invariant.NAME](a, b, c, **flags)
        else:
            result = _eager(a, b, c, flags, invariant.NAME)
    except Exception as error:
        _raise_as_python(error, invariant.NAME, a, b, c, words=words, **flags)
        raise
    if out is None:
        return result
    _checks.takes(words.name, out, result)
    return out.copy_(result)


def _add_names(
    flags: dict[str, Any], precision: Precision, kernel: str, activation: Activation
) -> None:
    """Add the options that are names to an operator's, those that are no defaults."""
    if precision != "fp32":
        flags["precision"] = precision
    if kernel != "auto":
        flags["kernel"] = kernel
    if activation != "none":
        flags["activation"] = activation


def _eager(
    a: Tensor, b: Tensor, c: Tensor | None, flags: dict[str, Any], name: str = "sgemm"
) -> Tensor:
    """``sgemm`` of tensors that override nothing, where nothing is compiled."""
    if _functorch_active():
        return _transformed(name, a, b, c, flags)
    if torch._C._get_tracing_state() is not None:  # torch.jit.trace records operators
        return OPS[name](a, b, c, **flags)
    if (
        (a.requires_grad or b.requires_grad or (c is not None and c.requires_grad))
        and torch.is_grad_enabled()
    ) or forward_ad._current_level >= 0:
        return _differentiable(name, a, b, c, flags)
    if type(a) not in _UNTRACED or type(b) not in _UNTRACED:
        sharding.register()
    with _BelowAutograd():
        return OPS[name]._op(a, b, c, **flags)


def overridden(function: Callable[..., Any], operands: Any, *args: Any, **kwargs: Any) -> Any:
    """``handle_torch_function``; compiled, what is no tensor goes first.

    Dynamo traces that function of torch's, but not for None, nor for a tensor before another type.
    """
    if is_compiling():
        others = tuple(t for t in operands if t is not None and not isinstance(t, Tensor))
        operands = others or operands
    else:
        deploy.warn_of_quantization(operands)
    return handle_torch_function(function, operands, *args, **kwargs)


def sgemm_as(
    words: Words, a: Tensor, b: Tensor, c: Tensor | None = None, *, out: Tensor | None = None,
    **flags: Any,
) -> Tensor:  # fmt: skip
    """``sgemm`` for a function that has another name, and others for its operands."""
    try:
        return sgemm(a, b, c, out=out, **flags)
    except (TypeError, ValueError, RuntimeError) as error:
        _raise_as_python(error, "sgemm", a, b, c, out=out, words=words, **flags)
        raise


def linear_of_matrices(
    words: Words, x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation,
    precision: Precision, kernel: str,
) -> Tensor:  # fmt: skip
    """``sgemm_as`` of a linear layer in eager mode, the short way: `are_matrices` is true."""
    flags: dict[str, Any] = {"trans_b": True}
    try:
        _add_names(flags, precision, kernel, activation)
        return _eager(x, weight, bias, flags)
    except Exception as error:
        _raise_as_python(error, "sgemm", x, weight, bias, words=words, **flags)
        raise


def are_matrices(x: Any, weight: Any, bias: Any) -> bool:
    """Whether these are two matrices and a vector, or none, of torch's own class."""
    return (
        type(x) in _UNTRACED
        and type(weight) in _UNTRACED
        and x.dim() == 2 == weight.dim()
        and (bias is None or (type(bias) in _UNTRACED and bias.dim() == 1))
    )


def sgemm_packed(
    words: Words, a: Tensor, b: Tensor, c: Tensor | None, packed: Tensor | None,
    out: Tensor | None, flags: dict[str, Any],
) -> Tensor:  # fmt: skip
    """``sgemm_as`` for a ``b`` of which ``prepack`` keeps the limbs, ``packed``."""
    try:
        for arg in ("alpha", "beta"):
            if arg in flags and not is_compiling():
                _checks.number(words.name, arg, flags[arg])
        if packed is not None:
            flags["packed"] = packed
        if out is not None:
            return (_copy_out if is_compiling() else _into)(out, a, b, c, flags)
        if is_compiling() or _functorch_active() or _forward_mode() or _any_requires_grad(a, b, c):
            return _SGEMM(a, b, c, **flags)
        with _BelowAutograd():
            return _SGEMM(a, b, c, **flags)
    except Exception as error:
        _raise_as_python(error, "sgemm", a, b, c, out=out, words=words, **flags)
        raise


def invariant_packed(
    words: Words, a: Tensor, b: Tensor, c: Tensor | None, packed: Tensor | None,
    out: Tensor | None, flags: dict[str, Any],
) -> Tensor:  # fmt: skip
    """`sgemm_packed` with ``invariant=``: the limbs are of ``precision="fp32"`` alone."""
    what, precision = flags.pop("invariant"), flags.pop("precision", "fp32")
    _checks.check_invariant(words.name, what, precision)
    if precision != "ieee":
        flags["precision"] = precision
        if packed is not None:
            flags["packed"] = packed
    return in_parts(a, b, c, invariant.PARTS_OF[what], out=out, words=words, **flags)


def _into(out: Tensor, a: Tensor, b: Tensor, c: Tensor | None, flags: dict[str, Any]) -> Tensor:
    refuse_grad(a, b, c, out)
    with _BelowInplace():
        _SGEMM_OUT(a, b, c, out=out, **flags)
    if not out.is_inference():
        torch.autograd.graph.increment_version(out)
    return out


def _copy_out(out: Tensor, a: Tensor, b: Tensor, c: Tensor | None, flags: dict[str, Any]) -> Tensor:
    """``out=`` in a compiled graph, where operators must not mutate: a copy that Inductor fuses."""
    refuse_grad(a, b, c, out)
    result = _SGEMM(a, b, c, **flags)
    _checks.takes("sgemm", out, result)
    return out.copy_(result)


def _number(flags: dict[str, Any], arg: str, value: Any) -> None:
    """Keep a factor unless it is 1; the dispatcher would take a tensor for one, too."""
    if not is_compiling():  # else the fake checks it
        _checks.number("sgemm", arg, value)
    if value != 1:
        flags[arg] = value
