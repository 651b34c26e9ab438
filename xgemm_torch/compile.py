"""Products into memory that Inductor allocates: ``import xgemm_torch.compile``, then compile.

To Inductor an operator that returns a tensor is a black box: the result has eager mode's strides,
is taken for unaligned by the kernels that read it, and a gradient of logits gets memory of its own
beside them, where Inductor pads the rows of the one and cannot pad the other's. With this module
`sgemm`, and so `linear`, `mm` and every converted layer, is an out= call like Inductor's own
products: in memory that it pads, aligns, plans and reuses. The bits are those of eager mode.

Without it all of this works, in more memory. Stages that are called as operators of their own
(``torch.ops.xgemm.naive``), code in C++ (``cpp_wrapper``) and AOTInductor's packages keep the
operator that returns a tensor, and so does what a compile cache holds from before the import.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.lowering import fallback_handler, register_lowering
from torch._inductor.virtualized import V

from .ops import OPS

_SGEMM, _OUT = OPS["sgemm"], torch.ops.xgemm.sgemm.out
_as_returned = fallback_handler(_SGEMM, add_to_fallback_set=False)


@register_lowering(_SGEMM, type_promotion_kind=None)
def _sgemm(a: Any, b: Any, c: Any = None, **flags: Any) -> Any:
    """The call of ``sgemm.out`` for a call of ``sgemm``, the shape as its fake kernel says."""
    if V.graph.cpp_wrapper or V.graph.aot_mode:
        return _as_returned(a, b, c, **flags)
    result = V.graph.current_node.meta["val"]
    layout = ir.FlexibleLayout(
        device=result.device, dtype=result.dtype, size=ir.convert_shape_to_inductor(result.shape)
    )
    operands = [ir.ExternKernel.realize_input(x) for x in (a, b, c) if x is not None]
    call = ir.ExternKernelOut(
        layout, operands, kwargs=flags, python_kernel_name=f"torch.ops.{_OUT}", op_overload=_OUT
    )
    return ir.TensorBox.create(call)
