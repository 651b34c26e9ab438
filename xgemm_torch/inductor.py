"""Products into memory that Inductor allocates: what ``torch.compile`` makes of ``sgemm``.

To Inductor an operator that returns a tensor is a black box: the result has eager mode's strides,
is taken for unaligned by the kernels that read it, and a gradient of logits gets memory of its own
beside them, where Inductor pads the rows of the one and cannot pad the other's. The lowering here
makes `sgemm`, and so `linear`, `mm` and every converted layer, an out= call like Inductor's own
products: in memory that it pads, aligns, plans and reuses. The bits are those of eager mode.

Stages that are called as operators of their own (``torch.ops.xgemm.naive``), ``sgemm_invariant``,
``sgemm_row_sums``, ``linear_backward``, ``mixed_mm``, ``prepack``, code in C++ (``cpp_wrapper``),
and packages of AOTInductor keep the operator that returns a tensor. Inductor's own lowering fails
at an argument ``kernel``, the name of a parameter that it has itself: here the argument is added to
the call afterwards.

Importing Inductor takes seconds, so importing the package does not: `register` is called by the
operators' fake kernels, which run before any lowering, once Inductor is loaded.
"""

from __future__ import annotations

import functools
import sys
import warnings
from typing import Any

import torch

from .registry import OPERATORS, stages


def register() -> None:
    """Register the lowerings, once Inductor has been loaded."""
    if "torch._inductor.lowering" in sys.modules:
        _register()


@functools.cache
def _register() -> bool:
    """Register it; False, after a warning, where this torch's Inductor differs.

    Without the lowering everything works, in more memory.
    """
    try:
        from torch._inductor.lowering import (
            add_layout_constraint,
            constrain_to_fake_tensors,
            fallback_handler,
            register_lowering,
        )

        sgemm = OPERATORS.sgemm.default

        def as_returned(*operands: Any, kernel: str = "auto", **flags: Any) -> Any:
            # By the stage's own operator, not as `_with_kernel` does it: sgemm has an out= overload
            # by which Inductor may replace it, and that call is another kind of node.
            op = sgemm if kernel == "auto" else getattr(OPERATORS, kernel).default
            return fallback_handler(op, add_to_fallback_set=False)(*operands, **flags)

        register_lowering(sgemm, type_promotion_kind=None)(_lowering(as_returned))
        own = ("sgemm_invariant", "sgemm_row_sums", "linear_backward", "mixed_mm", "prepack")
        for name in (*own, *(stage.name for stage in stages())):
            op = getattr(OPERATORS, name).default
            register_lowering(op, type_promotion_kind=None)(_with_kernel(op))
        # A lowering of one's own has no constraint; an operator that is not tagged as flexible has.
        add_layout_constraint(OPERATORS.prepack.default, constrain_to_fake_tensors)
    except (ImportError, AttributeError, TypeError) as error:
        warnings.warn(
            f"torch {torch.__version__}: products keep memory of their own under torch.compile, "
            f"for Inductor has changed: {error}",
            stacklevel=2,
        )
        return False
    return True


def _with_kernel(op: torch._ops.OpOverload) -> Any:
    """Inductor's lowering of an operator that it calls as it is, and the argument ``kernel``.

    ``FallbackKernel.create`` calls its first parameter so, and takes the operator's arguments by
    their names beside it. The argument joins them when the call is written.
    """
    from torch._inductor import ir as ir_module
    from torch._inductor.lowering import fallback_handler

    ir: Any = ir_module
    fallback = fallback_handler(op, add_to_fallback_set=False)

    def lowering(*operands: Any, kernel: str = "auto", **flags: Any) -> Any:
        results = fallback(*operands, **flags)
        if kernel != "auto":
            all_of = results if isinstance(results, (list, tuple)) else [results]
            first: Any = next(result for result in all_of if result is not None)
            call = first.get_defining_op()
            if isinstance(call, ir.MultiOutput):  # since torch 2.14 one result is the call itself
                call = call.inputs[0]
            arguments = call.unflatten_args

            def named(*values: Any) -> tuple[Any, dict[str, Any]]:
                args, kwargs = arguments(*values)
                return args, {**kwargs, "kernel": kernel}

            call.unflatten_args = named
        return results

    return lowering


def _lowering(as_returned: Any) -> Any:
    """The call of ``sgemm.out`` for a call of ``sgemm``, the shape as its fake kernel says."""
    from torch._inductor import ir as ir_module
    from torch._inductor.virtualized import V

    out = OPERATORS.sgemm.out
    ir: Any = ir_module  # what it imports from elsewhere is no export of its own
    convert_shape, realize = ir.convert_shape_to_inductor, ir.ExternKernel.realize_input

    def lowering(a: Any, b: Any, c: Any = None, **flags: Any) -> Any:
        if V.graph.cpp_wrapper or V.graph.aot_mode:
            return as_returned(a, b, c, **flags)
        result = V.graph.current_node.meta["val"]
        layout = ir.FlexibleLayout(
            device=result.device, dtype=result.dtype, size=convert_shape(result.shape)
        )
        call = ir.ExternKernelOut(
            layout,
            [realize(x) for x in (a, b, c) if x is not None],
            kwargs=flags,
            python_kernel_name=f"torch.ops.{out}",
            op_overload=out,
        )
        return ir.TensorBox.create(call)

    return lowering
