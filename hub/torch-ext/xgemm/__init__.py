"""FP32 matrix products by tensor cores, at the accuracy of FP32: a kernel of the Hugging Face Hub.

The functions are those of the package ``xgemm_torch``, of which this has the runtime; `layers` has
what ``kernels.kernelize`` puts in place of a layer's ``forward``. The operators are in a namespace
of ``torch.ops`` that no other version has.
"""

import torch  # noqa: F401  (its libraries must be loaded before the compiled module)

from . import layers, nn
from .attention import scaled_dot_product_attention
from .convert import ConvertReport, convert, revert
from .explain import explain
from .functional import addmm, bmm, linear, matmul, mm
from .grouped import grouped_mm
from .mixed import mixed_linear
from .ops import sgemm
from .packed import PackedWeight, prepack
from .patch import Patch, patch
from .registry import split_k_size, stages

__all__ = [
    "ConvertReport",
    "PackedWeight",
    "Patch",
    "addmm",
    "bmm",
    "convert",
    "explain",
    "grouped_mm",
    "layers",
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
    "split_k_size",
    "stages",
]
