"""What the operators' calls count in ``torch.utils.flop_counter``.

Few programs count, and that module is a large one to import: the operators' formulas are registered
when somebody imports it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_COUNTER = "torch.utils.flop_counter"


def _product(
    a_shape: Any, b_shape: Any, *args: Any, trans_a: bool = False, out_shape: Any, **kwargs: Any
) -> int:
    """A multiplication and an addition for each element of the result and each k, as torch's.

    Of an operator that has several results the first is the product.
    """
    if out_shape and not isinstance(out_shape[0], int):
        out_shape = out_shape[0]
    return 2 * math.prod(out_shape) * a_shape[-2 if trans_a else -1]


def of_linear_backward(grad: Any, x: Any, weight: Any, *args: Any, **kwargs: Any) -> int:
    """A product for each gradient that is asked for, of the shapes of the operands."""
    return sum(2 * math.prod(grad) * t[1] for t in (x, weight) if t is not None)


class _Finder(MetaPathFinder):
    """Finds the counter as it would be found without this, and registers when it is made.

    It stays until then: a specification that is only looked at, as ``importlib.util.find_spec``
    does, makes no module.
    """

    def __init__(self) -> None:
        self.formulas: list[tuple[list[Any], Any]] = []

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != _COUNTER:
            return None
        # Those behind it: ahead may be that of another copy of this package, which asks this one.
        others = sys.meta_path[sys.meta_path.index(self) + 1 :]
        found = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is None or spec.loader is None:
            return spec
        make = spec.loader.exec_module

        def make_and_register(module: ModuleType) -> None:
            make(module)
            for operators, formula in self.formulas:
                module.register_flop_formula(operators)(formula)
            with suppress(ValueError):  # another specification's module was made before
                sys.meta_path.remove(self)

        # Each search has a loader of its own, so that none is wrapped twice.
        spec.loader.exec_module = make_and_register  # type: ignore[method-assign]
        return spec


_FINDER = _Finder()


def register(operators: Iterable[Any], formula: Callable[..., int] | None = None) -> None:
    """Have the calls of operators counted, now or when the counter is imported.

    Args:
        operators: as ``torch.ops`` has them.
        formula: of the shapes of their tensors, as the counter calls it; by default that of
            operators with the arguments of ``sgemm``.
    """
    pair = list(operators), formula or _product
    if _COUNTER in sys.modules:
        sys.modules[_COUNTER].register_flop_formula(pair[0])(pair[1])
        return
    _FINDER.formulas.append(pair)
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
