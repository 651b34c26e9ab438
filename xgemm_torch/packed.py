"""Weights that do not change: ``prepack`` keeps what a product would make of one in every call."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling
from torch.multiprocessing.reductions import StorageWeakRef

from . import _checks, ops
from . import functional as F
from .functional import addmm, linear, matmul, mm
from .ops import KERNELS, SGEMM, invariant_packed, sgemm, sgemm_packed, transforming
from .registry import OPERATORS, stages
from .types import Activation

__all__ = ["PackedWeight", "prepack"]

_PACKS = [stage.name for stage in stages() if stage.packs]


class PackedWeight:
    """A matrix and the 16-bit limbs that stages of two fp16 limbs make of it; see ``prepack``.

    It holds the weight itself too: for its gradients, for stages that take no limbs, and for
    elements and problems that two limbs cannot give. A copy, or what is loaded, packs its own
    weight when it is first used: loaders fill tensors after they have made them.

    Attributes:
        weight: the matrix.
        trans_b: whether it is used transposed.
        kernel: the stage that was asked for the limbs, or "auto".
    """

    def __init__(self, weight: Tensor, trans_b: bool, kernel: str) -> None:
        """Of a weight that is yet to be packed."""
        self.weight: Tensor = weight
        self.trans_b: bool = trans_b
        self.kernel: str = kernel
        self._limbs: Tensor | None = None
        # What the weight was when it was packed; None: it is yet to be packed.
        self._then: tuple[Any, ...] | None = None

    @property
    def limbs(self) -> Tensor | None:
        """The limbs and their scales, opaque.

        None where the weight itself is used: where no stage of this device takes limbs, in compiled
        graphs, for a copy's weight that cannot be packed (``half()``, inference mode), and as long
        as a weight that is yet to be packed is used only where calls are recorded or transformed
        (tracing, ``torch.func``, a CUDA graph's capture).
        """
        if is_compiling():
            return None
        if self._then is None or (self._limbs is not None and self._gradients.came(self.weight)):
            if _refusal(self.weight) is not None or not _is_plain_call(self.weight):
                return None
            self._pack(wait=True)
        return self._limbs

    def renew(self) -> None:
        """Have the weight packed anew when it is next used: it may change until then."""
        self._then = None

    def _pack(self, wait: bool = False) -> None:
        # Before the weight is read: what comes meanwhile counts as later.
        self._gradients = _Gradients(self.weight)
        self._storage = StorageWeakRef(self.weight.untyped_storage())
        then = _state(self.weight)
        with torch.inference_mode(False), torch.no_grad():
            limbs = OPERATORS.prepack(self.weight, trans_b=self.trans_b, kernel=self.kernel)
            old = self._limbs
            if old is not None and (old.shape, old.device) == (limbs.shape, limbs.device):
                limbs = old.copy_(limbs)  # a CUDA graph may have their address
        if wait and limbs.is_cuda:  # nobody told other threads' streams to wait for this one
            torch.cuda.current_stream(limbs.device).synchronize()
        self._limbs = limbs if limbs.numel() else None
        self._then = then

    @property
    def shape(self) -> torch.Size:
        """That of the weight."""
        return self.weight.shape

    def check(self, name: str = "prepack") -> None:
        """Raise RuntimeError if the weight is no longer what it was when it was packed."""
        if is_compiling() or self._then is None:
            return
        if (now := _state(self.weight)) != self._then:
            what = "has been written to" if now[1:] == self._then[1:] else "has other memory"
            raise RuntimeError(
                f"{name}: the packed weight is stale: since prepack the weight {what}; "
                "pack it again, or use the weight itself"
            )

    def __repr__(self) -> str:
        """Shape, device, bytes."""
        kept = "no limbs" if self._limbs is None else f"{self._limbs.numel()} bytes of limbs"
        return (
            f"PackedWeight({tuple(self.shape)}, trans_b={self.trans_b}, "
            f"device={self.weight.device}, {kept})"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Without the limbs."""
        return PackedWeight, (self.weight, self.trans_b, self.kernel)

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Stand for b in xgemm_torch's products; no other function takes a packed weight."""
        product = _PRODUCTS.get(func)
        if product is None:
            raise TypeError(
                f"{getattr(func, '__name__', func)} takes no PackedWeight, only its .weight; "
                f"xgemm_torch's {', '.join(f.__name__ for f in _PRODUCTS)} do"
            )
        return product(*args, **(kwargs or {}))


# Their annotations have the name, and they are imported before there is such a class;
# typing.get_type_hints looks for it there.
for _module in (ops, F):
    setattr(_module, PackedWeight.__name__, PackedWeight)


def prepack(weight: Tensor, *, trans_b: bool = True, kernel: str = "auto") -> PackedWeight:
    """Decompose a weight that does not change into limbs once, for all products with it.

    The result stands for the weight in ``xgemm_torch.linear(x, packed)``, or with ``trans_b=False``
    in ``sgemm(a, packed)``, ``mm``, ``addmm`` and ``matmul``. They give the same bits as with the
    weight, by the same kernel; where that is a stage with ``packs`` (``xgemm_torch.stages()``) it
    decomposes the other operand only. The limbs take as much memory as the weight, which is kept,
    too. Gradients of both operands are those without packing.

    A weight that was written to since, or has other memory, is refused. One that has had a gradient
    since is packed anew: torch does not count what a fused optimizer makes of it. Nothing else that
    torch does not count as a change is seen: writing through ``weight.data`` or its storage;
    collectives (``torch.distributed.scatter``, and NCCL's) and other libraries' kernels that write
    to the weight; fused optimizers where the weight is a view or detached, or its gradient was set
    and cleared by hand; and the replays of a CUDA graph, which has the limbs of the time of its
    capture. Call ``packed.renew()`` after those: the next product packs the weight anew. In
    compiled graphs the weight itself is used.

    Args:
        weight: (N, K), as of ``linear``; (K, N) with ``trans_b=False``.
        trans_b: the flag that products with it will have; ``linear``'s is True.
        kernel: "auto", or the stage to decompose by. On a CPU "auto", which is ATen's BLAS
            there, decomposes nothing; a stage does in the emulator, for products by its name.

    Returns:
        What products take in place of the weight.

    Raises:
        TypeError: ``weight`` is no dense float32 tensor.
        ValueError: not two dimensions; an unknown kernel, or one that does not pack.
        RuntimeError: an inference tensor, whose changes torch does not count; no memory; a stage
            that the device cannot run.
    """
    if (error := _refusal(weight)) is not None:
        raise error
    _checks._string("prepack", "kernel", kernel)
    if not isinstance(trans_b, bool):
        raise TypeError(f"prepack: trans_b must be a bool, got {type(trans_b).__name__}")
    if kernel not in KERNELS["sgemm"]:
        raise ValueError(
            f"prepack: no kernel named '{kernel}'; there are: {', '.join(KERNELS['sgemm'])}"
        )
    if kernel != "auto" and kernel not in _PACKS:
        raise ValueError(f"prepack: {kernel} takes no limbs; stages that do: {', '.join(_PACKS)}")
    packed = PackedWeight(weight, trans_b, kernel)
    packed._pack()
    return packed


def _refusal(weight: Any) -> Exception | None:
    """Why a weight cannot be packed."""
    try:
        _checks._operand("prepack", "weight", weight)
        _checks.storage("prepack", "weight", weight)
    except (TypeError, ValueError) as error:
        return error
    if type(weight) not in (Tensor, torch.nn.Parameter):
        return TypeError(f"prepack: weight must be a plain tensor, got {type(weight).__name__}")
    if weight.dim() != 2:
        return ValueError(f"prepack: weight must have 2 dimensions, got shape {F._sizes(weight)}")
    if weight.device.type not in ("cpu", "cuda"):
        return ValueError(f"prepack: weight is on {weight.device}; cpu and cuda are supported")
    if weight.is_inference():
        return RuntimeError(
            "prepack: torch does not count the changes of an inference tensor; make the weight "
            "outside torch.inference_mode"
        )
    return None


def _is_plain_call(weight: Tensor) -> bool:
    """Whether what is computed now is computed, not recorded or wrapped for something else."""
    return not (
        transforming()
        or torch._C._get_tracing_state() is not None
        or torch._C._len_torch_dispatch_stack() > 0
        or (weight.is_cuda and torch.cuda.is_current_stream_capturing())
    )


def _state(weight: Tensor) -> tuple[Any, ...]:
    # Memory that was freed may be given to the next weight. A storage's own address is not, as long
    # as there is a weak reference to it.
    storage = weight.untyped_storage()._cdata
    memory = storage, weight.data_ptr(), weight.device, weight.shape, weight.stride()
    return weight._version, *memory


class _Gradients:
    """Tells whether a weight has had a gradient since this was made.

    A fused optimizer changes weights without torch counting it, but none that has no gradient. A
    hook of torch's optimizers would see their steps, and would be the whole process's; this one is
    the weight's, and goes with its owner.
    """

    def __init__(self, weight: Tensor) -> None:
        self._came = False
        self._required, self._none = weight.requires_grad, _has_none(weight)
        if weight.requires_grad and weight.is_leaf:
            me = weakref.ref(self)  # or the hook would keep its owner, and stay for good

            def note(_: Tensor) -> None:
                if (gradients := me()) is not None:
                    gradients._came = True

            hook = weight.register_post_accumulate_grad_hook(note)
            weakref.finalize(self, hook.remove).atexit = False

    def came(self, weight: Tensor) -> bool:
        return (
            self._came
            or weight.requires_grad != self._required  # there was no hook, or there is none now
            or _has_none(weight) != self._none  # set by hand
        )


def _has_none(weight: Tensor) -> bool:
    return not weight.is_leaf or weight.grad is None


# ---------------------------------------------------------------------------------------------
# The products, with the arguments that their functions hand on.


def _matrix(name: str, arg: str, packed: Any, **others: Any) -> Tensor:
    """The weight of ``packed``, which alone of the operands may be packed, and is up to date."""
    for other, t in others.items():
        if isinstance(t, PackedWeight):
            raise TypeError(f"{name}: {other} must be a tensor; {arg} alone may be packed")
    packed.check(name)
    return packed.weight


def _sgemm(
    a: Tensor, b: Any, c: Tensor | None = None, *, out: Tensor | None = None,
    words: _checks.Words = SGEMM, **flags: Any,
) -> Tensor:  # fmt: skip
    weight = _matrix(words.name, words.b, b, a=a, c=c, out=out)
    if flags.get("trans_b", False) != b.trans_b:
        raise ValueError(
            f"{words.name}: {words.b} was packed for trans_b={b.trans_b}; prepack(weight, trans_b="
            f"{not b.trans_b}) packs for {not b.trans_b}"
        )
    if "invariant" in flags:
        return invariant_packed(words, a, weight, c, b.limbs, out, flags)
    return sgemm_packed(words, a, weight, c, b.limbs, out, flags)


def _linear(
    x: Tensor, weight: Any, bias: Tensor | None = None, activation: Activation = "none", **how: Any
) -> Tensor:
    matrix = _matrix("linear", "weight", weight, x=x, bias=bias)
    if not weight.trans_b:
        raise ValueError(
            "linear: weight was packed for trans_b=False; prepack(weight) packs for linear"
        )
    F._bias_fits(bias, matrix)
    if F._rank("linear", "x", x) == 0 or x.shape[-1] != matrix.shape[-1]:
        raise ValueError(
            f"linear: inner sizes differ: x is {F._sizes(x)}, weight is {F._sizes(matrix)}"
        )
    flags = {"trans_b": True, "activation": activation, **how}
    call = invariant_packed if "invariant" in how else sgemm_packed
    if x.dim() == 2:
        return call(F.LINEAR, x, matrix, bias, weight.limbs, None, flags)
    out = call(F.LINEAR, F._rows(x), matrix, bias, weight.limbs, None, flags)
    return out.reshape((*x.shape[:-1], matrix.shape[0]))


def _mm(input: Tensor, mat2: Any, **how: Any) -> Tensor:
    F._ranks("mm", 2, input=input)
    return _sgemm(input, mat2, words=F.MM, **how)


def _addmm(input: Tensor, mat1: Tensor, mat2: Any, **how: Any) -> Tensor:
    F._ranks("addmm", 2, mat1=mat1)
    return _sgemm(mat1, mat2, input, words=F.ADDMM, **how)


def _matmul(input: Tensor, other: Any, *, out: Tensor | None = None, **how: Any) -> Tensor:
    matrix = _matrix("matmul", "other", other, input=input, out=out)
    rank = F._rank("matmul", "input", input)
    if rank == 2:
        return _sgemm(input, other, out=out, words=F.MATMUL, **how)
    if out is not None:
        raise ValueError("matmul: with a packed weight out= takes an input of two dimensions")
    if rank == 0 or input.shape[-1] != matrix.shape[0]:
        raise ValueError(
            f"matmul: inner sizes differ: input is {F._sizes(input)}, other is {F._sizes(matrix)}"
        )
    out = _sgemm(F._rows(input), other, words=F.MATMUL, **how)
    return out.reshape((*input.shape[:-1], matrix.shape[1]))


_PRODUCTS: dict[Callable[..., Any], Callable[..., Tensor]] = {
    sgemm: _sgemm, linear: _linear, mm: _mm, addmm: _addmm, matmul: _matmul,
}  # fmt: skip
