"""A product under the transforms of ``torch.func``, level by level.

torch has a way for any ``autograd.Function``: inputs and outputs are trees of tensors, and each
call makes a class of its own. A product is three tensors and a result, and its level a class that
is there already.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd.function import _SingleLevelFunction

from . import ops
from .ops import functorch

_Transform = functorch.TransformType


class Level(ops._Rules, _SingleLevelFunction):
    """A level that differentiates. Its ``backward`` and ``jvp`` run at that level."""

    @staticmethod
    def forward(*inputs: Any) -> Tensor:
        """Call the product at the next level."""
        name, a, b, c, flags, interpreter = inputs
        level, unwrap = interpreter.level(), functorch._unwrap_for_grad
        a, b = unwrap(a, level), unwrap(b, level)
        c = None if c is None else unwrap(c, level)
        # Both modes are off inside a Function: they are this level's, and not the next one's.
        with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True), interpreter.lower():
            out = ops._product(name, a, b, c, **flags)
        return functorch._wrap_for_grad(out, level)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep what the derivatives need."""
        ops._keep(ctx, inputs)


_level: Any = Level  # its class has an `apply` that torch's stubs have not


def at_level(name: str, a: Tensor, b: Tensor, c: Tensor | None, flags: dict[str, Any]) -> Tensor:
    """Call operator ``name`` at the innermost level in force, and below it at the next one."""
    interpreter: Any = retrieve_current_functorch_interpreter()
    a, b, c = ops.alive(a, b, c)  # what backward kept
    if interpreter.key() != _Transform.Vmap:
        with enable_single_level_autograd_function():
            return _level.apply(name, a, b, c, flags, interpreter)
    level, unwrap = interpreter.level(), functorch._unwrap_batched
    (a, dim_a), (b, dim_b) = unwrap(a, level), unwrap(b, level)
    c, dim_c = (None, None) if c is None else unwrap(c, level)
    with interpreter.lower():
        if dim_a is None and dim_b is None and dim_c is None:
            return ops._product(name, a, b, c, **flags)
        dims = dim_a, dim_b, dim_c
        out, dim = ops._vmapped(name, interpreter.batch_size(), dims, a, b, c, *ops._split(flags))
    return functorch._add_batch_dim(out, dim, level)


def functionalized() -> Any:
    """Give what unwraps and wraps again where the transform is ``functionalize``, else None.

    It has no rule for an autograd Function, and a product without ``out`` needs none.
    """
    if functorch.peek_interpreter_stack().key() != _Transform.Functionalize:
        return None
    from torch._subclasses.functional_tensor import FunctorchFunctionalizeAPI

    interpreter: Any = retrieve_current_functorch_interpreter()
    return FunctorchFunctionalizeAPI(interpreter)
