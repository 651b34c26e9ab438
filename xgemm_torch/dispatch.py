"""The dispatch mode of ``patch()``: what takes torch's products, call by call, and counts them.

A ``TorchDispatchMode`` sees what the dispatcher is asked for below autograd: ``matmul``, ``@``,
``einsum``, ``F.linear``, attention's projections, RNN cells and what backward makes of them arrive
as mm, addmm, bmm, baddbmm, mv, addmv, addbmm and _grouped_mm, which ``sgemm`` can give, as
convolutions, some of which are products, and as attention in one operator, which is ours where its
kernels are. Anything else, and any call of those that is no product of
dense float32 tensors, is passed on unchanged, so that its result, its warnings and its errors are
torch's.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch
from torch import Tensor

from . import attention, attention_ops, convolutions, grouped, unbound
from .flops import of_linear_backward
from .ops import OPS
from .registry import NAMESPACE, OPERATORS
from .told import Told

_SGEMM, _SGEMM_OUT = OPS["sgemm"], OPERATORS.sgemm.out
_CALL, _OUT = _SGEMM._op, _SGEMM_OUT._op
_FLOAT32, _STRIDED = torch.float32, torch.strided
_DEVICES = frozenset({"cpu", "cuda"})
_MOST = 3.4e38  # a finite factor beyond it has no float32: torch says so
# What a call raises that does not fit; sizes() of a nested tensor raises the last of them.
_UNFIT = (ValueError, TypeError, IndexError, RuntimeError)

WHOLE = "one operator, no product to take"

_Handler = Callable[[Any, Any, tuple[Any, ...], Any], Any]


# ---------------------------------------------------------------------------------------------
# The forms of products: how operands become those of sgemm.


# FLOP from the shapes of the two factors. Whether inner sizes agree is asked by sgemm.


def _flops_of_matrices(a: torch.Size, b: torch.Size) -> int:
    m, k = a
    _, n = b
    return 2 * m * n * k


def _flops_of_batches(a: torch.Size, b: torch.Size) -> int:
    batch, m, k = a
    same, _, n = b
    if batch != same:  # sgemm would broadcast
        raise ValueError("sizes")
    return 2 * batch * m * n * k


def _flops_of_vector(a: torch.Size, b: torch.Size) -> int:
    m, k = a
    (_,) = b
    return 2 * m * k


def _column(t: Tensor) -> Tensor:
    return t.unsqueeze(1) if t.dim() == 1 else t


def _vector(a: Tensor, b: Tensor, c: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    return a, b.unsqueeze(1), None if c is None else _column(c)


def _sum_of_batch(a: Tensor, b: Tensor, c: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """The sum over a batch is one product, of matrices side by side and one below the other."""
    return a.transpose(0, 1).flatten(1), b.flatten(0, 1), c


@dataclass(frozen=True)
class _Form:
    """A family of overloads.

    Attributes:
        name: of the operator in torch.ops.aten.
        flops: FLOP from the shapes of the two factors; raises where they do not fit.
        addend: whether the first argument is what is added.
        operands: what makes those of sgemm of the arguments, where they are not those themselves.
        shape: of the result.
        column: whether sgemm's result is a column and torch's a vector.
    """

    name: str
    flops: Callable[[torch.Size, torch.Size], int]
    addend: bool
    shape: Callable[[torch.Size, torch.Size], tuple[int, ...]]
    operands: Callable[..., tuple[Tensor, Tensor, Tensor | None]] | None = None
    column: bool = False


def _shape_of_matrices(a: torch.Size, b: torch.Size) -> tuple[int, ...]:
    return (*a[:-1], b[-1])


_FORMS = (
    _Form("mm", _flops_of_matrices, False, _shape_of_matrices),
    _Form("addmm", _flops_of_matrices, True, _shape_of_matrices),
    _Form("bmm", _flops_of_batches, False, _shape_of_matrices),
    _Form("baddbmm", _flops_of_batches, True, _shape_of_matrices),
    _Form("mv", _flops_of_vector, False, lambda a, b: (a[0],), _vector, True),
    _Form("addmv", _flops_of_vector, True, lambda a, b: (a[0],), _vector, True),
    _Form("addbmm", _flops_of_batches, True, lambda a, b: (a[1], b[2]), _sum_of_batch),
)

# In inference mode there is no autograd key, at which these are otherwise broken into the above.
_COMPOSITES = (
    "linear", "matmul", "einsum", "tensordot", "inner", "chain_matmul", "linalg_multi_dot",
    "linalg_matmul", "linalg_vecdot", "matrix_power", "linalg_matrix_power", "gru", "gru_cell",
    "lstm", "lstm_cell", "rnn_tanh", "rnn_relu", "rnn_tanh_cell", "rnn_relu_cell", "cov",
    "corrcoef", "scaled_dot_product_attention", "_scaled_dot_product_attention_math", "conv1d",
    "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
    "_convolution_mode",
)  # fmt: skip

# One operator each, inside of which torch multiplies: there is no product to take. The first word
# of names, of which a build of torch has some.
_FUSED = (
    "_scaled_dot_product_flash", "_scaled_dot_product_efficient", "_scaled_dot_product_cudnn",
    "_scaled_dot_product_fused", "_flash_attention", "_efficient_attention", "convolution",
    "_convolution", "cudnn_convolution", "mkldnn_convolution", "_cudnn_rnn", "mkldnn_rnn_layer",
    "_native_multi_head_attention", "_transformer_encoder_layer_fwd", "_addmm_activation",
    "_cdist_forward", "_trilinear",
)  # fmt: skip


@functools.cache
def _overloads(names: tuple[str, ...], composite: bool) -> tuple[torch._ops.OpOverload, ...]:
    """The overloads of operators, of composites those that have a composite kernel."""
    found = []
    for name in names:
        packet = getattr(torch.ops.aten, name, None)
        for overload in packet.overloads() if packet is not None else ():
            try:
                op = getattr(packet, overload)
                if composite and not torch._C._dispatch_has_kernel_for_dispatch_key(
                    op.name(), "CompositeImplicitAutograd"
                ):
                    continue
            except (AttributeError, RuntimeError):  # torch lists some that are for scripts alone
                continue
            found.append(op)
    return tuple(found)


@functools.cache
def _fused() -> tuple[torch._ops.OpOverload, ...]:
    """The overloads, those of derivatives too, whose names begin as ``_FUSED`` says."""
    names = {name.removeprefix("aten::") for name in torch._C._dispatch_get_all_op_names()}
    names = {name for name in names if "flatten_weight" not in name}
    return _overloads(tuple({n.partition(".")[0] for n in names if n.startswith(_FUSED)}), False)


def in_words(count: float) -> str:
    """A count in three digits and its unit: "103 G"."""
    for unit, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= 0.9995 * unit:
            return f"{count / unit:.3g} {name}"
    return f"{count} "


MIN_FLOPS = 2**24
"""The default of ``min_flops``, but for convolutions and attention: a square of 203. Up to there
cuBLAS takes 5 us or less on an H200, most of it the launch; the 1 to 2 us that another kernel may
gain are no more than a call of ``sgemm`` costs the host beyond one of torch's own operators."""


def _small(least: float) -> str:
    """Why a product of less than that is torch's, where empty ones are always."""
    return f"below {in_words(least)}FLOP" if least > 1 else "empty"


def _small_attention(
    q: Tensor, k: Tensor, flops: int, given: float | None, backward: bool = False
) -> str:
    """Why attention is torch's for its size: by the bound that is given, or by its own; else ""."""
    if given is None:
        return "too small to gain" if attention.is_small(q, k, backward) else ""
    return "" if flops >= max(given, 1) else _small(given)


# ---------------------------------------------------------------------------------------------
# The mode


class Tally:
    """What became of the calls of one overload.

    Attributes:
        name: the overload's, without its namespace.
        calls: how many went through xgemm.
        flops: how many FLOP those have.
        left: [calls, FLOP] of those that were left to torch, by reason.
    """

    __slots__ = ("calls", "flops", "left", "name")

    def __init__(self, op: torch._ops.OpOverload) -> None:
        """Begin at zero."""
        self.name = op.name().removeprefix("aten::").replace("::", ".")
        self.calls = self.flops = 0
        self.left: dict[str, list[int]] = {}

    def leave(self, reason: str, flops: int) -> None:
        """Count a call that was left to torch."""
        count = self.left.setdefault(reason, [0, 0])
        count[0] += 1
        count[1] += max(flops, 0)


def _reason(tensors: tuple[Any, ...]) -> str:
    """Why tensors are no operands of a product of ours; "" where each for itself is one."""
    for t in tensors:
        if t.dtype is not _FLOAT32:
            return str(t.dtype).removeprefix("torch.")
        if t.is_nested:
            return "nested"
        if t.layout is not _STRIDED:
            return str(t.layout).removeprefix("torch.")
        if t.device.type not in _DEVICES:
            return f"on {t.device.type}"
    return "on several devices" if len({t.device for t in tensors}) > 1 else ""


class Mode(Told):
    """One entry of a patch, in the thread that made it.

    Attributes:
        handlers: what takes a call, by the id of its overload (their hash is a call of Python's).
        table: ``handlers``, or nothing while another patch is entered inside this one.
    """

    # Operators of higher order reach __torch_dispatch__, and are passed on, in place of an error.
    supports_higher_order_operators = True

    def __init__(self, how: dict[str, Any], given: float | None) -> None:
        """Take products of ``given`` FLOP or more by ``sgemm`` with the options ``how``.

        None is the defaults: ``MIN_FLOPS``, ``convolutions.LEAST_FLOPS`` for convolutions, and
        ``attention.is_small`` for attention.
        """
        super().__init__()
        least = MIN_FLOPS if given is None else given
        of_convolutions = convolutions.LEAST_FLOPS if given is None else given
        self.tallies: list[Tally] = []
        self.handlers: dict[int, _Handler] = {}
        self.table = self.handlers
        for form in _FORMS:
            packet = getattr(torch.ops.aten, form.name)
            self._add(packet.default, _product, form, "new", how, least)
            if "out" in packet.overloads():
                self._add(packet.out, _product, form, "out", how, least)
            if form.addend:
                self._add(getattr(torch.ops.aten, f"{form.name}_").default, _product, form, "self",
                          how, least)  # fmt: skip
        for op in _overloads(("_grouped_mm",), False):
            self._add(op, _grouped, how, least)
        for op in _overloads(_COMPOSITES, True):
            self.handlers[id(op)] = _composite(self)
        self.handlers[id(unbound.STACK)] = _stack
        for op in (torch.ops.aten.convolution.default, torch.ops.aten._convolution.default):
            self._add(op, _convolution, how, of_convolutions)
        op = torch.ops.aten.convolution_backward.default
        self._add(op, _convolution_backward, how, of_convolutions)
        for op in _overloads(("_scaled_dot_product_efficient_attention",), False):
            self._add(op, _attention, how, given)
        for op in _overloads(("_scaled_dot_product_efficient_attention_backward",), False):
            self._add(op, _attention_backward, how, given)
        for op in _fused():
            if id(op) not in self.handlers:
                self._add(op, _inseparable)
        for op in (
            _SGEMM, _SGEMM_OUT, OPS["sgemm_invariant"], OPERATORS.sgemm_row_sums.default,
        ):  # fmt: skip
            self._add(op, _ours, _flops_of_sgemm)
        self._add(OPERATORS.linear_backward.default, _ours, _flops_of_linear_backward)
        self._add(attention_ops.FORWARD, _ours, _flops_of_attention)
        self._add(attention_ops.BACKWARD, _ours, _flops_of_attention_backward)
        self._told = {tally.name: tally for tally in self.tallies}

    def tell(self, name: str, flops: int) -> None:
        """Count a call of our own operator ``name`` that is not seen."""
        tally = self._told[f"{NAMESPACE}.{name}"]
        tally.calls += 1
        tally.flops += flops

    def _add(self, op: torch._ops.OpOverload, make: Callable[..., _Handler], *args: Any) -> None:
        tally = Tally(op)
        self.tallies.append(tally)
        self.handlers[id(op)] = make(tally, *args)

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compile as without a mode: code that Inductor makes calls mm.out, which the mode sees."""
        return True


def _torch_dispatch(
    self: Mode, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
) -> Any:
    handler = self.table.get(id(func))
    if handler is not None:
        return handler(func, types, args, kwargs or {})
    return func(*args, **kwargs) if kwargs else func(*args)


def _of_subclasses(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call that a tensor's class answers itself (DTensor, jagged, fakes).

    NotImplemented has torch ask the class at once, with the mode still on for what the class calls.
    Modes below would be passed over by that: where there are any, the call is theirs first.
    """
    return func(*args, **kwargs) if torch._C._len_torch_dispatch_stack() else NotImplemented


def _product(
    tally: Tally, form: _Form, place: str, how: dict[str, Any], least: int
) -> _Handler:  # fmt: skip
    """What takes the calls of an overload of ``form``.

    ``place`` says where the result goes: "new", "out" or "self" (in place).
    """
    flops_of, operands, first = form.flops, form.operands, int(form.addend)
    column = form.column
    plain = place == "new" and not form.addend and operands is None
    least = max(least, 1)  # empty results, and K = 0, are torch's
    small = tally.left.setdefault(_small(least), [0, 0])

    def handle(func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if types:
            return _of_subclasses(func, args, kwargs)
        a, b = args[first], args[first + 1]
        why, flops = "", 0
        try:
            flops = flops_of(a.shape, b.shape)
            if a.dtype is _FLOAT32 is b.dtype and not a.is_meta:
                if flops >= least:
                    result = _CALL(a, b, **how) if plain else special(a, b, args, kwargs)
                    if result is not None:
                        tally.calls += 1
                        tally.flops += flops
                        return result
                else:
                    result = func(*args, **kwargs)
                    small[0] += 1
                    small[1] += flops
                    return result
        except _UNFIT as error:  # torch's own call has torch's own error, if it is one to torch
            why = str(error).partition("\n")[0]
        why = why_left(args, kwargs) or why or "sizes"  # before torch resizes an out
        result = func(*args, **kwargs)
        tally.leave(why, flops)
        return result

    def special(a: Tensor, b: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """With an addend, factors, a place or another form; None where it is torch's.

        sgemm checks addends and places itself, and what it raises has the call be torch's.
        """
        c = args[0] if first else None
        flags = how
        for name in kwargs:
            if name != "out":
                factor = kwargs[name]
                if type(factor) not in (int, float) or not -_MOST < factor < _MOST:
                    return None
                if flags is how:
                    flags = dict(how)
                flags[name] = factor
        if place == "new":
            if operands is not None:
                a, b, c = operands(a, b, c)
            result = _CALL(a, b, c, **flags)
            return result.squeeze(1) if column else result
        target: Any = c if place == "self" else kwargs["out"]
        out = target
        if operands is not None:
            a, b, c = operands(a, b, c)
            if column:
                out = target.unsqueeze(1)
        _OUT(a, b, c, out=out, **flags)
        return target

    def why_left(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        if reason := _reason(args[: first + 2]):
            return reason
        if place == "out":
            out = kwargs["out"]
            if reason := _reason((out, args[0])):
                return f"out= is {reason}"
            if tuple(out.shape) != form.shape(args[first].shape, args[first + 1].shape):
                return "out= of another shape"
        factors = [kwargs.get("alpha", 1.0), kwargs.get("beta", 1.0)]
        if any(type(f) not in (int, float) or not -_MOST < f < _MOST for f in factors):
            return "a factor that is no finite real number"
        return ""

    return handle


def _grouped(tally: Tally, how: dict[str, Any], least: float) -> _Handler:
    """What takes products of groups."""

    def taken(args: tuple[Any, ...], _: Any) -> tuple[Any, int, str]:
        a, b, *more = args
        offs, *others = more or [None]
        flops = grouped.flops(a.shape, b.shape)
        if reason := _reason((a, b)) or ("" if flops >= max(least, 1) else _small(least)):
            return None, flops, reason
        plain = all(x is None for x in others)
        result = grouped.product(a, b, offs, how) if plain else None
        return result, flops, "alignment, offsets or options"

    return _counted(tally, taken)


def _convolution(tally: Tally, how: dict[str, Any], least: float) -> _Handler:
    """What takes convolutions that are products."""
    product = functools.partial(_CALL, **how)

    def taken(args: tuple[Any, ...], _: Any) -> tuple[Any, int, str]:
        """The result, its FLOP, and why there is none."""
        x, weight, bias, *options = args[:9]
        operands = (x, weight) if bias is None else (x, weight, bias)
        if not convolutions.is_product(weight.shape[2:], *options):
            return None, 0, ""
        if reason := _reason(operands) or _misfit(x.shape, weight.shape):
            return None, 0, reason
        if bias is not None and bias.shape != weight.shape[:1]:
            return None, 0, "sizes"
        flops = convolutions.flops(x.shape, weight.shape)
        if flops < max(least, 1):
            return None, flops, _small(least)
        if reason := convolutions.in_tf32(x.device.type):
            return None, flops, reason
        last = convolutions.torchs_is_channels_last(x, weight, options[2])
        return convolutions.convolve(product, x, weight, bias, last), flops, ""

    return _counted(tally, taken)


def _convolution_backward(tally: Tally, how: dict[str, Any], least: float) -> _Handler:
    """What takes the gradients of convolutions that are products."""

    def taken(args: tuple[Any, ...], _: Any) -> tuple[Any, int, str]:
        grad, x, weight, _, *options, wanted = args
        products = wanted[0] + wanted[1]
        if not convolutions.is_product(weight.shape[2:], *options):
            # torch's formula does not know of groups in the gradient of the weight.
            each = convolutions.flops(x.shape, weight.shape, grad.shape, options[3])
            return None, each * products, ""
        if reason := _reason((grad, x, weight)) or _misfit(x.shape, weight.shape):
            return None, 0, reason
        result = x.shape[0], weight.shape[0], *convolutions.places(x.shape, weight.shape)
        if grad.shape != result:
            return None, 0, "sizes"
        each = convolutions.flops(x.shape, weight.shape)
        if not products or each < max(least, 1):
            return None, each * products, _small(least) if products else "a sum alone"
        if reason := convolutions.in_tf32(x.device.type):
            return None, each * products, reason
        last = convolutions.torchs_is_channels_last(x, weight, options[2])
        grads = convolutions.gradients(grad, x, weight, last, wanted, how)
        return grads, each * products, ""

    return _counted(tally, taken)


def _attention(tally: Tally, how: dict[str, Any], given: float | None) -> _Handler:
    """What takes attention in one operator."""

    def taken(
        q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, wants_lse: bool,
        dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None,
    ) -> tuple[Any, int, str]:  # fmt: skip
        tensors = (q, k, v) if bias is None else (q, k, v, bias)
        flops = attention_ops.flops_of_forward(q.shape, k.shape)
        reason = _reason(tensors) or attention.why_torchs(q, k, v, bias, dropout_p, how)
        if reason := reason or _small_attention(q, k, flops, given):
            return None, flops, reason
        result = attention.as_torchs_forward(q, k, v, bias, wants_lse, dropout_p, is_causal, scale)
        return result, flops, ""

    return _counted(tally, lambda args, kwargs: taken(*args, **kwargs))


def _attention_backward(tally: Tally, how: dict[str, Any], given: float | None) -> _Handler:
    """What takes its gradients, but for a bias's. The forward may have been either's."""

    def taken(
        grad: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, out: Tensor,
        lse: Tensor, seed: Tensor, offset: Tensor, dropout_p: float, wanted: list[bool],
        is_causal: bool = False, *, scale: float | None = None,
    ) -> tuple[Any, int, str]:  # fmt: skip
        tensors = (grad, q, k, v, out, lse) if bias is None else (grad, q, k, v, out, lse, bias)
        flops = attention_ops.flops_of_backward(grad.shape, q.shape, k.shape)
        reason = _reason(tensors)
        if not reason and bias is not None and wanted[3]:
            reason = "a gradient of the bias"
        reason = reason or attention.why_torchs(q, k, v, bias, dropout_p, how)
        if reason := reason or _small_attention(q, k, flops, given, backward=True):
            return None, flops, reason
        result = attention.as_torchs_backward(
            grad, q, k, v, bias, out, lse, seed, offset, dropout_p, is_causal, scale
        )
        return result, flops, ""

    return _counted(tally, lambda args, kwargs: taken(*args, **kwargs))


def _misfit(x: torch.Size, weight: torch.Size) -> str:
    return "" if convolutions.fits(x, weight) else "sizes"


def _counted(tally: Tally, taken: Callable[[Any, Any], tuple[Any, int, str]]) -> _Handler:
    """What asks ``taken`` for a call's result, and torch where there is none."""

    def handle(func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if types:
            return _of_subclasses(func, args, kwargs)
        flops, why = 0, ""
        try:
            result, flops, why = taken(args, kwargs)
            if result is not None:
                tally.calls += 1
                tally.flops += flops
                return result
        except _UNFIT as error:
            why = str(error).partition("\n")[0]
        result = func(*args, **kwargs)
        if not why:
            why = _reason((args[0],)) or WHOLE
        tally.leave(why, flops or _flops(func, args, kwargs, result))
        return result

    return handle


def _composite(mode: Mode) -> _Handler:
    """What breaks an operator of inference mode into its parts, for the mode to see them."""

    def handle(func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if types:
            return _of_subclasses(func, args, kwargs)
        with mode:
            return func._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)

    return handle


def _stack(func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """No product: the gradient of a packed projection that was unbound, in its own layout."""
    if types:
        return _of_subclasses(func, args, kwargs)
    dims = unbound.permuted()
    return func(*args, **kwargs) if dims is None else unbound.stack(*args, dims=dims)


def _inseparable(tally: Tally) -> _Handler:
    """What counts the calls of an operator that has products inside."""

    def handle(func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if types:
            return _of_subclasses(func, args, kwargs)
        result = func(*args, **kwargs)
        first = next((t for t in args if isinstance(t, Tensor)), None)
        why = "" if first is None else _reason((first,))
        tally.leave(why or WHOLE, _flops(func, args, kwargs, result))
        return result

    return handle


def _ours(tally: Tally, flops: Callable[[Any, Any, Any], int]) -> _Handler:
    """What counts the calls of our own operators, as converted layers make them."""

    def handle(func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        if not types:
            tally.calls += 1
            tally.flops += flops(args, kwargs, result)
        return result

    return handle


def _flops_of_sgemm(args: Any, kwargs: Any, result: Any) -> int:
    product = result[0] if isinstance(result, tuple) else result
    return 2 * product.numel() * args[0].shape[-2 if kwargs.get("trans_a") else -1]


def _flops_of_linear_backward(args: Any, kwargs: Any, result: Any) -> int:
    return of_linear_backward(*(None if t is None else t.shape for t in args[:3]))


def _flops_of_attention(args: Any, kwargs: Any, result: Any) -> int:
    return attention_ops.flops_of_forward(args[0].shape, args[1].shape)


def _flops_of_attention_backward(args: Any, kwargs: Any, result: Any) -> int:
    return attention_ops.flops_of_backward(None, args[1].shape, args[2].shape)


def _flops(func: Any, args: Any, kwargs: Any, result: Any) -> int:
    """By torch's formula, 0 where it has none; its module is imported when this is first asked."""
    from torch.utils.flop_counter import flop_registry

    packet = func._overloadpacket
    if "_for_cpu" in packet.__name__:  # torch has the formula by another name
        packet = getattr(torch.ops.aten, packet.__name__.replace("_for_cpu", ""), packet)
    formula = flop_registry.get(packet)
    try:
        if "_rnn" in packet.__name__:
            return _flops_of_rnn(packet.__name__, args)
        return 0 if formula is None else int(formula(*args, **kwargs, out_val=result))
    except Exception:  # a count must not end what is counted
        return 0


def _flops_of_rnn(name: str, args: Any) -> int:
    """Of an operator that is an RNN's layers: every row of the input meets every matrix.

    Weights are a list, or the four tensors after the input. A gradient is two products for one.
    """
    x, weights = args[0], args[1] if isinstance(args[1], (list, tuple)) else args[1:5]
    rows = x.numel() // max(x.shape[-1], 1)
    passes = 2 if "backward" in name else 1
    return 2 * passes * rows * sum(w.numel() for w in weights if w.dim() == 2)


def _functions() -> Iterator[CodeType]:
    """The code of what a call runs."""
    for function in (_torch_dispatch, _of_subclasses, _reason, _flops, _flops_of_rnn,
                     _flops_of_sgemm, _flops_of_linear_backward, _flops_of_attention,
                     _flops_of_attention_backward, Tally.leave, _stack, unbound.permuted,
                     unbound.stack, unbound.parts_of_attention):  # fmt: skip
        yield function.__code__
    for factory in (_product, _grouped, _convolution, _convolution_backward, _attention,
                    _attention_backward, _counted, _composite, _inseparable, _ours):  # fmt: skip
        yield from filter(inspect.iscode, factory.__code__.co_consts)


def skipped_by_dynamo(codes: Iterable[CodeType]) -> bool:
    """Have Dynamo leave functions alone, with what they call; whether this torch can.

    By a flag of their code: ``torch._disable_dynamo``, with which torch wraps the method that a
    mode's class is made with, imports Dynamo, and takes 0.6 us for each call of any operator.
    """
    names: Any = torch._C
    try:
        frames = names._dynamo.eval_frame
        skip = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.SKIP)
        for code in codes:
            frames.set_code_exec_strategy(code, skip)
    except AttributeError:  # names that are not public
        return False
    return True


if skipped_by_dynamo(_functions()):
    Mode.__torch_dispatch__ = _torch_dispatch  # type: ignore[assignment, method-assign]
else:
    Mode.__torch_dispatch__ = torch._disable_dynamo(_torch_dispatch)  # type: ignore
