"""Products into memory that Inductor allocates: what ``torch.compile`` makes of ``sgemm``.

To Inductor an operator that returns a tensor is a black box: the result has eager mode's strides,
is taken for unaligned by the kernels that read it, and a gradient of logits gets memory of its own
beside them, where Inductor pads the rows of the one and cannot pad the other's. The lowering here
makes `sgemm`, and so `linear`, `mm` and every converted layer, an out= call like Inductor's own
products: in memory that it pads, aligns, plans and reuses. The bits are those of eager mode.

Importing Inductor takes seconds, so importing the package does not: `register` is called by
``sgemm``'s fake kernel, which runs before any lowering, once Inductor is loaded. Stages that are
called as operators of their own (``torch.ops.xgemm.naive``), code in C++ (``cpp_wrapper``) and
AOTInductor's packages keep the operator that returns a tensor.
"""

from __future__ import annotations

import functools
import sys
import warnings
from typing import Any

import torch


def register() -> None:
    """Register the lowering, once Inductor has been loaded."""
    if "torch._inductor.lowering" in sys.modules:
        _register()


@functools.cache
def _register() -> bool:
    """Register it; False, after a warning, where this torch's Inductor differs.

    Without the lowering everything works, in more memory.
    """
    try:
        from torch._inductor.lowering import fallback_handler, register_lowering

        sgemm = torch.ops.xgemm.sgemm.default

        def as_returned(*operands: Any, kernel: str = "auto", **flags: Any) -> Any:
            # By the stage's own operator: what Inductor calls has an argument `kernel` itself.
            op = sgemm if kernel == "auto" else getattr(torch.ops.xgemm, kernel).default
            return fallback_handler(op, add_to_fallback_set=False)(*operands, **flags)

        register_lowering(sgemm, type_promotion_kind=None)(_lowering(as_returned))
    except (ImportError, AttributeError, TypeError) as error:
        warnings.warn(
            f"torch {torch.__version__}: products keep memory of their own under torch.compile, "
            f"for Inductor has changed: {error}",
            stacklevel=2,
        )
        return False
    return True


def _lowering(as_returned: Any) -> Any:
    """The call of ``sgemm.out`` for a call of ``sgemm``, the shape as its fake kernel says."""
    from torch._inductor import ir as ir_module
    from torch._inductor.virtualized import V

    out = torch.ops.xgemm.sgemm.out
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
