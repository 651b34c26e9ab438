"""``patch()``: the products that torch's own functions make go through ``sgemm``.

A mode of the dispatcher takes them (``dispatch``). It belongs to the thread that entered it.
Autograd runs the nodes of CUDA tensors in threads of its own, with the thread-local state of the
call of ``backward()``, modes included: where ``backward()`` is called inside, its products are
taken on every device.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from torch.utils._python_dispatch import _get_current_dispatch_mode_stack, _pop_mode, _push_mode

from . import _checks
from .dispatch import WHOLE, Mode, in_words, skipped_by_dynamo
from .ops import KERNELS
from .types import Precision

__all__ = ["Patch", "PatchRow", "patch"]

_P = ParamSpec("_P")
_R = TypeVar("_R")


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
        min_flops: products of fewer FLOP, 2 m n k a matrix, are torch's; None where the defaults
            hold.
    """

    def __init__(self, precision: Precision, min_flops: float | None, kernel: str) -> None:
        """As ``patch`` says."""
        self.precision = precision
        self.kernel = kernel
        self.min_flops = min_flops
        self._modes: list[Mode] = []
        self._free: list[Mode] = []
        self._thread = threading.local()  # .entered: the modes of this thread, innermost last

    def __enter__(self) -> Patch:
        """Begin, in this thread."""
        how = {"precision": self.precision, "kernel": self.kernel}
        how = {key: value for key, value in how.items() if value not in ("fp32", "auto")}
        try:
            mode = self._free.pop()
        except IndexError:
            mode = Mode(how, self.min_flops)
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
        mode: Any = entered[-1]
        modes: Callable[[], list[Any]] = _get_current_dispatch_mode_stack
        if mode not in modes():
            raise RuntimeError("patch: torch has switched dispatch modes off here; end it outside")
        above: list[Any] = []
        while (top := modes()[-1]) is not mode:
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

    def __call__(self, function: Callable[_P, _R]) -> Callable[_P, _R]:
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
        def inside(*args: _P.args, **kwargs: _P.kwargs) -> _R:
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
        """The share of FLOP that xgemm did, 0 to 1, of those that are known."""
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
        table: list[tuple[str, ...]] = [("product", "by", "calls", "FLOP", "share", "why torch")]
        for row in rows:
            share = f"{row.flops / total:.1%}" if row.flops else "?" if row.reason else ""
            table.append(
                (row.product, "xgemm" if row.taken else "torch", str(row.calls),
                 in_words(row.flops) if row.flops else "", share, row.reason)
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
            f"{self.share:.1%} of {in_words(total)}FLOP"
        )
        unknown = sum(row.calls for row in rows if row.reason == WHOLE and not row.flops)
        if unknown:
            lines[-1] += f"; {unknown} of the others have unknown FLOP"
        return "\n".join(line.rstrip() for line in lines)


def _leave_to_python(*functions: Any) -> None:
    """A call of them in a compiled function breaks its graph, and Python runs it as it is."""
    skipped_by_dynamo(function.__code__ for function in functions)
    for function in functions:  # what torch.compiler.disable sets, which imports Dynamo
        function._torchdynamo_disable = True
        function._torchdynamo_disable_msg = "a patch is a context manager of eager mode"


_leave_to_python(Patch.__enter__, Patch.__exit__)


def _innermost() -> None:
    """Of the patches in this thread the innermost decides alone; those around it see nothing."""
    ours = [mode for mode in _get_current_dispatch_mode_stack() if isinstance(mode, Mode)]
    for mode in ours:
        mode.table = {}
    if ours:
        ours[-1].table = ours[-1].handlers


def patch(
    *, precision: Precision = "fp32", min_flops: float | None = None, kernel: str = "auto"
) -> Patch:
    """Make the float32 products of torch's own functions by ``sgemm``, with no change to a model.

    Inside it ``mm``, ``addmm``, ``bmm``, ``baddbmm``, ``addbmm``, ``mv`` and ``addmv``, also in
    place and with ``out=``, go through xgemm, and so does what is made of them: ``matmul``, ``@``,
    ``einsum``, ``tensordot``, ``F.linear``, the projections of ``nn.MultiheadAttention``, RNN
    cells, and the products of backward passes; ``_grouped_mm``, experts' products; convolutions
    without groups and padding whose stride is their kernel's size, as of 1x1 and patch embeddings;
    and, on compute capability 9.0, the operator that ``scaled_dot_product_attention`` and the
    modules that call it are in FP32, with its backward: of heads of up to 128, without a gradient
    of the mask; dropout drops the weights that torch's operator drops. Everything else is torch's,
    untouched: other dtypes, sparse and nested tensors, empty products, errors.

    What torch computes in one operator otherwise has no product to take: attention elsewhere (but
    for torch's math fallback), other convolutions, cuDNN's and oneDNN's RNN layers, the fast path
    of ``nn.TransformerEncoderLayer``. The report counts them. Not even that is seen of what an
    operator from elsewhere multiplies inside (``torch.library.custom_op``, a C++ extension).
    torch's own convolutions are TF32 where ``torch.backends.cudnn.allow_tf32`` is left as it comes.

    It holds for the thread that enters it, and for the backward passes that are started inside,
    whichever threads they run in; ``backward()`` after the end runs torch's products. Call what
    ``torch.compile`` has made inside: the products that it runs as ATen's operators are taken, and
    nothing is compiled anew; products that Inductor writes itself (``max_autotune``) are not.
    Inside a compiled function the beginning of a patch is a graph break. A CUDA graph keeps the
    products of its capture. Modes that are entered later, as a FLOP counter or a checkpoint's
    policy, see ATen's operators; those entered before see ``xgemm.sgemm``.

    Every operator that runs inside, whatever it does, costs the host 2 to 5 us more, and a product
    1 us more than a call of ``sgemm``. That counts where a model waits for the host. ``convert``
    costs nothing of the kind, nor do converted layers inside, where no other mode is on.

    Args:
        precision: "fp32" or "ieee", as of ``sgemm``.
        min_flops: leave products of fewer FLOP to torch; 2 m n k, times the batch, and all of an
            attention's together. A number holds for every product, convolutions and attention
            included. None, the default, is 2^24, 2^32 for convolutions, and for attention what
            `scaled_dot_product_attention` leaves to torch.
        kernel: "auto" or a stage's name; what the stage cannot take is torch's. Attention is taken
            with "auto" and "fp32" alone.

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
    if isinstance(min_flops, bool) or not isinstance(min_flops, (int, float, type(None))):
        raise TypeError(
            f"patch: min_flops must be a number or None, got {type(min_flops).__name__}"
        )
    if min_flops is not None and not min_flops >= 0:
        raise ValueError(f"patch: min_flops must not be negative, got {min_flops}")
    return Patch(precision, min_flops, kernel)
