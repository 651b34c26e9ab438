"""``patch()``: the products that torch's own functions make go through ``sgemm``.

A ``TorchDispatchMode`` sees what the dispatcher is asked for below autograd: ``matmul``, ``@``,
``einsum``, ``F.linear``, attention's projections, RNN cells and what backward makes of them arrive
as mm, addmm, bmm, baddbmm, mv, addmv and addbmm, which ``sgemm`` can give. Anything else, and any
call of those that is no product of dense float32 tensors, is passed on unchanged, so that its
result, its warnings and its errors are torch's.

A mode belongs to the thread that entered it. Autograd runs the nodes of CUDA tensors in threads of
its own, with the thread-local state of the call of ``backward()``, modes included: where
``backward()`` is called inside, its products are taken on every device.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode_stack,
    _pop_mode,
    _push_mode,
)

from . import _checks
from .ops import KERNELS, OPS

__all__ = ["Patch", "PatchRow", "patch"]

MIN_FLOPS = 2**24
"""The default of ``min_flops``: a square of 203. Up to there cuBLAS takes 5 us or less on an H200,
most of it the launch; the 1 to 2 us that another kernel may gain are no more than a call of
``sgemm`` costs the host beyond one of torch's own operators."""

_SGEMM, _SGEMM_OUT = OPS["sgemm"], torch.ops.xgemm.sgemm.out
_CALL = _SGEMM._op
_FLOAT32, _STRIDED = torch.float32, torch.strided
_frames = torch._C._dynamo.eval_frame
_SKIP = _frames._FrameExecStrategy(_frames._FrameAction.SKIP, _frames._FrameAction.SKIP)
_DEVICES = frozenset({"cpu", "cuda"})
_MOST = 3.4e38  # a finite factor beyond it has no float32: torch says so
# What a call raises that does not fit; sizes() of a nested tensor raises the last of them.
_UNFIT = (ValueError, TypeError, IndexError, RuntimeError)

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
    "corrcoef", "scaled_dot_product_attention", "_scaled_dot_product_attention_math",
)  # fmt: skip

# One operator each, inside of which torch multiplies: there is no product to take. The first word
# of names, of which a build of torch has some.
_FUSED = (
    "_scaled_dot_product_flash", "_scaled_dot_product_efficient", "_scaled_dot_product_cudnn",
    "_scaled_dot_product_fused", "_flash_attention", "_efficient_attention", "convolution",
    "_convolution", "cudnn_convolution", "mkldnn_convolution", "_cudnn_rnn", "mkldnn_rnn_layer",
    "_native_multi_head_attention", "_transformer_encoder_layer_fwd", "_addmm_activation",
    "_grouped_mm", "_cdist_forward", "_trilinear",
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


# ---------------------------------------------------------------------------------------------
# The mode


class _Tally:
    """What became of the calls of one overload.

    Attributes:
        name: the overload's, without its namespace.
        calls: how many went through xgemm.
        flops: how many FLOP those have.
        left: [calls, FLOP] of those that were left to torch, by reason.
    """

    __slots__ = ("calls", "flops", "left", "name")

    def __init__(self, op: torch._ops.OpOverload) -> None:
        self.name = op.name().removeprefix("aten::").replace("::", ".")
        self.calls = self.flops = 0
        self.left: dict[str, list[int]] = {}

    def leave(self, reason: str, flops: int) -> None:
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


class _Mode(TorchDispatchMode):
    """One entry of a patch, in the thread that made it.

    Attributes:
        handlers: what takes a call, by the id of its overload (their hash is a call of Python's).
        table: ``handlers``, or nothing while another patch is entered inside this one.
    """

    # Operators of higher order reach __torch_dispatch__, and are passed on, in place of an error.
    supports_higher_order_operators = True

    def __init__(self, how: dict[str, Any], least: int) -> None:
        super().__init__()
        self.tallies: list[_Tally] = []
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
        for op in _overloads(_COMPOSITES, True):
            self.handlers[id(op)] = _composite(self)
        for op in _fused():
            self._add(op, _inseparable)
        for op in (_SGEMM, _SGEMM_OUT, torch.ops.xgemm.sgemm_row_sums.default):
            self._add(op, _ours)

    def _add(self, op: torch._ops.OpOverload, make: Callable[..., _Handler], *args: Any) -> None:
        tally = _Tally(op)
        self.tallies.append(tally)
        self.handlers[id(op)] = make(tally, *args)

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compile as without a mode: code that Inductor makes calls mm.out, which the mode sees."""
        return True


def _torch_dispatch(
    self: _Mode, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
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
    tally: _Tally, form: _Form, place: str, how: dict[str, Any], least: int
) -> _Handler:  # fmt: skip
    """What takes the calls of an overload of ``form``.

    ``place`` says where the result goes: "new", "out" or "self" (in place).
    """
    flops_of, operands, first = form.flops, form.operands, int(form.addend)
    plain = place == "new" and not form.addend and operands is None
    least = max(least, 1)  # empty results, and K = 0, are torch's
    small = tally.left.setdefault(f"below {_words(least)}FLOP" if least > 1 else "empty", [0, 0])

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
        """With an addend, factors, a place or another form; None where it is torch's."""
        c = args[0] if first else None
        if c is not None and (
            c.dtype is not _FLOAT32 or c.layout is not _STRIDED or c.device != a.device
        ):
            return None
        flags = how
        for name in ("alpha", "beta"):
            if name in kwargs:
                factor = kwargs[name]
                if type(factor) not in (int, float) or not -_MOST < factor < _MOST:
                    return None
                if flags is how:
                    flags = dict(how)
                flags[name] = factor
        target = None
        if place != "new":
            target = c if place == "self" else kwargs["out"]
            if (
                target.dtype is not _FLOAT32
                or target.layout is not _STRIDED
                or target.device != a.device
                or tuple(target.shape) != form.shape(a.shape, b.shape)
            ):
                return None
        if operands is not None:
            a, b, c = operands(a, b, c)
        if target is not None:
            _SGEMM_OUT(a, b, c, out=_column(target) if form.column else target, **flags)
            return target
        result = _SGEMM(a, b, c, **flags)
        return result.squeeze(1) if form.column else result

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


def _composite(mode: _Mode) -> _Handler:
    """What breaks an operator of inference mode into its parts, for the mode to see them."""

    def handle(func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if types:
            return _of_subclasses(func, args, kwargs)
        with mode:
            return func._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)

    return handle


def _inseparable(tally: _Tally) -> _Handler:
    """What counts the calls of an operator that has products inside."""

    def handle(func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if types:
            return _of_subclasses(func, args, kwargs)
        result = func(*args, **kwargs)
        first = next((t for t in args if isinstance(t, Tensor)), None)
        why = "" if first is None else _reason((first,))
        tally.leave(why or "one operator, no product to take", _flops(func, args, kwargs, result))
        return result

    return handle


def _ours(tally: _Tally) -> _Handler:
    """What counts the calls of our own operators, as converted layers make them."""

    def handle(func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        if not types:
            product = result[0] if isinstance(result, tuple) else result
            inner = args[0].shape[-2 if kwargs.get("trans_a") else -1]
            tally.calls += 1
            tally.flops += 2 * product.numel() * inner
        return result

    return handle


def _flops(func: Any, args: Any, kwargs: Any, result: Any) -> int:
    """By torch's formula, 0 where torch has none; its module is imported when this is first asked.

    torch's formulas are for what the operators return, and for shapes of models.
    """
    from torch.utils.flop_counter import flop_registry

    formula = flop_registry.get(func._overloadpacket)
    try:
        return 0 if formula is None else int(formula(*args, **kwargs, out_val=result))
    except Exception:  # a count must not end what is counted
        return 0


def _skip(code: CodeType) -> None:
    """Have Dynamo leave a function alone, and what it calls.

    torch wraps ``__torch_dispatch__`` in ``torch._disable_dynamo`` for this, which imports Dynamo,
    and takes 0.6 us for each call of any operator.
    """
    _frames.set_code_exec_strategy(code, _SKIP)


for _function in (_torch_dispatch, _of_subclasses, _reason, _flops, _Tally.leave):
    _skip(_function.__code__)
for _factory in (_product, _composite, _inseparable, _ours):
    for _constant in _factory.__code__.co_consts:
        if inspect.iscode(_constant):
            _skip(_constant)
_Mode.__torch_dispatch__ = _torch_dispatch  # now: what the class is made with, torch wraps


# ---------------------------------------------------------------------------------------------
# The patch


@dataclass(frozen=True)
class PatchRow:
    """What became of some calls of one of torch's operators.

    Attributes:
        product: the overload's name, such as "addmm" or "mm.out".
        taken: whether xgemm made these products; else torch.
        calls: how many there were.
        flops: how many FLOP they have, 0 where that is not known.
        reason: why they were left to torch, "" where they were not.
    """

    product: str
    taken: bool
    calls: int
    flops: int
    reason: str = ""


class Patch:
    """What ``patch()`` gives: a context manager, a decorator, and the count of what it did.

    Iterable over its rows, one for each operator and reason; ``str()`` gives them as a table.

    Attributes:
        precision: "fp32" or "ieee", of the products that are taken.
        kernel: "auto" or a stage's name.
        min_flops: products of fewer FLOP, 2 m n k a matrix, are torch's.
    """

    def __init__(self, precision: str, min_flops: float, kernel: str) -> None:
        """As ``patch`` says."""
        self.precision = precision
        self.kernel = kernel
        self.min_flops = min_flops
        self._modes: list[_Mode] = []
        self._free: list[_Mode] = []
        self._thread = threading.local()  # .entered: the modes of this thread, innermost last

    def __enter__(self) -> Patch:
        """Begin, in this thread."""
        how = {"precision": self.precision, "kernel": self.kernel}
        how = {key: value for key, value in how.items() if value not in ("fp32", "auto")}
        try:
            mode = self._free.pop()
        except IndexError:
            mode = _Mode(how, self.min_flops)
            self._modes.append(mode)
        vars(self._thread).setdefault("entered", []).append(mode)
        mode.__enter__()
        _innermost()
        return self

    def __exit__(self, *error: object) -> None:
        """End what was begun last, in this thread."""
        entered = vars(self._thread).get("entered")
        if not entered:
            raise RuntimeError("patch: not active in this thread; it ends where it was begun")
        mode = entered[-1]
        if mode not in _get_current_dispatch_mode_stack():
            raise RuntimeError("patch: torch has switched dispatch modes off here; end it outside")
        above = []
        while (top := _get_current_dispatch_mode_stack()[-1]) is not mode:
            above.append(top)
            _pop_mode()
        mode.__exit__(*(error or (None, None, None)))
        for other in reversed(above):
            _push_mode(other)
        entered.pop()
        mode.table = mode.handlers
        self._free.append(mode)
        _innermost()

    def start(self) -> Patch:
        """Begin for good, or until ``stop()``: for this thread, as ``unittest.mock``'s patches.

        Returns:
            The patch itself.
        """
        return self.__enter__()

    def stop(self) -> None:
        """End what ``start()`` has begun in this thread.

        Raises:
            RuntimeError: it is not active in this thread.
        """
        self.__exit__()

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that is called inside the patch, as a decorator makes it.

        Raises:
            TypeError: it is a class, a generator function or a coroutine function, whose work is
                not done when it is called.
        """
        if inspect.isclass(function) or not callable(function):
            raise TypeError(f"patch: decorates functions, got {function!r}")
        if any(f(function) for f in (inspect.isgeneratorfunction, inspect.iscoroutinefunction,
                                     inspect.isasyncgenfunction)):  # fmt: skip
            raise TypeError(
                f"patch: {function.__name__} runs after the call that makes it; "
                "enter the patch with `with` inside of it"
            )

        @functools.wraps(function)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return inside

    @property
    def rows(self) -> tuple[PatchRow, ...]:
        """What was counted, most FLOP first, in all threads since the patch was made."""
        counts: dict[tuple[str, str], list[int]] = {}
        for mode in tuple(self._modes):
            for tally in mode.tallies:
                parts = [("", [tally.calls, tally.flops]), *tuple(tally.left.items())]
                for reason, (calls, flops) in parts:
                    count = counts.setdefault((tally.name, reason), [0, 0])
                    count[0] += calls
                    count[1] += flops
        rows = [
            PatchRow(name, not reason, calls, flops, reason)
            for (name, reason), (calls, flops) in counts.items()
            if calls
        ]
        return tuple(sorted(rows, key=lambda r: (-r.flops, -r.calls, r.product, r.reason)))

    @property
    def taken(self) -> int:
        """How many products xgemm made."""
        return sum(row.calls for row in self.rows if row.taken)

    @property
    def left(self) -> int:
        """How many calls were left to torch."""
        return sum(row.calls for row in self.rows if not row.taken)

    @property
    def share(self) -> float:
        """The share of FLOP that xgemm did, 0 to 1; of what torch has a formula for."""
        rows = self.rows
        total = sum(row.flops for row in rows)
        return sum(row.flops for row in rows if row.taken) / total if total else 0.0

    def reset(self) -> None:
        """Count from zero again."""
        for mode in tuple(self._modes):
            for tally in mode.tallies:
                tally.calls = tally.flops = 0
                for count in tuple(tally.left.values()):
                    count[:] = 0, 0

    def __iter__(self) -> Iterator[PatchRow]:
        """Go through the rows."""
        return iter(self.rows)

    def __repr__(self) -> str:
        """The settings."""
        return (
            f"patch(precision={self.precision!r}, min_flops={self.min_flops}, "
            f"kernel={self.kernel!r})"
        )

    def __str__(self) -> str:
        """The rows as a table, and their sum."""
        rows = self.rows
        if not rows:
            return f"{self!r}: no products yet"
        total = sum(row.flops for row in rows)
        table = [("product", "by", "calls", "FLOP", "share", "why torch")]
        for row in rows:
            share = f"{row.flops / total:.1%}" if row.flops else "?" if row.reason else ""
            table.append(
                (row.product, "xgemm" if row.taken else "torch", str(row.calls),
                 _words(row.flops) if row.flops else "", share, row.reason)
            )  # fmt: skip
        widths = [max(len(line[i]) for line in table) for i in range(6)]
        table.insert(1, tuple("-" * width for width in widths))
        sides = (str.ljust, str.ljust, str.rjust, str.rjust, str.rjust, str.ljust)
        lines = [
            "  ".join(
                side(cell, width) for side, cell, width in zip(sides, line, widths, strict=True)
            )
            for line in table
        ]
        lines.append(
            f"xgemm made {self.taken} of {self.taken + self.left} products, "
            f"{self.share:.1%} of {_words(total)}FLOP"
        )
        return "\n".join(line.rstrip() for line in lines)


def _words(count: float) -> str:
    """A count in three digits and its unit: "103 G"."""
    for unit, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= 0.9995 * unit:
            return f"{count / unit:.3g} {name}"
    return f"{count} "


def _innermost() -> None:
    """Of the patches in this thread the innermost decides alone; those around it see nothing."""
    ours = [mode for mode in _get_current_dispatch_mode_stack() if isinstance(mode, _Mode)]
    for mode in ours:
        mode.table = {}
    if ours:
        ours[-1].table = ours[-1].handlers


def patch(*, precision: str = "fp32", min_flops: float = MIN_FLOPS, kernel: str = "auto") -> Patch:
    """Make the float32 products of torch's own functions by ``sgemm``, with no change to a model.

    Inside it ``mm``, ``addmm``, ``bmm``, ``baddbmm``, ``addbmm``, ``mv`` and ``addmv``, also in
    place and with ``out=``, go through xgemm, and so does what is made of them: ``matmul``, ``@``,
    ``einsum``, ``tensordot``, ``F.linear``, the projections of ``nn.MultiheadAttention``, RNN
    cells, and the products of backward passes. Everything else is torch's, untouched: other dtypes,
    sparse and nested tensors, empty products, errors.

    What torch computes in one operator has no product to take: ``scaled_dot_product_attention``
    (but for torch's math fallback), convolutions, cuDNN's and oneDNN's RNN layers, the fast path of
    ``nn.TransformerEncoderLayer``. The report counts them.

    It holds for the thread that enters it, and for the backward passes that are started inside,
    whichever threads they run in; ``backward()`` after the end runs torch's products. Call what
    ``torch.compile`` has made inside: the products that it runs as ATen's operators are taken, and
    nothing is compiled anew; products that Inductor writes itself (``max_autotune``) are not.
    Inside a compiled function the beginning of a patch is a graph break. A CUDA graph keeps the
    products of its capture. Modes that are entered later, as a FLOP counter or a checkpoint's
    policy, see ATen's operators; those entered before see ``xgemm.sgemm``.

    Every operator that runs inside, whatever it does, costs the host about 2 us more, and a product
    1 us more than a call of ``sgemm``. That counts where a model waits for the host; ``convert``
    costs nothing of the kind.

    Args:
        precision: "fp32" or "ieee", as of ``sgemm``.
        min_flops: leave products of fewer FLOP to torch; 2 m n k, times the batch.
        kernel: "auto" or a stage's name; what the stage cannot take is torch's.

    Returns:
        A `Patch`, to be entered by ``with``, to decorate a function, or to ``start()`` and
        ``stop()``. The innermost of nested ones decides. ``print`` it for what went through xgemm,
        what did not, and why.

    Raises:
        TypeError: an argument of a wrong type.
        ValueError: an unknown kernel or precision, or one that the other does not go with; a
            negative ``min_flops``.

    Example:
        >>> with xgemm_torch.patch() as p:
        ...     loss = model(batch).sum()
        ...     loss.backward()
        >>> print(p)
    """
    _checks.check_options("patch", KERNELS["sgemm"], kernel, precision)
    if isinstance(min_flops, bool) or not isinstance(min_flops, (int, float)):
        raise TypeError(f"patch: min_flops must be a number, got {type(min_flops).__name__}")
    if not min_flops >= 0:
        raise ValueError(f"patch: min_flops must not be negative, got {min_flops}")
    return Patch(precision, min_flops, kernel)
