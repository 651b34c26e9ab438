"""Make a model's ``torch.nn.Linear`` modules, and other layers that are products, ours, and back.

A module is swapped by its class: it stays the same object with the same parameters, so optimizers,
tied weights, hooks, training mode, device and ``state_dict`` are untouched, and the way back is
exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from . import _checks, conv1d, convnd, transformers_attention
from .linears import obstacle, replaced
from .nn import DEFAULTS, Linear
from .ops import KERNELS
from .opted import Other, check_types, misfit, opted
from .owners import hands_on
from .stock import check_autocast
from .types import Autocast, Invariant, Precision

MARK = "_xgemm_swapped"
"""The attribute of a module that ``convert`` has swapped."""

_TAKEN = (*DEFAULTS, "packed", MARK)
"""The attributes that a swapped module has and ``torch.nn.Linear`` has not."""


@dataclass(frozen=True)
class Row:
    """What became of one module.

    Attributes:
        fqn: its name in the model, "" for the model itself.
        type: its class before, in full.
        swapped: whether its class was changed.
        reason: why not, or how it was.
    """

    fqn: str
    type: str
    swapped: bool
    reason: str


@dataclass(frozen=True)
class ConvertReport:
    """What ``convert`` or ``revert`` did: iterable over its rows; ``str()`` gives a table.

    Attributes:
        rows: one for each module that is like a Linear or holds matrices itself, in the model's
            order.
        notes: what to know besides.
    """

    rows: tuple[Row, ...]
    notes: tuple[str, ...] = field(default=())

    def __iter__(self) -> Iterator[Row]:
        """Go through the rows."""
        return iter(self.rows)

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self.rows)

    def __getitem__(self, index: int) -> Row:
        """One row."""
        return self.rows[index]

    @property
    def swapped(self) -> list[Row]:
        """The rows of modules that were swapped."""
        return [row for row in self.rows if row.swapped]

    @property
    def skipped(self) -> list[Row]:
        """The rows of modules that were not."""
        return [row for row in self.rows if not row.swapped]

    def __str__(self) -> str:
        """The rows as a table, and the notes."""
        table: list[tuple[str, ...]] = [("module", "type before", "swapped", "reason")]
        table += [
            (row.fqn or "(the model)", row.type, "yes" if row.swapped else "no", row.reason)
            for row in self.rows
        ]
        widths = [max(len(line[i]) for line in table) for i in range(4)]
        table.insert(1, tuple("-" * width for width in widths))
        lines = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in table]
        lines.append(f"{len(self.swapped)} of {len(self.rows)} swapped")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def convert(
    model: nn.Module,
    *,
    filter_fn: Callable[[nn.Module, str], bool] | None = None,
    kernel: str = "auto",
    precision: Precision = "fp32",
    min_features: int = 0,
    autocast: Autocast = "torch",
    invariant: Invariant | None = None,
    types: Iterable[type[nn.Module]] | type[nn.Module] = (),
    attention: bool = False,
) -> ConvertReport:
    """Make the ``torch.nn.Linear`` modules of ``model`` ``xgemm_torch.nn.Linear``, in place.

    A module whose weight is made bf16, half or double later is torch's own from then on, and so is
    every module under autocast, unless ``autocast="float32"``.

    Only modules whose class is exactly ``torch.nn.Linear`` are swapped: a subclass has a meaning of
    its own, unless ``types`` has it. So are those of transformers' ``Conv1D``, GPT-2's Linear. The
    report has a row for each module that looks like a Linear or holds matrices itself (experts,
    RNNs, attention's input projection), swapped or not, and says why; it names layers whose weight
    their owner's forward hands to another function, as ``F.linear``. Products of both are for
    ``xgemm_torch.patch()``.

    Convolutions without groups and padding whose stride is the kernel's size, as 1x1 ones or a
    vision transformer's patch embedding, are products, too, and have a row. They are left unless
    ``types`` has ``torch.nn.Conv1d``, ``Conv2d`` or ``Conv3d``: torch computes them in TF32 unless
    it is told otherwise, and FP32's accuracy takes longer.

    An error, one that ``filter_fn`` raises too, leaves the model as it was. A model may be
    converted before or after ``torch.compile``; its graphs are compiled anew. Convert before
    ``fully_shard``, which changes the classes of modules itself.

    Convert before ``parallelize_module``, too: products of sharded operands have rules of their
    own, but a layer whose weight is sharded already is left, and the report says so. Not supported:
    ``torch.jit.script`` of a converted model (``revert`` it first).

    Args:
        model: the model, or a single module of those.
        filter_fn: called with a module and its name in the model; False leaves it as it is.
        kernel: "auto" or a stage's name, for all of them.
        precision: "fp32" or "ieee", for all of them.
        min_features: leave modules with fewer input or output features than this.
        autocast: "torch": under autocast modules are torch's own, in its dtype; "float32": they
            compute in float32 and give float32.
        invariant: "batch", or with ``precision="ieee"`` "tp", as of ``sgemm``, for all of them.
        types: a class, or several, to swap modules of exactly those, too: subclasses of
            ``torch.nn.Linear``, or others with a weight (out, in), whose forward gives
            ``F.linear(input, weight, bias)``, as that of transformers' ``FalconLinear`` and of
            torch_geometric's ``Linear`` does. It is not called any more; all else of theirs stays.
            Or torch's classes of convolutions, for those that are products.
        attention: also have the attention of transformers' models be xgemm's where it is "sdpa",
            torch's function: `scaled_dot_product_attention` in float32 where its kernels take a
            call, and theirs where they do not, as under autocast. Each such model has a row. It is
            the entry "xgemm" in transformers' table of implementations, to which
            ``config`` then refers; checkpoints do not hold it.

    Returns:
        What was swapped, what was not, and why.

    Raises:
        TypeError: ``model`` is no module, ``types`` has what is no class of such layers, or
            ``attention`` is no bool.
        ValueError: an unknown kernel, precision or way under autocast, or ``invariant="tp"``
            without ``precision="ieee"``.
    """
    _must_be_module("convert", model)
    _checks.check_options("convert", KERNELS["sgemm"], kernel, precision)
    check_autocast("convert", autocast)
    _checks.check_invariant("convert", invariant, precision)
    _checks.flag("convert", "attention", attention)
    more = check_types(types)
    rows: list[Row] = []
    left = False
    chosen: list[nn.Module] = []
    first_name: dict[int, str] = {}
    modules = dict(model.named_modules(remove_duplicate=False))
    for fqn, module in modules.items():
        name = _type_name(module)
        if id(module) in first_name:
            if any(row.fqn == first_name[id(module)] for row in rows):
                done = next(row for row in rows if row.fqn == first_name[id(module)])
                rows.append(Row(fqn, done.type, done.swapped, f"the same module as {done.fqn}"))
            continue
        first_name[id(module)] = fqn
        reason = _obstacle(module, more)
        if reason is None:
            continue
        left |= bool(reason) and _multiplies(module)
        if not reason and _features(module) < min_features:
            reason = f"fewer than {min_features} features"
        if not reason and filter_fn is not None and not filter_fn(module, fqn):
            reason = "filter_fn says no"
        if not reason:
            chosen.append(module)
        what = convnd.in_words(module)
        how = f"{what and f'{what}: '}kernel={kernel}, precision={precision}"
        how += "" if invariant is None else f", invariant={invariant}"
        if not reason and (owner := hands_on(modules, fqn)):
            how += f"; {owner}.forward hands its weight to another function, which patch() sees"
            left = True
        rows.append(Row(fqn, name, not reason, reason or how))
    if attention:
        rows += _swap_attention(model)
    for module in chosen:  # only now: nothing can fail any more
        options = {"kernel": kernel, "precision": precision, "autocast": autocast}
        _swap(module, options | {"invariant": invariant})
    notes = _fast_paths(model, rows)
    if any(row.swapped for row in rows):
        notes += _forget_graphs(model)
    elif not rows:
        notes.append(f"no module of {type(model).__name__} looks like a Linear; it is as it was")
    if not attention:
        notes += _attention_left(model)
    if left:
        notes.append(
            "products of modules that were not swapped, and of weights that are handed on, are "
            "torch's; inside xgemm_torch.patch() they go through xgemm, too"
        )
    return ConvertReport(tuple(rows), tuple(notes))


def revert(model: nn.Module) -> ConvertReport:
    """Undo ``convert``: the modules that it swapped have their own class again.

    Modules that were made as ``xgemm_torch.nn.Linear`` stay so (``to_linear()`` gives torch's), and
    so do those whose forward was replaced on the instance after ``convert`` (by accelerate's hooks,
    by ``module.forward = torch.compile(module.forward)``): the report names them.

    Args:
        model: the model, which is changed in place; its parameters stay the same objects.

    Returns:
        What was swapped back, what not, and why; ``str()`` gives it as a table.

    Raises:
        TypeError: ``model`` is no module.
    """
    _must_be_module("revert", model)
    rows: list[Row] = []
    for fqn, module in model.named_modules():
        if not _is_ours(module):
            continue
        name, stock = _type_name(module), _stock(type(module))
        if MARK not in vars(module):
            rows.append(Row(fqn, name, False, "not made by convert"))
        elif stock is None:
            rows.append(Row(fqn, name, False, "its class was changed after convert"))
        elif "forward" in vars(module):
            # What wraps our forward would go on to call it.
            rows.append(Row(fqn, name, False, "its forward was replaced after convert; undo that"))
        else:
            for attribute in _TAKEN:
                vars(module).pop(attribute, None)
            module.__class__ = stock
            named = f"{stock.__module__}.{stock.__qualname__}"
            again = "torch.nn.Linear" if stock is nn.Linear else named
            rows.append(Row(fqn, name, True, f"{again} again"))
    for fqn, each in transformers_attention.models(model):
        if transformers_attention.is_swapped(each):
            transformers_attention.swap_back(each)
            rows.append(
                Row(fqn, _type_name(each), True, "its attention is transformers' own again")
            )
    notes = _forget_graphs(model) if any(row.swapped for row in rows) else []
    return ConvertReport(tuple(rows), tuple(notes))


def _must_be_module(name: str, model: object) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"{name}: needs a torch.nn.Module, got {type(model).__name__}")


def _type_name(module: nn.Module) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"


def _is_ours(module: nn.Module) -> bool:
    return isinstance(module, (Linear, conv1d.Product, convnd.Product, Other))


def _stock(kind: type[nn.Module]) -> type[nn.Module] | None:
    """The class that ``convert`` has found where there is one of ours now; None of no other."""
    if kind is Linear:
        return nn.Linear
    stock = vars(kind).get("stock")
    return stock if stock is not None and kind is _with_ours(stock) else None


def _with_ours(stock: type[nn.Module]) -> type[nn.Module]:
    """The class that a module of class ``stock`` gets."""
    if stock is nn.Linear:
        return Linear
    if stock in convnd.CLASSES:
        return convnd.CLASSES[stock]
    if conv1d.is_conv1d(stock):
        return conv1d.product_of(stock)  # type: ignore[arg-type]
    return opted(stock)  # type: ignore[arg-type]


def _swap(module: nn.Module, options: dict[str, Any]) -> None:
    # Attributes of the instance, always: torch 2.11's compiled graphs see a new class only when
    # the module's dictionary has changed too.
    vars(module).update({**options, MARK: True})
    module.__class__ = _with_ours(type(module))


def _swap_attention(model: nn.Module) -> list[Row]:
    """Have transformers' models in it have our attention, all or none; a row for each."""
    rows: list[Row] = []
    done: list[nn.Module] = []
    try:
        for fqn, each in transformers_attention.models(model):
            reason = transformers_attention.obstacle(each)
            if not reason:
                transformers_attention.swap(each)
                done.append(each)
            rows.append(Row(fqn, _type_name(each), not reason, reason or "its attention"))
    except BaseException:
        for each in done:
            transformers_attention.swap_back(each)
        raise
    return rows


def _attention_left(model: nn.Module) -> list[str]:
    """What to know of attention that could have been swapped."""
    theirs = [
        type(each).__name__
        for _, each in transformers_attention.models(model)
        if not transformers_attention.obstacle(each)
    ]
    if not theirs:
        return []
    return [
        f"attention of {', '.join(theirs)} is torch's; attention=True has it be xgemm's, as "
        "xgemm_torch.patch() does"
    ]


def _features(module: nn.Module) -> int:
    """The fewer of a module's input and output features; of a convolution's inputs of a place."""
    weight: Any = module.weight
    return min(weight.shape[0], weight[0].numel())


def _multiplies(module: nn.Module) -> bool:
    """Whether a module that cannot be swapped has float32 products of its own, for ``patch``."""
    return (
        not _is_ours(module)
        and not isinstance(module, (nn.LazyLinear, nn.Bilinear))
        and any(t.dtype is torch.float32 for t in module.parameters())
    )


def _obstacle(module: nn.Module, types: frozenset[type[nn.Module]]) -> str | None:
    """Why a module cannot be swapped, "" where it can, None where it is nothing like a Linear."""
    if _is_ours(module):
        return "is one already"
    kind = type(module)
    if kind in types and kind not in convnd.CLASSES:
        return replaced(module) or misfit(module) or _unfit(module)
    if reason := obstacle(module):
        return reason
    if reason == "" and kind in convnd.CLASSES and kind not in types:
        name = f"torch.nn.{kind.__name__}"
        return f"{convnd.in_words(module)}, in TF32 by torch's default; types={name} takes it"
    return reason if reason is None else _unfit(module)


def _unfit(module: nn.Module) -> str:
    """What of a Linear does not go together with ours; "" where all does."""
    taken = vars(module), module._parameters, module._buffers, module._modules
    for name in _TAKEN if MARK not in vars(module) else ():
        own = type(module) is not nn.Linear and hasattr(type(module), name)
        if own or any(name in names for names in taken):
            return f"has an attribute {name} of its own, which means something else here"
    for arg in ("weight", "bias"):
        t = getattr(module, arg, None)
        if t is not None and t.dtype is not torch.float32:
            return f"its {arg} is {str(t.dtype).removeprefix('torch.')}, not float32"
    return ""


def _fast_paths(model: nn.Module, rows: list[Row]) -> list[str]:
    """Transformer layers whose fast path computes without calling the modules inside."""
    notes = []
    for fqn, module in model.named_modules():
        inside = [row.fqn for row in rows if row.swapped and _is_inside(row.fqn, fqn)]
        if isinstance(module, nn.TransformerEncoderLayer) and inside:
            notes.append(
                f"{fqn or 'the model'} is a TransformerEncoderLayer: in eval mode without gradients"
                f" torch's fast path bypasses {', '.join(inside)}; "
                "torch.backends.mha.set_fastpath_enabled(False) turns that path off"
            )
    return notes


def _is_inside(fqn: str, parent: str) -> bool:
    return not parent or fqn.startswith(parent + ".")


def _forget_graphs(model: nn.Module) -> list[str]:
    """Drop compiled graphs of the model, which may hold the old class's computation."""
    compiled = [
        fqn or "the model"
        for fqn, module in model.named_modules()
        if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
    ]
    if not compiled:
        return []
    torch.compiler.reset()
    return [f"{', '.join(compiled)} had been compiled; all compiled graphs were dropped"]
