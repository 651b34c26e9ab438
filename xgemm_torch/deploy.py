"""What tools that read a model by its layers' classes find in layers of ours.

- ONNX's exporters find torch's own layers: ONNX has no operator for our products.
- ``torch.jit.script`` raises: it compiles source, and ours is not written for it.
- Quantization, eager, dynamic and by FX, looks for ``torch.nn.Linear`` itself, would leave ours in
  float32 without a word, and warns.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any, NoReturn

import torch
from torch.compiler import is_dynamo_compiling

LEFT = (
    "quantization looks layers up by their class, and leaves those that xgemm_torch.convert() has "
    "made as they are, in float32; xgemm_torch.revert(model) first to have them quantized"
)
SCRIPT = (
    "torch.jit.script cannot compile layers of xgemm_torch: xgemm_torch.revert(model) first, or "
    "torch.jit.trace, which keeps their products"
)


class Deployed:
    """A base of layers of ours."""

    @property
    def qconfig(self) -> Any:
        """How torch.ao.quantization is to quantize the layer, which it will not do."""
        try:
            return vars(self)["qconfig"]
        except KeyError:
            raise AttributeError("qconfig") from None

    @qconfig.setter
    def qconfig(self, value: Any) -> None:
        warnings.warn(LEFT, stacklevel=3)
        vars(self)["qconfig"] = value

    @qconfig.deleter
    def qconfig(self) -> None:
        del vars(self)["qconfig"]

    def __prepare_scriptable__(self) -> NoReturn:
        """Say what is wrong, where ``torch.jit.script`` would stumble over an annotation."""
        raise RuntimeError(SCRIPT)


def to_onnx() -> bool:
    """Whether an exporter of ``torch.onnx`` is tracing."""
    if is_dynamo_compiling():  # ahead of the exporters, which trace without it
        return False
    onnx = sys.modules.get("torch.onnx")
    return onnx is not None and bool(onnx.is_in_onnx_export())


def warn_of_quantization(operands: Any) -> None:
    """Warn where FX traces for quantization, which looks for torch's functions and modules."""
    for t in operands:
        if isinstance(t, torch.fx.Proxy) and type(t.tracer).__name__ == "QuantizationTracer":
            warnings.warn(LEFT, stacklevel=4)
            return
