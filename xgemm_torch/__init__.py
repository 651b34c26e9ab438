"""FP32 matrix products for PyTorch, from a ladder of kernels that each can be called by name.

``sgemm`` is the product itself; ``linear``, ``mm``, ``addmm``, ``bmm`` and ``matmul`` are torch's
functions on it, and ``scaled_dot_product_attention`` torch's attention by kernels of its own;
``mixed_linear`` is a linear layer of bf16 activations and FP32 weights;
``nn.Linear`` is torch's module on it; ``convert(model)`` makes a model use it and
``revert(model)`` undoes that; inside ``patch()`` torch's own functions use it, whatever the model;
``prepack(weight)`` does once what a weight that does not change needs done once; ``stages()`` lists
the kernels, ``explain(a, b)`` says which of them would run, and ``tuned`` is about problems that
were measured on the spot (``python -m xgemm_torch tune``). The operators are ``torch.ops.xgemm.*``.

The import registers operators and does nothing else: it starts no device and writes no setting.
Four rooms beside the runtime are imported when first asked for: ``tools`` (what the commands are
made of: info, explain, tune, accuracy, timing), ``course`` (the ladder's counts, pictures, sources
and races), ``train``, and ``demo``, which shows something of both.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import torch  # noqa: F401  (its libraries must be loaded before the compiled module)

try:
    from . import _C  # noqa: F401
except ImportError as error:
    raise ImportError(
        "xgemm_torch's compiled module could not be loaded; build it with `make`, or with "
        f"`pip install -e . --no-build-isolation` in the repository ({error})"
    ) from error

from . import nn, simt, tuned
from .attention import scaled_dot_product_attention
from .convert import ConvertReport, convert, revert
from .explain import Candidate, Explanation, explain
from .functional import addmm, bmm, linear, matmul, mm
from .grouped import grouped_mm
from .mixed import mixed_linear
from .ops import sgemm
from .packed import PackedWeight, prepack
from .patch import Patch, PatchRow, patch
from .recomputed import Recomputed, count_recomputed
from .registry import Stage, Tile, split_k_size, stages

if TYPE_CHECKING:
    from . import course as course
    from . import demo as demo
    from . import registry as registry
    from . import tools as tools
    from . import train as train

__version__ = "0.1.0"

SUBMODULES = ("course", "demo", "registry", "tools", "train")

__all__ = [
    "Candidate",
    "ConvertReport",
    "Explanation",
    "PackedWeight",
    "Patch",
    "PatchRow",
    "Recomputed",
    "Stage",
    "Tile",
    "addmm",
    "bmm",
    "convert",
    "count_recomputed",
    "explain",
    "grouped_mm",
    "linear",
    "matmul",
    "mixed_linear",
    "mm",
    "nn",
    "patch",
    "prepack",
    "revert",
    "scaled_dot_product_attention",
    "sgemm",
    "simt",
    "split_k_size",
    "stages",
    "tuned",
]


if not TYPE_CHECKING:  # a type checker would take every name for one of these

    def __getattr__(name: str) -> Any:
        """Import one of `SUBMODULES` when it is first asked for."""
        if name in SUBMODULES:
            return importlib.import_module(f".{name}", __name__)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *SUBMODULES})
